"""Copies hold the device up: they run alone, or there are many small ones."""

from workbench.data.units import percent, quantity
from workbench.traces.rules import Diagnosis, Rule, Values, count, share
from workbench.traces.trace import ActivityKind
from workbench.traces.trace_summary import DeviceSummary


def evaluate(summary: DeviceSummary, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a device on which copies run without a kernel beside them, or that
    gets many small copies a step."""
    times, table = summary.times, summary.trace.activities
    exposed, idle = times.copies_exposed.length, summary.copying_idle
    window = times.window or 1
    part = exposed / window
    copies = [i for i in times.order if table.kinds[i] == ActivityKind.COPY]
    small = sum(0 <= table.bytes[i] < limits["small_bytes"] for i in copies)
    steps = max((row.count for row in summary.ranges if "#" in row.name), default=1)
    pageable = sum("pageable" in table.name(i).lower() for i in copies)
    if (exposed + idle) / window <= limits["exposed"] and small / steps <= limits["small_copies"]:
        return None
    moved = (
        "" if times.copied_bytes is None else f" They moved {quantity(times.copied_bytes, 'B')}."
    )
    kind = f" {pageable} of them use pageable memory." if pageable else ""
    waited = percent(idle / window)
    host = f" In another {waited} the device was idle because the host was in a copy."
    return Diagnosis(
        f"Copies overlapped no kernel in {percent(part)} of the window: "
        f"{times.copy_count} copies, {small} of them below 64 kB.{moved}{kind}"
        f"{host if idle else ''}",
        (
            share("copies, exposed, share", part, "< 5 %", part < 0.05),
            share("idle for copies of the host, share", idle / window),
            count("copies", times.copy_count, "copies"),
            count("copies below 64 kB", small, "copies"),
        ),
        "Keep the data on the device; else pin host memory, batch small copies, and overlap "
        "copies with kernels on another stream.",
        "medium",
        exposed + idle,
    )


RULE = Rule(
    "transfer-bound",
    2,
    evaluate,
    {"exposed": 0.05, "small_bytes": 65536, "small_copies": 100},
    source="guide 1, scenario 2",
)
