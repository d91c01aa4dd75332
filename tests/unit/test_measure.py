"""What of measuring can be judged without a GPU: names of protocols, verdicts, lost processes."""

import math
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest

from workbench.data import stats
from workbench.data.record import Measured
from workbench.device.bounds import CACHE_MARGIN, bound_s, hot_bound_s
from workbench.device.hardware import device_named
from workbench.measurement import worker
from workbench.measurement.candidate import Candidate, Refusal
from workbench.measurement.clocks import Clocks, Reading
from workbench.measurement.correctness import Checked
from workbench.measurement.protocol import Protocol
from workbench.measurement.rounds import Window
from workbench.measurement.worker import MeasureJob, _error_refusal
from workbench.spec import Spec, Tensor

H200 = device_named("h200")


def test_a_protocol_is_named_by_all_its_parameters():
    ids = {Protocol().id}
    for field in fields(Protocol):
        ids.add(replace(Protocol(), **{field.name: getattr(Protocol(), field.name) * 2}).id)
    assert len(ids) == len(fields(Protocol)) + 1
    assert Protocol().id == Protocol().id and Protocol().id.startswith("p4-")


def test_no_call_can_beat_bytes_over_bandwidth_or_flops_over_peak():
    assert bound_s(H200, 4_800_000, 0, "bf16") == pytest.approx(1e-6, rel=0.01)
    assert bound_s(H200, 0, 10**12, "bf16") == pytest.approx(1e12 / H200.peaks["bf16"].value)
    tf32 = 10**12 / H200.peaks["tf32"].value
    assert bound_s(H200, 0, 10**12, "fp32") == pytest.approx(tf32), "a library may choose tf32"
    alone = replace(H200, peaks={"fp32": H200.peaks["fp32"]})
    assert bound_s(alone, 0, 10**12, "fp32") == 0.0, "its matrix unit is unknown"
    assert bound_s(H200, 0, 10**12, "no such dtype") == 0.0


def test_cached_data_has_a_floor_of_its_own():
    moved, peak = 1 << 30, H200.cache_bandwidth.value
    assert hot_bound_s(H200, moved, 0, "bf16") == pytest.approx(moved / peak / CACHE_MARGIN)
    assert hot_bound_s(H200, moved, 0, "bf16") < bound_s(H200, moved, 0, "bf16")
    assert hot_bound_s(H200, 0, 10**12, "bf16") == bound_s(H200, 0, 10**12, "bf16")
    assert hot_bound_s(replace(H200, cache_bandwidth=None), moved, 0, "bf16") == 0.0


@pytest.mark.parametrize("answers", [True, False])
def test_a_gpu_that_answers_no_more_poisons_its_process(monkeypatch, answers):
    def synchronize():
        if not answers:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.synchronize", synchronize)
    result = _error_refusal(ValueError("Triton Error [CUDA]: what it is called"), "launch")
    assert result.is_poisoned is not answers
    assert result.stage == "launch" and "what it is called" in result.reason


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

    def choose_method(self, rotation, estimate_s):
        return SimpleNamespace(
            name=rotation, estimate_s=estimate_s, method="events", calls=1,
            begin=lambda seconds, least=1: SimpleNamespace(window=lambda: self.taken(rotation)),
        )  # fmt: skip

    def check_calls(self, timed, problems):
        return []

    def taken(self, rotation):
        self.order.append(rotation)
        results = []
        for _ in range(8):
            self.turn += 1
            slower = 1.1 + 0.1 * math.sin(self.turn / 900)  # slower than a window and a round
            results.append(self.seconds[rotation] * slower)
        return Window(tuple(results))

    def summarise(self, timed, windows, regime, state="boost", brief=False, **also):
        samples = tuple(s for w in windows for s in w.samples_s)
        middle = stats.median(samples)
        low, high = stats.windowed_interval([w.samples_s for w in windows])
        return Measured(
            middle, low, high, samples, regime, "events", "p2", len(windows), state=state, **also
        )  # fmt: skip


