"""Timestamps of stored results, the ids of runs that begin with one, and the folders of runs."""

import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path


def timestamp() -> str:
    """Return the present time in UTC, ISO 8601 with microseconds: two outcomes of one key within a
    millisecond are two, as those of a variant cold and hot."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def epoch_of(at: str) -> float:
    """Return seconds since 1970, which sort across offsets; 0 if the text cannot be parsed."""
    try:
        when = datetime.fromisoformat(at)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def run_id(*words: str) -> str:
    """Return the id of a run that begins now: `20261121-214153-tile_size-matmul-0f5b`."""
    while (created := _created_id(words)) in _created:
        pass
    _created.add(created)
    return created


_created: set[str] = set()  # of this process: 1 in 65,536 pairs within a second would be equal


def _created_id(words: Sequence[str]) -> str:
    named = slug("-".join((f"{datetime.now(UTC):%Y%m%d-%H%M%S}", *words)))
    return f"{named}-{secrets.token_hex(2)}"


_LONGEST = 190  # bytes of a name; file systems take 255, and `roofline.html` and drafts add some


def slug(text: str) -> str:
    """Return text as the name of one file or folder: letters, digits and a few signs, no sign of a
    path, and not hidden."""
    safe = re.sub(r"[^\w.,+:=@-]", "_", text, flags=re.ASCII if not text.isprintable() else 0)
    return safe.encode()[:_LONGEST].decode("utf-8", "ignore").lstrip(".-") or "_"


def is_id(text: str) -> bool:
    """Return whether text can be the id of a run: printable, and the name of one folder."""
    if not text.isprintable() or "/" in text or "\\" in text or text.startswith((".", "-")):
        return False
    return 0 < len(text.encode()) <= _LONGEST + 5


def folder_of(out: Path, run: str) -> Path:
    """Return the folder in `out` for the files of the run with this id; always one inside it."""
    return out / slug(run)
