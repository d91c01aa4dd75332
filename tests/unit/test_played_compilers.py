"""Pools of compilers, GPUs of clusters and targets that are played in this process."""

import ast
import os
import threading
from concurrent.futures import CancelledError, Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import synthetic
from compiled_cases import CASE, FACTS

from workbench import compile as compile_package
from workbench.backend import (
    compilers,
    library_processes,
    measuring,
    offline,
    prewarm,
    processes,
    version_timing,
)
from workbench.backend.cluster import remote
from workbench.backend.cluster import worker as cluster_worker
from workbench.backend.cluster.cluster import ClusterGpu, ClusterWorker, WorkerDied
from workbench.backend.measuring import GpuGone, Lost, Stopped, WorkerRefused
from workbench.backend.metal import emulated
from workbench.backend.processes import CompileJob, Duplicate
from workbench.backend.protocol import Problem, TimingTask
from workbench.code.machine_code import is_whole_elf
from workbench.compile import Compiled, CompiledDuplicate, CompileError
from workbench.data import machine_failure
from workbench.data.record import Case, CountedTraffic, Record
from workbench.device.hardware import find_device
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.spec import SpecFault

pytestmark = pytest.mark.unit
GOLDEN = Path(__file__).parents[1] / "golden"
TIMED = Timed(synthetic.measured(1e-5), 0.5, "gpu")
H200 = find_device("h200")
RESOURCES = next(o.resources for o in synthetic.softmax()[1] if isinstance(o, Record))


def candidate(n, backend="triton", impl="blocks"):
    case = Case("toy", impl, backend, {"n": n}, {"N": 8}, "bf16", "h200")
    return Candidate(
        case, f"{impl}{n}", SimpleNamespace(backend=backend, name=impl, title=f"toy.{impl}"), n
    )


def compiled(n, key):
    return Compiled(replace(RESOURCES, compile_s=9.0), "f", (1,), n, ttgir=key)


class Pool:
    """Compiles at once: results by the number of the config, in turns."""

    def __init__(self, results, order=None):
        self.results, self.jobs, self.order, self.held = results, [], order, []

    def submit(self, task, job, *more, timeout_s):
        future = Future()
        self.jobs.append(
            (
                task.__name__,
                getattr(job, "owner", None),
                timeout_s,
                getattr(job, "claims", 0) is not None,
            )
        )
        value = (
            self.results[job.candidate.case.config["n"]].pop(0)
            if isinstance(job, CompileJob)
            else None
        )
        if isinstance(value, BaseException):
            future.set_exception(value)
        else:
            future.set_result(value)
        return future


def duplicate(key, owner, skipped=()):
    return Duplicate(CompiledDuplicate(key, 0.25, skipped), owner)


def compile_them(results, code=False):
    pool = Pool(results)
    problem = Problem("toy", None, {"N": 8}, "bf16")
    found = list(
        processes.compile_all(pool, problem, [candidate(n) for n in results], H200, 10.0, code)
    )
    return [(c.case.config["n"], r) for c, r in found], pool.jobs


def test_a_duplicate_has_the_resources_of_the_first_and_its_own_seconds():
    first = compiled(1, "k")
    found, jobs = compile_them({1: [first], 2: [duplicate("k", "1")], 3: [compiled(2, "z")]})
    assert [n for n, _ in found] == [1, 3, 2] or [n for n, _ in found] == [1, 2, 3]
    of_second = dict(found)[2]
    assert of_second.duplicate and of_second.resources.compile_s == 0.25 and of_second.launches == 1
    assert [j[:3] for j in jobs] == [
        ("compile_task", "1", 10.0),
        ("compile_task", "2", 10.0),
        ("compile_task", "3", 10.0),
    ]
    assert all(j[3] for j in jobs)
    found, jobs = compile_them({1: [first], 2: [duplicate("k", "1", ("launch",))]})
    assert jobs[-1][0] == "store_duplicate" and dict(found)[2].duplicate
    _, jobs = compile_them({1: [first]}, code=True)
    assert not jobs[0][3], "with their code all are compiled to the end"


def test_a_duplicate_whose_first_failed_is_compiled_by_itself():
    refused = Refusal("compile", "no")
    found, jobs = compile_them({1: [refused], 2: [duplicate("k", "1"), compiled(2, "k")]})
    assert found == [(1, refused), (2, compiled(2, "k"))]
    assert [j[1] for j in jobs] == ["1", "2", "3"] and not jobs[2][3]


