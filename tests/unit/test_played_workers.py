"""Worker processes that are played in this one: every step and every limit, on a clock by hand."""

import os
import signal
import threading
from concurrent.futures import CancelledError, Future
from multiprocessing import Pipe, forkserver, resource_tracker
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from workbench.backend import replies, workers
from workbench.backend.workers import Solo, Workers
from workbench.measurement.candidate import Timed

pytestmark = pytest.mark.unit


class Process:
    """A process that never runs: the test reads what it was sent, and writes for it."""

    def __init__(self, target, args, daemon):
        self.pid, self.exitcode, self.living, self.steps = 4711, None, True, []
        self.daemon, self.args = daemon, args[1:]
        self.theirs = args[0]  # which its parent closes
        self.pipe = os.dup(args[0].fileno())
        self.sentinel, self._end = os.pipe()

    def start(self):
        self.steps.append("start")

    def is_alive(self):
        return self.living

    def kill(self):
        self.steps.append("kill")
        self.living = False

    def join(self, seconds):
        self.steps.append(("join", seconds))

    def dies(self, code):
        self.living, self.exitcode = False, code
        os.close(self._end)

    def received(self):
        """Return the next task that it was sent."""
        return Connection(os.dup(self.pipe)).recv()

    def send(self, right, value):
        data = replies.write(right, value)
        os.write(self.pipe, workers._LENGTH.pack(len(data)) + data)


@pytest.fixture
def played(monkeypatch):
    """A process's owner, the process, a clock that waiting moves, and the waits."""
    made, waits, clock = [], [], SimpleNamespace(now=100.0)
    real_wait = workers.wait

    def process(**given):
        made.append(Process(**given))
        return made[-1]

    def wait(things, left):
        waits.append(left)
        ready = real_wait(things, 0)
        clock.now += 0.0 if ready else left / 2 if left > 2 else left  # it may return early
        return ready

    monkeypatch.setattr(workers, "_context", lambda: SimpleNamespace(Pipe=Pipe, Process=process))
    monkeypatch.setattr(workers, "wait", wait)
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: clock.now))
    solo = Solo()
    solo.process, solo.waits, solo.clock = made[0], waits, clock
    return solo


def test_a_process_is_asked_its_number_as_it_starts(played):
    assert played.pid == 4711 and played.process.steps == ["start"] and played.process.daemon
    assert played.process.args == (False, None, None) and played.alive
    assert list(played._promises) == [None] and played.process.theirs.closed
    assert played.process.received() == (os.getpid, ())
    played.kill()
    assert played.process.steps == ["start", "kill"] and not played._ours.closed


def test_what_was_begun_is_dropped_and_what_was_promised_kept(played):
    promise = played.promise(abs, -3)
    played.begin(abs, -4)
    for value in (4711, "promised", "begun"):
        played.process.send(True, value)
    assert played.keep(promise) == "promised" and list(played._promises) == [None]
    played.settle()
    assert not played._promises
    played.process.send(True, "asked")
    assert played.ask(abs, -5, timeout_s=1) == "asked"
    assert [played.process.received() for _ in range(4)] == [
        (os.getpid, ()), (abs, (-3,)), (abs, (-4,)), (abs, (-5,))]  # fmt: skip
    bad = played.promise(abs, -6)
    played.process.send(False, ValueError("mine"))
    with pytest.raises(ValueError, match="mine"):
        played.keep(bad)
    played.process.send(False, KeyError("other"))
    with pytest.raises(KeyError, match="other"):
        played.ask(abs, -7, timeout_s=1)


def test_a_limit_is_waited_for_once_and_ends_the_process(played):
    played.process.send(True, 4711)
    with pytest.raises(TimeoutError, match=r"^took longer than 2\.5 s$"):
        played.ask(abs, -1, timeout_s=2.5)
    assert played.waits == [workers.BEGIN_S, 2.5, 1.25] and played.clock.now == 102.5
    assert played.process.steps == ["start", "kill", ("join", workers.KILLED_S)]
    assert not played.alive and played._ours.closed


