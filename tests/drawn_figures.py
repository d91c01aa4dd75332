"""Tables of what reports compute of drawn data: texts of ticks, lanes, cells, words, comments."""

from __future__ import annotations

import itertools
import math
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import compiled_cases
import synthetic
from compiled_cases import CASE, failed, other, paired, predicted, timed
from table_text import text_of

from workbench import __version__
from workbench.code.compared_pair import ComparedPair
from workbench.data.compiled_code import HotLoop
from workbench.data.impl_check import ImplCheck
from workbench.data.intervals import Intervals
from workbench.data.record import (
    Comparison,
    Failure,
    Outcome,
    Ratio,
    Record,
    Run,
    Series,
    Verdict,
)
from workbench.data.verdict import holm_verdicts
from workbench.reports import calibration, compare, figure, run_index, versions
from workbench.reports.experiment import _untold as untold
from workbench.reports.experiment import failure_lines
from workbench.reports.figures import (
    code,
    curve,
    curve_data,
    drawing,
    history,
    scene,
    sweep,
    trace,
)
from workbench.reports.figures.compare import round_ratios
from workbench.reports.pair_texts import problem_name, troubles
from workbench.reports.pull_request import GateResult, escape_markdown, markdown, table
from workbench.reports.versions import CodeChanges
from workbench.tuner.held_back import ErrorRange, HeldSize

Rows = Iterator[str]
DICE = 5


def ticks() -> Rows:
    """Yield texts and places of ticks at and beside their limits."""
    sizes = (1, 768, 16_383, 16_384, 16_385, 17_408, 1 << 20, 3 << 20, 99_999, 100_001, 1_500_000)
    yield text_of([curve.size_text(size) for size in sizes])
    values = (0.5, 200, 9999, 1e4, 12_500, 1e6, 2.5e6, 1e9, 3e10, 1e12, -2e12, 0)
    yield text_of([drawing.plain(value) for value in values])
    yield text_of([trace.tick_step(n) for n in (1, 1.01, 2, 5, 9.9, 10, 10.1, 25, 70, 1234)])
    yield text_of(
        [trace._scale(n) for n in (0, 1, 1999, 2000, 2001, 1_999_999, 2 * 10**6, 2 * 10**9)]
    )
    for low, high in ((1.2, 20), (1.2, 24), (1.2, 23.9), (1, 150), (1, 200), (0.3, 900), (2, 7)):
        yield f"{low} to {high}: {text_of(sweep.one_two_five(low, high))}"
    ratios = [n + d for n in sweep.HEAT_STEPS for d in (-1e-9, 0, 1e-9)]
    yield text_of([sweep.heat_step(ratio) for ratio in ratios])
    yield text_of([sweep.jitter(n) for n in range(8)])
    yield text_of([scene.mark_of(n) for n in range(18)])
    impls = [f"impl{n}" for n in range(14)] + [f"library{n}" for n in range(6)]
    yield text_of(sweep.marks_of(impls, impls[14:]))
    yield text_of([drawing.marker_of(mark) for mark in (*drawing.MARKS, *drawing.LIBRARY_MARKS)])
    unit = SimpleNamespace(time=lambda s: s)
    times = (9.999e3, 1e4, 1.01e4, 99.9, 100.0, 100.1, 0.999, 1.0, 1.01, 0.0)
    yield text_of([sweep.Board.text(unit, t) for t in (*times, None)])  # type: ignore[arg-type]
    fields = {"num_warps": 4, "num_stages": 3, "block_m": 128, "block_k": 64}
    for width in (74, 124):
        yield text_of([sweep._terse(fields, [*fields][n:], width) for n in range(5)])
    yield text_of(sweep._differing([fields, {**fields, "num_warps": 8}], ("block_m",)))


