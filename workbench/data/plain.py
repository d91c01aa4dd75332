"""Read plain data strictly: JSON of a file, and records that a file or a database gave back.

JSON can hold all fields of a record and still a string where a number belongs, or an id that is a
path. Code that uses the record later would then fail far from the file, or do harm.

The types that fields declare say what is read, and `Annotated[type, Values(...)]` narrows it.
`read_as` returns JSON as a declared type; `check_fields` checks what was decoded already.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from workbench.data.clock import is_id
from workbench.data.files import open_to_read, reason_of
from workbench.data.record import Phase, Stage, State
from workbench.spec import WorkbenchError, short

T = TypeVar("T")
Reader = Callable[[Any], Any]  # raises Damage

LARGEST = 10**300  # of whole numbers in records: it still has a float


class Damage(ValueError):
    """A value is not what its format says; the message begins with its place."""

    def prefix(self, place: str) -> Damage:
        """Return this damage of a value at a place."""
        return Damage(f"{place}{self}")


class Values(NamedTuple):
    """Which values of a type a field takes, and what they are in a sentence."""

    test: Callable[[Any], bool]
    text: str


Whole = Annotated[int, Values(lambda n: -(2**63) <= n < 2**64, "a whole number of 64 bits")]
Count = Annotated[Whole, Values(lambda n: n >= 0, "a whole number of at least 0")]
Seconds = Annotated[float, Values(lambda s: 0 <= s < math.inf, "a time in seconds")]
Line = Annotated[str, Values(str.isprintable, "text of one line")]
Grid = Annotated[tuple[Count, ...], Values(lambda g: 1 <= len(g) <= 3, "one to three extents")]


@dataclass(frozen=True)
class Format:
    """A format of JSON files."""

    mark: str  # key of the version
    version: int  # that this code writes; files with a field more need a higher one
    kind: str  # in messages: `workload file`
    error: type[WorkbenchError]
    remedy: str  # in messages, for a file that cannot be used

    def read(self, path: Path) -> bytes:
        """Return the bytes of a file. Raises `error`, in one sentence."""
        try:
            with open_to_read(path) as file:
                return file.read()
        except OSError as error:
            raise self.error(
                f"{path} cannot be read ({reason_of(error)}); name another {self.kind}."
            ) from None

    def parse(self, data: bytes, name: str) -> dict[str, Any]:
        """Return the JSON object of a file's bytes; `name` is the file's, for messages. Raises
        `error`, in one sentence."""
        no = f"{name} is not a {self.kind}"
        try:
            plain = json.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            first = (str(error).splitlines() or [""])[0][:120] or type(error).__name__
            raise self.error(f"{no}: it is not JSON ({first}); {self.remedy}.") from None
        version = plain.get(self.mark) if isinstance(plain, dict) else None
        if type(version) is not int:
            raise self.error(f"{no}: it has no `{self.mark}` version; {self.remedy}.")
        if version > self.version:
            raise self.error(
                f"{name} has format {version}, and this workbench knows formats up to "
                f"{self.version}; upgrade the workbench, or name another {self.kind}."
            )
        return dict(plain)

    def damage_error(self, name: str, damage: object) -> WorkbenchError:
        """Return the error of a damaged file."""
        return self.error(f"{name} is damaged ({damage}); {self.remedy}.")


# JSON


def read_as(kind: Any, value: Any, at: str) -> Any:
    """Return a value of JSON as a declared type; `at` is its place in the file. Raises Damage."""
    try:
        return _reader_of(kind)(value)
    except Damage as damage:
        raise damage.prefix(at) from None


def read_rows(plain: Mapping[str, Any], name: str, read: Callable[[Any, str], T]) -> list[T]:
    """Return the list of this name, each entry by `read`. Raises Damage."""
    value = plain.get(name)
    if not isinstance(value, list):
        raise Damage(f"`{name}` is not a list")
    return [read(each, f"{name}[{i}]") for i, each in enumerate(value)]


def row_of(table: Sequence[T], number: int, at: str) -> T:
    """Return the row of a table that a number names. Raises Damage."""
    if not 0 <= number < len(table):
        raise Damage(f"{at} names row {number}, which is not there")
    return table[number]


def _no(value: object, what: str) -> Damage:
    return Damage(f" is {ascii(short(value))[1:-1][:40]}, not {what}")


@lru_cache(maxsize=512)
def _reader_of(hint: Any, decoded: bool = False) -> Reader:
    """Return what reads a declared type, made once: an outcome has fifty fields. In data that were
    decoded already, tuples and records are themselves; in JSON they are lists and objects."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint][0]
    if origin is Annotated:  # of nested ones the innermost is first
        narrows = [each for each in args[1:] if isinstance(each, Values)]
        return _narrow(_reader_of(args[0], decoded), narrows)
    if origin in (Union, UnionType):
        kinds = [one for one in args if one is not NoneType]
        return _either([_reader_of(one, decoded) for one in kinds], kinds, NoneType in args)
    if origin is Literal:
        return _atom(
            lambda value: any(value == one and type(value) is type(one) for one in args),
            f"one of {', '.join(map(str, args))}",
        )
    if origin is tuple:
        readers = [_reader_of(one, decoded) for one in args if one is not ...]
        return _sequence(readers, None if ... in args else len(args), decoded)
    if origin is not None:
        return _mapping(_reader_of(args[1], decoded), decoded)
    if is_dataclass(hint) and not decoded:
        return lambda value: _read_object(hint, value)
    return _atom(lambda value: isinstance(value, hint), f"a {hint.__name__}")


