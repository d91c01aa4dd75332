"""Page of a trace: KPIs with targets, timeline, gaps by cause, findings, kernels, classes, ranges.

A stored run has its KPIs, findings and kernels; the timeline is drawn when the file is read.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from workbench.data.expected_change import ExpectationResult
from workbench.data.record import Evidence, Finding, Outcome, Profile, Record, Run
from workbench.data.units import percent, reading
from workbench.reports import render
from workbench.reports.figures.trace import LOOK, detail_window, lanes, timeline
from workbench.reports.tables import Columns, Table, table
from workbench.traces.host_work import ExplainedGap, OperationRow, RangeRow
from workbench.traces.trace import Trace
from workbench.traces.trace_compare import STEPS, KernelChange, TraceComparison, percent_change
from workbench.traces.trace_summary import DeviceSummary, TraceSummary

KIND = "trace"  # of the runs that this page draws
TOP = 20  # kernels that are shown at once; the others are folded
FOLDED = 200
PIECES = {"host wait": "waiting for a launch", "dependency": "waiting for other work",
          "step": "from one kernel to the next", "unknown": "cause unknown"}  # fmt: skip

LOOKS = {
    "kernel": "kernel",
    "copy": "copy",
    "set": "memory set",
    "wait": "host waits",
    **{cause: f"idle: {words}" for cause, words in PIECES.items()},
}

HOST_ALONE = "none: only the CPU was recorded"


def page(
    run: Run,
    outcomes: Sequence[Outcome] = (),
    findings: Sequence[Finding] = (),
    profiles: Sequence[Profile] = (),
    summary: TraceSummary | None = None,
) -> str:
    """Return the page as HTML. Without a summary, which only the file gives, it has no timeline."""
    trace = summary.trace if summary is not None else None
    return render(
        "trace.html.j2",
        run=run,
        of_devices=[f for f in findings if not f.rule],
        ruled=[_rule_fields(f, findings) for f in findings if f.rule],
        kpi_rows=_kpi_rows(findings),
        devices=[_device(n, each) for n, each in enumerate(summary.devices)] if summary else [],
        tables=_tables(profiles, summary),
        checker=trace.checker if trace else None,
        facts=_facts(trace),
        notes=trace.notes if trace else ["the timeline is drawn when the file is read"],
        plain=[_plain(o) for o in outcomes if isinstance(o, Record)],
        title=trace.title if trace else run.name,
        tool=trace.tool if trace else next((p.tool for p in profiles), run.name),
        device=HOST_ALONE if _is_of_the_host(profiles, summary) else run.device,
    )


def _rule_fields(finding: Finding, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return a finding of a rule: its word, sentence, numbers, gain and advice."""
    window = next(
        (e.value for f in findings if not f.rule for e in f.evidence if e.name == "total time"),
        None,
    )
    gain = "nothing to gain" if finding.gain_s == 0 else ""
    if finding.gain_s:
        share = f", {percent(finding.gain_s / window)} of the window" if window else ""
        gain = f"at most {_time(finding.gain_s)}{share}"
    return {
        "word": f"{finding.kernel[:100]}: {finding.word}" if finding.kernel else finding.word,
        "evidence": [(e.name, value_text(e)) for e in finding.evidence],
        "gain": gain or "no bound is known",
        "finding": finding,
    }


def value_text(evidence: Evidence) -> str:
    """Return a number of a profiler with its unit; shares in percent."""
    if evidence.unit == "1" and ("share" in evidence.name or "%" in evidence.target):
        return f"{100 * evidence.value:.2f} %"
    if evidence.unit == "1" and evidence.value == int(evidence.value):
        return f"{evidence.value:,.0f}"
    return reading(evidence.value, evidence.unit, 4)


