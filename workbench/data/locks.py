"""Locks between processes of one machine: of a GPU, and of a sweep whose times are predicted."""

import errno
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from workbench.spec import WorkbenchError

POLL_S = 0.1


class LockBusy(WorkbenchError):
    """Another process holds a lock, and waiting timed out or is impossible."""


@dataclass(frozen=True)
class Lock:
    """A thing that one process holds at a time: its kind, a name that tells it apart, and its title
    in messages, `the GPU`."""

    kind: str
    name: str
    title: str
    stays: bool = True  # its file, of which there are few; others are removed by their last holder

    @property
    def path(self) -> Path:
        """Path of the lock, in the folder for temporary files. It holds a hash, as a name may
        identify a machine and others may list this folder."""
        digest = hashlib.sha256(os.fsencode(self.name)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"kernel-workbench-{self.kind}-{digest}.lock"


@contextmanager
def hold_lock(
    lock: Lock, on_wait: Callable[[str], None], timeout_s: float | None = None
) -> Iterator[None]:
    """Hold a lock while the block lasts; yields nothing.

    `on_wait(message)` is called once for each process that is waited for. The lock is advisory and
    shared by all users of the machine. It ends with its process, also when that is killed. Raises
    LockBusy after `timeout_s` seconds of waiting, at once when this process already holds it, or
    when its file cannot be opened.
    """
    import fcntl

    handle = _open_file(lock)
    try:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        heard: int | None = 0  # no process has this id
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if lock.stays or _is_there(handle, lock.path):
                    break
                os.close(handle)  # its last holder removed it
                handle = _open_file(lock)
                continue
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise LockBusy(f"the lock of {lock.title} cannot be taken: {error}") from None
            holder = _holder(handle)
            if holder == os.getpid():
                raise LockBusy(f"this process holds {lock.title} already: end that run first")
            named = f"process {holder}" if holder else "another process"
            if end is not None and time.monotonic() >= end:
                raise LockBusy(
                    f"{named} still holds {lock.title} after {timeout_s:.0f} s: end it or wait"
                )
            if holder != heard:
                on_wait(f"waiting for {lock.title}, which {named} holds")
                heard = holder
            time.sleep(POLL_S)
        _sign(handle, os.getpid())
        try:
            yield
        finally:
            _sign(handle, None)
            if not lock.stays:
                lock.path.unlink(missing_ok=True)  # while it is held
    finally:
        os.close(handle)  # releases the lock


def remove_stale_file(lock: Lock) -> None:
    """Remove the file of a lock whose holder was killed; leave that of one that is held."""
    if lock.path.exists():
        with suppress(LockBusy), hold_lock(lock, lambda _: None, timeout_s=0):
            pass


def _open_file(lock: Lock) -> int:
    """Open the file for all users."""
    path = lock.path
    try:
        with suppress(FileNotFoundError):
            # Without O_CREAT: in a folder like /tmp, Linux refuses that on another user's file.
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        with suppress(FileExistsError):  # made by another process in between
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
            os.fchmod(handle, 0o666)  # whatever the umask
            return handle
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError as error:
        reason = error.strerror
        raise LockBusy(f"the lock of {lock.title}, {path}, cannot be opened: {reason}") from None


def _is_there(handle: int, path: Path) -> bool:
    """Return whether a path is still the file that is open."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _holder(handle: int) -> int | None:
    """Return the process that signed the file; None in the moment before it has."""
    text = os.pread(handle, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _sign(handle: int, pid: int | None) -> None:
    os.ftruncate(handle, 0)
    if pid is not None:
        os.pwrite(handle, str(pid).encode(), 0)
