"""Write stored runs as one Markdown file of findings, to be kept in a repository.

`markdown` is a pure function of records: the same runs always give the same text, and it runs
without torch and Triton. The file holds only measured values, and predicted ones that are marked: a
row without a measurement is left out, and a line says which command would measure it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from workbench.data.record import Evidence, Finding, Measured, Outcome, Record, Run
from workbench.data.units import reading
from workbench.device.error_band import device_words
from workbench.reports.experiment import is_share
from workbench.reports.figures.timing import regime_of, timings_of
from workbench.spec import sizes_text

RunWithOutcomes = tuple[Run, Sequence[Outcome], Sequence[Finding]]

# Groups of evidence that are shown separately.
IMPACT = "impact"  # shares of the total time that the bottleneck takes
COUNTERS = "counters"  # word of what serial counters tell of a timeline: nothing
GAINS = "potential gain"  # shares of the total time that an alternative was measured to save


class KPI:
    """Names of the key figures in the evidence of experiments."""

    total = "total time"
    utilisation = "GPU utilisation"
    efficiency = "launch efficiency"
    kernels = "kernel count"
    kernel = "mean kernel time"
    gap = "mean gap"


BASELINE = (KPI.total, KPI.utilisation, KPI.efficiency, KPI.kernels, KPI.kernel, KPI.gap)
MEASURES = "`workbench experiment launch_overhead` measures them"
MOST_TIMES = 40  # rows of single times: an experiment has fewer, a large gate's are truncated


def markdown(runs: Iterable[RunWithOutcomes]) -> str:
    """Return FINDINGS.md for runs with their outcomes and findings, the oldest first."""
    parts = ["# Profiling results"]
    ordered = sorted(runs, key=lambda stored: (stored[0].started, stored[0].id))
    if not ordered:
        parts.append("No run was given. `workbench experiment launch_overhead` makes a first one.")
    for run, outcomes, findings in ordered:
        parts += _section(run, outcomes, findings)
    return "\n\n".join(parts) + "\n"


def _section(run: Run, outcomes: Sequence[Outcome], findings: Sequence[Finding]) -> list[str]:
    gpu = run.environment.gpu or run.device
    return [
        f"## {text(run.started[:10])}: {text(run.name)} on {text(gpu)}",
        "### Configuration",
        "\n".join(_configuration(run, outcomes)),
        "### Baseline",
        *_baseline(run, outcomes, findings),
        *_memory(run, findings),
        *_step_table(findings),
        "### Key findings",
        *_findings(findings),
        "### Optimisation opportunities",
        *_opportunities(outcomes, findings),
    ]


def _configuration(run: Run, outcomes: Sequence[Outcome]) -> list[str]:
    env = run.environment
    software = ", ".join(f"{name} {v}" for name, v in sorted(env.versions.items()))
    power = f"power limit {env.power_limit_w:.0f} W" if env.power_limit_w else ""
    driver = f"driver {env.driver}" if env.driver else ""
    clocks = f"clocks {env.clock_policy}" if env.clock_policy != "unknown" else ""
    others = f"{env.others_on_gpu} others on the GPU" if env.others_on_gpu else ""
    dirty = " with changes" if env.dirty else ""
    lines = [
        ("Run", code(run.id)),
        ("Command", code(run.command)),
        ("Device", text(_join([env.gpu or run.device, driver, power, clocks, others]))),
        ("Machine", text(_join([env.os, env.cpu, f"Python {env.python}" if env.python else ""]))),
        ("Software", text(software)),
        ("Commit", text(f"{env.commit}{dirty}") if env.commit else ""),
        ("Files", text("; ".join(f"{f['name']}, sha256 {f['sha256'][:12]}" for f in run.files))),
        ("Page", text("report.html in the run's folder") if run.files else ""),
        ("Times", text(_times_are(run, outcomes))),
    ]
    return [f"- {name}: {words}" for name, words in lines if words]


def _times_are(run: Run, outcomes: Sequence[Outcome]) -> str:
    """Return the origin of the run's times."""
    if run.predicted:
        error = device_words(run.device, run.kernel)
        return f"predicted by the analytic model, marked ~; no GPU took part. {error}"
    if run.files:
        return "profiled: taken while a tool watched, never compared with measured ones"
    measured = timings_of(outcomes)
    if not measured:
        return "none"
    regimes = " and ".join(sorted({t.regime for t in measured}))
    protocols = ", ".join(sorted({t.protocol for t in measured}))
    return f"measured, {regimes}, protocol {protocols}; medians"


# The baseline


