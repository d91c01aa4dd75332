"""The unit for special functions and conversions is busy."""

from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Values, threshold_rule


def _special(metrics: Values) -> float:
    """Return how busy the XU pipe is; 0 where the instructions' counts tell that it converts."""
    converts = metrics.get("conversion_share", 0.0) > metrics.get("special_share", 0.0)
    return 0.0 if converts else metrics["xu_pipe"]


RULE = threshold_rule(
    "special functions",
    107,
    "The XU pipe, which computes special functions and conversions, is {special} busy.",
    above={"special": 0.6},
    derived={"special": _special},
    needs=("xu_pipe",),
    evidence={"special": "XU pipe, share"},
    advice="Use exp2 for exp, compute fewer of them, or convert packed values.",
    effort="medium",
    gain="special",
    instructions=InstructionClass.XU,
    source="planted kernels on an H200",
)
