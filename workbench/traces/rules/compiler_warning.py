"""ptxas warns that performance may be lost."""

from workbench.data.code_facts import CodeFacts
from workbench.data.units import amount
from workbench.traces.rules import CodeRule, Diagnosis, Values, count

SERIALISED = "Let a thread need fewer registers: more warps, or a smaller tile."
OTHER = "Change what the message names, and look for the message again."


def evaluate(facts: CodeFacts, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a kernel about which ptxas has a warning, which Triton discards."""
    warnings = facts.warnings or ()
    if len(warnings) < limits["warnings"]:
        return None
    number, text = warnings[0]
    more = f" And {amount(len(warnings) - 1, 'other')}." if len(warnings) > 1 else ""
    about = f" {number}" if number else ""
    return Diagnosis(
        f"ptxas warns{about}: {text.rstrip('.')}.{more}",
        (count("warnings of ptxas", len(warnings), "warnings", kind="computed"),),
        SERIALISED if "serialized" in text else OTHER,
        "medium",
    )


RULE = CodeRule(
    "warned by ptxas",
    209,
    ("warnings",),
    evaluate,
    {"warnings": 1},
    source="ptxas -v: warnings and Potential Performance Loss, such as C7511",
)
