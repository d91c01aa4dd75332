"""Backends whose processes, clusters and emulators are played in this process."""

import asyncio
import sys
import threading
from collections import Counter
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import synthetic

from workbench.backend import checking, live, measuring, sanitizing
from workbench.backend.cluster import cluster, joining
from workbench.backend.cluster.cluster import (
    Cluster,
    ClusterError,
    ClusterWorker,
    SchedulerGone,
    WorkerDied,
)
from workbench.backend.cluster.joining import GpuReport, WorkerReport
from workbench.backend.measuring import CannotBegin, Lost, Measuring, Stopped, WorkerRefused
from workbench.backend.metal import emulated
from workbench.backend.metal import metal as metal_backend
from workbench.backend.offline import Offline, _reason_unpredictable
from workbench.backend.protocol import Problem, TimingTask
from workbench.catalog import spec_of
from workbench.compile import Compiled, LaunchShape
from workbench.data import references
from workbench.data.mac import Mac
from workbench.data.record import Case
from workbench.data.references import alike, apart
from workbench.device.hardware import UNCOMPILED, find_device
from workbench.measurement import worker
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.measurement.correctness import Checked
from workbench.spec import SpecFault
from workbench.traces.trace import CheckerRecord, CheckerResult

pytestmark = pytest.mark.unit
TIMED = Timed(synthetic.measured(1e-5), 0.5, "gpu")


def done(value):
    future = Future()
    (future.set_exception if isinstance(value, BaseException) else future.set_result)(value)
    return future


def candidate(number, backend="triton", **more):
    case = Case("toy", "blocks", backend, {"block_n": number}, {"N": 1024}, "bf16", "h200")
    return Candidate(case, f"k{number}", SimpleNamespace(backend=backend, title="toy.blocks",
                     imports=(), name="blocks", **more), None)  # fmt: skip


# A cluster whose scheduler and workers answer by hand


class Loop:
    def __init__(self, answers=True):
        self.answers = answers

    def add_callback(self, collect):
        if self.answers:
            asyncio.run(collect())


class Client:
    """Dask's client: `results` by address, one for each task that is submitted."""

    def __init__(self):
        self.loop, self.status, self.closed = Loop(), "running", 0
        self.listed, self.results, self.submitted = {}, {}, []
        self.scheduler = SimpleNamespace(identity=self.identity)

    async def identity(self, n_workers):
        return {"workers": self.listed}

    def submit(self, task, *args, **options):
        (address,) = options["workers"]
        self.submitted.append((address, *args))
        value = self.results[address].pop(0)
        future = done(value)
        status = "error" if isinstance(value, BaseException) else "finished"
        return SimpleNamespace(add_done_callback=future.add_done_callback, status=status,
                               result=lambda timeout: future.result())  # fmt: skip

    def close(self, timeout):
        self.closed += 1


H200 = find_device("h200")
VERSIONS = {"workbench": "1", "triton": "3", "torch": "2"}


def gpu_report(lock="GPU-0123456789", index="1"):
    return GpuReport(H200, synthetic.matmul()[0].environment, lock, index)


def sent(value):
    return cluster.cluster_worker.run_to_bytes(lambda: value)


@pytest.fixture
def farm(monkeypatch):
    """A cluster of no workers yet, its client, and what was notified."""
    client, said = Client(), []
    monkeypatch.setattr(cluster, "POLL_S", 0.001)
    monkeypatch.setattr(cluster, "files_hash", lambda: "code")
    monkeypatch.setattr(cluster, "fingerprint", lambda *_: SimpleNamespace(versions=VERSIONS))
    farm = Cluster(lambda: client, "tcp://here", said.append)
    farm.client, farm.said = client, said
    return farm


class Actor:
    """The measuring process of a worker: methods by name."""

    def __init__(self, report, holders=()):
        self.report, self.holders, self.calls = report, list(holders), []

    async def perform(self, name, *args):
        self.calls.append((name, *args))
        value = {"open": self.report, "references": {"copy": 4e12}}.get(name)
        if name == "lock" and self.holders:
            value = self.holders.pop(0)
        return sent((value, {"check": 1.5}))

    async def ask(self, task, args, timeout_s):
        return sent(((task, args, timeout_s), {"timed": 2.0}))


def arrives(farm, address, actor=None, name=None, **report):
    """Let a worker join. Returns its GPU."""
    theirs = WorkerReport(**({"host": "node", "versions": VERSIONS, "code": "code", "pid": 7}
                             | report))  # fmt: skip
    about = {"nthreads": 4, "name": name or address}
    if actor is not None:
        about["resources"] = {"GPU": 1}
    farm.client.results.setdefault(address, []).extend([sent(theirs), actor])
    farm.client.listed[address] = about
    ((new, listed),) = farm.refresh()
    assert (new, listed) == (address, about)
    return farm.join(address, about)


def test_workers_join_with_and_without_a_gpu_and_leave(farm):
    assert arrives(farm, "tcp://1", name="cpu") is None and farm.gpus == []
    first = arrives(farm, "tcp://2", Actor(gpu_report()))
    second = arrives(farm, "tcp://3", Actor(gpu_report("GPU-9876543210", "0")))
    assert [w.name for w in farm.workers.values()] == ["cpu (tcp://1)", "tcp://2", "tcp://3"]
    assert farm.gpus == [first, second] and first.title == "node GPU 1 (01234567)"
    assert first.actor.calls == [("open",), ("lock", "GPU-0123456789"), ("references",)]
    assert first.references == {"copy": 4e12} and first.seconds == Counter(check=1.5)
    assert first.ask("task", (1,), 3.0) == ("task", (1,), 3.0)
    assert first.seconds == Counter(timed=2.0) and farm.refresh() == []
    gone = farm.workers["tcp://2"]
    del farm.client.listed["tcp://2"], farm.client.listed["tcp://1"]
    assert farm.refresh() == [] and farm.gpus == [second]
    assert sorted(farm.said) == ["the worker cpu (tcp://1) has left", "the worker tcp://2 has left"]
    assert gone.gone_event.is_set() and not second.worker.gone_event.is_set()
    with pytest.raises(WorkerDied):
        first.perform("open")
    farm.scheduler_lost()
    assert (
        second.worker.gone_event.is_set()
        and not farm.workers
        and not farm.gpus
        and not farm._addresses
    )
    assert [farm.died_at(key) for key in "aab"] == [1, 2, 1]


@pytest.mark.parametrize(("actor", "report", "words"), [
    (None, {"versions": {**VERSIONS, "triton": "4"}}, "has triton 4, and this process has"),
    (None, {"versions": {"workbench": "1", "triton": "3"}}, "has torch none, and this process"),
    (None, {"code": "other"}, r"other files of the workbench \(hash other\) than this"),
    (Actor(None), {}, "declares a GPU, and torch sees none there"),
    (ValueError("no"), {}, r"cannot start a measuring process \(ValueError: no\)"),
    (Actor(gpu_report()), {}, "has the GPU of tcp://1; give each"),
    (Actor(replace(gpu_report("x"), device=find_device("h100"))), {}, "has a h100, and tcp://1"),
])  # fmt: skip
def test_workers_that_cannot_take_part_are_said(farm, actor, report, words):
    first = arrives(farm, "tcp://1", Actor(gpu_report()))
    with pytest.raises(WorkerRefused, match=words):
        arrives(farm, "tcp://2", actor, **report)
    assert farm.gpus == [first] and list(farm.workers) == ["tcp://1"]
    assert len(farm.said) == 1 and farm.said == farm.refusals


