"""Store what was read of a profiler as a run: shared by `read`, `profile` and `compare`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from workbench.code.responsible import responsible_lines
from workbench.commands.run import check_writable
from workbench.commands.stored import stored_runs
from workbench.data.clock import folder_of, run_id, timestamp
from workbench.data.environment import UNKNOWN
from workbench.data.events import EventLog
from workbench.data.interrupts import Interrupts
from workbench.data.project import project_id
from workbench.data.record import Evidence, Finding, Profile, Run
from workbench.data.stats import least_for, median_interval
from workbench.data.store import Store
from workbench.data.units import percent
from workbench.reports.run_index import write_run_page
from workbench.traces.host_work import RangeRow
from workbench.traces.rule_metrics import (
    call_metrics,
    calls_of,
    plain_metrics,
    rule_metrics,
    stored_metrics,
)
from workbench.traces.rules import RuleMatch, evaluate_call, evaluate_device, evaluate_kernel
from workbench.traces.shortfall import Shortfall
from workbench.traces.timeline import KernelRow
from workbench.traces.trace import ActivityKind, Dispatch, Trace
from workbench.traces.trace_compare import INCOMPLETE, STEPS
from workbench.traces.trace_kpis import TraceKpi
from workbench.traces.trace_summary import DeviceSummary, TraceSummary

if TYPE_CHECKING:
    from workbench.data.record import Record

COUNTS_ONE_OF_EACH = "rocprofv3"  # the second launch of each kernel alone
HOST = "host"  # device of operations that no device ran
MOST_KERNELS = 20  # whose counters are evaluated, the longest
KEPT = 1000  # kernels and dispatches that are stored of one trace, the longest
FEWEST = least_for(0.95)  # launches whose median has an interval
SEVERAL = 3  # ranges of one name, from which on they have a spread
SERIAL = (
    "Kernels were profiled one by one for their counters, so the time between them says nothing."
)
SUMS = "The file holds only sums of kernels; idle time needs a timeline."
HEALTHY = "nothing found"
MET = {"yes": True, "no": False, "bad": False}


@dataclass(frozen=True)
class KeptTrace:
    """A trace as a run: what was concluded from it, and its kernels."""

    run: Run
    findings: tuple[Finding, ...]
    profiles: tuple[Profile, ...]
    records: tuple[Record, ...] = ()  # plain times of the kernel, taken without a profiler
    has_begun: bool = False  # the run and its records are stored already


def trace_run(
    summary: TraceSummary, engine: str, name: str, command: str, identity: str | None = None
) -> KeptTrace:
    """Return a trace as a run of an engine with its findings and profiles. `identity` is the run's
    id, where its folder is there already."""
    trace = summary.trace
    run = Run(
        project=project_id(),
        id=identity or run_id(engine, Path(name).name.split(".")[0] or trace.tool),
        engine=engine,
        name=trace.tool,
        kind="trace",
        command=command,
        started=timestamp(),
        device=device_title(trace),
        predicted=False,
        environment=UNKNOWN,
        source=", ".join(file.name for file in trace.files),
        files=tuple(asdict(file) for file in trace.files),
    )
    facts = KnownBeside(lines_of(trace))
    findings = tuple(findings_of(summary, run, facts))
    return KeptTrace(run, findings, tuple(profiles_of(summary, run, facts)))


Lines = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class KnownBeside:
    """What is known of dispatches beside their counters: the lines of source that are responsible,
    by `id` of a dispatch, and what each has without a profiler (see `plain_metrics`)."""

    lines: Mapping[int, Lines] = field(default_factory=dict)
    plain: Mapping[str, float] | None = None
    calls: tuple[Mapping[str, float], ...] = ()  # metrics of calls of several launches

    def lines_of(self, dispatch: Dispatch) -> Lines:
        """Return the lines of a dispatch; empty where they are not known."""
        return self.lines.get(id(dispatch), {})


def known_of_calls(
    trace: Trace, records: Sequence[Record], calls: int, launches: int | None = None
) -> KnownBeside:
    """Return what is known beside the counters of so many calls of one config: what the Spec
    declares of each launch where a call is one, else of the sums over the launches of a call. The
    latter are known where every call has the same launches, and as many as one is known to have.
    """
    counted = [d for d in trace.dispatches if d.is_counted]
    names = [d.name for d in counted]
    if trace.tool == COUNTS_ONE_OF_EACH:
        calls = 1 if launches == len(names) else 0
    size = len(names) // calls if calls else 0
    if launches is not None and size != launches:
        size = 0
    if not size or len(records) != 1 or names != names[:size] * calls:
        return KnownBeside(lines_of(trace))
    plain, of_call = plain_metrics(records[0]), {"call_launches": float(size)}
    if size == 1:
        return KnownBeside(lines_of(trace), {**plain, **of_call})
    metrics = [rule_metrics(d, trace.tool, of_call) for d in counted]
    sums = tuple(call_metrics(each, plain) for each in calls_of(metrics))
    return KnownBeside(lines_of(trace), of_call, sums)


def lines_of(trace: Trace) -> dict[int, Lines]:
    """Return the lines that are responsible in the longest kernels, by `id` of the dispatch."""
    return {id(dispatch): responsible_lines(dispatch) for dispatch in longest_counted(trace)}


def longest_counted(trace: Trace) -> list[Dispatch]:
    """Return the longest dispatches with counters, those whose counters are evaluated."""
    counted = [d for d in trace.dispatches if d.is_counted]
    return sorted(counted, key=lambda d: -(d.duration_ns or 0.0))[:MOST_KERNELS]


def kernel_run(
    summary: TraceSummary,
    run: Run,
    records: Sequence[Record],
    name: str,
    calls: int = 1,
    launches: int | None = None,
) -> KeptTrace:
    """Return a trace of one kernel of the workbench, whose run and plain time are stored already.
    Profiles of all launches of the `calls`, or where these are not whole of those named `name`,
    carry the config that was profiled. What the Spec declares counts for a call, which has so many
    `launches` where that is known."""
    facts = known_of_calls(summary.trace, records, calls, launches)
    profiles = profiles_of(summary, run, facts)
    whole = facts.plain is not None
    for record in records:
        case = record.case
        about: dict[str, Any] = {
            "kernel": case.kernel, "impl": case.impl, "config": case.config,
            "sizes": case.sizes, "dtype": case.dtype, "outcome": record.key,
        }  # fmt: skip
        profiles = (replace(p, **about) if whole or p.name == name else p for p in profiles)
    files = summary.trace.files
    hashes = tuple(f"{f.name}: {f.bytes:,} bytes, sha256 {f.sha256}" for f in files)
    findings = [
        f if f.rule else replace(f, caveats=hashes) for f in findings_of(summary, run, facts)
    ]
    shown = replace(run, files=tuple(asdict(file) for file in files))
    return KeptTrace(shown, tuple(findings), tuple(profiles), tuple(records), has_begun=True)


def device_title(trace: Trace) -> str:
    """Return the names of a trace's devices, each once; `unknown` where the file does not tell."""
    titles = [
        str(facts.get("name") or facts.get("product_name") or facts.get("arch") or "")
        for facts in trace.devices.values()
    ]
    return ", ".join(dict.fromkeys(filter(str.isprintable, filter(None, titles)))) or "unknown"


