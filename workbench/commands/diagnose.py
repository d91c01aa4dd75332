"""Say what the time is lost to: a stored run, files of a profiler, a kernel's machine code."""

from __future__ import annotations

from pathlib import Path

from workbench.commands import field
from workbench.commands.field import SIZES, argument, flag, option
from workbench.commands.options import Options


class DiagnoseOptions(Options):
    targets: tuple[str, ...] = argument(
        "last or a run's id; files of a profiler; a kernel or file of machine code.",
        (),
        "last|RUN|FILE...|KERNEL",
    )
    impl: str | None = option(None, "Of a kernel: tiles or tiles:block_m=128. Default: the first.")
    sizes: str | None = option(None, f"Of a kernel: {SIZES}. Default: the Spec's first.")
    dtype: str | None = option(None, "Of a kernel: fp32, fp16 or bf16, which is the default.")
    device: str | None = option(None, "Of a kernel: compile for h200, mi300x, ... or for all.")
    rules: bool = flag("List all rules with thresholds, needs and sources.", "--rules")
    all: bool = flag("Also list each rule that could not be evaluated.", "--all")
    quiet: bool = field.quiet("Print only the rules that hold.")
    json: Path | None = field.json()
    annotate: bool = field.annotate()
    sarif: Path | None = field.sarif()
    database: str | None = field.database()


def run(options: DiagnoseOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.diagnose_targets import diagnose

    return diagnose(options)
