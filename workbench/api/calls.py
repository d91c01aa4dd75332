"""Functions of the API that take a kernel of this process: `tune`, `predict` and `prune`.

All raise WorkbenchError where the command line prints an error, with the same sentence, and
KeyboardInterrupt after Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from workbench.adapted.grid import Grid
from workbench.api.arguments import OneSize, Words, one_size, words
from workbench.api.call import call, call_in_process
from workbench.api.results import PredictResult
from workbench.api.timing_results import TuneResult
from workbench.commands.predict import PredictOptions
from workbench.commands.sweep import SweepOptions
from workbench.commands.tune_options import TuneOptions
from workbench.data.exits import PASSED
from workbench.spec import WorkbenchError


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

    command = import_module("workbench.commands.tune_function")
    result = []

    def run() -> int:
        result.append(command.tune(kernel, args, grid=grid, configs=configs, **options))
        return PASSED

    out, database = Path(options.get("out", "results")), options.get("database")
    place = SweepOptions("full", out=out, database=database)  # the kernel's file comes with `run`
    called = call_in_process(place, "tune", run, options.get("progress"))
    return TuneResult(called, result[0])


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
        args: for a function: arguments of the launch; no config's own.
        sizes: for a kernel: sizes of one problem.
        dtype: for a kernel: `fp32`, `fp16` or `bf16`.
        impl: for a kernel: these Impls only; all Triton Impls by default.
        grid: for a function: the grid of `kernel[grid]`.
        configs: for a function: `triton.Config`s; by default those of `@triton.autotune`.
        kwargs: for a function: arguments of the launch by name.
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
    arguments = tuple(args), dict(kwargs or {})
    run = partial(predict_function, options, kernel, arguments, grid, configs)
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

    gpu = hardware.live() if device is None else hardware.device_named(device)
    if gpu is None:
        raise WorkbenchError('There is no GPU here; name a device: prune(kernel, "h200").')
    if most < 1:
        raise WorkbenchError(f"most={most} leaves no config; give 1 or more.")
    return {"early_config_prune": pruner(kernel, gpu, most)}
