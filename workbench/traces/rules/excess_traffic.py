"""DRAM moves more than the Spec needs."""

from workbench.data.record import Evidence
from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, Values, part_of, share

SECTOR = 32  # bytes of L2's smallest part
SPILLS, SECTORS, REUSE = "spills", "sectors that accesses do not need", "data requested again"
ADVICE = {
    SPILLS: "Give a thread less to hold, so that it does not spill: a smaller tile or more warps.",
    SECTORS: "Let neighbouring threads access neighbouring addresses: the order of the axes, the "
    "layout, tl.multiple_of and tl.max_contiguous.",
    REUSE: "Pass over the data once: fuse the passes, choose blocks whose data stays in L2, or "
    "order the programs so that neighbours share their data.",
}

INSTRUCTIONS = {
    SPILLS: InstructionClass.SPILLS,
    SECTORS: InstructionClass.EXCESS_SECTORS,
    REUSE: InstructionClass.SECTORS,
}


def causes(metrics: Values) -> dict[str, float]:
    """Return the share of each cause in the sectors that instructions request of L2 beyond the
    least; empty where they are not known, or where none is requested, as with TMA."""
    names = ("local_sectors", "excessive_sectors", "ideal_sectors")
    if any(name not in metrics for name in names):
        return {}
    local, excessive, ideal = (metrics[name] for name in names)
    again = max(0.0, ideal - metrics["least_bytes"] / SECTOR)
    whole = local + excessive + again
    parts = {SPILLS: local, SECTORS: excessive, REUSE: again}
    return {name: value / whole for name, value in parts.items()} if whole else {}


def evaluate(metrics: Values, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a kernel that keeps DRAM busy with more than the least bytes."""
    ratio, busy = metrics["traffic_ratio"], metrics["dram_throughput"]
    if ratio < limits["ratio"] or busy < limits["dram"]:
        return None
    parts = causes(metrics)
    largest = max(parts, key=lambda name: parts[name]) if parts else REUSE
    split = ", ".join(f"{percent(part)} {name}" for name, part in parts.items())
    of = f" Requests to L2 beyond the least, by cause: {split}." if parts else ""
    return Diagnosis(
        f"DRAM moves {ratio:.2f} times the least bytes of the Spec and is {percent(busy)} "
        f"busy.{of}",
        (
            Evidence("DRAM bytes", metrics["dram_bytes"], "B", "profiled"),
            Evidence("least bytes", metrics["least_bytes"], "B", "computed"),
            share("DRAM throughput, share", busy),
            *(share(f"{name}, share", part) for name, part in parts.items()),
        ),
        ADVICE[largest],
        "medium",
        part_of(metrics, 1 - 1 / ratio),
        instructions=INSTRUCTIONS[largest],
    )


RULE = KernelRule(
    "excess traffic",
    110,
    ("traffic_ratio", "least_bytes", "dram_bytes", "dram_throughput"),
    evaluate,
    {"ratio": 1.5, "dram": 0.6},
    source="planted kernels on an H200",
    covers_calls=True,
)
