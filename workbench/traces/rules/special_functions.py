"""The unit for special functions and conversions is busy."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, part_of, share


def evaluate(metrics: Mapping[str, float], limits: Mapping[str, float]) -> Diagnosis | None:
    """Return the diagnosis of a kernel that the XU pipe holds: exponentials, roots, and conversions
    between integers and floats. Silent where the instructions' counts tell that it converts."""
    busy = metrics["xu_pipe"]
    converts = metrics.get("conversion_share", 0.0) > metrics.get("special_share", 0.0)
    if busy < limits["pipe"] or converts:
        return None
    return Diagnosis(
        f"The XU pipe, which computes special functions and conversions, is {percent(busy)} busy.",
        (share("XU pipe, share", busy),),
        "Use exp2 for exp, compute fewer of them, or convert packed values.",
        "medium",
        part_of(metrics, busy),
        instructions=InstructionClass.XU,
    )


RULE = KernelRule(
    "special functions",
    107,
    ("xu_pipe",),
    evaluate,
    {"pipe": 0.6},
    source="planted kernels on an H200",
)
