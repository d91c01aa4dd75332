"""Messages of `ptxas -v`: registers, stack, spills and shared memory of each entry, and what it
says of lost performance."""

import re

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.source import Source
from workbench.traces.trace import CounterValue, Dispatch, Trace, plain

LINE = re.compile(r"^ptxas[\w-]* (?:info|warning) *:", re.M)
ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
MORE = re.compile(r"(\d+) (barriers|bytes smem|bytes cmem\[\d+\]|bytes cumulative stack size)")
LOST = re.compile(r"\((C\d+)\)\s*(.*)")
COMPILE = re.compile(r"Compile time = ([\d.]+) ms")


def sniff(source: Source) -> bool:
    """Return whether a file has messages of ptxas on registers."""
    text = source.head_text
    return bool(LINE.search(text)) and bool(USED.search(text) or ENTRY.search(text))


def read(source: Source) -> Trace:
    """Return one dispatch without times for each entry."""
    trace = Trace("ptxas")
    entry: Dispatch | None = None
    lost: list[str] = []
    for line in source.lines():
        source.count()
        if match := ENTRY.search(line):
            entry = Dispatch(plain(match[1]), device=plain(match[2]))
            entry.notes, lost = lost, []
            trace.dispatches.append(entry)
            trace.devices.setdefault(entry.device, {})
        elif match := LOST.search(line):
            (lost if entry is None else entry.notes).append(plain(f"{match[1]} {match[2].strip()}"))
        elif entry is not None:
            with trace.tally.record("messages"):
                _add(line, entry)
    return trace


def _add(line: str, entry: Dispatch) -> None:
    values: dict[str, tuple[str, str]] = {}
    if match := FRAME.search(line):
        names = "stack_frame", "spill_stores", "spill_loads"
        values = {name: (text, "byte") for name, text in zip(names, match.groups(), strict=True)}
    elif match := USED.search(line):
        entry.geometry = entry.geometry._replace(registers=int(match[1]))
        values = {"registers": (match[1], "register/thread")}
        for number, word in MORE.findall(line):
            values[word.removeprefix("bytes ").replace(" ", "_")] = (number, "byte")
    elif match := COMPILE.search(line):
        values = {"compile_time": (match[1], "ms")}
    for name, (text, unit) in values.items():
        entry.counters[name] = CounterValue(name, float(text), unit, text)


READER = TraceReader("messages of ptxas -v", sniff, read)
