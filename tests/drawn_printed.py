"""Tables of what commands print and draw of drawn traces, records, code and workloads."""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import compiled_cases
import drawn_data
import drawn_numbers
import synthetic
from table_text import text_of

from workbench.api import figures, frames
from workbench.backend.cluster.spread import references_text
from workbench.code.compared_pair import CodeChange, ComparedPair, rank_pairs
from workbench.commands import code_table, console, diagnose_trace, diagnosed, trace_tables, traces
from workbench.commands.operators import operator_table
from workbench.commands.pair_results import code_result
from workbench.commands.result import plain_record
from workbench.commands.workload_tuning import print_plan, print_results
from workbench.data.compiled_code import CompiledCode
from workbench.data.record import Case, Evidence, Failure, Outcome, Predicted, Record
from workbench.data.selection import Selection
from workbench.reports.pair_texts import MEANINGS, is_predicted, reasons
from workbench.traces.trace import (
    ActivityKind,
    CheckerRecord,
    CheckerResult,
    Dispatch,
    Geometry,
    Total,
    Trace,
    TraceFile,
)
from workbench.traces.trace_summary import summarise
from workbench.workload import tuning_text
from workbench.workload.entries import add_middles, entries_of
from workbench.workload.plan import groups_of, work_list
from workbench.workload.tuned_table import MeasuredTime
from workbench.workload.tuning import TunedSignature

Rows = Iterator[str]


def to_console(say: Callable[..., None], *given: object) -> Callable[[Any], None]:
    """Return `say` with what it says given, for a console to come."""
    return lambda to: say(to, *given)


def printed(call: Callable[[Any], object], width: int = 200, quiet: bool = False) -> list[str]:
    """Return the lines that a call prints to a console."""
    from rich.console import Console

    out = io.StringIO()
    to = Console(file=out, width=width, highlight=False, markup=False, emoji=False)
    to.quiet = quiet
    with redirect_stdout(out):
        call(to)
    return [line.rstrip() for line in out.getvalue().splitlines()]


# Traces


def drawn_trace(seed: int) -> Trace:
    """Return a trace of one of several kinds: a timeline, counters, sums, the host alone."""
    dice = random.Random(seed)
    trace = Trace("ncu")
    if seed % 5 < 2:
        trace = drawn_data.timeline_of(dice, 30, 1000)
    elif seed % 5 == 2:
        for n in range(dice.choice((1, 3, 22))):
            dispatch = Dispatch(
                f"kernel_{n % 4}" * (1 + n % 12), str(n), duration_ns=dice.choice((None, 1e3, 5e6))
            )
            dispatch.geometry = dice.choice((Geometry(), Geometry((4, 2, 1), (64, 1, 1))))
            dispatch.counters = {
                name: drawn_data.CounterValue(
                    name,
                    float(dice.choice((0, 7, 4096))),
                    "%" if "pct" in name else "byte",
                    str(n),
                    scope="launch",
                )
                for name in (
                    "dram__bytes_read.sum",
                    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
                    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
                    "odd",
                    "other",
                )
                if dice.random() < 0.6
            }
            trace.dispatches.append(dispatch)
    elif seed % 5 == 3:
        kind = dice.choice((ActivityKind.KERNEL, ActivityKind.CALL))
        trace.totals = [
            Total(kind, f"total{n}", n, 1e4 * n, "0", dice.choice((None, 1.0)), 2e4)
            for n in range(1, 25)
        ]
    else:
        for n in range(26):
            name = f"aten::op{n % 23}"
            trace.activities.add(ActivityKind.OP, name, 100 * n, 100 * n + 50 + n, "", "1", "p")
            trace.activities.add(
                ActivityKind.RANGE, f"Range{n % 12}", 100 * n, 100 * n + 90, "", "1", "p"
            )
    trace.title = "a format"
    trace.files = [TraceFile(f"file{n}", n, "hash") for n in range(dice.choice((1, 5, 6)))]
    trace.devices = {"0": {"name": "NVIDIA H200"}, "1": dice.choice(({"arch": "sm_90"}, {}))}
    trace.notes = ["a note"]
    trace.tables = {"facts": "x" * 500}
    if seed % 3 == 0:
        records = [CheckerRecord("error", "Race", "k", 16, "k.py", n) for n in range(12)]
        records[1] = CheckerRecord("warning", "Leak")
        trace.checker = CheckerResult(
            dice.choice(("memcheck", "")), records, dice.choice((None, 0, 2)), 0, 1
        )
    return trace


