"""ncu's page as text: kernels, sections, tables under dashes, and paragraphs of rules. Cells and
paragraphs may be wrapped."""

import re

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs import ncu
from workbench.traces.readers.inputs.numbers import triple
from workbench.traces.readers.inputs.source import Source, head_matches
from workbench.traces.trace import Dispatch, Geometry, Trace, plain

KERNEL = re.compile(
    r"^ {2}(?P<name>\S.*?) (?P<grid>\(\d+, \d+, \d+\))x(?P<block>\(\d+, \d+, \d+\)), "
    r"Context (?P<context>\d+), Stream (?P<stream>\d+)(?:, Device (?P<device>\d+))?"
    r"(?:, CC (?P<cc>[\d.]+))?"
)
SECTION = re.compile(r"^ {4}Section: (.+?)\s*$")
AT_END = re.compile(r"(?<=\s)[\d.]*\d,\d+(?=\s*$)", re.M)  # of a line: the value of a cell
DASHES = re.compile(r"^ {4}(-{3,})( -+)( -+)\s*$")
sniff = head_matches(re.compile(KERNEL.pattern, re.M))
RULE = re.compile(r"^ {4}(INF|OPT|WRN|ERR) +(.*\S)\s*$")


def read(source: Source) -> Trace:
    """Return the dispatches with their counters."""
    trace = Trace("ncu", ncu.version_of(source))
    page = _Page(trace, ncu.has_decimal_comma(source, AT_END))
    for line in source.lines():
        if match := ncu.MESSAGE.match(line):
            ncu.note_message(match, trace.notes)
        else:
            page.add(line.rstrip("\r\n"))
    page.close()
    ncu.settle(trace.dispatches)
    return trace


class _Page:
    """Where the reader stands."""

    def __init__(self, trace: Trace, comma: bool) -> None:
        self.trace, self.comma = trace, comma
        self.dispatch: Dispatch | None = None
        self.section = ""
        self.cuts: tuple[int, int] | None = None  # columns of unit and value
        self.is_head = False
        self.row: tuple[str, str, str] | None = None
        self.rule: list[str] = []

    def add(self, line: str) -> None:
        """Add one line."""
        if match := KERNEL.match(line):
            self.close()
            self._begin(match)
        elif match := SECTION.match(line):
            self.close()
            self.section, self.cuts = match[1], None
        elif match := DASHES.match(line):
            self._flush()
            first = 4 + len(match[1])
            self.cuts = first, first + len(match[2])
        elif self.cuts is not None and line.startswith("    ") and line.strip():
            if match := RULE.match(line):
                self.cuts = None
                self._begin_rule(match)
            else:
                self._cells(line, *self.cuts)
        elif match := RULE.match(line):
            self._begin_rule(match)
        elif self.rule and line.startswith("          "):
            self.rule.append(line.strip())
        elif not line.strip():
            self._flush()
            self.cuts = None

    def _begin(self, match: re.Match[str]) -> None:
        device = match["device"] or "0"
        geometry = Geometry(triple(match["grid"]), triple(match["block"]))
        number = str(len(self.trace.dispatches))
        self.dispatch = Dispatch(plain(match["name"]), number, device, match["stream"], geometry)
        self.trace.dispatches.append(self.dispatch)
        facts = self.trace.devices.setdefault(device, {})
        if match["cc"]:
            facts["compute_capability"] = match["cc"]
        self.section = ""

    def _cells(self, line: str, first: int, second: int) -> None:
        name, unit, value = line[4:first].strip(), line[first:second].strip(), line[second:].strip()
        if name == "Metric Name" and value == "Metric Value":
            return
        if not unit and not value and self.row is not None:  # a name that was wrapped
            self.row = f"{self.row[0]} {name}".strip(), self.row[1], self.row[2]
            return
        self._flush()
        self.row = name, unit, value

    def _begin_rule(self, match: re.Match[str]) -> None:
        self._flush()
        self.rule = [f"{match[1]}: {match[2].strip()}"]

    def _flush(self) -> None:
        """Keep the row and the rule that are whole."""
        if self.dispatch is not None and self.row is not None:
            name = ncu.metric_of(self.section, self.row[0])
            value = ncu.counter(name, self.row[1], self.row[2], self.comma)
            self.dispatch.counters.setdefault(name, value)
        if self.dispatch is not None and self.rule:
            self.dispatch.notes.append(plain(" ".join(self.rule)))
        self.row, self.rule = None, []

    def close(self) -> None:
        """End the section."""
        self._flush()
        self.cuts = None


READER = TraceReader("page of ncu (text)", sniff, read)
