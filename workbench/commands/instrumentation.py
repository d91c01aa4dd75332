"""The two events of every time: `KernelDispatched` and `OpCompleted`, from any command."""

from collections.abc import Iterator

from workbench.compile import Compiled, LaunchShape
from workbench.data.clock import timestamp
from workbench.data.events import KernelDispatched, OpCompleted
from workbench.data.record import Case, Measured, Record, Run
from workbench.spec import label, sizes_text

NAMED = ("sweep", "experiment")  # engines whose runs have a name of their own: tile_size


def op_path(run: Run, case: Case, part: str = "") -> str:
    """Return the path of a config's steps without their phase: engine, name of the sweep or the
    experiment, kernel, Impl, config; sizes and dtype in a run of several; and `part`, where one
    config is several things: the operand of a comparison, the variant of an experiment."""
    name = run.name if run.engine in NAMED else ""
    config = label(case.config) if case.config else ""
    several = not run.sizes or "," in run.dtype
    problem = f"{sizes_text(case.sizes, ' ')} {case.dtype}" if several else ""
    words = (run.engine, name, case.kernel, case.impl, config, problem, part)
    return "/".join(word.replace("/", "_") for word in words if word)


def dispatch_events(
    run: Run, case: Case, compiled: Compiled, part: str = ""
) -> Iterator[KernelDispatched]:
    """Yield the event of each kernel that a call of a compiled config launches, in their order;
    none of an operation of MLX, whose kernels are its own."""
    for shape in compiled.shapes or _largest(compiled):
        yield KernelDispatched(
            at=timestamp(),
            run=run.id,
            kernel=f"{case.kernel}.{case.impl}",
            config=dict(case.config),
            grid=shape.grid,
            threads=shape.threads,
            shared_bytes=shape.shared_bytes,
            registers=shape.registers,
            occupancy=shape.occupancy,
            op_path=op_path(run, case, part),
            function=shape.function,
            launches=shape.launches,
        )


def _largest(compiled: Compiled) -> list[LaunchShape]:
    """Return the largest launch, of a result that holds no other."""
    r, name, grid = compiled.resources, compiled.kernel, compiled.grid
    if r is None:
        return []
    costs = r.threads, r.shared_bytes, r.registers, r.occupancy
    return [LaunchShape(name, grid, *costs, compiled.launches)]


def completion_event(run: Run, record: Record, part: str = "") -> OpCompleted:
    """Return the event of a time, in microseconds of one call.

    A time by the host's clock is `host_us` alone, as the device's share of it is unknown. A
    predicted time has neither: no clock took part.
    """
    timing = record.timing
    clock = timing if isinstance(timing, Measured) else None
    by_host = clock is not None and clock.method == "host"
    host_s = clock.median_s if clock and by_host else clock.host_s if clock else None
    return OpCompleted(
        at=timestamp(),
        run=record.run,
        op_path=f"{op_path(run, record.case, part)}/{record.phase}",
        device_us=clock.median_s * 1e6 if clock and not by_host else None,
        host_us=None if host_s is None else host_s * 1e6,
        predicted=clock is None,
        predicted_us=None if clock else record.time_s * 1e6,
        method=clock.method if clock else "",
    )
