"""Time Impls at their tuned or default configs, and baselines, over sizes and dtypes."""

from __future__ import annotations

from workbench.commands import field
from workbench.commands.field import DEVICE, argument, option
from workbench.commands.options import Options


class MeasureOptions(field.RunOutput, Options):
    kernel: str = argument("A kernel's name, package.module, or file.")
    impl: tuple[str, ...] = option(
        (), "tiles or tiles:block_m=128; may be repeated. Default: all Triton."
    )
    sizes: tuple[str, ...] = option(
        (), "M=4096,N=4096,K=4096; may be repeated. Default: all to time."
    )
    dtype: tuple[str, ...] = option(
        ("bf16",), "fp32, fp16 or bf16; may be repeated. Default: bf16."
    )
    device: str | None = option(None, DEVICE)
    wide: bool = option(
        False, "Print all columns; 80 characters otherwise.", "--wide", stored=False
    )
    also: tuple[field.Also, ...] = field.also("every Impl of ours")
    require: tuple[field.Idle, ...] = field.require_idle()


def run(options: MeasureOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.console import console_for
    from workbench.commands.measure_command import MeasureCommand

    return MeasureCommand(options, console_for(options)).go()