def printed_traces() -> Rows:
    for seed in range(30):
        trace = drawn_trace(seed)
        summary = summarise(trace)
        kept = traces.trace_run(summary, "read", "file.json", "read")
        yield f"{seed} {kept.run.device} {kept.run.source}"
        for quiet in (False, True):
            yield from (
                f"  {line}"
                for line in printed(
                    to_console(trace_tables.print_trace, summary, kept.findings), quiet=quiet
                )
            )
        yield from (f"  {text_of(replace(f, at='', run=''))}" for f in kept.findings)
        yield from (f"  {text_of(replace(p, at='', run=''))}" for p in kept.profiles[:6])
        report = diagnose_trace.trace_report(summary, "the title")
        yield f"  {report.heads} {text_of(report.results)} {report.notes}"
    for value, unit in itertools.product(
        (None, 0.0, 0.1234, 12.5, 12_345.6), ("1", "s", "kernels", "copies", "cycle", "B", "B/s")
    ):
        yield f"{value} {unit}: {trace_tables.kpi_text(value, unit)}"


def printed_operators() -> Rows:
    for seed in range(16):
        dice = random.Random(seed)
        rows = []
        for n in range(dice.choice((1, 4, 20, 21, 30))):
            row = {
                "name": f"aten::op{n}" * dice.choice((1, 1, 9)),
                "device": dice.choice(("cpu", "cpu", "cuda")),
                "is_range": dice.random() < 0.1,
                "calls": float(dice.choice((1, 1500))),
                "cpu_s": 2e-3,
                "self_cpu_s": dice.choice((0.0, 1e-3)),
                "device_s": 3e-3,
                "self_device_s": dice.choice((0.0, 2e-3)) if seed % 2 else 0.0,
                "self_cpu_bytes": dice.choice((0.0, -512.0)) if seed % 3 else 0.0,
                "self_device_bytes": dice.choice((0.0, 4e6)) if seed % 3 else 0.0,
            }
            if seed % 4 == 1:
                row["shapes"] = "[8, 4]"
            rows.append(row)
        yield f"{seed}"
        yield from (f"  {line}" for line in printed(lambda to: to.print(operator_table(rows))))  # noqa: B023
    yield references_text({"copy": 4.02e12, "product": 6.514e14, "other": 1e12})


def drawn_diagnosed(dice: random.Random, n: int) -> diagnosed.Diagnosed:
    evidence = tuple(
        Evidence(f"e{k}, share", dice.choice((0.5, 2e-6, 12345.0)), unit, "profiled")
        for k, unit in enumerate(dice.sample(("1", "B", "s", "FLOP", "B/s", "Hz", "kernels"), 3))
    )
    gain = dice.choice((None, 0.0, 1e-5, 2e-3))
    return diagnosed.Diagnosed(
        dice.choice(("", "kernel", "k" * 90)),
        f"rule{n}",
        f"word{n}",
        "A sentence.",
        evidence,
        "Do it.",
        "small",
        "ncu",
        dice.choice(((), ("a.py:1", "b.py:2"))),
        gain,
        dice.choice((None, 0.005, 0.25)),
        "window",
        dice.choice((1, 2)),
    )


class FewRules(diagnosed.DiagnosisReport):
    """A report of twenty rules, however many there are."""

    @property
    def rule_count(self) -> int:
        return 20 - len(self.missing)