@pytest.mark.parametrize("cut", [1, 7, 8, 9, -1])
def test_a_result_in_two_pieces_is_one_result(played, cut):
    """The length is 8 bytes; the first piece ends before, at and behind it."""
    data = replies.write(True, 4711)
    whole = workers._LENGTH.pack(len(data)) + data
    os.write(played.process.pipe, whole[:cut])
    assert not played.is_ready(3.0) and played.waits == [3.0, 3.0] and len(played._promises) == 1
    os.write(played.process.pipe, whole[cut:])
    assert played.is_ready(0.0) and not played._promises and played._unread == b""


def test_what_is_late_goes_on_and_is_ready_later(played):
    assert not played.is_ready(-1.0) and played.waits == [0.0] and played.alive
    played.process.send(True, 4711)
    played.begin(abs, -1)
    assert not played.is_ready(2.0) and len(played._promises) == 1
    assert played.waits[1:] == [2.0, 2.0]
    played.process.send(True, 1)
    assert played.is_ready(0.0)
    played.process.living = False
    assert not played.is_ready(1.0)


def test_a_process_that_ends_says_its_code(played):
    played.process.send(True, 4711)
    played.process.dies(3)
    with pytest.raises(ChildProcessError, match=r"^its process died \(exit code 3\)$"):
        played.ask(abs, -1, timeout_s=9)
    assert played.process.steps[1:] == [("join", workers.KILLED_S)]
    os.close(played.process.pipe)  # nothing can be sent now
    played.begin(abs, -1)
    promise = played.promise(abs, -1)
    assert not played._promises, "no answer is owed for what could not be sent"
    with pytest.raises(ChildProcessError, match="exit code 3"):
        played.keep(promise)
    with pytest.raises(ChildProcessError, match="exit code 3"):
        played.ask(abs, -1, timeout_s=9)
    assert not played._read()


def test_bytes_that_are_no_result_end_the_process(played):
    os.write(played.process.pipe, workers._LENGTH.pack(3) + b"abc")
    with pytest.raises(ChildProcessError, match="sent something that is not a result"):
        played.settle()
    assert played.process.steps[1:] == ["kill", ("join", workers.KILLED_S)]


def test_tasks_are_served_until_the_pipe_is_closed(monkeypatch):
    """The child's side in a thread: results and errors, with their lengths before them."""
    begun = []
    monkeypatch.setattr(workers, "_begin", lambda *given: begun.append(given))
    ours, theirs = Pipe()
    serving = threading.Thread(target=workers._serve, args=(theirs, True, None), daemon=True)
    serving.start()
    answers = []
    for task in ((abs, (-3,)), (int, ("x",)), (bytes, (300_000,))):
        ours.send(task)
        head = os.read(ours.fileno(), 8)
        (left,) = workers._LENGTH.unpack(head)
        data = b""
        while len(data) < left:
            data += os.read(ours.fileno(), left - len(data))
        answers.append(replies.read(data))
    ours.close()
    serving.join(10)
    assert not serving.is_alive() and begun == [(True, None)]
    assert answers[0] == (True, 3) and answers[2] == (True, bytes(300_000))
    assert not answers[1][0] and isinstance(answers[1][1], ValueError)


class OneTask:
    """Stands for a Solo."""

    made: ClassVar[list["OneTask"]] = []

    def __init__(self, **given):
        self.given, self.alive, self.steps = given, True, []
        OneTask.made.append(self)

    def ask(self, task, *args, timeout_s):
        self.steps.append((args, timeout_s))
        if args == ("dies",):
            self.alive = False
            raise ChildProcessError("died")
        return task(*args)

    def begin(self, task, *args):
        self.steps.append(("begin", args))

    def kill(self):
        self.steps.append("kill")

    def end(self):
        self.steps.append("end")


@pytest.fixture
def pool(monkeypatch):
    prepared = []
    monkeypatch.setattr(workers, "_context", lambda: prepared.append(1))
    monkeypatch.setattr(workers, "Solo", OneTask)
    OneTask.made = []
    yield Workers(2, interpreted=True, packages="folder")
    assert prepared == [1], "the server is started in the thread that makes the pool"


