"""Write numbers with their units, as messages, consoles and pages show them."""

from decimal import Decimal


def quantity(value: float, unit: str) -> str:
    """Return a number with three digits and a decimal prefix: `4.3 TB/s`."""
    if unit == "s":
        return duration(value)
    scale, prefix = _prefix_of(value)
    return f"{three_digits(value / scale)} {prefix}{unit}"


def reading(value: float, unit: str, figures: int = 3) -> str:
    """Return a number with its unit: seconds in a unit of their size, rates with a prefix. Numbers
    have `figures` significant digits; shares of 1 are bare, or in percent with unit "%"."""
    if unit == "%":
        return f"{100 * value:.{figures}g} %"
    if unit == "s":
        if 0 < abs(value) < 1e-7:  # hundredths of a microsecond would be lost
            return f"{digits(value * 1e9)} ns"
        scale, symbol = (1.0, "s") if abs(value) >= 1 else unit_of(abs(value))
        return f"{text_of(value, scale)} {symbol}"
    if unit in ("kernels", "copies"):
        return f"{value:,.0f}"
    if unit == "1":
        return digits(value, figures)
    scale, prefix = (1.0, "") if unit == "FLOP/B" else _prefix_of(abs(value))
    return f"{value / scale:.{figures}g} {prefix}{unit}"


def _prefix_of(value: float) -> tuple[float, str]:
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return size, prefix
    return 1.0, ""


def duration(seconds: float) -> str:
    """Return seconds with three digits and a unit: `12.3 µs`."""
    value, unit = _scale_seconds(seconds)
    return f"{three_digits(value)} {unit}"


def console_duration(seconds: float) -> str:
    """Return seconds with four digits and a unit in ASCII: `12.34 us`."""
    value, unit = _scale_seconds(seconds)
    return f"{value:.4g} {unit.replace('µ', 'u')}"


def console_microseconds(seconds: float) -> str:
    """Return seconds in µs with four digits, in ASCII: `12.34 us`."""
    return f"{seconds * 1e6:.4g} us"


def rough(seconds: float) -> str:
    """Return a predicted duration to two digits: `8.8 ms`."""
    value, unit = _scale_seconds(seconds)
    return f"{digits(value, 2)} {unit}"


def _scale_seconds(seconds: float) -> tuple[float, str]:
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return seconds / size, unit
    return seconds / 1e-9, "ns"


def unit_of(seconds: float) -> tuple[float, str]:
    """Return the unit for a time of this size, in seconds, and its symbol."""
    return (1e-3, "ms") if seconds >= 10e-3 else (1e-6, "µs")


def text_of(seconds: float, scale: float) -> str:
    """Return a time without its unit, rounded to four or five digits."""
    value = seconds / scale
    return f"{value:.{1 if value >= 1000 else 2 if value >= 10 else 3}f}"


def span_text(low: float, high: float, scale: float) -> str:
    """Return an interval of times without its unit: `12.31 to 12.40`."""
    return f"{text_of(low, scale)} to {text_of(high, scale)}"


def microseconds(seconds: float) -> str:
    """Return seconds in µs, as `four_digits` does, without the unit."""
    return four_digits(1e6 * seconds)


def percent(share: float) -> str:
    """Return a share of 1 as percent: `93 %`; with one more digit below one percent."""
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else f"{100 * share:.2g} %"


def whole_percent(share: float) -> str:
    """Return a share of 1 as whole percent: `93 %`."""
    return f"{share * 100:.0f} %"


def three_digits(value: float) -> str:
    """Return three significant digits, without an exponent."""
    return f"{value:.0f}" if value >= 99.5 else f"{value:.3g}"


def four_digits(value: float) -> str:
    """Return four digits without an exponent; JavaScript sorts by this text."""
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.4g}" if value >= 1e-3 else f"{value:.2g}"


def digits(value: float, figures: int = 3) -> str:
    """Return significant digits without an exponent: 0.000145, 1.07, 23500. Numbers near 1 keep
    their zeros (1.00); a count is 1."""
    rounded = f"{value:.{figures}g}"
    if rounded.lstrip("-").isdigit() and abs(value) < 10 and value != round(value):
        return f"{value:.{figures - 1}f}"
    return rounded if "e" not in rounded else f"{Decimal(rounded):f}"


def amount(n: int, noun: str) -> str:
    """Return a number of things: `1 config`, `2 configs`, `2 launches`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}{'es' if noun.endswith('ch') else 's'}"