def test_a_config_whose_compiler_is_lost_is_tried_once_more_with_patience():
    late, died = TimeoutError("late"), ChildProcessError("died")
    found, jobs = compile_them(
        {1: [late, late], 2: [died, compiled(1, "a")], 3: [late, died], 4: [compiled(1, "b")]}
    )
    assert [n for n, _ in found] == [4, 1, 2, 3]
    results = dict(found)
    assert (results[1].reason, results[1].cause, results[1].attempts) == (
        "the compile late",
        "timeout",
        2,
    )
    assert results[2] == compiled(1, "a") and (results[3].cause, results[3].attempts) == (
        "crash",
        1,
    )
    assert [j[2] for j in jobs[4:]] == [30.0] * 3
    with pytest.raises(SpecFault):
        compile_them({1: [SpecFault("s")]})
    assert dict(compile_them({1: [KeyError("x")]})[0])[1].reason == "KeyError: 'x'"


def test_a_key_is_claimed_once(tmp_path):
    assert processes.claim_key(tmp_path, "k", "1") and not processes.claim_key(tmp_path, "k", "2")
    assert os.readlink(tmp_path / "k") == "1" and processes.claim_key(tmp_path, "z", "2")


def test_tasks_of_several_problems_are_compiled_each_config_once():
    at, other = Problem("toy", None, {"N": 8}, "bf16"), Problem("toy", None, {"N": 9}, "bf16")
    parts = [
        TimingTask(at, candidate(1)),
        TimingTask(other, candidate(2)),
        TimingTask(at, candidate(1), "hot"),
        TimingTask(at, candidate(3, "torch")),
    ]
    asked = []

    def compiles(pool, problem, candidates, device, timeout_s):
        asked.append((problem.sizes["N"], [c.key for c in candidates], timeout_s))
        yield from ((c, f"{c.key} at {problem.sizes['N']}") for c in candidates)

    found = processes.compile_parts(None, parts, H200, 5.0, compiles)
    assert found == {0: "blocks1 at 8", 1: "blocks2 at 9", 2: "blocks1 at 8"}
    assert sorted(asked) == [(8, ["blocks1"], 5.0), (9, ["blocks2"], 5.0)]
    assert processes.compile_parts(None, parts[3:], H200, 5.0, compiles) == {}


def test_a_worker_compiles_to_the_end_or_names_the_owner(monkeypatch, tmp_path):
    impl = SimpleNamespace(config=dict)
    monkeypatch.setattr(
        processes,
        "load_kernel",
        lambda kernel, version: SimpleNamespace(impl=lambda name, code: impl),
    )
    monkeypatch.setattr(
        processes, "compile_config", lambda *at, code, here: ("whole", at[1:4], code, here)
    )
    job = CompileJob("toy", candidate(1), {"N": 8}, "bf16", H200, None, "1", True, True)
    assert processes.compile_task(job) == ("whole", ({"n": 1}, {"N": 8}, "bf16"), True, True)
    os.symlink("7", tmp_path / "k")
    same = CompiledDuplicate("k", 0.5, ())

    def unless(*at):
        claim = at[5]
        return same if not claim("k") else "compiled"

    monkeypatch.setattr(processes, "compile_unless_duplicate", unless)
    assert processes.compile_task(replace(job, claims=tmp_path)) == Duplicate(same, "7")
    (tmp_path / "k").unlink()
    assert processes.compile_task(replace(job, claims=tmp_path)) == "compiled"

    def fails(*at, **more):
        raise CompileError("no")

    monkeypatch.setattr(processes, "compile_config", fails)
    assert processes.compile_task(job) == Refusal("compile", "no")


@pytest.mark.parametrize("error", [CompileError("Internal codegen error"), ValueError("cut")])
def test_what_fails_on_a_full_disk_is_a_failure_of_the_machine(monkeypatch, error):
    monkeypatch.setattr(processes, "load_kernel", lambda *at: (_ for _ in ()).throw(error))
    job = CompileJob("toy", candidate(1), {"N": 8}, "bf16", H200, None, "1", True, True)
    free = machine_failure.LEAST_FREE
    usage = SimpleNamespace(disk_usage=lambda folder: SimpleNamespace(free=free))
    monkeypatch.setattr(machine_failure, "shutil", usage)
    if isinstance(error, CompileError):
        assert processes.compile_task(job) == Refusal("compile", "Internal codegen error")
    else:
        with pytest.raises(ValueError, match="cut"):
            processes.compile_task(job)
    free -= 1
    refusal = processes.compile_task(job)
    assert refusal.stage == "compile" and machine_failure.is_of_machine(refusal.reason)
    assert f"has {free} bytes free" in refusal.reason and str(error) in refusal.reason


def test_a_folder_that_is_not_there_is_not_full(tmp_path):
    assert machine_failure.full_folder([str(tmp_path / "none")]) is None


