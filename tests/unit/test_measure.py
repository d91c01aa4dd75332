"""What of measuring can be judged without a GPU: names of protocols, verdicts, lost processes."""

import math
from concurrent.futures import Future
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
from nullside import kernel_in

from workbench import catalog, stats
from workbench.backend import live
from workbench.backend.live import Live
from workbench.backend.protocol import Candidate, Problem, Refusal, Timed
from workbench.hardware import device_named
from workbench.measure import worker
from workbench.measure.clocks import Clocks, Reading
from workbench.measure.protocol import Protocol
from workbench.measure.worker import Job, Screened, _failed, _precise, floor_s
from workbench.record import Case, Measured
from workbench.spec import Spec, Tensor

H200 = device_named("h200")
RIGHT = Screened(0.5, Measured(1e-5, 1e-5, 1e-5, (1e-5,), "cold", "events", "p1"))


def test_a_protocol_is_named_by_all_its_parameters():
    ids = {Protocol().id}
    for field in fields(Protocol):
        ids.add(replace(Protocol(), **{field.name: getattr(Protocol(), field.name) * 2}).id)
    assert len(ids) == len(fields(Protocol)) + 1
    assert Protocol().id == Protocol().id and Protocol().id.startswith("p1-")


def test_no_call_can_beat_bytes_over_bandwidth_or_flops_over_peak():
    assert floor_s(H200, 4_800_000, 0, "bf16") == pytest.approx(1e-6, rel=0.01)
    assert floor_s(H200, 0, 10**12, "bf16") == pytest.approx(1e12 / H200.peaks["bf16"].value)
    assert floor_s(H200, 0, 10**12, "fp32") == 0.0, "a library may choose tf32"
    assert floor_s(H200, 0, 10**12, "no such dtype") == 0.0


def test_an_interval_is_precise_when_it_is_narrow_and_has_enough_samples(monkeypatch):
    monkeypatch.setattr(worker._state, "job", Job("k", {}, "bf16", Protocol()), raising=False)
    narrow = [[1.0 + 0.0001 * (i % 3) for i in range(10)]] * 4
    wide = [[1.0 + 0.1 * (i % 7) for i in range(10)]] * 4
    assert _precise({0: narrow})
    assert not _precise({0: narrow[:2]}), "twenty samples are too few"
    assert not _precise({0: narrow, 1: wide})


@pytest.mark.parametrize(
    ("error", "poisoned"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("HIP error: invalid argument"), True),
        (ValueError("a mistake in the launcher"), False),
    ],
)
def test_an_error_of_the_driver_poisons_its_process(error, poisoned):
    found = _failed(error, "launch")
    assert found.poisoned is poisoned and found.stage == "launch" and str(error) in found.reason


def test_sensors_are_told_by_their_medians_and_none_where_they_cannot_be_read():
    readings = [Reading(1000.0, 40.0), Reading(1200.0, 42.0), Reading(1100.0, 41.0)]
    assert Clocks.median(readings) == {"sm_mhz": 1100.0, "temperature_c": 41.0, "power_w": None}
    assert set(Clocks.median([]).values()) == {None}


class OneProcess:
    """Stands for the measuring process: answers what it is told to."""

    def __init__(self, *answers):
        self.answers, self.asked, self.restarts = list(answers), [], 0

    def submit(self, task, *args, timeout_s):
        self.asked.append(task.__name__)
        future = Future()
        answer = {"dram": 4e12, "launch": 2e-6} if task is worker.begin else self.answers.pop(0)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    def restart(self):
        self.restarts += 1

    def close(self):
        pass


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """The live side on a process that is not one, and a candidate for it."""

    def make(*answers):
        process = OneProcess(("device", "environment"), *answers)
        monkeypatch.setattr(live, "Workers", lambda count: process)
        process.answers[0] = (H200, None)
        side = Live(None)
        kernel = str(kernel_in(tmp_path))
        spec = catalog.spec_of(kernel)
        side.begin(Problem(kernel, spec, {"N": 1024}, "bf16"))
        impl = spec.impls[0]
        case = Case("toy", "blocks", "triton", {}, {"N": 1024}, "bf16", "h200")
        return side, process, Candidate(case, "k", impl, impl.config())

    return make


def test_a_right_answer_is_a_time(begun):
    side, process, candidate = begun(RIGHT)
    assert side.timed(candidate, None, None).result() == Timed(RIGHT.timing, 0.5, "gpu")
    assert process.asked == ["describe", "begin", "screen"]


def test_a_poisoned_process_is_replaced_and_begins_again(begun):
    bad = Screened(stage="launch", reason="illegal access", poisoned=True)
    side, process, candidate = begun(bad, RIGHT)
    assert side.timed(candidate, None, None).result() == Refusal("launch", "illegal access")
    assert isinstance(side.timed(candidate, None, None).result(), Timed)
    assert process.restarts == 1
    assert process.asked == ["describe", "begin", "screen", "begin", "screen"]


@pytest.mark.parametrize("error", [TimeoutError("took longer"), ChildProcessError("died")])
def test_a_lost_process_costs_one_config(begun, error):
    side, process, candidate = begun(error, RIGHT)
    first = side.timed(candidate, None, None).result()
    assert isinstance(first, Refusal) and first.stage == "measure"
    assert isinstance(side.timed(candidate, None, None).result(), Timed)
    assert process.asked[-2:] == ["begin", "screen"]


