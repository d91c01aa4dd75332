"""Assert that a tool recorded what it was to record: tools end with exit code 0 without it."""

import signal
from bisect import bisect_right
from collections import Counter
from typing import NoReturn

from workbench.data.units import amount
from workbench.traces.profilers import ProfilerError, RecordingStatus, ToolRun
from workbench.traces.profilers.running.call_script import RANGE, SCRIPT
from workbench.traces.profilers.running.workload import MarkedCalls, StepSchedule
from workbench.traces.timeline import named_ranges
from workbench.traces.trace import ActivityKind, Trace

MOST_NAMES = 5
UNMARKED = 2  # calls of the script before the marked ones


def check_inside(run: ToolRun, package: str, tool: str) -> None:
    """Raise ProfilerError where a recorder inside of the program gave nothing usable."""
    status, title = run.status, run.workload.title
    if run.end.timed_out:
        raise ProfilerError(f"{title} took too long and was ended; choose smaller sizes.")
    if run.workload.marks and run.end.code:
        script = run.folder / SCRIPT
        raise ProfilerError(
            f"The calls of {title} ended with {ending(run.end.code)}; `python {script}` repeats "
            "them without a profiler."
        )
    if status is None or status.state == "recording":
        raise ProfilerError(
            f"{title} ended its process before {tool} could write ({ending(run.end.code)}); let it "
            "end by itself."
        )
    if (status.conflict and not status.recorded) or (status.exception and status.conflict):
        raise ProfilerError(
            f"{title} uses {tool} itself, and a process has one profiler at a time; run it without "
            "`workbench profile`, and read its own trace with `workbench read`."
        )
    if status.state == "unused":
        _refuse_unused(run, package, tool)
    if status.fault:
        raise ProfilerError(f"{tool} failed in {title} ({status.fault}); it left no usable file.")
    if not status.recorded:
        raise ProfilerError(_no_step(title, status, run.workload.schedule))
    if not run.files:
        raise ProfilerError(f"{tool} left no file for {title}; record again.")


def ending(code: int) -> str:
    """Return how a process ended, by its exit code as a shell gives it."""
    if code > 128:
        try:
            return signal.Signals(code - 128).name
        except ValueError:
            pass
    return f"exit code {code}"


def _refuse_unused(run: ToolRun, package: str, tool: str) -> NoReturn:
    title = run.workload.title
    if run.end.code:
        raise ProfilerError(
            f"{title} ended with {ending(run.end.code)} before it imported {package}; correct it "
            "first."
        )
    raise ProfilerError(
        f"{title} never imported {package} in its own process, so {tool} had nothing to record; "
        "name the program that computes."
    )


def _no_step(title: str, status: RecordingStatus, schedule: StepSchedule | None) -> str:
    if schedule is None:
        return f"Nothing of {title} was recorded; record again."
    before = schedule.wait + schedule.warmup
    steps = amount(status.steps, "step")
    return (
        f"{title} made {steps}, and {before} come before the first one to record; choose smaller "
        "--steps WAIT,WARMUP."
    )


# Calls of ours


def check_marked_calls(run: ToolRun, trace: Trace) -> None:
    """Raise ProfilerError where the trace of a script of ours lacks one of its marked calls or
    launches, or has more; and where a program used the GPU and no kernel is there."""
    marked = run.workload.marks
    kernels = _kernels(trace, within=marked is not None)
    if marked is None:
        if run.status is not None and run.status.gpu_used and not kernels:
            raise ProfilerError(
                f"{run.workload.title} used the GPU, and no kernel was recorded: another collector "
                "(DCGM, ncu, a second profiler) holds the GPU, or it computed outside of the "
                "recorded steps."
            )
        return
    if run.workload.data == "inside":
        _check_records(trace, run.workload.title)
        return
    ranges = _range_count(trace)
    if ranges is not None and ranges != marked.calls:
        raise ProfilerError(
            f"{amount(marked.calls, 'call')} of {run.workload.title} were marked, and the trace "
            f"has {amount(ranges, 'range')} named {RANGE}; record again."
        )
    if marked.uses_gpu:
        _check_kernels(marked, kernels, run.workload.title)


