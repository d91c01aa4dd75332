"""Written lines that are still in L2 when the launch ends are missing from the bytes of DRAM."""

from workbench.data.record import Evidence
from workbench.data.units import percent, reading
from workbench.traces.rules import Diagnosis, KernelRule, Values


def evaluate(metrics: Values, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a kernel whose outputs DRAM has received in part: what is missing is
    over a share of the least bytes and fits into L2. A cache writes a line back when it needs the
    place, which for the last lines is after the launch, where counters no longer count."""
    least = metrics["least_bytes"] - metrics["least_bytes_read"]
    written = metrics["dram_written_bytes"]
    missing = least - written
    if missing <= limits["apart"] * metrics["least_bytes"] or missing > limits["cache"]:
        return None
    return Diagnosis(
        f"DRAM receives {reading(written, 'B')} of the {reading(least, 'B')} that the outputs "
        f"have: the other {reading(missing, 'B')} are still in L2 when the launch ends. So the "
        f"DRAM bytes of this launch are {percent(missing / metrics['least_bytes'])} of the least "
        "bytes too few.",
        (
            Evidence("DRAM bytes written", written, "B", "profiled"),
            Evidence("bytes of the outputs", least, "B", "computed"),
        ),
        "Compare the bytes that are read, or profile outputs far larger than L2; the time without "
        "a profiler is of calls that follow one another, and has all writes in it.",
        "small",
    )


RULE = KernelRule(
    "deferred writes",
    126,
    ("least_bytes", "least_bytes_read", "dram_written_bytes"),
    evaluate,
    {"apart": 0.03, "cache": 128 * 2**20},  # cache: the largest L2 of a device that is named
    source="copy, softmax, rms_norm and triad on an H200: reads within 0.01 % of the least bytes, "
    "writes 18 to 27 MB short in all of them",
    remark=True,
    covers_calls=True,
)
