"""Kernels that only copy, cast or reorder take a part of the time."""

from workbench.data.units import percent
from workbench.traces.rules import Diagnosis, Rule, Values, count, share
from workbench.traces.trace_summary import DeviceSummary


def evaluate(summary: DeviceSummary, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a device that spends kernel time on copies and casts."""
    whole = summary.times.kernel_sum
    row = next((each for each in summary.classes if each.name == "copy or cast"), None)
    if row is None or not whole or row.total_ns < limits["time"] * whole:
        return None
    part = row.total_ns / whole
    return Diagnosis(
        f"Copies, casts and changes of layout take {percent(part)} of the kernel time in "
        f"{row.count} kernels.",
        (share("copy and cast kernels, share", part), count("copy and cast kernels", row.count)),
        "Fuse the cast into the kernel before or after it, and agree on one layout and dtype.",
        "medium",
        row.total_ns,
    )


RULE = Rule(
    "casts", 8, evaluate, {"time": 0.05}, source="guide 4, fusion; threshold of the workbench"
)
