"""The page of a measurement: shares of the nearest ceiling, measured and predicted."""

import html
import re
from dataclasses import replace

import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from workbench.data.record import Predicted
from workbench.device.error_band import band_of, factor_words
from workbench.device.hardware import DEVICES
from workbench.reports.figures.measure import Share
from workbench.reports.measure import page

pytestmark = pytest.mark.unit

BARS = "the shares that are expected if the times are measured"


def record_of(device, time_s, measured):
    """A record of softmax on a device."""
    _, (record, *_) = synthetic.softmax(predicted=True)
    timing = Predicted(time_s, "analytic", 0.0, 0.0, 0.0, 0.0, 0.0, "dram")
    case = replace(record.case, device=device)
    return replace(record, case=case, timing=synthetic.measured(time_s) if measured else timing)


@given(st.sampled_from(sorted(DEVICES)), st.floats(1e-6, 1.0), st.floats(0.1, 150.0), st.booleans())
def test_a_share_is_expected_where_its_time_is(device, time_s, percent, measured):
    record = record_of(device, time_s, measured)
    share, band = Share("sizes", record, 0, "circle", percent), band_of(record)
    assert share.label == ("" if measured else "~") + f"{percent:.0f} %"
    assert (share.expected_percent is None) == (measured or band is None)
    if share.expected_percent is not None:
        least, most = share.expected_percent
        assert least <= most <= 100
        assert least == pytest.approx(min(100, percent / band.high))
        assert most == pytest.approx(min(100, percent / band.low))


@pytest.mark.parametrize(
    ("predicted", "device"), [(True, "h200"), (True, "mi300x"), (False, "NVIDIA H200")]
)
def test_the_figure_of_shares_names_the_error_of_predicted_ones(predicted, device):
    run, outcomes = synthetic.softmax(predicted=predicted)
    if predicted:
        run = replace(run, device=device)
        outcomes = [replace(o, case=replace(o.case, device=device)) for o in outcomes]
    else:
        outcomes = [replace(o, phase="final") for o in outcomes]
    drawn = html.unescape(page(run, outcomes))
    figure = re.search(r'id="h-ceiling".*?</section>', drawn, re.S)[0]
    shares = re.findall(r">(~?)(\d+) %<", figure)
    assert len(shares) == len(outcomes) and {mark for mark, _ in shares} == {"~" * predicted}
    assert (BARS in figure) == (device == "h200")
    assert factor_words(outcomes) in figure
