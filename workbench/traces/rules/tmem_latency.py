"""Loads from tensor memory are waited for one by one."""

from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import threshold_rule

RULE = threshold_rule(
    "tensor memory latency",
    119,
    "{tmem_load_samples} of the samples wait for loads from tensor memory (LDTM), and only "
    "{stall_not_selected} of all waiting is of warps that are ready.",
    above={"tmem_load_samples": 0.2},
    below={"stall_not_selected": 0.05},
    evidence={
        "tmem_load_samples": "samples waiting for tensor memory, share",
        "stall_not_selected": "ready and not selected, share",
    },
    advice="Load the next part of the accumulator before this one is converted and stored, so "
    "that the load overlaps the arithmetic.",
    effort="large",
    gain="tmem_load_samples",
    instructions=InstructionClass.TENSOR_MEMORY_WAITS,
    yields_to=("at_ceiling",),
    source="guide 3, task 3; the share of samples is the workbench's; tested on written samples of "
    "compiled code, never on a GPU",
)
