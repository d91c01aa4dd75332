"""The live side without a GPU: configs that take the measuring process with them."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from nullside import kernel_in

from workbench import catalog
from workbench.backend import live, measuring
from workbench.backend.live import Live, NoGpu
from workbench.backend.protocol import Problem
from workbench.compile import Compiled, LaunchShape
from workbench.data.record import Case, Measured
from workbench.device.hardware import device_named
from workbench.measurement import worker
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.measurement.worker import PairTime, Spent

H200 = device_named("h200")
TIMING = Measured(1e-5, 1e-5, 1e-5, (1e-5,), "cold", "events", "p2")
RIGHT = Timed(TIMING, 0.5, "gpu")
POISONED = Refusal("launch", "illegal access", is_poisoned=True)
CEILINGS = {"dram": 4e12, "launch": 2e-6, "resolution": 3e-8}


class Gpu:
    """Stands for all measuring processes. A config's `block_n` decides what it does."""

    def __init__(self, **fates):
        self.fates = fates  # what a config does: "n16": an exception, or a Screened
        self.processes, self.requests, self.refuses = [], [], None
        self.limits_s = []  # of each request

    def start(self, spawned=False):
        process = SimpleNamespace(number=len(self.processes), alive=True, warm=False)
        self.processes.append(process)

        def ask(task, *args, timeout_s):
            assert process.alive
            name = task.__name__
            self.requests.append((process.number, name))
            self.limits_s.append(timeout_s)
            try:
                return self.reply(name, args)
            except (TimeoutError, ChildProcessError):
                process.alive = False
                raise

        process.ask = ask
        process.settle = lambda: None
        process.begin = lambda task: setattr(process, "warm", process.warm or task is worker.warm)
        process.end = lambda: setattr(process, "alive", False)
        return process

    def reply(self, name, args):
        if name == "describe":
            if isinstance(self.refuses, Exception):
                raise self.refuses
            return None if self.refuses else (H200, None, "lock")
        if name == "begin":
            if isinstance(self.refuses, Exception):
                raise self.refuses
            return None
        if name == "self_test":
            return CEILINGS
        if name == "compare":
            left, right = (self.one(c) for c in args[:2])
            return PairTime(left, right, "verdict"), Spent(0.1, 0.2, 0.5)
        many = args[0] if isinstance(args[0], list) else [args[0]]
        results = [self.one(c) for c in many]
        return results if isinstance(args[0], list) else results[0], Spent(0.1, 0.2, 0.5)

    def one(self, choice):
        fate = self.fates.get(f"n{choice.case.config['block_n']}", RIGHT)
        if isinstance(fate, Exception):
            raise fate
        return fate

    def names(self):
        return [name for _, name in self.requests]


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """The live side on processes that are none, and a maker of candidates for it."""
    kernel = str(kernel_in(tmp_path))
    spec = catalog.spec_of(kernel)
    impl = spec.impls[0]

    def candidate(block_n):
        case = Case("toy", "blocks", "triton", {"block_n": block_n}, {"N": 1024}, "bf16", "h200")
        return Candidate(case, f"k{block_n}", impl, impl.config(block_n=block_n))

    def make(**fates):
        gpu = Gpu(**fates)
        monkeypatch.setattr(measuring, "Solo", gpu.start)
        monkeypatch.setattr(measuring.preflight, "gpu_lock", lambda *given: nullcontext())
        backend = Live(None)
        result = backend.begin(Problem(kernel, spec, {"N": 1024}, "bf16"))
        assert {name: q["value"] for name, q in result.items()} == {
            f"{name}_measured": value for name, value in CEILINGS.items()
        }
        return backend, gpu, candidate

    return make


def first_pass(backend, candidate):
    return backend.time(candidate, None, None).result()


def test_a_right_answer_is_a_time_and_its_seconds_are_counted(begun):
    backend, gpu, candidate = begun()
    assert first_pass(backend, candidate(16)) == Timed(TIMING, 0.5, "gpu")
    assert gpu.names() == ["describe", "begin", "self_test", "first_pass"]
    assert dict(backend.seconds) == pytest.approx({"check": 0.1, "timed": 0.2, "flush": 0.2})


