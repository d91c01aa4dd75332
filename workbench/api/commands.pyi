# Written by docs/generate.py from the options of the commands; do not edit.

from collections.abc import Sequence
from pathlib import Path

from workbench.api import (
    CeilingsResult,
    CompareResult,
    EvaluateResult,
    ExperimentResult,
    HistoryResult,
    MeasureResult,
    ProfileResult,
    Result,
    SweepResult,
)
from workbench.api.arguments import ManySizes, OneSize, Words
from workbench.commands.evaluate import Sanitizer
from workbench.commands.field import Also, Idle
from workbench.commands.profile import Recorded
from workbench.commands.sweep import Requirement

def ceilings(
    *,
    device: str | None = None,
    require: Idle | Sequence[Idle] = (),
    out: str | Path = "results",
    database: str | None = None,
    progress: bool | None = None,
) -> CeilingsResult:
    """Measure the rates that this GPU reaches, or return those stated of a device.

    Args:
        device: Print the stated ceilings of this device; measure nothing.
        require: idle-gpu: refuse while others use the GPU.
        out: Folder for the page and events.
        database: Database URL; SQLite in the user's data folder by default.
        progress: False for no display.
    """

def compare(
    left: str | Result,
    right: str | Result,
    *,
    kernel: Words = (),
    impl: str | None = None,
    sizes: OneSize | None = None,
    dtype: str = "bf16",
    threshold: float = 0.01,
    also: Also | Sequence[Also] = (),
    require: Idle | Sequence[Idle] = (),
    trust: bool = False,
    out: str | Path = "results",
    database: str | None = None,
    progress: bool | None = None,
) -> CompareResult:
    """Compare two operands on the GPU, and return whether the right one is slower. Two stored runs
    are compared without a GPU; a result stands for its last run.

    Args:
        left: `tiles`, `tiles:block_m=128`, a git revision, a run's id, or a result.
        right: the same; `WORKING` is the file as it is.
        kernel: the kernel, where the operands do not name it.
        impl: For revisions or runs: this Impl, or tiles:block_m=128.
        sizes: {"M": 4096, "N": 4096, "K": 4096}
        dtype: fp32, fp16 or bf16.
        threshold: Share up to which a difference does not count; 0.01 by default.
        also: energy: the joules of a call; profile: both operands, by counters. After the times.
        require: idle-gpu: refuse while others use the GPU.
        trust: For stored runs: execute the kernel's file that they name.
        out: Folder for the page and events.
        database: Database URL; SQLite in the user's data folder by default.
        progress: False for no display.
    """

def evaluate(
    kernel: str | Path,
    *,
    spec: str | Path | None = None,
    impl: str | None = None,
    sizes: OneSize | None = None,
    dtype: str | None = None,
    device: str | None = None,
    task: str | Path | None = None,
    require: Sanitizer | Sequence[Sanitizer] = (),
    accept_claims: bool = False,
    progress: bool | None = None,
) -> EvaluateResult:
    """Judge one kernel by all rules, and return the verdict with its time.

    With `spec` the evaluation is strict: the kernel's file is imported in no process whose word
    counts, this one included, and each rule of the verdict says what shows it.

    Args:
        kernel: A kernel's name, package.module, or file.
        spec: Kernel whose Spec judges it. Default: the one in the file, which is trusted.
        impl: tiles or tiles:block_m=128. Default: the file's first.
        sizes: Sizes to time: {"M": 4096, "N": 4096, "K": 4096}. Default: the Spec's first.
        dtype: fp32, fp16 or bf16. Default: bf16, or the task's.
        device: Compile and predict for this target (h200, mi300x, ...) with no GPU.
        task: Judge a submission to a task of KernelBench, GPU MODE or flashinfer-bench.
        require: sanitizer: one call passes racecheck and memcheck.
        accept_claims: `plausible` is exit code 0.
        progress: False for no display.
    """

def experiment(
    name: str,
    *,
    kernel: str | Path | None = None,
    sizes: OneSize | None = None,
    dtype: str | None = None,
    device: str | None = None,
    time: str | None = None,
    require: Idle | Sequence[Idle] = (),
    out: str | Path = "results",
    database: str | None = None,
    progress: bool | None = None,
) -> ExperimentResult:
    """Run an experiment on kernels, and return its findings.

    Args:
        name: `memory_vs_compute`, another of docs/experiments.md, or `path/to/mine.py`.
        kernel: A kernel's name, package.module, or path/to/mine.py.
        sizes: {"M": 4096, "N": 4096, "K": 4096}
        dtype: fp32, fp16 or bf16.
        device: Compile and predict for this target (h200, mi300x, ...) with no GPU.
        time: For `expected`: a time to compare with the bound, 0.5ms.
        require: idle-gpu: refuse while others use the GPU.
        out: Folder for the page and events.
        database: Database URL; SQLite in the user's data folder by default.
        progress: False for no display.
    """