def printed_diagnoses() -> Rows:
    for seed in range(24):
        dice = random.Random(seed)
        results = diagnosed.rank_diagnoses(drawn_diagnosed(dice, n) for n in range(seed % 4))
        missing = [
            diagnosed.NotEvaluable(
                f"r{n}", (f"need{n % (1 + seed % 7)}",) * (1 + n % 2), "do" * (n % 2)
            )
            for n in range(dice.choice((0, 1, 5, 8, 20)))
        ]
        report = FewRules("title", ("head",), results, tuple(missing), ("note",))
        counts = (
            len(diagnosed.rules()) + len(diagnosed.kernel_rules()) + len(diagnosed.code_rules())
        )
        for everything, quiet in itertools.product((False, True), repeat=2):
            yield f"{seed} {everything} {quiet}"
            yield from (
                f"  {line}"
                for line in printed(
                    to_console(diagnosed.say_report, report, everything), quiet=quiet
                )
            )
        whole = diagnosed.DiagnosisReport("", (), results, tuple(missing))
        yield f"  {whole.rule_count - counts} {len(report.plain()['diagnoses'])}"
    for metric in (
        "duration",
        "dram_bytes",
        "occupancy",
        "stall_barrier",
        "programs",
        "matrix_flop",
        "l2_hit",
        "spill_share",
    ):
        yield f"{metric}: {diagnosed.counters_of(metric)}"


# Machine code


def code_of(dice: random.Random, case: Case) -> Outcome:
    if dice.random() < 0.15:
        return compiled_cases.failed("CompileError: no", case)
    base = next(o.resources for o in synthetic.softmax()[1] if isinstance(o, Record))
    assert base is not None
    resources = replace(
        base, registers=dice.choice((32, 64, 90)), spill_bytes=dice.choice((0, 8, 64))
    )
    predicted = (
        None
        if dice.random() < 0.3
        else Predicted(dice.choice((1e-5, 1.2e-5)), "m", 1e-6, 1e-6, None, 0.0, 1e-6, "memory")
    )
    return compiled_cases.outcome(CompiledCode("code", 1), resources, predicted, case)


def part_of(pair: ComparedPair) -> Mapping[str, Any]:
    about = "Two compilers", "3.6.0", "3.9.0", ["a100"], [pair], [], "workbench compare"
    result = code_result(compiled_cases.changes(*about, "2026-11-26T12:00", 1.0))
    return result.plain()["parts"][0]


def expected_of(pair: ComparedPair) -> Mapping[str, Any]:
    both = {"before": pair.before, "after": pair.after}
    plain = {name: plain_record(o) for name, o in both.items() if isinstance(o, Record)}
    return {"expected_s": {name: plain.get(name, {}).get("expected_s") for name in both}}


def printed_code() -> Rows:
    from workbench.code.compared_pair import ORDER

    for seed in range(18):
        dice = random.Random(seed)
        pairs = []
        for n in range(dice.choice((1, 5, 45))):
            word = dice.choice(ORDER)
            case = Case(
                dice.choice(("softmax", "matmul")),
                "rows",
                "triton",
                {"w": n},
                {"M": 8 * n},
                "bf16",
                dice.choice(("h200", "a100")),
            )
            worse = ("registers 32 to 64",) if n % 2 else ()
            better = ("spills 8 to 0 B",) if n % 3 == 0 else ()
            tuned = "2026-11-01" if n % 4 == 0 else ""
            both = code_of(dice, case), code_of(dice, case)
            pair = compiled_cases.paired(case, *both, tuned=tuned)
            pairs.append(replace(pair, change=CodeChange(word, worse, better)))
        changes = compiled_cases.changes(
            "title",
            "Triton 3.6",
            "Triton 3.9",
            ["h200", "a100"],
            pairs,
            [("it has no default", 2), ("odd", 1)],
            "compare",
            synthetic.AT,
            9.0,
            interrupted=seed % 5 == 0,
            of=60,
            unchanged=seed % 3,
        )
        for width in (120, 149, 150, 199, 200, 260):
            yield f"{seed} {width}"
            yield from (
                f"  {line}" for line in printed(to_console(code_table.say_changes, changes), width)
            )
        yield from (
            f"  {text_of(expected_of(p))} {p.predicted_ratio} {is_predicted(p)} {reasons(p)}"
            for p in rank_pairs(pairs)[:6]
        )
        yield f"  {sorted(part_of(pairs[0]))}"
    yield f"{sorted(MEANINGS)}"


