"""Numbers as profilers write them: thousands separators, decimal commas, units, times."""

import math
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any

Three = tuple[int, int, int]

ABSENT = frozenset(["", "n/a", "nan", "-", "none", "null", "(!) n/a", "no data"])

# A comma that no group of three digits follows is not a separator of thousands
DECIMAL_COMMA = re.compile(
    r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d+),(?:\d{1,2}|\d{4,})\Z|[+-]?0\d*,\d+\Z"
    r"|[+-]?\d{1,3}(?:\.\d{3})+,\d+\Z"
)
PLAIN = re.compile(r"[+-]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?\Z")


def number(text: str, comma: bool = False) -> float | None:
    """Return a number that may have thousands separators, or None for `n/a` and the like, which is
    never 0. With `comma` the decimal mark is a comma. Raises ValueError for any other text."""
    text = text.strip()
    if text.lower() in ABSENT:
        return None
    if comma:
        text = text.replace(".", "").replace(",", ".")
    if not PLAIN.match(text):
        raise ValueError(f"{text[:40]!r} is not a number")
    value = float(text.replace(",", ""))
    if math.isinf(value):
        raise ValueError(f"{text[:40]!r} is larger than any number")
    return value


LARGEST = 2**63  # of a whole number, exclusive: a larger one has no ratio as a float


def integer(text: str) -> int:
    """Return a whole number, also one that is written with zeros after its point. Raises ValueError
    where it is none, or larger than any counter."""
    try:
        value: int | Decimal = int(text)
    except (ValueError, OverflowError):
        bare = str(text).strip()
        if not PLAIN.match(bare):
            raise ValueError(f"{bare[:40]!r} is not a whole number") from None
        value = Decimal(bare.replace(",", ""))
    except TypeError:
        raise ValueError(f"{text!r} is not a number") from None
    if not -LARGEST < value < LARGEST or value != int(value):
        raise ValueError(f"{str(text)[:40]!r} is not a whole number")
    return int(value)


def whole(value: object) -> int | None:
    """Return a whole number, also one that is text; None for anything else."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def ns_of_us(value: int | float | str) -> int:
    """Return microseconds as whole nanoseconds, exactly for decimal text: a float of epoch size
    would lose hundreds of nanoseconds. Raises ValueError where it is not a number."""
    if isinstance(value, int):
        if abs(value) >= 2**60:
            raise ValueError(f"{str(value)[:40]} is not a time")
        return value * 1000
    text = str(value)
    is_short = len(text) < 23
    if is_short and text[-4:-3] == "." and text[:-4].isdigit() and text[-3:].isdigit():  # Kineto
        return int(text[:-4] + text[-3:])
    whole, point, fraction = text.partition(".")
    is_short = is_short and whole.lstrip("-").isdigit()
    if is_short and point and len(fraction) <= 3 and fraction.isdigit():
        part = int(fraction.ljust(3, "0"))
        return int(whole) * 1000 + (-part if whole.startswith("-") else part)
    try:
        exact = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text[:40]!r} is not a time") from None
    if not exact.is_finite() or abs(exact) >= 2**60:
        raise ValueError(f"{text[:40]!r} is not a time")
    return round(exact * 1000)


UNIT_NS = {
    "ns": 1.0,
    "nsecond": 1.0,
    "nanosecond": 1.0,
    "us": 1e3,
    "µs": 1e3,
    "usecond": 1e3,
    "microsecond": 1e3,
    "ms": 1e6,
    "msecond": 1e6,
    "millisecond": 1e6,
    "s": 1e9,
    "sec": 1e9,
    "second": 1e9,
}
PREFIX = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}


def convert_to_ns(value: float, unit: str) -> float | None:
    """Return a time in ns, or None where the unit is not a time."""
    scale = UNIT_NS.get(unit.strip().lower())
    return None if scale is None else value * scale


def base_scale(unit: str) -> tuple[float, str]:
    """Return the factor to the unit without a prefix, and that unit: of `Kbyte` 1000 and `byte`;
    of a time the factor to ns and `ns`."""
    bare = unit.strip()
    if (scale := UNIT_NS.get(bare.lower())) is not None:
        return scale, "ns"
    head, slash, rest = bare.partition("/")
    for word in ("byte", "hz", "cycle", "inst", "sector", "b"):
        if head.lower().endswith(word) and (prefix := head[: -len(word)].lower()) in PREFIX:
            over = 1.0
            if slash and rest.lower() in UNIT_NS:  # per second
                over, rest = 1e9 / UNIT_NS[rest.lower()], "s"
            name = {"hz": "hz", "b": "byte"}.get(word, word)
            return PREFIX[prefix] * over, f"{name}/{rest}" if slash else name
    return 1.0, bare


def three(values: Iterable[Any]) -> Three | None:
    """Return three whole numbers, or None where one has no value."""
    parts = list(values)
    if any(part is None or part == "" for part in parts):
        return None
    x, y, z = map(integer, parts)
    return x, y, z


def work_groups(items: Three | None, group: Three | None) -> Three | None:
    """Return a grid in work-groups, which AMD's tools write in work-items."""
    if items is None or group is None or 0 in group:
        return None
    x, y, z = (-(-a // b) for a, b in zip(items, group, strict=True))
    return x, y, z


def triple(text: str) -> Three | None:
    """Return `(128, 1, 1)` or `128x1x1` as three numbers, or None where there are not three."""
    numbers = re.findall(r"\d+", text.replace(",", " ") if "(" not in text else text)
    if len(numbers) != 3 or any(len(n) > 12 for n in numbers):
        return None
    return int(numbers[0]), int(numbers[1]), int(numbers[2])
