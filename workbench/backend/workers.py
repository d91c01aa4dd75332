"""Worker processes for tasks that may hang or die: compiling, interpreting, measuring.

The parent never compiles and never touches a GPU, so a config that kills its process costs only
that config. A task that outlasts its limit ends its process; the others go on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

from workbench.backend import replies
from workbench.data.bytecode import keep_bytecode
from workbench.data.closing import Closing
from workbench.data.environment import FP_FUSION
from workbench.data.memory import limit_memory
from workbench.data.record import Cause
from workbench.data.user_code import Marks, user_code, watch

# Imported once (1.5 to 4 s), then inherited by every worker. Triton decides at its import whether
# it interprets, so it is imported only where no worker does; see `preload_compiler`.
PRELOADED = ["workbench.backend.preload", "numpy", "torch", "workbench.backend.processes"]

LOST = (TimeoutError, ChildProcessError)
PATIENCE = 3.0  # times the usual limit, for the second attempt after a crash or a timeout


def preload_compiler() -> None:
    """Let the fork server import Triton, too. To be called before the first worker is started, in a
    process that starts no interpreted ones."""
    if "TRITON_INTERPRET" not in os.environ:
        PRELOADED.append("workbench.backend.preload_compiler")


def cause_of(error: BaseException) -> Cause | None:
    """Return how a process was lost, by the exception of its task; None if it was not."""
    if isinstance(error, TimeoutError):
        return "timeout"
    return "crash" if isinstance(error, ChildProcessError) else None


class Pool(Protocol):
    """Processes that run tasks: `Workers` of this machine, or those of a cluster."""

    def submit(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Future[Any]:
        """Submit a task and return a future; see `Workers.submit`."""

    def close(self) -> None:
        """End the processes that belong to this pool alone."""


class Workers(Closing):
    """A pool of processes. `close` or the end of a `with` block ends them all.

    Each task is given to an idle `Solo` by a thread. A process shares no pipe and no lock with
    another one, so a process that is killed at any moment stops no other.
    """

    def __init__(
        self,
        count: int,
        *,
        interpreted: bool = False,
        packages: Path | None = None,
        here: Path | None = None,
        first: tuple[Callable[..., Any], Any] | None = None,
    ) -> None:
        """Hold at most `count` processes, each started when it is needed; `interpreted` ones run
        Triton kernels in its interpreter, on the CPU. Packages in the folder `packages`, such as
        another Triton, come before the installed ones; modules in the folder `here` after all
        others. Each process begins with the task `first`, of one argument."""
        self._count, self._interpreted = count, interpreted
        self._packages, self._here, self._first = packages, here, first
        _context()  # in this thread: it changes the process's signals and files for a moment
        self._open()

    def _open(self) -> None:
        self._threads = ThreadPoolExecutor(self._count)
        self._lock = threading.Lock()
        self._idle: list[Solo] = []
        self._all: set[Solo] = set()
        self._is_closed = False

    def submit(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Future[Any]:
        """Submit a task and return a future of its result.

        The future raises what the task raised, TimeoutError after `timeout_s` seconds of work, or
        ChildProcessError when the process died.
        """
        return self._threads.submit(self._run, task, args, timeout_s)

    def everywhere(self, task: Callable[..., Any], *args: Any) -> None:
        """Start the task in each process at the start of the pool; drop its results and errors."""
        for _ in range(self._count):
            solo = self._start_solo()
            solo.begin(task, *args)
            self._idle.append(solo)

    def _run(self, task: Callable[..., Any], args: tuple[Any, ...], timeout_s: float) -> Any:
        with self._lock:
            solo = self._idle.pop() if self._idle else None
        solo = solo or self._start_solo()
        try:
            return solo.ask(task, *args, timeout_s=timeout_s)
        finally:
            with self._lock:
                usable = solo.alive and not self._is_closed
                (self._idle.append if usable else self._all.discard)(solo)
            if not usable:
                solo.end()

    def _start_solo(self) -> Solo:
        solo = Solo(interpreted=self._interpreted, packages=self._packages, here=self._here)
        if self._first is not None:
            solo.begin(*self._first)
        with self._lock:
            if not self._is_closed:
                self._all.add(solo)
                return solo
        solo.end()
        raise ChildProcessError("was stopped, because its pool is closed")

    def restart(self) -> None:
        """End every process and start new ones, after an error that poisons its process."""
        self.close()
        self._open()

    def close(self) -> None:
        """End every process now."""
        with self._lock:
            self._is_closed = True
            every, idle = list(self._all), list(self._idle)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for solo in every:
            solo.kill()
        self._threads.shutdown()  # each thread ends the process that it used
        for solo in idle:
            solo.end()


class Solo:
    """One process that runs one task at a time, with a round trip below a millisecond. When it is
    lost, its owner starts another."""

    def __init__(
        self,
        *,
        interpreted: bool = False,
        packages: Path | None = None,
        here: Path | None = None,
        spawned: bool = False,
    ) -> None:
        """Start the process, and let it import torch, or Triton's interpreter if `interpreted`.
        Packages in the folder `packages` come before the installed ones, modules in `here` last.
        One that is `spawned` is not a fork of the server, and does not wait for its imports."""
        context: Any = multiprocessing.get_context("spawn") if spawned else _context()
        self._ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, interpreted, packages, here), daemon=True
        )
        with _silent() if spawned else nullcontext():
            self._process.start()
        theirs.close()
        self._unread = b""  # the beginning of a result
        # results of tasks that were begun and not waited for; None: it is dropped
        self._promises: deque[Future[Any] | None] = deque()
        self.begin(os.getpid)  # so that the start of the process is no part of a task's time

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return int(self._process.pid or 0)

    @property
    def alive(self) -> bool:
        """Return whether the process can take another task."""
        return not self._ours.closed and self._process.is_alive()

    def begin(self, task: Callable[..., Any], *args: Any) -> None:
        """Start a task without waiting; the next `ask` drops its result or error."""
        with suppress(OSError):  # it died: the next `ask` raises that
            self._ours.send((task, args))
            self._promises.append(None)

    def promise(self, task: Callable[..., Any], *args: Any) -> Future[Any]:
        """Start a task without waiting; return the future of its result, for `keep`."""
        future: Future[Any] = Future()
        with suppress(OSError):  # it died: `keep` raises that
            self._ours.send((task, args))
            self._promises.append(future)
        return future

    def keep(self, future: Future[Any]) -> Any:
        """Return the result of a promise. Tasks that were begun after it go on. Raises as `ask`."""
        while not future.done():
            if not self._promises:
                raise self._death_error()
            self._take(BEGIN_S)
        return future.result()

    def settle(self) -> None:
        """Wait until all tasks that were begun are over. Raises TimeoutError or ChildProcessError,
        and the process is gone then."""
        while self._promises:
            self._take(BEGIN_S)

    def _take(self, timeout_s: float) -> None:
        """Wait for the first task that was begun, and give its result to whom it was promised."""
        right, result = self._reply(timeout_s)
        if (future := self._promises.popleft()) is not None:
            (future.set_result if right else future.set_exception)(result)

    def is_ready(self, within_s: float) -> bool:
        """Return whether all tasks that were begun are over within so many seconds. The process
        goes on with one that is not."""
        end = time.monotonic() + within_s
        while self._promises and self.alive:
            if self._whole() is not None:
                self._promises.popleft()  # nothing is promised where one asks whether it is ready
                continue
            left = max(0.0, end - time.monotonic())
            if not wait([self._ours, self._process.sentinel], left) or not self._read():
                return False
        return self.alive

    def ask(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        """Run a task and return its result.

        Raises what the task raised, TimeoutError after `timeout_s` seconds, or ChildProcessError
        when the process died or sent no result; after the last two the process is gone.
        """
        self.settle()
        try:
            self._ours.send((task, args))
        except OSError:
            raise self._death_error() from None
        right, result = self._reply(timeout_s)
        if right:
            return result
        raise result

    def _reply(self, timeout_s: float) -> tuple[bool, Any]:
        """Return the next result. The process may be ended by its own code at any byte of it, and
        another process that this code started may hold the pipe open."""
        end = time.monotonic() + timeout_s
        while (data := self._whole()) is None:
            left = end - time.monotonic()
            ready = wait([self._ours, self._process.sentinel], left) if left > 0 else []
            if self._ours in ready:
                if not self._read():
                    raise self._death_error()
            elif ready:
                raise self._death_error()
            elif left <= 0:
                self.end()
                raise TimeoutError(f"took longer than {timeout_s:.3g} s")
        try:
            return replies.read(data)
        except replies.Unreadable as error:
            self.end()
            raise ChildProcessError(f"sent something that is not a result ({error})") from None

    def _read(self) -> bool:
        """Add what the pipe holds. Returns False where the process has closed it."""
        try:
            more = os.read(self._ours.fileno(), 1 << 20)
        except OSError:
            return False
        self._unread += more
        return bool(more)

    def _whole(self) -> bytes | None:
        """Return the bytes of the next result if all of it has been read."""
        if len(self._unread) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._unread)
        end = _LENGTH.size + length
        if len(self._unread) < end:
            return None
        data, self._unread = self._unread[_LENGTH.size : end], self._unread[end:]
        return data

    def _death_error(self) -> ChildProcessError:
        self._process.join(KILLED_S)
        return ChildProcessError(f"its process died (exit code {self._process.exitcode})")

    def kill(self) -> None:
        """Kill the process; whoever waits for its result gets a ChildProcessError."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process and wait until the driver has released it."""
        self._process.kill()
        self._process.join(KILLED_S)
        self._ours.close()


