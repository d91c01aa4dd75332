"""Run an experiment on kernels, such as memory_vs_compute, and report a finding."""

from __future__ import annotations

from workbench.commands import field
from workbench.commands.field import DEVICE, DTYPE, KERNEL, SIZES, argument, option
from workbench.commands.options import Options
from workbench.data.exits import PASSED


class ExperimentOptions(field.RunOutput, Options):
    name: str | None = argument("A name, or path/to/mine.py; without it, list the names.", None)
    kernel: str | None = option(None, KERNEL)
    sizes: str | None = option(None, SIZES)
    dtype: str | None = option(None, DTYPE)
    device: str | None = option(None, DEVICE)
    time: str | None = option(None, "For `expected`: a time to compare with the bound, 0.5ms.")
    require: tuple[field.Idle, ...] = field.require_idle()


def run(options: ExperimentOptions) -> int:
    """Run the command, or list the experiments where none is named. Returns the exit code."""
    from workbench.commands.console import console_for, say_result
    from workbench.commands.experiment_command import ExperimentCommand
    from workbench.commands.result import write_result
    from workbench.experiments import experiment_names, find_experiment

    console = console_for(options)
    if options.name is not None:
        return ExperimentCommand(options, console).go()
    summaries = {name: find_experiment(name).summary for name in experiment_names()}
    for name, summary in summaries.items():
        say_result(console, f"{name:22s}{summary}")
    return write_result(options, "experiment", PASSED, experiments=summaries)
