"""Each load waits for the one before it."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, share


def evaluate(metrics: Mapping[str, float], limits: Mapping[str, float]) -> Diagnosis | None:
    """Return the diagnosis of a kernel that waits for memory without using it."""
    stall, issue = metrics["stall_long_scoreboard"], metrics["issue_active"]
    dram = metrics["dram_throughput"]
    if stall < limits["stall"] or issue >= limits["issue"] or dram >= limits["dram"]:
        return None
    return Diagnosis(
        f"{percent(stall)} of all waiting is for loads, while DRAM is only {percent(dram)} busy.",
        (share("waiting for loads, share", stall), share("DRAM throughput, share", dram)),
        "Make loads independent of each other, and fetch ahead.",
        "medium",
        instructions=InstructionClass.LOAD_WAITS,
    )


RULE = KernelRule(
    "dependent loads",
    120,
    ("stall_long_scoreboard", "issue_active", "dram_throughput"),
    evaluate,
    {"stall": 0.5, "issue": 0.6, "dram": 0.4},
    yields_to=("at_ceiling", "spills", "uncoalesced"),
    source="planted kernels on an H200",
)
