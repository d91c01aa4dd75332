"""Registers are spilled to memory."""

from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import threshold_rule

RULE = threshold_rule(
    "spills",
    101,
    "{spill_share} of the instructions spill registers to memory or load them back.",
    above={"spill_share": 0.05},
    evidence={"spill_share": "spill instructions, share"},
    advice="Give a thread less to hold: a smaller tile, more warps, or fewer stages.",
    effort="small",
    gain="spill_share",
    instructions=InstructionClass.SPILLS,
    source="planted kernels on an H200",
)
