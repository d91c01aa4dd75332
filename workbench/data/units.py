"""Write numbers with their units, as messages, consoles and pages show them."""

from __future__ import annotations


def quantity(value: float, unit: str) -> str:
    """Return a number with three digits and a decimal prefix: `4.3 TB/s`."""
    if unit == "s":
        return duration(value)
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{three_digits(value / size)} {prefix}{unit}"
    return f"{three_digits(value)} {unit}"


def duration(seconds: float) -> str:
    """Return seconds with three digits and a unit: `12.3 µs`."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{three_digits(seconds / size)} {unit}"
    return f"{three_digits(seconds / 1e-9)} ns"


def percent(share: float) -> str:
    """Return a share of 1 as percent: `93 %`; with one more digit below one percent."""
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else f"{100 * share:.2g} %"


def three_digits(value: float) -> str:
    """Return three significant digits, without an exponent."""
    return f"{value:.0f}" if value >= 99.5 else f"{value:.3g}"
