"""Few warps are resident, and nothing is busy."""

from workbench.data.units import percent
from workbench.traces.rules import Diagnosis, KernelRule, Values, share

LIMITED = "Use fewer registers or less shared memory a program, so that more warps fit."
# More fit than are there: some cores have begun late, ended early, or have fewer programs.
UNEVEN = (
    "Give the kernel more programs, or each of them the same work: the launch allows more warps "
    "than were there on average, since programs begin late or end early."
)


def evaluate(metrics: Values, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a kernel with few warps while no unit is busy. Few warps are not a
    fault where a unit is."""
    most, achieved = metrics["occupancy_theoretical"], metrics["occupancy"]
    units = ("dram_throughput", "l2_throughput", "compute_throughput", "memory_throughput")
    if max(metrics.get(unit, 0.0) for unit in units) >= limits["ceiling"]:
        return None
    if most >= limits["theoretical"] and most - achieved <= limits["below"]:
        return None
    return Diagnosis(
        f"{percent(achieved)} of the warps that fit are resident, of {percent(most)} that the "
        "launch allows, and no unit is busy.",
        (share("occupancy, share", achieved), share("theoretical occupancy, share", most)),
        LIMITED if most < limits["theoretical"] else UNEVEN,
        "medium",
    )


RULE = KernelRule(
    "occupancy",
    121,
    ("occupancy_theoretical", "occupancy"),
    evaluate,
    {"theoretical": 0.5, "below": 0.1, "ceiling": 0.6},
    yields_to=("at_ceiling", "spills", "small_grid"),
    source="planted kernels on an H200",
)
