"""Send the results of a worker's tasks as plain data, and build them from it in the reader.

A worker runs the user's code, so its bytes are not trusted. They are JSON, and the bytes of tensors
behind it. Nothing in them is called and no attribute of a class is set: the reader builds builtin
values, exceptions with their arguments, and frozen dataclasses of the workbench's own modules from
their declared fields, each of the type that is declared.
"""

from __future__ import annotations

import json
import struct
import sys
import types
import typing
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from workbench.data.errors import first_sentence

_KERNELS = ("workbench.kernels", "workbench.variants")
_PROGRAMS = ("workbench.__main__", "workbench.sweep", "workbench.cli")
_HEAD = struct.Struct("!Q")  # bytes of the JSON, before it


class Unreadable(Exception):
    """Bytes of a worker are not a result: its code wrote to the pipe, or sent other values."""


class _NotPlain(Exception):
    """A value cannot travel, or its description is not a value; the message is one clause."""


def write(right: bool, result: Any) -> bytes:
    """Return the bytes of a result, or of an error where `right` is False.

    An error of a class that the reader does not know, such as the user's own, is sent as a
    RuntimeError that names it. A result that cannot be sent becomes a RuntimeError, too.
    """
    if not right and not _is_known(type(result)):
        right, result = False, RuntimeError(first_sentence(result))
    try:
        return _pack(right, result)
    except Exception as error:
        reason = f"an answer that cannot travel: {first_sentence(error)}"
        return _pack(False, RuntimeError(reason))


def _pack(right: bool, result: Any) -> bytes:
    blobs: list[bytes] = []
    head = json.dumps([right, _plain(result, blobs), [len(b) for b in blobs]]).encode()
    return b"".join((_HEAD.pack(len(head)), head, *blobs))


def read(data: bytes) -> tuple[bool, Any]:
    """Return whether a task succeeded, and its result or error. Raises Unreadable where the bytes
    hold something else."""
    try:
        (length,) = _HEAD.unpack_from(data)
        right, plain, lengths = json.loads(data[_HEAD.size : _HEAD.size + length].decode())
        result = _build(plain, _blobs(data, _HEAD.size + length, lengths))
    except Exception as error:
        raise Unreadable(first_sentence(error)) from None
    if not isinstance(right, bool) or not (right or isinstance(result, Exception)):
        raise Unreadable("it is not a result")
    return right, result


def _blobs(data: bytes, start: int, lengths: Sequence[int]) -> list[bytes]:
    result = []
    for length in lengths:
        if type(length) is not int or length < 0:
            raise _NotPlain("a length is not a number")
        result.append(data[start : start + length])
        start += length
    if start != len(data):
        raise _NotPlain("its bytes are not as long as it says")
    return result


# Values as JSON: numbers, texts and lists as they are, all else as an object of one key.

_PLAIN = (type(None), bool, int, float, str)
_SEQUENCES: Mapping[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_NUMBERS: Mapping[str, Callable[..., Any]] = {"range": range, "slice": slice, "complex": complex}
_PAIRS: Mapping[str, type] = {"dict": dict, "Counter": Counter, "OrderedDict": OrderedDict}
_PATHS: Mapping[str, type] = {"Path": Path, "PurePath": PurePosixPath}


def _plain(value: Any, blobs: list[bytes]) -> Any:
    """Return a value as JSON holds it, and append its bytes to `blobs`. Raises _NotPlain."""
    value = _number(value)
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [_plain(item, blobs) for item in value]
    if kind.__name__ in _SEQUENCES and kind is _SEQUENCES[kind.__name__]:
        return {kind.__name__: [_plain(item, blobs) for item in value]}
    if kind.__name__ in _PAIRS and kind is _PAIRS[kind.__name__]:
        if all(type(key) is str for key in value):
            return {f"{kind.__name__} by text": {k: _plain(v, blobs) for k, v in value.items()}}
        pairs = [[_plain(k, blobs), _plain(v, blobs)] for k, v in value.items()]
        return {kind.__name__: pairs}
    if kind in (bytes, bytearray):
        blobs.append(bytes(value))
        return {kind.__name__: len(blobs) - 1}
    if isinstance(value, PurePath):
        return {"Path" if isinstance(value, Path) else "PurePath": str(value)}
    if kind is range or kind is slice:
        return {kind.__name__: [value.start, value.stop, value.step]}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if not _is_known(kind):
        raise _NotPlain(f"{kind.__module__}.{kind.__qualname__} is not a value")
    name = f"{kind.__module__}:{kind.__qualname__}"
    if isinstance(value, Exception):
        return {"error": [name, [_argument(each, blobs) for each in value.args]]}
    # a class may leave out what does not travel
    state = value.__getstate__() if "__getstate__" in vars(kind) else vars(value)
    return {"value": [name, {f.name: _plain(state[f.name], blobs) for f in fields(kind)}]}


def _number(value: Any) -> Any:
    """Return a number of numpy as one of Python, and any other value as it is."""
    is_number = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if is_number else value


def _argument(value: Any, blobs: list[bytes]) -> Any:
    """Return an argument of an exception, which may be anything, as a value or as text."""
    try:
        return _plain(value, blobs)
    except _NotPlain:
        return str(value)


def _build(plain: Any, blobs: Sequence[bytes]) -> Any:
    """Return the value that JSON describes. Raises _NotPlain where it describes none."""
    if type(plain) in _PLAIN:
        return plain
    if type(plain) is list:
        return [_build(item, blobs) for item in plain]
    ((kind, value),) = plain.items()
    if kind == "value":
        return _dataclass(value, blobs)
    if kind == "error":
        return _error(value, blobs)
    if kind in ("bytes", "bytearray"):
        return blobs[value] if kind == "bytes" else bytearray(blobs[value])
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_build(item, blobs) for item in value)
    if kind in _PAIRS:
        return _PAIRS[kind]((_build(k, blobs), _build(v, blobs)) for k, v in value)
    if (pairs := kind.removesuffix(" by text")) in _PAIRS:
        return _PAIRS[pairs]((k, _build(v, blobs)) for k, v in value.items())
    if kind in _PATHS and type(value) is str:
        return _PATHS[kind](value)
    if kind in _NUMBERS and all(type(n) in (type(None), int, float) for n in value):
        return _NUMBERS[kind](*value)
    raise _NotPlain(f"it describes {str(kind)[:40]!r}, which is not a value")