@pytest.mark.parametrize("kind", ["cubin", "hsaco"])
def test_machine_code_that_was_written_in_part_is_refused_and_removed(monkeypatch, tmp_path, kind):
    whole = (GOLDEN / "copy.sm_90.cubin").read_bytes()
    (tmp_path / "kept").mkdir()
    monkeypatch.setattr(
        "triton.runtime.cache.get_cache_manager",
        lambda key: SimpleNamespace(cache_dir=tmp_path / key),
    )
    kernel = SimpleNamespace(asm={kind: whole}, hash="kept", name="k")
    compile_package._refuse_parts([kernel, SimpleNamespace(asm={"ttgir": ""})])
    assert (tmp_path / "kept").exists()
    kernel.asm[kind] = whole[:-1]
    with pytest.raises(CompileError, match=f"only in part: {len(whole) - 1} bytes of k") as refused:
        compile_package._refuse_parts([kernel])
    assert not (tmp_path / "kept").exists()
    assert machine_failure.is_of_machine(str(refused.value))


@pytest.mark.parametrize("name", ["copy.sm_90.cubin", "matmul.sm_90.cubin"])
def test_an_elf_is_whole_with_its_last_byte(name):
    image = (GOLDEN / name).read_bytes()
    assert is_whole_elf(image)
    for length in (0, 4, 63, 64, 4096, len(image) - 1):
        assert not is_whole_elf(image[:length])
    assert not is_whole_elf(b"text" + image[4:])


# Versions of the compiler


def test_configs_of_lost_compilers_are_tried_again_longer(monkeypatch):
    made, given = [], []
    results = {
        "0": [FACTS], "1": [TimeoutError("late"), FACTS], "2": [Refusal("refused", "no")],
    }  # fmt: skip

    class Workers:
        def __init__(self, count, packages, here):
            made.append((count, packages))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            made.append("closed")

        def submit(self, task, *args, timeout_s):
            given.append(timeout_s)
            future = Future()
            value = (
                versions.pop(0) if task is compilers.triton_here else results[args[0].code].pop(0)
            )
            (future.set_exception if isinstance(value, Exception) else future.set_result)(value)
            return future

    monkeypatch.setattr(compilers, "Workers", Workers)
    monkeypatch.setattr(compilers, "cpu_count", lambda: 7)
    versions = [("3.6", "key", "/opt/t36"), ("3.9", "k2", "/elsewhere")]
    with compilers.Compilers([None, compilers.Path("/opt/t36")], 10.0) as both:
        assert made == [(3, None), (3, compilers.Path("/opt/t36"))]
        tasks = [
            compilers.CompileTask(
                n % 2, compilers.Compiler("3.6", "k", None),
                compilers.FactsJob("matmul", CASE, str(n)), H200,
            )
            for n in range(3)
        ]  # fmt: skip
        found = dict(both.compile(tasks))
        assert list(found) == [0, 2, 1]
        assert [found[n].key for n in range(3)] == [task.key for task in tasks]
        assert found[0].code == found[1].code == FACTS.code
        assert (found[2].stage, found[2].reason) == ("refused", "no")
        assert given == [10.0, 10.0, 10.0, 30.0]
        with pytest.raises(compilers.CompilerError, match="/elsewhere was imported in its place"):
            both.versions()
        versions = [("3.6", "key", "/x"), ("3.9", "k2", "/opt/t36")]
        assert [(c.version, c.folder) for c in both.versions()] == [
            ("3.6", None),
            ("3.9", compilers.Path("/opt/t36")),
        ]
        for error, words in (
            (TimeoutError("late"), r"installed Triton cannot be used \(importing it late\)"),
            (ImportError("no."), r"cannot be used \(ImportError: no\)"),
        ):
            versions = [error, error]
            with pytest.raises(compilers.CompilerError, match=words):
                both.versions()
    assert made[2:] == ["closed", "closed"]
    assert [f.name for f in compilers.folders_beside("3.6")] == ["triton-3.6"] * 3


# Libraries beside the winner


class Solo:
    """Ready after so many seconds on a clock by hand, which waiting moves."""

    def __init__(self):
        self.begun, self.ready_at, self.answer, self.steps = [], 0.0, None, []

    def begin(self, task, *args):
        self.begun.append(task.__name__)

    def is_ready(self, within_s):
        self.steps.append(round(within_s, 3))
        if self.ready_at <= clock.now + max(0.0, within_s):
            clock.now = max(clock.now, self.ready_at)
            return True
        clock.now += max(0.0, within_s)
        return False

    def ask(self, task, candidates, estimates, timeout_s):
        self.steps.append(
            ("ask", [c.case.impl for c in candidates], estimates, round(timeout_s, 3))
        )
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer, None

    def kill(self):
        self.steps.append("kill")

    def end(self):
        self.steps.append("end")


clock = SimpleNamespace(now=0.0)


