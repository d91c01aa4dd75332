"""A product ran without the matrix unit."""

from workbench.data.units import percent, reading
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, Values, count, part_of, share


def evaluate(metrics: Values, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a product or an attention that ran no matrix instruction, while it
    has many operations for each byte of DRAM: a product with a vector is memory-bound."""
    vector, moved = metrics["vector_flop"], metrics["dram_bytes"]
    if not metrics["product"] or metrics["matrix_flop"] or not moved:
        return None
    if vector / moved < limits["flop_per_byte"]:
        return None
    compute = metrics.get("compute_throughput", 0.0)
    return Diagnosis(
        f"A product of {reading(vector, 'FLOP')} ran on the vector units: no matrix instruction "
        f"ran. The cores are {percent(compute)} busy.",
        (
            count("FLOP of the matrix unit", 0.0, "FLOP"),
            count("FLOP outside of the matrix unit", vector, "FLOP"),
            share("compute throughput, share", compute),
        ),
        "Use tl.dot with a dtype and a shape of the matrix unit: 16 or more along each axis.",
        "medium",
        part_of(metrics, limits["faster"]),
        instructions=InstructionClass.VECTOR_ARITHMETIC,
    )


RULE = KernelRule(
    "no matrix work",
    102,
    ("product", "matrix_flop", "vector_flop", "dram_bytes"),
    evaluate,
    # the matrix unit has at least 8 times the rate of the vector units in 16 bits since Ampere
    {"flop_per_byte": 32, "faster": 0.875},
    source="a planted kernel on an H200; NVIDIA's whitepapers of A100 and H100 for the rates",
)