_LENGTH = struct.Struct("!Q")  # of a result in bytes, before it
BEGIN_S = 180.0  # the first import of torch on a cold disk took 60 s
KILLED_S = 10.0  # the driver takes seconds to tear down a kernel that never ends


def begin_server() -> None:
    """Start the fork server, and what multiprocessing starts beside it."""
    _context()


def end_server() -> None:
    """End the fork server at once, and wait for its end: it would take half a second to leave by
    itself. The next process starts another one."""
    global _served
    from multiprocessing import forkserver

    server = forkserver._forkserver
    with _server:
        _served = None
        if (pid := getattr(server, "_forkserver_pid", None)) is not None:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            server._stop()  # type: ignore[attr-defined]  # one that is killed still counts as running


def cpu_count() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _context() -> Any:
    """Return the context of new processes: a fork server that has imported PRELOADED. On macOS
    each process begins anew: Metal works in none that was forked and did not exec."""
    if sys.platform == "darwin":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    _start_server()
    return context


def _serve(theirs: Any, interpreted: bool, packages: Path | None, here: Path | None = None) -> None:
    """Serve the tasks of a `Solo` until its pipe is closed."""
    _begin(interpreted, packages)
    if here is not None:
        sys.path.append(str(here))
    with suppress(EOFError, OSError):
        while True:
            task, args = theirs.recv()
            try:
                data = replies.write(True, guard(task, *args))
            except Exception as error:
                data = replies.write(False, error)
            _send(theirs.fileno(), _LENGTH.pack(len(data)) + data)


