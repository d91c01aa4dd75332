"""Write the history as a folder of pages: curves over commits, steps, regressions."""

from __future__ import annotations

from pathlib import Path

from workbench.commands import field
from workbench.commands.field import argument, option
from workbench.commands.options import Options


class SiteOptions(Options):
    out: Path = argument("Folder to write; one that `site` wrote before is replaced.")
    repository: Path | None = option(
        None, "Folder in the repository of the commits. Default: the current one."
    )
    results: Path = option(Path("results"), "Folder with the runs' pages, to link to them.")
    quiet: bool = field.quiet("Print only the path of the site.")
    json: Path | None = field.json("Write the steps to this file; - is standard output.")
    database: str | None = field.database()


def run(options: SiteOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.console import console_for
    from workbench.commands.site_command import SiteCommand

    return SiteCommand(options, console_for(options)).go()