@pytest.fixture
def wandering(monkeypatch):
    spec = Spec("k", {"x": Tensor("N")}, {"y": Tensor("N")}, None, lambda N: 0, [], [])
    for name in ("fast", "slow", "slower", "far", "default"):
        spec.impl(name=name)(lambda x: x)
    times = {"fast": 1.00e-4, "slow": 1.02e-4, "slower": 1.04e-4, "far": 1.4e-4, "default": 3e-4}
    bench = Wandering({(n, "cold"): t for n, t in times.items()} | {("fast", "hot"): 0.9e-4})
    job = MeasureJob("k", {"N": 1}, "bf16", Protocol(settle_s=0.0, least_s=0.0))
    sensors = SimpleNamespace(read=Reading, summary=Clocks.summary, processes=lambda: None)
    state = worker._State(job, spec, bench, H200, sensors, {0: None, 1: None})
    monkeypatch.setattr(worker, "_now", state)
    monkeypatch.setattr(worker, "_verify", lambda candidate, seed=0: Checked(0.1))
    return bench


@pytest.mark.parametrize(("bits", "repeats"), [("ab", True), ("aa", False)])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_bits_of_timed_calls_are_those_of_their_own_problem(
    wandering, monkeypatch, bits, order, repeats
):
    """The first timed call may be on a set of either problem."""
    monkeypatch.setattr(worker, "_verify", lambda candidate, seed=0: Checked(0.1, bits="ab"[seed]))
    monkeypatch.setattr(
        wandering, "check_calls",
        lambda timed, problems: [(at, Checked(0.2, bits=bits[at])) for at in order],
    )  # fmt: skip
    (timed,), _ = worker.final([Candidate.create("fast", {})], [1e-4])
    assert timed.repeats is repeats and timed.error == 0.2


def test_a_final_ranks_rightly_while_the_clock_wanders(wandering):
    names = ("slower", "fast", "slow")
    result, spent = worker.final([Candidate.create(n, {}) for n in names], [1e-4] * 3)
    times = {n: f.timing.median_s for n, f in zip(names, result, strict=True)}
    assert sorted(times, key=times.get) == ["fast", "slow", "slower"]
    assert times["slow"] / times["fast"] == pytest.approx(1.02, abs=0.004)
    first, second = wandering.order[:3], wandering.order[3:6]
    assert first == second[::-1], "the order is reversed each round"
    assert min(f.timing.rounds for f in result) >= Protocol().rounds
    assert {f.timing.state for f in result} == {"sustained"}
    taken = sum(sum(f.timing.samples_s) for f in result)
    assert spent.timing_s == pytest.approx(taken) and spent.total > 0


def test_what_is_far_from_the_best_takes_few_rounds_and_the_default_takes_all(wandering):
    """The far ones take theirs after the others, so nobody's clock depends on them."""
    names = ("default", "far", "fast", "slow")
    candidates = [replace(Candidate.create(n, {}), default=n == "default") for n in names]
    result, _ = worker.final(candidates, [3e-4, 1.4e-4, 1e-4, 1.02e-4])
    done = {n: f.timing.rounds for n, f in zip(names, result, strict=True)}
    assert done["far"] == Protocol().far_rounds
    assert min(done[n] for n in names if n != "far") >= Protocol().rounds
    assert all(f.timing.stable for f in result)
    first = wandering.order.index(("far", "cold"))
    assert set(wandering.order[first:]) == {("far", "cold")}
    times = {n: f.timing.median_s for n, f in zip(names, result, strict=True)}
    assert sorted(times, key=times.get) == ["fast", "slow", "far", "default"]


def test_a_process_that_comes_during_a_final_is_counted(wandering, monkeypatch):
    seen = iter([[1, 2], [1, 2], [1, 2, 3]])
    processes = lambda: next(seen, [1, 2])  # noqa: E731
    monkeypatch.setattr(worker._now.sensors, "processes", processes)
    (result,), _ = worker.final([Candidate.create("fast", {})], [1e-4])
    assert result.timing.others_on_gpu == 1


def test_a_finalist_that_cannot_be_timed_costs_itself_alone(wandering, monkeypatch):
    def timed(rotation, estimate_s):
        if rotation == ("slow", "cold"):
            raise RuntimeError("operation not permitted when stream is capturing")
        return Wandering.choose_method(wandering, rotation, estimate_s)

    def measured(timed, windows, regime, *more, brief=False, **also):
        if timed.name == ("slower", "cold"):
            raise ValueError("below what the device can reach")
        return Wandering.summarise(wandering, timed, windows, regime, *more, **also)

    monkeypatch.setattr(wandering, "choose_method", timed)
    monkeypatch.setattr(wandering, "summarise", measured)
    choices = [Candidate.create(n, {}) for n in ("slower", "fast", "slow")]
    (slower, fast, slow), _ = worker.final(choices, [1e-4] * 3)
    assert fast.timing is not None
    assert isinstance(slow, Refusal) and "capturing" in slow.reason
    assert isinstance(slower, Refusal) and "below" in slower.reason