# Classes


def _is_known(kind: type) -> bool:
    """Return whether a reader builds values of this class."""
    if kind.__module__ == "builtins":
        others = (*_SEQUENCES, *_NUMBERS, "bytearray")
        return kind.__name__ in others or issubclass(kind, Exception)
    if kind in _PAIRS.values() or issubclass(kind, PurePath):
        return True
    if kind.__module__.partition(".")[0] != "workbench":
        return False
    return issubclass(kind, Exception) or _is_value(kind)


def _is_value(kind: type) -> bool:
    """Return whether a class is a frozen dataclass: it does nothing but hold its fields."""
    return is_dataclass(kind) and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _class(title: Any, accepts: Callable[[type], bool]) -> type:
    """Return the class `module:Name`. Raises _NotPlain where the reader builds none of it."""
    module, _, name = title.partition(":")
    # of other packages only what this process has imported: an import runs code
    ours = module.startswith("workbench.") and not module.startswith((*_KERNELS, *_PROGRAMS))
    kind = getattr(import_module(module) if ours else sys.modules.get(module), name, None)
    if isinstance(kind, type) and kind.__module__ == module and _is_known(kind) and accepts(kind):
        return kind
    raise _NotPlain(f"it names {module}.{name}, which is not a value")


def _error(value: Any, blobs: Sequence[bytes]) -> Exception:
    title, args = value
    kind = _class(title, lambda k: issubclass(k, Exception))
    values = [_build(each, blobs) for each in args]
    error: Exception = kind.__new__(kind, *values)  # its own `__init__` is not called
    error.args = tuple(values)
    return error


def _dataclass(pair: Any, blobs: Sequence[bytes]) -> Any:
    title, plain = pair
    kind = _class(title, _is_value)
    hints = _hints(kind)
    if plain.keys() != hints.keys():
        raise _NotPlain(f"the fields of {title} are others")
    value: Any = object.__new__(kind)
    for name, hint in hints.items():
        held_value = _build(plain[name], blobs)
        if not _fits(held_value, hint):
            raise _NotPlain(f"{name} of {title} is a {type(held_value).__name__}")
        object.__setattr__(value, name, held_value)
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Return the type of each declared field; Any of one that cannot be had here."""
    names = {**vars(typing), **vars(sys.modules[kind.__module__]), **vars(types)}
    result = {}
    for field in fields(kind):
        try:
            text = field.type
            result[field.name] = eval(text, names) if isinstance(text, str) else text
        except NameError:  # imported for annotations only, or of a base class elsewhere
            result[field.name] = Any
    return result


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of a declared type, as far as builtin types and dataclasses say."""
    if hint is Any or hint is object:
        return True
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _fits(value, inner[0])
    if origin is typing.Literal:
        return value in inner and type(value) is not bool
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is tuple:
        if type(value) is not tuple:
            return False
        if len(inner) == 2 and inner[1] is ...:
            return all(_fits(item, inner[0]) for item in value)
        return len(value) == len(inner) and all(map(_fits, value, inner))
    if isinstance(origin, type):
        return isinstance(value, origin) and _holds(value, inner)
    if hint is None:
        return value is None
    if hint is float:
        return type(value) in (int, float)
    return not isinstance(hint, type) or isinstance(value, hint)


def _holds(value: Any, inner: tuple[Any, ...]) -> bool:
    """Return whether the items of a container are of the types that its annotation names."""
    if isinstance(value, Mapping) and len(inner) == 2:
        return all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if isinstance(value, (list, tuple, set, frozenset)) and len(inner) == 1:
        return all(_fits(item, inner[0]) for item in value)
    return True