# Findings


def findings_of(
    summary: TraceSummary, run: Run, facts: KnownBeside = KnownBeside()
) -> Iterator[Finding]:
    """Yield, for each device, a finding with its KPIs, and one for each rule that holds."""
    several = len(summary.devices) > 1
    serial = any(d.is_counted for d in summary.trace.dispatches)
    for each in summary.devices:
        group = f"device {each.device}" if several else "the window"
        if serial:
            yield _finding(run, "counters", SERIAL, evidence_of(each.kpis, group))
            continue
        matches = evaluate_device(each)
        yield _device_finding(each, run, matches, group)
        about = f"device {each.device}: " if several else ""
        yield from (_match_finding(match, run, about, "") for match in matches)
    yield from _counter_findings(summary.trace, run, facts)
    yield from _call_findings(summary.trace, run, facts)
    if not summary.devices and not summary.rows and summary.host_ranges:
        text = "No device had work in this trace; its times are of the host."
        yield _finding(run, "host only", text, tuple(_ranges(summary.host_ranges)))
    if not summary.devices and summary.lacks:
        yield _finding(run, INCOMPLETE, incomplete_sentence(summary.lacks), ())
    if not summary.devices and summary.rows:
        word, text = ("counters", SERIAL) if serial else ("no timeline", SUMS)
        yield _finding(run, word, text, evidence_of(summary.kpis["all"], "sums of kernels"))


