"""The device is busy: kernels hold the time, and the largest of them are to be profiled."""

from workbench.data.units import percent
from workbench.traces.rules import Diagnosis, Rule, Values, share
from workbench.traces.trace_summary import DeviceSummary


def evaluate(summary: DeviceSummary, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a device whose time goes into kernels. A trace does not tell how near
    to their limits they are, so no gain is stated."""
    times, rows = summary.times, summary.rows
    if times.utilisation <= limits["utilisation"] or not rows or not times.kernel_sum:
        return None
    first = rows[: int(limits["kernels"])]
    held = sum(row.total_ns for row in first) / times.kernel_sum
    names = ", ".join(row.name[:60] for row in first)
    return Diagnosis(
        f"The device had work in {percent(times.utilisation)} of the window, so the time is in "
        f"the kernels, {percent(held)} of it in {names}.",
        (
            share("GPU utilisation", times.utilisation, "> 80 %", True),
            *(share(f"{row.name[:60]}, share", row.total_ns / times.kernel_sum) for row in first),
        ),
        "Profile these kernels: a trace does not tell how near to the roofline they are.",
        "large",
    )


RULE = Rule(
    "kernels", 5, evaluate, {"utilisation": 0.8, "kernels": 3}, source="guide 1, scenario 3"
)