def history(
    kernel: str | Path | None = None,
    *,
    impl: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    failures: bool = False,
    limit: int = 50,
    load: str | Path | None = None,
    database: str | None = None,
    progress: bool | None = None,
) -> HistoryResult:
    """Return the outcomes of earlier runs, the newest first.

    Args:
        kernel: This kernel only: its name, or path/to/mine.py.
        impl: This Impl only.
        device: This device only.
        dtype: This dtype only.
        failures: Only failures.
        limit: Rows at most, newest first.
        load: Import the good lines of this events file first.
        database: Database URL; SQLite in the user's data folder by default.
        progress: False for no display.
    """

def measure(
    kernel: str | Path,
    *,
    impl: Words = (),
    sizes: ManySizes | None = None,
    dtype: Words = ("bf16",),
    device: str | None = None,
    also: Also | Sequence[Also] = (),
    require: Idle | Sequence[Idle] = (),
    out: str | Path = "results",
    database: str | None = None,
    progress: bool | None = None,
) -> MeasureResult:
    """Return times of Impls at their tuned or default configs, over sizes and dtypes, beside those
    of library baselines.

    Without a GPU, or with `device`, times are predicted. Where the sizes differ on one axis,
    `plot()` draws the rates over it, with the libraries and the roofline bound.

    Args:
        kernel: A kernel's name, package.module, or file.
        impl: tiles or tiles:block_m=128; or a list. Default: all Triton.
        sizes: {"M": 4096, "N": 4096, "K": 4096}; or a list. Default: all to time.
        dtype: fp32, fp16 or bf16; or a list. Default: bf16.
        device: Compile and predict for this target (h200, mi300x, ...) with no GPU.
        also: energy: the joules of a call; profile: every Impl of ours, by counters. After the
            times.
        require: idle-gpu: refuse while others use the GPU.
        out: Folder for the page and events.
        database: Database URL; SQLite in the user's data folder by default.
        progress: False for no display.
    """

def profile(
    *target: str,
    tool: str | None = None,
    impl: str | None = None,
    sizes: OneSize | None = None,
    dtype: str | None = None,
    calls: int | None = None,
    steps: str | tuple[int, int, int] | None = None,
    with_: Recorded | Sequence[Recorded] = (),
    metrics: str | None = None,
    tool_option: Words = (),
    out: str | Path = "results",
    database: str | None = None,
    progress: bool | None = None,
) -> ProfileResult:
    """Profile a kernel, or a program in a process of its own, and return what the tool recorded.

    Args:
        target: a kernel, `wb.profile("softmax")`; or `"--"` and the words of a program,
            `wb.profile("--", "python", "step.py")`.
        tool: ncu, trace, proton, sanitizer, nsys, rocprofv3, rocprof, rocprof-compute, xctrace,
            gputrace. Default: ncu of a kernel on NVIDIA, else trace.
        impl: For a kernel: tiles or tiles:block_m=128. Default: the first.
        sizes: For a kernel: {"M": 4096, "N": 4096, "K": 4096}.
        dtype: For a kernel: fp32, fp16 or bf16, which is the default.
        calls: For a kernel: calls to record.
        steps: For a program with workbench.step(): steps to skip, to warm up and to record, 0,1,3.
        with_: trace: shapes of inputs, memory of operators, Python's stacks.
        metrics: ncu, rocprofv3: counters to add, A,B.
        tool_option: ncu: set=detailed; proton: data=trace; sanitizer: checks=all; xctrace:
            instrument=Allocations. Repeated.
        out: Folder for the page and events.
        database: Database URL; SQLite in the user's data folder by default.
        progress: False for no display.
    """

def sweep(
    kernel: str | Path = "matmul",
    name: str = "full",
    *,
    impl: Words = (),
    sizes: ManySizes | None = None,
    dtype: str = "bf16",
    device: str | None = None,
    only: bool = False,
    budget: str | int | None = None,
    search: str | None = None,
    also: Also | Sequence[Also] = (),
    require: Requirement | Sequence[Requirement] = (),
    workers: int | str | None = None,
    fresh: bool = False,
    out: str | Path = "results",
    database: str | None = None,
    progress: bool | None = None,
) -> SweepResult:
    """Try the configs of a kernel, reject wrong results, time the others; return the selection.

    With `device`, or without a GPU, kernels are compiled, checked in Triton's interpreter, and
    their times are predicted.

    Args:
        kernel: its name, `package.module`, or `path/to/mine.py`.
        name: the sweep: `full`, `tile_size`, `block_size` or `pipeline`.
        impl: This Impl only; or a list. Default: all Triton.
        sizes: {"M": 4096, "N": 4096, "K": 4096}; or a list: tuned jointly for all of them.
        dtype: fp32, fp16 or bf16.
        device: Compile and predict for this target (h200, mi300x, ...) with no GPU.
        only: Keep the knobs to tune at their default.
        budget: 30s, 2m, or 200 (configs): stop then with the best so far.
        search: Which configs come first: exhaustive, model, random, tpe.
        also: energy: the joules of a call; profile: the winner, by counters. After the times.
        require: same-bits: as a launch's; sanitizer: racecheck and memcheck pass; idle-gpu: refuse
            while others use the GPU.
        workers: Share the work among so many GPUs of this host, or those of a Dask cluster.
        fresh: Obtain again what the database already holds.
        out: Folder for the page and events.
        database: Database URL; SQLite in the user's data folder by default.
        progress: False for no display.
    """
