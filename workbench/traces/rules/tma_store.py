"""One lane stores whole tiles by TMA, and the others wait for it."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, part_of, share


def evaluate(metrics: Mapping[str, float], limits: Mapping[str, float]) -> Diagnosis | None:
    """Return the diagnosis of a kernel that spends its time around bulk stores."""
    part = metrics["tma_store_samples"]
    if part < limits["samples"]:
        return None
    return Diagnosis(
        f"{percent(part)} of the samples stand at bulk stores by TMA and at the waits for them, "
        "which one lane of a warp issues.",
        (share("samples at bulk stores, share", part),),
        "Store from registers where rows are wide enough (tl.store in place of a descriptor), or "
        "let the wait stand before the next store instead of behind this one.",
        "large",
        part_of(metrics, part),
        instructions=InstructionClass.BULK_STORES,
    )


RULE = KernelRule(
    "TMA store",
    118,
    ("tma_store_samples",),
    evaluate,
    {"samples": 0.2},
    yields_to=("at_ceiling",),
    source="guide 3, task 2; a planted kernel on an H200",
)
