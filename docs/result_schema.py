"""Return the JSON Schema of the document that `--json` writes, from the dataclasses in it."""

from __future__ import annotations

import collections.abc
import types
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from workbench.commands.result import MEANINGS, SCHEMA, RunResult
from workbench.data.events import RunState
from workbench.data.record import Comparison, Failure, Finding, Profile, Record, Run

_SIMPLE = {str: "string", int: "integer", bool: "boolean", type(None): "null", Path: "string"}
_LISTS = (tuple, list, collections.abc.Sequence)
STATISTICS = ("mean_s", "std_s", "min_s", "max_s", "p5_s", "p95_s")


def result_schema() -> dict[str, Any]:
    """Return the schema of a command's document. A run's parts are definitions, one a dataclass;
    what else a command adds at the top is free."""
    definitions: dict[str, Any] = {}
    parts = {
        "run": _type_schema(Run, definitions), "state": _type_schema(RunState | None, definitions),
        "measured": _list(_type_schema(Record, definitions)),
        "predicted": _list(_type_schema(Record, definitions)),
        "failures": _list(_type_schema(Failure, definitions)),
        "comparisons": _list(_type_schema(Comparison, definitions)),
        "findings": _list(_type_schema(Finding, definitions)),
        "profiles": _list(_type_schema(Profile, definitions)),
        "page": {"type": ["string", "null"]}, "events": {"type": ["string", "null"]},
    }  # fmt: skip
    seconds = {name: {"type": "number"} for name in STATISTICS}
    definitions["Record"]["properties"]["statistics"] = {"type": "object", "properties": seconds}
    ends = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    definitions["Record"]["properties"]["expected_s"] = {"anyOf": [ends, {"type": "null"}]}
    definitions["RunResult"] = _object(parts)
    head = {
        "schema": {"const": SCHEMA}, "command": {"type": "string"}, "version": {"type": "string"},
        "exit_code": {"type": "integer"}, "meaning": {"enum": [*MEANINGS.values(), "stopped"]},
    }  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Result of a command of workbench",
        "description": f"{RunResult.__doc__} Numbers that are not finite are null.",
        **_object(head),
        "properties": {**head, "runs": _list({"$ref": "#/$defs/RunResult"})},
        "additionalProperties": True,
        "$defs": dict(sorted(definitions.items())),
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    every = {"properties": properties, "required": list(properties)}
    return {"type": "object", **every, "additionalProperties": False}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _type_schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; a dataclass becomes one of the definitions."""
    if get_origin(hint) is Annotated:
        return _type_schema(get_args(hint)[0], definitions)
    if is_dataclass(hint):
        return _definition(hint, definitions)
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    if hint is float:
        return {"type": ["number", "null"]}
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(inside)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type_schema(each, definitions) for each in inside]}
    if origin in _LISTS:
        items = [each for each in inside if each is not Ellipsis]
        different = len({str(each) for each in items}) > 1
        return _list({"anyOf": [_type_schema(e, definitions) for e in items]} if different
                     else _type_schema(items[0], definitions))  # fmt: skip
    if origin in (dict, collections.abc.Mapping):
        return {"type": "object", "additionalProperties": _type_schema(inside[1], definitions)}
    return {}


def _definition(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    name = hint.__name__
    if name not in definitions:
        definitions[name] = {}  # it may hold itself
        hints = get_type_hints(hint, include_extras=True)
        own = {"type": {"const": name}}
        own |= {f.name: _type_schema(hints[f.name], definitions) for f in fields(hint)}
        words = " ".join((hint.__doc__ or "").split())
        definitions[name] = {"description": words, **_object(own)}
    return {"$ref": f"#/$defs/{name}"}
