"""There are fewer programs than cores."""

from workbench.data.units import percent
from workbench.traces.rules import Diagnosis, KernelRule, Values, part_of, share


def evaluate(metrics: Values, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a launch that leaves cores without a program."""
    programs, cores = metrics["programs"], metrics["cores"]
    if not cores or programs >= limits["share"] * cores:
        return None
    return Diagnosis(
        f"{programs:.0f} programs run on {cores:.0f} cores, so {percent(1 - programs / cores)} of "
        "them idle.",
        (share("idle cores, share", 1 - programs / cores),),
        "Split K or the rows, use smaller tiles, or batch calls.",
        "medium",
        part_of(metrics, 1 - programs / cores),
    )


RULE = KernelRule(
    "small grid",
    115,
    ("programs", "cores"),
    evaluate,
    {"share": 1.0},
    yields_to=("at_ceiling",),
    source="planted kernels on an H200",
)
