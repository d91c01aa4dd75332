"""Compare two traces, files or stored runs, for `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.catalog import name_hint
from workbench.commands.console import say_result
from workbench.commands.operands import is_run
from workbench.commands.options import CommandError
from workbench.commands.result import write_comparison
from workbench.commands.run import check_outputs, say_page
from workbench.commands.stored import stored_runs
from workbench.commands.trace_tables import kpi_text, short
from workbench.commands.traces import trace_run
from workbench.data.clock import folder_of, run_id, timestamp
from workbench.data.comparison import ComparisonResult, compared_part
from workbench.data.expected_change import (
    EXPECTED,
    ExpectationResult,
    expectation_results,
    longest_counted,
)
from workbench.data.record import Profile
from workbench.data.units import duration
from workbench.reports.run_index import write_run_page
from workbench.reports.tables import Columns, table, text_table
from workbench.traces.trace_compare import (
    KernelChange,
    TraceComparison,
    TraceOperand,
    compare,
    percent_change,
)
from workbench.traces.trace_summary import summarise

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.compare import CompareOptions

TOP = 15  # kernels


def trace_operands(options: CompareOptions) -> tuple[TraceOperand, TraceOperand]:
    """Return both operands, which name traces; see `operands.are_traces`. Raises ReadError or
    HistoryError."""
    texts = (options.left, options.right)
    if not is_run(texts[0]):
        return _file_operand(texts[0]), _file_operand(texts[1])
    with stored_runs(options.database) as history:
        runs = [history.run(text) for text in texts]
        left, right = (
            TraceOperand(
                f"{run.source} ({run.id})", history.findings(run.id), history.profiles(run.id)
            )
            for run in runs
        )
        return left, right


def _file_operand(text: str) -> TraceOperand:
    from workbench.traces.readers import read

    kept = trace_run(summarise(read([text])), "read", text, "")
    return TraceOperand(text, kept.findings, kept.profiles)


def compare_traces(options: CompareOptions, console: Console) -> int:
    """Compare two traces, print the result and write its page. Nothing is stored beyond the page.
    Returns 0, or 3 where the second is suspected to be slower or nothing can be said; with
    --expect, whether that was met. Raises CommandError where a trace lacks what is compared."""
    operands = trace_operands(options)
    for operand in operands:
        if not operand.profiles:
            raise CommandError(f"{operand.name} holds no kernel; name a trace of a device.")
    check_outputs(options)
    expected = _check_expectation(options, operands)
    result = compare(*operands, options.threshold)
    _print(console, result, expected)
    page = _page(options, result, expected)
    say_page(console, page)
    whole = traces_result(result, expected)
    return write_comparison(options, "compare", whole, page=str(page.resolve()))


def traces_result(
    result: TraceComparison, expected: Sequence[ExpectationResult]
) -> ComparisonResult:
    """Return the result of two traces. The counters that a change was to move decide, if any."""
    names = result.before.name, result.after.name
    parts = [compared_part(each.text, each.state, "", expected=asdict(each)) for each in expected]
    evidence = {
        "figures": [each.plain() for each in result.figures],
        "kernels": [asdict(each) for each in result.kernels],
        "metrics": {name: [each.plain() for each in some] for name, some in result.metrics},
    }
    parts = parts or [compared_part("all kernels", result.shown_word, result.reason)]
    return ComparisonResult("traces", *names, sentence(result), parts, (), evidence)


def _check_expectation(
    options: CompareOptions, operands: tuple[TraceOperand, TraceOperand]
) -> list[ExpectationResult]:
    """Return what became of `--expect`; empty without it. Raises CommandError where an operand has
    no counters."""
    if options.expect is None:
        return []
    if options.expect not in EXPECTED:
        raise CommandError(name_hint("expected change", options.expect, EXPECTED))
    both = []
    for operand in operands:
        if (profile := longest_counted(operand.profiles)) is None:
            raise CommandError(
                f"{operand.name} has no counters, which --expect compares; profile the kernel with "
                "`workbench profile --tool ncu`."
            )
        both.append(profile)
    return expectation_results(options.expect, *both)


def _page(
    options: CompareOptions, result: TraceComparison, expected: Sequence[ExpectationResult]
) -> Path:
    from workbench.reports.trace import comparison_page

    identity = run_id("compare", "traces")
    title = options.expect or ""
    html = comparison_page(result, options.command, timestamp(), title, expected)
    return write_run_page(folder_of(options.out, identity), html)


def sentence(result: TraceComparison) -> str:
    """Return the word and its reason as a sentence."""
    word = result.shown_word
    return f"{word[:1].upper()}{word[1:]}: {result.reason}; the traces were taken apart in time."


def _print(
    console: Console, result: TraceComparison, expected: Sequence[ExpectationResult]
) -> None:
    console.print(f"before  {result.before.name}", soft_wrap=True)
    console.print(f"after   {result.after.name}", soft_wrap=True)
    if result.figures:
        console.print(_draw_table(FIGURES, result.figures))
    if result.kernels:
        console.print(_draw_table(KERNELS, result.kernels, TOP))
    for name, changes in result.metrics:
        if changes:
            console.print(f"metrics of {short(name)} that differ", soft_wrap=True)
            console.print(_draw_table(FIGURES, changes))
    say_result(console, sentence(result), "bold")
    for each in expected:
        values = ""
        if each.before is not None and each.after is not None:
            pair = (kpi_text(value, each.unit) for value in (each.before, each.after))
            values = f" ({' before, '.join(pair)} after)"
        say_result(console, f"{each.state}: {each.text}{values}")


FIGURES: Columns = (
    ("", lambda each: each.name),
    ("before", lambda each: kpi_text(each.before.value, each.before.unit)),
    ("after", lambda each: kpi_text(each.after.value, each.before.unit)),
    ("change", lambda each: percent_change(each.ratio)),
)


def _count(each: KernelChange) -> str:
    counts = [f"{p.count:,}" if p is not None else "-" for p in (each.before, each.after)]
    return " -> ".join(dict.fromkeys(counts))


def _total(profile: Profile | None) -> str:
    return "-" if profile is None else kpi_text(profile.total_s, "s")


KERNELS: Columns = (
    ("kernel", lambda each: short(each.name)),
    ("count", _count),
    ("total before", lambda each: _total(each.before)),
    ("after", lambda each: _total(each.after)),
    ("difference", lambda each: _difference(each)),
    ("one launch", lambda each: percent_change(each.ratio)),
    ("", lambda each: each.word),
)


def _draw_table(columns: Columns, items: Sequence[Any], most: int | None = None) -> Any:
    """Return the table of at most so many items; its last row counts the others."""
    shown = table(columns, items, most)
    rows = [cells for cells, _ in shown["rows"]]
    if shown.get("more"):
        rows.append([f"{shown['more']} more", *[""] * (len(columns) - 1)])
    return text_table(shown["heads"], rows)


def _difference(change: KernelChange) -> str:
    """Return how much longer all launches take; `-` where no file tells their time."""
    if not change.is_timed:
        return "-"
    sign = "-" if change.difference_s < 0 else "+"
    return f"{sign}{duration(abs(change.difference_s))}" if change.difference_s else "0"
