"""Write a tuned table as Triton, vLLM or a Python program reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.commands import field
from workbench.commands.console import console_for, note, say_result
from workbench.commands.field import argument, flag, option
from workbench.commands.options import OptionError, Options
from workbench.data.exits import COULD_NOT_RUN, PASSED
from workbench.data.files import real_path, reason_of
from workbench.data.units import amount

if TYPE_CHECKING:
    from workbench.workload.exported import ExportResult


class WorkloadExportOptions(Options):
    table: Path = argument("The tuned table.", metavar="TABLE")
    out: Path = argument("File or folder to write.", metavar="OUT")
    to: str = option(MISSING, "triton-cache, vllm-moe or python.")
    trust: bool = flag("Import the modules that the table names.", "--trust")
    quiet: bool = field.quiet()
    json: Path | None = field.json()


FORMATS = {
    "triton-cache": "triton_cache.export_triton_cache",
    "vllm-moe": "exported.export_vllm_moe",
    "python": "exported.export_python",
}  # functions of `workload/`


def run(options: WorkloadExportOptions) -> int:
    """Write the files. Returns the exit code: 2 where no entry could be exported. Raises
    OptionError, WorkloadError and FileError, each of which is one sentence."""
    from workbench.commands.result import write_result
    from workbench.workload.errors import WorkloadError
    from workbench.workload.tuned_table import read

    check_options(options)
    entries, out = read(options.table), options.out
    try:
        module, _, name = FORMATS[options.to].partition(".")
        export = getattr(import_module(f"workbench.workload.{module}"), name)
        result: ExportResult = export(entries, out)
    except OSError as error:
        raise WorkloadError(
            f"{out} cannot be written ({reason_of(error)}); name a folder that you may write."
        ) from None
    for (name, reason), number in reasons(result).items():
        note(f"{name}: left out for {amount(number, 'key')}: {reason}.")
    text = f"{result.exported_entries} of {amount(len(entries), 'key')} written to {out}."
    say_result(console_for(options), text)
    return write_result(
        options,
        "workload",
        PASSED if result.exported_entries else COULD_NOT_RUN,
        action="export",
        files=result.files,
        exported=result.exported_entries,
        left_out=[
            {"function": f"{e.module}.{e.function}", "key": e.key, "reason": reason}
            for e, reason in result.left_out
        ],
    )


def reasons(result: ExportResult) -> Mapping[tuple[str, str], int]:
    """Return the number of entries that were left out by function and reason."""
    return Counter((f"{e.module}.{e.function}", reason) for e, reason in result.left_out)


def check_options(options: WorkloadExportOptions) -> None:
    """Raise OptionError where the table cannot be written so."""
    from workbench.catalog import name_hint
    from workbench.commands.run import check_file

    if options.to not in FORMATS:
        raise OptionError(name_hint("format to export --to", options.to, list(FORMATS)))
    if options.to == "triton-cache" and not options.trust:
        raise OptionError(
            "--to triton-cache imports the modules that the table names, as Triton hashes their "
            "source; add --trust if you trust them."
        )
    if real_path(options.table) == real_path(options.out):
        raise OptionError(f"{options.out} is the table itself; name another place to write to.")
    check_file(options.json, "--json")
