"""A block needs more shared memory than the device gives it."""

from workbench.data.code_facts import CodeFacts
from workbench.traces.rules import CodeRule, Diagnosis, Values, count


def evaluate(facts: CodeFacts, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a kernel that cannot be launched for its shared memory."""
    needed, most = facts.shared_bytes or 0, facts.shared_limit or 0
    if needed <= limits["share"] * most:
        return None
    return Diagnosis(
        f"A block needs {needed / 1024:.4g} KiB of shared memory, and {facts.target} gives it "
        f"{most / 1024:.4g} KiB: it cannot be launched.",
        (
            count("shared memory of a block", needed, "B", kind="computed"),
            count("shared memory a block may have", most, "B", kind="computed"),
        ),
        "Use fewer stages or a smaller tile.",
        "small",
    )


RULE = CodeRule(
    "shared memory over the limit",
    200,
    ("shared_bytes", "shared_limit"),
    evaluate,
    {"share": 1.0},
    source="limits of the device file",
)