def _atom(test: Callable[[Any], bool], what: str) -> Reader:
    return _narrow(lambda value: value, [Values(test, what)])


def _narrow(reader: Reader, narrows: Sequence[Values]) -> Reader:
    def read(value: Any) -> Any:
        result = reader(value)
        for test, text in narrows:
            if not test(result):
                raise _no(value, text)
        return result

    return read


def _either(readers: Sequence[Reader], kinds: Sequence[Any], optional: bool) -> Reader:
    """Return what reads one of several types."""

    def read(value: Any) -> Any:
        if value is None and optional:
            return None
        if len(readers) == 1:
            return readers[0](value)
        for reader in readers:
            try:
                return reader(value)
            except Damage:
                continue
        raise _no(value, " or ".join(map(_kind_text, kinds)))

    return read


def _kind_text(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return str(get_args(kind)[-1].text)
    return _PLAIN[kind][1] if kind in _PLAIN else f"a {kind.__name__}"


def _sequence(readers: Sequence[Reader], many: int | None, decoded: bool) -> Reader:
    """Return what reads a tuple of one type, or of as many values as it has types."""

    def read(value: Any) -> Any:
        if not isinstance(value, tuple if decoded else (list, tuple)):
            raise _no(value, "a list")
        if many is not None and len(value) != many:
            raise _no(value, f"a list of {many}")
        result: list[Any] = []
        try:
            if many is None:
                result.extend(map(readers[0], value))
            else:
                result.extend(reader(each) for reader, each in zip(readers, value, strict=True))
        except Damage as damage:
            raise damage.prefix(f"[{len(result)}]") from None
        return tuple(result)

    return read


def _mapping(reader: Reader, decoded: bool) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _no(value, "an object")
        result, key = {}, ""
        try:
            for key, inner in value.items():
                if decoded and not (isinstance(key, str) and key.isprintable()):
                    raise _no(value, "an object with names")
                result[key] = reader(inner)
        except Damage as damage:
            raise damage.prefix(f".{ascii(key)[1:-1][:40]}") from None
        return result

    return read


def _read_object(kind: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        raise _no(value, "an object")
    readers, required = _object_fields(kind)
    if missing := [name for name in required if name not in value]:
        raise Damage(f" lacks `{missing[0]}`")
    if unknown := value.keys() - readers.keys():
        raise Damage(f" has an unknown key {ascii(min(unknown))[:40]}")
    result, name = {}, ""
    try:
        for name, inner in value.items():
            result[name] = readers[name](inner)
    except Damage as damage:
        raise damage.prefix(f".{name}") from None
    return kind(**result)


@lru_cache(maxsize=32)
def _object_fields(kind: Any) -> tuple[dict[str, Reader], list[str]]:
    """Return what reads each field of a class, and the names of those without a default."""
    hints = get_type_hints(kind, include_extras=True)
    readers = {f.name: _reader_of(hints[f.name]) for f in fields(kind)}
    needed = (f for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    return readers, [f.name for f in needed]


def _read_text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    raise _no(value, "text")


def _read_whole(value: Any) -> Any:
    if type(value) is int and -LARGEST <= value <= LARGEST:
        return value
    raise _no(value, "a whole number")


def _read_number(value: Any) -> Any:
    if isinstance(value, float) and not math.isnan(value):
        return value
    if type(value) is int and -LARGEST <= value <= LARGEST:
        return value
    raise _no(value, "a number")


_PLAIN: Mapping[Any, tuple[Reader, str]] = {
    Any: (lambda value: value, "anything"),
    bool: (_atom(lambda value: isinstance(value, bool), "true or false"), "true or false"),
    int: (_read_whole, "a whole number"),
    float: (_read_number, "a number"),
    str: (_read_text, "text"),
}


# Records and events


def check_fields(value: Any) -> Any:
    """Return a record or an event, if all that it holds fits its fields. Raises Damage, which names
    the first field that does not."""
    kind: Any = type(value)
    for name, read, suits in _fields(kind):
        inner = getattr(value, name)
        try:
            read(inner)
        except Damage as damage:
            raise damage.prefix(f"the field {name} of a {kind.__name__}") from None
        if not (suits is None or inner is None or suits(inner)):
            raise Damage(f"the field {name} of a {kind.__name__} has a wrong value")
        for each in inner if isinstance(inner, tuple) else (inner,):
            if is_dataclass(each):
                check_fields(each)
    return value


# A kernel may have knobs of other types, though the tuned cache takes whole numbers only.
_Scalar = int | float | str | bool | None
_Knobs = Mapping[str, _Scalar]
_WIDER: Mapping[str, Any] = {
    "config": _Knobs,
    "same_as": _Knobs | None,
    "previous_best": Mapping[str, _Knobs],
}


@lru_cache(maxsize=32)
def _fields(kind: Any) -> list[tuple[str, Reader, Callable[[Any], bool] | None]]:
    """Return the fields of a class, each with what reads it and the test of its values, if any."""
    return [
        (
            name,
            _reader_of(_WIDER.get(name, hint), decoded=True),
            _TESTS.get(f"{kind.__name__}.{name}") or _TESTS.get(name),
        )
        for name, hint in get_type_hints(kind).items()
    ]


def _fits(value: object, hint: Any) -> bool:
    """Return whether a decoded value is of the type that a field declares."""
    try:
        _reader_of(hint, decoded=True)(value)
    except Damage:
        return False
    return True


def _printable(value: Any) -> bool:
    return not isinstance(value, str) or value.isprintable()


def _positive(value: float) -> bool:
    return 0 < value < math.inf


def _extents(value: Mapping[str, int]) -> bool:
    return all(n >= 0 for n in value.values())


def _durations(value: tuple[float, ...]) -> bool:
    return all(0 <= s < math.inf for s in value)


def _impls(value: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether each Impl has choices and knobs as a sweep records them, where it has any."""
    return all(
        _fits(impl.get("choices", {}), Mapping[str, tuple[_Scalar, ...]])
        and _fits(impl.get("knobs", {}), Mapping[str, str])
        for impl in value.values()
    )


def _ceiling(value: Mapping[str, Any]) -> bool:
    """Return whether this is a ceiling as `device.hardware.ceilings` states one, or as `workbench
    ceilings` measured it: one that could not be has no value."""
    numbers = [value[n] for n in ("value", "low", "high", "clock_mhz") if value.get(n) is not None]
    texts = [value[n] for n in ("unit", "source", "kind", "title", "level", "dtype", "reason")
             if n in value]  # fmt: skip
    inner = [value[name] for name in ("stated", "library") if value.get(name) is not None]
    return (
        (value.get("value") is not None or value.get("kind") == "missing")
        and {"unit", "source", "kind"} <= value.keys()
        and all(_fits(n, float) and _positive(n) for n in numbers)
        and all(isinstance(text, str) for text in texts)
        and all(isinstance(one, Mapping) for one in inner)
        and value.get("state", "") in (*get_args(State), "")
    )


# By field, or by class and field. Names are shown in one line; ids become the names of folders.
_TESTS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(
        (
            "kernel", "impl", "backend", "dtype", "device", "key", "at", "engine", "started",
            "experiment", "word", "left", "right", "left_key", "right_key", "Run.name", "op_path",
            "Run.gpu", "Record.gpu", "Failure.gpu",
            "Profile.name", "tool", "version", "launch", "rule", "effort",
        ),
        _printable,
    ),
    "Run.id": is_id,
    "run": is_id,
    "sizes": _extents,
    "ceilings": lambda v: all(map(_ceiling, v.values())),
    "impls": _impls,
    "samples_s": _durations,
    "Measured.median_s": _positive,
    "Measured.low_s": lambda v: 0 <= v < math.inf,
    "Measured.high_s": _positive,
    "Predicted.predicted_s": _positive,
    "Row.time_s": _positive,
    "Row.stage": get_args(Stage).__contains__,
    "Row.phase": (*get_args(Phase), "screen").__contains__,  # of schema 1
    "Ratio.middle": _positive,
    "Ratio.low": _positive,
    "Ratio.high": _positive,
}  # fmt: skip
