"""Accesses to shared memory collide in its banks."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, part_of, share


def evaluate(metrics: Mapping[str, float], limits: Mapping[str, float]) -> Diagnosis | None:
    """Return the diagnosis of a kernel whose shared memory is busy with conflicts."""
    part, busy = metrics["bank_conflicts"], metrics["l1_throughput"]
    if part < limits["share"] or busy < limits["l1"]:
        return None
    return Diagnosis(
        f"{percent(part)} of the wavefronts of shared memory are bank conflicts, and L1 is "
        f"{percent(busy)} busy.",
        (share("bank conflicts, share", part), share("L1 throughput, share", busy)),
        "Swizzle or pad the shared layout, or access it along its rows.",
        "medium",
        part_of(metrics, part),
        instructions=InstructionClass.CONFLICTS,
    )


RULE = KernelRule(
    "bank conflicts",
    104,
    ("bank_conflicts", "l1_throughput"),
    evaluate,
    {"share": 0.3, "l1": 0.6},
    source="planted kernels on an H200",
)
