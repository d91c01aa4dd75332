"""Time configs of each kernel over many sizes; launches without a config choose by them."""

from __future__ import annotations

from pathlib import Path

from workbench.commands import field
from workbench.commands.field import option
from workbench.commands.options import Options


class CalibrateOptions(field.RunOutput, Options):
    kernel: tuple[str, ...] = option((), "A kernel of the workbench; repeated. Default: nine.")
    dtype: str | None = option(None, "fp32, fp16 or bf16. Default: bf16; fp16 for q4_k_matmul.")
    measure: int = option(12, "Sizes of each kernel to measure.", min=4)
    check: int = option(8, "More sizes, which only check the result.", min=0)
    configs: int = option(24, "Configs to time at each size.", min=1)
    budget: str = option("30m", "90s, 30m: stop then; the same command continues.", stored=False)
    device: str | None = option(
        None, "Print the sizes and the calibration of this device; measure nothing."
    )
    to: Path | None = option(None, "File to write in place of the user's own.", stored=False)
    require: tuple[field.Idle, ...] = field.require_idle()


def run(options: CalibrateOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.calibrate_command import CalibrateCommand
    from workbench.commands.console import console_for

    return CalibrateCommand(options, console_for(options)).go()
