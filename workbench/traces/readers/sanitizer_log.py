"""Log of compute-sanitizer, and of cuda-memcheck before it. The summary line is the verdict; a log
without one fails if it printed an error, else it is inconclusive."""

import re

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.source import Source
from workbench.traces.trace import CheckerRecord, CheckerResult, Trace, plain

PREFIX = "========="
TITLES = ("COMPUTE-SANITIZER", "CUDA-MEMCHECK")
BEGINS = re.compile(
    r"Invalid |Uninitialized |Unused memory|Program hit |Leaked |Barrier error|Divergent |"
    r"Host API |(?:Error|ERROR|WARN|Warning|INFO|Info):|Potential |Race reported|Fatal UVM|"
    r"Malloc/Free|Misaligned |Stack overflow|Hardware stack|Illegal |Warp |Device-side"
)
ERRORS = re.compile(r"ERROR SUMMARY: ([\d,]+) errors?\s*\Z")
HIDDEN = re.compile(r"ERROR SUMMARY: ([\d,]+) errors? (?:was|were) not printed")
RACES = re.compile(r"RACECHECK SUMMARY: .*\(([\d,]+) errors?, ([\d,]+) warnings?\)")
LEAKS = re.compile(r"LEAK SUMMARY: [\d,]+ bytes leaked in ([\d,]+) allocations?")
FAILED = re.compile(
    r"Error: (Target application terminated|No attachable process|process didn't terminate)"
)
AT_OFFSET = re.compile(r"at (?P<kernel>.+)\+(?P<pc>0x[0-9a-fA-F]+)(?: in (?P<where>\S+))?\s*\Z")
AT_START = re.compile(r"at (?P<pc>0x[0-9a-fA-F]+) in (?P<where>.+?)\s*\Z")
WHERE = re.compile(r"(?P<file>[^:]+):(?P<line>\d+)(?::(?P<kernel>.+))?\Z")
THREAD = re.compile(r"by thread \((\d+),\s*(\d+),\s*(\d+)\) in block \((\d+),\s*(\d+),\s*(\d+)\)")
SIZE = re.compile(r"of size ([\d,]+)")


def sniff(source: Source) -> bool:
    """Return whether a file has lines of the tool."""
    return bool(re.search(r"^={9}(?: |$)", source.head_text, re.M)) and any(
        title in source.head_text for title in (*TITLES, "ERROR SUMMARY", "RACECHECK SUMMARY")
    )


def read(source: Source) -> Trace:
    """Return the records and the verdict of a log."""
    trace = Trace("compute-sanitizer")
    result = CheckerResult()
    records: list[list[str]] = []
    for line in source.lines():
        if line.startswith(PREFIX):
            _take(line[len(PREFIX) :].rstrip(), result, records, trace)
    result.records = [_record(lines) for lines in records]
    result.tool = _tool(source.head_text, result)
    trace.checker = result
    if (leaks := trace.tables.pop("leaked", None)) is not None and result.errors is None:
        result.errors = leaks
    if result.errors is None:
        trace.notes.append("there is no summary line: more may be wrong than was printed")
    elif result.not_printed:
        trace.notes.append(
            f"{result.not_printed} of {result.errors} errors were not printed; --print-limit"
        )
    return trace


def _take(text: str, result: CheckerResult, records: list[list[str]], trace: Trace) -> None:
    """Take one line of the tool, without its prefix."""
    bare = text.strip()
    is_nested = text.startswith("  ")
    if match := HIDDEN.search(bare):
        result.not_printed += _count(match[1])
    elif match := ERRORS.search(bare) or RACES.search(bare):
        result.errors = (result.errors or 0) + _count(match[1])
        result.warnings += _count(match[2]) if match.re is RACES else 0
    elif match := LEAKS.search(bare):
        trace.tables["leaked"] = _count(match[1])
    elif FAILED.match(bare):
        trace.notes.append(f"the tool did not run the program: {plain(bare)}")
    elif not is_nested and BEGINS.match(bare):
        records.append([bare])
    elif is_nested and records and bare:
        records[-1].append(bare)
    elif not bare and records and records[-1]:
        records[-1].append("")


def _record(lines: list[str]) -> CheckerRecord:
    first = lines[0]
    level = "warning" if re.match(r"WARN|Warning|INFO|Info", first) else "error"
    facts: dict[str, object] = {}
    if match := SIZE.search(first):
        facts["bytes"] = _count(match[1])
    for line in lines:
        if line == "":
            break
        facts = _place(line) | facts
        if match := THREAD.search(line):
            numbers = tuple(map(int, match.groups()))
            facts["thread"], facts["block"] = numbers[:3], numbers[3:]
    return CheckerRecord(level, plain(first), **facts)  # type: ignore[arg-type]


def _place(line: str) -> dict[str, object]:
    """Return kernel, offset, file and line of `at k+0x50 in f.cu:34` or `at 0x50 in f.cu:34:k`."""
    match = re.search(r"\bat (?=\S)(.*)", line)
    if match is None:
        return {}
    text = re.sub(r" \[\d+ hazards?\]\s*\Z", "", match[0])
    if place := AT_OFFSET.search(text):
        facts: dict[str, object] = {
            "kernel": plain(place["kernel"]),
            "offset": int(place["pc"], 16),
        }
        if place["where"] and (where := WHERE.match(place["where"])):
            facts |= {"file": plain(where["file"]), "line": int(where["line"])}
        return facts
    if match := AT_START.search(text):
        facts = {"offset": int(match["pc"], 16)}
        if where := WHERE.match(match["where"]):
            facts |= {"file": plain(where["file"]), "line": int(where["line"])}
            return facts | {"kernel": plain(where["kernel"] or "")}
        return facts | {"kernel": plain(match["where"])}
    return {}


def _tool(text: str, result: CheckerResult) -> str:
    """Return the tool that a log names by its summary or its records."""
    if "RACECHECK SUMMARY" in text:
        return "racecheck"
    texts = " ".join(record.text for record in result.records)
    if "Uninitialized" in texts:
        return "initcheck"
    if "Barrier error" in texts or "Divergent" in texts:
        return "synccheck"
    return "memcheck" if "Invalid" in texts or "Leaked" in texts else ""


def _count(text: str) -> int:
    return int(text.replace(",", ""))


READER = TraceReader("log of compute-sanitizer", sniff, read)
