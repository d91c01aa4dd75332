"""The kernel is at a ceiling of the device."""

from workbench.data.units import percent
from workbench.traces.rules import Diagnosis, KernelRule, Values, part_of, share


def evaluate(metrics: Values, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a kernel that memory or the matrix unit holds: nothing else would
    pay."""
    memory, compute = metrics["dram_throughput"], metrics["compute_throughput"]
    matrix = metrics.get("matrix_pipe", 0.0)
    if memory >= limits["ceiling"]:
        what, advice = f"DRAM is {percent(memory)} busy", "Move fewer bytes: fuse, or narrow types."
    elif min(matrix, compute) >= limits["ceiling"]:
        what = f"The matrix pipe is {percent(matrix)} busy, and the cores {percent(compute)}"
        advice = "Only another algorithm or a narrower type takes less time."
    else:
        return None
    return Diagnosis(
        f"{what}: the kernel is at its ceiling.",
        (share("DRAM throughput, share", memory), share("compute throughput, share", compute)),
        advice,
        "large",
        0.0 if part_of(metrics, 0.0) is not None else None,
    )


RULE = KernelRule(
    "at its ceiling",
    111,
    ("dram_throughput", "compute_throughput"),
    evaluate,
    {"ceiling": 0.8},
    yields_to=("excess_traffic",),
    source="planted kernels on an H200",
)
