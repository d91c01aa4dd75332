"""Results that the owner of a Mac sends back: one gzip file of events, with a checksum.

`pack` writes it, `unpack` takes it from a stranger: every line is one event of an allow-list, with
the fields of its type and no other, finite numbers, and short printable texts that hold no path.
One line that is not so refuses the file.
"""

import gzip
import hashlib
import json
import math
import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from workbench.data import mac
from workbench.data.events import Event, RunFinished, event_of, line_of
from workbench.data.files import reason_of
from workbench.data.record import Failure, Finding, Measured, Record, Run, type_named
from workbench.spec import WorkbenchError

ENGINE = "bring_back"
COMMAND = "python -m metal_shim.bring_back"
FULL, REHEARSAL = "full", "rehearsal"  # names of such runs
MOST_BYTES = 1 << 20  # of the file
MOST_UNPACKED = 32 << 20
MOST_TEXT = 600  # characters of one string
MOST_ITEMS = 4096  # of one list or object
REHEARSED = "it is a rehearsal, in which no GPU took part"
END = "BringBackEnd"  # the last line: how many lines come before it, and their checksum
TOP = (Run, Record, Failure, Finding, RunFinished)

# A path has a folder: at the start of a text or behind a separator, two parts or a home.
_PATH = re.compile(r"(?:^|[\s'\"(=:,])(?:~|[A-Za-z]:)?[\\/][\w.-]+[\\/]|\.\.[\\/]")
_KEY = re.compile(r"[A-Za-z][\w .,()-]{0,60}", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{24}", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]{8,15}(?:\+00:00|Z)", re.ASCII)


class ReturnedError(WorkbenchError, ValueError):
    """A file of results is not accepted; the message is one sentence."""


# Writing


def hide_paths(text: str) -> str:
    """Return a text with `...` in place of whatever looks like a path, and no other characters than
    printable ASCII."""
    plain = "".join(c if c.isprintable() and c.isascii() else "?" for c in text)
    while (match := _PATH.search(plain)) is not None:
        start = match.start() + (match[0][0] in " '\"(=:,\t")
        end = re.search(r"[\s'\",)]|$", plain[start:])
        assert end is not None  # the end of the text matches
        plain = plain[:start] + "..." + plain[start + max(end.start(), 3) :]
    return plain[:MOST_TEXT]


def pack(events: Iterable[Event], rehearsal: bool) -> bytes:
    """Return the file of these events. Raises ReturnedError where it would be too large."""
    lines = [line_of(event) for event in events]
    body = b"".join(lines)
    end = {
        "type": END,
        "lines": len(lines),
        "sha256": hashlib.sha256(body).hexdigest(),
        "rehearsal": rehearsal,
    }
    data = gzip.compress(body + json.dumps(end).encode("ascii") + b"\n", mtime=0)
    if len(data) > MOST_BYTES or len(body) > MOST_UNPACKED:
        raise ReturnedError(f"The results take {len(data)} bytes; {MOST_BYTES} are the most.")
    return data


# Reading


def unpack(path: Path, devices: Collection[str]) -> list[Event]:
    """Return the events of a file, its run first. `devices` are the names that a run may have.

    Raises ReturnedError where anything in it is not what `pack` writes, and where it is a
    rehearsal.
    """
    try:
        return _events(_unpack_file(path), devices)
    except ReturnedError as error:
        then = "ask for the file of a true run" if REHEARSED in str(error) else "ask for it again"
        raise ReturnedError(f"{path} was not imported: {error}; {then}.") from None


def _refuse(reason: str) -> NoReturn:
    raise ReturnedError(reason)


