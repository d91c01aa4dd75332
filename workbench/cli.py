"""The command line: `workbench COMMAND`, or `python -m workbench COMMAND`.

Commands and their options are declared in `commands/options.py`; a command calls `run` of the
module of its name, which is imported only then.
"""

from __future__ import annotations

import errno
import inspect
import os
import sys
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from importlib import import_module
from typing import Annotated, Any, get_type_hints

import typer

from workbench.commands.options import Options, commands
from workbench.commands.supervisor import supervised
from workbench.data.exits import INTERRUPTED

app = typer.Typer(
    name="workbench",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from workbench import __version__

        typer.echo(f"workbench {__version__}")
        raise typer.Exit


@app.callback()
def workbench(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Find the fastest configuration of a kernel, how far it is from the limit and why, and whether
    a change helped."""


def _parameter(field: Field[Any], kind: Any) -> inspect.Parameter:
    """Return a field of an options class as a parameter for Typer."""
    data = field.metadata
    if data["positional"]:
        text = typer.Argument(help=data["help"], metavar=data["metavar"])
    else:
        names = [data["name"]] if data["name"] else []
        text = typer.Option(*names, help=data["help"], **data["limits"])
    default: Any = inspect.Parameter.empty if field.default is MISSING else field.default
    if kind == tuple[str, ...]:
        kind, default = list[str], list(default)
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, text],
    )


def _add(options: type[Options]) -> None:
    """Add the command of an options class to the app."""

    def command(**values: Any) -> None:
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        raise typer.Exit(_run(options(**values)))

    kinds = get_type_hints(options)
    parameters = [_parameter(f, kinds[f.name]) for f in fields(options)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = options.__doc__
    app.command(options.COMMAND)(command)


def _run(options: Options) -> int:
    more = {}
    if options.COMMAND == "sweep" and getattr(options, "device", None) is None:
        from workbench.backend.prewarm import begin_prewarm  # before the slow imports

        more["prewarm"] = begin_prewarm(getattr(options, "kernel", ""))
    module = import_module(f"workbench.commands.{options.COMMAND.replace('-', '_')}")
    code: int = module.run(options, **more)
    return code


for _options in commands().values():
    _add(_options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit code: 2 after an error, which is printed in one sentence, and
    130 after Ctrl-C."""
    if "" not in sys.path and (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # `--kernel package.module` may be in the current folder
    try:
        code = typer.main.get_command(app).main(
            args=list(sys.argv[1:] if arguments is None else arguments),
            prog_name="workbench",
            standalone_mode=False,
        )
        sys.stdout.flush()  # here, where an error of it is caught
    except KeyboardInterrupt:
        code = _stopped()
    except Exception as error:
        code = _print_error(error)
    if code == INTERRUPTED:
        # If a KeyboardInterrupt once passed through an `exec` of a string (dataclasses use one),
        # CPython ends itself by SIGINT instead of this exit code, unless another `exec` follows.
        exec("")
    return int(code or 0)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command in a process of its own. Returns its exit code; see `main` and
    `commands.supervisor`."""
    return supervised(lambda: main(arguments))


def _stopped() -> int:
    print("stopped", file=sys.stderr)
    return INTERRUPTED


def _output_lost(error: OSError) -> int:
    """Print that the output cannot be written; a closed pipe (`| head`) wants no more of it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python would fail again as it ends
    if error.errno == errno.EPIPE:
        return 1  # as Typer answers where it meets the pipe first
    print(
        "error: the output cannot be written (the disk is full); free some space.", file=sys.stderr
    )
    return 2


def _print_error(error: Exception) -> int:
    """Print an error that is one sentence. Reraises any other, with its traceback."""
    # Typer's errors are click's in older releases and its own in newer ones, hence no isinstance.
    if type(error).__name__ == "Abort":
        return _stopped()
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error)  # the help itself
        return 2
    if (sentence := getattr(error, "format_message", None)) is not None:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "workbench"
        text = " ".join(sentence().split()).rstrip(".")
        print(f"error: {text}; see `{command} --help`", file=sys.stderr)
        return 2
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EPIPE):
        return _output_lost(error)
    from workbench.spec import WorkbenchError  # imported here, since `--help` does not need it

    if isinstance(error, WorkbenchError):
        print(f"error: {error}", file=sys.stderr)
        return 2
    raise error