def test_a_worker_whose_report_fails_is_refused_and_one_that_left_is_not(farm):
    farm.client.results = {"a": [ImportError("no workbench")], "b": []}
    farm._addresses |= {"a", "b"}
    with pytest.raises(WorkerRefused, match=r"cannot run this workbench \(ImportError: no work"):
        farm.join("a", {"nthreads": 1})
    lost = type("KilledWorker", (Exception,), {})("x")
    farm.client.results["b"] = [lost]
    with pytest.raises(WorkerDied):
        farm.join("b", {"nthreads": 1})
    assert len(farm.refusals) == 1
    farm.client.results["c"] = [sent(WorkerReport("node", VERSIONS, "code", 7))]
    with pytest.raises(WorkerDied, match="c"):
        farm.join("c", {"nthreads": 1})  # it left meanwhile: the scheduler lists it no more
    assert "c" not in farm.workers
    farm.stop()
    with pytest.raises(Stopped):
        farm.check(None)
    assert farm.stopping


def test_a_lock_that_is_held_is_said_once(farm):
    held = "process 5 holds it after 3 s"
    gpu = arrives(farm, "tcp://1", Actor(gpu_report(), [held, held]))
    assert farm.said == ["waiting for node GPU 1 (01234567): process 5 holds it"]
    assert [name for name, *_ in gpu.actor.calls] == ["open", "lock", "lock", "lock", "references"]


def test_waits_end_at_their_limit_and_with_their_worker(farm, monkeypatch):
    times = [100.0, 100.5, 101.0, 101.01]
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: times.pop(0)))
    farm.client.loop.answers = False
    with pytest.raises(TimeoutError, match=r"^took longer than 1 s$"):
        farm.resolve(None, lambda: None, 1.0)
    assert times == [], "at the limit itself the wait goes on"
    worker_ = ClusterWorker("a", "node", 1, None)
    threading.Timer(0.02, worker_.gone_event.set).start()
    with pytest.raises(WorkerDied, match="node"):
        farm.resolve(worker_, lambda: None)
    farm.client.loop.answers = True

    async def fails():
        raise OSError("unreachable")

    other = ClusterWorker("b", "node", 1, None)
    with pytest.raises(WorkerDied):
        farm.resolve(other, fails)
    assert other.gone_event.is_set()
    with pytest.raises(OSError, match="unreachable"):
        farm.resolve(None, fails)
    with pytest.raises(SchedulerGone):
        farm.client.status = "closed"
        farm.refresh()


def test_a_scheduler_is_tried_again_up_to_a_limit(farm, monkeypatch):
    clock, answers = SimpleNamespace(now=10.0), [OSError("no")] * 3

    def sleep(seconds):
        clock.now += 1.0

    def connect():
        if answers:
            raise answers.pop()
        return "new client"

    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    old, farm._connect = farm.client, connect
    farm.reconnect(3.0)
    assert farm.client == "new client" and old.closed == 1 and clock.now == 13.0
    answers.extend([ValueError("no")] * 9)
    with pytest.raises(ClusterError, match="tcp://here did not come back within 2 s"):
        farm.reconnect(2.0)
    assert clock.now == 15.0 + 1.0 and len(answers) == 9 - 4
    farm.client, farm._local = old, Client()
    farm.close()
    assert (old.closed, farm._local.closed, farm.stopping) == (2, 1, True)


def test_workers_with_another_kernel_are_refused_once(farm, monkeypatch):
    monkeypatch.setattr(
        cluster, "load_kernel", lambda kernel: SimpleNamespace(hashes={"i": "1", "j": "2"})
    )
    for address in "abc":
        arrives(farm, address)
    farm.client.results = {"a": [sent({"i": "1", "j": "2"})], "b": [sent({"i": "1", "j": "3"})],
                           "c": [sent({"i": "1"}), ImportError("gone")]}  # fmt: skip
    for _ in range(2):
        assert [w.address for w in farm.compiling("toy")] == ["a"]
    assert len(farm.refusals) == 2
    assert farm.refusals[0] == (
        "The worker b has another toy: the code of its Impl j has the hash 3, and here 2; copy the "
        "file there."
    )
    assert "Impl j has the hash none, and here 2" in farm.refusals[1]
    assert [w.address for w in farm.compiling("other")] == []
    assert "The worker c cannot import other (ImportError: gone); put" in farm.refusals[-1]


def test_reports_of_workers_are_compared(monkeypatch):
    assert apart({"a": 1.0, "b": 2.0}, {"a": 1.1, "b": 1.9}) == pytest.approx(1 / 11)
    assert apart({}, {}) == apart({"a": 1.0}, {"b": 1.0}) == float("inf")
    assert alike({"a": 1.029}, {"a": 1.0}) and not alike({"a": 1.031}, {"a": 1.0})
    monkeypatch.setattr(references, "ALIKE", 0.25)
    assert alike({"a": 1.25}, {"a": 1.0}) and not alike({"a": 1.26}, {"a": 1.0})
    assert joining.model_refusal("a", "m", "b", "m") is None
    assert joining.kernel_refusal("w", "k", {"x": "1"}, {"x": "1"}) is None
    assert "its Impl y has the hash 2, and here none" in joining.kernel_refusal(
        "w", "k", {"y": "2", "x": "1"}, {"x": "1"}
    )
    assert len(joining.files_hash()) == 16 and gpu_report("xy").title("h") == "h GPU 1 (xy)"


