"""Answer programs over the Model Context Protocol, or judge submissions in a folder in turn."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from workbench.commands import field
from workbench.commands.field import DEVICE, flag, option
from workbench.commands.options import CommandError, Options
from workbench.data.exits import PASSED


class ServeOptions(Options):
    mcp: bool = flag("Tools for programs, over standard input and output.", "--mcp")
    jobs: Path | None = option(None, "Judge each submission of this folder, and store verdicts.")
    spec: str | None = option(None, "With --jobs: kernel whose Spec judges.")
    task: Path | None = option(None, "With --jobs: task of another format that judges.")
    dtype: str | None = option(None, "With --jobs: fp32, fp16 or bf16.")
    device: str | None = option(None, f"With --jobs: {DEVICE[0].lower()}{DEVICE[1:]}")
    limit: float = option(600.0, "With --jobs: seconds of one submission.", min=1.0)
    wait: bool = flag("With --jobs: go on for submissions that come later, until Ctrl-C.", "--wait")
    quiet: bool = field.quiet()
    database: str | None = field.database()
    json: Path | None = field.json("Write the verdicts to this file; - is standard output.")


def run(options: ServeOptions) -> int:
    """Run the command. Returns its exit code. Raises CommandError where nothing is named to be
    served, or a package is missing."""
    if options.mcp == (options.jobs is not None):
        raise CommandError("Name what to serve: --mcp, or --jobs FOLDER.")
    if options.jobs is not None:
        code: int = import_module("workbench.commands.serve_jobs").run(options)
        return code
    if find_spec("mcp") is None or find_spec("anyio") is None:
        raise CommandError(
            "--mcp needs a package that is not installed: pip install 'kernel-workbench[mcp]'."
        )
    from workbench.commands.result import write_result

    import_module("workbench.commands.serve_mcp").serve()
    return write_result(options, "serve", PASSED)
