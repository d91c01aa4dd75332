"""An innermost loop divides integers by a value that is known only when it runs."""

from workbench.data.code_facts import CodeFacts
from workbench.data.units import amount
from workbench.traces.rules import CodeRule, Diagnosis, Values, instruction_count


def evaluate(facts: CodeFacts, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of an innermost loop with slow integer divisions. Outside of it a
    program divides once a tile, which costs nothing that can be seen."""
    divisions = facts.divisions.count
    if divisions < limits["divisions"]:
        return None
    return Diagnosis(
        f"{amount(divisions, 'division')} of integers by a value that is not a constant "
        f"{'is' if divisions == 1 else 'are'} in innermost loops, each some 20 to 100 "
        "instructions.",
        (instruction_count("integer divisions in innermost loops", divisions),),
        "Divide before the loop, make the divisor a tl.constexpr, or count up in place of it.",
        "small",
        places=facts.divisions.places,
    )


RULE = CodeRule(
    "integer division",
    207,
    (),
    evaluate,
    {"divisions": 1},
    source="the reciprocal of the divisor in the listing: I2F.RP, or a product by 0x4f7ffffe",
)
