"""Diagnose what profilers recorded: their files, or runs that are stored of them."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from workbench.code.responsible import responsible_lines
from workbench.commands.diagnosed import (
    Diagnosed,
    DiagnosisReport,
    NotEvaluable,
    diagnosed_of,
    metric_gaps,
    missing_code,
    missing_counters,
    missing_timeline,
    rank_diagnoses,
    short,
    timeline_gaps,
)
from workbench.commands.options import CommandError
from workbench.commands.result import RunResult
from workbench.commands.traces import (
    HEALTHY,
    MOST_KERNELS,
    call_title,
    incomplete_sentence,
    longest_counted,
)
from workbench.data.record import Finding, Profile, Record
from workbench.data.units import duration
from workbench.device.ceilings import ceiling_set, diagnose
from workbench.reports.figures.profiled_traffic import launch_order
from workbench.reports.figures.roofline_points import load_of
from workbench.traces.rule_metrics import (
    call_metrics,
    calls_of,
    plain_metrics,
    profile_metrics,
    rule_metrics,
)
from workbench.traces.rules import (
    TIMELINE_NEEDS,
    call_rules,
    evaluate_call,
    evaluate_device,
    evaluate_kernel,
    kernel_rules,
    missing_of_kernel,
    missing_of_timeline,
    rules,
    word_of,
)
from workbench.traces.trace_compare import INCOMPLETE
from workbench.traces.trace_summary import TraceSummary

WINDOW_KPI = "total time"  # of a timeline: its window
HOST_KPI = "launch delay, median"  # that a stored trace has where its launches are known


@dataclass(frozen=True)
class CountedLaunch:
    """One launch with its metrics."""

    name: str
    metrics: Mapping[str, float]
    config: bool = False  # of the kernel whose plain time is stored with the run
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # see `responsible_lines`

    @property
    def spent_s(self) -> float:
        """Return its time under the profiler in seconds; 0 where that is not known."""
        return self.metrics.get("duration", 0.0)


@dataclass(frozen=True)
class PlainTime:
    """The time of a call without a profiler, and the most that it can give back."""

    time_s: float
    most_s: float
    profiled_s: float  # of its launches under the profiler


def trace_report(summary: TraceSummary, title: str) -> DiagnosisReport:
    """Return the diagnoses of files that were read."""
    trace = summary.trace
    counted = [d for d in trace.dispatches if d.is_counted]
    longest = longest_counted(trace)
    launches = [
        CountedLaunch(name, rule_metrics(d, trace.tool), lines=responsible_lines(d))
        for name, d in zip(_names([(d.name, d.id) for d in longest]), longest, strict=True)
    ]
    heads: list[str] = []
    results: list[Diagnosed] = []
    missing: list[NotEvaluable] = []
    if counted or not summary.devices:
        missing += missing_timeline()
    for each in [] if counted else summary.devices:
        matches = evaluate_device(each)
        device = f"device {each.device}" if len(summary.devices) > 1 else ""
        word = matches[0].rule.word if matches else HEALTHY
        if each.lacks:
            word = f"{INCOMPLETE}. {incomplete_sentence(each.lacks)}"
        heads.append(f"{device or 'the window'}: {word}")
        for match in matches:
            text = diagnosed_of(match.name, match.rule.word, match.diagnosis, device, trace.title)
            gain_s = match.diagnosis.gain_ns
            results.append(_share_window(text, gain_s, each.times.window))
        names = {match.name for match in matches}
        lacking = missing_of_timeline(each).items()
        missing += timeline_gaps({name: needs for name, needs in lacking if name not in names})
    more = _diagnose_launches(launches, trace.title, None)
    return DiagnosisReport(
        title,
        (*heads, *more.heads),
        rank_diagnoses((*results, *more.results)),
        (*_once(missing), *more.missing, *missing_code()),
        tuple(trace.notes),
    )


def _share_window(each: Diagnosed, gain_ns: float | None, window_ns: int) -> Diagnosed:
    if gain_ns is None or not window_ns:
        return each
    return replace(each, gain_s=gain_ns / 1e9, gain_share=gain_ns / window_ns, gain_of="window")


def _once(missing: Sequence[NotEvaluable]) -> list[NotEvaluable]:
    """Return each rule once, also where several devices lack something."""
    return list({each.rule: each for each in missing}.values())


# Stored runs


def run_report(result: RunResult) -> DiagnosisReport:
    """Return the diagnoses of a stored run of a profiler: of counters evaluated anew, of a timeline
    as they were stored, since the activities are not. Raises CommandError where the run holds
    neither."""
    run = result.run
    timeline = [f for f in result.findings if f.experiment == "timeline"]
    counted = [p for p in result.profiles if p.metrics]
    if not timeline and not counted:
        raise CommandError(
            f"{run.id} is a run of `{run.engine}` and holds neither counters nor a timeline; "
            "profile the kernel (workbench profile KERNEL), or name a run of profile or read."
        )
    longest = sorted(counted, key=lambda p: -(p.total_s or 0.0))[:MOST_KERNELS]
    names = _names([(p.name, "" if p.kernel else p.launch) for p in longest])
    launches = [
        CountedLaunch(name, profile_metrics(p), bool(p.kernel), p.lines)
        for p, name in zip(longest, names, strict=True)
    ]
    plain = _plain_of(result, launches)
    source = f"{run.name}, run {run.id}"
    more = _diagnose_launches(launches, source, plain, _whole_call(result, counted))
    heads = [f"{f.word}. {f.sentence}" for f in timeline if not f.rule and not counted]
    window_s = _window_of(timeline)
    results = [_rule_result(f, f"{run.name}, run {run.id}", window_s) for f in timeline if f.rule]
    missing = list(_missing_timeline(timeline, bool(counted)))
    if plain is not None:
        heads.append(f"plain time of a call, without a profiler: {duration(plain.time_s)}")
    return DiagnosisReport(
        f"{run.id}: {run.command}",
        (*heads, *more.heads),
        rank_diagnoses((*results, *more.results)),
        (*missing, *more.missing, *missing_code()),
        more={"run": run.id, "plain_s": plain.time_s if plain else None},
    )


def _window_of(timeline: Sequence[Finding]) -> float | None:
    """Return the seconds of the window stored with a trace of one device; None of several."""
    devices = [f for f in timeline if not f.rule]
    if len(devices) != 1:
        return None
    return next((e.value for e in devices[0].evidence if e.name == WINDOW_KPI), None)


def _rule_result(finding: Finding, source: str, window_s: float | None) -> Diagnosed:
    share = finding.gain_s / window_s if finding.gain_s is not None and window_s else None
    return Diagnosed(
        finding.kernel, finding.rule, finding.word, finding.sentence, finding.evidence,
        finding.advice, finding.effort, source, finding.where,
        gain_s=finding.gain_s, gain_share=share, gain_of="window" if share is not None else "",
    )  # fmt: skip


def _missing_timeline(timeline: Sequence[Finding], counted: bool) -> Iterator[NotEvaluable]:
    if counted or not timeline:
        yield from missing_timeline()
        return
    if any(f.word == INCOMPLETE for f in timeline):
        yield from timeline_gaps(dict.fromkeys(rules(), ("a complete timeline",)))
        return
    evidence = {e.name for f in timeline for e in f.evidence}
    held = {f.rule for f in timeline}
    if HOST_KPI not in evidence:
        lacks = set(TIMELINE_NEEDS)
        needs = {n: tuple(x for x in rule.needs if x in lacks) for n, rule in rules().items()}
        yield from timeline_gaps({n: each for n, each in needs.items() if each and n not in held})


def _names(launches: Sequence[tuple[str, str]]) -> list[str]:
    """Return what to call launches by their names and ids: the name, and with several of one name
    `mm #1`, as they may differ in all but their name."""
    counts = Counter(name for name, _ in launches)
    return [f"{name} #{id}" if id and counts[name] > 1 else name for name, id in launches]


def _whole_call(result: RunResult, counted: Sequence[Profile]) -> CountedLaunch | None:
    """Return the first call of the kernel, where it has several launches and all are stored."""
    records = [o for o in result.outcomes if isinstance(o, Record)]
    own = sorted((p for p in counted if p.outcome), key=launch_order)
    calls = calls_of([profile_metrics(p) for p in own])
    if len(records) != 1 or not calls or len(calls[0]) < 2:
        return None
    metrics = call_metrics(calls[0], plain_metrics(records[0]))
    return CountedLaunch(call_title(len(calls[0])), metrics, True)


def _plain_of(result: RunResult, launches: Sequence[CountedLaunch]) -> PlainTime | None:
    """Return the measured time that is stored with the run, if there is one."""
    records = [o for o in result.outcomes if isinstance(o, Record) and o.is_measured]
    profiled_s = math.fsum(each.spent_s for each in launches if each.config)
    if len(records) != 1 or not profiled_s:
        return None
    diagnosis = diagnose(load_of(records[0]), ceiling_set(result.run.device, [result.run]))
    time_s = records[0].time_s
    return PlainTime(time_s, time_s if diagnosis.gain_s is None else diagnosis.gain_s, profiled_s)


# Counters


def _diagnose_launches(
    launches: Sequence[CountedLaunch],
    source: str,
    plain: PlainTime | None,
    call: CountedLaunch | None = None,
) -> DiagnosisReport:
    """Return the diagnoses of launches with counters, those of one kernel and rule as one, and of
    the `call` that they are the launches of."""
    if not launches:
        return DiagnosisReport("", (), (), tuple(missing_counters()))
    groups: dict[tuple[str, str], list[tuple[CountedLaunch, Diagnosed, float | None]]] = {}
    words: dict[str, dict[str, None]] = {}
    for each in launches:
        matches = evaluate_kernel(each.metrics, each.lines)
        evaluable = len(missing_of_kernel(each.metrics)) < len(kernel_rules())
        first = word_of(matches)
        word = first.rule.word if first else HEALTHY if evaluable else "not evaluable"
        words.setdefault(each.name, {})[word] = None
        for match in matches:
            text = diagnosed_of(match.name, match.rule.word, match.diagnosis, each.name, source)
            gain = match.diagnosis.gain_ns
            groups.setdefault((each.name, match.name), []).append((each, text, gain))
    groups |= _call_diagnoses(call, source) if call is not None else {}
    heads = [f"{short(name)}: {', '.join(each)}" for name, each in words.items()]
    results = [_merge_launches(group, launches, plain) for group in groups.values()]
    lacking = [missing_of_kernel(each.metrics) for each in launches]
    if call is not None:
        lacking = [_drop_call_rules(call, each) for each in lacking]
    everywhere = {
        name: needs for name, needs in lacking[0].items() if all(name in one for one in lacking)
    }
    return DiagnosisReport("", tuple(heads), tuple(results), tuple(metric_gaps(everywhere)))


def _call_diagnoses(
    call: CountedLaunch, source: str
) -> dict[tuple[str, str], list[tuple[CountedLaunch, Diagnosed, float | None]]]:
    """Return what holds on a call of several launches, by its name and the rule's."""
    return {
        (call.name, match.name): [
            (
                call,
                diagnosed_of(match.name, match.rule.word, match.diagnosis, call.name, source),
                match.diagnosis.gain_ns,
            )
        ]
        for match in evaluate_call(call.metrics)
    }


def _drop_call_rules(
    call: CountedLaunch, missing: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Return the rules that cannot be evaluated on a launch, without those that its call allows."""
    allowed = {n for n, rule in call_rules().items() if set(rule.needs) <= call.metrics.keys()}
    return {name: needs for name, needs in missing.items() if name not in allowed}


def _merge_launches(
    group: Sequence[tuple[CountedLaunch, Diagnosed, float | None]],
    launches: Sequence[CountedLaunch],
    plain: PlainTime | None,
) -> Diagnosed:
    """Return one rule on all launches of one kernel: in the words of the longest, with the gains of
    all, as a share of the plain time where that is known."""
    first, text, _ = group[0]
    gains = [gain for _, _, gain in group if gain is not None]
    result = replace(text, launches=len(group))
    if not gains:
        return result
    gain_s = math.fsum(gains) / 1e9
    if plain is not None and first.config:
        share = min(gain_s / plain.profiled_s, plain.most_s / plain.time_s)
        return replace(result, gain_s=share * plain.time_s, gain_share=share, gain_of="plain time")
    whole = math.fsum(each.spent_s for each in launches)
    return replace(
        result, gain_s=gain_s, gain_share=gain_s / whole if whole else None, gain_of="profiled time"
    )
