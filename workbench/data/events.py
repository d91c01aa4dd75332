"""The JSONL stream: one event a line, on disk before the next begins.

Each line is a JSON object with `type` first. A process that is killed loses at most the line that
it was writing; a reader keeps every good line of a damaged file and reports what is wrong with the
others.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast

from workbench.data.closing import Closing
from workbench.data.files import is_stream, open_stream, open_to_read, reason_of
from workbench.data.plain import check_fields
from workbench.data.record import (
    Comparison,
    Failure,
    Finding,
    Profile,
    Record,
    Run,
    decode_plain,
    encode_plain,
)
from workbench.spec import WorkbenchError

RunState = Literal["complete", "interrupted", "failed"]


class EventsError(WorkbenchError):
    """The events file cannot be opened, written or read; the message says what to do next."""


@dataclass(frozen=True)
class KernelDispatched:
    """One kernel that a call of a config launches: its geometry and its occupancy. Fields are None
    where the backend does not report them."""

    at: str  # ISO 8601 with offset
    run: str
    kernel: str  # the Impl's title: "matmul.tiles"
    config: Mapping[str, int]
    grid: tuple[int, ...]  # blocks
    threads: int  # per block
    shared_bytes: int | None  # per block
    registers: int | None  # per thread
    occupancy: float | None  # resident warps over the most that fit, 0 to 1
    op_path: str = ""  # of its steps, without the phase: the start of their `op_path`
    function: str = ""  # name of the device function
    launches: int | None = None  # of this function on this grid, in one call


@dataclass(frozen=True)
class OpCompleted:
    """One step that took time, in microseconds of one call. `op_path` names it from the engine
    down: `sweep/tile_size/matmul/tiles/128x256x64, 8 warps, 3 stages/first_pass`.

    A time by the host's clock (the method `host`) is `host_us` and no `device_us`: it lasts from
    the launch until the device is idle. With other methods `host_us` is the time to issue a call.
    """

    at: str
    run: str
    op_path: str
    device_us: float | None  # None when no device took part or its time is not known
    host_us: float | None
    predicted: bool  # the time comes from the analytic model, not from a clock: `predicted_us`
    predicted_us: float | None = None
    method: str = ""  # by which it was measured: events, graph or host


@dataclass(frozen=True)
class RunFinished:
    """The end of a run that was not killed; a killed run has no such line."""

    at: str
    run: str
    state: RunState
    counts: Mapping[str, int]  # how many outcomes of each kind, in the engine's own words
    seconds: Mapping[str, float] = field(default_factory=dict)  # where the time went


Event = (
    Run
    | Record
    | Failure
    | Comparison
    | Finding
    | Profile
    | KernelDispatched
    | OpCompleted
    | RunFinished
)

_OWN: Mapping[str, type] = {t.__name__: t for t in (KernelDispatched, OpCompleted, RunFinished)}
_RECORDS = frozenset(t.__name__ for t in (Run, Record, Failure, Comparison, Finding, Profile))


class EventLog(Closing):
    """Append events to a file; with None as path they are dropped. A context manager that closes
    itself.

    Missing parent folders are created. Raises EventsError where the file cannot be opened.
    """

    def __init__(self, path: Path | str | None) -> None:
        self._path = None if path is None else Path(path)
        self._is_torn = False
        self._file: int | None = None
        if self._path is None:
            return
        try:
            if is_stream(self._path):
                self._file = open_stream(self._path)
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # O_APPEND: two processes on one file add whole lines, never overwrite each other.
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
            self._file = os.open(self._path, flags, 0o666)
            self._is_torn = _ends_torn(self._file)
        except OSError as error:
            self.close()
            raise EventsError(_sentence("open", self._path, error)) from None

    def write(self, event: Event) -> None:
        """Append one event; on return the operating system has the whole line.

        Raises EventsError where it could not be written. Earlier lines stay as they were, and the
        next event starts on a new line. Raises ValueError after `close`.
        """
        if self._path is None:
            return
        if self._file is None:
            raise ValueError(f"the events file {self._path} is closed")
        line = line_of(event)
        try:
            self._append(b"\n" + line if self._is_torn else line)
        except OSError as error:
            raise EventsError(_sentence("write", self._path, error)) from None

    def _append(self, line: bytes) -> None:
        assert self._file is not None
        rest = memoryview(line)
        while rest:  # a disk that fills takes a part first and refuses the rest
            rest = rest[os.write(self._file, rest) :]
            self._is_torn = bool(rest)

    def close(self) -> None:
        """Close the file. Nothing is buffered, so nothing can be lost here."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


