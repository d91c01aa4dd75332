"""Files of a profiler under limits: plain, packed with gzip or zip, in a folder, or standard input.

Nothing is unpacked to a name that a file chooses, and nothing is unpacked without end.
"""

import gzip
import io
import os
import re
import stat
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

from workbench.spec import WorkbenchError
from workbench.traces.trace import plain

HEAD_BYTES = 64 * 1024
BLOCK_BYTES = 1 << 20
MIB, GIB = 1 << 20, 1 << 30


class ReadError(WorkbenchError):
    """A file cannot be read: one sentence that names the file, the place and the remedy."""


@dataclass(frozen=True)
class ReadLimits:
    """How much a file may ask for before it is refused."""

    streamed_bytes: int = 8 * GIB  # read event by event
    memory_bytes: int = 512 * MIB  # of a format that must be in memory as a whole
    operations_bytes: int = 64 * MIB  # of a file whose host operations are all kept
    ratio: int = 200  # unpacked bytes for one packed byte
    unpacked_bytes: int = 16 * GIB
    members: int = 1000  # of a zip file or a folder
    depth: int = 200  # of nested JSON
    field_bytes: int = MIB  # of one CSV field or one line
    events: int = 20_000_000
    seconds: float = 600.0
    query_seconds: float = 60.0  # of one query of SQLite