def _baseline(run: Run, outcomes: Sequence[Outcome], findings: Sequence[Finding]) -> list[str]:
    for finding in findings:
        figures = _figures(finding)
        if figures:
            return [
                f"Of {subject(finding)}: {text(next(iter(figures.values())).group)}.",
                *_key_figures(figures),
            ]
    times = _times(run, outcomes)
    if not times:
        return [f"Nothing has a time. {_missing(BASELINE)}"]
    return [times, _missing([name for name in BASELINE if name != KPI.total])]


def _figures(finding: Finding) -> dict[str, Evidence]:
    """Return the key figures of the first group of evidence that has a total time, by name."""
    group = next((e.group for e in finding.evidence if e.name == KPI.total), None)
    mine = {e.name: e for e in finding.evidence if e.group == group and e.name in BASELINE}
    return mine if group is not None else {}


def _key_figures(figures: Mapping[str, Evidence]) -> list[str]:
    there = [figures[name] for name in BASELINE if name in figures]
    missing = [name for name in BASELINE if name not in figures]
    parts = [table(HEADS, [row_of(e) for e in there], RIGHT)]
    return parts + ([_missing(missing)] if missing else [])


def _missing(names: Sequence[str]) -> str:
    return f"Not measured: {', '.join(names)}; {MEASURES}."


def _times(run: Run, outcomes: Sequence[Outcome]) -> str:
    """Return a row for each time; of a sweep for the best, the defaults and the libraries."""
    records = [o for o in outcomes if isinstance(o, Record)]
    if run.engine == "sweep":
        last = [r for r in records if r.phase in ("final", "predict")] or records
        best = {id(r) for r in _best(last).values()}
        records = [r for r in last if id(r) in best or r.default or r.case.is_baseline]
    rows = [_time_row(r) for r in records[:MOST_TIMES]]
    more = len(records) - len(rows)
    heads = ("Kernel", "Implementation", "Sizes", "Regime", "Median", "95 % interval")
    shown = table(heads, rows, (4, 5)) if rows else ""
    return f"{shown}\n\nAnd {more} more, which the run's page shows." if more else shown


def _time_row(record: Record) -> list[str]:
    case, timing = record.case, record.timing
    between = ""
    if isinstance(timing, Measured):
        between = f"{reading(timing.low_s, 's')} to {reading(timing.high_s, 's')}"
    about = f"{sizes_text(case.sizes, ' ')} {case.dtype}".strip()
    time = ("" if record.is_measured else "~") + reading(record.time_s, "s")
    return [code(case.kernel), *map(text, (case.label, about, regime_of(record), time, between))]


# Memory, and the table of a step


def _memory(run: Run, findings: Sequence[Finding]) -> list[str]:
    """Return a table of bytes and bandwidths, beside the ceiling of the memory where the run has
    one; nothing where no finding has any."""
    ceiling = run.ceilings.get("memory", {}).get("value")
    rows = []
    for finding in findings:
        for e in (e for e in finding.evidence if e.unit in ("B", "B/s") and not finding.rule):
            of_ceiling = ""
            if e.unit == "B/s" and ceiling and "copies" not in e.name:
                of_ceiling = f"{100 * e.value / ceiling:.1f} %"
            cells = (subject(finding), text(e.group), *map(text, (e.name, number_text(e))))
            rows.append([*cells, of_ceiling, text(e.kind)])
    if not rows:
        return []
    heads = ("Kernel", "Of", "Metric", "Value", "Of the ceiling", "From")
    return ["### Memory patterns", table(heads, rows, (3, 4))]


# Rows of the table of a step, the names that findings give them, and the command that measures one.
STEP = (
    ("end-to-end latency", ("total time",), "decreasing"),
    ("kernel count", ("kernel count",), "15 to 20 % fewer"),
    ("GEMM share", ("GEMM share", "products, share"), "< 60 %"),
    ("synchronisation, wall", ("synchronisation, wall", "waiting for the GPU, share at most"),
     "< 5 %"),
    ("synchronisation, exposed", ("synchronisation, exposed",), "< 5 %"),
    ("launch overhead", ("launch overhead, share", "launch overhead, share at most",
                         "idle: host wait"), "near zero"),
    ("peak memory", ("peak memory without inputs", "peak memory beside inputs"), "stable"),
    ("numerical accuracy", ("largest error, in tolerances",), "at most 1"),
)  # fmt: skip
STEP_MEASURES = "`workbench experiment examples/rwkv7/e2e.py` measures them for a step"


def _step_table(findings: Sequence[Finding]) -> list[str]:
    """Return the table of an inference step, of findings that tell its share of products."""
    groups = [
        (finding, group)
        for finding in findings
        for group in dict.fromkeys(e.group for e in finding.evidence)
        if any(e.name in STEP[2][1] for e in finding.evidence if e.group == group)
    ]
    parts = []
    for finding, group in groups:
        by_name = {e.name: e for e in finding.evidence if e.group == group}
        columns = [
            (head, next((by_name[n] for n in names if n in by_name), None), target)
            for head, names, target in STEP
        ]
        rows = [
            [text(head), *row_of(replace(e, target=e.target or target))[1:]]
            for head, e, target in columns
            if e is not None
        ]
        missing = [head for head, e, _ in columns if e is None]
        parts.append(f"Of {subject(finding)}: {text(group)}.")
        parts.append(table(HEADS, rows, RIGHT))
        if missing:
            parts.append(f"Not measured: {', '.join(missing)}; {STEP_MEASURES}.")
    return ["### Inference step", *parts] if parts else []


