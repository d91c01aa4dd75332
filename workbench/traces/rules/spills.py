"""Registers are spilled to memory."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, part_of, share


def evaluate(metrics: Mapping[str, float], limits: Mapping[str, float]) -> Diagnosis | None:
    """Return the diagnosis of a kernel many of whose instructions spill registers."""
    part = metrics["spill_share"]
    if part < limits["share"]:
        return None
    return Diagnosis(
        f"{percent(part)} of the instructions spill registers to memory or load them back.",
        (share("spill instructions, share", part),),
        "Give a thread less to hold: a smaller tile, more warps, or fewer stages.",
        "small",
        part_of(metrics, part),
        instructions=InstructionClass.SPILLS,
    )


RULE = KernelRule(
    "spills",
    101,
    ("spill_share",),
    evaluate,
    {"share": 0.05},
    source="planted kernels on an H200",
)
