"""Hot code computes in fp64, which the problem does not ask for."""

from workbench.data.code_facts import CodeFacts
from workbench.data.units import amount
from workbench.traces.rules import CodeRule, Diagnosis, Values, instruction_count


def evaluate(facts: CodeFacts, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of hot code with fp64 instructions in a kernel of a narrower dtype."""
    if facts.dtype == "fp64" or facts.fp64.count < limits["instructions"]:
        return None
    return Diagnosis(
        f"{amount(facts.fp64.count, 'instruction')} of hot code compute in fp64, or convert to or "
        f"from it; the problem is {facts.dtype}.",
        (instruction_count("fp64 instructions in hot code", facts.fp64.count),),
        "Find the fp64 constant, argument or cast, and write it as fp32.",
        "small",
        places=facts.fp64.places,
    )


RULE = CodeRule(
    "fp64 in hot code",
    206,
    ("dtype",),
    evaluate,
    {"instructions": 1},
    source="DADD, DMUL, DFMA, .F64, _f64 in the listing",
)
