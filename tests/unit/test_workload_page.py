"""The page of a tuned workload."""

import pytest

from workbench.device.error_band import device_words
from workbench.reports.workload import page

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("error", ["", device_words("h200", "softmax_kernel, add_kernel")])
def test_it_shows_the_signatures_and_belongs_to_no_run(error):
    rows = [("softmax_kernel", "x 8x8 bf16", "50 %"), ("add_kernel", "x 8 fp32", "2 %")]
    notes, order = [("softmax_kernel", "kept")], "In the order of their share."
    heads = ("kernel", "signature", "share")
    html = page("NVIDIA H200", error, "One of 2 is faster.", order, heads, rows, notes)
    assert all(cell in html for row in (*rows, *notes) for cell in row)
    assert "One of 2 is faster." in html and order in html and 'meta name="run"' not in html
    assert ("All times on this page are predicted" in html) == bool(error)
    assert error in html and "never validated" not in html
