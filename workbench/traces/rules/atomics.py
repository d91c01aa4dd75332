"""Programs wait for atomics on the same addresses."""

from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, Values, share

STALLS = ("stall_long_scoreboard", "stall_lg_throttle", "stall_membar")
# of queues that atomics fill, and of programs that end with some on the way
QUEUES = ("stall_mio_throttle", "stall_drain")
REDUCE = "Reduce within the program first, so that one atomic takes the place of many."
RELAX = "The ordering is stronger than a sum needs: sem='relaxed' saves the fences next to them."


def evaluate(metrics: Values, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a kernel that executes atomics and waits for memory."""
    part, fences = metrics["atomic_share"], metrics["fence_share"]
    waiting = sum(metrics[name] for name in STALLS)
    waiting += sum(metrics.get(name, 0.0) for name in QUEUES)
    if part < limits["atomics"] or waiting < limits["stall"]:
        return None
    beside = " Fences (MEMBAR) are next to them." if fences > 0 else ""
    return Diagnosis(
        f"{percent(part)} of the instructions are atomics of global memory, and "
        f"{percent(waiting)} of all waiting is for memory.{beside}",
        (
            share("atomics, share", part),
            share("fences, share", fences),
            share("waiting for memory, share", waiting),
        ),
        f"{REDUCE} {RELAX}" if fences > 0 else REDUCE,
        "medium",
        instructions=InstructionClass.ATOMICS,
    )


RULE = KernelRule(
    "atomics",
    113,
    ("atomic_share", "fence_share", *STALLS),
    evaluate,
    {"atomics": 0.01, "stall": 0.6},
    yields_to=("at_ceiling", "spills"),
    source="planted kernels on an H200",
)
