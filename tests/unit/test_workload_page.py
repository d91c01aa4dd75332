"""The page of a tuned workload."""

import pytest

from workbench.reports.workload import page

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("predicted", [False, True])
def test_it_shows_the_signatures_and_belongs_to_no_run(predicted):
    rows, notes = [("softmax_kernel", "50 %"), ("add_kernel", "2 %")], [("softmax_kernel", "kept")]
    html = page("h200", predicted, "One of 2 is faster.", ("kernel", "share"), rows, notes)
    assert all(cell in html for row in (*rows, *notes) for cell in row)
    assert "One of 2 is faster." in html and 'meta name="run"' not in html
    assert ("All times on this page are predicted" in html) == predicted