def test_the_first_launch_of_each_function_has_more_time(begun):
    """Triton 3.6 compiles a launcher in C then, and a call may launch several functions."""
    backend, gpu, candidate = begun()
    shapes = [LaunchShape(f, (1,), 128, 0, 32, 1.0) for f in ("_counted", "_listed", "_counted")]
    compiled = Compiled(None, "_listed", (1,), 3, shapes=tuple(shapes))
    for _ in range(2):
        backend.time(candidate(16), compiled, None)
    first, second = gpu.limits_s[-2:]
    assert first == pytest.approx(second + 2 * live.LAUNCHER_S)


def test_a_spare_process_is_warm_once_the_first_has_begun(begun):
    _, gpu, _ = begun()
    assert [p.warm for p in gpu.processes] == [True, True]


@pytest.mark.parametrize(
    ("fate", "stage", "words"),
    [
        (POISONED, "launch", "illegal access"),
        (TimeoutError("took longer than 2.0 s"), "measure", "took longer than 2.0 s"),
        (ChildProcessError("its process died (exit code -11)"), "measure", "exit code -11"),
    ],
)
def test_a_lost_process_costs_one_config_and_the_spare_takes_over(begun, fate, stage, words):
    backend, gpu, candidate = begun(n16=fate)
    for _ in range(3):
        lost = first_pass(backend, candidate(16))
        assert lost.stage == stage and words in lost.reason and lost.own
        assert isinstance(first_pass(backend, candidate(32)), Timed)
    assert [p.alive for p in gpu.processes] == [False] * 3 + [True, True]
    assert all(p.warm for p in gpu.processes)
    assert gpu.names().count("self_test") == 1, "the ceilings are those of the run's beginning"


def test_a_final_whose_process_is_lost_names_who_did_it_and_times_the_rest(begun):
    backend, gpu, candidate = begun(n32=TimeoutError("took longer"))
    result = backend.final([candidate(n) for n in (16, 32, 64)], [1e-5] * 3)
    assert [type(f) for f in result] == [Timed, Refusal, Timed]
    assert result[1].own and "took longer" in result[1].reason
    assert gpu.names().count("final") == 2


def test_a_poisoned_finalist_costs_itself_alone(begun):
    backend, gpu, candidate = begun(n32=POISONED)
    result = backend.halve([candidate(n) for n in (16, 32, 64)], [1e-5] * 3, 2)
    assert [type(f) for f in result] == [Timed, Refusal, Timed]
    assert gpu.names().count("halve_candidates") == 2 and "first_pass" not in gpu.names()


def test_a_final_that_is_lost_twice_condemns_nobody(begun, monkeypatch):
    backend, gpu, candidate = begun()
    selection = gpu.reply

    def lost(name, args):
        if name == "final":
            raise ChildProcessError("its process died")
        return selection(name, args)

    monkeypatch.setattr(gpu, "reply", lost)
    result = backend.final([candidate(16), candidate(32)], [1e-5] * 2)
    assert all(isinstance(f, Refusal) and not f.own for f in result)
    assert isinstance(first_pass(backend, candidate(16)), Timed), "and the next one is timed"


def test_a_problem_that_fits_no_more_is_nobodys_own_fault(begun):
    backend, gpu, candidate = begun(n16=POISONED)
    first_pass(backend, candidate(16))
    gpu.refuses = RuntimeError("out of memory")
    result = first_pass(backend, candidate(32))
    assert result == Refusal("measure", "out of memory", own=False)
    gpu.refuses = None
    assert isinstance(first_pass(backend, candidate(32)), Timed)


def test_a_contest_gives_both_sides_and_its_verdict(begun):
    backend, _, candidate = begun(n64=ChildProcessError("died"), n128=POISONED)
    left, right, verdict = backend.compare(candidate(16), candidate(32), 0.01)
    assert (left.error, right.error, verdict) == (0.5, 0.5, "verdict")
    left, right, verdict = backend.compare(candidate(16), candidate(64), 0.01)
    assert verdict is None and not left.own and right.own
    left, right, _ = backend.compare(candidate(128), candidate(16), 0.01)
    assert left == POISONED and isinstance(right, Timed)
    assert isinstance(first_pass(backend, candidate(16)), Timed)


def test_no_gpu_and_a_gpu_that_does_not_answer_are_said(monkeypatch):
    for refuses, words in ((True, "torch sees no GPU here"), (TimeoutError("x"), "reads the GPU")):
        gpu = Gpu()
        gpu.refuses = refuses
        monkeypatch.setattr(measuring, "Solo", gpu.start)
        with pytest.raises(NoGpu, match=words):
            Live(None)
        assert not any(p.alive for p in gpu.processes)