def test_an_idle_process_is_used_again_and_a_dead_one_is_replaced(pool):
    for number in (-1, -2):
        assert pool.submit(abs, number, timeout_s=7).result(10) == -number
    (first,) = OneTask.made
    assert first.given == {"interpreted": True, "packages": "folder", "here": None}
    assert first.steps == [((-1,), 7), ((-2,), 7)] and pool._all == {first}
    with pytest.raises(ChildProcessError):
        pool.submit(abs, "dies", timeout_s=7).result(10)
    pool.submit(abs, -3, timeout_s=7).result(10)
    assert first.steps[-1] == "end" and pool._all == {OneTask.made[1]} == set(pool._idle)
    pool.restart()
    assert OneTask.made[1].steps == [((-3,), 7), "kill", "end"]
    with pool:
        assert pool.submit(abs, -4, timeout_s=7).result(10) == 4
    assert OneTask.made[2].steps == [((-4,), 7), "kill", "end"]
    with pytest.raises(RuntimeError):
        pool.submit(abs, -5, timeout_s=7)
    with pytest.raises(ChildProcessError, match="its pool is closed"):
        pool._start_solo()
    assert OneTask.made[3].steps == ["end"]


def test_everywhere_begins_a_task_in_each_process(pool):
    pool.everywhere(abs, -9)
    assert [solo.steps for solo in OneTask.made] == [[("begin", (-9,))]] * 2
    assert pool._idle == OneTask.made and pool._all == set(OneTask.made)


def test_a_process_in_use_is_killed_and_its_thread_ends_it(pool):
    started, go = threading.Event(), threading.Event()

    def task():
        started.set()
        go.wait(10)
        return 5

    result = pool.submit(task, timeout_s=1)
    started.wait(10)
    threading.Timer(0.05, go.set).start()
    pool.close()
    assert result.result(10) == 5 and OneTask.made[0].steps[1:] == ["kill", "end"]
    assert pool._idle == [] and pool._all == set()


def begun(monkeypatch, environment, loaded=(), **given):
    """Return what a worker does as it begins: its calls, its variables and its search path."""
    calls, torch_threads = [], []

    def note(name):
        return lambda *args: calls.append((name, *args)) or 9

    for name in ("keep_bytecode", "_let_go", "limit_memory"):
        monkeypatch.setattr(workers, name, note(name))
    monkeypatch.setattr(workers, "watch", lambda marks: calls.append("watch"))
    monkeypatch.setattr(
        workers,
        "os",
        SimpleNamespace(
            environ=environment,
            open=note("open"),
            dup2=note("dup2"),
            devnull="/dev/null",
            O_WRONLY=1,
        ),
    )
    monkeypatch.setattr(workers, "signal", SimpleNamespace(
        signal=note("signal"), SIGINT="INT", SIG_IGN="ignored"))  # fmt: skip

    class Thread:
        def __init__(self, target, daemon):
            calls.append(("thread", target.__name__, daemon))

        def start(self):
            calls.append("start")

    monkeypatch.setattr(workers, "threading", SimpleNamespace(Thread=Thread))
    python = SimpleNamespace(path=["here"], modules=dict.fromkeys(loaded))
    monkeypatch.setattr(workers, "sys", python)
    monkeypatch.setattr("torch.set_num_threads", torch_threads.append)
    monkeypatch.setattr(workers.Path, "home", lambda: workers.Path("/home/me"))
    workers._begin(**given)
    assert torch_threads == [1]
    return calls, environment, python.path


CALLS = [("keep_bytecode",), ("open", "/dev/null", 1), ("dup2", 9, 1), ("dup2", 9, 2),
         ("_let_go",), ("signal", "INT", "ignored"), ("thread", "_end_with_parent", True),
         "start", ("limit_memory",), "watch"]  # fmt: skip


def test_a_compiling_worker_begins(monkeypatch):
    before = {"PYTHONSAFEPATH": "workbench", "TRITON_INTERPRET": "1"}
    calls, after, path = begun(monkeypatch, before, ("triton",), interpreted=False)
    assert calls == CALLS and path == ["here"]
    assert after == {
        "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", workers.FP_FUSION: "1",
        "TRITON_CACHE_DIR": "/home/me/.triton/cache",
    }  # fmt: skip