@pytest.mark.parametrize(("named", "count", "names"), [
    ("", 2, ["0", "1"]), ("3, 5,,7", 2, ["3", "5"]), ("3", 1, ["3"]),
])  # fmt: skip
def test_gpus_of_a_host_and_more_workers_than_these(monkeypatch, named, count, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    assert cluster.gpus_of_host() == names
    with pytest.raises(ClusterError, match=rf"than this host shows \({count}\); write --workers"):
        cluster.local_cluster(count + 1, print)


@pytest.mark.parametrize("has_package", [True, False])
def test_a_cluster_of_this_host_is_encrypted_where_it_can_be(monkeypatch, has_package):
    def temporary():
        if not has_package:
            raise ImportError("no cryptography")
        return "certificate"

    module = SimpleNamespace(Security=SimpleNamespace(temporary=temporary))
    monkeypatch.setitem(sys.modules, "distributed.security", module)
    notes = []
    assert cluster._security(notes.append) == ("certificate" if has_package else None)
    assert [("not encrypted" in note) for note in notes] == ([] if has_package else [True])


# Measuring, and what takes its process


class Solo:
    """A measuring process: `fates` are what its next tasks end in."""

    fates: ClassVar[dict[str, list]] = {}
    made: ClassVar[list["Solo"]] = []

    def __init__(self, **given):
        self.given, self.calls = given, []
        Solo.made.append(self)

    def begin(self, task, *args):
        self.calls.append(("begin", task.__name__, *args))

    def promise(self, task, *args):
        self.calls.append(("promise", task.__name__, *args))
        return self.fate(task.__name__)

    def keep(self, promise):
        return self.fate("kept") if promise is None else promise

    def settle(self):
        self.calls.append("settle")
        self.fate("settle")

    def fate(self, name):
        value = Solo.fates.get(name, [None])
        value = value.pop(0) if value else None
        if isinstance(value, Exception):
            raise value
        return value

    def ask(self, task, *args, timeout_s):
        self.calls.append((task.__name__, *args, timeout_s))
        return self.fate(task.__name__)

    def end(self):
        self.calls.append("end")


@pytest.fixture
def solos(monkeypatch):
    monkeypatch.setattr(measuring, "Solo", Solo)
    Solo.fates, Solo.made = {}, []
    return Solo


def test_a_process_is_described_as_it_starts_where_its_kernel_is_known(solos):
    solos.fates = {"describe_of": [("here", "known")], "describe": ["asked", "again"]}
    known = Measuring("toy", libraries_of="toy")
    assert known.describe("here") == "known"
    (process,) = solos.made
    assert process.given == {"spawned": True} and process.calls == [
        ("begin", "warm"), ("promise", "describe_of", "toy"), ("begin", "load"),
        ("begin", "import_libraries", "toy", 0, 1)]  # fmt: skip
    assert known.describe("elsewhere") == "asked"
    assert process.calls[4:] == [("describe", "elsewhere", measuring.BEGIN_S),
                                 ("begin", "import_libraries", "toy", 0, 1)]  # fmt: skip
    other = Measuring()
    assert other.describe(None) == "again" and len(solos.made[1].calls) == 3
    solos.fates = {"describe_of": [None], "kept": [ValueError("of the kernel"), TimeoutError("x")],
                   "describe": [None]}  # fmt: skip
    third = Measuring("toy", libraries_of="toy")
    third._promised_facts = None if third._promised_facts else third._promised_facts
    assert third.describe("here") is None and solos.made[2].calls[-1][0] == "describe"
    solos.fates = {"describe": [TimeoutError("late")]}
    with pytest.raises(Lost, match="late"):
        other.describe(None)


def spent(check, timed, total):
    return worker.Spent(check, timed, total)


def test_seconds_are_added_up_and_a_lost_process_is_replaced_by_the_standby(solos):
    gpu = Measuring()
    solos.fates = {"final": [("a", spent(1.0, 2.0, 3.5)), ("b", spent(0.25, 0.5, 1.0)),
                             TimeoutError("late"), ("c", spent(0, 0, 0))]}  # fmt: skip
    gpu.begin("job")
    first, standby = solos.made
    assert first.calls[2:] == [("begin", "job", measuring.BEGIN_S)]
    assert standby.given == {} and standby.calls == [("begin", "warm"), ("begin", "load")]
    assert [gpu.ask(worker.final, 1, timeout_s=9) for _ in range(2)] == ["a", "b"]
    assert gpu.seconds == {"check": 1.25, "timed": 2.5, "flush": 0.75}
    gpu.wait_idle()
    assert standby.calls[-1] == "settle"
    with pytest.raises(Lost, match="late") as lost:
        gpu.ask(worker.final, 1, timeout_s=9)
    assert (lost.value.cause, lost.value.attempts, gpu.lost_processes) == ("timeout", 1, 1)
    assert first.calls[-1] == "end" and gpu._now is standby
    assert gpu.ask(worker.final, 2, timeout_s=8) == "c" and len(solos.made) == 3
    assert standby.calls[-2:] == [("begin", "job", measuring.BEGIN_S), ("final", 2, 8)]
    solos.fates["settle"] = [ChildProcessError("died")]
    gpu.wait_idle()
    assert gpu._standby is None
    gpu.replace()
    assert gpu.lost_processes == 2 and standby.calls[-1] == "end" and gpu._now is solos.made[3]
    gpu.prepare_standby()
    gpu.prepare_standby()
    gpu.close()
    assert [s.calls.count("end") for s in solos.made] == [1, 1, 0, 1, 1]


def test_what_a_problem_cannot_begin_with_is_a_sentence(solos):
    gpu = Measuring()
    solos.fates = {"begin": [RuntimeError("out of memory\nmore"), RuntimeError(""), SpecFault("s"),
                             TimeoutError("late"), None],
                   "self_test": [{"dram": 1.0}, ChildProcessError("died")],
                   "references": [{"copy": 2.0}, ChildProcessError("died")]}  # fmt: skip
    for words in ("^out of memory$", "^RuntimeError$"):
        with pytest.raises(CannotBegin, match=words):
            gpu.begin("job")
    with pytest.raises(SpecFault):
        gpu.begin("job")
    assert gpu.lost_processes == 0
    with pytest.raises(CannotBegin, match=r"^the process that makes the inputs late$"):
        gpu.begin("job")
    assert gpu.lost_processes == 1 and not gpu._is_begun
    gpu.wait_idle()
    assert gpu._is_begun and gpu.self_test() == {"dram": 1.0} and gpu.references() == {"copy": 2.0}
    for call, words in ((gpu.self_test, "the self-test died"), (gpu.references, "references died")):
        with pytest.raises(CannotBegin, match=words):
            call()
    assert gpu.lost_processes == 3 and not gpu._is_begun


def test_a_task_between_two_problems_ends_the_first(solos):
    gpu = Measuring()
    gpu.begin("job")
    solos.fates = {"final": ["x", SpecFault("sentence"), ValueError("spoilt")]}
    assert gpu.aside(worker.final, 1, timeout_s=4) == "x" and not gpu._is_begun and gpu._job is None
    with pytest.raises(SpecFault):
        gpu.aside(worker.final, 1, timeout_s=4)
    assert gpu.lost_processes == 0
    with pytest.raises(ValueError, match="spoilt"):
        gpu.aside(worker.final, 1, timeout_s=4)
    assert gpu.lost_processes == 1


# The live backend on a measuring process by hand


class Gpu:
    """Answers by the name of the task: a list of results, one a call."""

    def __init__(self, **answers):
        self.answers, self.calls, self.limits, self.seconds = answers, [], [], {"check": 1.0}

    def describe(self, repository):
        return H200, "environment", "lock"

    def ask(self, task, *args, timeout_s):
        self.calls.append(task.__name__)
        self.limits.append(timeout_s)
        value = self.answers[task.__name__].pop(0)
        if isinstance(value, Exception):
            raise value
        return value

    def __getattr__(self, name):
        return lambda *args: self.calls.append((name, *args))


def live_on(gpu, **more):
    processes = SimpleNamespace(gpu=gpu, compilers=None, libraries=None, **more)
    backend = live.Live(None, prewarm=processes)
    count = dict.fromkeys(("bytes", "held_bytes"), lambda sizes, dtype: 4_800_000)
    spec = SimpleNamespace(**count, flops=lambda N: 0, impls=[])
    backend._problem = Problem("toy", spec, {"N": 1024}, "bf16")
    return backend


LOST = Lost(TimeoutError("late"), 2)
POISONED = Refusal("launch", "illegal access", is_poisoned=True)


def test_limits_of_a_first_pass_grow_with_the_problem():
    """4.8 MB at 4.8 TB/s are 1 us: 50 calls of the larger of that and the best time, and 0.48 ms
    for the check."""
    gpu = Gpu(first_pass=[TIMED] * 4, duplicate=[None, TIMED, POISONED, LOST])
    backend = live_on(gpu)
    shapes = tuple(LaunchShape(n, (1,), 128, 0, 32, 1.0) for n in ("a", "b"))
    compiled = Compiled(None, "a", (1,), 2, shapes=shapes)
    assert backend.time(candidate(16), compiled, None).result() == TIMED
    backend.time(candidate(16), compiled, 2e-3, patience=3.0)
    backend.time(candidate(16), None, 1e-9)
    slack = 50 * 1e-6 + 4.8e-4
    assert gpu.limits == pytest.approx([4 + slack, 3 * (2 + 0.1 + 4.8e-4), 2 + slack], rel=1e-4)
    results = [backend.duplicate(candidate(16), compiled, "k").result() for _ in range(4)]
    assert results[:3] == [None, TIMED, POISONED] and gpu.limits[3] == pytest.approx(2 + slack)
    assert results[3] == Refusal("measure", "the measuring process: late", True, cause="timeout",
                                 attempts=2)  # fmt: skip
    assert gpu.calls[-2:] == [("replace",), "duplicate"]
    assert backend.seconds == {"check": 1.0}
    backend._waited_s = 2.5
    assert backend.seconds == {"check": 1.0, "libraries": 2.5}


def test_who_poisons_or_kills_a_race_is_left_out_of_the_second():
    some, guesses = [candidate(n) for n in (16, 32, 64)], [1.0, 2.0, 3.0]
    gpu = Gpu(final=[[TIMED, POISONED, TIMED], [TIMED, TIMED]])
    assert live_on(gpu).final(some, guesses) == [TIMED, POISONED, TIMED]
    assert gpu.calls == [("wait_idle",), "final", ("replace",), ("wait_idle",), "final"]
    assert gpu.limits == [live.INTERLEAVED_TIMEOUT_S] * 2
    bad = Refusal("check", "wrong")
    gpu = Gpu(final=[LOST, [TIMED]], first_pass=[TIMED, bad, bad])
    assert live_on(gpu).final(some, guesses) == [TIMED, bad, bad]
    gpu = Gpu(final=[CannotBegin("no room"), LOST], first_pass=[TIMED] * 6)
    lost = Refusal("measure", "the measuring process: late", False, cause="timeout", attempts=2)
    assert live_on(gpu).final(some, guesses) == [lost] * 3
    gpu = Gpu(final=[[POISONED, TIMED], [POISONED]])
    untimed = Refusal("measure", "gave no time", own=False)
    assert live_on(gpu).final(some[:2], guesses[:2]) == [POISONED, POISONED]
    gpu = Gpu(halve_candidates=[[POISONED, TIMED, TIMED], [POISONED, TIMED]])
    assert live_on(gpu).halve(some, guesses, 1) == [POISONED, POISONED, untimed]


def test_hot_times_contests_and_energy_of_a_lost_process():
    gpu = Gpu(hot=[TIMED, POISONED, LOST, CannotBegin("no room")],
              energy=[["joules"], LOST],
              compare=[worker.PairTime(None, TIMED, "v"), worker.PairTime(TIMED, POISONED, None),
                       LOST, LOST],
              first_pass=[TIMED, POISONED, TIMED, TIMED])  # fmt: skip
    backend = live_on(gpu)
    hot = [backend.hot(candidate(16)) for _ in range(4)]
    lost = Refusal("measure", "the measuring process: late", False, cause="timeout", attempts=2)
    assert hot == [TIMED, POISONED, lost, Refusal("measure", "no room", False)]
    assert gpu.calls.count(("replace",)) == 1
    some = [candidate(n) for n in (16, 32)]
    assert backend.energy(some, 3) == ["joules"]
    assert backend.energy(some, 3) == ["the measuring process: late"] * 2
    assert gpu.limits[-2:] == [300.0 + 10.0 * 3 * 2] * 2
    untimed = Refusal("measure", "gave no time", own=False)
    assert backend.compare(*some, 0.01) == (untimed, TIMED, "v")
    assert backend.compare(*some, 0.01) == (TIMED, POISONED, None)
    assert gpu.calls[-1] == ("replace",)
    assert backend.compare(*some, 0.01) == (lost, POISONED, None)
    assert backend.compare(*some, 0.01) == (lost, lost, None)
    assert [live.interleaved_s(n) for n in (1, 2, 48, 49)] == [65.0, 70.0, 300.0, 300.0]


def tasks_of(monkeypatch, gpu, compiled):
    """Return a live backend, two tasks, and what was compiled."""
    calls = []

    def compile_parts(pool, parts, device, compiles):
        calls.append([p.candidate.key for p in parts])
        return {i: compiled[p.candidate.key] for i, p in enumerate(parts)}

    monkeypatch.setattr(live, "compile_parts", compile_parts)
    monkeypatch.setattr(live, "compilers", lambda kernel: f"pool of {kernel}")
    backend = live_on(gpu)
    parts = [TimingTask(backend._problem, candidate(n), boost=True) for n in (1, 2, 3)]
    return backend, parts, calls


def test_tasks_that_share_a_process_are_told_from_the_guilty_one(monkeypatch):
    compiled = {f"k{n}": Compiled(None, "f", (1,), n) for n in (1, 2)}
    compiled["k3"] = Refusal("compile", "no")
    task = worker.TaskTime(TIMED, 4, 5, TIMED)
    bad = worker.TaskTime(POISONED, 4, 5, None)
    gpu = Gpu(measure_interleaved=[[task, bad], [task]])
    backend, parts, calls = tasks_of(monkeypatch, gpu, compiled)
    results = backend.measure_interleaved(parts)
    assert [r.result for r in results] == [TIMED, POISONED, compiled["k3"]]
    assert [(r.kernels, r.peak_bytes, r.boost) for r in results] == [
        (4, 5, TIMED), (None, None, None), (None, None, None)]  # fmt: skip
    assert [r.compilation for r in results] == [compiled["k1"], compiled["k2"], None]
    assert gpu.limits == [70.0, 65.0] and backend.measure_interleaved([]) == []
    backend.compile_tasks(parts)
    assert calls == [["k1", "k2", "k3"]], "what was compiled is not compiled again"

    gpu = Gpu(measure_interleaved=[LOST, [task], [bad], [task]])
    backend, parts, _ = tasks_of(monkeypatch, gpu, compiled)
    results = backend.measure_interleaved(parts)
    assert [r.result for r in results] == [TIMED, POISONED, compiled["k3"]]
    assert gpu.limits == [70.0, live.ALONE_TIMEOUT_S, live.ALONE_TIMEOUT_S, 65.0]

    gpu = Gpu(measure_interleaved=[LOST, [task], LOST, CannotBegin("no room")])
    backend, parts, _ = tasks_of(monkeypatch, gpu, compiled)
    guilty = Refusal("measure", "the measuring process: late", True, cause="timeout", attempts=2)
    results = backend.measure_interleaved(parts)
    assert [r.result for r in results] == [
        Refusal("measure", "no room", False), guilty, compiled["k3"]]  # fmt: skip

    gpu = Gpu(measure_interleaved=[[bad, task], [bad]])
    backend, parts, _ = tasks_of(monkeypatch, gpu, compiled)
    assert [r.result for r in backend.measure_interleaved(parts)][:2] == [POISONED, POISONED]


def test_what_was_prewarmed_is_not_compiled_again(monkeypatch):
    compiled = []

    def compile_all(pool, problem, candidates, device, here):
        compiled.append([c.key for c in candidates])
        yield from ((c, here) for c in candidates)

    monkeypatch.setattr(live, "compile_all", compile_all)
    monkeypatch.setattr(live, "compilers", lambda kernel: "pool")
    gpu = Gpu()
    gpu.begin, gpu.self_test = (lambda job: None), (lambda: {"dram": 4e12})
    gpu.lock = lambda name, on_wait, wait_s: __import__("contextlib").nullcontext()
    backend = live_on(gpu)
    problem, some = backend._problem, [candidate(1), candidate(2)]
    backend.prewarm(problem, some)
    found = backend.begin(problem, some)
    assert found == {"dram_measured": {"value": 4e12, "kind": "measured", **live.CEILINGS["dram"]}}
    assert [c.key for c, here in backend.compile(some) if here] == ["k1", "k2"]
    assert compiled == [["k1", "k2"]] and backend._prewarm_batches == []
    assert len(list(backend.compile(some))) == 2 and len(compiled) == 2
    backend.begin(problem, some)
    assert len(list(backend.compile(some[:1]))) == 1 and compiled[-1] == ["k1"]


# Checks, in the checker and in the processes of the code under test


def test_problems_are_kept_up_to_a_number(monkeypatch):
    made = []
    monkeypatch.setattr(checking, "_problems", {})
    monkeypatch.setattr(checking, "_KEPT", 2)
    monkeypatch.setattr(checking, "import_trusted", lambda kernel: f"spec of {kernel}")
    monkeypatch.setattr(
        "workbench.measurement.correctness.PreparedProblem.make", lambda *given: made.append(given)
    )
    calls = [checking.CheckCall((("N", n),), 5) for n in (1, 2, 3)]
    request = checking.CheckRequest("toy", "bf16", tuple(calls))
    for call in (*calls, calls[2], calls[1], calls[0]):
        checking._problem(request, call)
    assert [sizes["N"] for _, sizes, *_ in made] == [1, 2, 3, 1]
    assert made[0] == ("spec of toy", {"N": 1}, "bf16", "cpu", 5)


def test_errors_of_calls_are_joined():
    calls = tuple(checking.CheckCall((("N", n),), 5) for n in (1, 2))
    request = checking.CheckRequest("toy", "bf16", calls)

    def results(*each):
        return [SimpleNamespace(check=c) for c in each]

    right = results(Checked(0.25, bits="a"), Checked(0.75, bits="b"))
    joined = checking.join(request, right)
    assert joined.error == 0.75 and len(joined.bits) == 16
    assert checking.join(request, right[::-1]).bits != joined.bits
    wrong = results(Checked(0.5), Checked(3.0, "is wrong", "values"))
    assert checking.join(request, wrong) == Refusal("check", "at N=2 is wrong", rule="values")
    refused = Refusal("check", "no")
    assert checking.join(request, refused) is refused


def test_a_check_asks_the_checker_then_the_runner_then_the_checker(monkeypatch):
    asked = []

    class Pool:
        def __init__(self, count, interpreted=False, here=None, first=None):
            self.name = f"{count} {interpreted}"

        def submit(self, task, *args, timeout_s):
            asked.append((self.name, task.__name__, timeout_s))
            return done(answers[task.__name__].pop(0))

        def restart(self):
            asked.append(f"restart {self.name}")

        close = restart

    def launch(): ...

    def compare(): ...

    monkeypatch.setattr(checking, "Workers", Pool)
    refused = Refusal("check", "no")
    answers = {
        "make_inputs": [[1], [2]],
        "launch": [["out"], refused, ["out"], None, TimeoutError(), refused, "ran"],
        "compare_outputs": [["compared"], ["again"]],
        "compare": ["same"],
    }
    checks = checking.Checks(3, launch)
    request = checking.CheckRequest("toy", "bf16", ())
    assert checks.calls(request, "toy", "c", 7.0).result() == ["compared"]
    assert asked == [
        ("1 False", "make_inputs", 300.0),
        ("3 True", "launch", 7.0),
        ("1 False", "compare_outputs", 60.0),
    ]
    assert checks.calls(request, "toy", "c", 7.0).result() is refused
    assert len(asked) == 4, "inputs are made once"
    checks.restart(checker=False)
    assert checks.calls(request, "toy", "c", 7.0).result() == ["again"]
    checks.restart()
    assert asked[4:] == ["restart 3 True", ("3 True", "launch", 7.0),
                         ("1 False", "compare_outputs", 60.0), "restart 3 True",
                         "restart 1 False"]  # fmt: skip
    assert not checks._inputs
    sampling = SimpleNamespace(launch=launch, compare=compare)
    sampled = [checks.check_samples("toy", "c", "x", sampling, 2.0).result() for _ in range(4)]
    assert sampled == [None, None, refused, "same"]
    checks.close()
    assert asked[-2:] == ["restart 3 True", "restart 1 False"]


def test_launches_stop_at_the_first_that_fails(monkeypatch):
    fault = SimpleNamespace(reason="returns nothing", rule="outputs")
    results = {1: SimpleNamespace(fault=None), 2: SimpleNamespace(fault=fault)}
    impl = SimpleNamespace(title="toy.blocks", config=dict)
    known = SimpleNamespace(impl=lambda name, code: impl)
    monkeypatch.setattr(checking, "load_kernel", lambda kernel: known)
    said = []

    def returned(impl, config, call):
        said.append((config, call.sizes["N"]))
        outcome = results[call.sizes["N"]]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr("workbench.measurement.handover.launch_on_inputs", returned)
    calls = [SimpleNamespace(sizes={"N": n}) for n in (1, 2, 1)]
    assert checking.launch_calls("toy", candidate(16), calls[:1]) == [results[1]]
    refused = checking.launch_calls("toy", candidate(16), calls)
    assert refused == Refusal("check", "at N=2 returns nothing", rule="outputs")
    assert said == [({"block_n": 16}, n) for n in (1, 1, 2)]
    for error, rule in ((ValueError("x"), "process"), (NotImplementedError("y"), None),
                        (RuntimeError("'InterpreterBuilder' object has no"), None)):  # fmt: skip
        results[1] = error
        refused = checking.launch_calls("toy", candidate(16), calls)
        assert refused.rule == rule and refused.reason.startswith("the interpreter stopped at N=")
    outer = ValueError("outer")
    outer.__cause__ = NotImplementedError("inner")
    assert checking._is_unsupported(outer) and not checking._is_unsupported(None)
    results[1] = SpecFault("wrong")
    with pytest.raises(SpecFault):
        checking.launch_calls("toy", candidate(16), calls)


# compute-sanitizer


def record(**more):
    return CheckerRecord(**({"level": "error", "text": "Race.", "kernel": "f", "file": "/a/k.py",
                             "line": 7} | more))  # fmt: skip


def checker(errors, complete=True, records=()):
    result = CheckerResult("racecheck", list(records), errors, 0, 0)
    verdict = "fail" if errors else "pass" if complete else "inconclusive"
    counts = f"{errors} errors"
    return SimpleNamespace(
        records=result.records, errors=errors, verdict=verdict, counts_text=counts
    )


@pytest.mark.parametrize(("results", "state", "reason"), [
    ({"racecheck": checker(0), "memcheck": checker(0)}, "kept", ""),
    ({"racecheck": checker(0)}, "not run", "memcheck ended without a summary; run `workbench "),
    ({}, "not run", "racecheck and memcheck ended without a summary"),
    ({"racecheck": checker(0, False), "memcheck": checker(0)}, "not run", "racecheck ended"),
    ({"racecheck": checker(0, False), "memcheck": checker(2)}, "broken",
     "memcheck at N=8: 2 errors"),
    ({"racecheck": checker(3, True, [record(level="warning"), record(), record(kernel="g")])},
     "broken", "racecheck at N=8: 3 errors; the first is: Race in f (k.py:7)"),
    ({"memcheck": checker(1, True, [record(kernel="", file="")])}, "broken",
     "memcheck at N=8: 1 errors; the first is: Race"),
])  # fmt: skip
def test_the_checks_of_sanitizer_decide(results, state, reason):
    verdict = sanitizing.sanitized_by(results, {"N": 8})
    assert verdict.state == state and verdict.reason.startswith(reason)
    assert verdict.reason == reason or state == "not run"


def test_the_largest_size_that_is_taken_is_checked_with_the_others_in_one_process(monkeypatch):
    impl = SimpleNamespace(
        title="toy.blocks",
        name="blocks",
        rejection_reason=lambda config, limits, dtype, s: "no" if s["N"] > 64 else None,
    )
    spec = SimpleNamespace(check=[{"N": 7}, {"N": 64}, {"N": 63}, {"N": 100}],
                           bytes=lambda sizes, dtype: sizes["N"])  # fmt: skip
    monkeypatch.setattr(sanitizing, "machine_here", lambda: SimpleNamespace(gpu="h200"))
    monkeypatch.setattr(sanitizing, "values", lambda config: {})
    one = Candidate(candidate(1).case, "k", impl, None)
    call = sanitizing.checked_call(Problem("softmax", spec, {"N": 4096}, "bf16"), one, None)
    assert (call.sizes, call.calls, call.title) == ({"N": 64}, 1, "toy.blocks")
    spec.check = spec.check[3:]
    call = sanitizing.checked_call(Problem("softmax", spec, {"N": 4096}, "bf16"), one, None)
    assert call.sizes == {"N": 4096}
    alone, together = [], [True]
    monkeypatch.setattr(sanitizing, "sanitize_call", lambda call: alone.append(call) or "alone")
    monkeypatch.setattr(sanitizing, "_all_pass", lambda calls: together.pop())
    assert sanitizing.sanitized_each([1]) == ["alone"]
    assert [v.state for v in sanitizing.sanitized_each([1, 2])] == ["kept"] * 2 and alone == [1]
    together.append(False)
    assert sanitizing.sanitized_each([1, 2]) == ["alone"] * 2 and alone == [1, 1, 2]


@pytest.mark.parametrize(("ends", "state", "passes"), [
    (("..", ".."), "kept", True), (("..", "."), "kept", False), (("..", None), "kept", False),
    (("..", ".."), "broken", False), (("...", ".."), "kept", False),
])  # fmt: skip
def test_a_process_of_all_calls_must_reach_its_end(monkeypatch, ends, state, passes):
    """Each of two checks writes a dot behind each call."""
    monkeypatch.setattr(sanitizing, "script_of", lambda call, version: f"script of {call.title}")

    def verdict(folder, call, calls):
        lines = (folder / sanitizing.SCRIPT).read_text().splitlines()
        assert calls == 5 and call is both[0] and len(lines) == 5 and lines[0] == "import runpy"
        assert (folder / "call_1.py").read_text() == "script of b"
        assert "call_0.py" in lines[1] and "ended_0" in lines[2] and "ended_1" in lines[4]
        for number, text in enumerate(ends):
            if text is not None:
                (folder / f"ended_{number}").write_text(text)
        return sanitizing.Sanitized(state)

    monkeypatch.setattr(sanitizing, "_verdict", verdict)
    both = [SimpleNamespace(title="a", calls=2), SimpleNamespace(title="b", calls=3)]
    assert sanitizing._all_pass(both) is passes


# Metal: counted bytes, and a Mac


def test_bytes_are_counted_at_a_size_that_is_small_enough():
    """A spec of N x M elements of 4 bytes, tiles of 32: halved while more than 2**19 bytes or 2**22
    FLOPs are requested, first where the tile stays."""
    work = SimpleNamespace(tiles=2, steps=3, load_bytes=5, store_bytes=7)
    spec = SimpleNamespace(flops=lambda **s: s["N"], bytes_read=lambda s, d: 4 * s["N"],
                           bytes_written=lambda s, d: s["N"])  # fmt: skip
    impl = SimpleNamespace(spec=spec, work_of=lambda *_: [work, work])
    assert emulated._bytes(impl, None, None, "fp32", {"N": 8}) == (60, 28)
    assert emulated._requested_bytes(impl, None, None, "fp32", {"N": 8}) == 88
    assert emulated._tile(impl, None, None, "fp32", {"N": 8}) == [(3, 5, 7)] * 2
    impl.work_of = lambda *_: None
    assert emulated._bytes(impl, None, None, "fp32", {"N": 8}) == (32, 8)
    assert emulated._tile(impl, None, None, "fp32", {"N": 8}) is None
    assert emulated._cost(impl, None, None, "fp32", {"N": 1 << 20}) == 10.0
    spec.flops = lambda **s: 1 << 26
    assert emulated._cost(impl, None, None, "fp32", {"N": 1}) == 16.0


def halving(limit_n, tile=lambda s: 1):
    """Return the size that is counted of one whose bytes are N * M, where N is taken down to
    `limit_n`."""
    spec = SimpleNamespace(
        flops=lambda **s: 0, nearest_sizes=dict, refuse=lambda s: "no" if s["M"] < 2 else None,
        bytes_read=lambda s, d: s["N"] * s["M"], bytes_written=lambda s, d: 0)  # fmt: skip

    def works(config, limits, dtype, s):
        return [SimpleNamespace(tiles=s["N"] * s["M"] // tile(s), steps=1, load_bytes=tile(s),
                                store_bytes=0)]  # fmt: skip

    impl = SimpleNamespace(
        spec=spec,
        work_of=works,
        rejection_reason=lambda config, limits, dtype, s: "small" if s["N"] < limit_n else None,
    )
    return emulated.counted_sizes(impl, None, None, "fp32", {"N": 4096, "M": 1024})


def test_sizes_are_halved_the_largest_first_and_the_tile_last():
    assert halving(1) == {"N": 1024, "M": 512}  # 2**22 by three halves: 2**19
    assert halving(2048) == {"N": 2048, "M": 256}
    assert halving(8192) == {"N": 4096, "M": 1024}, "none that is smaller is taken"
    assert halving(1, lambda s: min(s["N"], 4096)) == {"N": 4096, "M": 128}
    assert halving(1, lambda s: s["M"]) == {"N": 512, "M": 1024}


def launch(name, grid, group, threadgroup_bytes=0):
    number = 1
    for n, t in zip(grid, group, strict=True):
        number *= -(-n // t)
    threads = group[0] * group[1] * group[2]
    source = SimpleNamespace(name=name, inputs=("x",), outputs=("y",))
    return SimpleNamespace(call=SimpleNamespace(source=source), grid=grid, group=group,
                           threads=threads, threadgroups=number,
                           threadgroup_bytes=threadgroup_bytes, refusal=lambda: None)  # fmt: skip


def run(threads, barriers, rounds, **buffers):
    source = SimpleNamespace(inputs=("x",), outputs=("y",))
    traffic = SimpleNamespace(buffers=buffers, threads=threads, barriers=barriers,
                              bank_rounds=rounds)  # fmt: skip
    return SimpleNamespace(call=SimpleNamespace(source=source), traffic=traffic)


def counts(read, written):
    return SimpleNamespace(requested_read=read, requested_written=written, unique_read=read // 2,
                           unique_written=written // 2, sectors=9)  # fmt: skip


def test_what_dispatches_count_is_added_up():
    launches = [
        launch("first", (65, 1, 1), (32, 1, 1), 64),
        launch("second", (64, 4, 1), (32, 2, 1), 128),
    ]
    runs = [run(32, 96, 3, x=counts(40, 0), shape=counts(8, 0)),
            run(64, 96, 4, x=counts(40, 40), y=counts(1, 30))]  # fmt: skip
    traffic = emulated.traffic_of(runs, launches, {"N": 8}, emulated.Scales(2.0, 3.0))
    assert (traffic.dispatches, traffic.threads, traffic.threadgroups) == (2, 64, 3 + 4)
    assert (traffic.threadgroup_bytes, traffic.barriers, traffic.bank_rounds) == (128, 2, 7)
    assert [(b.name, b.requested_read, b.requested_written, b.scale) for b in traffic.buffers] == [
        ("x", 40, 0, 2.0), ("x", 40, 40, 2.0), ("y", 1, 30, 3.0)]  # fmt: skip
    assert traffic.sizes == {"N": 8} and traffic.buffers[0].unique_read == 20
    assert emulated.traffic_of([run(0, 5, 0)], launches, {}, emulated.Scales(1, 1)).barriers == 5
    compiled = emulated.compiled_launches(launches, traffic)
    assert (compiled.kernel, compiled.grid, compiled.launches) == ("second", (2, 2, 1), 2)
    assert [(s.function, s.grid, s.threads, s.shared_bytes) for s in compiled.shapes] == [
        ("first", (3, 1, 1), 32, 64), ("second", (2, 2, 1), 64, 128)]  # fmt: skip


def test_a_buffer_beyond_the_memory_is_refused():
    spec = spec_of("copy")
    device = UNCOMPILED["m1"]
    most = int(device.memory.value)
    name = next(iter(spec.inputs))
    (axis,) = spec.axes if hasattr(spec, "axes") else list(spec.check[0])
    for extra, words in ((0, None), (1, f"the buffer of {name} needs {most >> 30} GiB; ")):
        reason = emulated.buffer_refusal(spec, {axis: most // 4 + extra}, "fp32", device)
        assert reason is None if words is None else reason.startswith(words)
    assert emulated.buffer_refusal(spec, {axis: most}, "fp32", replace(device, memory=None)) is None


def test_a_mac_with_fewer_cores_has_its_share_of_the_peaks():
    whole = UNCOMPILED["m2max"]
    cores = whole.limits.cores
    assert metal_backend.mac_device(Mac("Apple M2 Max", cores, 1, "ac", False)) is whole
    assert metal_backend.mac_device(Mac("Apple M2 Max", None, 1, "ac", False)) is whole
    part = metal_backend.mac_device(Mac("apple m2 MAX", cores - 8, 1, "ac", False))
    assert part.limits.cores == cores - 8 and part.dram is None
    for dtype, peak in part.peaks.items():
        assert peak.value == pytest.approx(whole.peaks[dtype].value * (cores - 8) / cores)
        assert peak.kind == "computed" and f"{(cores - 8) / cores:.3f} of the" in peak.source
    for chip, words in (
        ("Apple M99", "describes Apple M99;"),
        (None, "system_profiler does not"),
    ):
        with pytest.raises(metal_backend.NoMetal, match=words):
            metal_backend.mac_device(Mac(chip, 8, 1, "ac", False))


class MetalProcess:
    """Answers by the name of the task, and notes limits."""

    def __init__(self, **answers):
        self.answers, self.calls, self.ended = answers, [], 0

    def ask(self, task, *args, timeout_s):
        self.calls.append((task.__name__, timeout_s, *args))
        value = self.answers[task.__name__].pop(0)
        if isinstance(value, Exception):
            raise value
        return value

    def end(self):
        self.ended += 1


@pytest.fixture
def mac(monkeypatch):
    def make(**answers):
        process = MetalProcess(info=[{}], **answers)
        backend = metal_backend.MetalLive(
            None,
            mac=Mac("Apple M2 Max", 30, 64 << 30, "ac", False),
            process=process,
            driver="driver",
        )
        spec = SimpleNamespace(impls=[])
        backend.begin(Problem("toy", spec, {"N": 8}, "fp32"))
        return backend, process

    return make


def test_a_mac_times_in_turns_and_each_alone_where_its_process_is_lost(mac, monkeypatch):
    one, other = candidate(1, "metal"), candidate(2, "metal")
    lost = TimeoutError("late")
    backend, process = mac(
        measure_tasks=[[TIMED], lost, [TIMED], lost, lost],
        compare_tasks=[lost, metal_backend.MetalPair(TIMED, TIMED, "v")],
    )
    assert backend.time(one, None, None, patience=3.0).result() == TIMED
    name, limit_s, tasks, _rules, rounds, driver, seed = process.calls[-1]
    assert (name, limit_s, len(tasks), rounds, driver) == ("measure_tasks", 360.0, 1, 2, "driver")
    assert tasks[0].regime == "cold" and tasks[0].sizes == {"N": 8} and seed == backend._seed
    refused = Refusal("measure", "the measuring process: late", cause="timeout")
    assert backend.halve([one, other], [1.0, 1.0], 1) == [TIMED, refused]
    assert [(c[1], c[4]) for c in process.calls[2:]] == [(240.0, 4), (120.0, 4), (120.0, 4)]
    assert backend.hot(one) == refused and process.calls[-1][2][0].regime == "hot"
    assert backend.compare(one, other, 0.01) == (refused, refused, None)
    assert backend.compare(one, other, 0.01) == (TIMED, TIMED, "v")
    assert process.calls[-1][1] == 480.0
    assert backend.duplicate(one, None, "k").result() is None and backend.seconds == {}
    assert (
        backend.sanitize([one, other]) == [None, None] and len(backend.energy([one, other], 1)) == 2
    )
    backend.close()
    assert process.ended == 1
    backend, _ = mac(task=[lost, 5])

    def task(): ...

    with pytest.raises(metal_backend.NoMetal, match=r"^The measuring process: late\.$"):
        backend.ask(task, limit_s=1.0)
    assert backend.ask(task, limit_s=1.0) == 5


def test_tasks_of_a_mac_that_it_cannot_time_are_refused_and_the_others_are(mac, monkeypatch):
    backend, process = mac(measure_tasks=[[TIMED, POISONED]])
    monkeypatch.setattr(
        metal_backend, "plan_launches", lambda *_: [launch("f", (8, 1, 1), (4, 1, 1))] * 2
    )
    at = backend._problem
    parts = [
        TimingTask(at, candidate(1, "triton")), TimingTask(at, candidate(2, "metal"), "hot"),
        TimingTask(at, candidate(3, "metal"), clock="host"), TimingTask(at, candidate(4, "mlx")),
    ]  # fmt: skip
    results = backend.measure_interleaved(parts)
    assert [getattr(r.result, "reason", r.result) for r in results] == [
        "only Metal kernels and MLX's operations run here", TIMED,
        "a call of MLX returns before the launch", "illegal access"]  # fmt: skip
    assert [r.kernels for r in results] == [None, 2, None, 1]
    assert [t.regime for t in process.calls[-1][2]] == ["hot", "cold"]
    assert process.calls[-1][1] == 240.0
    assert [c.ttgir for _, c in backend.compile([candidate(2, "metal")])] == ["k2"]
    backend, process = mac()
    assert backend.measure_interleaved(parts[:1])[0].compilation is None and len(process.calls) == 1


def test_a_mac_on_its_battery_is_refused_unless_it_is_allowed():
    battery = Mac("Apple M2 Max", 30, 64 << 30, "battery", False)
    with pytest.raises(metal_backend.NoMetal, match="battery"):
        metal_backend.MetalLive(None, mac=battery, process=MetalProcess(info=[{}]))
    metal_backend.MetalLive(None, mac=battery, battery=True, process=MetalProcess(info=[{}]))


# A named target


def test_what_no_model_covers_is_said():
    at = Problem("toy", None, {}, "bf16")
    words = [
        _reason_unpredictable(TimingTask(at, candidate(1, backend), regime, clock))
        for backend, regime, clock in (("torch", "cold", "device"), ("triton", "cold", "host"),
                                       ("triton", "hot", "device"))
    ]  # fmt: skip
    assert [w.partition(";")[0] for w in words] == [
        "a library's own version has no prediction",
        "the launch time of the CPU is not predicted",
        "calls on cached data are not predicted",
    ]


def offline(predict, **impl):
    """Return a backend of a target whose processes never run."""
    backend = Offline.__new__(Offline)
    backend.device, backend._compile_s, backend._interpret_s = H200, 1.0, 10.0
    backend._check_futures, asked = {}, []
    backend._method = SimpleNamespace(predict=predict, check="interpreter", compile=None)

    def check(problem, candidate, sizes, timeout_s):
        asked.append((candidate.key, [s["N"] for s in sizes], timeout_s))
        return done(Checked(0.5, bits="bits", programs=3))

    def sampled(kernel, candidate, examined, sampling, timeout_s):
        asked.append((candidate.key, examined, timeout_s))
        return done(Checked(0.25, bits="bits", programs=3))

    backend._checks = SimpleNamespace(check=check, check_samples=sampled, seed=77)
    knobs = {"block_n": "tile", "num_warps": "threads", "num_stages": "stages"}
    backend._problem = Problem(
        "toy", SimpleNamespace(check=[{"N": 7}, {"N": 64}]), {"N": 8}, "bf16"
    )

    def of(number, **more):
        given = (
            {
                "unchecked_reason": False,
                "sampling": None,
                "is_watched": False,
                "knobs": lambda: knobs,
                "name": "blocks",
                "rejection_reason": lambda c, limits, d, s: None if s["N"] > 7 else "odd",
            }
            | impl
            | more
        )
        one = candidate(number)
        base = {"backend": "triton", "title": "toy.blocks", "imports": ()} | given
        return replace(one, impl=SimpleNamespace(**base), config=number)

    return backend, of, asked


def test_configs_that_differ_in_warps_and_stages_share_a_check(monkeypatch):
    configs = {1: {"block_n": 16, "num_warps": 4}, 2: {"block_n": 16, "num_warps": 8},
               3: {"block_n": 32, "num_warps": 4}}  # fmt: skip
    monkeypatch.setattr("workbench.backend.offline.values", configs.__getitem__)
    backend, of, asked = offline(lambda *_: "predicted")
    results = [backend.time(of(n), None, None).result() for n in (1, 2, 3)]
    assert results == [Timed("predicted", 0.5, "interpreter", "bits", 77)] * 3
    assert asked == [("k1", [64], 10.0), ("k3", [64], 10.0)]
    backend.time(of(1), None, None, patience=3.0)
    assert asked[2:] == [("k1", [64], 30.0)]
    backend.time(of(2, backend="metal"), None, None)
    assert asked[3:] == [("k2", [64], 10.0)], "warps of a Metal kernel have a check of their own"
    none = backend.time(of(1, rejection_reason=lambda *_: "no", name="x"), None, None).result()
    assert none.reason == "it takes none of the sizes to check, so its result is unchecked"
    assert backend.time(of(1, unchecked_reason=True), None, None).result() == Timed(
        "predicted", None, "not here"
    )
    compiled = SimpleNamespace(examination="known")
    for patience, limit_s in ((1.0, 10.0), (3.0, 30.0), (12.0, 90.0)):
        sampled = backend.time(of(1, sampling="s", name="y"), compiled, None, patience).result()
        assert asked[-1] == ("k1", "known", limit_s)
    assert sampled == Timed("predicted", 0.25, "interpreter", programs=3)


@pytest.mark.parametrize(("error", "words"), [
    (ValueError("no figure"), "no figure"), (KeyError("x"), "no prediction: KeyError: 'x'"),
])  # fmt: skip
def test_a_time_that_no_model_gives_is_a_reason(monkeypatch, error, words):
    monkeypatch.setattr("workbench.backend.offline.values", lambda config: {"block_n": 16})

    def predict(*_):
        raise error

    backend, of, _ = offline(predict)
    assert backend.time(of(1), None, None).result() == Refusal("measure", words)
    ended = backend._analyse_candidate(done(CancelledError()), None, of(1), None)
    assert ended == Refusal("check", "the sweep ended before it was checked")
    with pytest.raises(SpecFault):
        given = Future()
        backend._settle(given, done(SpecFault("s")), None, of(1), None)
        given.result(0)