# The console of sweeps


def outcomes_of(dice: random.Random, many: int) -> list[Outcome]:
    _, some = synthetic.softmax()
    result: list[Outcome] = []
    records = [o for o in some if isinstance(o, Record)]
    for n in range(many):
        base = dice.choice(records)
        case = replace(
            base.case,
            impl=dice.choice(("rows", "torch")),
            backend=dice.choice(("triton", "triton", "torch")),
        )
        if dice.random() < 0.3:
            result.append(
                Failure(
                    case, f"k{n % 9}", "r", synthetic.AT, dice.choice(("refused", "check")), "no"
                )
            )
        else:
            result.append(
                replace(
                    base,
                    case=case,
                    key=f"k{n % 9}",
                    phase=dice.choice(("first_pass", "final", "hot")),
                )
            )
    return result


def progress() -> Rows:
    for seed in range(40):
        dice = random.Random(seed)
        line = console.ProgressLine(dice.choice((0, 5, 9, 12)), dice.choice((0, 0, 3)))
        clock = SimpleNamespace(now=100.0)
        before, console.time = console.time, SimpleNamespace(monotonic=lambda: clock.now)  # type: ignore[assignment] # noqa: B023
        try:
            line._started = 100.0
            for outcome in outcomes_of(dice, dice.randrange(12)):
                line.saw(outcome)
            clock.now += dice.choice((0.0, 59.4, 61.0, 125.0))
            line.counts = {w: dice.randrange(3) for w in (*console.COUNTED, "refused")}
            if seed % 6 == 5:
                line.step = "final of 3"
            best = line.best.key if line.best else None
            yield f"{seed} {line.done_count}/{line.total} {line.plain} | {best}"
            for width in (12, 20, 30, 40, 55, 60, 70, 80, 100, 140):
                yield f"  {width}: {line.draw(width).plain}"
            yield f"  {line.draw(100, '#-').plain}"
        finally:
            console.time = before
    for seconds, minute in (({"start": 1.25, "wait": 0.5}, None), ({"start": 1.0}, 1210.4)):
        yield console.breakdown_line(SimpleNamespace(seconds=seconds, configs_per_minute=minute))  # type: ignore[arg-type]
    for text in ("plain", "a\x1b[31mb", "tab\tkept\n", "\u202e", "é", "\x7f\x9f", "\x0a\x0b"):
        yield repr(console.clean(text))
    for run, _ in (
        synthetic.softmax(),
        synthetic.softmax(predicted=True),
        synthetic.softmax(device="m2max"),
        synthetic.softmax(True, "m2max"),
    ):
        yield console.plan_line(run)


