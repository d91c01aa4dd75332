"""Groups of warps with different work share code."""

from workbench.data.code_facts import CodeFacts
from workbench.data.units import amount
from workbench.traces.rules import CodeRule, Diagnosis, Values, count


def evaluate(facts: CodeFacts, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a warp-specialised kernel whose partitions have blocks in common."""
    overlaps = facts.overlaps or ()
    shared = sum(blocks for _, _, blocks in overlaps)
    if shared < limits["blocks"]:
        return None
    pairs = "; ".join(f"{a} and {b} share {amount(n, 'block')}" for a, b, n in overlaps)
    return Diagnosis(
        f"Partitions of the warps overlap: {pairs}.",
        (count("shared blocks", shared, "blocks", kind="computed"),),
        "Give each partition its own code: no branch or function that two of them reach.",
        "large",
    )


RULE = CodeRule(
    "partitions overlap",
    220,
    ("overlaps",),
    evaluate,
    {"blocks": 1},
    source="guide 3: three subgraphs that are disjoint",
)