def _unpack_file(path: Path) -> bytes:
    """Return the unpacked bytes, of which there are at most MOST_UNPACKED."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        _refuse(f"it cannot be read ({reason_of(error)})")
    if len(data) > MOST_BYTES:
        _refuse(f"it is larger than {MOST_BYTES} bytes")
    stream = zlib.decompressobj(wbits=31)
    try:
        body = stream.decompress(data, MOST_UNPACKED)
    except zlib.error:
        _refuse("it is not a gzip file, or a damaged one")
    if stream.unconsumed_tail:
        _refuse(f"it unpacks to more than {MOST_UNPACKED >> 20} MB")
    if not stream.eof or stream.unused_data:
        _refuse("it is cut short, or something follows its end")
    return body


def _events(body: bytes, devices: Collection[str]) -> list[Event]:
    lines = body.splitlines(keepends=True)
    if not lines or not body.endswith(b"\n"):
        _refuse("its last line is missing")
    end = _plain(lines.pop(), len(lines) + 1)
    if not isinstance(end, dict) or set(end) != {"type", "lines", "sha256", "rehearsal"}:
        _refuse("its last line holds no checksum")
    before = b"".join(lines)
    if end["type"] != END or end["lines"] != len(lines):
        _refuse("lines of it are missing")
    if end["sha256"] != hashlib.sha256(before).hexdigest():
        _refuse("its checksum is wrong")
    if end["rehearsal"] is not False:
        _refuse(REHEARSED)
    events = [_event(number, line) for number, line in enumerate(lines, 1)]
    _check_run(events, devices)
    return events


def _plain(line: bytes, number: int) -> Any:
    """Return the value of a line of JSON in ASCII, without NaN, infinities and double keys."""

    def constant(word: str) -> NoReturn:
        raise ValueError(f"the number {word}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key twice")
        return dict(pairs)

    try:
        return json.loads(line.decode("ascii"), parse_constant=constant, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        _refuse(f"line {number} is not JSON of finite numbers")


def _event(number: int, line: bytes) -> Event:
    plain = _plain(line, number)
    if reason := _fault(plain):
        _refuse(f"line {number} holds {reason}")
    try:
        event = event_of(line)
    except (ValueError, TypeError, RecursionError, ArithmeticError, AttributeError):
        _refuse(f"line {number} is not an event")
    if not isinstance(event, TOP):
        _refuse(f"line {number} is an event of another kind")
    return event


def _fault(plain: Any) -> str | None:
    """Return what is not allowed in a value, or None."""
    if isinstance(plain, str):
        return text_fault(plain)
    if isinstance(plain, float) and not (math.isfinite(plain) and abs(plain) < 1e300):
        return "a number that is not finite"
    if isinstance(plain, int) and abs(plain) > 1 << 63:
        return "a number that is too large"
    if isinstance(plain, dict):
        return _object_fault(plain)
    if isinstance(plain, list):
        if len(plain) > MOST_ITEMS:
            return "a list that is too long"
        return next((fault for each in plain if (fault := _fault(each))), None)
    return None


def text_fault(text: str) -> str | None:
    """Return why a text is not allowed in such a file, or None."""
    if len(text) > MOST_TEXT or not text.isprintable() or not text.isascii():
        return "a text that is too long or not printable"
    return "a path" if _PATH.search(text) else None


def _object_fault(plain: Mapping[str, Any]) -> str | None:
    if len(plain) > MOST_ITEMS:
        return "an object that is too large"
    if "type" in plain:
        kind = RunFinished if plain["type"] == "RunFinished" else type_named(plain["type"])
        names = {f.name for f in fields(kind)} if kind else set()
        if set(plain) - {"type"} != names:
            return "other keys than its type has in this version"
    elif not all(_KEY.fullmatch(key) for key in plain):
        return "a key that is not a name"
    return next((fault for each in plain.values() if (fault := _fault(each))), None)


def _check_run(events: Sequence[Event], devices: Collection[str]) -> None:
    """Raise ReturnedError where the events are not one run of a known device, measured there."""
    runs = [event for event in events if isinstance(event, Run)]
    if len(runs) != 1 or events[0] is not runs[0]:
        _refuse("it does not begin with its one run")
    run = runs[0]
    if run.name == REHEARSAL:
        _refuse(REHEARSED)
    stated = (run.engine, run.name, run.command, run.source, run.files, run.predicted)
    if stated != (ENGINE, FULL, COMMAND, "", (), False):
        _refuse("its run is not one of metal_shim.bring_back")
    if run.device not in devices:
        _refuse("its device is not known")
    environment = run.environment
    if not (
        set(environment.settings) <= set(mac.SETTINGS)
        and set(environment.versions) <= set(mac.VERSIONS)
    ):
        _refuse("its fingerprint has keys that are not allowed")
    if not _MOMENT.fullmatch(run.started):
        _refuse("its run has no date")
    for event in events[1:]:
        if (reason := _event_fault(event, run)) is not None:
            _refuse(reason)


def _event_fault(event: Event, run: Run) -> str | None:
    """Return why an event is not of this run, or None."""
    if not isinstance(event, Record | Failure | Finding | RunFinished) or event.run != run.id:
        return "an event is not of its run"
    if not _MOMENT.fullmatch(event.at):
        return "an event has no date"
    if isinstance(event, Record | Failure):
        if event.case.backend not in ("metal", "mlx") or event.case.device != run.device:
            return "an outcome is of another device"
        if not _HASH.fullmatch(event.key):
            return "an outcome has no key"
    if isinstance(event, Record):
        return _time_fault(event)
    return None


def _time_fault(record: Record) -> str | None:
    timing = record.timing
    if not isinstance(timing, Measured) or record.checked != "gpu":
        return "a time was not measured on a GPU"
    if timing.method not in ("eval", "command buffer") or not timing.protocol.startswith("mlx"):
        return "a time is of another clock"
    low, high = min(timing.samples_s, default=0.0), max(timing.samples_s, default=0.0)
    ordered = low <= timing.low_s <= timing.median_s <= timing.high_s <= high
    return None if ordered else "a time lies outside of its samples"
