"""Each instruction waits for the result of the one before it."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, share


def evaluate(metrics: Mapping[str, float], limits: Mapping[str, float]) -> Diagnosis | None:
    """Return the diagnosis of a kernel that is one chain of arithmetic."""
    stall = metrics["stall_wait"] + metrics["stall_math_pipe_throttle"]
    issue = metrics["issue_active"]
    if stall < limits["stall"] or issue >= limits["issue"]:
        return None
    return Diagnosis(
        f"{percent(stall)} of all waiting is for results of arithmetic, and only "
        f"{percent(issue)} of the issue slots are used.",
        (share("waiting for arithmetic, share", stall), share("issue slots used, share", issue)),
        "Compute independent chains side by side, so that one fills the wait of the other.",
        "medium",
        instructions=InstructionClass.ARITHMETIC_WAITS,
    )


RULE = KernelRule(
    "fixed latency",
    122,
    ("stall_wait", "stall_math_pipe_throttle", "issue_active"),
    evaluate,
    {"stall": 0.4, "issue": 0.6},
    yields_to=("at_ceiling",),
    source="planted kernels on an H200",
)
