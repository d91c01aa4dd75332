"""Registers are spilled to memory and loaded back in a loop."""

from workbench.data.code_facts import CodeFacts
from workbench.data.units import amount
from workbench.traces.rules import CodeRule, Diagnosis, Values, instruction_count


def evaluate(facts: CodeFacts, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a kernel with spills inside of loops. Outside of them they run
    once."""
    spills = facts.spills
    if spills.count < limits["instructions"]:
        return None
    return Diagnosis(
        f"{amount(spills.count, 'instruction')} in loops spill registers to memory or load them "
        "back.",
        (instruction_count("spill instructions in loops", spills.count),),
        "Give a thread less to hold: a smaller tile, more warps, or fewer stages.",
        "small",
        places=spills.places,
    )


RULE = CodeRule(
    "spills in a loop",
    201,
    (),
    evaluate,
    {"instructions": 1},
    source="LDL, STL, scratch_load, scratch_store in the listing",
)