def test_an_interpreting_worker_begins_with_another_triton(monkeypatch):
    mine = {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "8", "TORCHINDUCTOR_COMPILE_THREADS": "4",
            workers.FP_FUSION: "0", "TRITON_HOME": "/data"}  # fmt: skip
    _, after, path = begun(monkeypatch, mine, interpreted=True, packages="/triton-3.6")
    assert path == ["/triton-3.6", "here"]
    assert after == {
        "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "4",
        workers.FP_FUSION: "0", "TRITON_HOME": "/data",
        "TRITON_CACHE_DIR": "/data/.triton/cache", "TRITON_INTERPRET": "1",
    }  # fmt: skip


@pytest.mark.parametrize(("given", "words"), [
    ({"interpreted": True}, "before its interpreter could be chosen"),
    ({"interpreted": False, "packages": "/t"}, "before its version could be chosen"),
])  # fmt: skip
def test_a_worker_that_has_triton_cannot_choose_it(monkeypatch, given, words):
    with pytest.raises(RuntimeError, match=words):
        begun(monkeypatch, {}, ("triton",), **given)


def test_processes_start_in_silence_and_all_is_as_before(monkeypatch):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    before, stderr = signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.fstat(2)
    open_files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyError), workers._silent():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert os.fstat(2).st_rdev == os.stat(os.devnull).st_rdev
        assert os.environ["PYTHONSAFEPATH"] == "workbench"
        raise KeyError
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert (os.fstat(2).st_dev, os.fstat(2).st_ino) == (stderr.st_dev, stderr.st_ino)
    assert "PYTHONSAFEPATH" not in os.environ and len(os.listdir("/proc/self/fd")) == open_files
    monkeypatch.setenv("PYTHONSAFEPATH", "mine")
    with workers._safe_path():
        assert os.environ["PYTHONSAFEPATH"] == "mine"
    assert os.environ["PYTHONSAFEPATH"] == "mine"


def test_the_server_is_started_once_a_process_and_ended_once(monkeypatch):
    calls = []
    server = SimpleNamespace(_forkserver_pid=12, _stop=lambda: calls.append("stopped"))
    monkeypatch.setattr(forkserver, "_forkserver", server)
    monkeypatch.setattr(forkserver, "ensure_running", lambda: calls.append("running"))
    monkeypatch.setattr(workers.os, "kill", lambda *given: calls.append(given))
    monkeypatch.setattr(workers, "_served", None)
    for _ in range(2):
        workers._start_server()
    assert calls == ["running"] and workers._served == os.getpid()
    workers.end_server()
    assert calls[1:] == [(12, signal.SIGKILL), "stopped"] and workers._served is None
    server._forkserver_pid = None
    workers.end_server()
    assert len(calls) == 3
    workers._start_server()
    assert calls[3:] == ["running"]


def test_pipes_of_others_are_closed(monkeypatch):
    held = [os.pipe() for _ in range(2)]
    server = SimpleNamespace(_forkserver_alive_fd=held[0][1])
    tracker = SimpleNamespace(_fd=held[1][1])
    monkeypatch.setattr(forkserver, "_forkserver", server)
    monkeypatch.setattr(resource_tracker, "_resource_tracker", tracker)
    workers._let_go()
    assert (server._forkserver_alive_fd, tracker._fd) == (None, None)
    for reading, writing in held:
        with pytest.raises(OSError):
            os.fstat(writing)
        os.close(reading)
    workers._let_go()  # there is nothing to close


def test_a_worker_ends_with_its_parent(monkeypatch):
    calls = []
    parent = SimpleNamespace(sentinel="end of it")
    processes = SimpleNamespace(parent_process=lambda: parent)
    monkeypatch.setattr(workers, "multiprocessing", processes)
    monkeypatch.setattr(workers, "wait", calls.append)
    monkeypatch.setattr(workers.os, "_exit", calls.append)
    workers._end_with_parent()
    assert calls == [["end of it"], 1]
    processes.parent_process = lambda: None
    workers._end_with_parent()
    assert len(calls) == 2


def test_the_server_imports_triton_where_nobody_interprets(monkeypatch):
    monkeypatch.setattr(workers, "PRELOADED", ["numpy"])
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    workers.preload_compiler()
    assert workers.PRELOADED == ["numpy"]
    monkeypatch.delenv("TRITON_INTERPRET")
    workers.preload_compiler()
    assert workers.PRELOADED == ["numpy", "workbench.backend.preload_compiler"]


