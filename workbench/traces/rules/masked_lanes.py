"""Loads and stores have most of their lanes masked off."""

from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, Values, count, part_of, share

LANES = 32


def evaluate(metrics: Values, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a kernel whose global loads and stores move few elements each."""
    lanes, without = metrics["memory_lanes"], metrics["masked_share"]
    if lanes > limits["lanes"] and without < limits["none"]:
        return None
    if metrics.get("copied_share", 0.0) > limits["copied"]:  # the lanes of most are not known
        return None
    return Diagnosis(
        f"{lanes:.1f} of {LANES} lanes are on in a global load or store, and {percent(without)} "
        "of these instructions have none on.",
        (
            count("active lanes in global loads and stores", lanes, "lanes"),
            share("global loads and stores without active lanes, share", without),
        ),
        "Choose a block nearer to the length of the row, or let a program take several rows.",
        "small",
        part_of(metrics, 1 - lanes / LANES),
        instructions=InstructionClass.MASKED_LANES,
    )


RULE = KernelRule(
    "masked lanes",
    117,
    ("memory_lanes", "masked_share"),
    evaluate,
    {"lanes": 16, "none": 0.3, "copied": 0.5},
    yields_to=("at_ceiling",),
    source="planted kernels on an H200",
)
