"""Tune a @triton.jit function of a file, without a Spec, for arguments that are described."""

from __future__ import annotations

from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.commands import field
from workbench.commands.field import DEVICE, argument, option
from workbench.commands.options import Options
from workbench.data.exits import PASSED

if TYPE_CHECKING:
    from workbench.commands.tune_options import TuneOptions


class FunctionOptions(Options):
    function: str = argument("The function: path/to/mine.py:kernel.", MISSING, "FUNCTION")
    arg: tuple[str, ...] = option(
        (), "x=bf16[8192,4096], i=int64[4096]<32000 or n=4096; repeated, once per argument."
    )
    grid: str = option("", "'cdiv(M, BM), cdiv(N, BN)': from arguments and config values.")
    config: tuple[str, ...] = option(
        (), "BM=64,BN=128,num_warps=4; repeated. Default: those of @triton.autotune."
    )
    config_from: str | None = field.config_from()
    outputs: tuple[str, ...] = option(
        (), "A tensor that the function writes; repeated. Default: found by running it.", "--output"
    )
    inputs: tuple[str, ...] = option(
        (), "An output whose values the launch also needs; repeated.", "--input"
    )
    partial: tuple[str, ...] = option(
        (), "An output with a partial result per block of a config: the sum is compared."
    )
    device: str | None = option(None, DEVICE)
    budget: str | None = option(None, "30s, 2m, or 200 (configs): stop then with the best so far.")
    fresh: bool = field.fresh()
    out: Path = field.out("Folder for pages and events.")
    quiet: bool = field.quiet()
    database: str | None = field.database()
    json: Path | None = field.json()


def run(options: FunctionOptions) -> int:
    """Tune the function that the command line names; print the keyword arguments of a launch.
    Returns the exit code. Raises OptionError where the words describe no launch."""
    from workbench.commands.console import console_for, plain_console, say_result
    from workbench.commands.result import collecting, write_result
    from workbench.commands.tune_function import described_launch, tune

    kernel, arguments, grid, configs = described_launch(options, options.function)
    more: TuneOptions = {"kwargs": arguments, "out": options.out, "quiet": options.quiet}
    for name in ("device", "budget", "database"):
        if getattr(options, name) is not None:
            more[name] = getattr(options, name)
    more["fresh"] = options.fresh
    more["outputs"], more["inputs"] = options.outputs, options.inputs
    more["partial"] = options.partial
    with collecting() as results:
        tuned = tune(kernel, (), grid=grid, configs=configs, **more)
    console = plain_console() if options.json is None else console_for(options)
    say_result(console, str(tuned.config.all_kwargs()))
    runs = [run for result in results for run in result.runs]
    return write_result(options, "tune", PASSED, runs, kwargs=tuned.config.all_kwargs())
