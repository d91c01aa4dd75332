"""Arithmetic runs in fp64."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, part_of, share


def evaluate(metrics: Mapping[str, float], limits: Mapping[str, float]) -> Diagnosis | None:
    """Return the diagnosis of a kernel that keeps the fp64 pipe busy."""
    busy = metrics["fp64_pipe"]
    if busy < limits["pipe"]:
        return None
    return Diagnosis(
        f"The fp64 pipe is {percent(busy)} busy.",
        (share("fp64 pipe, share", busy),),
        "If the kernel is meant for a narrower type, look for a Python float or a cast that makes "
        "it fp64.",
        "small",
        part_of(metrics, busy),
        instructions=InstructionClass.FP64,
    )


RULE = KernelRule(
    "fp64",
    106,
    ("fp64_pipe",),
    evaluate,
    {"pipe": 0.15},
    source="planted kernels on an H200",
)
