"""Conversions and the unpacking of bits keep a pipe busy."""

from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, Values, part_of, share


def evaluate(metrics: Values, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a kernel that the XU pipe holds with conversions between types, or
    the ALU pipe with the extraction of bits."""
    converts, special = metrics["conversion_share"], metrics["special_share"]
    unpacks = metrics["unpack_share"]
    xu, alu = metrics.get("xu_pipe", 0.0), metrics.get("alu_pipe", 0.0)
    if xu >= limits["pipe"] and converts > special:
        pipe, busy, part, what = "XU", xu, converts, "convert between types (I2F, F2I, F2F)"
        advice = "Convert fewer values, or packed ones: two at a time, or by shifts and masks."
    elif alu >= limits["pipe"] and unpacks >= limits["unpack"]:
        pipe, busy, part, what = "ALU", alu, unpacks, "extract or combine bits (PRMT, LOP3, SHF)"
        advice = "Unpack several values with one instruction, and each word once for all its uses."
    else:
        return None
    return Diagnosis(
        f"The {pipe} pipe is {percent(busy)} busy, and {percent(part)} of the instructions {what}.",
        (share(f"{pipe} pipe, share", busy), share("these instructions, share", part)),
        advice,
        "medium",
        part_of(metrics, part),
        instructions=InstructionClass.XU if pipe == "XU" else InstructionClass.UNPACKING,
    )


RULE = KernelRule(
    "conversions",
    108,
    ("conversion_share", "special_share", "unpack_share"),
    evaluate,
    {"pipe": 0.6, "unpack": 0.2},
    source="planted kernels on an H200",
)