def test_a_server_has_what_is_preloaded(monkeypatch):
    calls = []
    context = SimpleNamespace(set_forkserver_preload=calls.append)
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda kind: (kind, context)[1])
    monkeypatch.setattr(workers, "_start_server", lambda: calls.append("started"))
    assert workers._context() is context and calls == [workers.PRELOADED, "started"]


def test_how_a_process_was_lost(monkeypatch):
    errors = (TimeoutError(), ChildProcessError(), ValueError())
    assert [workers.cause_of(e) for e in errors] == ["timeout", "crash", None]
    monkeypatch.setattr(workers, "os", SimpleNamespace(cpu_count=lambda: None))
    assert workers.cpu_count() == 1
    monkeypatch.setattr(workers, "os", SimpleNamespace(cpu_count=lambda: 6))
    assert workers.cpu_count() == 6


# Futures of checks


def made(value):
    future = Future()
    if value is CancelledError:
        future.cancel()
        future.set_running_or_notify_cancel()
    elif isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


def ended(future):
    """Return the result or the error of a future that is done."""
    assert future.done()
    return future.exception() or future.result()


def test_what_follows_a_future_has_its_result_or_its_error():
    from workbench.backend import checking

    closed = RuntimeError("closed")

    def refused():
        raise closed

    def follow(value):
        return refused() if value == "closed" else made(value)

    wrong, late, died = ValueError("x"), TimeoutError("late"), ChildProcessError("died")
    for value in (4, wrong):
        assert ended(checking.then(made("first"), lambda _, v=value: follow(v))) is value
    for first in (wrong, late):
        assert ended(checking.then(made(first), lambda _: pytest.fail("follows"))) is first
    assert type(ended(checking.then(made(CancelledError), follow))) is CancelledError
    assert type(ended(checking.then(made("closed"), follow))) is CancelledError
    assert type(ended(checking.then(made(1), lambda _: made(CancelledError)))) is CancelledError

    for value, expected in ((3, 3), (wrong, wrong), (died, died), (CancelledError, None)):
        result = checking._unless_late(made(value))
        assert ended(result) is expected or type(ended(result)) is CancelledError
    assert checking._unless_late(made(late)).result() is None

    for value in (3, wrong):
        assert ended(checking._blaming_the_spec(made(value))) is value
    assert type(ended(checking._blaming_the_spec(made(CancelledError)))) is CancelledError
    for value in (late, died):
        fault = ended(checking._blaming_the_spec(made(value)))
        assert type(fault).__name__ == "SpecFault" and str(fault) == (
            f"The process that makes the inputs and the reference {value}; correct the Spec: no "
            "kernel was tried."
        )

    for values, expected, runs in (
        ([3], 3, 1), ([wrong], wrong, 1), ([late, 5], 5, 2), ([died, late], late, 2),
    ):  # fmt: skip
        tasks = [made(value) for value in values]
        assert ended(checking.tried_again(lambda tasks=tasks: tasks.pop(0))) is expected
        assert len(tasks) == len(values) - runs
    assert type(ended(checking.tried_again(lambda: made(CancelledError)))) is CancelledError
    tasks = [made(died)]
    assert type(ended(checking.tried_again(lambda: tasks.pop() if tasks else refused()))) is (
        CancelledError
    )


def test_a_duplicate_without_a_time_of_its_own_travels():
    """Its reply once was no result, and the measuring process was replaced for each duplicate."""
    checked = Timed(None, 0.25, "gpu", "bits", 7)
    assert replies.read(replies.write(True, checked)) == (True, checked)


def test_numbers_of_numpy_travel_as_those_of_python():
    sent = (np.float64(0.1), np.float32(0.5), np.int64(2**40), np.bool_(True))
    right, result = replies.read(replies.write(True, sent))
    assert right and result == (0.1, 0.5, 2**40, True)
    assert [type(each) for each in result] == [float, float, int, bool]
    for array in (np.zeros(1), np.zeros((2, 2))):
        right, error = replies.read(replies.write(True, array))
        assert not right and "cannot travel" in str(error)
