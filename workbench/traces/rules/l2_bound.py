"""The second-level cache holds the kernel."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, share


def evaluate(metrics: Mapping[str, float], limits: Mapping[str, float]) -> Diagnosis | None:
    """Return the diagnosis of a kernel whose L2 is busy while DRAM is not."""
    busy, dram = metrics["l2_throughput"], metrics.get("dram_throughput", 0.0)
    if busy < limits["l2"] or dram >= limits["dram"]:
        return None
    return Diagnosis(
        f"L2 is {percent(busy)} busy, and DRAM {percent(dram)}.",
        (share("L2 throughput, share", busy),),
        "Use larger tiles, or order the programs so that neighbours share their data.",
        "medium",
        instructions=InstructionClass.SECTORS,
    )


RULE = KernelRule(
    "L2-bound",
    112,
    ("l2_throughput",),
    evaluate,
    {"l2": 0.75, "dram": 0.6},
    yields_to=("at_ceiling", "spills", "excess_traffic"),
    source="planted kernels on an H200",
)
