"""XML of compute-sanitizer. It holds the records that were printed and no summary, so that an empty
one does not say that the program is clean."""

import re

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.numbers import three
from workbench.traces.readers.inputs.source import Source, head_matches
from workbench.traces.readers.inputs.xml import parse
from workbench.traces.trace import CheckerRecord, CheckerResult, Trace, plain

sniff = head_matches(re.compile("<ComputeSanitizerOutput"))


def read(source: Source) -> Trace:
    """Return the records of a file. Raises ValueError where it is damaged."""
    trace = Trace("compute-sanitizer")
    result = CheckerResult()
    path: list[str] = []
    facts: dict[str, str] = {}

    def start(name: str, _: dict[str, str]) -> None:
        path.append(name)
        if name == "record":
            facts.clear()

    def end(name: str, text: str) -> None:
        key = "/".join(path[2:])
        if name == "record":
            result.records.append(_record(facts))
        elif len(path) > 2 and text and not key.startswith("hostStack"):
            facts.setdefault(key, text)
        path.pop()

    parse(source, start, end)
    trace.checker = result
    trace.notes.append(
        "the XML holds only what was printed; the number of errors is in the log: read both"
    )
    return trace


def _record(facts: dict[str, str]) -> CheckerRecord:
    offset, line, size = (facts.get(key) for key in ("where/pc", "where/line", "what/size"))
    path = facts.get("where/path", "")
    return CheckerRecord(
        facts.get("level", "error").lower(),
        plain(facts.get("what/text", facts.get("kind", ""))),
        plain(facts.get("where/func", "")),
        int(offset, 16) if offset else None,
        plain(path.rsplit("/", 1)[-1]),
        int(line) if line else None,
        three(facts.get(f"who/threadIdx/{axis}") for axis in "xyz"),
        three(facts.get(f"who/blockIdx/{axis}") for axis in "xyz"),
        int(size) if size else None,
    )


READER = TraceReader("XML of compute-sanitizer", sniff, read)
