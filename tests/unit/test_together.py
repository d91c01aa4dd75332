"""Parts of different problems, timed together: the bookkeeping, on a GPU that is none."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nullside import kernel_in

from workbench import catalog
from workbench.backend import live, measuring
from workbench.backend.live import ATTEMPTS, Live
from workbench.backend.protocol import Problem, TimingTask
from workbench.data.record import Case, Measured
from workbench.device.hardware import device_named
from workbench.measurement import worker
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.measurement.correctness import Checked
from workbench.measurement.protocol import BoostRules, Protocol
from workbench.measurement.rounds import Window
from workbench.measurement.worker import MeasureJob, Spent, TaskTime

H200 = device_named("h200")
RULES = Protocol(settle_s=0.0, rounds=2, least_rounds=2, most_rounds=2)
TIMES = {"a": 1e-5, "b": 2e-5, "c": 3e-5}


class Process:
    """Stands for what the measuring process does with one part; its Impl is its fate."""

    def __init__(self, monkeypatch):
        self.compiled, self.checks, self.played = [], [], []
        monkeypatch.setattr(worker, "BOOST", BoostRules(3, 0.0, 0.0))
        for name in ("_prepare_state", "_verify", "_entrant", "_error_refusal"):
            monkeypatch.setattr(worker, name, getattr(self, name))
        worker._now = self._prepare_state(MeasureJob("a", {"N": 0}, "bf16", RULES))
        self.own = worker._now

    def _prepare_state(self, job):
        self.compiled.append((job.kernel, job.sizes["N"]))
        if job.kernel == "huge":
            raise MemoryError("does not fit")
        bench = SimpleNamespace(summarise=self.summarise)
        sensors = SimpleNamespace(
            read=lambda: None, summary=lambda readings: {}, processes=lambda: None
        )
        return worker._State(job, None, bench, H200, sensors, {})

    def _verify(self, candidate, seed=0):
        fate = candidate.case.impl
        self.checks.append((worker._state().job.kernel, fate, seed))
        if fate == "poisons":
            return Refusal("launch", "illegal access", is_poisoned=True)
        if fate == ("wrong", "wrong later")[seed]:
            return Refusal("check", "y is wrong")
        return Checked(0.5)

    def _entrant(self, part):
        if part.candidate.case.impl == "cannot be timed":
            raise RuntimeError("no way")
        seconds = TIMES[worker._state().job.kernel]

        def window():
            if part.candidate.case.impl in ("breaks", "breaks the GPU"):
                raise RuntimeError(part.candidate.case.impl)
            self.played.append(part)
            return Window((seconds,) * 4)

        variant = SimpleNamespace(
            estimate_s=seconds, calls=1, method=part.clock,
            begin=lambda s, least=1: SimpleNamespace(window=window),
        )  # fmt: skip
        return variant, (len(part.candidate.case.impl), int(seconds * 1e9))

    def _error_refusal(self, error, stage):
        poisoned = "GPU" in str(error)
        return Refusal(stage, str(error), is_poisoned=poisoned)

    def summarise(self, timed, windows, regime, state, **also):
        samples = tuple(s for w in windows for s in w.samples_s)
        return Measured(
            samples[0], samples[0], samples[0], samples, regime, "graph", "p", 1, state=state
        )


@pytest.fixture
def process(monkeypatch):
    yield Process(monkeypatch)
    worker._now = None


def part(kernel, fate="right", N=0, **how):
    return worker.WorkerTask(
        MeasureJob(kernel, {"N": N}, "bf16", RULES), Candidate.create(fate, {}), **how
    )


FATES = ("right", "right", "wrong", "wrong later", "cannot be timed")
STAGES = {"wrong": "check", "wrong later": "check", "cannot be timed": "measure"}


@given(
    wanted=st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", "huge"]), st.sampled_from(FATES),
                  st.integers(0, 1), st.sampled_from(["cold", "hot"]), st.booleans()),
        max_size=7,
    )
)  # fmt: skip
def test_each_part_gets_what_is_its_own(wanted):
    with pytest.MonkeyPatch.context() as monkeypatch:
        process = Process(monkeypatch)
        parts = [part(k, fate, N, regime=regime, boost=b) for k, fate, N, regime, b in wanted]
        result, spent = worker.measure_interleaved(parts)
        assert worker._now is process.own and process.own.durations == replace(spent, total=0.0)
    assert len(result) == len(wanted)
    for (kernel, fate, _, regime, boost), taken in zip(wanted, result, strict=True):
        text = taken.result
        assert (taken.boost is not None) == (boost and isinstance(text, Timed))
        if taken.boost is not None:
            timings = taken.boost.timing, text.timing
            assert [t.state for t in timings] == ["boost", "sustained"]
            assert [len(t.samples_s) for t in timings] == [4 * 3, 4 * 2]
        if kernel == "huge":
            assert text.reason == "does not fit" and isinstance(text, Refusal)
        elif fate in STAGES:
            assert text.stage == STAGES[fate] and isinstance(text, Refusal)
        else:
            assert text.timing.median_s == TIMES[kernel] and text.timing.regime == regime
            assert (taken.kernels, taken.peak_bytes) == (len(fate), int(TIMES[kernel] * 1e9))
            assert text.error == 0.5
    fitting = [at for at in process.compiled if at[0] != "huge"]
    assert len(fitting) == len(set(fitting)), "inputs are made once for each problem"
    named = {(k, f) for k, f, *_ in wanted}
    assert {(k, f) for k, f, _ in process.checks} <= named, "each is checked on its own problem"
    timed = [b for k, f, *_, b in wanted if f in ("right", "wrong later") and k != "huge"]
    assert len(process.played) == 2 * len(timed) + 3 * sum(timed), "two rounds, three at boost"


def test_the_clock_settles_under_the_part_that_works_longest(process, monkeypatch):
    settled = []
    monkeypatch.setattr(worker.rounds, "settle", lambda variant, protocol: settled.append(variant))
    worker.measure_interleaved([part("a"), part("b"), part("c", clock="host")])
    worker.measure_interleaved([part("c", clock="host"), part("a", clock="host")])
    assert [variant.estimate_s for variant in settled] == [TIMES["b"], TIMES["c"]]


def test_after_one_that_silences_the_gpu_none_has_a_time(process):
    result, _ = worker.measure_interleaved([part("a"), part("b", "poisons"), part("c")])
    assert [t.result.is_poisoned for t in result] == [True, True, True]
    assert not process.played
    assert worker._now is process.own


def test_what_breaks_in_the_rounds_fails_all_that_took_part(process):
    parts = [part("a"), part("b", "breaks"), part("c", "wrong")]
    result, _ = worker.measure_interleaved(parts)
    assert [t.result.reason for t in result] == ["breaks", "breaks", "y is wrong"]
    with pytest.raises(ChildProcessError, match="answers it no more"):
        worker.measure_interleaved([part("a"), part("b", "breaks the GPU")])
    assert worker._now is process.own


# The side that asks


class Gpu:
    """Measuring processes that are none. What a config does is told by its `block_n`."""

    def __init__(self, fates):
        self.fates, self.context, self.begun, self.refuses = fates, [], 0, False

    def __call__(self, spawned=False):
        return SimpleNamespace(
            begin=lambda task: None, settle=lambda: None, end=lambda: None, ask=self.ask
        )

    def ask(self, task, *args, timeout_s):
        if task is worker.describe:
            return H200, None, "lock"
        if task is worker.self_test:
            return {}
        if task is worker.begin:
            self.begun += 1
            if self.refuses:
                raise RuntimeError("out of memory")
            return None
        (parts,) = args
        blocks = [p.candidate.case.config["block_n"] for p in parts]
        self.context.append((blocks, timeout_s, parts[0].job.protocol.most_rounds))
        fates = [self.fates.get(n, "right") for n in blocks]
        if "hangs" in fates:
            raise TimeoutError("took longer")
        if "crowded" in fates and len(parts) > 1:
            raise ChildProcessError("its process died")
        if "poisons" in fates:
            first = fates.index("poisons")
            bad = Refusal("launch", "illegal access", is_poisoned=True)
            return [TaskTime(Timed(None, 0.5, "gpu"))] * first + [TaskTime(bad)] * (
                len(parts) - first
            ), Spent()
        timing = [Measured(n * 1e-6, 0.0, 1.0, (n * 1e-6,), "cold", "graph", "p") for n in blocks]
        return [TaskTime(Timed(t, 0.5, "gpu"), 1, 2) for t in timing], Spent()


@pytest.fixture
def operand(tmp_path, monkeypatch):
    """Makes the live side on such processes, and asks it for parts of these blocks."""
    kernel = str(kernel_in(tmp_path))
    spec = catalog.spec_of(kernel)
    impl = spec.impls[0]
    compiled = []

    def compile_parts(pool, parts, device, **given):
        compiled.extend(p.candidate.key for p in parts)
        return {}

    monkeypatch.setattr(live, "compile_parts", compile_parts)
    monkeypatch.setattr(live, "compilers", lambda kernel: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(measuring.preflight, "gpu_lock", lambda *given: nullcontext())

    def make(**fates):
        gpu = Gpu({int(n[1:]): fate for n, fate in fates.items()})
        monkeypatch.setattr(measuring, "Solo", gpu)
        created = Live(None)
        problem = Problem(kernel, spec, {"N": 1024}, "bf16")
        created.begin(problem)

        def measure_interleaved(*blocks):
            parts = []
            for n in blocks:
                case = Case("toy", "blocks", "triton", {"block_n": n}, {"N": 1024}, "bf16", "h200")
                candidate = Candidate(case, f"k{n}", impl, impl.config(block_n=n))
                parts.append(TimingTask(problem, candidate))
            return [done.result for done in created.measure_interleaved(parts)]

        return measure_interleaved, gpu, created

    return make


def test_parts_come_back_in_order(operand):
    measure_interleaved, gpu, _ = operand()
    result = measure_interleaved(64, 16, 32)
    assert [f.timing.median_s for f in result] == [64e-6, 16e-6, 32e-6]
    assert len(gpu.context) == 1 and measure_interleaved() == []


@pytest.mark.parametrize("fate", ["poisons", "hangs"])
def test_one_that_takes_the_process_with_it_costs_itself_alone(operand, fate):
    measure_interleaved, gpu, _ = operand(n32=fate)
    result = measure_interleaved(16, 32, 64)
    assert [type(f) for f in result] == [Timed, Refusal, Timed]
    assert result[1].own and ("illegal" in result[1].reason or "longer" in result[1].reason)
    assert gpu.context[-1][0] == [16, 64]


def test_two_of_them_cost_themselves_alone(operand):
    measure_interleaved, _, _ = operand(n16="poisons", n64="hangs")
    assert [type(f) for f in measure_interleaved(16, 32, 64, 128)] == [
        Refusal,
        Timed,
        Refusal,
        Timed,
    ]


def test_where_each_lives_by_itself_nobody_is_blamed(operand):
    measure_interleaved, gpu, _ = operand(n32="crowded")
    result = measure_interleaved(16, 32)
    assert all(isinstance(f, Refusal) and not f.own for f in result)
    assert len(gpu.context) <= ATTEMPTS + 2


def test_what_hangs_costs_little_while_it_is_sought(operand):
    measure_interleaved, gpu, _ = operand(n32="hangs")
    measure_interleaved(16, 32, 64)
    whole, *alone, again = gpu.context
    assert whole[1] <= 90.0 and all(limit <= 30.0 for _, limit, _ in alone)
    assert all(len(blocks) == 1 and most == 2 for blocks, _, most in alone)
    assert again[2] == Protocol().most_rounds


def test_a_problem_that_does_not_fit_is_said_of_each(operand):
    measure_interleaved, gpu, created = operand()
    gpu.refuses = True
    with pytest.raises(RuntimeError, match="out of memory"):
        created.begin(Problem("toy", None, {"N": 1}, "bf16"))
    result = measure_interleaved(16, 32)
    assert result == [Refusal("measure", "out of memory", own=False)] * 2
    assert not gpu.context
