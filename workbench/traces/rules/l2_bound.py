"""The second-level cache holds the kernel."""

from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import threshold_rule

RULE = threshold_rule(
    "L2-bound",
    112,
    "L2 is {l2_throughput} busy, and DRAM {dram_throughput}.",
    above={"l2_throughput": 0.75},
    below={"dram_throughput": 0.6},
    needs=("l2_throughput",),
    evidence={"l2_throughput": "L2 throughput, share"},
    advice="Use larger tiles, or order the programs so that neighbours share their data.",
    effort="medium",
    instructions=InstructionClass.SECTORS,
    yields_to=("at_ceiling", "spills", "excess_traffic"),
    source="planted kernels on an H200",
)