def _counter_findings(trace: Trace, run: Run, facts: KnownBeside) -> Iterator[Finding]:
    """Yield what the counters of the longest kernels say, a finding for each rule that holds."""
    for dispatch in longest_counted(trace):
        name = f"{dispatch.name} #{dispatch.id}" if dispatch.id else dispatch.name
        metrics = rule_metrics(dispatch, trace.tool, facts.plain)
        for match in evaluate_kernel(metrics, facts.lines_of(dispatch)):
            yield _match_finding(match, run, "", name)


def _call_findings(trace: Trace, run: Run, facts: KnownBeside) -> Iterator[Finding]:
    """Yield what the sums over the launches of the first call say; the others are the same."""
    for metrics in facts.calls[:1]:
        size = sum(d.is_counted for d in trace.dispatches) // len(facts.calls)
        for match in evaluate_call(metrics):
            yield _match_finding(match, run, "", call_title(size))


def call_title(launches: int) -> str:
    """Return the name of a call of several launches."""
    return f"call of {launches} launches"


def _finding(run: Run, word: str, sentence: str, evidence: Sequence[Evidence]) -> Finding:
    return Finding(run.id, timestamp(), "timeline", "", {}, "", word, sentence, tuple(evidence))


def _device_finding(
    summary: DeviceSummary, run: Run, matches: Sequence[RuleMatch], group: str
) -> Finding:
    word = matches[0].rule.word if matches else INCOMPLETE if summary.lacks else HEALTHY
    sentence = matches[0].diagnosis.sentence if matches else _plain_sentence(summary)
    evidence = (*evidence_of(summary.kpis, group), *_ranges(summary.ranges))
    return _finding(run, word, sentence, evidence)


def _ranges(rows: Sequence[RangeRow]) -> Iterator[Evidence]:
    """Yield the ranges that were entered several times: the median, the shortest, the longest."""
    for row in rows:
        if row.count >= SEVERAL:
            times = row.median_ns / 1e9, row.low_ns / 1e9, row.high_ns / 1e9
            yield Evidence(row.name, times[0], "s", "profiled", times[1], times[2], STEPS)
            if row.kernels:
                each = row.kernels / row.count
                yield Evidence(f"kernels in {row.name}", each, "kernels", "profiled", group=STEPS)


def incomplete_sentence(lacks: Sequence[Shortfall]) -> str:
    """Return what a trace lacks, so that its timeline is not rated."""
    return "Not rated: " + " ".join(each.sentence for each in lacks)


def _plain_sentence(summary: DeviceSummary) -> str:
    if summary.lacks:
        return incomplete_sentence(summary.lacks)
    idle = summary.times.idle()
    cause = max(idle, key=lambda name: idle[name])
    part = 1 - summary.times.utilisation
    most = f", most of it by {cause}" if sum(idle.values()) and summary.times.launches else ""
    return (
        f"No rule holds at its threshold; the device was idle in {percent(part)} of the "
        f"window{most}."
    )


def _match_finding(match: RuleMatch, run: Run, about: str, kernel: str) -> Finding:
    """Return a rule that holds on a device, or on a kernel of the file, as a finding."""
    diagnosis = match.diagnosis
    return Finding(
        run.id, timestamp(), "counters" if kernel else "timeline", kernel, {}, "",
        match.rule.word, about + diagnosis.sentence, diagnosis.evidence,
        rule=match.name,
        gain_s=None if diagnosis.gain_ns is None else diagnosis.gain_ns / 1e9,
        advice=diagnosis.advice,
        effort=diagnosis.effort,
        where=diagnosis.places,
    )  # fmt: skip


def evidence_of(kpis: Sequence[TraceKpi], group: str) -> tuple[Evidence, ...]:
    """Return the KPIs that have a value as evidence."""
    return tuple(
        Evidence(
            kpi.name, kpi.value, kpi.unit, "profiled",
            group=group, target=kpi.target, met=MET.get(kpi.met),
        )
        for kpi in kpis
        if kpi.value is not None
    )  # fmt: skip