def test_a_final_that_is_lost_is_lost_for_each_of_its_configs(begun):
    side, _, candidate = begun(TimeoutError("took longer than 300 s"))
    found = side.final([candidate, candidate], [1e-5, 1e-5])
    assert len(found) == 2 and all(isinstance(f, Refusal) for f in found)


def test_no_gpu_and_a_gpu_that_does_not_answer_are_said(monkeypatch):
    for answer, words in ((None, "torch sees no GPU here"), (TimeoutError("x"), "asks the GPU")):
        monkeypatch.setattr(live, "Workers", lambda count, a=answer: OneProcess(a))
        with pytest.raises(live.NoGpu, match=words):
            Live(None)


# A GPU whose clock wanders, under the real final.


class Wandering:
    """A bench without a GPU: each call slows the clock a little, up to a fifth, and back."""

    def __init__(self, seconds):
        self.seconds = seconds  # (impl, regime) -> seconds of one call at full clock
        self.order, self.turn = [], 0

    def calls(self, impl, config, regime="cold"):
        return impl.name, regime

    def first_time(self, rotation):
        return self.seconds[rotation]

    def timed(self, rotation, estimate_s):
        return SimpleNamespace(name=rotation, estimate_s=estimate_s, method="events", calls=1)

    def window(self, timed, seconds, least=1):
        self.order.append(timed.name)
        taken = []
        for _ in range(8):
            self.turn += 1
            slower = 1.1 + 0.1 * math.sin(self.turn / 900)  # slower than a window and a round
            taken.append(self.seconds[timed.name] * slower)
        return taken

    def measured(self, timed, windows, regime, **also):
        samples = tuple(s for w in windows for s in w)
        middle = stats.median(samples)
        low, high = stats.windowed_interval(windows)
        return Measured(middle, low, high, samples, regime, "events", "p1", len(windows))


@pytest.fixture
def wandering(monkeypatch):
    spec = Spec("k", {"x": Tensor("N")}, {"y": Tensor("N")}, None, lambda N: 0, [], [])
    for name in ("fast", "slow", "slower"):
        spec.impl(name=name)(lambda x: x)
    times = {"fast": 1.00e-4, "slow": 1.02e-4, "slower": 1.04e-4}
    bench = Wandering({(n, "cold"): t for n, t in times.items()} | {("fast", "hot"): 0.9e-4})
    rules = Protocol(settle_s=0.0, final_s=0.2)
    state = {"job": Job("k", {"N": 1}, "bf16", rules), "spec": spec, "bench": bench}
    for name, value in (
        state | {"nvml": SimpleNamespace(read=Reading, median=Clocks.median)}
    ).items():
        monkeypatch.setattr(worker._state, name, value, raising=False)
    monkeypatch.setattr(worker, "_checked", lambda choice, seed=0: Screened(0.1))
    return bench


def test_a_final_ranks_rightly_while_the_clock_wanders(wandering):
    names = ("slower", "fast", "slow")
    found = worker.final([worker.Choice(n, {}) for n in names], [1e-4] * 3)
    times = {n: f.timing.median_s for n, f in zip(names, found, strict=True)}
    assert sorted(times, key=times.get) == ["fast", "slow", "slower"]
    assert times["slow"] / times["fast"] == pytest.approx(1.02, abs=0.004)
    first, second = wandering.order[:3], wandering.order[3:6]
    assert first == second[::-1], "the order is reversed each round"
    assert min(f.timing.rounds for f in found) >= Protocol().rounds


def test_a_finalist_that_cannot_be_timed_costs_itself_alone(wandering, monkeypatch):
    def timed(rotation, estimate_s):
        if rotation == ("slow", "cold"):
            raise RuntimeError("operation not permitted when stream is capturing")
        return Wandering.timed(wandering, rotation, estimate_s)

    def measured(timed, windows, regime, **also):
        if timed.name == ("slower", "cold"):
            raise ValueError("below what the device can reach")
        return Wandering.measured(wandering, timed, windows, regime, **also)

    monkeypatch.setattr(wandering, "timed", timed)
    monkeypatch.setattr(wandering, "measured", measured)
    choices = [worker.Choice(n, {}) for n in ("slower", "fast", "slow")]
    slower, fast, slow = worker.final(choices, [1e-4] * 3)
    assert fast.timing is not None and fast.reason is None
    assert slow.timing is None and "capturing" in slow.reason
    assert slower.timing is None and "below" in slower.reason


def test_a_hot_time_shares_its_clock_with_cold_calls(wandering):
    found = worker.hot(worker.Choice("fast", {}))
    assert found.timing.regime == "hot"
    assert set(wandering.order) == {("fast", "cold"), ("fast", "hot")}
    assert found.timing.median_s == pytest.approx(0.9e-4 * 1.1, rel=0.08)


def test_measuring_in_blocks_would_have_ranked_them_wrongly(wandering):
    """The same clock under a harness that times one config after the other."""
    means = {}
    for name in ("slower", "slow", "fast"):
        timed = wandering.timed((name, "cold"), 1e-4)
        means[name] = stats.median([s for _ in range(60) for s in wandering.window(timed, 0.01)])
    assert sorted(means, key=means.get) != ["fast", "slow", "slower"]
