"""Numbers that stand side by side were taken at different clocks."""

from collections.abc import Iterator

from workbench.data.record import Evidence
from workbench.data.units import percent
from workbench.traces.rule_metrics import THROTTLE
from workbench.traces.rules import Diagnosis, KernelRule, Values


def evaluate(metrics: Values, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a kernel whose plain time was taken at changing clocks, at a lowered
    one, or at another one than its counters."""
    sentences = tuple(_sentences(metrics, limits["apart"]))
    if not sentences:
        return None
    return Diagnosis(
        " ".join(sentences),
        tuple(_evidence(metrics)),
        "Compare cycles, not seconds, between the two; shares of the counters are of the "
        "profiler's clock, gains of the plain time.",
        "small",
    )


def _sentences(metrics: Values, limit: float) -> Iterator[str]:
    """Yield what is said of the clocks: a sentence for each cause."""
    plain = metrics["plain_clock"]
    low, high = metrics.get("plain_clock_low", plain), metrics.get("plain_clock_high", plain)
    profiled = metrics.get("sm_clock", plain)
    if abs(profiled / plain - 1) > limit:
        yield (
            f"The plain time is of {_ghz(plain)}, the counters are of {_ghz(profiled)}, "
            f"{percent(abs(profiled / plain - 1))} apart."
        )
    if high / low - 1 > limit:
        yield f"The windows of the plain time ran at {_ghz(low)} to {_ghz(high)}."
    reasons = [name.removeprefix(THROTTLE) for name in metrics if name.startswith(THROTTLE)]
    if reasons:
        yield f"The driver lowered the clock of the plain time ({', '.join(sorted(reasons))})."


def _ghz(hz: float) -> str:
    return f"{hz / 1e9:.2f} GHz"


def _evidence(metrics: Values) -> Iterator[Evidence]:
    """Yield the clocks, the plain time's with its slowest and fastest window."""
    low, high = metrics.get("plain_clock_low"), metrics.get("plain_clock_high")
    clock = metrics["plain_clock"]
    yield Evidence("SM clock of the plain time", clock, "Hz", "measured", low, high)
    if "sm_clock" in metrics:
        yield Evidence("SM clock of the counters", metrics["sm_clock"], "Hz", "profiled")


RULE = KernelRule(
    "clock",
    124,
    ("plain_clock",),
    evaluate,
    {"apart": 0.03},
    source="a product at the power cap of an H200, 1.42 GHz alone and 1.62 under ncu; otherwise "
    "stored counters with made-up plain times",
    remark=True,
    covers_calls=True,
)
