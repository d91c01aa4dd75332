"""Draw the result of a gate as Markdown: the comment on a pull request and the job's summary.

Names and messages come from the branch that is compared, so all of them are escaped: none of them
can mention a person, refer to an issue, or end a table.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import workbench
from workbench.code.compared_pair import ORDER, ComparedPair, rank_pairs
from workbench.data.exits import COULD_NOT_RUN, FAILED, INTERRUPTED, PASSED, UNDECIDED
from workbench.data.impl_check import ImplCheck, worst_first
from workbench.data.units import amount, quantity
from workbench.reports.pair_texts import MEANINGS, config_name, is_predicted, missing_verdict
from workbench.reports.tables import Columns
from workbench.reports.versions import (
    CHANGED,
    COLUMNS,
    KERNEL,
    MEASURED,
    MIX,
    TEXTS,
    changed_text,
    code_errors,
    mix_text,
)

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

# Characters of Markdown, and of mentions and references, as HTML entities
_ENTITIES = {ord(c): f"&#{ord(c)};" for c in "|`*[]@#~\\$"}


_FOLDERS = re.compile(r"(?<![\w./:~)\]-])/(?:[^\s/:\"'`<>|]+/)+")


@dataclass(frozen=True)
class GateResult:
    """All that the Markdown of a gate shows."""

    baseline: str
    exit_code: int
    command: str
    left_out: Sequence[tuple[str, str]] = ()  # kernel, reason
    sentence: str = ""  # the result
    pairs: Sequence[ComparedPair] = field(default_factory=list)
    gpu: str = ""  # that measured
    nothing: str = ""  # why nothing was compared
    checks: Sequence[ImplCheck] = ()  # of results, before any comparison


def markdown(result: GateResult) -> str:
    """Return the comment, with the marker in its first line. It has at most 65,536 characters."""
    parts = list(_pair_sections(result))
    if result.nothing and not result.pairs:
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
    if not result.pairs and result.exit_code == PASSED:
        return "nothing to compare"
    is_by_code = any(pair.is_by_code for pair in result.pairs)
    known = HEADINGS | (COMPILED_HEADINGS if is_by_code else {})
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


# What was compared


TIME = "time after over before (95 % interval)"
FIRST: Columns = (  # what 780 pixels hold, by code or by time
    ("", lambda pair: pair.final_word or "no verdict"),
    (KERNEL, config_name),
    ("device", lambda pair: pair.case.device if pair.outcomes else ""),
    (TIME, lambda pair: _time(pair)),
    ("before", lambda pair: _median(pair, 0)),
    ("after", lambda pair: _median(pair, 1)),
    (CHANGED, changed_text),
)
NAMES = FIRST[1:3]
NUMBERS = (*NAMES, *(c for c in COLUMNS[3:] if c[0] not in (MEASURED, CHANGED, MIX)))
MIXES = (*NAMES, ("instructions by kind", mix_text))


def _time(pair: ComparedPair) -> str:
    """Return the ratio of measured times, or why there is none."""
    if pair.verdict is None:
        return missing_verdict(pair)
    time = pair.verdict.time
    return f"{time.middle:.4f} ({time.low:.4f} to {time.high:.4f})"


def _median(pair: ComparedPair, place: int) -> str:
    timings = (pair.timed_pair or pair).timings
    return quantity(timings[place].median_s, "s") if timings else ""


def _pair_sections(result: GateResult) -> Iterator[str]:
    """Yield the sentence, one row for each pair that was timed or whose code differs, and folded
    what their code consists of."""
    where = f" Measured on {result.gpu}." if result.gpu else ""
    yield escape_markdown(result.sentence + where, 2 * CELL)
    shown = [p for p in rank_pairs(result.pairs) if p.word != "SAME" or not p.is_by_code]
    if shown:
        yield _columns(shown, FIRST, ROOM)
    words = Counter(pair.word for pair in result.pairs if pair.is_by_code)
    if words:
        yield "\n".join(f"- {word}: {MEANINGS[word]}" for word in ORDER if words[word])
    changed = [pair for pair in shown if pair.change and pair.change.word != "SAME"]
    if changed:
        predicted = any(map(is_predicted, changed))
        title = "Registers, memory, occupancy" + " and predicted times" * predicted
        key = "Before &gt; after, one value where both are equal."
        key += " Times with ~ are predicted." * predicted
        yield _details(title, f"{_columns(changed, NUMBERS, NUMBERS_ROOM)}\n\n{key}")
    worse = [pair for pair in changed if pair.word == "WORSE" and mix_text(pair)]
    if worse:
        title = "Instructions of the hot loops by kind; in brackets, those of all code"
        yield _details(title, _columns(worse, MIXES, MIX_ROOM))
    if errors := code_errors(changed):
        yield "\n".join(f"- {escape_markdown(line)}" for line in errors)


def _columns(pairs: Sequence[ComparedPair], columns: Columns, room: int) -> str:
    """Return the table of pairs, without columns that say nothing of any."""
    cells = {head: [cell(pair) for pair in pairs] for head, cell in columns}
    heads = [head for head, some in cells.items() if not head or {*some} - {"", "-"}]
    text = [n for n, head in enumerate(heads) if head in ("", TIME, *TEXTS, MIXES[-1][0])]
    return table(heads, list(zip(*(cells[head] for head in heads), strict=True)), text, room)


def _details(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"


def _left_out(every: Sequence[tuple[str, str]]) -> str:
    lines = [f"- {escape_markdown(what)}: {escape_markdown(reason)}" for what, reason in every]
    kept, more = _fitting(lines, LIST_ROOM)
    if more:
        kept.append(f"- and {amount(more, 'more kernel')}")
    return "Not compared:\n\n" + "\n".join(kept)
