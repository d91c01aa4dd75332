"""The commands as functions. Each argument is an option of the command of the same name.

All raise WorkbenchError where the command line prints an error, with the same sentence, and
KeyboardInterrupt after Ctrl-C. Editors and type checkers read `commands.pyi`.
"""

from __future__ import annotations

from workbench.api.call import Called
from workbench.api.command_function import EMPTY, command_function
from workbench.api.results import (
    CeilingsResult,
    EvaluateResult,
    ExperimentResult,
    HistoryResult,
    ProfileResult,
)
from workbench.api.timing_results import CompareResult, MeasureResult, SweepResult


@command_function(kernel="matmul", name="full")
def sweep(called: Called) -> SweepResult:
    """Try the configs of a kernel, reject wrong results, time the others; return the selection.

    With `device`, or without a GPU, kernels are compiled, checked in Triton's interpreter, and
    their times are predicted.

    Args:
        kernel: its name, `package.module`, or `path/to/mine.py`.
        name: the sweep: `full`, `tile_size`, `block_size` or `pipeline`.
    """
    return SweepResult(called)


@command_function(kernel=EMPTY)
def measure(called: Called) -> MeasureResult:
    """Return times of Impls at their tuned or default configs, over sizes and dtypes, beside those
    of library baselines.

    Without a GPU, or with `device`, times are predicted. Where the sizes differ on one axis,
    `plot()` draws the rates over it, with the libraries and the roofline bound.
    """
    return MeasureResult(called)


@command_function("triton", "device", "expect", left=EMPTY, right=EMPTY)
def compare(called: Called) -> CompareResult:
    """Compare two operands on the GPU, and return whether the right one is slower. Two stored runs
    are compared without a GPU; a result stands for its last run.

    Args:
        left: `tiles`, `tiles:block_m=128`, a git revision, a run's id, or a result.
        right: the same; `WORKING` is the file as it is.
        kernel: the kernel, where the operands do not name it.
    """
    return CompareResult(called)


@command_function("verify", "reuse", kernel=EMPTY)
def evaluate(called: Called) -> EvaluateResult:
    """Judge one kernel by all rules, and return the verdict with its time.

    With `spec` the evaluation is strict: the kernel's file is imported in no process whose word
    counts, this one included, and each rule of the verdict says what shows it.
    """
    return EvaluateResult(called)


@command_function(name=EMPTY)
def experiment(called: Called) -> ExperimentResult:
    """Run an experiment on kernels, and return its findings.

    Args:
        name: `memory_vs_compute`, another of docs/experiments.md, or `path/to/mine.py`.
    """
    return ExperimentResult(called)


@command_function()
def ceilings(called: Called) -> CeilingsResult:
    """Measure the rates that this GPU reaches, or return those stated of a device."""
    return CeilingsResult(called)


@command_function("list_metrics", "device", "dry_run", target=())
def profile(called: Called) -> ProfileResult:
    """Profile a kernel, or a program in a process of its own, and return what the tool recorded.

    Args:
        target: a kernel, `wb.profile("softmax")`; or `"--"` and the words of a program,
            `wb.profile("--", "python", "step.py")`.
    """
    return ProfileResult(called)


@command_function("prune", "older_than", "keep", "yes", "export", kernel=None)
def history(called: Called) -> HistoryResult:
    """Return the outcomes of earlier runs, the newest first."""
    return HistoryResult(called)