def _kpi_rows(findings: Sequence[Finding]) -> Table:
    """Return the KPI table: a column for each device."""
    unruled = [f for f in findings if not f.rule]
    figures = [{e.name: e for e in f.evidence if e.group != STEPS} for f in unruled]
    names = list(dict.fromkeys(name for each in figures for name in each))
    rows = []
    for name in names:
        each = [mine.get(name) for mine in figures]
        first = next(e for e in each if e is not None)
        met = {True: "met", False: "missed", None: ""}[first.met] if first.target else ""
        cells = [_figure(e) if e else "" for e in each]
        rows.append(([name, *cells, first.target, met], first.met is False))
    groups = [f.evidence[0].group if f.evidence else "" for f in unruled]
    heads = ["KPI", *(groups if len(groups) > 1 else ["value"]), "target", ""]
    return {"heads": heads, "rows": rows}


def _device(n: int, summary: DeviceSummary) -> dict[str, Any]:
    """Return timeline, gaps, sequences and ranges of a device."""
    times = summary.times
    about = f"timeline of device {summary.device}"
    whole = timeline(summary, times.start, times.end, about)
    shown = lanes(summary, times.start, times.end)
    present = {look for lane in shown for look, boxes in lane.boxes.items() if boxes.starts}
    detail = None
    if (part := detail_window(summary)) is not None:
        detail = timeline(summary, *part, f"a part of the {about}")
    idle = {PIECES[cause]: spent for cause, spent in times.idle().items() if spent}
    gaps = [("Longest gaps", _gap_table(summary.gaps, times.start))]
    if summary.hides_work:
        idle, gaps = {}, []
    return {
        "name": summary.device,
        "timeline": whole,
        "looks": [(LOOKS[look], LOOK[look]) for look in LOOK if look in present],
        "detail": detail,
        "detail_of": _detail_of(summary),
        "idle": [(name, _time(ns / 1e9), percent(ns / times.window if times.window else 0))
                 for name, ns in idle.items()],
        "tables": [
            *gaps,
            ("Classes of kernels", _class_table(summary)),
            ("Repeated sequences", table(REPEATS, summary.repeats[:10])),
            ("Ranges of the host", _range_table(summary.ranges, summary.hides_work)),
        ],
    }  # fmt: skip


def _detail_of(summary: DeviceSummary) -> str:
    if summary.repeats:
        first = summary.repeats[0]
        return f"two of {first.count} repetitions of the longest sequence"
    return "forty activities in the middle of the window"


def _gap_table(gaps: Sequence[ExplainedGap], start: int) -> Table:
    columns: Columns = (
        ("at", lambda each: _ns(each.gap.start - start)),
        ("length", lambda each: _ns(each.gap.duration)),
        ("cause", lambda each: PIECES[each.gap.cause]),
        ("host in it", lambda g: f"{g.host[:90]}, {percent(g.host_share)} of it" if g.host else ""),
        ("launched by", lambda each: each.launch),
        ("then ran", lambda each: each.next[:90]),
    )
    return table(columns, gaps, text=(2, 3, 4, 5), numbers=True)


def _class_table(summary: DeviceSummary) -> Table:
    whole = summary.times.kernel_sum or 1
    columns: Columns = (
        ("class", lambda row: row.name),
        ("kernels", lambda row: f"{row.count:,}"),
        ("total", lambda row: _ns(row.total_ns)),
        ("share of kernel time", lambda row: percent(row.total_ns / whole)),
        ("by the rules", lambda row: "; ".join(r or "no rule fits" for r, _ in row.rules[:3])),
    )
    return table(columns, summary.classes, text=(4,))


REPEATS: Columns = (
    ("sequence", lambda each: _chain(each.names)),
    ("kernels", lambda each: str(each.kernels)),
    ("times in a row", lambda each: str(each.count)),
    ("kernel time", lambda each: _ns(each.kernel_ns)),
    ("idle between", lambda each: _ns(each.gap_ns)),
    ("waiting for launches", lambda each: _ns(each.host_wait_ns)),
)


