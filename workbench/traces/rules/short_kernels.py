"""Most kernels are short and together hold much of the time: they could be fused."""

from workbench.data.units import percent
from workbench.traces.rules import Diagnosis, Rule, Values, count, share
from workbench.traces.trace_summary import DeviceSummary


def evaluate(summary: DeviceSummary, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a device most of whose kernels are below 10 µs. The gain of fusing is
    not known from a trace."""
    times, table = summary.times, summary.trace.activities
    lengths = [table.length(i) for i in table.kernels(times.order)]
    short = [length for length in lengths if length < limits["kernel_ns"]]
    if not lengths or len(short) < limits["count"] * len(lengths):
        return None
    part = sum(short) / (sum(lengths) or 1)
    if part < limits["time"]:
        return None
    return Diagnosis(
        f"{percent(len(short) / len(lengths))} of the kernels take less than 10 µs, and they hold "
        f"{percent(part)} of the kernel time.",
        (count("kernels below 10 µs", len(short)), share("share of kernel time", part)),
        "Fuse neighbouring kernels, so that what lies between them stays in registers.",
        "large",
    )


RULE = Rule(
    "short kernels",
    7,
    evaluate,
    {"kernel_ns": 10_000, "count": 0.5, "time": 0.2},
    source="guide 4, fusion; threshold of the workbench",
)