def lanes() -> Rows:
    """Yield what boxes cover of pixels, their columns, and the lanes of jumps."""
    dice = random.Random(DICE)
    boxes = Intervals([0, 5, 30, 95, 100, 150], [4, 10, 55, 100, 140, 170])
    for start, end, pixels in ((0, 100, 10), (0, 100, 7), (0, 160, 16), (10, 90, 4), (0, 40, 40)):
        shares = trace._coverage(boxes, start, end, pixels)
        yield f"{start} {end} {pixels}: {text_of(shares)}"
        below = [dice.choice((0.0, 0.0, 0.25)) for _ in shares]
        yield f"  {trace._columns(shares, below, 40.0)}"
        yield f"  {trace._axis(start, end, pixels, 80)}"
    for count in (0, 1, 3, 8, 16):
        jumps = [(dice.randrange(12), dice.randrange(12)) for _ in range(count)]
        yield f"{jumps} {code._lanes(jumps)}"
    for n in (0, 1, 2, 3, 10, 116, 117, 240):
        times = [30 * (1 + dice.choice((0.001, 0.03)) * dice.random()) for _ in range(n)]
        yield f"{n}: {history.sparkline(times, [(k, 'step') for k in range(0, n, 7)])}"


def held_sizes(dice: random.Random) -> list[HeldSize]:
    """Return sizes at which a calibration chose well, badly, or what was not measured."""

    def perhaps(shares: tuple[float, ...]) -> float | None:
        share = dice.choice((*shares, math.nan))
        return None if math.isnan(share) else 1e-5 * share

    return [
        HeldSize({"M": 64 * n}, 1e-5, "tiles", perhaps((1.0, 1.05, 1.0501, 1.2)),
                 perhaps((1.0, 1.5)), 1e-5 * dice.choice((1.0, 1.3)), 1e-5 * dice.choice((1.0,
                  1.1)),
                 dice.choice((math.nan, 0.25, 0.9)), dice.choice((1.0, 1.1, 1.11, 3.0)),
                 [dice.choice((0.01, 0.2)) for _ in range(3)])
        for n in range(1, dice.randrange(2, 7))
    ]  # fmt: skip


def calibrations() -> Rows:
    """Yield cells, words and points of calibrations."""
    dice = random.Random(DICE)
    known = SimpleNamespace(title="calibration of an H100", times=range(12_345))
    for number in range(12):
        errors = dice.choice((None, ErrorRange(0.8, 1.25)))
        parts = [
            calibration.CalibratedPart(name, "bf16", n, 40 * n, errors,
             held_sizes(dice) if n else [])
            for n, name in enumerate(("matmul", "softmax", "copy")[: 1 + number % 3], number % 2)
        ]  # fmt: skip
        yield calibration.sentence(known, parts)  # type: ignore[arg-type]
        for part in parts:
            cells = [cell(part) for _, cell in calibration.KERNELS]
            yield f"  {text_of(cells)} {text_of(part.plain)}"
            for held in part.held_sizes:
                yield f"    {text_of([cell(held) for _, cell in calibration.SIZES])}"
            yield f"    {text_of(calibration.ratios(part.held_sizes, 'chosen_s'))}"


def pairs_of(dice: random.Random, count: int) -> list[ComparedPair]:
    """Return pairs of code: equal, worse, better, failing; some tuned and some measured."""

    def facts() -> Any:
        if dice.random() < 0.1:
            return failed(dice.choice(("ptxas: no room", "it needs more shared memory")))
        resources = dict(
            registers=dice.choice((228, 255)), spill_bytes=dice.choice((0, 96)),
            shared_bytes=dice.choice((1024, 1536)), occupancy=dice.choice((0.125, 0.25)),
        )  # fmt: skip
        loop = dice.choice((None, HotLoop(138, {"matrix": 64}, 396),
                            HotLoop(190, {"matrix": 64, "spills": 12}, 396)))  # fmt: skip
        time = dice.choice((None, predicted(1e-3), predicted(1.2e-3)))
        return other(dice.choice("ab"), time, loop, **resources)

    result = []
    for n in range(count):
        case = replace(CASE, device=dice.choice(("a100", "h200")), config={"block_m": 64 << n % 2},
                       kernel=dice.choice(("matmul", "softmax")))  # fmt: skip
        pair = paired(case, facts(), facts(), tuned=dice.choice(("", "2026-11-01")))
        word = dice.choice(("SLOW", "SAME", "FAST"))
        ratio = Ratio(1.02, 1.01, 1.03)
        measured = Verdict(word, ratio, None, 0.01, 0.01, 0.001, 48, "so")
        if pair.word == "WORSE" and dice.random() < 0.4:
            pair = timed(pair, *dice.choice(((measured,), (None, "it broke"))))
        result.append(pair)
    return result


