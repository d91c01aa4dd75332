"""One kernel takes very different times from launch to launch."""

from statistics import fmean, median, pstdev

from workbench.data.units import duration, percent
from workbench.traces.rules import Diagnosis, Rule, Values, seconds, share
from workbench.traces.trace_summary import DeviceSummary


def evaluate(summary: DeviceSummary, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of the kernel whose times vary and cost most above its median. Launches
    of other sizes vary, too: the file seldom tells sizes."""
    times, table = summary.times, summary.trace.activities
    groups: dict[tuple[int, int], list[int]] = {}
    for i in table.kernels(times.order):
        key = table.name_numbers[i], table.geometry_numbers[i]
        groups.setdefault(key, []).append(table.length(i))
    results = []
    for (name, _), spent in groups.items():
        if len(spent) <= limits["launches"] or sum(spent) < limits["time"] * times.kernel_sum:
            continue
        if pstdev(spent) > limits["coefficient"] * fmean(spent):
            results.append((sum(spent) - len(spent) * median(spent), name, spent))
    if not results:
        return None
    gain, number, spent = max(results, key=lambda each: each[0])
    name = table.names.entries[number]
    return Diagnosis(
        f"{name[:80]} takes {duration(min(spent) / 1e9)} to {duration(max(spent) / 1e9)} with one "
        f"grid, {len(spent)} launches; its median is {duration(median(spent) / 1e9)}.",
        (
            seconds("median", median(spent)),
            seconds("longest", max(spent)),
            share("share of kernel time", sum(spent) / times.kernel_sum),
        ),
        "Look for contention: other work on the device, atomics on one address, or data that "
        f"differs from launch to launch. At its median it would save {percent(gain / times.window)}"
        " of the window.",
        "medium",
        max(gain, 0.0),
    )


RULE = Rule(
    "variation",
    9,
    evaluate,
    {"coefficient": 1.0, "launches": 10, "time": 0.05},
    source="threshold of the workbench",
)
