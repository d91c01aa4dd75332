"""Files that only their maker's program reads, and pickles: refused with the command that helps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.source import Source, is_text


@dataclass(frozen=True)
class _Closed:
    """A format that is refused: how it is known, its reason and its remedy."""

    ends: tuple[str, ...]
    reason: str
    remedy: str


CLOSED = (
    _Closed(
        (".nsys-rep", ".qdrep"),
        "a report of nsys is read by nsys alone",
        "run `nsys export --type sqlite -f true FILE` and read the .sqlite file",
    ),
    _Closed(
        (".qdstrm",),
        "an unfinished stream of nsys is read by nsys alone",
        "import it with the QdstrmImporter of an Nsight Systems, or record with `--tool trace`",
    ),
    _Closed(
        (".pftrace", ".perfetto-trace"),
        "a Perfetto trace is read by Perfetto alone",
        "record with `rocprofv3 --output-format rocpd`, or as JSON, and read that",
    ),
    _Closed(
        (".gputrace",),
        "a GPU capture is read by Xcode alone",
        "open it in Xcode and enter its counters by hand",
    ),
    _Closed(
        (".trace", ".xcresult"),
        "a recording of Instruments is read by xctrace alone",
        "run `xcrun xctrace export --input FILE --xpath ...` and read the XML",
    ),
)
PICKLE = re.compile(rb"\A\x80[\x02-\x05]")
UNPICKLED = _Closed(
    (),
    "it is a pickle, which could run any program, such as a memory snapshot of torch",
    "write the timeline with `export_memory_timeline` of torch.profiler and read that",
)


def sniff(source: Source) -> bool:
    """Return whether a file is one of these."""
    return _closed_format(source) is not None


def _closed_format(source: Source) -> _Closed | None:
    name = source.name.lower()
    if source.is_folder or (source.head and not is_text(source.head)):
        for closed in CLOSED:
            if name.endswith(closed.ends) or name.endswith(tuple(f"{e}.gz" for e in closed.ends)):
                return closed
    return UNPICKLED if PICKLE.match(source.head) else None


def read(source: Source) -> NoReturn:
    """Raise ReadError with the reason and the remedy."""
    closed = _closed_format(source)
    assert closed is not None  # it was sniffed
    source.fail(closed.reason, closed.remedy)


READER = TraceReader("closed file", sniff, read)