def changes_of(dice: random.Random, count: int) -> CodeChanges:
    """Return changed code, perhaps of a run that was stopped."""
    pairs = pairs_of(dice, count)
    of = dice.choice((len(pairs), len(pairs) + 3))
    return compiled_cases.changes(
        "Two compilers", "3.6.0", "3.9.0", ["a100", "h200", "mi300x"], pairs, [("too large", 2)],
        "workbench compare", "2026-11-26T12:00", 1.0, dice.random() < 0.4, of,
        dice.choice((0, 1, 5)), checks_of(dice),
    )  # fmt: skip


def checks_of(dice: random.Random) -> list[ImplCheck]:
    """Return checks of each state, in any order."""
    states: Any = ("right", "wrong", "other reference", "unchecked", "right")
    return [ImplCheck(f"k.{s}", s, "" if s == "right" else f"it is {s}")
            for s in dice.sample(states, dice.randrange(6))]  # fmt: skip


def code_changes() -> Rows:
    """Yield sentences and rows on pairs of code."""
    dice = random.Random(DICE)
    for count in (0, 1, 1, 2, 3, 5, 8, 8, 12):
        changes = changes_of(dice, count)
        pairs = changes.pairs
        yield versions.conclusion(changes)
        yield f"  {versions.first_word(changes, versions.changed_pairs(pairs))}"
        yield f"  {text_of(versions.word_table(changes))}"
        yield from (f"  {line}" for line in versions.tune_again(pairs))
        yield from (f"  {line}" for line in versions.code_errors(pairs))
        for rows in (versions.COLUMNS, versions.WIDE, versions.NARROW):  # fmt: skip
            yield f"  {text_of(versions.pair_rows(pairs, rows))}"


def compared_of(dice: random.Random, run: Run, outcomes: list[Outcome]) -> ComparedPair:
    """Return two outcomes of a run, one of which may have no time, with their verdict."""
    records = [o for o in outcomes if isinstance(o, Record) and o.is_measured]
    left, right = dice.sample(records, 2)
    failure = Failure(right.case, right.key, run.id, synthetic.AT, "launch", "it broke.")
    ratio = Ratio(*(dice.choice(some) for some in ((1.0, 1.02), (0.99, 1.01), (1.01, 1.03))))
    word = dice.choice(("SLOW", "SAME", "FAST", "INCONCLUSIVE"))
    cycles = dice.choice((None, Ratio(1.0, 0.99, 1.01)))
    held = Verdict(word, ratio, cycles, 0.01, 0.01, dice.choice((0.001, 0.02)), 48, "so")
    verdict = dice.choice((held, held, None))
    impl = dice.choice(("left", "l" * 60))
    comparison = Comparison("r", "", right.case.kernel, right.case.sizes, right.case.dtype, impl,
                            "right", left.key, right.key, verdict)  # fmt: skip
    ends: Any = (left, right) if verdict else dice.choice(((left, failure), (None, right)))
    return ComparedPair(comparison, *ends)


def comparisons() -> Rows:
    """Yield sentences, rows and facts on comparisons."""
    dice = random.Random(DICE)
    for count, make in zip((0, 1, 1, 1, 2, 3, 6), itertools.cycle(
            (synthetic.matmul, synthetic.softmax, synthetic.copy)), strict=False):  # fmt: skip
        run, outcomes = make()
        shown = [compared_of(dice, run, list(outcomes)) for _ in range(count)]
        yield compare.conclusion(shown)
        yield f"  {text_of(holm_verdicts([c.comparison for c in shown]))}"
        yield f"  {text_of(compare._how(run, shown))}"
        for each in shown:
            rows = compare.operand_rows(each, run)
            lost = [text for text in troubles(each).split("; ") if text]
            yield f"  {problem_name(each)} {text_of(lost)} {text_of(rows)}"
            yield f"  {text_of(compare.filled_columns(rows))} {text_of(compare.line(each))}"
            verdict = each.verdict
            yield f"  {text_of(compare._facts(verdict))} {text_of(compare._notes(each))}"
            yield f"  {compare.ratio_lines(verdict) if verdict else ''}"
            yield f"  {text_of(compare._resources(each))}"
            if each.timings:
                yield f"  {text_of(round_ratios(each)[:9])}"


