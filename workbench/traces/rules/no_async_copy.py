"""A loop that should be pipelined loads through registers."""

from workbench.data.code_facts import CodeFacts
from workbench.data.units import amount
from workbench.traces.rules import CodeRule, Diagnosis, Values, instruction_count


def evaluate(facts: CodeFacts, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a kernel of several stages whose loop of matrix instructions loads
    from global memory, and of which no load is asynchronous."""
    loads = facts.staged_loads
    if loads is None or facts.async_loads or (facts.stages or 0) < limits["stages"]:
        return None
    if loads.count < limits["loads"]:
        return None
    return Diagnosis(
        f"{facts.stages} stages were asked for, but the {amount(loads.count, 'global load')} in "
        "loops of matrix instructions go through registers, and none is asynchronous.",
        (
            instruction_count("loads through registers", loads.count),
            instruction_count("asynchronous loads", facts.async_loads or 0),
        ),
        "Let each thread load 4 bytes or more that are aligned (strides and pointers divisible by "
        "16), and use the loaded tile in tl.dot as it is, or load by descriptor.",
        "medium",
        places=loads.places,
    )


RULE = CodeRule(
    "no asynchronous copy",
    210,
    ("staged_loads", "async_loads", "stages"),
    evaluate,
    {"stages": 2, "loads": 1},
    source="LDGSTS and UTMALDG in the listing; num_stages of the launch",
)
