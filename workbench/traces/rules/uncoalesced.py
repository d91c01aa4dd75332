"""Threads of a warp access addresses that lie apart."""

from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import threshold_rule

RULE = threshold_rule(
    "uncoalesced",
    105,
    "{excess_sectors} of the sectors that global accesses move are not needed, and a memory level "
    "is {busiest} busy.",
    above={"excess_sectors": 0.3, "busiest": 0.6},
    below={"masked_share": 0.3},  # short rows: masked_lanes names them
    derived={"busiest": lambda m: max(m.get(f"{n}_throughput", 0.0) for n in ("l2", "l1", "dram"))},
    needs=("excess_sectors",),
    evidence={"excess_sectors": "excess sectors, share", "busiest": "busiest memory level, share"},
    advice="Let neighbouring threads access neighbouring addresses: the order of the axes, the "
    "layout, tl.multiple_of and tl.max_contiguous.",
    effort="medium",
    gain="excess_sectors",
    instructions=InstructionClass.EXCESS_SECTORS,
    yields_to=("narrow_loads",),
    source="planted kernels on an H200",
)
