"""Tables of the bytes that emulated Metal kernels moved, and the sentence on every page of them."""

from collections.abc import Iterable, Sequence
from typing import Any

from workbench.data.dominance import counts_of, front_of
from workbench.data.record import CountedTraffic, Outcome, Record, Run
from workbench.data.units import digits, reading
from workbench.device.apple_model import ASSUMPTIONS, EMULATED
from workbench.spec import sizes_text

HEADS = (
    "config",
    "by count",
    "counted at",
    "requested",
    "unique",
    "in sectors",
    "at these sizes",
    "over least",
    "threadgroup accesses",
    "bank rounds",
    "barriers",
    "dispatches",
    "past the edges",
)


def is_emulated(run: Run, outcomes: Iterable[Outcome]) -> bool:
    """Return whether the run predicted Metal kernels."""
    return run.predicted and any(o.case.backend == "metal" for o in outcomes)


def emulated_words(run: Run, outcomes: Iterable[Outcome]) -> str:
    """Return the sentence of a page whose kernels were emulated; empty for other pages."""
    return EMULATED if is_emulated(run, outcomes) else ""


def assumptions() -> list[tuple[str, str]]:
    """Return what the model `apple-2` assumes, by name."""
    return [(f"Assumed: {name.lower()}", words) for name, words in ASSUMPTIONS]


def traffic_table(outcomes: Sequence[Outcome], shown: Outcome | None = None) -> dict[str, Any]:
    """Return the traffic of each config, and by buffer that of the config `shown` or of the first
    one; {} where none was counted."""
    counted = [(o, t) for o in outcomes if (t := o.traffic) is not None]
    if not counted:
        return {}
    first, traffic = next(((o, t) for o, t in counted if o is shown), counted[0])
    front = {id(o) for o in front_of(o for o, _ in counted if _is_right(o))}
    words = {id(o): "front" if id(o) in front else "dominated" for o, _ in counted if _is_right(o)}
    counted.sort(key=lambda each: id(each[0]) not in front)
    rows = [[*_row(o, words.get(id(o), "wrong"), traffic)] for o, traffic in counted]
    kept = [n for n in range(len(HEADS)) if any(row[n] for row in rows)]
    return {
        "heads": [HEADS[n] for n in kept],
        "rows": [[row[n] for n in kept] for row in rows],
        "name": first.case.label,
        "at": sizes_text(traffic.sizes, ", "),
        "buffers": _buffers(traffic),
    }


def _row(outcome: Outcome, by_count: str, traffic: CountedTraffic) -> list[str]:
    requested = sum(b.requested_bytes for b in traffic.buffers)
    unique = sum(b.unique for b in traffic.buffers)
    least = outcome.bytes if isinstance(outcome, Record) else 0
    return [
        outcome.case.label,
        by_count,
        sizes_text(traffic.sizes, " "),
        *(reading(n, "B") for n in (requested, unique, traffic.counted_bytes)),
        reading(traffic.bytes, "B"),
        f"{digits(traffic.bytes / least)}x" if least else "",
        *(reading(n, "") if n else "" for n in list(counts_of(outcome).values())[1:4]),
        str(traffic.dispatches),
        reading(traffic.edge_bytes, "B") if traffic.edge_bytes else "",
    ]


def _is_right(outcome: Outcome) -> bool:
    return isinstance(outcome, Record) or outcome.stage == "measure"


def _buffers(traffic: CountedTraffic) -> list[list[str]]:
    """Return the name of each buffer and its bytes: requested and unique, read and written, and in
    sectors."""
    return [
        [
            b.name,
            *(f"{n:,}" for n in (b.requested_read, b.unique_read)),
            *(f"{n:,}" for n in (b.requested_written, b.unique_written, 32 * b.sectors)),
        ]
        for b in traffic.buffers
    ]
