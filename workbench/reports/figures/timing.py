"""How times were obtained, as every page says it."""

from collections.abc import Iterable

from workbench.data.record import Measured, Outcome, Predicted, Record


def timings_of(outcomes: Iterable[Outcome]) -> list[Measured]:
    """Return the measured times."""
    timings = (o.timing for o in outcomes if isinstance(o, Record))
    return [t for t in timings if isinstance(t, Measured)]


def timing_facts(outcomes: Iterable[Outcome]) -> list[tuple[str, str]]:
    """Return regimes, methods and protocol; of a prediction its model."""
    records = [o for o in outcomes if isinstance(o, Record)]
    if timed := timings_of(records):
        states = "; ".join(dict.fromkeys(f"{t.regime}, {t.state} clock" for t in timed))
        methods = ", ".join(dict.fromkeys(t.method for t in timed))
        return [("Regimes", states), ("Methods", methods), ("Protocol", timed[0].protocol)]
    models = [r.timing.model for r in records if isinstance(r.timing, Predicted)]
    return [("Model", models[0])] if models else []


def regime_of(record: Record) -> str:
    """Return the regime of a time, and that it is by the host's clock; or `predicted`."""
    timing = record.timing
    if not isinstance(timing, Measured):
        return "predicted"
    return f"{timing.regime}, host clock" if timing.method == "host" else timing.regime
