"""Find the commit that made a kernel slower, by git bisect and interleaved comparisons."""

from __future__ import annotations

from workbench.commands import field
from workbench.commands.field import DTYPE, SIZES, argument, option
from workbench.commands.options import Options


class BisectOptions(field.RunOutput, Options):
    kernel: str = argument("A kernel's name, package.module, or file.")
    good: str = argument("A git revision at which it is fast.")
    bad: str = argument("A later one at which it is slow.")
    impl: str | None = option(None, "tiles or tiles:block_m=128. Default: the first Triton Impl.")
    sizes: str | None = option(None, f"{SIZES}. Default: the Spec's first.")
    dtype: str = option("bf16", DTYPE)
    device: str | None = option(
        None, "Run nothing: compare machine code for this device with GOOD's and BAD's."
    )
    threshold: float = field.threshold()
    require: tuple[field.Idle, ...] = field.require_idle()


def run(options: BisectOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.bisect_command import BisectCommand
    from workbench.commands.console import console_for

    return BisectCommand(options, console_for(options)).go()
