"""Each instruction waits for the result of the one before it."""

from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import threshold_rule

RULE = threshold_rule(
    "fixed latency",
    122,
    "{waiting} of all waiting is for results of arithmetic, and only {issue_active} of the issue "
    "slots are used.",
    above={"waiting": 0.4},
    below={"issue_active": 0.6},
    derived={"waiting": lambda m: m["stall_wait"] + m["stall_math_pipe_throttle"]},
    needs=("stall_wait", "stall_math_pipe_throttle", "issue_active"),
    evidence={
        "waiting": "waiting for arithmetic, share",
        "issue_active": "issue slots used, share",
    },
    advice="Compute independent chains side by side, so that one fills the wait of the other.",
    effort="medium",
    instructions=InstructionClass.ARITHMETIC_WAITS,
    yields_to=("at_ceiling",),
    source="planted kernels on an H200",
)