@dataclass(frozen=True)
class BadLine:
    """A line that is not an event: its number, counted from 1, and the reason."""

    number: int
    reason: str


@dataclass(frozen=True)
class Events:
    """Contents of a file, in its order."""

    events: list[Event]
    bad: list[BadLine]


def read(path: Path | str) -> Events:
    """Return every good line of a file as an event, and every bad one with its reason.

    Raises EventsError where the file cannot be read at all.
    """
    result = Events([], [])
    for each in iterate(path):
        (result.bad if isinstance(each, BadLine) else result.events).append(each)  # type: ignore
    return result


def iterate(path: Path | str, word: bytes = b"") -> Iterator[Event | BadLine]:
    """Yield every line of a file, as `read` returns them, without holding the file in memory. Lines
    without `word` are passed over.

    Raises EventsError where the file cannot be read at all.
    """
    try:
        with open_to_read(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip() and word in line:
                    yield _parse_line(number, line)
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        raise EventsError(_sentence("read", Path(path), error)) from None


def _parse_line(number: int, line: bytes) -> Event | BadLine:
    try:
        return event_of(line)
    except (ValueError, TypeError, RecursionError, ArithmeticError, AttributeError) as error:
        torn = "" if line.endswith(b"\n") else "the line is cut short: "
        return BadLine(number, torn + _reason(error))


def event_of(line: bytes) -> Event:
    """Return the event of one line. Raises ValueError, TypeError, RecursionError, ArithmeticError
    or AttributeError where it is none."""
    plain = json.loads(line.decode("utf-8"))
    name = plain.get("type") if isinstance(plain, dict) else None
    if not isinstance(name, str):
        raise ValueError("not a JSON object with a type")
    if name not in _OWN and name not in _RECORDS:
        raise ValueError(f"unknown event type {name!r}")
    event: Event = _own(_OWN[name], plain) if name in _OWN else decode_plain(plain)
    return cast(Event, check_fields(event))


def _own(restored: type, plain: Mapping[str, Any]) -> Any:
    try:
        # a field with a default is later than the first files
        without = {f.name for f in fields(restored) if f.default is f.default_factory is MISSING}
        needed = [f.name for f in fields(restored) if f.name in plain or f.name in without]
        return restored(**{name: decode_plain(plain[name]) for name in needed})
    except KeyError as error:
        raise ValueError(f"a {restored.__name__} lacks the field {error}") from None


def line_of(event: Event) -> bytes:
    """Return an event as one line of JSON in ASCII."""
    if type(event).__name__ in _OWN:
        plain = {f.name: encode_plain(getattr(event, f.name)) for f in fields(event)}
        plain = {"type": type(event).__name__, **plain}
    else:
        plain = encode_plain(event)
    return json.dumps(plain, separators=(",", ":"), allow_nan=True).encode("ascii") + b"\n"


def _ends_torn(file: int) -> bool:
    """Return whether the last byte is not a line's end, as the previous writer was killed in it."""
    size = os.fstat(file).st_size
    if size == 0:
        return False
    os.lseek(file, -1, os.SEEK_END)
    return os.read(file, 1) != b"\n"


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at column {error.colno}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error)


_NEXT: Mapping[int, str] = {
    errno.ENOSPC: "free some space or choose another folder, then run the same command again",
    errno.EDQUOT: "free some of your quota or choose another folder, then run it again",
    errno.EFBIG: "raise the limit of a file's size (`ulimit -f`) or choose another folder",
    errno.EISDIR: "give the name of a file in it",
    errno.ENOENT: "check the name",
    errno.ENOTDIR: "a part of that path is a file: choose another folder",
    errno.EEXIST: "a part of that path is a file: choose another folder",
}


def _sentence(verb: str, path: Path, error: OSError | ValueError) -> str:
    what = reason_of(error)
    then = _NEXT.get(
        getattr(error, "errno", None) or 0, "choose a file in a folder that you may write to"
    )
    return f"cannot {verb} the events file {path}: {what}; {then}"
