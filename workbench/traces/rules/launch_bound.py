"""The device waits for launches: kernels are shorter than the time to launch one."""

from statistics import median

from workbench.data.units import duration, percent
from workbench.traces.rules import Diagnosis, Rule, Values, seconds, share
from workbench.traces.trace_summary import DeviceSummary


def evaluate(summary: DeviceSummary, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a device that idles most of the time for launches of short
    kernels."""
    times, table = summary.times, summary.trace.activities
    lengths = [table.length(i) for i in table.kernels(times.order)]
    idle = times.idle()
    whole = sum(idle.values())
    if not lengths or not whole or times.utilisation >= limits["utilisation"]:
        return None
    typical = median(lengths)
    waits = summary.launch_wait
    if waits < limits["host_waits"] * whole or typical >= limits["kernel_ns"]:
        return None
    return Diagnosis(
        f"The device had work in {percent(times.utilisation)} of the window and waited for "
        f"launches in {percent(waits / times.window)} of it; the median kernel takes "
        f"{duration(typical / 1e9)}.",
        (
            share("GPU utilisation", times.utilisation, "> 80 %", False),
            share("waiting for launches, share", waits / times.window),
            seconds("median kernel", typical),
        ),
        "Launch fewer and larger kernels: capture the step in a graph, fuse, or batch.",
        "medium",
        waits,
    )


RULE = Rule(
    "launch-bound",
    1,
    evaluate,
    {"utilisation": 0.3, "host_waits": 0.5, "kernel_ns": 10_000},
    is_host_rule=True,
    needs=("launches of the host",),
    source="guide 1, scenario 1: utilisation below 30 % is bad",
)
