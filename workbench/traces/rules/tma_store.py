"""One lane stores whole tiles by TMA, and the others wait for it."""

from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import threshold_rule

RULE = threshold_rule(
    "TMA store",
    118,
    "{tma_store_samples} of the samples stand at bulk stores by TMA and at the waits for them, "
    "which one lane of a warp issues.",
    above={"tma_store_samples": 0.2},
    evidence={"tma_store_samples": "samples at bulk stores, share"},
    advice="Store from registers where rows are wide enough (tl.store in place of a descriptor), "
    "or let the wait stand before the next store instead of behind this one.",
    effort="large",
    gain="tma_store_samples",
    instructions=InstructionClass.BULK_STORES,
    yields_to=("at_ceiling",),
    source="guide 3, task 2; a planted kernel on an H200",
)
