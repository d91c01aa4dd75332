"""A product is computed without the matrix unit."""

from workbench.data.code_facts import CodeFacts
from workbench.traces.rules import CodeRule, Diagnosis, Values, instruction_count

WIDE = (
    "fp32 runs on the matrix unit as TF32 (input_precision='tf32') if that is exact enough, or in "
    "bf16 parts that keep its accuracy ('bf16x6')."
)
NARROW = "Use tl.dot with a dtype and a shape of the matrix unit: 16 or more along each axis."


def evaluate(facts: CodeFacts, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a product whose code has no matrix instruction."""
    if not facts.product or facts.matrix >= limits["instructions"]:
        return None
    return Diagnosis(
        f"{facts.product}, but its code has no matrix instruction.",
        (
            instruction_count("matrix instructions", facts.matrix),
            instruction_count(
                "other floating-point instructions in hot code", facts.arithmetic.count
            ),
        ),
        WIDE if facts.dtype == "fp32" else NARROW,
        "medium",
        places=facts.arithmetic.places,
    )


RULE = CodeRule(
    "no matrix unit",
    202,
    ("product",),
    evaluate,
    {"instructions": 1},
    source="MMA, MFMA and WMMA instructions in the listing; tl.dot, or the axes of the Spec",
)