@pytest.fixture
def libraries(monkeypatch):
    clock.now = 100.0
    monkeypatch.setattr(library_processes, "Solo", Solo)
    monkeypatch.setattr(library_processes, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(
        library_processes.worker, "share_of", lambda impls, share, of: [["a", "b"], ["c"]][share]
    )
    one = library_processes.LibraryProcesses("toy")
    winner = candidate(1)
    winner = replace(winner, impl=SimpleNamespace(spec=SimpleNamespace(impls=[])))
    return one, winner, [candidate(1, "torch", n) for n in "abc"]


def test_libraries_that_are_ready_are_timed_beside_the_winner(libraries):
    one, winner, others = libraries
    first, second = one._solos
    assert first.begun == ["warm", "import_libraries"] == second.begun
    one.compile("job")
    assert first.begun[2:] == ["compile_libraries"]
    a, b, c = (replace(TIMED, error=n) for n in (0.1, 0.2, 0.3))
    first.answer, second.answer = (
        (TIMED, a, b),
        (replace(TIMED, timing=synthetic.measured(2e-5)), c),
    )
    second.ready_at = 100.2
    found = one.final("job", winner, others, 5.0)
    assert [r for r, _ in found] == [a, b, c]
    assert [s for _, s in found] == [pytest.approx(1e-5, rel=0.01)] * 2 + [
        pytest.approx(2e-5, rel=0.01)
    ]
    assert first.steps == [0.3, 4.8, 0.0, ("ask", ["blocks", "a", "b"], [0.0] * 3, 4.8)]
    assert second.steps == [0.3, 4.8, 0.0, ("ask", ["blocks", "c"], [0.0] * 2, 4.8)]
    one.close()
    assert first.steps[-2:] == ["kill", "end"]


def test_libraries_that_are_late_or_fail_are_refused(libraries):
    one, winner, others = libraries
    first, second = one._solos
    first.ready_at, second.answer = 100.31, TimeoutError("late")
    found = one.final("job", winner, others, 5.0)
    late = Refusal("measure", library_processes.NOT_READY)
    lost = Refusal("measure", "the process of the libraries late")
    assert found[:2] == [(late, None)] * 2
    assert (
        found[2][1] is None and found[2][0].reason.startswith("the winner could not be timed")
    ) or found[2][0] == lost
    second.answer = MemoryError("no room\nmore")
    assert "no room" in one.final("job", winner, others[2:], 5.0)[0][0].reason
    second.answer = (Refusal("measure", "odd"), TIMED)
    ((result, winner_s),) = one.final("job", winner, others[2:], 5.0)
    assert (result.reason, winner_s) == ("the winner could not be timed with it: odd", None)
    first.ready_at = clock.now + 0.11
    assert one.final("job", winner, others, 0.1)[0] == (late, None)


# A GPU of a cluster


class Dask:
    """A client whose futures the test ends."""

    def __init__(self):
        self.futures = []

    def submit(self, task, *args, **options):
        inner = SimpleNamespace(args=args, options=options, callbacks=[], cancelled=0)
        inner.add_done_callback = inner.callbacks.append
        inner.cancel = lambda: setattr(inner, "cancelled", 1)
        self.futures.append(inner)
        return inner


def ends(inner, value):
    def result(timeout):
        if isinstance(value, Exception):
            raise value
        return value

    inner.result = result
    for call in inner.callbacks:
        call(inner)


@pytest.fixture
def cluster_gpu():
    from workbench.backend.cluster.joining import GpuReport

    deaths = {}

    def died_at(key):
        deaths[key] = deaths.get(key, 0) + 1
        return deaths[key]

    farm = SimpleNamespace(client=Dask(), stopping=False, died_at=died_at, refused=[], missing=[])
    farm.refuse = farm.refused.append
    farm.result_of = lambda address, task, paths: farm.missing
    report = SimpleNamespace(host="node")
    worker = ClusterWorker("a", "node", 1, report)
    one = ClusterGpu(
        farm, worker, None, GpuReport(H200, synthetic.matmul()[0].environment, "GPU-01234567", "1")
    )
    return one, farm, worker


def test_tasks_of_a_cluster_end_with_their_worker_or_the_command(cluster_gpu):
    one, farm, worker = cluster_gpu
    other, gone = ClusterWorker("b", "other", 1, None), ClusterWorker("c", "gone", 1, None)
    gone.gone_event.set()
    pool = remote.ClusterPool(one, [worker, other, gone])
    first, second, third = (pool.submit(abs, -n, timeout_s=5.0) for n in (1, 2, 3))
    assert farm.client.futures[0].options["workers"] == ["a", "b"]
    ends(farm.client.futures[0], remote.replies.write(True, 1))
    ends(farm.client.futures[1], remote.replies.write(False, ValueError("x")))
    ends(farm.client.futures[2], OSError("gone"))
    assert first.result(5) == 1 and isinstance(second.exception(5), ValueError)
    assert str(third.exception(5)) == "its worker died (gone)" and not pool._pending
    pending = pool.submit(abs, -4, timeout_s=5.0)
    pool.close()
    assert farm.client.futures[3].cancelled == 1 and not pending.done()
    ends(farm.client.futures[3], remote.replies.write(True, 4))
    assert not pending.done(), "what comes after the end is dropped"
    worker.gone_event.set()
    assert isinstance(pool.submit(abs, -5, timeout_s=5.0).exception(5), GpuGone)
    farm.stopping = True
    assert isinstance(pool.submit(abs, -6, timeout_s=5.0).exception(5), Stopped)
    assert len(farm.client.futures) == 4


def test_what_is_pending_is_dropped_when_the_gpu_is_gone(cluster_gpu, monkeypatch):
    one, _farm, worker = cluster_gpu
    monkeypatch.setattr(remote, "POLL_S", 0.001)
    pool = remote.ClusterPool(one, [worker])
    pending = pool.submit(abs, -1, timeout_s=5.0)
    worker.gone_event.set()
    assert isinstance(pending.exception(10), GpuGone) and not pool._pending
    pool._end_event.set()
    done = Future()
    done.cancel()
    remote._settle(done, 1, None)
    assert done.cancelled()


def test_a_remote_process_that_dies_is_lost_with_its_config(cluster_gpu, monkeypatch):
    one, _, worker = cluster_gpu
    process = remote.RemoteMeasuring(one)
    monkeypatch.setattr(
        ClusterGpu,
        "ask",
        lambda self, task, args, timeout_s: (_ for _ in ()).throw(WorkerDied("w")),
    )
    for attempts in (1, 2):
        with pytest.raises(Lost, match="the worker of node GPU 1") as lost:
            process.ask(abs, candidate(1), timeout_s=1.0)
        assert (lost.value.attempts, lost.value.cause) == (attempts, "crash")
    with pytest.raises(Lost) as lost:
        process.ask(abs, [candidate(1)], timeout_s=1.0)
    assert lost.value.attempts == 1
    with pytest.raises(Lost) as lost:
        process.ask(abs, timeout_s=1.0)
    assert lost.value.attempts == 1
    asked = []
    monkeypatch.setattr(
        ClusterGpu,
        "perform",
        lambda self, name, *args: asked.append((name, *args)) or {"dram": 1.0},
    )
    process.prepare_standby()
    process.wait_idle()
    assert process.self_test() == {"dram": 1.0}
    process.replace()
    assert [n for n, *_ in asked] == ["prepare_standby", "wait_idle", "self_test", "replace"]
    monkeypatch.setattr(
        ClusterGpu, "perform", lambda self, name, *args: (_ for _ in ()).throw(WorkerDied("w"))
    )
    with pytest.raises(GpuGone, match="has left the cluster"):
        process.wait_idle()
    worker.gone_event.set()
    for call in (
        process.wait_idle,
        lambda: process.describe(None),
        lambda: process.ask(abs, timeout_s=1.0),
    ):
        with pytest.raises(GpuGone):
            call()


def test_a_task_aside_sees_the_disk_or_is_refused(cluster_gpu, monkeypatch, tmp_path):
    one, farm, _ = cluster_gpu
    monkeypatch.setattr(ClusterGpu, "perform", lambda self, name, *args: (name, *args))
    pool = remote.AsidePool(one)
    assert pool.submit(abs, tmp_path, timeout_s=3.0).result(1) == ("aside", abs, (tmp_path,), 3.0)
    farm.missing = [tmp_path / "x"]
    assert isinstance(pool.submit(abs, tmp_path, timeout_s=3.0).exception(1), WorkerRefused)
    assert farm.refused == [
        f"The worker node does not see {tmp_path}; name a folder on a disk that all hosts share: "
        "--out FOLDER."
    ]
    farm.missing = []
    monkeypatch.setattr(
        ClusterGpu, "perform", lambda self, name, *args: (_ for _ in ()).throw(WorkerDied("w"))
    )
    assert isinstance(pool.submit(abs, timeout_s=3.0).exception(1), GpuGone)


def test_a_worker_of_a_cluster_has_a_pool_and_claims_of_its_own(monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr(cluster_worker, "_pools", [])
    monkeypatch.setattr(cluster_worker, "_claims", {})
    monkeypatch.setattr(cluster_worker, "new_pool", lambda count: made.append(count) or "pool")
    monkeypatch.setattr(
        "distributed.get_worker", lambda: SimpleNamespace(state=SimpleNamespace(nthreads=5))
    )
    assert cluster_worker._pool() == cluster_worker._pool() == "pool" and made == [5]
    job = CompileJob("toy", candidate(1), {}, "bf16", H200, tmp_path, "1")
    assert cluster_worker._replace_claims(job) is job
    assert cluster_worker._replace_claims(replace(job, claims=None)).claims is None
    own = [
        cluster_worker._replace_claims(replace(job, claims=tmp_path / n)).claims
        for n in ("x", "x", "y")
    ]
    assert own[0] == own[1] != own[2] and all(p.is_dir() for p in own)
    assert cluster_worker.missing([tmp_path, tmp_path / "x"]) == [tmp_path / "x"]
    right, error = remote.replies.read(cluster_worker.run_to_bytes(int, "x"))
    assert (
        not right
        and isinstance(error, ValueError)
        and remote.replies.read(cluster_worker.run_to_bytes(abs, -2)) == (True, 2)
    )
    for named, index in (
        ({}, "0"),
        ({"CUDA_VISIBLE_DEVICES": "3,4"}, "3"),
        ({"HIP_VISIBLE_DEVICES": "2"}, "2"),
    ):
        for name in cluster_worker.GPU_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in named.items():
            monkeypatch.setenv(name, value)
        assert cluster_worker._index() == index


def test_the_owner_of_a_gpu_locks_and_reports_it(monkeypatch):
    class Measuring:
        seconds = {"check": 1.0}  # noqa: RUF012

        def describe(self, repository):
            return described_

        def lock(self, name, on_wait, timeout_s):
            assert timeout_s == 0
            if busy:
                raise cluster_worker.LockBusy("held by 5")
            return nullcontext()

        def ask(self, task, *args, timeout_s):
            return task(*args), timeout_s

        def close(self):
            pass

    monkeypatch.setattr(cluster_worker, "new_measuring", Measuring)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6")
    actor, busy, described_ = cluster_worker.GpuActor(), True, None

    def call(*given):
        return remote.replies.read(actor.perform(*given))

    assert call("open") == (True, (None, {"check": 1.0}))
    described_ = H200, synthetic.matmul()[0].environment, "lock"
    assert call("open")[1][0].index == "6" and call("lock", "x")[1][0] == "held by 5"
    busy = False
    assert call("lock", "x")[1][0] is None
    assert remote.replies.read(actor.ask(abs, (-3,), 2.0)) == (True, ((3, 2.0), {"check": 1.0}))


# Processes that start before all else


@pytest.mark.parametrize(
    ("who", "cached", "started"),
    [
        ("NOBODY", None, 0),
        ("OTHERS", None, 1),
        ("MEASURING", None, 0),
        ("MEASURING", "/cache", 1),
        ("NOBODY", "/cache", 0),
    ],
)
def test_processes_of_libraries_start_where_they_are_wanted(monkeypatch, who, cached, started):
    made = []
    closed = []

    def maker(name):
        def make(*given):
            made.append((name, *given))
            return SimpleNamespace(close=lambda: closed.append(name))

        return make

    for name in ("Measuring", "LibraryProcesses", "compilers"):
        monkeypatch.setattr(prewarm, name, maker(name))
    monkeypatch.setattr(prewarm, "preload_compiler", lambda: made.append("preload"))
    monkeypatch.setattr(prewarm, "end_server", lambda: closed.append("server"))
    monkeypatch.setattr(prewarm, "sys", SimpleNamespace(pycache_prefix=cached))
    one = prewarm.Prewarm("toy", prewarm.Libraries[who])
    one.gpu, one.compilers, one.libraries  # noqa: B018
    others = [m for m in made if m[0] == "LibraryProcesses"]
    assert (len(others) == started and made[0] == "preload") or "preload" in made
    assert ("Measuring", "toy", "toy" if who == "MEASURING" else "") in made
    assert (one.libraries is not None) == (who == "OTHERS")
    assert [m[2] for m in others] == [who != "MEASURING"] * started
    one.close()
    assert sorted(closed) == sorted(
        ["Measuring", "compilers", "server", *["LibraryProcesses"] * started]
    )
    made.clear()
    without = prewarm.Prewarm("toy", prewarm.Libraries.NOBODY, compiles=False)
    assert without.compilers is None and without.gpu and made == [("Measuring", "", "")]
    for shown in (True, False):
        monkeypatch.setattr(prewarm, "gpu_shown", lambda shown=shown: shown)
        assert (prewarm.begin_prewarm("toy") is not None) == shown
        with prewarm.prewarmer("toy", prewarm.Libraries.NOBODY, wanted=not shown) as found:
            assert found is None


# A named target, and the emulator


def test_tasks_for_a_target_are_predicted_but_for_those_that_no_model_covers(monkeypatch):
    backend = offline.Offline.__new__(offline.Offline)
    backend.device, backend._compilers, backend._compile_s = H200, None, 1.0
    backend._method = SimpleNamespace(compile="metal's")
    begun, asked = [], []
    backend.begin = lambda problem: begun.append(problem.sizes["N"])
    backend.time = lambda c, compiled, best: (asked.append(c.key), prewarm.Future())[1]
    results = {
        0: compiled(2, "a"),
        1: Refusal("compile", "no"),
        2: compiled(1, "b"),
        3: compiled(1, "c"),
    }
    monkeypatch.setattr(offline, "compile_parts", lambda pool, parts, device, s, compiles: results)
    at = Problem("toy", None, {"N": 8}, "bf16")

    def timed(c, known, best):
        future = Future()
        future.set_result(TIMED)
        asked.append(c.key)
        return future

    backend.time = timed
    parts = [
        TimingTask(at, candidate(0)),
        TimingTask(at, candidate(1)),
        TimingTask(at, candidate(2), "hot"),
        TimingTask(at, candidate(3), clock="host"),
        TimingTask(at, candidate(4, "torch")),
    ]
    found = backend.measure_interleaved(parts)
    assert [getattr(r.result, "stage", "timed") for r in found] == [
        "timed",
        "compile",
        "measure",
        "measure",
        "measure",
    ]
    assert (
        [r.kernels for r in found] == [2, None, 1, 1, None]
        and asked == ["blocks0"]
        and begun == [8]
    )
    assert found[1].compilation is None and found[2].compilation is results[2]


def test_a_config_is_counted_at_a_small_size_and_scaled(monkeypatch):
    class EmulationError(Exception):
        pass

    raised = []

    def runs(impl, config, small, dtype):
        if raised:
            raise raised.pop()
        return found

    found = ["run"]
    spec = SimpleNamespace(bytes_written=lambda sizes, dtype: 2 if sizes == {"N": 8} else 0)
    impl = SimpleNamespace(config=dict, spec=spec, work=True)
    monkeypatch.setattr(
        emulated, "import_module", lambda name: SimpleNamespace(EmulationError=EmulationError)
    )
    monkeypatch.setattr(
        emulated, "load_kernel", lambda kernel: SimpleNamespace(impl=lambda name, code: impl)
    )
    monkeypatch.setattr(emulated, "counted_sizes", lambda *at: {"N": 2})
    monkeypatch.setattr(emulated, "_emulated_runs", runs)
    monkeypatch.setattr(emulated, "plan_launches", lambda *at: ["launch"])
    moved = {2: (4, 0), 8: (32, 6)}
    monkeypatch.setattr(
        emulated, "_bytes", lambda impl, config, limits, dtype, sizes: moved[sizes["N"]]
    )
    monkeypatch.setattr(
        emulated, "compiled_launches", lambda launches, traffic: (launches, traffic)
    )
    counted = SimpleNamespace(totals=lambda *at: (2.6, 3.0, 5.4))
    monkeypatch.setattr(emulated, "CountedPlace", lambda *at: counted)
    asked, blank = [], CountedTraffic({"N": 2}, (), 1, 1, 1, 0, 0, 0)
    monkeypatch.setattr(
        emulated, "traffic_of",
        lambda runs, launches, small, scales: asked.append((small, scales)) or blank,
    )  # fmt: skip

    def count():
        return emulated.count_task("toy", candidate(1), {"N": 8}, "fp32", H200)

    carried = replace(blank, all_barriers=3, all_accesses=3, all_bank_rounds=5, edge_bytes=4)
    assert count() == (["launch"], carried)
    assert asked == [({"N": 2}, emulated.Scales(8.0, 6.0))]
    for error, stage, words in (
        (EmulationError("race"), "check", "at N=2: EmulationError: race"),
        (emulated.WorkbenchError("no"), "compile", "no"),
    ):
        raised.append(error)
        refused = count()
        assert (refused.stage, refused.rule) == (stage, "process" if stage == "check" else None)
        assert words.rpartition(": ")[2] in refused.reason
    found = []
    assert count() == Refusal("check", "the launch does not run a Metal kernel", rule="launches")
    raised.append(SpecFault("s"))
    with pytest.raises(SpecFault):
        count()


def test_calls_take_the_schedules_of_the_emulator_in_turn(monkeypatch):
    schedules = []

    class Emulator:
        SCHEDULES = ("a", "b")

        @staticmethod
        def EmulationOptions(schedule):
            return schedule

        @staticmethod
        def emulation(options):
            schedules.append(options)
            run = SimpleNamespace(call=SimpleNamespace(source=SimpleNamespace(name=f"k{options}")))
            return nullcontext([run])

    from workbench.measurement.handover import Returned

    results = [
        Returned(()),
        Returned(()),
        Returned((), fault=SimpleNamespace(reason="odd", rule="outputs")),
        Returned(()),
    ]
    impl = SimpleNamespace(title="toy.x", config=dict)
    monkeypatch.setattr(emulated, "import_module", lambda name: Emulator)
    monkeypatch.setattr(
        emulated, "load_kernel", lambda kernel: SimpleNamespace(impl=lambda name, code: impl)
    )
    monkeypatch.setattr(
        "workbench.measurement.handover.launch_on_inputs", lambda impl, config, call: results.pop(0)
    )
    calls = [SimpleNamespace(sizes={"N": n}) for n in range(4)]
    assert emulated.emulate_calls("toy", candidate(1), calls) == Refusal(
        "check", "at N=2 odd", rule="outputs"
    )
    assert schedules == ["a", "b", "a"] and len(results) == 1
    found = emulated.emulate_calls("toy", candidate(1), calls[:1])
    assert [r.launches for r in found] == [("ka",)]


def test_counts_come_back_as_they_end_and_failures_have_a_cause():
    def future(value):
        one = Future()
        (one.set_exception if isinstance(value, BaseException) else one.set_result)(value)
        return one

    good = emulated._compiled_result(candidate(1), future(compiled(1, "")))
    assert good.ttgir == "blocks1"
    assert emulated._compiled_result(candidate(1), future(Refusal("compile", "no"))).reason == "no"
    late = emulated._compiled_result(candidate(1), future(TimeoutError("late")))
    assert (late.reason, late.cause) == ("the emulated run late", "timeout")
    assert emulated._compiled_result(candidate(1), future(KeyError("x"))).cause is None
    with pytest.raises(SpecFault):
        emulated._compiled_result(candidate(1), future(SpecFault("s")))
    asked = []

    class Pool:
        def submit(self, task, *args, timeout_s):
            asked.append((args[1].key, args[2], timeout_s))
            return future(compiled(1, ""))

    at = Problem("toy", None, {"N": 8}, "bf16")
    found = list(emulated.emulate_all(Pool(), at, [candidate(1), candidate(2)], H200, 5.0))
    assert [(c.key, r.ttgir) for c, r in found] == [("blocks1", "blocks1"), ("blocks2", "blocks2")]
    assert asked == [("blocks1", {"N": 8}, 5.0), ("blocks2", {"N": 8}, 5.0)]


# Three processes of two versions


def test_windows_of_versions_are_taken_by_processes_that_end_with_a_poisoned_one(monkeypatch):
    made, locked = [], []

    class Process:
        def __init__(self, folder):
            self.folder, self.steps, self.answers = folder, [], {}
            made.append(self)

        def begin(self, task):
            self.steps.append(task.__name__)

        def ask(self, task, *args, timeout_s):
            self.steps.append((task.__name__, timeout_s))
            value = answers.get(task.__name__)
            value = value[made.index(self) % 3] if isinstance(value, list) else value
            if isinstance(value, Exception):
                raise value
            return value

        def end(self):
            self.steps.append("end")

    answers = {"describe": (H200, "environment", "lock")}
    monkeypatch.setattr(
        version_timing.preflight,
        "gpu_lock",
        lambda *given: locked.append(given[0]) or nullcontext(),
    )
    timer = version_timing.VersionTimer(["old", "new"], print, Process)
    assert timer.device() is H200 and timer.environment == "environment"
    assert [p.folder for p in made] == ["old"] and made[0].steps[:2] == ["warm", "load"]
    job = compilers.FactsJob("toy", candidate(1).case, "code")
    answers["open_alone"] = [None, None, Refusal("check", "wrong")]
    assert timer.compare(job, 0.01) == version_timing.NoVersionTimes("wrong", 1)
    assert locked == ["lock"] and [p.folder for p in made] == ["old", "old", "new"]
    answers["open_alone"] = [None, Refusal("launch", "bad", is_poisoned=True), None]
    assert timer.compare(job, 0.01) == version_timing.NoVersionTimes("bad", 0) and locked == [
        "lock"
    ]
    assert made[0].steps[-1] == "end" and timer._processes == []
    answers["open_alone"], answers["begin"] = None, TimeoutError("late")
    assert timer.compare(job, 0.01).reason == "a measuring process late"
    answers["begin"] = None
    times = SimpleNamespace(left=[1, 2], verdict="verdict")
    monkeypatch.setattr(version_timing.rounds, "compare", lambda *given: times)
    answers["close_alone"] = ["first", "second", "third"]
    found = timer.compare(job, 0.01)
    assert (found.verdict, found.before, found.after) == ("verdict", "first", "third")
    answers["describe"] = None
    assert timer.device() is None
    answers["describe"] = TimeoutError("late")
    assert timer.device() is None and timer._processes == []


def test_a_thread_of_this_process_has_the_errors_of_its_task():
    from workbench.backend.live import _background

    right, daemons = [], []
    future = _background(
        lambda n: (right.append(n), daemons.append(threading.current_thread().daemon)), 3
    )
    assert future.result(10) is None and right == [3] and daemons == [True]

    def fails():
        raise CancelledError

    with pytest.raises(CancelledError):
        _background(fails).result(10)


def test_what_is_asked_of_a_gpu_of_a_cluster_by_name_is_there():
    """The name crosses to another process as text, where no type sees it."""
    files = Path(cluster_worker.__file__).parent.glob("*.py")
    nodes = [n for f in files for n in ast.walk(ast.parse(f.read_text()))]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    named = [c for c in calls if getattr(c.func, "attr", "") in ("perform", "_perform") and c.args]
    names = {c.args[0].value for c in named if isinstance(c.args[0], ast.Constant)}
    assert len(names) >= 8
    own = {"open", "lock", "unlock", "aside"}  # of the actor itself
    assert not {name for name in names - own if not hasattr(measuring.Measuring, name)}
