"""Decide the rule `sanitizer`: one call under compute-sanitizer, in a process of its own."""

from __future__ import annotations

from pathlib import Path

from workbench import __version__, catalog
from workbench.data.files import write_file
from workbench.data.temporary import temporary_folder
from workbench.data.trace import CheckerResult
from workbench.evaluation.submission import Submission, Wanted
from workbench.evaluation.verdict import RuleResult
from workbench.profilers import profilers, refusal, run_tool
from workbench.profilers.running.call_script import SCRIPT, OneCall, script_of
from workbench.profilers.running.machine import machine_here
from workbench.profilers.running.workload import MarkedCalls, Workload
from workbench.profilers.sanitizer import results_of
from workbench.spec import Sizes, WorkbenchError, sizes_text

TOOL = "sanitizer"
CHECKS = ("racecheck", "memcheck")
LIMIT_S = 300.0  # of each check: the largest sizes to check of our kernels take up to 30 s


def sanitizer_refusal() -> str | None:
    """Return in one sentence why the rule cannot be decided on this machine, or None."""
    machine = machine_here()
    return refusal(profilers()[TOOL], machine, Workload((machine.python,), ""))


def sanitized(submission: Submission, wanted: Wanted, sizes: Sizes) -> RuleResult:
    """Return the result of the rule for one call at these sizes; the tool makes a kernel 10 to 100
    times as slow. All kernels of the process are watched, so none hides behind its name."""
    machine, tool = machine_here(), profilers()[TOOL]
    kernel = str(Path(wanted.kernel).resolve()) if catalog.is_path(wanted.kernel) else wanted.kernel
    call = OneCall(
        kernel, submission.title, submission.impl, submission.config, sizes, wanted.dtype,
        machine.gpu, calls=1,
    )  # fmt: skip
    with temporary_folder() as folder:
        script = folder / SCRIPT
        write_file(script, script_of(call, __version__))
        marked = MarkedCalls(1, True)
        words = (machine.python, str(script))
        workload = Workload(words, call.title, marked=marked, checks=CHECKS)
        try:
            tool.parse(run_tool(tool, machine, workload, folder, LIMIT_S, aside=True))
        except WorkbenchError as error:
            return RuleResult("sanitizer", "not run", str(error))
        return result_of(results_of(folder), sizes)


def result_of(results: dict[str, CheckerResult], sizes: Sizes) -> RuleResult:
    """Return the result of the rule from those of the checks, by name."""
    for check in CHECKS:
        result = results.get(check)
        if result is not None and result.verdict == "fail":
            return RuleResult("sanitizer", "broken", _finding(check, result, sizes))
    open_ = [c for c in CHECKS if c not in results or results[c].verdict == "inconclusive"]
    if open_:
        reason = f"{' and '.join(open_)} ended without a summary; run `workbench profile --tool "
        return RuleResult("sanitizer", "not run", f"{reason}sanitizer` on the kernel")
    return RuleResult("sanitizer", "kept")


def _finding(check: str, result: CheckerResult, sizes: Sizes) -> str:
    """Return the first error of a check in one sentence."""
    first = next((r for r in result.records if r.level == "error"), None)
    count = f"{check} at {sizes_text(sizes)}: {result.errors} errors"
    if first is None:
        return count
    place = f" in {first.kernel}" if first.kernel else ""
    line = f" ({Path(first.file).name}:{first.line})" if first.file else ""
    return f"{count}; the first is: {first.text.rstrip('.')}{place}{line}"
