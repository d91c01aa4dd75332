"""Warps of a program wait for one another."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, share


def evaluate(metrics: Mapping[str, float], limits: Mapping[str, float]) -> Diagnosis | None:
    """Return the diagnosis of a kernel whose warps exchange values and wait at barriers."""
    waiting = metrics["stall_barrier"] + metrics["stall_short_scoreboard"]
    part = metrics["exchange_share"]
    if waiting < limits["stall"] or part < limits["exchange"]:
        return None
    return Diagnosis(
        f"{percent(waiting)} of all waiting is at barriers and for shared memory, and "
        f"{percent(part)} of the instructions exchange values between threads.",
        (
            share("waiting at barriers and for shared memory, share", waiting),
            share("barriers, shuffles and shared memory, share", part),
        ),
        "Use fewer warps a row, and reduce once after the loop in place of within it.",
        "medium",
        instructions=InstructionClass.EXCHANGE_WAITS,
    )


RULE = KernelRule(
    "barriers",
    114,
    ("stall_barrier", "stall_short_scoreboard", "exchange_share"),
    evaluate,
    {"stall": 0.4, "exchange": 0.2},
    yields_to=("at_ceiling", "spills", "bank_conflicts"),
    source="planted kernels on an H200",
)