def round_figures() -> Rows:
    """Yield the ratios of rounds whose windows and clocks are known or not."""
    one, two = (synthetic.measured(s, n=12, seed=n) for n, s in enumerate((3e-5, 3.1e-5)))
    record = next(o for o in synthetic.softmax()[1] if isinstance(o, Record))
    windows = {"window_sizes": (4, 4, 4), "window_mhz": (1700.0, 1710.0, 1690.0)}
    some = [one, replace(one, **windows), replace(two, **windows), two,
            replace(two, window_sizes=(6, 6), window_mhz=(1500.0, 1600.0)),
            replace(two, window_sizes=(4, 4, 4), window_mhz=(1500.0,))]  # fmt: skip
    for a, b in itertools.product(some, repeat=2):
        left, right = (replace(record, timing=timing) for timing in (a, b))
        pair = ComparedPair(
            Comparison("r", "", "k", {}, "bf16", "a", "b", "", "", None), left, right
        )
        yield f"{text_of(round_ratios(pair))} {text_of(round_ratios(pair, True))}"


def comments() -> Rows:
    """Yield comments on pull requests, and texts at the limits of their rooms."""
    dice = random.Random(DICE)
    for exit_code in (0, 1, 2, 3, 130, 9):
        for changes in (None, changes_of(dice, 4), changes_of(dice, 0)):
            left = [(f"k{n}", "new since v1") for n in range(dice.randrange(3))]
            shown = (versions.conclusion(changes), changes.pairs) if changes else ()
            result = GateResult("v1", exit_code, "workbench gate v1", left, *shown,
                                nothing="" if changes else "no file has changed",
                                checks=checks_of(dice))  # fmt: skip
            yield from markdown(result).replace(__version__, "VERSION").splitlines()
    run, outcomes = synthetic.softmax()
    shown = [compared_of(dice, run, list(outcomes)) for _ in range(5)]
    for gpu in ("", "NVIDIA H200"):
        text = compare.conclusion(shown)
        result = GateResult("v1", 1, "workbench gate v1", (), text, shown, gpu)
        yield from markdown(result).replace(__version__, "VERSION").splitlines()
    for n in (4, 5, 6):
        yield f"{escape_markdown('abcdef'[:n], 5)} {escape_markdown('a b', n)}"
    for room in (0, 10, 11, 12, 22, 24, 100):
        yield from table(("a", "b"), [("1", "2"), ("3", "4")], (1,), room).splitlines()


def curves() -> Rows:
    """Yield the curves of measurements over one axis."""
    dice = random.Random(DICE)
    for number in range(8):
        run, outcomes = synthetic.softmax(predicted=number % 4 == 3)
        record = next(o for o in outcomes if isinstance(o, Record))
        made: list[Outcome] = []
        for rows in (1024, 2048, 4096):
            for impl, backend in (("rows", "triton"), ("torch", "torch"), ("other", "triton")):
                sizes = {"M": rows, "N": 4096 << (number == 5 and rows == 2048)}
                case = replace(record.case, impl=impl, backend=backend, sizes=sizes)
                timing = synthetic.measured(rows * 5e-9 * dice.choice((1.0, 1.1)), n=8, seed=rows)
                phase: Any = dice.choice(("final", "final", "hot", "predict"))
                counts = {"flops": 0, "bytes": 0} if number == 4 else {}
                one = replace(record, case=case, key=f"{impl}{rows}", phase=phase, **counts)
                made.append(one if run.predicted else replace(one, timing=timing))
        yield from (text_of(c).replace("\n", " / ") for c in curve_data.curves_of(run, made))
        groups = curve_data.groups_of(run, made)
        for group in groups:
            yield f"  {group.name} {text_of([group.ceiling(r) for r in group.records])}"
            yield f"  {text_of([group.library_ratio(r) for r in group.records])}"