@dataclass
class Source:
    """One file to read. `place` is where the reader stands, for error sentences."""

    name: str  # base name, as messages show it
    path: Path
    limits: ReadLimits
    opener: Callable[[], IO[bytes]]
    packed_bytes: int  # on disk, of this file alone; 0 if unknown
    is_packed: bool = False
    is_folder: bool = False
    range_name: str | None = None  # host operations of this name are kept
    member: str = ""  # whole name inside a zip file
    place: str = ""
    is_cut: bool = False  # packed with gzip, and the end of it is missing
    start_s: float = field(default_factory=time.monotonic)
    _head: bytes | None = None
    _events: int = 0

    @property
    def keeps_operations(self) -> bool:
        """Whether all host operations are kept: most events of a trace are some, so that a large
        file keeps those of a requested range alone. Packed traces shrink about tenfold."""
        size = self.packed_bytes * (10 if self.is_packed else 1)
        return size <= self.limits.operations_bytes

    @property
    def head(self) -> bytes:
        """First 64 kB of the content."""
        if self._head is None:
            if self.is_folder:
                return b""
            with self.open() as file:
                self._head = file.read(HEAD_BYTES)
        return self._head

    @property
    def head_text(self) -> str:
        """First 64 kB as text, empty for a binary file."""
        return decode_text(self.head) if is_text(self.head) else ""

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the content, unpacked. Yields a stream. Raises ReadError beyond the limits."""
        try:
            with self.opener() as file:
                yield io.BufferedReader(_Limited(file, self), BLOCK_BYTES)
        except (zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, EOFError) as error:
            self.fail(f"its packed data is damaged, {first_words(error)}", "pack it again")
        except (OSError, NotImplementedError, RuntimeError) as error:
            self.fail(first_words(error), "check that file")

    def blocks(self) -> Iterator[bytes]:
        """Yield the content in blocks of a megabyte."""
        with self.open() as file:
            while block := file.read(BLOCK_BYTES):
                yield block

    def content(self) -> bytes:
        """Return the whole content. Raises ReadError where it is larger than memory may hold."""
        most = self.limits.memory_bytes
        with self.open() as file:
            data = file.read(most + 1)
        if len(data) > most:
            self.fail(f"it is larger than {most // MIB} MiB", "read a shorter recording")
        return data

    def text(self) -> str:
        """Return the whole content as text; see `content`."""
        return decode_text(self.content())

    def lines(self) -> Iterator[str]:
        """Yield the lines with their ends; `place` is the line. Raises ReadError for one that is
        longer than the limit."""
        encoding = "utf-16" if self.head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        most = self.limits.field_bytes * 4
        with self.open() as raw:
            file = io.TextIOWrapper(raw, encoding, errors="replace", newline="")
            number = 0
            while line := file.readline(most + 1):
                number += 1
                self.place = f"line {number}"
                if len(line) > most:
                    self.fail(f"it is longer than {most // MIB} MiB", "check that file")
                yield line.replace("\0", "")

    @contextmanager
    def file(self) -> Iterator[Path]:
        """Yield a path on disk with the content; of packed content that of a temporary copy."""
        if not self.is_packed:
            yield self.path
            return
        with tempfile.TemporaryDirectory(prefix="workbench-read-") as folder:
            path = Path(folder) / "content"
            with path.open("wb") as copy:
                for block in self.blocks():
                    copy.write(block)
            yield path

    def count(self, more: int = 1) -> None:
        """Count events or rows. Raises ReadError beyond the limit of events or of time."""
        self._events += more
        if self._events > self.limits.events:
            self.fail(f"it has more than {self.limits.events:,} events", "record fewer steps")
        if more > 1 or self._events % 4096 == 0:
            self.check_time()

    def check_time(self) -> None:
        """Raise ReadError where the file took longer than the limit."""
        if time.monotonic() - self.start_s > self.limits.seconds:
            self.fail(f"it took longer than {self.limits.seconds:g} s", "record fewer steps")

    def fail(self, reason: str, remedy: str) -> NoReturn:
        """Raise ReadError with the name of the file, the place and the remedy."""
        place = f", {self.place}" if self.place else ""
        sentence = f"{self.name}{place}: {plain(reason)}; {remedy}."
        raise ReadError(" ".join(sentence.split())[:600])


class _Limited(io.RawIOBase):
    """A stream that ends with a ReadError beyond the limits of its source."""

    def __init__(self, file: IO[bytes], source: Source) -> None:
        self.inner, self.source, self.bytes_read = file, source, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:  # `read` would lose what was unpacked before the end
            data = self.inner.read1(len(buffer))  # type: ignore[attr-defined]
        except EOFError:
            data, self.source.is_cut = b"", True
        buffer[: len(data)] = data
        self.bytes_read += len(data)
        self._check()
        return len(data)

    def _check(self) -> None:
        source, limits = self.source, self.source.limits
        most = limits.streamed_bytes
        if source.is_packed:
            packed = max(source.packed_bytes, 1)
            if self.bytes_read > MIB and self.bytes_read > packed * limits.ratio:
                source.fail(
                    f"it unpacks to more than {limits.ratio} times its size",
                    "unpack it yourself if you trust it",
                )
            most = min(most, limits.unpacked_bytes)
        if self.bytes_read > most:
            source.fail(f"it is larger than {most / GIB:g} GiB", "read a shorter recording")
        source.check_time()


def head_matches(pattern: re.Pattern[str]) -> Callable[[Source], bool]:
    """Return the `sniff` of a format: whether the first 64 kB of a file hold a pattern."""
    return lambda source: pattern.search(source.head_text) is not None


def first_words(error: BaseException) -> str:
    """Return an error as a few words in one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:160].rstrip(".")


def is_text(data: bytes) -> bool:
    """Return whether bytes look like text in ASCII, UTF-8 or UTF-16."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return True
    return b"\0" not in data[:4096]


def decode_text(data: bytes) -> str:
    """Return bytes as text: UTF-16 with its mark, else UTF-8 with � for what is none."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    return data.decode("utf-8-sig", "replace")


def sources(path: Path, limits: ReadLimits, range_name: str | None = None) -> list[Source]:
    """Return what there is to read under a path: `-` is standard input. Raises ReadError where the
    path cannot be read, or where it holds too much."""
    if str(path) == "-":
        return _list_file(_kept_input(limits), "standard input", limits, range_name)
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise ReadError(f"{path} cannot be read ({first_words(error)}); name a file.") from None
    if stat.S_ISDIR(status.st_mode):
        return _list_folder(path, limits, range_name)
    return _list_file(path, plain(path.name), limits, range_name)


