"""Worker processes for tasks that may hang or die: compiling, interpreting, measuring.

The parent never compiles and never touches a GPU, so a config that kills its process costs only
that config. A task that outlasts its limit ends its process; the others go on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import wait
from pickle import PicklingError
from typing import Any

from workbench.data.memory import limit_memory
from workbench.data.record import Cause
from workbench.data.user_code import Marks, user_code, watch

# Imported once (1.5 to 4 s), then inherited by every worker. Not Triton: it decides at its import
# whether it interprets.
PRELOADED = ["numpy", "torch"]

LOST = (TimeoutError, ChildProcessError)
PATIENCE = 3.0  # times the usual limit, for the second attempt after a crash or a timeout


def cause_of(error: BaseException) -> Cause | None:
    """Return how a process was lost, by the exception of its task; None if it was not."""
    if isinstance(error, TimeoutError):
        return "timeout"
    return "crash" if isinstance(error, ChildProcessError) else None


class Workers:
    """A pool of processes. `close` or the end of a `with` block ends them all."""

    def __init__(self, count: int, *, interpreted: bool = False) -> None:
        """Start `count` processes; `interpreted` ones run Triton kernels in its interpreter, on the
        CPU."""
        self._count, self._interpreted = count, interpreted
        self._pool = self._fresh()

    def _fresh(self) -> Any:
        import pebble

        context = _context()
        return pebble.ProcessPool(
            max_workers=self._count,
            context=context,
            initializer=_begin,
            initargs=(self._interpreted,),
        )

    def submit(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Future[Any]:
        """Submit a task and return a future of its result.

        The future raises what the task raised, TimeoutError after `timeout_s` seconds of work, or
        ChildProcessError when the process died.
        """
        given: Future[Any] = Future()
        inner = self._pool.schedule(guarded, args=(task, *args), timeout=timeout_s)
        inner.add_done_callback(lambda done: _pass_on(done, given, timeout_s))
        return given

    def everywhere(self, task: Callable[..., Any], *args: Any) -> None:
        """Submit the task once for each process and drop its results and errors."""
        for _ in range(self._count):
            self._pool.schedule(task, args=args, timeout=BEGIN_S)

    def restart(self) -> None:
        """End every process and start new ones, after an error that poisons its process."""
        self.close()
        self._pool = self._fresh()

    def close(self) -> None:
        """End every process now."""
        self._pool.stop()
        self._pool.join()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Solo:
    """One process that runs one task at a time, with a round trip below a millisecond, unlike a
    pool's. When it is lost, its owner starts another."""

    def __init__(self) -> None:
        context = _context()
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._owed = 0  # results of tasks that were begun and not waited for

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        return int(self._process.pid or 0)

    def begin(self, task: Callable[..., Any], *args: Any) -> None:
        """Start a task without waiting; the next `ask` drops its result or error."""
        with suppress(OSError):  # it died: the next `ask` raises that
            self._ours.send((task, args))
            self._owed += 1

    def settle(self) -> None:
        """Wait until all tasks that were begun are over. Raises TimeoutError or ChildProcessError,
        and the process is gone then."""
        while self._owed:
            self._reply(BEGIN_S)
            self._owed -= 1

    def ask(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        """Run a task and return its result.

        Raises what the task raised, TimeoutError after `timeout_s` seconds, or ChildProcessError
        when the process died; after the last two the process is gone.
        """
        self.settle()
        try:
            self._ours.send((task, args))
        except OSError:
            raise self._died() from None
        right, result = self._reply(timeout_s)
        if right:
            return result
        raise result

    def _reply(self, timeout_s: float) -> tuple[bool, Any]:
        wait([self._ours, self._process.sentinel], timeout_s)
        try:
            if self._ours.poll():
                result: tuple[bool, Any] = self._ours.recv()
                return result
        except (EOFError, OSError):
            raise self._died() from None
        if self._process.is_alive():
            self.end()
            raise TimeoutError(f"took longer than {timeout_s:.1f} s")
        raise self._died()

    def _died(self) -> ChildProcessError:
        self._process.join(KILLED_S)
        return ChildProcessError(f"its process died (exit code {self._process.exitcode})")

    def end(self) -> None:
        """Kill the process and wait until the driver has released it."""
        self._process.kill()
        self._process.join(KILLED_S)
        self._ours.close()


BEGIN_S = 180.0  # the first import of torch on a cold disk took 60 s
KILLED_S = 10.0  # the driver takes seconds to tear down a kernel that never ends


def cpu_count() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _context() -> Any:
    """Return the context of new processes: a fork server that has imported PRELOADED."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    _start_server()
    return context


def _serve(theirs: Any) -> None:
    """Serve the tasks of a `Solo` until its pipe is closed."""
    _begin(False)
    with suppress(EOFError, OSError):
        while True:
            task, args = theirs.recv()
            try:
                reply = (True, guarded(task, *args))
            except Exception as error:
                reply = (False, error)
            try:
                theirs.send(reply)
            except (TypeError, AttributeError, PicklingError) as error:
                theirs.send((False, RuntimeError(f"an answer that cannot travel: {error}")))


def guarded(task: Callable[..., Any], *args: Any) -> Any:
    """Run a task and return its result. Raises UserCodeExit in place of an exception that is meant
    to end a process, such as that of `sys.exit`: it would end the parent's threads as well."""
    with user_code(task.__name__):
        return task(*args)


def _start_server() -> None:
    """Start the fork server with SIGINT blocked and stderr closed: it imports for a second or two,
    and its messages when it is ended meanwhile mean nothing."""
    if not hasattr(signal, "pthread_sigmask"):
        return
    from multiprocessing import forkserver

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        forkserver.ensure_running()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(interpreted: bool) -> None:
    """Initialise a worker before Triton is imported."""
    # messages of ptxas, which may hold whole PTX listings, reach the parent as exceptions
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_end_with_parent, daemon=True).start()
    limit_memory()
    watch(Marks())  # Ctrl-C is the parent's: any KeyboardInterrupt here is raised by user code
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # 3.10 flips the default
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


def _end_with_parent() -> None:
    """End this process when its parent is gone: a parent that was killed cannot end its workers."""
    if (parent := multiprocessing.parent_process()) is not None:
        wait([parent.sentinel])
        os._exit(1)


def _pass_on(done: Any, given: Future[Any], timeout_s: float) -> None:
    """Set the result on `given`, with pebble's own exceptions as standard ones."""
    from pebble import ProcessExpired

    if done.cancelled():
        given.cancel()
    if not given.set_running_or_notify_cancel():  # it was cancelled
        return
    error = done.exception()
    if isinstance(error, ProcessExpired):
        given.set_exception(ChildProcessError(f"its process died (exit code {error.exitcode})"))
    elif isinstance(error, TimeoutError):
        given.set_exception(TimeoutError(f"took longer than {timeout_s:.0f} s"))
    elif error is not None:
        given.set_exception(error)
    else:
        given.set_result(done.result())
