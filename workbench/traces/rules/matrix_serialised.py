"""The matrix unit waits for loads that nothing fetches ahead."""

from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.rules import Diagnosis, KernelRule, Values, part_of, share


def evaluate(metrics: Values, limits: Values) -> Diagnosis | None:
    """Return the diagnosis of a kernel whose matrix unit idles while warps wait for loads and for
    one another, without asynchronous copies."""
    busy = metrics["matrix_pipe"]
    waiting = metrics["stall_barrier"] + metrics["stall_long_scoreboard"]
    if not metrics["matrix_flop"] or metrics["async_copy_share"] or busy >= limits["pipe"]:
        return None
    if waiting < limits["stall"]:
        return None
    return Diagnosis(
        f"The matrix pipe is {percent(busy)} busy, {percent(waiting)} of all waiting is for loads "
        "and at barriers, and no load is asynchronous: loads and products take turns.",
        (
            share("matrix pipe, share", busy),
            share("waiting for loads and at barriers, share", waiting),
        ),
        "Let the loop fetch ahead: num_stages of 3 or more in tl.range or in the config, or tensor "
        "descriptors; fewer registers a program where stages do not fit.",
        "small",
        part_of(metrics, 1 - busy),
        instructions=InstructionClass.LOAD_WAITS,
    )


RULE = KernelRule(
    "loads and products in turns",
    109,
    ("matrix_pipe", "matrix_flop", "async_copy_share", "stall_barrier", "stall_long_scoreboard"),
    evaluate,
    {"pipe": 0.5, "stall": 0.5},
    source="planted kernels on an H200",
)