# Findings and opportunities


def _findings(findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return ["None. `workbench experiment` lists what can be found out."]
    figures = {f.sentence for f in findings if not f.rule}
    shown = [f for f in findings if not f.rule or f.sentence not in figures]
    return [part for n, f in enumerate(shown, 1) for part in _finding(n, f)]


def _finding(number: int, finding: Finding) -> list[str]:
    limits = any(e.group == IMPACT for e in finding.evidence)
    word, cause = ("Bottleneck", "Cause") if limits else ("Verdict", "In words")
    lines = [
        f"- {word}: {text(finding.word)}, by {code(finding.experiment)}",
        f"- {cause}: {text(finding.sentence)}",
    ]
    lines += [
        f"- Impact: {text(e.name)}, {text(number_text(e))}{_interval_text(e)} of the total time"
        for e in finding.evidence
        if e.group == IMPACT
    ]
    lines += [f"- Note: {text(caveat)}" for caveat in finding.caveats]
    shown = [e for e in finding.evidence if e.group not in (IMPACT, GAINS)]
    grouped = any(e.group for e in shown)
    heads = (("Of",) if grouped else ()) + HEADS
    rows = [([text(e.group)] if grouped else []) + row_of(e) for e in shown]
    evidence = [table(heads, rows, tuple(n + grouped for n in RIGHT))] if rows else []
    return [f"#### {number}. {subject(finding)}: {text(finding.word)}", "\n".join(lines), *evidence]


def _interval_text(result: Evidence) -> str:
    between = interval(result)
    return f" ({text(between)})" if between else ""


def _opportunities(outcomes: Sequence[Outcome], findings: Sequence[Finding]) -> list[str]:
    """Return the alternatives that were measured to take less time, the largest gain first."""
    results: list[tuple[float, str]] = []
    for finding in findings:
        for e in (e for e in finding.evidence if e.group == GAINS):
            gain = f"{text(number_text(e))}{_interval_text(e)} of the total time"
            what = f"Of {subject(finding)}, {text(_way(finding))}: {text(e.name)}"
            approach = "launch it this way, as it was measured here"
            results.append((e.value, _opportunity(what, gain, "small", approach)))
    results += _rule_gains(findings)
    results += _better_configs(outcomes)
    if not results and any(finding.word == COUNTERS for finding in findings):
        return ["No rule holds on these counters at its threshold."]
    if not results:
        return [
            "None was measured. `workbench experiment launch_overhead` and "
            "`workbench sweep tile_size` look for some."
        ]
    ordered = sorted(dict.fromkeys(results), key=lambda each: (-each[0], each[1]))
    return ["\n".join(f"{n}. {what}" for n, (_, what) in enumerate(ordered, 1))]


def _opportunity(what: str, gain: str, effort: str, approach: str) -> str:
    """Return an opportunity with what it may gain, its effort and the approach, a line each."""
    lines = ("Potential gain", gain), ("Effort", effort), ("Approach", approach)
    return "\n".join([what, *(f"   - {name}: {words}" for name, words in lines)])


def _rule_gains(findings: Sequence[Finding]) -> list[tuple[float, str]]:
    """Return what rules would have done about a trace; those without a bound come last."""
    window = next(
        (e.value for f in findings if not f.rule for e in f.evidence if e.name == KPI.total), 0.0
    )
    results = []
    for finding in (f for f in findings if f.rule and f.gain_s != 0):
        share = finding.gain_s / window if finding.gain_s is not None and window else 0.0
        gain = "no bound is known"
        if finding.gain_s is not None:
            gain = (
                f"at most {text(reading(finding.gain_s, 's'))}, {100 * share:.1f} % of the window"
            )
        of = f"{code(finding.kernel)}: " if finding.kernel else ""
        word = finding.word if of else finding.word[:1].upper() + finding.word[1:]
        what = f"{of}{text(word)}: {text(finding.sentence)}"
        at = f" At {', '.join(map(code, finding.where))}." if finding.where else ""
        approach = text(finding.advice) + at
        results.append((share, _opportunity(what, gain, finding.effort, approach)))
    return results


def _way(finding: Finding) -> str:
    """Return the group of evidence that a finding is about: its first with a total time."""
    return next((e.group for e in finding.evidence if e.name == KPI.total), finding.word)


def _better_configs(outcomes: Sequence[Outcome]) -> list[tuple[float, str]]:
    """Return problems at which a config was measured to beat the default, by finals alone."""
    finals = [o for o in outcomes if isinstance(o, Record) and o.phase == "final"]
    finals = [r for r in finals if isinstance(r.timing, Measured) and r.case.config]
    defaults = {_problem(r): r for r in finals if r.default}
    results = []
    for problem, best in _best(finals).items():
        default = defaults.get(problem)
        if default is None or not _apart(best, default):
            continue
        gain = 1 - best.time_s / default.time_s
        case = best.case
        where = f"{code(case.kernel)}, {text(_join([sizes_text(case.sizes, ' '), case.dtype]))}"
        what = f"Of {where}: {text(case.label)} instead of {text(default.case.label)}"
        approach = "a launch without a config takes it; `workbench tuned --code` prints it"
        results.append(
            (gain, _opportunity(what, f"{100 * gain:.1f} % of its time", "small", approach))
        )
    return results


def _apart(best: Record, default: Record) -> bool:
    """Return whether the intervals of both show that the best one is faster."""
    a, b = best.timing, default.timing
    return isinstance(a, Measured) and isinstance(b, Measured) and a.high_s < b.low_s


def _best(records: Sequence[Record]) -> dict[tuple[object, ...], Record]:
    """Return the fastest record by problem, without libraries."""
    best: dict[tuple[object, ...], Record] = {}
    for r in (r for r in records if not r.case.is_baseline):
        record = best.get(_problem(r))
        if record is None or r.time_s < record.time_s:
            best[_problem(r)] = r
    return best


def _problem(record: Record) -> tuple[object, ...]:
    case = record.case
    return (case.kernel, tuple(case.sizes.items()), case.dtype, case.device)


# Words, numbers and tables

HEADS = ("Metric", "Value", "Interval", "Target", "Met", "From")
RIGHT = (1, 2)  # columns of numbers


def row_of(result: Evidence) -> list[str]:
    """Return the cells under `HEADS`, escaped. Predicted values have a tilde."""
    met = {True: "met", False: "missed", None: "undecided" if result.target else ""}[result.met]
    cells = (result.name, number_text(result), interval(result), result.target, met, result.kind)
    return [text(cell) for cell in cells]


def number_text(result: Evidence) -> str:
    """Return the number with its unit; shares and values with a target in percent as percent."""
    tilde = "~" if result.kind == "predicted" else ""
    return tilde + _number(result, result.value)


def interval(result: Evidence) -> str:
    """Return the interval: `3 us to 4 us`; empty where there is none."""
    if result.low is None or result.high is None or result.unit == "kernels":
        return ""
    return f"{_number(result, result.low)} to {_number(result, result.high)}"


def _number(result: Evidence, value: float) -> str:
    share = is_share(result) or (result.unit == "1" and result.group in (IMPACT, GAINS))
    return f"{100 * value:.1f} %" if share else reading(value, result.unit)


def subject(finding: Finding) -> str:
    """Return the finding's subject, escaped: the kernel as code, its sizes and its dtype."""
    rest = _join([sizes_text(finding.sizes, " "), finding.dtype])
    return ", ".join(p for p in (code(finding.kernel or finding.experiment), text(rest)) if p)


def _join(parts: Sequence[str]) -> str:
    return ", ".join(part for part in parts if part)


# An underscore between letters and a ">" inside a line need no escape; a tilde may strike out.
MARKUP = re.compile(r"([\\`*\[\]<|#~&$]|(?<![^\W_])_|_(?![^\W_]))")


def text(words: str) -> str:
    """Return the words on one line, with Markdown's markup escaped."""
    return MARKUP.sub(r"\\\1", " ".join(words.split()))


def code(words: str) -> str:
    """Return the words as inline code, or escaped where they hold a backtick or "|"."""
    one_line = " ".join(words.split())
    if "`" in one_line or "|" in one_line or not one_line:
        return text(one_line)
    return f"`{one_line}`"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Return a Markdown table whose columns are aligned in the source; numbers are on the right.
    Cells are escaped already, and empty columns are left out."""
    some = [n for n in range(len(heads)) if any(row[n] for row in rows)]
    cells = [[text(heads[n]) for n in some], *([row[n] for n in some] for row in rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(some))]
    rule = [
        "-" * (widths[i] - 1) + ":" if n in right else "-" * widths[i] for i, n in enumerate(some)
    ]
    lines = []
    for row in (cells[0], rule, *cells[1:]):
        padded = (
            cell.rjust(widths[i]) if some[i] in right else cell.ljust(widths[i])
            for i, cell in enumerate(row)
        )
        lines.append("| " + " | ".join(padded) + " |")
    return "\n".join(lines)
