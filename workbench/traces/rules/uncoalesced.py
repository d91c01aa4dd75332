"""Threads of a warp access addresses that lie apart."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, part_of, share


def evaluate(metrics: Mapping[str, float], limits: Mapping[str, float]) -> Diagnosis | None:
    """Return the diagnosis of a kernel that moves many sectors more than its accesses need, where
    a memory level is busy."""
    part = metrics["excess_sectors"]
    busiest = max(metrics.get(f"{unit}_throughput", 0.0) for unit in ("l2", "l1", "dram"))
    if part < limits["excess"] or busiest < limits["unit"]:
        return None
    if metrics.get("masked_share", 0.0) >= limits["masked"]:  # short rows: masked_lanes names them
        return None
    return Diagnosis(
        f"{percent(part)} of the sectors that global accesses move are not needed, and a memory "
        f"level is {percent(busiest)} busy.",
        (share("excess sectors, share", part), share("busiest memory level, share", busiest)),
        "Let neighbouring threads access neighbouring addresses: the order of the axes, the "
        "layout, tl.multiple_of and tl.max_contiguous.",
        "medium",
        part_of(metrics, part),
        instructions=InstructionClass.EXCESS_SECTORS,
    )


RULE = KernelRule(
    "uncoalesced",
    105,
    ("excess_sectors",),
    evaluate,
    {"excess": 0.3, "unit": 0.6, "masked": 0.3},
    yields_to=("narrow_loads",),
    source="planted kernels on an H200",
)
