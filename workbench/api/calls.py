"""The commands as functions. Each argument is an option of the command of the same name.

Each function names the arguments that are given most; `more` has the others, which its docstring
lists too. All of them take:

- `progress`: False for no display; by default a bar in a notebook, and a line on a terminal;
- `out`: folder for the page and the events file, `results` by default;
- `database`: URL of the database; SQLite in the user's data folder by default.

All raise WorkbenchError where the command line prints an error, with the same sentence, and
KeyboardInterrupt after Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from workbench.adapted.grid import Grid
from workbench.api.arguments import (
    CompareArguments,
    EvaluateArguments,
    ManySizes,
    OneSize,
    PlaceArguments,
    RunArguments,
    SweepArguments,
    TimedArguments,
    Words,
    command_options,
    one_size,
    optional_path,
    sizes_texts,
    words,
)
from workbench.api.call import call, call_in_process
from workbench.api.result import Result
from workbench.api.results import (
    CeilingsResult,
    EvaluateResult,
    ExperimentResult,
    HistoryResult,
    PredictResult,
    ProfileResult,
)
from workbench.api.timing_results import CompareResult, MeasureResult, SweepResult, TuneResult
from workbench.commands.options import (
    CeilingsOptions,
    CompareOptions,
    EvaluateOptions,
    ExperimentOptions,
    HistoryOptions,
    MeasureOptions,
    PredictOptions,
    ProfileOptions,
    SweepOptions,
)
from workbench.commands.tune_options import TuneOptions
from workbench.data.exits import PASSED
from workbench.spec import WorkbenchError


def sweep(
    kernel: str | Path = "matmul",
    name: str = "full",
    *,
    impl: Words = (),
    sizes: ManySizes | None = None,
    dtype: str = "bf16",
    device: str | None = None,
    budget: str | int | None = None,
    **more: Unpack[SweepArguments],
) -> SweepResult:
    """Try the configs of a kernel, reject wrong results, time the others; return the selection.

    With `device`, or without a GPU, kernels are compiled, checked in Triton's interpreter, and
    their times are predicted.

    Args:
        kernel: its name, `package.module`, or `path/to/mine.py`.
        name: the sweep: `full`, `tile_size`, `block_size` or `pipeline`.
        impl: these Impls only; all Triton Impls by default.
        sizes: `{"M": 8192, "N": 4096}`; lists are combined, and several sizes are tuned jointly.
        dtype: `fp32`, `fp16` or `bf16`.
        device: compile and predict for this device, `h200` for example, with no GPU.
        only: keep the knobs to tune at their default.
        budget: `"30s"`, `"2m"`, or a number of configs.
        search: `exhaustive`, `model`, `random` or `tpe`.
        also: `"energy"`: the joules of a call; `"profile"`: profile the winner last.
        require: `"same-bits"` as the default's, `"sanitizer"` or `"idle-gpu"`; or a list of them.
        workers: share the work among so many GPUs of this host, or those of `tcp://HOST:8786`.
        fresh: obtain again what the database holds.
        out, database, progress: see above.
    """
    options = SweepOptions(
        name=name,
        kernel=str(kernel),
        impl=words(impl),
        sizes=sizes_texts(sizes),
        dtype=dtype,
        device=device,
        budget=None if budget is None else str(budget),
        **command_options("sweep", SweepArguments, more),
    )
    return SweepResult(call(options, more.get("progress")))


def measure(
    kernel: str | Path,
    *,
    impl: Words = (),
    sizes: ManySizes | None = None,
    dtype: Words = ("bf16",),
    device: str | None = None,
    **more: Unpack[TimedArguments],
) -> MeasureResult:
    """Return times of Impls at their tuned or default configs, over sizes and dtypes, beside those
    of library baselines.

    Without a GPU, or with `device`, times are predicted. Where the sizes differ on one axis,
    `plot()` draws the rates over it, with the libraries and the roofline bound.

    Args:
        kernel: its name, `package.module`, or `path/to/mine.py`.
        impl: `tiles` or `tiles:block_m=128`; all Triton Impls by default.
        sizes: `{"M": 4096, "N": [1024, 2048, 4096]}`; all sizes of the Spec to time by default.
        dtype: one dtype or several.
        device: compile and predict for this device, with no GPU.
        also: `"energy"`: the joules of a call; `"profile"`: profile every Impl of ours last.
        require: `"idle-gpu"`: refuse to measure while other processes use the GPU.
        out, database, progress: see above.
    """
    options = MeasureOptions(
        kernel=str(kernel),
        impl=words(impl),
        sizes=sizes_texts(sizes),
        dtype=words(dtype),
        device=device,
        **command_options("measure", TimedArguments, more),
    )
    return MeasureResult(call(options, more.get("progress")))


def compare(
    left: str | Result,
    right: str | Result,
    *,
    kernel: Words = (),
    impl: str | None = None,
    sizes: OneSize | None = None,
    dtype: str = "bf16",
    threshold: float = 0.01,
    **more: Unpack[CompareArguments],
) -> CompareResult:
    """Compare two operands on the GPU, and return whether the right one is slower. Two stored runs
    are compared without a GPU; a result stands for its last run.

    Args:
        left: `tiles`, `tiles:block_m=128`, a git revision, a run's id, or a result.
        right: the same; `WORKING` is the file as it is.
        kernel: the kernel, where the operands do not name it.
        impl: of revisions or runs: this Impl, or `tiles:block_m=128`.
        sizes: sizes of one problem.
        dtype: `fp32`, `fp16` or `bf16`.
        threshold: share up to which a difference does not count.
        also: `"energy"`: the joules of a call; `"profile"`: profile both operands last.
        require: `"idle-gpu"`: refuse to measure while other processes use the GPU.
        trust: of stored runs: execute the kernel's file that they name.
        out, database, progress: see above.
    """
    options = CompareOptions(
        left=left.run.id if isinstance(left, Result) else left,
        right=right.run.id if isinstance(right, Result) else right,
        kernel=words(kernel),
        impl=impl,
        sizes=one_size(sizes),
        dtype=dtype,
        threshold=threshold,
        **command_options("compare", CompareArguments, more),
    )
    return CompareResult(call(options, more.get("progress")))


def evaluate(
    kernel: str | Path,
    *,
    spec: str | Path | None = None,
    impl: str | None = None,
    sizes: OneSize | None = None,
    dtype: str | None = None,
    device: str | None = None,
    **more: Unpack[EvaluateArguments],
) -> EvaluateResult:
    """Judge one kernel by all rules, and return the verdict with its time.

    With `spec` the evaluation is strict: the kernel's file is imported in no process whose word
    counts, this one included, and each rule of the verdict says what shows it.

    Args:
        kernel: its name, `package.module`, or `path/to/mine.py`.
        spec: the kernel whose Spec it is held to; by default the one in the file, which is trusted.
        impl: `tiles` or `tiles:block_m=128`; the file's first by default.
        sizes: sizes to time; the Spec's first by default.
        dtype: `fp32`, `fp16` or `bf16`; `bf16` or that of the task by default.
        device: compile and predict for this device, with no GPU.
        task: file or folder of a task of KernelBench, GPU MODE or flashinfer-bench, to which
            `kernel` is a submission.
        require: `"sanitizer"`: on an NVIDIA GPU one call must pass racecheck and memcheck.
        accept_claims: `exit_code` of a plausible kernel is 0.
        progress: see above.
    """
    options = EvaluateOptions(
        kernel=str(kernel),
        spec=None if spec is None else str(spec),
        impl=impl,
        sizes=one_size(sizes),
        dtype=dtype,
        device=device,
        **command_options(
            "evaluate", EvaluateArguments, more | {"task": optional_path(more.get("task"))}
        ),
    )
    return EvaluateResult(call(options, more.get("progress")))


def experiment(
    name: str | Path,
    *,
    kernel: str | Path | None = None,
    sizes: OneSize | None = None,
    dtype: str | None = None,
    device: str | None = None,
    time: str | None = None,
    **more: Unpack[RunArguments],
) -> ExperimentResult:
    """Run an experiment on kernels, and return its findings.

    Args:
        name: `memory_vs_compute`, another of docs/experiments.md, or `path/to/mine.py`.
        kernel: this kernel only.
        sizes: sizes of one problem.
        dtype: `fp32`, `fp16` or `bf16`.
        device: compile and predict for this device, with no GPU.
        time: of `expected`: a time to compare with the bound, `"0.5ms"`.
        require: `"idle-gpu"`: refuse to measure while other processes use the GPU.
        out, database, progress: see above.
    """
    options = ExperimentOptions(
        name=str(name),
        kernel=None if kernel is None else str(kernel),
        sizes=one_size(sizes),
        dtype=dtype,
        device=device,
        time=time,
        **command_options("experiment", RunArguments, more),
    )
    return ExperimentResult(call(options, more.get("progress")))


def ceilings(
    *,
    device: str | None = None,
    **more: Unpack[RunArguments],
) -> CeilingsResult:
    """Measure the rates that this GPU reaches, or return those stated of a device.

    Args:
        device: the stated ceilings of this device; nothing is measured.
        require: `"idle-gpu"`: refuse to measure while other processes use the GPU.
        out, database, progress: see above.
    """
    options = CeilingsOptions(device=device, **command_options("ceilings", RunArguments, more))
    return CeilingsResult(call(options, more.get("progress")))


def profile(
    *target: str,
    tool: str | None = None,
    impl: str | None = None,
    sizes: OneSize | None = None,
    dtype: str | None = None,
    calls: int | None = None,
    metrics: str | None = None,
    **more: Unpack[PlaceArguments],
) -> ProfileResult:
    """Profile a kernel, or a program in a process of its own, and return what the tool recorded.

    Args:
        target: a kernel, `wb.profile("softmax")`; or `"--"` and the words of a program,
            `wb.profile("--", "python", "step.py")`.
        tool: `ncu`, `trace`, `proton`, `nsys`, `rocprofv3` and others, as on the command line.
        impl: of a kernel: `tiles` or `tiles:block_m=128`; the first by default.
        sizes: of a kernel: sizes of one problem.
        dtype: of a kernel: `fp32`, `fp16` or `bf16`.
        calls: of a kernel: calls to record.
        metrics: counters to add, `"A,B"`.
        out, database, progress: see above.
    """
    options = ProfileOptions(
        target=target,
        tool=tool,
        impl=impl,
        sizes=one_size(sizes),
        dtype=dtype,
        calls=calls,
        metrics=metrics,
        **command_options("profile", PlaceArguments, more),
    )
    return ProfileResult(call(options, more.get("progress")))


def history(
    kernel: str | None = None,
    *,
    impl: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    failures: bool = False,
    limit: int = 50,
    load: str | Path | None = None,
    database: str | None = None,
) -> HistoryResult:
    """Return the outcomes of earlier runs, the newest first.

    Args:
        kernel: this kernel only.
        impl: this Impl only.
        device: this device only.
        dtype: this dtype only.
        failures: failures alone.
        limit: rows at most.
        load: import this events file first.
        database: URL of the database; SQLite in the user's data folder by default.
    """
    options = HistoryOptions(
        kernel=kernel,
        impl=impl,
        device=device,
        dtype=dtype,
        failures=failures,
        limit=limit,
        load=optional_path(load),
        database=database,
    )
    return HistoryResult(call(options, False))


def tune(
    kernel: Any,
    args: Sequence[Any],
    *,
    grid: Grid,
    configs: Sequence[Any] | None = None,
    **options: Unpack[TuneOptions],
) -> TuneResult:
    """Try the configs of a `@triton.jit` or `@triton.autotune` function on these arguments; return
    the selection.

    The GPU of this machine measures; with `device`, or without a GPU, configs are compiled,
    interpreted and predicted. The user's tensors are not written to.

    Args:
        kernel: the function, at the top level of a file or of a notebook's cell.
        args: arguments of the launch; no config's own.
        grid: the grid of `kernel[grid]`.
        configs: `triton.Config`s, one of which wins; by default those of `@triton.autotune`, whose
            cache gets a measured winner, so that the next launch uses it.
        options: see `TuneOptions`: kwargs, outputs, inputs, partial, reference, flops, tolerance,
            device, budget, out, database, fresh, quiet, progress.

    Raises WorkbenchError where the function cannot be adapted or no config gave a correct result.
    """
    from importlib import import_module

    command = import_module("workbench.commands.tune")
    chosen = []

    def run() -> int:
        chosen.append(command.tune(kernel, args, grid=grid, configs=configs, **options))
        return PASSED

    out, database = Path(options.get("out", "results")), options.get("database")
    place = SweepOptions("full", out=out, database=database)  # the kernel's file comes with `run`
    called = call_in_process(place, "tune", run, options.get("progress"))
    return TuneResult(called, chosen[0])


def predict(
    kernel: Any,
    args: Sequence[Any] = (),
    *,
    sizes: OneSize | None = None,
    dtype: str = "bf16",
    impl: Words = (),
    grid: Grid | None = None,
    configs: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> PredictResult:
    """Return the fastest configs of a kernel by predicted time; nothing is run or checked.

    A kernel that declares `work` is predicted before compiling, in milliseconds; the configs of a
    `@triton.jit` function are compiled for the device first.

    Args:
        kernel: its name, `package.module`, or `path/to/mine.py`; or a function.
        args: of a function: arguments of the launch; no config's own.
        sizes: of a kernel: sizes of one problem.
        dtype: of a kernel: `fp32`, `fp16` or `bf16`.
        impl: of a kernel: these Impls only; all Triton Impls by default.
        grid: of a function: the grid of `kernel[grid]`.
        configs: of a function: `triton.Config`s; by default those of `@triton.autotune`.
        kwargs: of a function: arguments of the launch by name.
        device: predict for this device, with no GPU; by default for the GPU of this machine.

    Raises WorkbenchError where nothing can be predicted.
    """
    if isinstance(kernel, (str, Path)):
        options = PredictOptions(
            str(kernel), impl=words(impl), sizes=one_size(sizes), dtype=dtype, device=device
        )
        return PredictResult(call(options, False))
    if grid is None:
        raise WorkbenchError("Name the grid of the launch: predict(kernel, args, grid=...).")
    from workbench.commands.predict import predict_function

    options = PredictOptions(getattr(kernel, "__name__", "function"), device=device)
    given = tuple(args), dict(kwargs or {})
    run = partial(predict_function, options, kernel, given, grid, configs)
    return PredictResult(call_in_process(options, "predict", run, False))


def prune(kernel: Any, device: str | None = None, *, most: int = 5) -> dict[str, Any]:
    """Return a `prune_configs_by` for `triton.autotune`: it leaves the configs with the shortest
    predicted times.

    All configs are compiled for the device when the autotuner tunes; nothing is run or checked.
    Where no time can be derived from the code it leaves all, and logs the reason.

    Args:
        kernel: the `@triton.jit` function that the autotuner is put around.
        device: name of a device, as `workbench devices` lists them; by default the GPU of this
            machine.
        most: configs that are left, at least one.

    Raises WorkbenchError where the device is unknown, or where there is no GPU and none is named.
    """
    from workbench.adapted.pruned import pruner
    from workbench.device import hardware

    known = hardware.live() if device is None else hardware.device_named(device)
    if known is None:
        raise WorkbenchError('There is no GPU here; name a device: prune(kernel, "h200").')
    if most < 1:
        raise WorkbenchError(f"most={most} leaves no config; give 1 or more.")
    return {"early_config_prune": pruner(kernel, known, most)}
