"""Compare two operands: is the right one slower? SLOW, FAST, SAME, CLOCK, INCONCLUSIVE."""

from __future__ import annotations

from workbench.commands import field
from workbench.commands.field import DTYPE, KERNEL, SIZES, argument, flag, option
from workbench.commands.options import Options


class CompareOptions(field.RunOutput, Options):
    left: str = argument("tiles, tiles:block_m=128, a git revision, a run.", "")
    right: str = argument("The same; WORKING is the file as it is.", "")
    triton: tuple[str, str] | None = option(
        None, "Two versions of Triton, or their folders, in place of LEFT and RIGHT."
    )
    kernel: tuple[str, ...] = option((), f"{KERNEL} With --triton it may be repeated.")
    device: tuple[str, ...] = option(
        (),
        "With --triton: compile for it (or all, the default); may be repeated. An Apple GPU: "
        "emulate both and predict.",
    )
    impl: str | None = option(None, "For revisions or runs: this Impl, or tiles:block_m=128.")
    sizes: str | None = option(None, SIZES)
    dtype: str = option("bf16", DTYPE)
    threshold: float = field.threshold()
    expect: str | None = option(
        None, "For two ncu files: mbarrier, direct_store, tmem_ahead or prefetch."
    )
    also: tuple[field.Also, ...] = field.also("both operands")
    require: tuple[field.Idle, ...] = field.require_idle()
    trust: bool = flag("For stored runs: execute the kernel's file that they name.", "--trust")


def run(options: CompareOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.compare_command import CompareCommand
    from workbench.commands.console import console_for

    return CompareCommand(options, console_for(options)).go()