def _send(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def guard(task: Callable[..., Any], *args: Any) -> Any:
    """Run a task and return its result. Raises UserCodeExit in place of an exception that is meant
    to end a process, such as that of `sys.exit`: it would end the parent's threads as well."""
    with user_code(task.__name__):
        return task(*args)


_server = threading.Lock()
_served: int | None = None  # the process whose fork server was started


def _start_server() -> None:
    """Start the fork server, once, with SIGINT blocked and stderr closed: it imports for a second
    or two, and its messages when it is ended meanwhile mean nothing."""
    global _served
    if not hasattr(signal, "pthread_sigmask"):
        return
    from multiprocessing import forkserver

    with _server:
        if _served == os.getpid():
            return
        _served = os.getpid()
        with _silent():
            forkserver.ensure_running()


_SAFE_PATH, _OURS = "PYTHONSAFEPATH", "workbench"  # any value does; ours tells who set it


@contextmanager
def _safe_path() -> Iterator[None]:
    """Return a context manager in which new interpreters do not begin their search for modules in
    the current folder: multiprocessing starts them by `-c`, and a `random.py` there would be taken
    for the standard library's. They get the search path of this process once they have begun."""
    if _SAFE_PATH in os.environ:
        yield
        return
    os.environ[_SAFE_PATH] = _OURS
    try:
        yield
    finally:
        del os.environ[_SAFE_PATH]


_STDERR = threading.Lock()  # its descriptor is that of the whole process


@contextmanager
def _silent() -> Iterator[None]:
    """Return a context manager that starts processes with SIGINT blocked and stderr closed. One
    thread at a time: a second one would keep the closed stderr, and leave it so."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with _STDERR:
            stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(null, 2)
                with _safe_path():
                    yield
            finally:
                os.dup2(stderr, 2)
                os.close(stderr)
                os.close(null)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(interpreted: bool, packages: Path | None = None) -> None:
    """Initialise a worker before Triton is imported."""
    if os.environ.get(_SAFE_PATH) == _OURS:  # programs that it starts are as before
        del os.environ[_SAFE_PATH]
    keep_bytecode()
    # messages of ptxas, which may hold whole PTX listings, reach the parent as exceptions
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    _let_go()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_end_with_parent, daemon=True).start()
    limit_memory()
    watch(Marks())  # Ctrl-C is the parent's: any KeyboardInterrupt here is raised by user code
    os.environ["OMP_NUM_THREADS"] = "1"
    # Inductor would start processes of its own that import torch: longer than a baseline compiles
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    os.environ.setdefault(FP_FUSION, "1")
    # else Inductor names a folder of its own, and later launches find nothing that was compiled
    home = os.environ.get("TRITON_HOME") or Path.home()
    os.environ.setdefault("TRITON_CACHE_DIR", str(Path(home) / ".triton" / "cache"))
    if packages is not None:
        if "triton" in sys.modules:
            raise RuntimeError("Triton was imported before its version could be chosen")
        sys.path.insert(0, str(packages))
    if interpreted:
        # Triton decides at its import. A worker imports its parent's main module first, so that
        # module must not import Triton outside `if __name__ == "__main__"`: ours do not.
        if "triton" in sys.modules:
            raise RuntimeError("Triton was imported before its interpreter could be chosen")
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ.pop("TRITON_INTERPRET", None)
    import torch

    torch.set_num_threads(1)
    if interpreted:
        import workbench.dsl  # noqa: F401  # mends the interpreter, also for files without it


def _let_go() -> None:
    """Close the pipes that a worker has to the fork server and to multiprocessing's tracker, and
    needs for nothing: the user's code could write to them, and one byte ends the server."""
    from multiprocessing import forkserver, resource_tracker

    modules = (
        (forkserver._forkserver, "_forkserver_alive_fd"),
        (resource_tracker._resource_tracker, "_fd"),
    )
    for owner, name in modules:
        if (file := getattr(owner, name, None)) is not None:
            setattr(owner, name, None)
            with suppress(OSError):
                os.close(file)


def _end_with_parent() -> None:
    """End this process when its parent is gone: a parent that was killed cannot end its workers."""
    if (parent := multiprocessing.parent_process()) is not None:
        wait([parent.sentinel])
        os._exit(1)
