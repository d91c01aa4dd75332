"""Files that only their maker's program reads, and pickles: refused with the command that helps."""

from __future__ import annotations

import re
from typing import NoReturn

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.source import Source, is_text

# Reason and remedy of each format, by the ends of its names.
CLOSED = {
    (".nsys-rep", ".qdrep"): (
        "only nsys reads its report",
        "run `nsys export --type sqlite -f true FILE` and read the .sqlite file",
    ),
    (".qdstrm",): (
        "only nsys reads its unfinished stream",
        "import it with the QdstrmImporter of an Nsight Systems, or record with `--tool trace`",
    ),
    (".pftrace", ".perfetto-trace"): (
        "only Perfetto reads its trace",
        "record with `rocprofv3 --output-format rocpd`, or as JSON, and read that",
    ),
    (".gputrace",): (
        "only Xcode reads a GPU capture",
        "open it in Xcode and enter its counters by hand",
    ),
    (".trace", ".xcresult"): (
        "only xctrace reads a recording of Instruments",
        "run `xcrun xctrace export --input FILE --xpath ...` and read the XML",
    ),
}
PICKLE = re.compile(rb"\A\x80[\x02-\x05]")
UNPICKLED = (
    "it is a pickle, which could run any program, such as a memory snapshot of torch",
    "write the timeline with `export_memory_timeline` of torch.profiler and read that",
)


def sniff(source: Source) -> bool:
    """Return whether a file is one of these."""
    return _refusal(source) is not None


def _refusal(source: Source) -> tuple[str, str] | None:
    """Return the reason and the remedy of a file that is closed; None for any other."""
    name = source.name.lower().removesuffix(".gz")
    if source.is_folder or (source.head and not is_text(source.head)):
        for ends, refusal in CLOSED.items():
            if name.endswith(ends):
                return refusal
    return UNPICKLED if PICKLE.match(source.head) else None


def read(source: Source) -> NoReturn:
    """Raise ReadError with the reason and the remedy."""
    refusal = _refusal(source)
    assert refusal is not None  # it was sniffed
    source.fail(*refusal)


READER = TraceReader("closed file", sniff, read)