def _chain(names: Sequence[str]) -> str:
    shown = ", ".join(name[:40] for name in names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown


def _range_table(rows: Sequence[RangeRow], hides_work: bool) -> Table:
    def busy_share(row: RangeRow) -> str:
        return percent(row.busy_ns / row.window_ns) if row.window_ns and not hides_work else ""

    columns: Columns = (
        ("range", lambda row: row.name),
        ("count", lambda row: f"{row.count:,}"),
        ("median", lambda row: _ns(row.median_ns)),
        ("least", lambda row: _ns(row.low_ns)),
        ("most", lambda row: _ns(row.high_ns)),
        ("kernels in one", lambda row: f"{row.kernels / row.count:.4g}"),
        ("busy in one", lambda row: _ns(row.busy_ns / row.count)),
        ("utilisation", busy_share),
    )
    return table(columns, rows[:30])


def _tables(profiles: Sequence[Profile], summary: TraceSummary | None) -> list[tuple[str, Table]]:
    """Return the tables of kernels and of host operations, each with its title."""
    tables = []
    kernels = [p for p in profiles if p.device != "host"]
    if any(p.metrics for p in kernels):
        tables.append(("Kernels and their metrics", _metric_table(kernels)))
    elif kernels:
        tables.append(("Kernels", _kernel_table(kernels)))
    if summary is not None and summary.operations:
        tables.append(("Host operations", _operation_table(summary.operations)))
    elif profiles and not kernels:
        tables.append(("Host operations, own time", _kernel_table(profiles)))
    return tables


def _kernel_table(profiles: Sequence[Profile]) -> Table:
    whole = sum(p.total_s or 0.0 for p in profiles) or 1.0
    several = len({p.device for p in profiles}) > 1
    device: Columns = (("device", lambda p: p.device),) if several else ()
    columns: Columns = (
        ("kernel", lambda p: p.name[:160]),
        *device,
        ("count", lambda p: f"{p.count:,}"),
        ("total", lambda p: _time(p.total_s)),
        ("share", lambda p: percent((p.total_s or 0.0) / whole)),
        ("median", lambda p: _time(p.median_s)),
        ("least", lambda p: _time(p.low_s)),
        ("most", lambda p: _time(p.high_s)),
    )
    return table(columns, profiles, FOLDED)


METRICS = (
    "compute_throughput", "memory_throughput", "dram_throughput", "dram_bytes", "l2_hit",
    "occupancy", "issue_active", "spill_share", "excess_sectors", "bank_conflicts",
    "waves_waiting", "lanes_on", "valu_share", "mfma_share",
)  # fmt: skip


def _metric_table(profiles: Sequence[Profile]) -> Table:
    """Return one row per launch with the metrics that its counters give."""
    from workbench.traces.metric import BY_NAME

    names = {e.name for p in profiles for e in p.metrics}
    metrics = [(BY_NAME[n].title, partial(_metric, n)) for n in METRICS if n in names]
    columns: Columns = (
        ("kernel", lambda p: p.name[:160]),
        ("duration", lambda p: _time(p.total_s)),
        *metrics,
        ("most stalls", _stall),
    )
    return table(columns, profiles, FOLDED)


def _metric(name: str, profile: Profile) -> str:
    metrics = {e.name: e for e in profile.metrics}
    return _figure(metrics[name]) if name in metrics else ""


def _stall(profile: Profile) -> str:
    stalls = {
        e.name.removeprefix("stall_"): e.value
        for e in profile.metrics
        if e.name.startswith("stall_")
    }
    whole = sum(stalls.values())
    if not whole:
        return ""
    reason = max(stalls, key=lambda name: stalls[name])
    return f"{reason} {percent(stalls[reason] / whole)}"


def _operation_table(rows: Sequence[OperationRow]) -> Table:
    whole = sum(row.own_ns for row in rows) or 1
    columns: Columns = (
        ("operation", lambda row: row.name[:160]),
        ("count", lambda row: f"{row.count:,}"),
        ("own time", lambda row: _ns(row.own_ns)),
        ("share", lambda row: percent(row.own_ns / whole)),
        ("with those inside", lambda row: _ns(row.total_ns)),
    )
    return table(columns, rows, FOLDED)


def _ns(ns: float) -> str:
    return _time(ns / 1e9)


def _time(seconds: float | None) -> str:
    """Return a time with four digits; empty if it is unknown."""
    return "" if seconds is None else reading(seconds, "s", 4)


def _facts(trace: Trace | None) -> list[tuple[str, str]]:
    """Return other facts of the file as text."""
    if trace is None:
        return []
    return [(name, str(value)[:2000]) for name, value in trace.tables.items()]


def _is_of_the_host(profiles: Sequence[Profile], summary: TraceSummary | None) -> bool:
    """Return whether no device had work, so that all times are of the host."""
    if summary is not None:
        return not summary.devices and not summary.rows and bool(summary.trace.activities)
    return bool(profiles) and all(p.device == "host" for p in profiles)


def _plain(record: Record) -> tuple[str, str, str]:
    """Return a config that was timed without a profiler, its time, and the kind of the time."""
    on = record.case.device
    kind = f"measured on {on}" if record.is_measured else f"predicted for {on}, no GPU took part"
    tilde = "" if record.is_measured else "~"
    return f"{record.case.kernel} {record.case.label}", tilde + _time(record.time_s), kind


# Two traces


def comparison_page(
    result: TraceComparison,
    command: str,
    at: str,
    change: str = "",
    expected: Sequence[ExpectationResult] = (),
) -> str:
    """Return the page of two traces beside each other as HTML, with what was `expected` of a
    `change`."""
    return render(
        "trace_compare.html.j2",
        title="Two traces",
        result=result,
        word=result.shown_word,
        sentence=f"{result.reason[:1].upper()}{result.reason[1:]}.",
        figures=table(CHANGES, result.figures),
        kernels=table(KERNELS, result.kernels, FOLDED, lambda each: each.word == "slower"),
        metrics=[(name, table(CHANGES, changes)) for name, changes in result.metrics if changes],
        change=change,
        expected=table(EXPECTED, expected, bad=lambda each: each.state == "not met"),
        command=command,
        at=at,
    )


EXPECTED: Columns = (
    ("", lambda each: each.text),
    ("before", lambda each: _value(each.before, each.unit)),
    ("after", lambda each: _value(each.after, each.unit)),
    ("", lambda each: each.state),
)


def _value(value: float | None, unit: str) -> str:
    return "" if value is None else _figure(Evidence("", value, unit, "profiled"))


CHANGES: Columns = (
    ("", lambda each: each.name),
    ("before", lambda each: _figure(each.before)),
    ("after", lambda each: _figure(each.after)),
    ("change", lambda each: percent_change(each.ratio)),
    ("target", lambda each: each.after.target),
)


def _figure(evidence: Evidence) -> str:
    share = evidence.unit == "1"
    return f"{100 * evidence.value:.2f} %" if share else value_text(evidence)


def _interval(each: KernelChange) -> str:
    if each.low is None or each.high is None:
        return ""
    return f"{percent_change(each.low)} to {percent_change(each.high)}"


def _difference(each: KernelChange) -> str:
    sign = "-" if each.difference_s < 0 else "+"
    return f"{sign}{_time(abs(each.difference_s))}" if each.is_timed else ""


KERNELS: Columns = (
    ("kernel", lambda each: each.name[:160]),
    ("count before", lambda each: f"{each.before.count:,}" if each.before else ""),
    ("after", lambda each: f"{each.after.count:,}" if each.after else ""),
    ("total before", lambda each: _time(each.before.total_s) if each.before else ""),
    ("after", lambda each: _time(each.after.total_s) if each.after else ""),
    ("difference", _difference),
    ("one launch", lambda each: percent_change(each.ratio)),
    ("95 % interval", _interval),
    ("", lambda each: each.word),
)
