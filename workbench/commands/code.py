"""Show the machine code of a kernel or file: resources, loops, control flow, live registers."""

from __future__ import annotations

from pathlib import Path

from workbench.commands import field
from workbench.commands.field import DTYPE, SIZES, argument, flag, option
from workbench.commands.options import Options


class CodeOptions(Options):
    target: str = argument("A kernel; or a .cubin, .hsaco, .amdgcn, .ptx or .ncu-rep file.")
    impl: str | None = option(None, "tiles or tiles:block_m=128. Default: the first.")
    sizes: str | None = option(None, f"{SIZES}. Default: the Spec's first.")
    dtype: str = option("bf16", DTYPE)
    device: str | None = option(None, "Compile for this target (h200, mi300x, ...) with no GPU.")
    against: str | None = option(None, "Compare with this config, file or git revision.")
    find: str | None = option(None, "List instructions by PTX word or opcode: tcgen05.ld, LDSM.")
    samples: Path | None = option(None, "Show the stall samples of this ncu file at their lines.")
    launch: int | None = option(None, "For a profile: the launch to show, from 0.")
    text: bool = flag("Print the whole listing.", "--text")
    dot: Path | None = option(None, "Write the control flow for Graphviz.", stored=False)
    out: Path = field.out("Folder for the page.")
    quiet: bool = field.quiet()
    json: Path | None = field.json()


def run(options: CodeOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.code_report import show_code

    return show_code(options)
