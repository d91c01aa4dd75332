"""The device waits for a host that is busy with something else than launching."""

from workbench.data.units import duration, percent
from workbench.traces.rules import Diagnosis, Rule, Values, seconds, share
from workbench.traces.trace_summary import DeviceSummary


def evaluate(summary: DeviceSummary, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a device that idles for a part of the window because nothing was
    launched, and the host's work in the longest of these gaps."""
    times = summary.times
    waits = summary.launch_wait
    if times.utilisation >= limits["utilisation"] or waits < limits["waits"] * times.window:
        return None
    longest = next((each for each in summary.gaps if each.gap.cause == "host wait"), None)
    in_it = ""
    if longest is not None:
        work = f"; the host was in {longest.host[:80]}" if longest.host else ""
        in_it = f" The longest of these gaps takes {duration(longest.gap.duration / 1e9)}{work}."
    return Diagnosis(
        f"The device waited in {percent(waits / times.window)} of the window for work that was "
        f"launched only then.{in_it}",
        (
            share("GPU utilisation", times.utilisation, "> 80 %", False),
            share("waiting for launches, share", waits / times.window),
            *([seconds("longest gap", longest.gap.duration)] if longest else []),
        ),
        "Look at the host's work in the longest gaps: move it out of the step, do it ahead on "
        "another thread, or launch more at once.",
        "medium",
        waits,
    )


RULE = Rule(
    "host-bound",
    4,
    evaluate,
    {"utilisation": 0.8, "waits": 0.2},
    is_host_rule=True,
    yields_to=("launch_bound",),
    needs=("launches of the host",),
    source="guide 1, scenario 1; threshold of the workbench",
)
