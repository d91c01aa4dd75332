"""Draw the result of a gate as Markdown: the comment on a pull request and the job's summary.

Names and messages come from the branch that is compared, so all of them are escaped: none of them
can mention a person, refer to an issue, or end a table.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import workbench
from workbench.code.code_pair import MEANINGS, ORDER, CodePair
from workbench.data.exits import COULD_NOT_RUN, FAILED, INTERRUPTED, PASSED, UNDECIDED
from workbench.data.impl_check import ImplCheck, worst_first
from workbench.data.units import amount, quantity
from workbench.reports import compare
from workbench.reports.compare import Compared
from workbench.reports.versions import (
    CHANGED,
    MEASURED,
    MIX,
    CodeChanges,
    changed_pairs,
    code_errors,
    pair_rows,
)
from workbench.reports.versions import conclusion as code_conclusion
from workbench.spec import sizes_text

MARKER = "<!-- kernel-workbench gate -->"  # by which the comment is found again
# Characters of the table, of both folded ones and of the list; GitHub takes 65,536 in a comment
ROOM, NUMBERS_ROOM, MIX_ROOM, LIST_ROOM = 25_000, 12_000, 8_000, 8_000
CELL = 240  # characters of a cell: a compiler's message may have thousands

HEADINGS = {
    PASSED: "nothing got slower",
    FAILED: "slower",
    COULD_NOT_RUN: "a kernel does not run any more",
    UNDECIDED: "undecided",
    INTERRUPTED: "stopped before the end",
}
COMPILED_HEADINGS = {
    PASSED: "no suspicion in the machine code",
    COULD_NOT_RUN: "a kernel does not compile or load any more",
    UNDECIDED: "suspected to be slower, by the machine code",
}
TIMES = ("", "kernel", "time after over before (95 % interval)", "before", "after")

# Characters of Markdown, and of mentions and references, as HTML entities
_ENTITIES = {ord(c): f"&#{ord(c)};" for c in "|`*[]@#~\\$"}


_FOLDERS = re.compile(r"(?<![\w./:~)\]-])/(?:[^\s/:\"'`<>|]+/)+")


@dataclass(frozen=True)
class GateResult:
    """All that the Markdown of a gate shows: of compiled code, or of measured times."""

    baseline: str
    exit_code: int
    command: str
    left_out: Sequence[tuple[str, str]] = ()  # kernel, reason
    changes: CodeChanges | None = None
    compared: Sequence[Compared] = field(default_factory=list)
    gpu: str = ""  # that measured
    nothing: str = ""  # why nothing was compared
    checks: Sequence[ImplCheck] = ()  # of results, before any comparison


def markdown(result: GateResult) -> str:
    """Return the comment, with the marker in its first line. It has at most 65,536 characters."""
    if result.changes is not None:
        parts = list(_code_sections(result.changes))
    elif result.compared:
        parts = list(_time_sections(result.compared, result.gpu))
    else:
        parts = [escape_markdown(f"Nothing to compare with {result.baseline}: {result.nothing}.")]
    head = f"### Kernel Workbench: {_heading(result)}"
    blocks = [MARKER, head, *_check_sections(result.checks), *parts]
    if result.left_out:
        blocks.append(_left_out(result.left_out))
    version = f"Kernel Workbench {workbench.__version__}"
    blocks.append(f"<sub><code>{escape_markdown(result.command)}</code>; {version}</sub>")
    return "\n\n".join(blocks) + "\n"


def _check_sections(checks: Sequence[ImplCheck]) -> Iterator[str]:
    """Yield what is wrong first, then what was not checked, and the number of those that are
    right."""
    others = [check for check in worst_first(checks) if check.state != "right"]
    lines, more = _fitting([f"- {escape_markdown(check.line)}" for check in others], LIST_ROOM)
    if more:
        lines.append(f"- {more} more")
    if right := len(checks) - len(others):
        lines.append(f"- right: {amount(right, 'changed Impl')} at the sizes to check")
    if lines:
        yield "\n".join(lines)


def _heading(result: GateResult) -> str:
    states = {check.state for check in result.checks}
    if "wrong" in states and result.exit_code == FAILED:
        return "wrong results"
    if "other reference" in states and result.exit_code == UNDECIDED:
        return "results differ from the baseline's reference"
    if "unproven" in states and result.exit_code == UNDECIDED:
        return "results that cannot be checked any more"
    if not (result.changes or result.compared) and result.exit_code == PASSED:
        return "nothing to compare"
    known = HEADINGS | (COMPILED_HEADINGS if result.changes is not None else {})
    return known.get(result.exit_code, "stopped before the end")


def escape_markdown(text: str, most: int = CELL) -> str:
    """Return text as one line of Markdown that shows it literally, cut at `most` characters. The
    folders of absolute paths are left out: they are those of the machine that ran the gate."""
    line = " ".join(_FOLDERS.sub("", text).split())
    line = line if len(line) <= most else line[: most - 3] + "..."
    shown = "".join(c for c in line if c.isprintable())
    return html.escape(shown, quote=False).translate(_ENTITIES)


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], text: Sequence[int], room: int = ROOM
) -> str:
    """Return a Markdown table of the first rows that `room` characters hold; columns in `text` are
    set to the left, the others to the right."""
    alignment = [":--" if n in text else "--:" for n in range(len(heads))]
    kept, more = _fitting([_row(row) for row in rows], room)
    lines = [_row(heads), _row(alignment, plain=True), *kept]
    if more:
        lines += ["", f"{more} more rows are on the page of the run."]
    return "\n".join(lines)


def _fitting(lines: Sequence[str], room: int) -> tuple[list[str], int]:
    """Return the first lines that `room` characters hold, and the number of the others."""
    kept: list[str] = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return kept, len(lines) - len(kept)


def _row(cells: Sequence[str], plain: bool = False) -> str:
    return f"| {' | '.join(cells if plain else map(escape_markdown, cells))} |"


# Machine code


READ_FIRST = ("", "kernel", "device", MEASURED, CHANGED)  # what 780 pixels hold


def _code_sections(changes: CodeChanges) -> Iterator[str]:
    yield escape_markdown(code_conclusion(changes), 2 * CELL)
    differing = changed_pairs(changes.pairs)
    if differing:
        yield _columns(differing, lambda head: head in READ_FIRST, ROOM)
    words = Counter(pair.word for pair in changes.pairs)
    yield "\n".join(f"- {word}: {MEANINGS[word]}" for word in ORDER if words[word])
    if differing:
        drawn = _columns(
            differing, lambda head: head not in ("", MEASURED, CHANGED, MIX), NUMBERS_ROOM
        )
        key = "Before &gt; after, one value where both are equal. Times with ~ are predicted."
        yield _details("Registers, memory, occupancy and predicted times", f"{drawn}\n\n{key}")
        yield from _mixes(differing)
        yield "\n".join(f"- {escape_markdown(line)}" for line in code_errors(differing))


def _columns(pairs: Sequence[CodePair], wanted: Callable[[str], bool], room: int) -> str:
    """Return the table of pairs with the columns whose heading is wanted."""
    content = pair_rows(pairs, config=True, whole=True)
    kept = [n for n, head in enumerate(content["heads"]) if wanted(head)]
    rows = [[cells[n] for n in kept] for cells, _ in content["rows"]]
    text = [place for place, n in enumerate(kept) if n in content["text"] or not n]
    return table([content["heads"][n] for n in kept], rows, text, room)


def _mixes(differing: Sequence[CodePair]) -> Iterator[str]:
    """Yield the instruction mix of the hot loops of suspected pairs, folded."""
    content = pair_rows([p for p in differing if p.word == "WORSE"], config=True, whole=True)
    mix = content["heads"].index(MIX)
    rows = [[cells[1], cells[2], cells[mix]] for cells, _ in content["rows"] if cells[mix]]
    if rows:
        drawn = table(("kernel", "device", "instructions by kind"), rows, (0, 1, 2), MIX_ROOM)
        yield _details(
            "Instructions of the hot loops by kind; in brackets, those of all code", drawn
        )


def _details(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"


# Measured times


def _time_sections(compared: Sequence[Compared], gpu: str) -> Iterator[str]:
    where = f" Measured on {gpu}." if gpu else ""
    yield escape_markdown(compare.conclusion(compared) + where, 2 * CELL)
    yield table(TIMES, [_times(each) for each in compared], (0, 1, 2))


def _times(each: Compared) -> list[str]:
    c, v = each.comparison, each.comparison.verdict
    impl = each.right.case.impl if each.right else ""
    name = f"{c.kernel}.{impl}" if impl else c.kernel
    name = f"{name}; {sizes_text(c.sizes, ' ')} {c.dtype}"
    if v is None:
        return ["no verdict", name, "; ".join(compare.troubles(each)), "", ""]
    operands = each.operands
    times = [quantity(t.median_s, "s") for t in operands.timings] if operands else ["", ""]
    ratio = f"{v.time.middle:.4f} ({v.time.low:.4f} to {v.time.high:.4f})"
    return [v.word, name, ratio, *times]


def _left_out(every: Sequence[tuple[str, str]]) -> str:
    lines = [f"- {escape_markdown(what)}: {escape_markdown(reason)}" for what, reason in every]
    kept, more = _fitting(lines, LIST_ROOM)
    if more:
        kept.append(f"- and {amount(more, 'more kernel')}")
    return "Not compared:\n\n" + "\n".join(kept)
