"""Write files atomically: a reader sees the old content or the new one, also after a kill -9.

Only a regular file is replaced. A FIFO, a device or a descriptor (`/dev/stdout`) is written to, and
a link stays a link: its target is written.
"""

import contextlib
import errno
import io
import math
import os
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from workbench.spec import WorkbenchError

OTHER_END_S = 5.0  # for a process that opens the other end of a FIFO
POLL_S = 0.05
STDOUT = Path("-")  # standard output, as a file to write


class FileError(WorkbenchError):
    """A file cannot be written: `path` is the file, `reason` the system's words in lower case."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path} cannot be written ({reason}); name a file that you may write.")


def write_file(path: Path, content: str | bytes, make_folder: bool = False) -> None:
    """Write one file; see `write_files`."""
    write_files([(path, content)], make_folder)


def write_files(files: Sequence[tuple[Path, str | bytes]], make_folders: bool = False) -> None:
    """Write all of the files or none. Text is written as UTF-8. A missing folder is an error unless
    `make_folders`. The path `-` is standard output.

    Whatever is not a regular file is written to in place, after every regular file could be written
    and before the first one is replaced. Raises FileError where one of them cannot be written.
    """
    drafts: list[tuple[Path, Path, Path]] = []  # as named, draft, target
    at = Path()
    try:
        streams = []
        for at, content in files:
            data = content.encode("utf-8") if isinstance(content, str) else content
            if is_stream(at):
                streams.append((at, data))
            else:
                target = at.resolve()
                if make_folders:
                    target.parent.mkdir(parents=True, exist_ok=True)
                drafts.append((at, _draft(target), target))
                _write_draft(*drafts[-1][1:], data)
        for at, data in streams:
            _write_through(at, data)
        for named, draft, target in drafts:
            at = named
            draft.replace(target)
            _sync_folder(target.parent)
    except (OSError, RuntimeError, ValueError) as error:  # a link to itself, NUL in a name
        raise FileError(at, reason_of(error)) from None
    finally:
        for _, draft, _ in drafts:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)


def reason_of(error: Exception) -> str:
    """Return why a file could not be used, in the system's words and in lower case."""
    if isinstance(error, UnicodeEncodeError):
        return "the text or its name holds half a character"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


def readable_text(path: Path) -> str | None:
    """Return the text of a file, or None where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def real_path(path: Path) -> Path:
    """Return a path without links. Of links that lead to one another it stays as it is, where
    `Path.resolve` raises in Python 3.11 and 3.12."""
    return Path(os.path.realpath(path))


def is_stream(path: Path) -> bool:
    """Return whether a path is not a regular file and none to be made: a FIFO, a device, or what
    this process has as its output, also as `-`. A folder is none of these."""
    if path == STDOUT:
        return True
    try:
        status = path.stat()
    except (OSError, ValueError):
        return False
    if _descriptor(status) is not None:
        return True
    return not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))


def is_output(path: Path) -> bool:
    """Return whether a path is this process' standard output, so that nothing else belongs there:
    `-`, `/dev/stdout`, or the file that the shell redirects it to."""
    if path == STDOUT:
        return True
    try:
        status, ours = path.stat(), os.fstat(1)
    except (OSError, ValueError):
        return False
    return os.path.samestat(status, ours) and not _is_null(status)


def open_stream(path: Path) -> int:
    """Return a descriptor to write to a path for which `is_stream` holds. Raises OSError, also
    where nobody reads a FIFO."""
    if path == STDOUT:
        return os.dup(1)
    status = path.stat()
    if (ours := _descriptor(status)) is not None:
        return os.dup(ours)
    flags = os.O_WRONLY | getattr(os, "O_NOCTTY", 0)
    if not stat.S_ISFIFO(status.st_mode):
        return os.open(path, flags)
    end = time.monotonic() + OTHER_END_S
    while True:
        try:
            handle = os.open(path, flags | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > end:
                raise OSError(errno.ENXIO, "no process reads from it") from None
            time.sleep(POLL_S)
        else:
            os.set_blocking(handle, True)
            return handle


def open_to_read(path: Path | str) -> BinaryIO:
    """Return a file that is open to be read, as bytes; what comes through a FIFO as a whole. Raises
    OSError, also where nobody writes to a FIFO: a plain `open` would wait for ever."""
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        return open(path, "rb")
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(handle, "rb", buffering=0) as file:
        first, end = file.read(1), time.monotonic() + OTHER_END_S
        while first == b"":  # nobody has opened it to write; None where somebody has
            if time.monotonic() > end:
                raise OSError(errno.ENXIO, "no process writes to it")
            time.sleep(POLL_S)
            first = file.read(1)
        os.set_blocking(handle, True)
        return io.BytesIO((first or b"") + file.readall())


def _descriptor(status: os.stat_result) -> int | None:
    """Return the number of the standard output or error if this is its file."""
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(status, os.fstat(number)):
                return number
    return None


def _is_null(status: os.stat_result) -> bool:
    try:
        return os.path.samestat(status, os.stat(os.devnull))
    except OSError:
        return False


def _draft(target: Path) -> Path:
    """Return the name of a draft beside its target, since a rename is atomic only within one file
    system. The name is random, so that nobody can have put a link there."""
    start = os.fsencode(target.name)[:200].decode("utf-8", "ignore")
    return target.with_name(f".{start}.{os.urandom(4).hex()}.tmp")


def _write_draft(draft: Path, target: Path, data: bytes) -> None:
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    if target.exists() and not os.access(target, os.W_OK):  # a rename would not ask
        raise PermissionError(errno.EACCES, "permission denied")
    with draft.open("xb") as file:
        with contextlib.suppress(FileNotFoundError):  # of a new file the umask decides
            os.chmod(draft, stat.S_IMODE(target.stat().st_mode))
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a new name survive a power cut as well, where folders can be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_through(path: Path, data: bytes) -> None:
    sys.stdout.flush()  # what was printed before comes first
    handle = open_stream(path)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(handle, rest) :]
    finally:
        os.close(handle)


def history_file() -> Path:
    """Return the path of the default database. Neither it nor its folder may exist yet."""
    from platformdirs import user_data_dir

    return Path(user_data_dir("kernel-workbench", appauthor=False)) / "history.db"


def finite_numbers(value: Any) -> Any:
    """Return plain data for strict JSON: None for each number that is not finite, keys as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite_numbers(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_numbers(inner) for inner in value]
    return value
