"""Make a function of the Python API from the options of a command.

Its arguments are the options, with their types, defaults and help. `commands.pyi` consists of the
signatures, for editors and type checkers; docs/generate.py writes it.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from workbench.api.arguments import one_size, sizes_texts, words
from workbench.api.call import Called, call
from workbench.api.result import Result
from workbench.commands.field import FILES
from workbench.commands.options import options_of

EMPTY, BY_NAME = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
# Options of the command line alone: where it prints, and the form of its output.
PRINTED = ("json", "quiet", "events_file", "events", "wide", "annotate", "sarif")
# Types of options that Python takes in more forms than the command line.
TYPES = {
    "kernel": "str | Path",
    "spec": "str | Path | None",
    "left": "str | Result",
    "right": "str | Result",
    "budget": "str | int | None",
    "workers": "int | str | None",
    "steps": "str | tuple[int, int, int] | None",
}
PROGRESS = inspect.Parameter("progress", BY_NAME, default=None, annotation="bool | None")
R = TypeVar("R", bound=Result)


def command_function(
    *left_out: str, **first: Any
) -> Callable[[Callable[[Called], R]], Callable[..., R]]:
    """Return a decorator that makes a function of the command of its name; the decorated one
    creates its result. `first` are the arguments that may be given by place, with their defaults,
    EMPTY for none; options that are `left_out` are not arguments. The function checks its
    arguments as Python does. Raises TypeError where one is missing or has another name."""

    def decorate(create: Callable[[Called], R]) -> Callable[..., R]:
        options = options_of(create.__name__)
        kinds = get_type_hints(options)
        hidden = {*PRINTED, *left_out}
        own = [f for f in fields(options) if f.name not in hidden]
        flags = {f.name: f for f in sorted(own, key=_is_file)}
        parameters = [_parameter(flags[n], kinds[n], default) for n, default in first.items()]
        parameters += [_parameter(f, kinds[name]) for name, f in flags.items() if name not in first]
        signature = inspect.Signature([*parameters, PROGRESS])
        defaults = {name: default for name, default in first.items() if default is not EMPTY}

        @wraps(create)
        def function(*args: Any, **named: Any) -> R:
            try:
                values = signature.bind(*args, **named).arguments
            except TypeError as error:
                raise TypeError(f"{create.__name__}() {error}") from None
            progress = values.pop("progress", None)
            chosen = {name: _option_value(name, kinds[name], v) for name, v in values.items()}
            return create(call(options(**defaults | chosen), progress))

        returns = create.__annotations__["return"]
        function.__signature__ = signature.replace(return_annotation=returns)  # type: ignore[attr-defined]
        function.__doc__ = _docstring(inspect.getdoc(create) or "", flags)
        return function

    return decorate


def _is_file(field: Field[Any]) -> bool:
    """Return whether an option is on files and output; these are the last ones."""
    return bool(field.metadata.get("limits", {}).get("rich_help_panel") == FILES)


def _parameter(field: Field[Any], kind: Any, default: Any = MISSING) -> inspect.Parameter:
    """Return an option as a parameter: only by name, unless it has a `default` of its own here.
    The words of a program are given by place, any number of them."""
    if field.name == "target":
        return inspect.Parameter("target", inspect.Parameter.VAR_POSITIONAL, annotation="str")
    if default is MISSING:
        value = field.default if field.name != "sizes" else None
        value = str(value) if isinstance(value, Path) else value
        return inspect.Parameter(field.name, BY_NAME, default=value, annotation=_type(field, kind))
    place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    text = _type(field, kind)
    text = text if default is not EMPTY else text.removesuffix(" | None")
    return inspect.Parameter(field.name, place, default=default, annotation=text)


def _type(field: Field[Any], kind: Any) -> str:
    """Return the type of an option in Python."""
    several = get_origin(kind) is tuple
    if field.name == "sizes":
        return "ManySizes | None" if several else "OneSize | None"
    if several:
        word = get_args(kind)[0]
        name = str(field.type).removeprefix("tuple[").partition(",")[0].removeprefix("field.")
        return "Words" if word is str else f"{name} | Sequence[{name}]"
    if field.name in TYPES:
        optional = " | None" if type(None) in get_args(kind) else ""
        return TYPES[field.name].removesuffix(" | None") + optional
    return str(field.type).replace("Path", "str | Path")


def _option_value(name: str, kind: Any, value: Any) -> Any:
    """Return an argument as the options class takes it. Raises OptionError."""
    several = get_origin(kind) is tuple
    if value is None or isinstance(value, bool):
        return value
    if name == "sizes":
        return sizes_texts(value) if several else one_size(value)
    if several:
        return words(value)
    if isinstance(value, Result):
        return value.run.id
    kinds = get_args(kind) or (kind,)
    if Path in kinds:
        return Path(value)
    return str(value) if str in kinds and isinstance(value, int | Path) else value


def _docstring(text: str, fields: Mapping[str, Field[Any]]) -> str:
    """Return a docstring with what each argument means: as it stands there, or by the help."""
    head, _, own = text.partition("\n\nArgs:\n")
    written = set(re.findall(r"^    (\w+):", own, flags=re.M))
    lines = [f"{name}: {_meaning(f)}" for name, f in fields.items() if name not in written]
    lines.append("progress: False for no display.")
    wrapper = textwrap.TextWrapper(96, "    ", "        ")
    return "\n".join([f"{head}\n\nArgs:", *own.splitlines(), *map(wrapper.fill, lines)])


def _meaning(field: Field[Any]) -> str:
    """Return the help of an option in the words of Python."""
    text = field.metadata["help"].replace(
        "M=4096,N=4096,K=4096", '{"M": 4096, "N": 4096, "K": 4096}'
    )
    return re.sub("may be repeated|repeated", "or a list", text)