def test_a_hot_time_shares_its_clock_with_cold_calls(wandering):
    result, _ = worker.hot(Candidate.create("fast", {}))
    assert result.timing.regime == "hot"
    assert set(wandering.order) == {("fast", "cold"), ("fast", "hot")}
    assert result.timing.median_s == pytest.approx(0.9e-4 * 1.1, rel=0.08)


def test_a_race_finds_the_fastest_and_times_all(wandering):
    choices = [Candidate.create(n, {}) for n in ("slower", "slow", "fast", "slow", "slower")]
    result, _ = worker.halve_candidates(choices, [1e-4] * 5, 2)
    windows = [f.timing.rounds for f in result]
    assert min((f.timing.median_s, i) for i, f in enumerate(result))[1] == 2
    assert windows[2] == max(windows) > min(windows), "the slower half went after the first turns"


def test_a_contest_finds_the_slower_side(wandering):
    def verdict(left, right):
        result, _ = worker.compare(Candidate.create(left, {}), Candidate.create(right, {}), 0.01)
        assert result.left.timing and result.right.timing
        return result.verdict.word

    assert verdict("fast", "slower") == "SLOW"
    assert verdict("slower", "fast") == "FAST"
    assert verdict("slow", "slow") == "SAME"


def test_a_contest_of_a_wrong_side_has_no_verdict(wandering, monkeypatch):
    def checked(candidate, seed=0):
        return Refusal("check", "wrong") if candidate.case.impl == "slow" else Checked(0.0)

    monkeypatch.setattr(worker, "_verify", checked)
    result, _ = worker.compare(Candidate.create("fast", {}), Candidate.create("slow", {}), 0.01)
    assert result.verdict is None and result.right.reason == "wrong" and result.left is None


def test_windows_of_a_process_that_takes_turns_with_others(wandering, monkeypatch):
    with pytest.raises(RuntimeError, match="no open candidate"):
        worker.window_alone(0.02, 1)
    assert worker.open_alone(Candidate.create("slow", {})) is None
    windows = [worker.window_alone(0.02, 1) for _ in range(6)]
    assert all(len(w.samples_s) == 8 for w in windows) and windows[0] != windows[5]
    assert set(wandering.order) == {("slow", "cold")}
    timed = worker.close_alone(4)
    assert timed.timing.samples_s == tuple(s for w in windows[-4:] for s in w.samples_s)
    with pytest.raises(RuntimeError, match="no open candidate"):
        worker.close_alone()


def test_a_process_that_takes_turns_refuses_what_is_wrong_or_too_short(wandering, monkeypatch):
    slow = Candidate.create("slow", {})

    def measured(timed, windows, *more, brief=False, **also):
        assert len(windows) == 1
        raise ValueError("below what the device can reach")

    worker.open_alone(slow)
    worker.window_alone(0.02, 1)
    monkeypatch.setattr(wandering, "summarise", measured)
    assert "below" in worker.close_alone().reason
    wrong = lambda timed, problems: [(0, Checked(3.0, wrong="off by 3"))]  # noqa: E731
    worker.open_alone(slow)
    monkeypatch.setattr(wandering, "check_calls", wrong)
    assert "in timed calls, off by 3" in worker.close_alone().reason
    monkeypatch.setattr(worker, "_verify", lambda *a, **more: Refusal("check", "wrong"))
    assert worker.open_alone(slow).reason == "wrong"


def test_measuring_in_blocks_would_have_ranked_them_wrongly(wandering):
    """The same clock under a harness that times one config after the other."""
    means = {}
    for name in ("slower", "slow", "fast"):
        samples = [s for _ in range(60) for s in wandering.taken((name, "cold")).samples_s]
        means[name] = stats.median(samples)
    assert sorted(means, key=means.get) != ["fast", "slow", "slower"]
