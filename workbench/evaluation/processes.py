"""The processes of an evaluation, by what they may run."""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from workbench.backend.checking import Checks
from workbench.backend.workers import Workers, cpu_count
from workbench.data.frozen import freeze

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4  # of Linux' prctl


def begin_trusted_process(sources: Mapping[str, bytes]) -> None:
    """Begin a process that runs no code under test: it gets the files of the Spec as they were, and
    other processes of this user cannot read its memory, unless they are root's."""
    freeze(sources)
    _set_dumpable(0)


@contextmanager
def hidden_memory() -> Iterator[None]:
    """Return a context manager in which the kernel keeps this process's memory and descriptors from
    others of the same user. Afterwards a debugger may read a notebook's process as before."""
    before = _set_dumpable(0)
    try:
        yield
    finally:
        _set_dumpable(before)


def _set_dumpable(value: int) -> int:
    """Set whether others of this user may read this process, and return what it was before."""
    before = 0
    with suppress(OSError, AttributeError):  # no Linux
        before = ctypes.CDLL(None).prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, value, 0, 0, 0)
    return before


class Processes:
    """Processes that import the Spec only (`trusted`, `builders`), and those that may run the code
    under test (`recorders`, `checks`, `compilers`)."""

    def __init__(
        self, sources: Mapping[str, bytes] | None = None, own: Mapping[str, bytes] | None = None
    ) -> None:
        """Start none of them before it is needed. `sources` are the files of the Spec and `own`
        those under test, as they are before any of them is imported."""
        self.sources = sources or {}
        trusting, running = (begin_trusted_process, self.sources), (freeze, own or {})
        self.trusted = Checks(1, first=trusting)
        self.builders = Workers(1, first=trusting)
        self.recorders = Workers(1, first=running)
        self.checks = Checks(1, first=running, checker=self.trusted.checker)
        self.compilers = Workers(cpu_count(), first=running)

    def close(self) -> None:
        """End all processes."""
        for each in (self.compilers, self.recorders, self.builders, self.checks, self.trusted):
            each.close()