def sweep_consoles() -> Rows:
    """Yield what a sweep prints from its begin to its end, whole and quiet."""
    run, outcomes = synthetic.softmax()
    other, _ = synthetic.softmax(predicted=True)
    for seed, quiet in itertools.product(range(6), (False, True)):
        dice = random.Random(seed)
        impls = [
            SimpleNamespace(
                name="rows", work=print, unchecked_reason="it is new" if seed % 3 == 1 else ""
            ),
            SimpleNamespace(
                name="split", work=None, unchecked_reason="it is odd" if seed % 3 == 2 else ""
            ),
        ]
        if seed % 3 == 1:
            impls[1].unchecked_reason = "it is new"
        plan: Any = SimpleNamespace(
            candidates=[SimpleNamespace(impl=i) for i in impls],
            left_out=seed % 2 * 5,
            failures=[1] * (seed % 3),
        )

        def go(
            to: Any,
            dice: random.Random = dice,
            seed: int = seed,
            quiet: bool = quiet,
            plan: Any = plan,
        ) -> None:
            one = console.SweepConsole(quiet)
            one.console, one._redirection = to, None
            one.begin(other if seed % 2 else run, plan, seed % 4)
            one.first_recommendation("take it.", 3, 9)
            record = next(o for o in outcomes if isinstance(o, Record))
            one.so_far(record, 4)
            one.print_joining(2)
            for outcome in outcomes_of(dice, 5):
                one.saw(outcome, {"measured": 2, "wrong": 1})
            one.step(SimpleNamespace(name="halving", total=4))  # type: ignore[arg-type]
            one.again(run)
            one._line._started = console.time.monotonic()
            one.print_stop()
            spent: Any = SimpleNamespace(
                seconds={"timed": 1.0} if seed % 2 else {}, configs_per_minute=None
            )
            one.conclude(
                "the result.",
                {"measured": 2, "failed": 1, "refused": 0},
                spent,
                Path("/p/index.html"),
                Path("/e") if seed % 2 else None,
            )
            served: Any = SimpleNamespace(ratio=1.0213, member="w 4")
            chosen: Any = SimpleNamespace(
                members=["a", "b"][: 1 + seed % 2],
                served={"M=1": served},
                exact=seed % 2 == 0,
                within=0.03,
            )
            one.portfolio(chosen, Path("/portfolio.json"))

        yield f"{seed} {quiet}"
        yield from (f"  {line}" for line in printed(go))


# Frames and figures


def drawn_figure(fig: Any) -> Rows:
    """Yield the axes of a figure: labels, lines, texts, limits."""
    if fig is None:
        yield "  no figure"
        return
    yield f"  size {text_of(tuple(fig.get_size_inches()))}"
    for ax in fig.axes:
        limits = text_of((ax.get_xlim(), ax.get_ylim()))
        scales = f"{ax.get_xscale()} {ax.get_yscale()}"
        yield f"  {ax.get_xlabel()!r} {ax.get_ylabel()!r} {scales} {limits}"
        for line in ax.lines:
            data = text_of(
                (list(map(str, line.get_xdata()))[:8], [float(y) for y in line.get_ydata()][:8])
            )
            colors = f"{line.get_color()} {line.get_markerfacecolor()}"
            yield f"    {line.get_label()} {line.get_marker()} {colors} {data}"
        for text in ax.texts:
            yield f"    {text.get_text()!r} {text_of(tuple(map(float, text.get_position())))}"


def drawn_figures() -> Rows:
    for predicted in (False, True):
        run, outcomes = synthetic.matmul(predicted)
        records = [o for o in outcomes if isinstance(o, Record)]
        yield f"ranked {predicted}"
        yield from drawn_figure(figures.ranked_figure(records[::9], Selection(False, records[9])))
        yield from drawn_figure(figures.ranked_figure(records[:40], Selection(False)))
        yield f"times {predicted}"
        yield from drawn_figure(figures.times_figure(records[:30:2]))
        yield from drawn_figure(figures.curve_or_times(run, outcomes[:20]))
        yield f"ceilings {predicted}"
        yield from drawn_figure(figures.ceilings_figure(run.ceilings))
    run, outcomes = synthetic.softmax()
    yield from drawn_figure(
        figures.ranked_figure([o for o in outcomes if isinstance(o, Record)], Selection(False))
    )
    for some in ([], outcomes[:1]):
        yield from drawn_figure(figures.times_figure([o for o in some if isinstance(o, Record)]))
    dice = random.Random(1)
    profiles = [drawn_data.profile(dice, f"kernel{n}" * (1 + n % 9)) for n in range(40)]
    yield from drawn_figure(figures.profiles_figure(profiles))
    yield from drawn_figure(figures.profiles_figure([]))
    rows = [
        {
            "kernel": f"k{n % 5 % 4}" if n % 7 else "rare",
            "kind": "measured" if n % 3 else "predicted",
            "at": f"2026-11-{1 + n % 28:02}T00:00:00+00:00",
            "time_s": 1e-5 * n or None,
        }
        for n in range(30)
    ]
    yield from drawn_figure(figures.history_figure(rows))
    yield from drawn_figure(figures.history_figure([]))
    bars = [
        figures.ValueRow(
            f"row {n}" * (1 + 4 * (n % 3)),
            1.0 + n,
            str(n),
            n % 2 == 0,
            0.9 + n if n % 3 else None,
            1.2 + n if n % 4 else None,
            n,
        )
        for n in range(26)
    ]
    for log, many in itertools.product((True, False), (0, 1, 24, 25, 26)):
        yield f"bars {log} {many}"
        yield from drawn_figure(figures.bars_figure(bars[:many], "label", log))


