"""Most loads and stores that ran move one or two bytes a thread."""

from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, Values, part_of, share


def evaluate(metrics: Values, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a kernel that accesses global memory a byte or two at a time, while
    DRAM is not at its ceiling."""
    part = metrics["narrow_share"]
    levels = {name: metrics.get(f"{name}_throughput", 0.0) for name in ("l1", "l2", "dram")}
    if part < limits["share"] or metrics["excess_sectors"] >= limits["excess"]:
        return None
    if levels["dram"] >= limits["dram"] or max(levels.values()) < limits["unit"]:
        return None
    return Diagnosis(
        f"{percent(part)} of the loads and stores of global memory that ran move at most 2 bytes a "
        f"thread, of 16 that one can move, and DRAM is only {percent(levels['dram'])} busy.",
        (
            share("narrow accesses, share", part),
            share("DRAM throughput, share", levels["dram"]),
            share("busiest memory level, share", max(levels.values())),
        ),
        "Let a thread access consecutive elements: tl.multiple_of and tl.max_contiguous where "
        "offsets are computed, strides and pointers divisible by 16, or padded rows.",
        "medium",
        part_of(metrics, part * (1 - levels["dram"])),
        instructions=InstructionClass.NARROW,
    )


RULE = KernelRule(
    "narrow loads",
    103,
    ("narrow_share", "excess_sectors", "dram_throughput"),
    evaluate,
    {"share": 0.5, "excess": 0.6, "dram": 0.8, "unit": 0.4},
    source="planted kernels on an H200",
)
