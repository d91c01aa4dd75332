"""Compare two traces, files or stored runs, for `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.catalog import name_hint
from workbench.commands.console import say_result
from workbench.commands.operands import is_run
from workbench.commands.options import CommandError, CompareOptions
from workbench.commands.result import write_comparison
from workbench.commands.run import check_outputs, say_page
from workbench.commands.stored import stored_runs
from workbench.commands.trace_tables import kpi_text, plain_table, short
from workbench.commands.traces import as_run
from workbench.data.clock import folder_of, run_id, timestamp
from workbench.data.comparison import ComparedPart, ComparisonResult, EvidenceChange
from workbench.data.expected_change import (
    EXPECTED,
    ExpectationResult,
    expectation_results,
    longest_counted,
)
from workbench.data.units import duration
from workbench.reports.run_index import write_run_page
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

    kept = as_run(summarise(read([text])), "read", text, "")
    return TraceOperand(text, kept.findings, kept.profiles)


def compare_traces(
    options: CompareOptions, operands: tuple[TraceOperand, TraceOperand], console: Console
) -> int:
    """Compare two traces, print the result and write its page. Nothing is stored beyond the page.
    Returns 0, or 3 where the second is suspected to be slower or nothing can be said; with
    --expect, whether that was met. Raises CommandError where a trace lacks what is compared."""
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
    part = ComparedPart("all kernels", result.shown_word, result.reason, evidence=result.figures)
    parts = [
        ComparedPart(each.text, each.state, more={"metric": asdict(each)}) for each in expected
    ]
    more = {
        "kernels": [asdict(each) for each in result.kernels],
        "metrics": {name: [each.plain() for each in some] for name, some in result.metrics},
    }
    if parts:
        more["traces"] = [part.plain()]
    return ComparisonResult("traces", *names, sentence(result), parts or [part], more=more)


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
        console.print(_figure_table(result.figures))
    if result.kernels:
        console.print(_kernel_table(result.kernels))
    for name, changes in result.metrics:
        if changes:
            console.print(f"metrics of {short(name)} that differ", soft_wrap=True)
            console.print(_figure_table(changes))
    say_result(console, sentence(result), "bold")
    for each in expected:
        values = ""
        if each.before is not None and each.after is not None:
            pair = (kpi_text(value, each.unit) for value in (each.before, each.after))
            values = f" ({' before, '.join(pair)} after)"
        say_result(console, f"{each.state}: {each.text}{values}")


def _figure_table(figures: tuple[EvidenceChange, ...]) -> Any:
    table = plain_table("", "before", "after", "change")
    for each in figures:
        change = "" if each.ratio is None else percent_change(each.ratio)
        unit = each.before.unit
        table.add_row(
            each.name,
            kpi_text(each.before.value, unit),
            kpi_text(each.after.value, unit),
            change,
        )
    return table


def _kernel_table(kernels: tuple[KernelChange, ...]) -> Any:
    """Return the kernels whose totals differ most."""
    table = plain_table("kernel", "count", "total before", "after", "difference", "one launch", "")
    for each in kernels[:TOP]:
        before, after = each.before, each.after
        counts = [f"{p.count:,}" if p is not None else "-" for p in (before, after)]
        totals = [kpi_text(p.total_s, "s") if p is not None else "-" for p in (before, after)]
        table.add_row(
            short(each.name),
            counts[0] if counts[0] == counts[1] else " -> ".join(counts),
            *totals,
            _difference(each),
            "" if each.ratio is None else percent_change(each.ratio),
            each.word,
        )
    if len(kernels) > TOP:
        table.add_row(f"{len(kernels) - TOP} more", *[""] * 6)
    return table


def _difference(change: KernelChange) -> str:
    """Return how much longer all launches take; `-` where no file tells their time."""
    if not change.is_timed:
        return "-"
    sign = "-" if change.difference_s < 0 else "+"
    return f"{sign}{duration(abs(change.difference_s))}" if change.difference_s else "0"
