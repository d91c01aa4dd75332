"""Write a tuned table as Triton, vLLM or a Python program reads it."""

from __future__ import annotations

from dataclasses import MISSING
from pathlib import Path

from workbench.commands import field
from workbench.commands.field import argument, flag, option
from workbench.commands.options import Options


class WorkloadExportOptions(Options):
    table: Path = argument("The tuned table.", metavar="TABLE")
    out: Path = argument("File or folder to write.", metavar="OUT")
    to: str = option(MISSING, "triton-cache, vllm-moe or python.")
    trust: bool = flag("Import the modules that the table names.", "--trust")
    quiet: bool = field.quiet()
    json: Path | None = field.json()


def run(options: WorkloadExportOptions) -> int:
    """Write the files. Returns the exit code: 2 where no entry could be exported."""
    from workbench.commands.workload_formats import export_table

    return export_table(options)
