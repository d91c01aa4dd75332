"""What the Spec declares is not what the kernel does."""

from collections.abc import Iterator

from workbench.data.record import Evidence
from workbench.data.units import reading
from workbench.traces.rules import Diagnosis, KernelRule, Values


def evaluate(metrics: Values, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a kernel whose counters contradict its Spec. More bytes than the
    least are not a contradiction: spills, unneeded sectors and lost reuse explain them. Fewer bytes
    read than all inputs have, with caches that were flushed, nothing explains; nor a count of the
    matrix unit's operations that is another one, as these are exact."""
    pairs = list(_apart(metrics, limits["apart"]))
    if not pairs:
        return None
    parts = [
        f"{what} {_text(counted)} where the Spec declares {_text(declared)}"
        for what, counted, declared in pairs
    ]
    return Diagnosis(
        f"The kernel {', and '.join(parts)}.",
        tuple(each for _, counted, declared in pairs for each in (counted, declared)),
        "Correct `flops`, inputs or outputs of the Spec, as roofs and shares of them follow from "
        "these; or find why the kernel does other work: padding, recomputation, split precision.",
        "small",
    )


def _text(each: Evidence) -> str:
    return reading(each.value, each.unit)


def _apart(metrics: Values, limit: float) -> Iterator[tuple[str, Evidence, Evidence]]:
    """Yield what is counted and declared where both are further apart than the limit."""
    read, least = metrics["dram_read_bytes"], metrics["least_bytes_read"]
    if read < (1 - limit) * least:
        yield (
            "reads",
            Evidence("DRAM bytes read", read, "B", "profiled"),
            Evidence("bytes of the inputs", least, "B", "computed"),
        )
    matrix, flop = metrics["matrix_flop"], metrics["declared_flop"]
    if not matrix:
        return
    # what is declared may be computed outside of the matrix unit, too: without that count, fewer
    # operations of the matrix unit contradict nothing
    most = matrix + metrics["vector_flop"] if "vector_flop" in metrics else flop
    if matrix > (1 + limit) * flop or most < (1 - limit) * flop:
        yield (
            "computes",
            Evidence("FLOP of the matrix unit", matrix, "FLOP", "profiled"),
            Evidence("declared FLOP", flop, "FLOP", "computed"),
        )


RULE = KernelRule(
    "declared work",
    125,
    ("least_bytes_read", "declared_flop", "dram_read_bytes", "matrix_flop"),
    evaluate,
    {"apart": 0.25},
    source="tested on stored counters of an add and a product on an H200, with right and wrong "
    "declared work",
    remark=True,
    covers_calls=True,
)
