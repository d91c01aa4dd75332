"""Warps of a program wait for one another."""

from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import threshold_rule

RULE = threshold_rule(
    "barriers",
    114,
    "{waiting} of all waiting is at barriers and for shared memory, and {exchange_share} of the "
    "instructions exchange values between threads.",
    above={"waiting": 0.4, "exchange_share": 0.2},
    derived={"waiting": lambda m: m["stall_barrier"] + m["stall_short_scoreboard"]},
    needs=("stall_barrier", "stall_short_scoreboard", "exchange_share"),
    evidence={
        "waiting": "waiting at barriers and for shared memory, share",
        "exchange_share": "barriers, shuffles and shared memory, share",
    },
    advice="Use fewer warps a row, and reduce once after the loop in place of within it.",
    effort="medium",
    instructions=InstructionClass.EXCHANGE_WAITS,
    yields_to=("at_ceiling", "spills", "bank_conflicts"),
    source="planted kernels on an H200",
)
