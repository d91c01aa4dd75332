"""Results as text, a line each, for tables that are compared."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def text_of(value: Any) -> str:
    """Return a result in one line; numbers in six digits, so that the last bit may differ."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if is_dataclass(value):
        parts = [f"{f.name}={text_of(getattr(value, f.name))}" for f in fields(value)]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, (set, frozenset)):
        value = sorted(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}: {text_of(v)}' for k, v in value.items())}}}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(text_of, value))})"
    return str(value)