def scales() -> Rows:
    """Yield the limits and ticks that axes have for times and sizes at the limits of a scale."""
    run, outcomes = synthetic.softmax()
    record = next(o for o in outcomes if isinstance(o, Record))
    for high in (1.0, 2.999, 3.0, 3.001, 20.0):
        times = [replace(record, timing=synthetic.measured(3e-5 * by, n=8, noise=0.0))
                 for by in (1.0, high)]  # fmt: skip
        board = sweep.Board({}, ("rows",), (1e-6, "µs"), record, {})
        ax = figure(400, 300).add_axes((0.1, 0.1, 0.8, 0.8))
        sweep._time_scale(ax, board, times)
        yield f"{high} {ax.get_yscale()} {text_of(ax.get_ylim())} {text_of(list(ax.get_yticks()))}"
    ax = figure(400, 300).add_axes((0.1, 0.1, 0.8, 0.8))
    sweep._time_scale(ax, board, [])
    yield f"{ax.get_yscale()} {text_of(ax.get_ylim())}"
    for last in (8190, 8191, 8192, 16_384):
        sizes = (1024, 2048, last)
        line = Series("a", sizes, (1.0, 2.0, 3.0))
        ax = curve.curve_figure(curve.Curve("N", "bf16", "GB/s", (line,))).axes[0]
        yield f"{last} {ax.get_xscale()} {[t.get_text() for t in ax.get_xticklabels()]}"
    failures = [Failure(record.case, "f", run.id, synthetic.AT, "check", reason)
                for reason in ("it is off.", "it broke", "it broke")]  # fmt: skip
    told = SimpleNamespace(caveats=["No time of a: it is off.", "Other."])
    for predicted_ in (True, False):
        left = untold(replace(run, predicted=predicted_), failures, [told])  # type: ignore[list-item]
        yield text_of(failure_lines(left))


def details() -> Rows:
    """Yield the ticks of finalists, and the part of a trace that is drawn in detail."""
    for n in (1, 2, 59, 60, 61, 119, 120, 121, 200):
        times = synthetic.measured(3e-5, n=2 * n, seed=n)
        for timing in (replace(times, window_sizes=(2,) * n), times):
            record: Any = SimpleNamespace(timing=timing)
            ticks_ = sweep._ticks(timing)
            yield f"{n} {len(ticks_)} {text_of(ticks_[:3])} {text_of(sweep._spread(record))}"
    for count in (60, 61, 100, 101):
        starts = [10 * k for k in range(count)]
        ends = [10 * k + 5 + 200 * (k == count // 2 + 3) for k in range(count)]
        whole = SimpleNamespace(order=range(count), end=ends[-1])
        table_ = SimpleNamespace(activities=SimpleNamespace(starts=starts, ends=ends))
        repeats = [SimpleNamespace(start=20, end=920, count=n) for n in (1, 2, 7)]
        for some in ([], *([repeat] for repeat in repeats)):
            summary: Any = SimpleNamespace(times=whole, trace=table_, repeats=some)
            yield f"{count} {len(some)} {trace.detail_window(summary)}"


def indices() -> Rows:
    """Yield the rows of an index of runs, from pages that say more and less."""
    facts = '{"kernel": "softmax", "sizes": "M=1", "started": "2026-11-21T09:30:12", "odd": 3}'
    pages = {
        "20261121-093000-a": f'<meta name="run" content="{facts.replace(chr(34), "&quot;")}">'
        '<title>A  title</title><p id="answer" class="x">It <b>is</b>\n fast.</p>',
        "20261120-080102-b": '<title>B</title><meta name="run" content="not JSON">',
        "c": "", "20261119-0801-d": '<meta name="run" content="[1]"><p id="answer">So.</p>',
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "runs")
        for run, html in pages.items():
            (folder / run).mkdir(parents=True)
            (folder / run / "report.html").write_text(html, encoding="utf-8")
            yield text_of(run_index._index_run(folder / run / "report.html"))
        listed = run_index.page(folder)
        yield text_of([listed.index(run) for run in pages] == sorted(map(listed.index, pages)))


TABLES: dict[str, Callable[[], Rows]] = {
    "report_ticks": ticks, "report_lanes": lanes, "report_calibrations": calibrations,
    "report_code_changes": code_changes, "report_comparisons": comparisons,
    "report_rounds": round_figures, "report_comments": comments, "report_curves": curves,
    "report_indices": indices, "report_scales": scales, "report_details": details,
}  # fmt: skip
