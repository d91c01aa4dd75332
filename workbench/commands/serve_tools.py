"""Commands as tools of other programs: the schema of a call, its command line, and the environment
of its process."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import workbench
from workbench.commands.options import CommandError, Options

TOOLS = ("evaluate", "tune", "predict", "diagnose", "code", "read")
# Options that say where a command prints, or show what no program reads.
_LEFT_OUT = frozenset(("json", "quiet", "events", "events_file", "out", "database", "wide"))
_KINDS: Mapping[Any, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
}


def _settable_fields(options: type[Options]) -> list[tuple[Field[Any], Any]]:
    """Return the fields of a command that a call may set, each with its type."""
    kinds = get_type_hints(options)
    return [(f, kinds[f.name]) for f in fields(options) if f.name not in _LEFT_OUT]


def input_schema(options: type[Options]) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments."""
    properties, required = {}, []
    for field, kind in _settable_fields(options):
        properties[field.name] = {**_form(field, kind), "description": field.metadata["help"]}
        if field.default is MISSING:
            required.append(field.name)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _form(field: Field[Any], kind: Any) -> dict[str, Any]:
    """Return the part of the schema that says what values a field takes."""
    if get_origin(kind) is tuple:
        words = field.metadata.get("words")
        return {"type": "array", "items": {"type": "string", **({"enum": words} if words else {})}}
    plain = next((k for k in getattr(kind, "__args__", ()) if k in _KINDS), kind)
    return _KINDS.get(plain, {"type": "string"})


def words_of(options: type[Options], given: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line for the arguments of a call. Raises CommandError for what
    is not an argument of the tool."""
    known = {field.name: field for field, _ in _settable_fields(options)}
    if odd := [name for name in given if name not in known]:
        raise CommandError(f"{options.COMMAND} takes no {odd[0]}; it takes {', '.join(known)}.")
    words, last = [options.COMMAND], []
    for name, field in known.items():
        value = given.get(name)
        if field.default is MISSING and value is None:
            raise CommandError(f"{options.COMMAND} needs {name}.")
        many: Sequence[Any] = value if isinstance(value, list) else [value]
        flag = field.metadata.get("name") or f"--{name.replace('_', '-')}"
        for one in many:
            if one is None or one is False:
                continue
            if field.metadata["positional"]:
                if str(one).startswith("-"):
                    raise CommandError(f"{name} begins with a dash; write ./{one} for a file.")
                last.append(str(one))
            else:
                words.append(flag if one is True else f"{flag}={one}")
    return words + last


def environment() -> dict[str, str]:
    """Return the environment of a command in another process, which imports this workbench also
    where it is not installed: `-P` leaves the current folder out."""
    here = str(Path(workbench.__file__).resolve().parents[1])
    known = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    path = os.pathsep.join(dict.fromkeys((here, *known)))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