def _kept_input(limits: ReadLimits) -> Path:
    """Return a temporary file with the content of standard input; it ends with the process."""
    import atexit

    handle, name = tempfile.mkstemp(prefix="workbench-read-")
    atexit.register(lambda: Path(name).unlink(missing_ok=True))
    byte_count = 0
    with os.fdopen(handle, "wb") as copy:
        while block := sys.stdin.buffer.read(BLOCK_BYTES):
            byte_count += len(block)
            if byte_count > limits.streamed_bytes:
                raise ReadError("standard input is too long; read a shorter recording.")
            copy.write(block)
    return Path(name)


BUNDLES = (".gputrace", ".trace", ".xcresult")


def _list_folder(folder: Path, limits: ReadLimits, range_name: str | None) -> list[Source]:
    if folder.name.lower().endswith(BUNDLES):
        name = plain(folder.name)
        return [Source(name, folder, limits, io.BytesIO, 0, is_folder=True)]
    result: list[Source] = []
    for path in sorted(folder.rglob("*")):
        if any(part.lower().endswith(BUNDLES) for part in path.relative_to(folder).parts[:-1]):
            continue
        if path.is_dir() and path.name.lower().endswith(BUNDLES):
            result += _list_folder(path, limits, range_name)
        elif path.is_file() and not path.is_symlink():
            result += _list_file(path, plain(path.name), limits, range_name)
        if len(result) > limits.members:
            raise ReadError(
                f"{plain(folder.name)} holds more than {limits.members} files; name those to read."
            )
    if not result:
        raise ReadError(f"{folder} holds no file; name a file.")
    return result


def _list_file(path: Path, name: str, limits: ReadLimits, range_name: str | None) -> list[Source]:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        raise ReadError(f"{name} cannot be read ({first_words(error)}); check it.") from None
    if magic == b"PK\x03\x04":
        return _list_zip(path, name, limits, range_name)
    is_packed = magic[:2] == b"\x1f\x8b"
    opener: Callable[..., Any] = gzip.open if is_packed else Path.open
    opened = partial(opener, path, "rb")
    return [Source(name, path, limits, opened, size, is_packed, range_name=range_name)]


def _list_zip(path: Path, name: str, limits: ReadLimits, range_name: str | None) -> list[Source]:
    try:
        with zipfile.ZipFile(path) as packed:
            members = [member for member in packed.infolist() if not member.is_dir()]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        raise ReadError(
            f"{name} is not a whole zip file ({first_words(error)}); copy it again."
        ) from None
    if len(members) > limits.members:
        raise ReadError(f"{name} holds more than {limits.members} files; unpack it yourself.")
    if sum(member.file_size for member in members) > limits.unpacked_bytes:
        size = limits.unpacked_bytes // GIB
        raise ReadError(f"{name} unpacks to more than {size} GiB; unpack it yourself.")
    for member in members:
        _check_member(name, member)
    return [_member(path, name, member, limits, range_name) for member in members]


def _check_member(name: str, member: zipfile.ZipInfo) -> None:
    inside = plain(member.filename)[:80]
    parts = member.filename.replace("\\", "/").split("/")
    if ".." in parts or parts[0] == "" or ":" in parts[0]:
        raise ReadError(
            f"{name} holds {inside}, which lies outside of its folder; do not unpack it."
        )
    if member.flag_bits & 1:
        raise ReadError(f"{name} holds {inside}, which needs a password; unpack it yourself.")
    if member.filename.lower().endswith(".zip"):
        raise ReadError(f"{name} holds another zip file, {inside}; unpack the outer one yourself.")


def _member(
    path: Path, name: str, member: zipfile.ZipInfo, limits: ReadLimits, range_name: str | None
) -> Source:
    @contextmanager
    def open_member() -> Iterator[IO[bytes]]:
        with zipfile.ZipFile(path) as packed, packed.open(member) as file:
            if file.peek(2)[:2] == b"\x1f\x8b":  # type: ignore[attr-defined]
                with gzip.open(file, "rb") as inner:
                    yield inner  # type: ignore[misc]
            else:
                yield file

    whole = f"{name}/{plain(member.filename.rsplit('/', 1)[-1])}"
    return Source(
        whole,
        path,
        limits,
        open_member,  # type: ignore[arg-type]
        member.compress_size,
        True,
        range_name=range_name,
        member=plain(member.filename),
    )
