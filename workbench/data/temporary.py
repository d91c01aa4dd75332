"""Temporary folders that a process which was killed leaves to the next one to remove.

Each holds a file that is locked as long as its process lives. A lock ends with its process however
that ends, so a folder whose lock is free is a leftover.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from multiprocessing import current_process
from pathlib import Path
from tempfile import gettempdir, mkdtemp

PREFIX = "workbench-tmp-"  # of folders among other programs' own
LOCK = "owner.lock"
SOCKET_MOST = 70  # letters of a folder; the path of a socket below it has 32 more, of 104 in all


@contextmanager
def temporary_folder(home: Path | None = None, prefix: str = PREFIX) -> Iterator[Path]:
    """Return a context manager of a new folder in `home`, by default that of all temporary files.

    It is removed at the end of the block. The first call of a process for a `home` and a `prefix`
    removes the folders of processes that were killed.
    """
    within = Path(home or gettempdir()).resolve()
    _remove_leftovers_once(within, prefix, os.getpid())
    folder = Path(mkdtemp(prefix=prefix, dir=within))
    lock = lock_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextmanager
def processes_in_a_folder() -> Iterator[None]:
    """Return a context manager in which the processes that this one starts have a temporary folder
    of their own, so that what they leave when they are killed (a compiler's files, the sockets of
    multiprocessing) is removed with it, at the end or by the next command.

    The folder of this process stays what it is: locks that several commands share are in it.
    Leftovers are looked for at the end once more: a worker of a killed command may have lived on
    for the seconds of its task while this one began.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # no folder can be written to: they do without
            gettempdir()  # decides now, before the variable changes
            folder = stack.enter_context(temporary_folder())
            os.environ["TMPDIR"] = str(folder)
            if len(str(folder)) < SOCKET_MOST:
                current_process()._config["tempdir"] = str(folder)  # type: ignore[attr-defined]
            stack.callback(remove_leftovers, folder.parent, PREFIX)
        yield


@cache
def _remove_leftovers_once(home: Path, prefix: str, process: int) -> None:
    """Remove the leftovers in a folder, once in each process."""
    remove_leftovers(home, prefix)


def remove_leftovers(home: Path, prefix: str = PREFIX) -> None:
    """Remove the folders of processes that were killed."""
    for folder in home.glob(f"{prefix}*"):
        if (lock := lock_of_dead(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def lock_folder(folder: Path) -> int | None:
    """Return the descriptor of a new lock in a folder, held until it is closed or its process ends;
    None where the system has no locks. It is locked before it has its name, so that nobody takes it
    for a dead one."""
    try:
        import fcntl
    except ImportError:
        return None
    draft = folder / f"{LOCK}.new"
    handle = os.open(draft, os.O_RDWR | os.O_CREAT, 0o600)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.rename(folder / LOCK)
    return handle


def lock_of_dead(folder: Path) -> int | None:
    """Return the lock of a leftover, held so that no other process removes it at the same time;
    None if its process lives, or if the folder is none of this user's."""
    try:
        import fcntl

        if folder.is_symlink() or folder.lstat().st_uid != os.getuid():
            return None
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
