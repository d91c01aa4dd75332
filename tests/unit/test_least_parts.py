"""Small functions at their limits, with values worked out by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from workbench import catalog
from workbench.data import verdict
from workbench.data.record import Ratio
from workbench.device.bounds import cache_bytes
from workbench.device.ceilings import Ceiling, _alike
from workbench.device.hardware import DEVICES
from workbench.measurement.metal_timing import MetalProtocol, warm_up
from workbench.measurement.observed import Observed
from workbench.measurement.reference import SpecFault, reference_outputs


def test_the_cache_of_a_device_or_64_mib():
    assert cache_bytes(DEVICES["h100"]) == 50 << 20
    assert cache_bytes(replace(DEVICES["h100"], cache=None)) == 64 << 20


def test_operators_that_compute_are_named_once_in_their_order():
    seen = Observed([], ["mul", "empty", "add", "view", "mul"])
    assert seen.computing == ("mul", "add")


@pytest.mark.parametrize(
    ("low", "high", "operand"),
    [(1.02, 1.05, "above"), (0.9, 0.98, "below"), (0.995, 1.005, "inside"), (0.95, 1.05, "across")],
)
def test_where_an_interval_lies(low, high, operand):
    ratio = Ratio(1.0, low, high)
    assert verdict._operand(ratio, 0.01) == operand
    assert verdict._reaches(ratio, 0.01, "above") == (high > 1.01)
    assert verdict._reaches(ratio, 0.01, "below") == (low < 1 / 1.01)


def test_two_states_up_to_two_percent_apart_are_one_line():
    one = Ceiling("h100", "dram_copy_measured", "dram", 100.0, "measured", "here")
    assert [_alike(replace(one, value=v), one) for v in (101.9, 98.1, 102.1, 97.9)] == [
        *(True, True),
        *(False, False),
    ]


RULES = MetalProtocol()


class Growing:
    """A call that takes twice as long in each window: it never settles."""

    def __init__(self):
        self.asked = []

    def seconds(self, calls):
        self.asked.append(calls)
        window = max(0, len(self.asked) - 2) // RULES.warm_samples
        return calls * 1e-3 * 2**window


def test_a_call_that_never_settles_has_the_time_of_its_last_window():
    result = warm_up(Growing(), RULES)
    assert not result.has_settled and result.windows == RULES.warm_most
    assert result.call_s == pytest.approx(1e-3 * 2 ** (RULES.warm_most - 1))


@pytest.mark.parametrize("sizes, where", [({"N": 3}, "toy at N=3 fails"), ({}, "toy fails")])
def test_a_reference_that_fails_is_named_with_its_sizes(sizes, where):
    def fails(x):
        raise ValueError("not today")

    spec = replace(catalog.spec_of("copy"), name="toy", reference=fails)
    with pytest.raises(SpecFault, match=where):
        reference_outputs(spec, [], sizes)


def test_a_package_that_is_installed_is_no_checkout(tmp_path: Path):
    (tmp_path / ".git").mkdir()
    for folder in ("site-packages", "dist-packages", "mine"):
        (tmp_path / folder).mkdir()
    checkouts = [catalog._checkout(tmp_path / name / "x.py") for name in
                 ("site-packages", "dist-packages", "mine")]  # fmt: skip
    assert checkouts[:2] == [None, None] and checkouts[2] is not None
