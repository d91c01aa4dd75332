"""What ncu prints while it profiles: messages without numbers. Refused, with what helps."""

import re
from typing import NoReturn

from workbench.traces.readers import (
    TraceReader,
    ncu_details,
    ncu_raw,
    ncu_source,
    ncu_summary,
    ncu_text,
)
from workbench.traces.readers.inputs.source import Source
from workbench.traces.trace import plain

MESSAGE = re.compile(r"^==(?:PROF|WARNING|ERROR)==", re.M)
REPORT = re.compile(r"^==PROF== Report: (\S+)", re.M)
ERROR = re.compile(r"^==ERROR== (.+)", re.M)
TABLES = (ncu_details, ncu_raw, ncu_source, ncu_summary, ncu_text)


def sniff(source: Source) -> bool:
    """Return whether a file holds messages of ncu and no table of it."""
    if not MESSAGE.search(source.head_text):
        return False
    return not any(table.sniff(source) for table in TABLES)


def read(source: Source) -> NoReturn:
    """Raise ReadError with the reason and the remedy."""
    text = source.head_text
    reason, remedy = "it holds only messages", "record again with `ncu -o FILE`"
    if "ERR_NVGPUCTRPERM" in text:
        reason = "the driver lets only root read counters"
        remedy = "ask the administrator, see `workbench doctor`"
    elif match := ERROR.search(text):
        reason = f"ncu failed ({plain(match[1])[:200].rstrip('.')})"
        remedy = "mend its command line"
    elif "No kernels were profiled" in text:
        reason = "no kernel was profiled"
        remedy = "check the filters and ranges of its command line"
    elif match := REPORT.search(text):
        name = plain(match[1].rsplit("/", 1)[-1])
        remedy = f"print the numbers with `ncu --import {name} --csv --page raw`"
    source.fail(f"this log of ncu has no numbers ({reason})", remedy)


READER = TraceReader("log of ncu", sniff, read)
