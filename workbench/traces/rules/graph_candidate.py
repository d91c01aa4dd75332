"""The same kernels are launched one by one again and again, and the device waits between them."""

from workbench.data.units import duration
from workbench.traces.rules import Diagnosis, Rule, Values, count, seconds
from workbench.traces.trace_summary import DeviceSummary


def evaluate(summary: DeviceSummary, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of repeated sequences: a graph leaves about 1 µs between two kernels."""
    results = []
    for repeat in summary.repeats:
        left = repeat.kernels * repeat.count * limits["step_ns"]
        if repeat.host_wait_ns and repeat.gap_ns > left:
            results.append((repeat.gap_ns - left, repeat))
    if not results:
        return None
    first = max(results, key=lambda each: each[0])[1]
    total = sum(gained for gained, _ in results)
    return Diagnosis(
        f"{first.kernels} kernels run {first.count} times in a row in the same order, with "
        f"{duration(first.gap_ns / 1e9)} between them; a graph would leave about 1 µs a kernel.",
        (
            count("kernels of the sequence", first.kernels),
            count("times in a row", first.count, "1"),
            seconds("idle between them", first.gap_ns),
            seconds("of it waiting for launches", first.host_wait_ns),
        ),
        "Capture the sequence in a graph: torch.cuda.graph, or torch.compile with "
        'mode="reduce-overhead".',
        "small",
        total,
    )


RULE = Rule(
    "graph candidate",
    6,
    evaluate,
    {"step_ns": 1000},
    is_host_rule=True,
    needs=("launches of the host",),
    source="guide 4, graphs; 1 µs a kernel of a graph: facts.md",
)
