"""Read plain data strictly: each function returns a value that is what the format says, or raises
Damage with the place of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from workbench.spec import WorkbenchError

T = TypeVar("T")


def document(data: bytes, name: str, mark: str, schema: int, kind: str) -> Mapping[str, Any]:
    """Return the JSON object of a file's bytes.

    Args:
        data: the whole file.
        name: the file's, for messages.
        mark: the key that holds the format's version, at most `schema`.
        kind: what the file is to be, in messages: `workload file`.

    Raises WorkloadError.
    """
    try:
        plain = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        first = (str(error).splitlines() or [""])[0][:120] or type(error).__name__
        raise WorkloadError(
            f"{name} is not a {kind}: it is not JSON ({first}); make it again, or name another."
        ) from None
    version = plain.get(mark) if isinstance(plain, dict) else None
    if type(version) is not int:
        raise WorkloadError(
            f"{name} is not a {kind}: it has no `{mark}` version; name one that the workbench "
            f"wrote."
        )
    if version > schema:
        raise WorkloadError(
            f"{name} has format {version}, and this workbench knows formats up to {schema}; "
            "upgrade the workbench, or make it again."
        )
    return dict(plain)


class WorkloadError(WorkbenchError):
    """A workload or a tuned table cannot be made, read or written; one sentence, with what to do
    next."""


class Damage(Exception):
    """A value is not what the format says; the message names its place."""


def rows(plain: Mapping[str, Any], name: str, read: Callable[[Any, str], T]) -> list[T]:
    """Return the list of this name, each entry by `read`. Raises Damage."""
    value = plain.get(name)
    if not isinstance(value, list):
        raise Damage(f"`{name}` is not a list")
    return [read(each, f"{name}[{i}]") for i, each in enumerate(value)]


def fields_of(value: Any, at: str, required: Sequence[str], optional: Sequence[str] = ()) -> Any:
    """Return an object that has the required keys, and no other but the optional ones. Raises
    Damage."""
    if not isinstance(value, dict):
        raise Damage(f"{at} is not an object")
    for name in required:
        if name not in value:
            raise Damage(f"{at} lacks `{name}`")
    if unknown := sorted(set(value) - set(required) - set(optional)):
        raise Damage(f"{at} has an unknown key {ascii(unknown[0])[:40]}")
    return value


def text(value: Any, at: str) -> str:
    """Return text. Raises Damage."""
    if not isinstance(value, str):
        raise Damage(f"{at} is not text")
    return value


def texts(value: Any, at: str) -> tuple[str, ...]:
    """Return a list of texts. Raises Damage."""
    if not isinstance(value, list):
        raise Damage(f"{at} is not a list")
    return tuple(text(each, at) for each in value)


def whole(value: Any, at: str) -> int:
    """Return a whole number of 64 bits. Raises Damage."""
    if type(value) is not int or not -(2**63) <= value < 2**64:
        raise Damage(f"{at} is not a whole number of 64 bits")
    return value


def count(value: Any, at: str) -> int:
    """Return a whole number of at least 0. Raises Damage."""
    if whole(value, at) < 0:
        raise Damage(f"{at} is below 0")
    return int(value)


def wholes(value: Any, at: str, least: int | None = None) -> tuple[int, ...]:
    """Return a list of whole numbers, of at least `least` each. Raises Damage."""
    if not isinstance(value, list):
        raise Damage(f"{at} is not a list")
    numbers = tuple(whole(each, at) for each in value)
    if least is not None and any(number < least for number in numbers):
        raise Damage(f"{at} has a number below {least}")
    return numbers


def seconds(value: Any, at: str) -> float:
    """Return a finite time of at least 0 s, in seconds. Raises Damage."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise Damage(f"{at} is not a time in seconds")
    return float(value)


def flag(value: Any, at: str) -> bool:
    """Return a truth value. Raises Damage."""
    if not isinstance(value, bool):
        raise Damage(f"{at} is neither true nor false")
    return value


def one_of(value: Any, at: str, known: Sequence[T]) -> T:
    """Return the value if it is one of those that are known, type and all. Raises Damage."""
    for each in known:
        if value == each and type(value) is type(each):
            return each
    raise Damage(f"{at} is {ascii(value)[:40]}, not one of {', '.join(map(str, known))}")


def entry_at(table: Sequence[T], value: Any, at: str) -> T:
    """Return the entry of a table that a number names. Raises Damage."""
    if type(value) is not int or not 0 <= value < len(table):
        raise Damage(f"{at} names an entry that is not there")
    return table[value]
