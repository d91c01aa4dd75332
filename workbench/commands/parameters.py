"""Commands for Typer: each field of an options class becomes a parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, get_type_hints

import typer

from workbench.commands.completion import completer
from workbench.commands.options import (
    FILES,
    GROUPS,
    MORE,
    PANELS,
    CommandError,
    Options,
    commands,
)

Run = Callable[[Options], int]

# What `--help` shows of a type in place of Typer's `<bool>` and `<list[str]>`
METAVARS = {bool: "", tuple[str, ...]: "<str>"}


def add_commands(app: typer.Typer, run: Run, shown: str | None) -> None:
    """Add all commands to the app; each calls `run`. With `shown`, options are those of this
    command alone, and of none for `--help`, which lists commands: those of all take 27 ms."""
    groups: dict[str, typer.Typer] = {}
    for options in sorted(commands().values(), key=lambda each: PANELS.index(each.PANEL)):
        first, _, second = options.COMMAND.partition(" ")
        if second and first not in groups:
            groups[first] = _add_group(app, first, options.PANEL)
        _add(groups.get(first, app), options, run, bare=shown not in (None, options.COMMAND))


def _parameter(command: str, field: Field[Any], kind: Any) -> inspect.Parameter:
    """Return a field of the options class of a command as a parameter for Typer."""
    data, complete = field.metadata, completer(command, field.name)
    if data["positional"]:
        metavar = data["metavar"]
        text = typer.Argument(help=data["help"], metavar=metavar, autocompletion=complete)
    else:
        names = [data["name"]] if data["name"] else []
        limits: dict[str, Any] = {"metavar": METAVARS[kind]} if kind in METAVARS else {}
        limits |= data["limits"]
        text = typer.Option(*names, help=data["help"], autocompletion=complete, **limits)
    default: Any = inspect.Parameter.empty if field.default is MISSING else field.default
    if kind == tuple[str, ...]:
        kind = list[str]
        # an empty list is what no word gives; older click takes no default of several words
        default = default if field.default is MISSING else list(default) or None
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, text],
    )


def _panel_rank(field: Field[Any]) -> int:
    """Return the place of the panel in which `--help` shows a field."""
    return ("", MORE, FILES).index(field.metadata.get("limits", {}).get("rich_help_panel", ""))


def _taken(value: Any, kind: Any) -> Any:
    """Return a value of Typer as the options class takes it."""
    return tuple(value or ()) if kind == tuple[str, ...] else value


def _add(app: typer.Typer, options: type[Options], run: Run, bare: bool) -> None:
    """Add the command of an options class to the app, without its parameters if it is `bare`."""

    kinds = {} if bare else get_type_hints(options)

    def command(**values: Any) -> None:
        values = {k: _taken(v, kinds[k]) for k, v in values.items()}
        raise typer.Exit(run(options(**values)))

    shown = () if bare else sorted(fields(options), key=_panel_rank)
    parameters = [_parameter(options.COMMAND, f, kinds[f.name]) for f in shown]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = text = options.__doc__ or ""
    summary = " ".join(text.partition("\n\n")[0].split())
    name = options.COMMAND.split()[-1]
    panel = None if name != options.COMMAND else options.PANEL
    app.command(name, rich_help_panel=panel, short_help=summary)(command)


def _add_group(app: typer.Typer, name: str, panel: str) -> typer.Typer:
    """Add a group of commands to the app, and return it."""
    group = typer.Typer()

    def refuse_none(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            *first, last = context.command.commands  # type: ignore[attr-defined]
            raise CommandError(
                f"Name what {name} does: {', '.join(first)} or {last}; see `workbench {name} "
                "--help`."
            )

    group.callback(invoke_without_command=True, help=GROUPS[name])(refuse_none)
    app.add_typer(group, name=name, rich_help_panel=panel)
    return group
