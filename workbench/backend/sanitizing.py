"""Run one call of a config under compute-sanitizer, in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from workbench import __version__, catalog
from workbench.backend.protocol import Problem
from workbench.data.files import write_file
from workbench.data.temporary import temporary_folder
from workbench.measurement.candidate import Candidate
from workbench.spec import Limits, Sizes, WorkbenchError, sizes_text, values
from workbench.traces.profilers import profilers, refusal, run_tool
from workbench.traces.profilers.running.call_script import SCRIPT, OneCall, script_of
from workbench.traces.profilers.running.machine import machine_here
from workbench.traces.profilers.running.workload import MarkedCalls, Workload
from workbench.traces.profilers.sanitizer import results_of
from workbench.traces.trace import CheckerResult

TOOL = "sanitizer"
CHECKS = ("racecheck", "memcheck")
LIMIT_S = 300.0  # of each check: those of softmax take 10 s each with their process (H200)


class Sanitized(NamedTuple):
    """The verdict on one config; `reason` says what was wrong, or why there is none."""

    state: Literal["kept", "broken", "not run"]
    reason: str = ""


def sanitizer_refusal() -> str | None:
    """Return in one sentence why compute-sanitizer cannot run on this machine, or None."""
    machine = machine_here()
    return refusal(profilers()[TOOL], machine, Workload((machine.python,), ""))


def sanitize_call(call: OneCall) -> Sanitized:
    """Return the verdict of racecheck and memcheck on one call. All kernels of its process are
    watched, so none hides behind its name; the tool makes them 10 to 100 times as slow."""
    with temporary_folder() as folder:
        write_file(folder / SCRIPT, script_of(call, __version__))
        return _verdict(folder, call, call.calls)


def sanitized_each(calls: Sequence[OneCall]) -> list[Sanitized]:
    """Return the verdict on each of some calls of one kernel. They share a process for each check,
    as each process imports torch and compiles under the tool; where the shared one does not end
    well, each call has processes of its own."""
    if len(calls) > 1 and _all_pass(calls):
        return [Sanitized("kept") for _ in calls]
    return [sanitize_call(call) for call in calls]


def _all_pass(calls: Sequence[OneCall]) -> bool:
    """Return whether the checks detect nothing in a process that makes all calls, one behind the
    other, and that reaches its end."""
    with temporary_folder() as folder:
        lines = ["import runpy"]
        for number, call in enumerate(calls):
            path = folder / f"call_{number}.py"
            write_file(path, script_of(call, __version__))
            lines.append(f"runpy.run_path({str(path)!r}, run_name='__main__')")
            lines.append(f"open({str(folder / f'ended_{number}')!r}, 'a').write('.')")
        write_file(folder / SCRIPT, "\n".join(lines) + "\n")
        verdict = _verdict(folder, calls[0], sum(call.calls for call in calls))
        ends = [folder / f"ended_{number}" for number in range(len(calls))]
        whole = all(end.exists() and len(end.read_text()) == len(CHECKS) for end in ends)
        return whole and verdict.state == "kept"


def _verdict(folder: Path, call: OneCall, calls: int) -> Sanitized:
    """Return the verdict of the checks on the script of a folder, which makes so many calls."""
    machine, tool = machine_here(), profilers()[TOOL]
    workload = Workload(
        (machine.python, str(folder / SCRIPT)),
        call.title,
        marks=MarkedCalls(calls, True),
        checks=CHECKS,
    )
    try:
        tool.parse(run_tool(tool, machine, workload, folder, LIMIT_S, aside=True))
    except WorkbenchError as error:
        return Sanitized("not run", str(error))
    return sanitized_by(results_of(folder), call.sizes)


def call_of(
    kernel: str, title: str, impl: str, config: Mapping[str, int], sizes: Sizes, dtype: str
) -> OneCall:
    """Return one call of an Impl of a kernel, which is a name, a dotted module or a path."""
    path = catalog.absolute(kernel)
    return OneCall(path, title, impl, dict(config), sizes, dtype, machine_here().gpu, calls=1)


def checked_call(problem: Problem, candidate: Candidate, limits: Limits) -> OneCall:
    """Return the call of a candidate at the largest of the sizes to check that it takes, or at the
    problem's own where it takes none of them."""
    impl, config, spec = candidate.impl, candidate.config, problem.spec
    taken = [
        sizes
        for sizes in spec.check
        if impl.rejection_reason(config, limits, problem.dtype, sizes) is None
    ]
    sizes = max(taken, key=lambda s: spec.bytes(s, problem.dtype), default=problem.sizes)
    return call_of(problem.kernel, impl.title, impl.name, values(config), sizes, problem.dtype)


def sanitized_by(results: Mapping[str, CheckerResult], sizes: Sizes) -> Sanitized:
    """Return the verdict by the results of the checks, by name."""
    for check in CHECKS:
        result = results.get(check)
        if result is not None and result.verdict == "fail":
            return Sanitized("broken", _finding(check, result, sizes))
    open_ = [c for c in CHECKS if c not in results or results[c].verdict == "inconclusive"]
    if open_:
        reason = f"{' and '.join(open_)} ended without a summary; run `workbench profile --tool "
        return Sanitized("not run", f"{reason}sanitizer` on the kernel")
    return Sanitized("kept")


def _finding(check: str, result: CheckerResult, sizes: Sizes) -> str:
    """Return the first error of a check in one sentence."""
    first = next((r for r in result.records if r.level == "error"), None)
    count = f"{check} at {sizes_text(sizes)}: {result.counts_text}"
    if first is None:
        return count
    place = f" in {first.kernel}" if first.kernel else ""
    line = f" ({Path(first.file).name}:{first.line})" if first.file else ""
    return f"{count}; the first is: {first.text.rstrip('.')}{place}{line}"
