"""Calls that change their inputs, on the GPU that is here: each finds them as they were made."""

import pytest
import torch

from workbench.data import stats
from workbench.device import hardware
from workbench.measurement.bench import Bench
from workbench.measurement.correctness import PreparedProblem, check
from workbench.measurement.protocol import Protocol
from workbench.spec import NoKnobs, Spec, Tensor

DEVICE = hardware.live()
if DEVICE is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)
CACHE = int(DEVICE.cache.value) if DEVICE.cache else 64 << 20


def adding(mutates):
    """x += y, in its place or out of it."""
    text = Tensor("N")
    spec = Spec(
        "add", {"x": text, "y": text}, {"x": text}, lambda x, y: x + y, lambda N: N,
        [{"N": 999}], [{"N": 1 << 22}],
    )  # fmt: skip

    @spec.impl(backend="torch", mutates=mutates)
    def added(x, y):
        return x.add_(y) if mutates else x + y

    return spec.impls[0]


def timed_of(impl, count, regime, **rules):
    bench = Bench(impl.spec, {"N": count}, "fp32", CACHE, 0.0, Protocol(**rules))
    rotation = bench.calls(impl, NoKnobs(), regime)
    return bench, bench.choose_method(rotation, bench.first_time(rotation))


def median_of(timed):
    return stats.median(timed.window(0.02, least=10).samples_s)


@pytest.mark.parametrize("regime", ["cold", "hot"])
@pytest.mark.parametrize("below", [0.0, 1.0])
@pytest.mark.parametrize("count", [1 << 16, 1 << 24])
def test_every_call_finds_its_input_as_it_was_made(regime, below, count):
    impl = adding(("x",))
    bench, timed = timed_of(impl, count, regime, graph_below_s=below)
    before = [x.clone() for x in bench.first_inputs]
    assert timed.method == ("graph" if below else "events")
    timed.samples(5)
    if timed.graph is not None:  # hot, the last replay is that of the restores alone
        timed.rotation.turn_over()
        timed.graph.replay()
    x, _ = before
    rotation = timed.rotation
    last = (rotation._turn - 1) % len(rotation.sets)
    for at, (result,) in rotation.outputs.items():
        # each call of a graph has a copy of x; those between events share one
        y = rotation.sets[at if timed.graph is not None else last][1]
        assert torch.equal(result, x + y)
    assert all(torch.equal(a, b) for a, b in zip(bench.first_inputs, before, strict=True))
    assert (
        check(impl, NoKnobs(), PreparedProblem.wrap(impl.spec, "fp32", bench.first_inputs)).wrong
        is None
    )


@pytest.mark.alone
def test_in_place_takes_as_long_as_out_of_place():
    """Both read two tensors and write one; the restores are not in the time."""
    results = [median_of(timed_of(adding(m), 1 << 24, "cold")[1]) for m in (("x",), ())]
    assert results[0] == pytest.approx(results[1], rel=0.15)


@pytest.mark.alone
def test_graphs_and_events_agree():
    results = [
        median_of(timed_of(adding(("x",)), 1 << 25, "cold", graph_below_s=below)[1])
        for below in (0.0, 1.0)
    ]
    assert results[0] == pytest.approx(results[1], rel=0.1, abs=4e-6)
