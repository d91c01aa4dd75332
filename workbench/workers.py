"""Processes that do the work which may hang or die: compiling, interpreting, measuring.

The parent never compiles and never touches a GPU, so whatever a config does to its process costs
that config only. A task that outlasts its time ends its process; the others go on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

PRELOADED = ["numpy", "torch"]  # imported once (1.5 s), then inherited by every worker

LOST = (TimeoutError, ChildProcessError)


class Workers:
    """A pool of processes. `close` or the end of a `with` block ends them all."""

    def __init__(self, count: int, *, interpreted: bool = False) -> None:
        """`interpreted` workers run Triton kernels in its interpreter, on the CPU."""
        self._count, self._interpreted = count, interpreted
        self._pool = self._fresh()

    def _fresh(self) -> Any:
        import pebble

        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        _start_server()
        return pebble.ProcessPool(
            max_workers=self._count, context=context,
            initializer=_begin, initargs=(self._interpreted,),
        )  # fmt: skip

    def submit(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Future[Any]:
        """The task's result to come. It raises what the task raised, TimeoutError after
        `timeout_s` seconds of work, or ChildProcessError when the process died."""
        given: Future[Any] = Future()
        inner = self._pool.schedule(task, args=args, timeout=timeout_s)
        inner.add_done_callback(lambda done: _pass_on(done, given, timeout_s))
        return given

    def restart(self) -> None:
        """End every process and begin with fresh ones: after an error that poisons its process."""
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


def cpu_count() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_server() -> None:
    """Start the process that forks the workers, with Ctrl-C blocked and nothing to write to: it
    imports for a second or two, and its complaints when it is ended meanwhile mean nothing."""
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
    """First thing in a worker, before Triton is imported."""
    # ptxas' complaints, whole listings of PTX among them, reach the parent as exceptions
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()
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


def _end_with_parent() -> None:
    """A parent killed by force cannot end its workers, and one that hangs would stay for ever."""
    from multiprocessing.connection import wait

    if (parent := multiprocessing.parent_process()) is not None:
        wait([parent.sentinel])
        os._exit(1)


def _pass_on(done: Any, given: Future[Any], timeout_s: float) -> None:
    """pebble's own exceptions as standard ones."""
    from pebble import ProcessExpired

    if done.cancelled():
        given.cancel()
    if not given.set_running_or_notify_cancel():  # nobody waits for it any more
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
