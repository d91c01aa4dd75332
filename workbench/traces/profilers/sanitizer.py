"""NVIDIA's compute-sanitizer: synchronisation, races, memory and uninitialised reads, in this
order."""

from collections.abc import Mapping
from pathlib import Path

from workbench.data.exits import FAILED, PASSED, UNDECIDED
from workbench.traces.profilers import (
    LOG,
    Command,
    Profiler,
    ProfilerError,
    ToolRun,
    refuse_without,
)
from workbench.traces.profilers.running.failures import check_exit, failure
from workbench.traces.profilers.running.machine import Machine
from workbench.traces.profilers.running.workload import Workload, whole_command
from workbench.traces.readers import read
from workbench.traces.readers.inputs.source import ReadError
from workbench.traces.trace import CheckerResult, Trace

PROGRAM = "compute-sanitizer"
CHECKS = ("synccheck", "racecheck", "memcheck", "initcheck")
ERRORS_CODE = 86  # exit code of a check that found something; without the option it is 0
PRINTED = 100  # findings of a check; 10000 took 76 MB and more than 30 s (H200, 2026-11-23)
available = refuse_without(
    "cuda",
    "compute-sanitizer checks kernels on an NVIDIA GPU, and no driver shows one here; run this "
    "where there is one.",
    PROGRAM,
    "compute-sanitizer is not on the path; install it from the CUDA toolkit.",
)
CODES = {"pass": PASSED, "fail": FAILED, "inconclusive": UNDECIDED}


def argv(machine: Machine, workload: Workload, folder: Path) -> list[str]:
    """Return the command line of the first check. Raises ProgramError."""
    return _check(_chosen_checks(workload)[0], machine, workload, folder)


def _chosen_checks(workload: Workload) -> tuple[str, ...]:
    """Return the checks of a workload, in the order of CHECKS."""
    return tuple(check for check in CHECKS if check in (workload.checks or CHECKS))


def _check(check: str, machine: Machine, workload: Workload, folder: Path) -> list[str]:
    # a filter leaves out the writes of other kernels too, and initcheck would take what they wrote
    # for uninitialised
    kernel = workload.marks.kernel if workload.marks and check != "initcheck" else ""
    return [
        machine.program(PROGRAM),
        *("--tool", check, "--error-exitcode", str(ERRORS_CODE), "--print-limit", str(PRINTED)),
        *("--xml", "--save", str(folder / f"{check}.xml")),
        *("--log-file", str(folder / f"{check}.log")),
        *(("--kernel-name", f"kernel_name={kernel}") if kernel else ()),
        *whole_command(workload, machine),
    ]


def further(machine: Machine, workload: Workload, folder: Path) -> list[Command]:
    """Return the other checks, each due while none has found anything, or with `checks=all`."""

    def is_due() -> bool:
        return workload.every or not any(r.verdict == "fail" for r in results_of(folder).values())

    rest = (_check(check, machine, workload, folder) for check in _chosen_checks(workload)[1:])
    return [Command(words, due=is_due) for words in rest]


def reads(workload: Workload, folder: Path) -> list[Path]:
    """Return the logs that may come back: the first finding ends the checks, or `checks=all`."""
    return [folder / f"{check}.log" for check in _chosen_checks(workload)]


def parse(run: ToolRun) -> Trace:
    """Return the records of all checks. Raises ProfilerError where no check has a log, or the tool
    failed."""
    check_exit(run, PROGRAM, (0, ERRORS_CODE))
    traces = [read([path]) for path, _ in _read_results(run.folder).values()]
    if not traces:
        reason = failure(run.text)
        raise ProfilerError(reason or f"{PROGRAM} left nothing that can be read; run it by hand.")
    for part in traces[1:]:
        traces[0].join(part)
    return traces[0]


def results_of(folder: Path) -> dict[str, CheckerResult]:
    """Return the result of each check that has a log, by its name."""
    results: dict[str, CheckerResult] = {}
    for check, (_, result) in _read_results(folder).items():
        result.tool = check
        results[check] = result
    return results


def _read_results(folder: Path) -> dict[str, tuple[Path, CheckerResult]]:
    """Return log and result of each check: of its own log and of what it printed, the first with a
    summary line, else the first that can be read."""
    results: dict[str, tuple[Path, CheckerResult]] = {}
    for number, check in enumerate(CHECKS):
        printed = f"further{number - 1}.log" if number else LOG
        for path in (folder / f"{check}.log", folder / printed):
            try:
                result = read([path]).checker
            except ReadError:
                continue
            if result is not None and (check not in results or result.errors is not None):
                results[check] = (path, result)
            if result is not None and result.errors is not None:
                break
    return results


def verdict(results: Mapping[str, CheckerResult]) -> str:
    """Return `fail` where a check found something, `pass` where each has a summary without, else
    `inconclusive`."""
    verdicts = [result.verdict for result in results.values()]
    if "fail" in verdicts:
        return "fail"
    return "pass" if len(verdicts) == len(CHECKS) and set(verdicts) == {"pass"} else "inconclusive"


def code(run: ToolRun) -> int:
    """Return the exit code of the verdict: 0 pass, 1 fail, 3 inconclusive."""
    return CODES[verdict(results_of(run.folder))]


NO_CACHE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
PROFILER = Profiler(
    "NVIDIA compute-sanitizer", available, argv, reads, parse, further, NO_CACHE, calls=1, code=code
)