# Profiles


def profiles_of(
    summary: TraceSummary, run: Run, facts: KnownBeside = KnownBeside()
) -> Iterator[Profile]:
    """Yield a profile for each dispatch with counters, or else for each kernel, the longest first,
    a thousand at most; without a device for each host operation, by its own time."""
    trace = summary.trace
    at = timestamp()
    counted = [d for d in trace.dispatches if d.is_counted]
    if counted:
        for dispatch in sorted(counted, key=lambda d: -(d.duration_ns or 0.0))[:KEPT]:
            yield _dispatch_profile(dispatch, trace, run, at, facts)
        return
    if not summary.devices and not summary.rows:
        for operation in summary.operations[:KEPT]:
            yield Profile(
                run.id, at, trace.tool, trace.version, HOST, operation.name,
                count=operation.count, total_s=operation.own_ns / 1e9,
            )  # fmt: skip
    spent = _launch_times(summary)
    for row in summary.rows[:KEPT]:
        yield _row_profile(row, trace, run, at, spent.get((row.name, row.device), ()))


def _dispatch_profile(
    dispatch: Dispatch, trace: Trace, run: Run, at: str, facts: KnownBeside
) -> Profile:
    spent = None if dispatch.duration_ns is None else dispatch.duration_ns / 1e9
    return Profile(
        run.id, at, trace.tool, trace.version, _device(dispatch.device, run), dispatch.name,
        launch=dispatch.id, total_s=spent, median_s=spent, low_s=spent, high_s=spent,
        metrics=stored_metrics(dispatch, trace.tool, facts.plain), lines=facts.lines_of(dispatch),
    )  # fmt: skip


def _row_profile(row: KernelRow, trace: Trace, run: Run, at: str, spent: Sequence[int]) -> Profile:
    low, high = (None if v is None else v / 1e9 for v in (row.low_ns, row.high_ns))
    ends = median_interval([float(ns) for ns in spent]) if len(spent) >= FEWEST else (None, None)
    return Profile(
        run.id, at, trace.tool, trace.version, _device(row.device, run), row.name,
        count=row.count, total_s=row.total_ns / 1e9,
        median_s=median(spent) / 1e9 if spent else None,
        median_low_s=None if ends[0] is None else ends[0] / 1e9,
        median_high_s=None if ends[1] is None else ends[1] / 1e9,
        low_s=low, high_s=high,
    )  # fmt: skip


def _device(name: str, run: Run) -> str:
    """Return the device of a kernel: its title, or with several its name in the file."""
    return run.device if "," not in run.device else name


def _launch_times(summary: TraceSummary) -> dict[tuple[str, str], list[int]]:
    """Return the ns of each launch by kernel and device of the timelines."""
    groups: dict[tuple[str, str], list[int]] = {}
    table = summary.trace.activities
    for each in summary.devices:
        for index in each.times.order:
            if table.kinds[index] == ActivityKind.KERNEL:
                name = table.names.entries[table.name_numbers[index]]
                spent = table.ends[index] - table.starts[index]
                groups.setdefault((name, each.device), []).append(spent)
    return groups


# Storing


def keep(
    trace: KeptTrace,
    summary: TraceSummary,
    out: Path,
    database: str | None,
    events: Path | None = None,
) -> Path:
    """Store a trace as a run in the events file and the database, and write its page. Returns the
    path of the page. Raises CommandError, HistoryError or ReportError, one sentence each."""
    from workbench.reports.trace import page

    check_writable(out)
    run = trace.run
    folder = folder_of(out, run.id)
    html = page(run, trace.records, trace.findings, trace.profiles, summary)
    with (
        stored_runs(database, reading=False) as history,
        Interrupts() as interrupts,
        EventLog(events or folder / "events.jsonl") as log,
    ):
        store = Store(history, interrupts, log, run)
        if not trace.has_begun:
            store.begin(run)
            store.keep(*trace.records)
        store.keep(*trace.findings, *trace.profiles)
        path = write_run_page(folder, html)
        store.end("complete", {"profiles": len(trace.profiles)}, {})
    return path
