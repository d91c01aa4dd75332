"""Accesses to shared memory collide in its banks."""

from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import threshold_rule

RULE = threshold_rule(
    "bank conflicts",
    104,
    "{bank_conflicts} of the wavefronts of shared memory are bank conflicts, and L1 is "
    "{l1_throughput} busy.",
    above={"bank_conflicts": 0.3, "l1_throughput": 0.6},
    evidence={"bank_conflicts": "bank conflicts, share", "l1_throughput": "L1 throughput, share"},
    advice="Swizzle or pad the shared layout, or access it along its rows.",
    effort="medium",
    gain="bank_conflicts",
    instructions=InstructionClass.CONFLICTS,
    source="planted kernels on an H200",
)
