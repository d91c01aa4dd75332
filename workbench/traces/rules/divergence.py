"""Lanes of a warp take different branches."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, part_of, share


def evaluate(metrics: Mapping[str, float], limits: Mapping[str, float]) -> Diagnosis | None:
    """Return the diagnosis of a kernel in whose warps many lanes are inactive."""
    lanes = metrics["lanes_active"]
    if lanes >= limits["lanes"]:
        return None
    return Diagnosis(
        f"{lanes:.1f} of 32 lanes are active in an instruction.",
        (share("inactive lanes, share", 1 - lanes / 32),),
        "Branch by warp instead of by lane, or let masks take the place of branches.",
        "medium",
        part_of(metrics, 1 - lanes / 32),
        instructions=InstructionClass.INACTIVE_LANES,
    )


RULE = KernelRule(
    "divergence",
    123,
    ("lanes_active",),
    evaluate,
    {"lanes": 24},
    yields_to=("at_ceiling",),
    source="guide 3, lanes; planted kernels on an H200",
)
