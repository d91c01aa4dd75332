"""Threads load or store one or two bytes at a time."""

from workbench.data.code_facts import CodeFacts
from workbench.data.units import percent
from workbench.traces.rules import CodeRule, Diagnosis, Values, instruction_count, share


def evaluate(facts: CodeFacts, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of hot code that moves few bytes with each access to global memory."""
    whole = facts.accesses.count
    slim = [marked for width, marked in facts.narrow.items() if width <= limits["bytes"]]
    few = sum(marked.count for marked in slim)
    if whole < limits["accesses"] or few < limits["share"] * whole:
        return None
    places = tuple(dict.fromkeys(place for marked in slim for place in marked.places))
    return Diagnosis(
        f"{percent(few / whole)} of the loads and stores of global memory in hot code move at most "
        f"{limits['bytes']:.0f} bytes a thread, of 16 that one can move.",
        (
            share("accesses of few bytes, share", few / whole, kind="computed"),
            instruction_count("narrow accesses", few),
        ),
        "Let a thread access consecutive elements: tl.multiple_of and tl.max_contiguous where "
        "offsets are computed, strides and pointers divisible by 16, or padded rows.",
        "medium",
        places=places,
    )


RULE = CodeRule(
    "narrow accesses",
    203,
    (),
    evaluate,
    {"bytes": 2, "share": 0.5, "accesses": 2},
    source="widths of LDG, STG, global_load, buffer_load in the listing",
)
