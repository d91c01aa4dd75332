"""Check what was read from a file or a database, before anything uses it.

JSON can hold all fields of a record and still a string where a number belongs, or an id that is a
path. Code that uses the record later would then fail far from the file, or do harm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from workbench.data.clock import is_id
from workbench.data.record import Phase, Stage, State

LARGEST = 10**300  # of whole numbers: it still has a float


def check_fields(value: Any) -> Any:
    """Return a record or an event, if all that it holds fits its fields. Raises ValueError, which
    names the first field that does not."""
    kind: Any = type(value)
    for name, fits, suits in _fields(kind):
        inner = getattr(value, name)
        if not (fits(inner) and (suits is None or inner is None or suits(inner))):
            raise ValueError(f"the field {name} of a {kind.__name__} has a wrong type or value")
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
def _fields(kind: Any) -> list[tuple[str, Callable[[Any], bool], Callable[[Any], bool] | None]]:
    """Return the fields of a class, each with the test of its type and of its values, if any."""
    return [
        (
            name,
            _test_of(_WIDER.get(name, hint)),
            _TESTS.get(f"{kind.__name__}.{name}") or _TESTS.get(name),
        )
        for name, hint in get_type_hints(kind).items()
    ]


def _fits(value: object, hint: Any) -> bool:
    """Return whether a value is of the type that a field declares."""
    return _test_of(hint)(value)


@lru_cache(maxsize=256)
def _test_of(hint: Any) -> Callable[[Any], bool]:
    """Return the test of a declared type, which is made once: an outcome has fifty fields."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        tests = [_test_of(one) for one in args]
        return lambda value: any(test(value) for test in tests)
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in args
    if origin is tuple:
        of_each = _test_of(args[0])
        return lambda value: isinstance(value, tuple) and all(map(of_each, value))
    if origin is not None:  # a mapping
        of_value = _test_of(args[1])
        return lambda value: (
            isinstance(value, Mapping)
            and all(isinstance(k, str) and k.isprintable() for k in value)
            and all(map(of_value, value.values()))
        )
    return lambda value: isinstance(value, hint)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def _is_number(value: object) -> bool:
    return not math.isnan(value) if isinstance(value, float) else _is_whole(value)


_PLAIN: Mapping[Any, Callable[[Any], bool]] = {
    Any: lambda value: True,
    int: _is_whole,
    float: _is_number,
}


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


def _ceilings(value: Mapping[str, Mapping[str, Any]]) -> bool:
    return all(map(_ceiling, value.values()))


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
    "ceilings": _ceilings,
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
