"""Commands for Typer: each field of an options class becomes a parameter, whose words complete:
kernels, devices, sweeps, runs and what else has names here."""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer

from workbench.commands.field import FILES, MORE
from workbench.commands.options import (
    COMMANDS,
    GROUP_HELP,
    GROUPS,
    PANELS,
    REPORTS,
    CommandError,
    Options,
    options_of,
)

Run = Callable[[Options], int]

# What `--help` shows of a type in place of Typer's `<bool>` and `<list[str]>`
METAVARS = {bool: "", tuple[str, ...]: "<str>"}


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is tuple


def skip_conversions(command: Any) -> None:
    """Let Typer convert only what is given and not text: that imports Pydantic, in 90 ms."""
    kinds, params_of = getattr(command.callback, "__annotations__", {}), command.get_params

    def params(context: Any) -> Any:
        for one in (every := params_of(context)):  # with `--help`
            kind = getattr(kinds.get(one.name), "__origin__", None)
            one.process_value = partial(_value, one, kind in (str, str | None, list[str]))
        return every

    command.get_params = params
    for each in getattr(command, "commands", {}).values():
        skip_conversions(each)


def _value(parameter: Any, is_text: bool, context: Any, value: Any) -> Any:
    if value is None and not parameter.required:
        value = () if parameter.multiple or parameter.nargs == -1 else None
    elif not is_text or value in (None, (), []):
        return type(parameter).process_value(parameter, context, value)
    back = parameter.callback
    return value if back is None else back(context, parameter, value)


def add_commands(app: typer.Typer, run: Run, shown: str | None) -> None:
    """Add the command `shown` to the app, or all where none is of this name; each calls `run`. All
    are without options for any other word, such as `--help`: the options of all take 27 ms."""
    for panel, first in ((panel, name) for panel, names in PANELS.items() for name in names):
        names = [
            n for n in COMMANDS if n.split()[0] == first and (shown == n or shown not in COMMANDS)
        ]
        into = _add_group(app, first, panel) if first in GROUPS and names else app
        for name in names:
            bare = shown not in (None, name)
            _add(into, options_of(name), run, panel if into is app else None, bare)


def _parameter(command: str, field: Field[Any], kind: Any) -> inspect.Parameter:
    """Return a field of the options class of a command as a parameter for Typer."""
    data = field.metadata
    words = data.get("words", ())
    complete = completer(command, field.name, words)
    if data["positional"]:
        metavar = data["metavar"]
        text = typer.Argument(help=data["help"], metavar=metavar, autocompletion=complete)
    else:
        names = [data["name"]] if data["name"] else []
        limits: dict[str, Any] = {"metavar": METAVARS[kind]} if kind in METAVARS else {}
        limits |= {"metavar": ",".join(words)} if words else {}
        limits |= data["limits"]
        text = typer.Option(*names, help=data["help"], autocompletion=complete, **limits)
    default: Any = inspect.Parameter.empty if field.default is MISSING else field.default
    if _is_list(kind):
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


def _add(app: typer.Typer, options: type[Options], run: Run, panel: str | None, bare: bool) -> None:
    """Add the command of an options class to the app, without its parameters if it is `bare`."""

    kinds = {} if bare else get_type_hints(options)

    def command(**values: Any) -> None:
        values = {k: tuple(v or ()) if _is_list(kinds[k]) else v for k, v in values.items()}
        raise typer.Exit(run(options(**values)))

    shown = () if bare else sorted(fields(options), key=_panel_rank)
    parameters = [_parameter(options.COMMAND, f, kinds[f.name]) for f in shown]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = text = options.__doc__ or ""
    summary = " ".join(text.partition("\n\n")[0].split())
    name = options.COMMAND.split()[-1]
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

    group.callback(invoke_without_command=True, help=GROUP_HELP[name])(refuse_none)
    app.add_typer(group, name=name, rich_help_panel=panel)
    return group


# Completion

ROOT = Path(__file__).resolve().parents[1]
MOST_RUNS = 20  # the newest


def _modules(folder: str) -> list[str]:
    """Return the names of a folder's modules. Nothing is imported: a key was just pressed."""
    place = ROOT / folder
    names = os.listdir(place) if place.is_dir() else []  # a part may be absent
    return sorted(f[:-3] for f in names if f.endswith(".py") and f[0] != "_")


def kernels() -> list[str]:
    """Return the built-in kernels and the Python files of the current folder."""
    return [*_modules("kernels"), *sorted(f for f in os.listdir() if f.endswith(".py"))]


def devices() -> list[str]:
    """Return the devices."""
    return sorted(f[:-5] for f in os.listdir(ROOT / "devices") if f.endswith(".toml"))


def runs() -> list[str]:
    """Return `last` and the newest runs in `results`."""
    names = (path.parent.name for path in Path("results").glob("*/events.jsonl"))
    return ["last", *sorted(names, reverse=True)[:MOST_RUNS]]


# By option, or by command and option where a name means something of its own there.
_SOURCES: Mapping[str, tuple[Callable[[], Iterable[str]], ...]] = {
    "kernel": (kernels,),
    "spec": (kernels,),
    "device": (devices,),
    "dtype": (lambda: ["bf16", "fp16", "fp32"],),
    "sweep.name": (kernels, lambda: _modules("sweeps")),
    "report.name": (lambda: REPORTS,),
    "report.runs": (runs,),
    "experiment.name": (lambda: _modules("experiments"),),
    "compare.left": (runs,),
    "compare.right": (runs,),
    "code.target": (kernels,),
    "diagnose.targets": (runs, kernels),
    "profile.target": (kernels,),
    "new-kernel.like": (lambda: ["elements", "rows", "tiles", "matmul", "attention"],),
}


def completer(
    command: str, name: str, known: tuple[str, ...] = ()
) -> Callable[[str], list[str]] | None:
    """Return what completes the words of an option of a command, which may be a list of `known`
    ones; None where nothing does."""
    sources = _SOURCES.get(f"{command}.{name}", _SOURCES.get(name, ()))
    sources += ((lambda: known),) if known else ()

    def complete(incomplete: str) -> list[str]:
        words = (word for source in sources for word in source())
        return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]

    return complete if sources else None
