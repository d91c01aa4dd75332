"""The last wave of programs leaves cores idle."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.data.units import percent
from workbench.traces.rules import Diagnosis, KernelRule, part_of, share


def evaluate(metrics: Mapping[str, float], limits: Mapping[str, float]) -> Diagnosis | None:
    """Return the diagnosis of a launch whose last wave is mostly empty."""
    waves, empty = metrics["waves"], metrics["empty_places"]
    if waves < limits["waves"] or empty < limits["empty"]:
        return None
    return Diagnosis(
        f"The programs make {waves:.2f} waves, and {percent(empty)} of their places stay empty.",
        (share("empty places, share", empty),),
        "Make the kernel persistent, or choose a tile whose programs fill their waves.",
        "medium",
        part_of(metrics, empty),
    )


RULE = KernelRule(
    "tail",
    116,
    ("waves", "empty_places"),
    evaluate,
    {"waves": 1.0, "empty": 0.15},
    yields_to=("at_ceiling",),
    source="planted kernels on an H200",
)
