"""Arithmetic runs in fp64."""

from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import threshold_rule

RULE = threshold_rule(
    "fp64",
    106,
    "The fp64 pipe is {fp64_pipe} busy.",
    above={"fp64_pipe": 0.15},
    evidence={"fp64_pipe": "fp64 pipe, share"},
    advice="If the kernel is meant for a narrower type, look for a Python float or a cast that "
    "makes it fp64.",
    effort="small",
    gain="fp64_pipe",
    instructions=InstructionClass.FP64,
    source="planted kernels on an H200",
)
