"""Each load waits for the one before it."""

from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import threshold_rule

RULE = threshold_rule(
    "dependent loads",
    120,
    "{stall_long_scoreboard} of all waiting is for loads, while DRAM is only {dram_throughput} "
    "busy.",
    above={"stall_long_scoreboard": 0.5},
    below={"issue_active": 0.6, "dram_throughput": 0.4},
    evidence={
        "stall_long_scoreboard": "waiting for loads, share",
        "dram_throughput": "DRAM throughput, share",
    },
    advice="Make loads independent of each other, and fetch ahead.",
    effort="medium",
    instructions=InstructionClass.LOAD_WAITS,
    yields_to=("at_ceiling", "spills", "uncoalesced"),
    source="planted kernels on an H200",
)