def data_frames() -> Rows:
    for make in (synthetic.matmul, synthetic.softmax, synthetic.copy):
        _, outcomes = make()
        yield from (
            frames.outcomes_frame(outcomes[::7])
            .to_csv(index=False, float_format="%.6g")
            .splitlines()
        )
    _, outcomes = synthetic.softmax(predicted=True)
    yield from frames.outcomes_frame(outcomes).to_csv(index=False, float_format="%.6g").splitlines()


# The tuning of workloads


def tuned(dice: random.Random, item: Any) -> TunedSignature:
    status = dice.choice(("faster", "predicted", "kept", "failed"))
    times = [MeasuredTime(t, 0.9 * t, 1.1 * t) for t in (2e-5, dice.choice((1e-5, 1.5e-5)))]
    has = status != "failed"
    return TunedSignature(
        item.digest,
        status,
        f"reason {status}",
        (("BLOCK_M", 64),),
        times[0] if has else None,
        (times[1] if status != "kept" else times[0]) if has else None,
        "p",
        "hash",
        dice.random() < 0.8,
        "at",
        "page",
        dice.choice(("", "node GPU 1")),
        dice.choice((None, (0.8, 1.4))),
    )


def workload_tuning() -> Rows:
    both = list(drawn_numbers.workloads())
    for seed in range(24):
        dice = random.Random(seed)
        workload = both[seed % 2]
        items = work_list(workload, dice.choice((0.5, 0.9, 1.0)), 4e12)
        predicts = seed % 3 == 0
        used = [i for i in items[::2] if i.launch_s is not None]
        done = [(i, tuned(dice, i)) for i in items if dice.random() < 0.9]
        results = {r.digest: r for _, r in done}
        groups, left = groups_of(items), [i for i in items if i.digest not in results]
        yield f"{seed} {predicts} {[len(g) for g in groups]} left {len(left)}"
        yield from (f"  {line}" for line in printed(to_console(print_plan, items, "NVIDIA H200")))
        yield from (f"  {line}" for line in printed(lambda to: print_results(to, done)))  # noqa: B023
        served = add_middles(items, results)
        yield f"  {[(i.family, r.status) for i, r in served]}"
        writes, device = seed % 6 == 0 or not predicts, drawn_numbers.find_device("h200")
        entries = entries_of(served, used, device, predicts) if writes else []
        yield f"  {[(e.function, e.key, e.family, e.after_s.median, e.protocol) for e in entries]}"
        timed = [i.signature.function.name for i, r in done if predicts and r.before_s]
        for part, written, end in ((done, len(entries), ""), (done[:1], 1, f" {timed}")):
            many = written if writes else None
            text = tuning_text.result_sentence(items, part, device.title, predicts, many)
            yield f"  {text}{end}"
        firsts = [sorted(tuning_text.plain_item(i).items(), key=str)[0] for i in items[:2]]
        yield f"  {firsts} {tuning_text.weight_of(items)}"


TABLES: dict[str, Callable[[], Rows]] = {
    "printed_traces": printed_traces,
    "printed_operators": printed_operators,
    "printed_diagnoses": printed_diagnoses,
    "printed_code": printed_code,
    "progress": progress,
    "sweep_consoles": sweep_consoles,
    "drawn_figures": drawn_figures,
    "data_frames": data_frames,
    "workload_tuning": workload_tuning,
}
