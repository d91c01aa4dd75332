"""Lanes of a warp take different branches."""

from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import threshold_rule

RULE = threshold_rule(
    "divergence",
    123,
    "{lanes_active:.1f} of 32 lanes are active in an instruction.",
    below={"lanes_active": 24},
    derived={"inactive": lambda m: 1 - m["lanes_active"] / 32},
    evidence={"inactive": "inactive lanes, share"},
    advice="Branch by warp instead of by lane, or let masks take the place of branches.",
    effort="medium",
    gain="inactive",
    instructions=InstructionClass.INACTIVE_LANES,
    yields_to=("at_ceiling",),
    source="guide 3, lanes; planted kernels on an H200",
)
