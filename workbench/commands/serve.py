"""The `serve` command: answer programs over the Model Context Protocol, or judge a folder of
submissions one after the other."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from workbench.commands.options import CommandError, ServeOptions
from workbench.commands.result import write_result
from workbench.data.exits import PASSED


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
    import_module("workbench.commands.serve_mcp").serve()
    return write_result(options, "serve", PASSED)
