"""Loads from tensor memory are waited for one by one."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, part_of, share


def evaluate(metrics: Mapping[str, float], limits: Mapping[str, float]) -> Diagnosis | None:
    """Return the diagnosis of a kernel whose warps wait for tensor memory while no other warp is
    ready."""
    part, ready = metrics["tmem_load_samples"], metrics["stall_not_selected"]
    if part < limits["samples"] or ready >= limits["not_selected"]:
        return None
    return Diagnosis(
        f"{percent(part)} of the samples wait for loads from tensor memory (LDTM), and only "
        f"{percent(ready)} of all waiting is of warps that are ready.",
        (
            share("samples waiting for tensor memory, share", part),
            share("ready and not selected, share", ready),
        ),
        "Load the next part of the accumulator before this one is converted and stored, so that "
        "the load runs beside the arithmetic.",
        "large",
        part_of(metrics, part),
        instructions=InstructionClass.TENSOR_MEMORY_WAITS,
    )


RULE = KernelRule(
    "tensor memory latency",
    119,
    ("tmem_load_samples", "stall_not_selected"),
    evaluate,
    {"samples": 0.2, "not_selected": 0.05},
    yields_to=("at_ceiling",),
    source="guide 3, task 3; the share of samples is the workbench's; tested on written samples of "
    "compiled code, never on a GPU",
)