def check_dispatches(run: ToolRun, trace: Trace) -> None:
    """Raise ProfilerError where the dispatches of a tool that takes them one by one are not those
    of the marked calls, by name and number."""
    kernels = Counter(dispatch.name for dispatch in trace.dispatches)
    if run.workload.marks is not None:
        _check_kernels(run.workload.marks, kernels, run.workload.title)
    elif not kernels:
        raise ProfilerError(
            f"No kernel of {run.workload.title} was recorded; name a program that launches one."
        )


def check_whole(run: ToolRun, trace: Trace) -> None:
    """Raise ProfilerError where the trace of the whole script of ours lacks a call: one loads the
    code, one warms up, then come the marked ones."""
    marked = run.workload.marks
    if marked is None:
        return
    kernels = _kernels(trace, within=False)
    count = sum(n for name, n in kernels.items() if name.startswith(marked.kernel))
    if count < marked.calls + UNMARKED:
        raise ProfilerError(
            f"{marked.calls + UNMARKED} launches of {marked.kernel or run.workload.title} were "
            f"expected, and {_recorded_text(kernels)}; record again."
        )


def _range_count(trace: Trace) -> int | None:
    """Return the number of marked ranges on the timeline; None where there is none to count on, as
    in a tree of totals or a trace of kernels alone."""
    table = trace.activities
    ranges = list(table.select(ActivityKind.RANGE))
    if not ranges:
        return 0 if trace.tool == "torch.profiler" else None
    return sum(table.name(i) == RANGE for i in ranges)


def _kernels(trace: Trace, within: bool) -> Counter[str]:
    """Return the number of launches of each kernel: `within` the marked ranges where the timeline
    has them, else of the whole file."""
    table = trace.activities
    counts: Counter[str] = Counter()
    for total in trace.totals:
        if total.kind == ActivityKind.KERNEL:
            counts[total.name] += total.count
    ranges = named_ranges(trace, RANGE)
    launches = table.launches()
    for index in table.select(ActivityKind.KERNEL):
        at = launches[index]
        if within and at >= 0 and ranges.starts:
            time = table.starts[at]
            place = bisect_right(ranges.starts, time) - 1
            if place < 0 or time >= ranges.ends[place]:
                continue
        counts[table.name(index)] += 1
    return counts


def _recorded_text(kernels: Counter[str]) -> str:
    got = ", ".join(f"{count} x {name}" for name, count in kernels.most_common(MOST_NAMES))
    return f"what was recorded is {got or 'no kernel'}"


def _check_kernels(marked: MarkedCalls, kernels: Counter[str], title: str) -> None:
    seen = _recorded_text(kernels)
    if not kernels:
        raise ProfilerError(
            f"The calls of {title} launched nothing that was recorded: another collector (DCGM, "
            "ncu, a second profiler) may hold the GPU."
        )
    of_name = sum(n for name, n in kernels.items() if name.startswith(marked.kernel))
    if marked.kernel and of_name < marked.calls:
        raise ProfilerError(
            f"{marked.calls} launches of {marked.kernel} were expected, and {seen}; record again."
        )
    wanted = None if marked.launches is None else marked.calls * marked.launches
    if wanted is not None and kernels.total() != wanted:
        raise ProfilerError(
            f"{amount(wanted, 'launch')} {'was' if wanted == 1 else 'were'} expected of "
            f"{amount(marked.calls, 'call')} of {title}, and {seen}; record again."
        )


def _check_records(trace: Trace, title: str) -> None:
    if not any(True for _ in trace.activities.select(ActivityKind.RANGE)):
        raise ProfilerError(
            f"{title} has no scopes inside, so nothing was recorded there: enter "
            '`pl.scope("load")` of triton.profiler.language in the kernel, after '
            '`pl.enable_semantic("triton")`.'
        )
