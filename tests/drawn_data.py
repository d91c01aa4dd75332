"""Tables of timelines, comparisons, series and sentences, of small whole numbers, so that ends meet
starts and values meet limits often."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import synthetic
from table_text import text_of

from workbench.data import intervals as spans
from workbench.data import units
from workbench.data.database import RunFacts
from workbench.data.energy import energy_of
from workbench.data.modes import modes_of
from workbench.data.record import Case, Evidence, Finding, Profile, Record
from workbench.data.stats import interval, ratio, spearman, windowed_interval
from workbench.data.verdict import Incomparable, compare_predictions
from workbench.revisions.series import Collected, CommitOrder, add_views
from workbench.traces import host_work, plausible, repeats, shortfall, timeline
from workbench.traces.rule_metrics import call_metrics, calls_of, rule_metrics, stored_metrics
from workbench.traces.trace import (
    ActivityKind,
    CounterValue,
    Dispatch,
    Geometry,
    InstructionTable,
    Trace,
)
from workbench.traces.trace_compare import TraceOperand, compare, normal_name, percent_change
from workbench.traces.trace_export import json_text, kernels_csv, perfetto, summary_json
from workbench.traces.trace_summary import summarise

Rows = Iterator[str]
KERNELS = ("gemm_tn", "softmax_fwd", "memset", "flash_fwd", "add")
HOST = ("aten::mm", "aten::add", "aten::item", "ProfilerStep#1", "ProfilerStep#2", "load")


def timeline_of(dice: random.Random, many: int, step: int = 1) -> Trace:
    """Return a trace of two devices, two processes and two streams, with times from 0 to 60 and a
    launch for most of the work."""
    trace = Trace("torch", has_streams=dice.random() < 0.5)
    table, at = trace.activities, 0
    names = [dice.choice(KERNELS) for _ in range(3)]  # repeated now and then
    for number in range(many):
        at += dice.choice((0, 0, 1, 2, 3, 5))
        device, process = dice.choice("01"), dice.choice("pq")
        length = dice.choice((0, 1, 1, 2, 4, 9))
        start, end = at * step, (at + length) * step
        kind = dice.choice((ActivityKind.KERNEL,) * 3 + (ActivityKind.COPY, ActivityKind.SET))
        name = names[number % 3] if dice.random() < 0.7 else dice.choice(KERNELS)
        launch = number if dice.random() < 0.8 else -1
        moved = dice.choice((-1, 64, 4096)) if kind == ActivityKind.COPY else -1
        geometry = Geometry((2, 1, 1), (128, 1, 1)) if dice.random() < 0.3 else Geometry()
        table.add(
            kind, name, start, end, device, dice.choice("78"), process, launch, geometry, moved
        )
        before = dice.choice((0, 1, 1, 3, -1)) * step
        if launch >= 0 and dice.random() < 0.9:
            call = "cudaMemcpyAsync" if kind == ActivityKind.COPY else dice.choice(
                ("cudaLaunchKernel", "cudaLaunchKernel", "cudaGraphLaunch"))  # fmt: skip
            table.add(ActivityKind.CALL, call, start - before, start - before + step, "",
                      dice.choice("12"), process, launch)  # fmt: skip
    for _ in range(many // 2):
        name, start = dice.choice(HOST), dice.randrange(60)
        kind = ActivityKind.RANGE if "#" in name or name == "load" else ActivityKind.OP
        length = dice.choice((1, 2, 5, 20))
        table.add(kind, name, start * step, (start + length) * step, "", dice.choice("12"),
                  dice.choice("pq"))  # fmt: skip
    for _ in range(many // 6):
        start = dice.randrange(60)
        table.add(ActivityKind.SYNC, "cudaDeviceSynchronize", start * step,
                  (start + dice.choice((1, 4, 10))) * step, "", "1", dice.choice("pq"))  # fmt: skip
    return trace


def timelines() -> Rows:
    for seed in range(36):
        dice = random.Random(seed)
        trace = timeline_of(dice, (3, 6, 12, 24, 40)[seed % 5], (1, 1000, 400)[seed % 3])
        launches = trace.activities.launches()
        sentences = [str(s.sentence) for s in shortfall.shortfalls(trace, launches)]
        yield f"{seed} {len(trace.activities)} {sentences}"
        for launched_only, name in itertools.product((True, False), ("", "ProfilerStep#", "load")):
            within = timeline.named_ranges(trace, name) if name else None
            for device in timeline.devices(trace):
                try:
                    times = timeline.device_times(
                        trace, device, launched_only=launched_only, within=within, launches=launches
                    )
                except ValueError as error:
                    yield f"  {device} {launched_only} {name}: {error}"
                    continue
                yield f"  {device} {launched_only} {name}: {text_of(replace(times, order=()))}"
                yield f"    {text_of((times.utilisation, times.launch_efficiency, times.idle()))}"
                yield f"    {text_of((times.gap_statistics(), list(times.sync_unqueued.pairs())))}"
                yield f"    {text_of(list(times.copies_exposed.pairs()))}"
                yield f"    {text_of(host_work.longest_gaps(trace, times, launches, 4))}"
                yield f"    {text_of(list(host_work.copy_calls(trace, times, launches).pairs()))}"
                yield f"    {text_of(list(host_work.copy_waits(trace, times, launches).pairs()))}"
                yield f"    {text_of(host_work.range_rows(trace, times, launches))}"
                yield f"    {text_of(repeats.repeats(trace, times))}"
                yield f"    {text_of(timeline.kernel_rows(trace, [times]))}"
        yield f"  {text_of(host_work.range_rows(trace, None, launches))}"
        yield f"  {text_of(host_work.operation_rows(trace))}"
        summary = summarise(trace)
        for device, kpis in summary.kpis.items():
            yield f"  {device} {text_of(kpis)}"
        yield from (f"  {note}" for note in trace.notes)
        for each in summary.devices:
            yield f"  {text_of((each.copying_idle, each.launch_wait, each.classes))}"
        if seed < 6:
            yield from json_text(summary_json(summary)).splitlines()
            yield kernels_csv(trace, summary.rows).replace("\n", " | ")
            yield from perfetto(summary).splitlines()


def sequences() -> Rows:
    """Yield what repeats, at the least length and the least number of times."""
    for names, many in itertools.product(
        ("ab", "abc", "aab", "aaa", "abcd", "abcabd"), (4, 5, 6, 9)
    ):
        for before, after in (("", ""), ("x", "y"), ("ab", "a")):
            trace = Trace("torch")
            for at, name in enumerate(before + names * many + after):
                trace.activities.add(ActivityKind.KERNEL, name, 10 * at, 10 * at + 7, "0", "7", "p")
            times = timeline.device_times(trace, "0")
            yield f"{before} {names} x {many} {after}: {text_of(repeats.repeats(trace, times))}"


def unions() -> Rows:
    dice = random.Random(1)
    for _ in range(120):
        left, right = (
            [(s, s + dice.choice((0, 1, 2, 3, 7))) for s in (dice.randrange(20) for _ in range(n))]
            for n in (dice.randrange(6), dice.randrange(6))
        )
        a, b = spans.union(left), spans.union(right)
        cut = sorted((dice.randrange(22), dice.randrange(22)))
        # the same by sets of whole numbers
        points = [{t for s, e in of for t in range(s, e)} for of in (left, right)]
        found = [
            {t for s, e in of.pairs() for t in range(s, e)}
            for of in (
                a,
                b,
                spans.intersection(a, b),
                spans.difference(a, b),
                spans.clip(a, *cut),
            )
        ]
        cut_points = points[0] & set(range(*cut))
        assert found == [*points, points[0] & points[1], points[0] - points[1], cut_points]
        yield text_of([list(of.pairs()) for of in (a, b, spans.intersection(a, b),
                       spans.difference(a, b), spans.difference(b, a))])  # fmt: skip
        inside = list(spans.clip(a, *cut).pairs())
        yield f"  {cut} {text_of(inside)} {text_of(list(spans.gaps(a)))} {a.length}"


def impossible_times() -> Rows:
    """Yield what is left of traces with impossible times, at each limit and beside it."""
    second, void = plausible.LONG_NS, plausible.LEAST_VOID_NS
    for seed in range(120):
        dice = random.Random(seed)
        trace = Trace("torch", has_streams=seed % 2 == 0)
        base = dice.choice((0, 1, 10**15))
        for number in range(dice.choice((3, 4, 5, 9, 16))):
            at = base + dice.choice((0, 1, 1000, 50_000, 70_000, 2 * second)) * number
            length = dice.choice((0, 10, 20_000, 20_001, 40_000, second, second + 1))
            correlation = dice.choice((-1, 5, number))
            kind = dice.choice((ActivityKind.KERNEL, ActivityKind.KERNEL, ActivityKind.OP))
            device = "0" if kind == ActivityKind.KERNEL else ""
            trace.activities.add(
                kind, f"k{number}", at, at + length, device, dice.choice("77778"), "p", correlation
            )
        for _ in range(seed % 4):
            start = dice.choice((0, 5, base + void, base + 1000 * void, base + 3 * void, 10**18))
            end = dice.choice((start, 0, start - 1, start + 300 * second, start + second))
            kind = dice.choice((ActivityKind.KERNEL, ActivityKind.OP, ActivityKind.SYNC))
            trace.activities.add(kind, "odd", start, end, "0" if kind == 0 else "", "7", "p", 3)
        dispatch = Dispatch("k", duration_ns=dice.choice((None, -1.0, 0.0, 5.0, float("inf"))))
        for name, value in (
            ("a.pct_of_peak_x", dice.choice((-0.1, 0.0, 110.0, 110.1))),
            ("l2_hit_rate", dice.choice((50.0, 400.0))),
            ("other", 400.0),
            ("x throughput", dice.choice((None, 111.0))),
        ):
            dispatch.counters[name] = CounterValue(name, value, dice.choice("%%s"), str(value))
        trace.dispatches.append(dispatch)
        plausible.drop_impossible(trace)
        rows = [(a.name, a.start - base, a.end - base) for a in trace.activities]
        counters = [c.value for c in dispatch.counters.values()]
        yield f"{seed}: {rows} {dispatch.duration_ns} {counters}"
        tally = trace.tally
        yield f"  {tally.sentences()} {text_of(tally.shares())} {sorted(tally.lost_work)}"


def lacking() -> Rows:
    """Yield what traces lack whose launches have no work, or begin after it."""
    for seed in range(80):
        dice = random.Random(seed)
        trace = Trace("torch")
        table = trace.activities
        for number in range(dice.choice((1, 4, 10, 100))):
            at = 10 * number
            call = dice.choice(
                ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaFree")
            )
            if dice.random() < 0.2:  # a call of the runtime makes one of the driver
                table.add(
                    ActivityKind.CALL,
                    "hipLaunchKernel",
                    at - 1,
                    at + 4,
                    "",
                    "1",
                    "p",
                    1000 + number,
                )
            table.add(
                ActivityKind.CALL,
                call,
                at,
                at + 3,
                "",
                dice.choice("12"),
                "p",
                dice.choice((number, number, -1)),
            )
            if dice.random() < 0.8:
                start = at + dice.choice((5, 5, 5, 0, -1))
                table.add(
                    ActivityKind.KERNEL,
                    "k",
                    start,
                    start + dice.choice((1, 900)),
                    "0",
                    "7",
                    "p",
                    number,
                )
            if number % 3 == 0:
                table.add(
                    ActivityKind.RANGE,
                    f"ProfilerStep#{number}",
                    at,
                    at + dice.choice((0, 3, 20)),
                    "",
                    "1",
                    "p",
                )
        if seed % 7 == 0:
            trace.tally.add_unread("CUPTI_X", 1 + seed % 2, "export it")
        trace.tally.totals["rows"] = 100
        trace.tally.bad["rows", "left out"] = dice.choice((0, 1, 2))
        trace.tally.lost_work.add(("p", 2))
        launches = table.launches()
        yield f"{seed}: {text_of(shortfall.shortfalls(trace, launches))}"
        kernels = list(table.select(ActivityKind.KERNEL))
        lone = [shortfall.lone_kernel(table, some) for some in (kernels, kernels[:9])]
        yield f"  {lone[0]} | {lone[1]}"


NUMBERS = sorted(
    {
        x * by
        for x in (
            1e-9,
            1e-7,
            1e-6,
            1e-3,
            1e-2,
            0.99,
            0.995,
            1.0,
            9.95,
            9.99,
            10.0,
            99.5,
            100.0,
            999.5,
            1000.0,
            9999.0,
            1e4,
            1e6,
            1e9,
            1e12,
            1e15,
        )
        for by in (0.9995, 1.0, 1.0005, 1.234567)
    }
    | {0.0, 2.0, 7.0}
)


def readings() -> Rows:
    for value in NUMBERS:
        said = [units.duration(value), units.console_duration(value), units.rough(value),
                units.console_microseconds(value), units.percent(value), units.whole_percent(value),
                units.three_digits(value), units.four_digits(value), units.microseconds(value),
                *(units.digits(value, n) for n in (2, 3, 4)), units.digits(-value)]  # fmt: skip
        yield f"{value!r}: {' | '.join(said)}"
        names = ("s", "%", "1", "B", "B/s", "FLOP/B", "kernels", "copies", "lane")
        yield f"  {' | '.join(units.reading(value, unit) for unit in names)}"
        yield f"  {' | '.join(units.reading(value, unit, 4) for unit in names)}"
        printed = [units.quantity(value, unit) for unit in ("B/s", "s")]
        yield f"  {' '.join(printed)} {units.reading(-value, 's')}"
        scale, symbol = units.unit_of(value)
        yield f"  {units.text_of(value, scale)} {symbol} {units.span_text(value, 2 * value, 1e-6)}"
    yield f"{[units.amount(n, 'config') for n in (0, 1, 2)]}"


# Comparisons of traces


def profile(dice: random.Random, name: str) -> Profile:
    median = dice.choice((None, 1e-5, 1.05e-5, 1.06e-5, 1.3e-5, 9.5e-6, 0.0))
    ends = dice.choice((None, 0.01, 0.06))
    metrics = [
        Evidence(n, dice.choice(values), unit, "profiled")
        for n, values, unit in (
            ("stall_a", (10.0, 10.2, 20.0), "cycles"),
            ("stall_b", (1.0, 1.1), "cycles"),
            ("share", (0.5, 0.51, 0.511), "1"),
            ("bytes", (100.0, 101.0, 102.0), "B"),
            ("zero", (0.0,), "B"),
        )
    ]
    return Profile(
        "run",
        synthetic.AT,
        "ncu",
        "1",
        dice.choice(("H200", "H200", "H100")),
        name,
        dice.choice(("", "", "1", "2", "x")),
        dice.choice((0, 1, 4, 5)),
        dice.choice((None, 4e-5, 5e-5)),
        median,
        None if ends is None or median is None else median * (1 - ends),
        None if ends is None or median is None else median * (1 + ends),
        metrics=tuple(metrics) if dice.random() < 0.3 else (),
    )


def finding(dice: random.Random, group: str, incomplete: bool) -> Finding:
    total = dice.choice((1.0, 1.05, 1.06, 1.25, 1.3, 2.0, 3.0, 0.8, 0.7))
    rows = [
        Evidence("total time", total, "s", "profiled", group=group),
        Evidence("copies", 2.0, dice.choice(("copies", "B")), "profiled", group=group),
    ]
    if dice.random() < 0.5:
        middle = dice.choice((0.1, 0.101, 0.11, 0.2))
        rows.append(
            Evidence(
                dice.choice(("ProfilerStep#", "load")),
                middle,
                "s",
                "profiled",
                dice.choice((None, 0.09)),
                dice.choice((None, 0.11, 0.21)),
                "ranges",
            )
        )
        rows.append(Evidence("kernels of ProfilerStep#", dice.choice((4.0, 5.0)), "kernels",
                             "profiled", group="ranges"))  # fmt: skip
    word = "incomplete" if incomplete else "host-bound"
    return Finding("run", synthetic.AT, "timeline", "", {}, "", word, "It lacks work.", tuple(rows))


def trace_comparisons() -> Rows:
    for seed in range(260):
        dice = random.Random(seed)
        operands = []
        for name in ("old", "new"):
            names = dice.choice((("a",), ("a", "b"), ("a", "a", "b_0d1d2de"), ("c.kd",)))
            kernels = [profile(dice, n) for n in names]
            if dice.random() < 0.5:
                kernels = [replace(p, launch="", metrics=(), device="H200") for p in kernels]
            devices = dice.choice((1, 1, 1, 2, 0))
            found = [finding(dice, f"device {n}", dice.random() < 0.04) for n in range(devices)]
            operands.append(TraceOperand(name, found, kernels))
        result = compare(*operands, dice.choice((0.01, 0.05, 0.1)))
        yield f"{seed}: {result.word}: {result.reason}"
        for kernel in result.kernels:
            ratios = kernel.ratio, kernel.low, kernel.high, kernel.is_timed, kernel.difference_s
            yield f"  {kernel.name} {kernel.word} {text_of(ratios)}"
        yield f"  {text_of([(f.name, f.ratio) for f in result.figures])}"
        yield f"  {text_of([(n, [(c.name, c.ratio) for c in of]) for n, of in result.metrics])}"
    for name in ("f_0d1d", "f [clone .1]", "f{lambda(int)#3}", "k.kd", "g 0xff  h", "plain_3"):
        yield f"{name}: {normal_name(name)}"
    yield f"{[percent_change(r) for r in (0.5, 1.0, 1.0321, 2.99, 3.0, 3.4)]}"


# Metrics of rules


def metrics_of_rules() -> Rows:
    plain = {"least_bytes": 100.0, "declared_flop": 8.0}
    for seed in range(60):
        dice = random.Random(seed)
        counters = {
            name: dice.choice((0.0, 1.0, 64.0, 4096.0))
            for name in (
                "dram__bytes_read.sum",
                "dram__bytes_write.sum",
                "gpu__time_duration.sum",
                "sm__ops_path_tensor_src_bf16.sum",
                "sm__ops_path_tensor_src_fp8.sum",
                "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
                "launch__grid_size",
                "launch__waves_per_multiprocessor",
            )
            if dice.random() < 0.7
        }
        dispatch = Dispatch(dice.choice(("gemm_kernel", "softmax", "flash_attn")), "1",
                            geometry=dice.choice((Geometry(), Geometry((4, 2, 1), (128, 1, 1)))),
                            duration_ns=dice.choice((None, 2000.0)))  # fmt: skip
        for name, value in counters.items():
            dispatch.counters[name] = CounterValue(name, value, "byte" if "bytes" in name else "")
        if dice.random() < 0.4:
            dispatch.opcodes = {
                op: float(dice.randrange(9))
                for op in (
                    "FADD",
                    "HMMA",
                    "MUFU",
                    "F2F",
                    "ATOM",
                    "MEMBAR",
                    "SHFL",
                    "LDGSTS",
                    "PRMT",
                )
            }
        if dice.random() < 0.6:
            dispatch.instructions = instructions_of(dice)
        yield f"{seed} {dispatch.name} {sorted(counters)} {bool(dispatch.instructions)}"
        values = rule_metrics(dispatch, "ncu", dice.choice((None, plain)))
        yield f"  {text_of(dict(sorted(values.items())))}"
        yield f"  {text_of(stored_metrics(dispatch, 'ncu', plain))}"
    some = [
        {"call_launches": 2.0, "duration": 1.0, "dram_bytes": 8.0, "sm_clock": 2.0},
        {"call_launches": 2.0, "duration": 3.0, "dram_bytes": 16.0, "sm_clock": 4.0},
    ]
    yield text_of(call_metrics(some, plain))
    yield text_of(call_metrics([some[0], {"duration": 3.0}], plain))
    yield text_of(call_metrics([{**s, "duration": 0.0} for s in some], {}))
    for many in (some, some * 2, some * 2 + some[:1], [some[0], {}], []):
        yield f"{len(many)} launches: {[len(of) for of in calls_of(many)]}"


OPS = ("LDG.E.128 R4, [R2]", "LDG.E.U16 R8, [R2]", "STG.E.U8 [R2], R4", "LDGSTS.E [R6], [R2]",
       "HMMA.16816.F32 R4, R8, R12, R4", "FFMA R1, R2, R3, R4", "UTMASTG.2D [R2]",
       "LDTM.x16 R4, tmem[UR4]", "FADD R5, R4, R6", "FADD R40, R20, R6", "ATOMG.ADD R2",
       "UTMACMDFLUSH", "DEPBAR.LE SB0", "BAR.SYNC 0x0", "@P0 MUFU.EX2 R1, R2")  # fmt: skip
HEADS = (
    "# Inst Executed",
    "inst_executed",
    "Instructions Executed",
    "Avg. Thread Executed",
    "thread_inst_executed_true",
    "Thread Instructions Executed",
    "# Samples",
    "Warp Stall Sampling (All Samples)",
    "stall_barrier",
    "stall_long_sb",
    "L2 Theoretical Sectors Global",
    "L2 Theoretical Sectors Global Excessive",
    "L2 Theoretical Sectors Local",
)


def instructions_of(dice: random.Random) -> InstructionTable:
    """Return a table of drawn instructions with most of the columns."""
    from workbench.traces import instruction_metrics as known

    heads = [head for group in (known.EXECUTED, known.LANES_ON) for head in group[:1]]
    heads += [h for h in HEADS if h not in heads and dice.random() < 0.8]
    table = InstructionTable(tuple(heads))
    for _ in range(dice.choice((3, 9, 20))):
        table.texts.append(dice.choice(OPS))
        table.values.append(tuple(float(dice.choice((0, 1, 8, 32, 320))) for _ in heads))
    return table


# Series over commits


def series() -> Rows:
    environment = synthetic.matmul()[0].environment
    for seed in range(7):
        dice = random.Random(seed)
        runs, records = {}, []
        step = dice.choice((1.0, 1.1, 0.9))
        for n in range(dice.choice((3, 8, 16, 30))):
            commit = dice.choice((f"c{n // 2:02}", f"c{n:02}", None))
            name = f"run{n}"
            began = 1e9 + 1000 * n
            own = replace(environment, commit=commit, dirty=dice.random() < 0.1)
            runs[name] = RunFacts(name, began, own)
            at = f"2026-11-{1 + n % 28:02}T00:00:00+00:00"
            for impl, backend, by in (
                ("rows", "triton", 1.0),
                ("tiles", "triton", 1.3),
                ("torch", "torch", 2.0),
            ):
                for default in (True, False):
                    if backend == "torch" and default:
                        continue
                    time_s = (
                        3e-5
                        * by
                        * (step if n > 14 else 1.0)
                        * (1.1 if default and seed % 3 else 1.0)
                    )
                    timing = synthetic.measured(time_s, 12, 0.001, seed * 100 + n)
                    case = Case(
                        "softmax", impl, backend, {"w": 4 + default}, {"M": 8}, "bf16", "H200"
                    )
                    phase = dice.choice(("final", "final", "first_pass"))
                    records.append(
                        Record(
                            case,
                            f"k{n}",
                            name,
                            at,
                            phase,
                            timing,
                            1,
                            1,
                            "gpu",
                            0.5,
                            default=default,
                        )
                    )
        taken = Collected(runs)
        for record in records:
            taken.add(record)
        commits = [f"c{n:02}" for n in range(30)]
        for order in (
            CommitOrder(),
            CommitOrder(
                {c: i for i, c in enumerate(commits)},
                {"main": frozenset(commits[:20]), "dev": frozenset(commits[::2])},
            ),
        ):
            for one in taken.series(order):
                add_views(one, order)
                key = one.key
                yield f"{seed} {key.impl} {key.which} {key.phase} {one.reference} {one.sought_in}"
                yield f"  {[(p.name.text, p.name.dirty, p.runs) for p in one.points]}"
                times, ratios = [p.time for p in one.points], [p.ratio for p in one.points]
                yield f"  {text_of(times)} {text_of(ratios)}"
                yield f"  {text_of(one.views)}"
        final = taken.has_final("softmax", "M=8", "bf16", "H200")
        yield f"{taken.records} {taken.taken_over} {sorted(taken.problems)} {final}"


# Statistics of few and of equal values


def small_statistics() -> Rows:
    for seed in range(60):
        dice = random.Random(seed)
        n = dice.choice((2, 3, 5, 6, 7, 19, 20, 21, 40))
        values = [float(dice.choice((1, 2, 2, 3))) + (i > n / 2) * (seed % 3) for i in range(n)]
        other = [float(dice.choice((1, 2, 4))) for _ in range(n)]
        yield f"{values}"
        yield f"  {text_of((interval(values), spearman(values, other), ratio(values, other)))}"
        for windows in (5, 6, 7):
            parts = [values[k::windows] or [1.0] for k in range(windows)]
            yield f"  {windows} {text_of(windowed_interval(parts))}"
        yield f"  {text_of(modes_of([v * dice.choice((1e-5, 1.3e-5)) for v in values]))}"


def predictions() -> Rows:
    _run, outcomes = synthetic.matmul(predicted=True)
    record = next(o for o in outcomes if isinstance(o, Record))
    for left, right in itertools.product(
        ((1.0, 2.0), (2.0, 3.0), (2.5, 4.0), (None, 1.0)), repeat=2
    ):
        pair = [
            replace(record, timing=replace(record.timing, shortest_s=a, longest_s=b))
            for a, b in (left, right)
        ]
        for same in (True, False):
            try:
                yield f"{left} {right} {same}: {compare_predictions(*pair, same)}"
            except Incomparable as error:
                yield f"{left} {right} {same}: {error}"
    for other in synthetic.matmul_with_energy()[1][-6:]:
        yield f"{text_of(energy_of(other)) if isinstance(other, Record) else None}"


TABLES: dict[str, Callable[[], Rows]] = {
    "timelines": timelines,
    "sequences": sequences,
    "unions": unions,
    "readings": readings,
    "impossible_times": impossible_times,
    "lacking": lacking,
    "trace_comparisons": trace_comparisons,
    "metrics_of_rules": metrics_of_rules,
    "series": series,
    "small_statistics": small_statistics,
    "predictions": predictions,
}
