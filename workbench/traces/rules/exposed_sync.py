"""The host waits for the device while the device has nothing to do."""

from workbench.data.intervals import intersection
from workbench.data.record import group_by
from workbench.data.units import duration, percent
from workbench.traces.rules import Diagnosis, Rule, Values, seconds, share
from workbench.traces.trace import ActivityKind
from workbench.traces.trace_summary import DeviceSummary


def evaluate(summary: DeviceSummary, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a window in which waits of the host leave the device without queued
    work."""
    times = summary.times
    exposed = times.sync_unqueued
    part = exposed.length / times.window if times.window else 0.0
    if part <= limits["exposed"]:
        return None
    sites = _sites(summary)
    most = f" Most of it in {sites[0][0]}." if sites else ""
    return Diagnosis(
        f"The host waited while the device had no work queued in {percent(part)} of the window, "
        f"{duration(exposed.length / 1e9)}.{most}",
        (
            share("synchronisation, nothing queued, share", part, "< 5 %", False),
            share("synchronisation, wall, share", times.sync.length / times.window),
            *(seconds(f"exposed in {name}", spent) for name, spent in sites[:3]),
        ),
        "Keep the value on the device and launch on: no .item(), .cpu() or synchronize() inside "
        "the step.",
        "small",
        exposed.length,
    )


def _sites(summary: DeviceSummary) -> list[tuple[str, int]]:
    """Return the calls that waited while the device was idle, with the exposed ns of each."""
    table, exposed = summary.trace.activities, summary.times.sync_unqueued
    waits = [i for i in table.select(ActivityKind.SYNC) if summary.times.is_of(table, i)]
    spent = {
        name: intersection(table.union(each), exposed).length
        for name, each in group_by(waits, table.name).items()
    }
    return sorted(((n, s) for n, s in spent.items() if s), key=lambda each: -each[1])


RULE = Rule(
    "synchronisation",
    3,
    evaluate,
    {"exposed": 0.05},
    needs=("launches of the host",),
    source="guides 1 and 4: synchronisation below 5 %",
)
