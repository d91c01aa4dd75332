"""Emulate Metal kernels for `Offline`: refuse, count their bytes, check their results, predict.

`metal_shim` is imported by name and inside functions alone: where no Metal kernel is concerned,
nothing of it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from math import prod
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from workbench.backend.protocol import Problem
from workbench.backend.workers import Workers, cause_of
from workbench.catalog.source import SourceChanged, load_kernel
from workbench.compile import Compiled, LaunchShape
from workbench.data.errors import first_sentence
from workbench.data.record import BufferCounts, CountedTraffic, Environment, Predicted
from workbench.data.user_code import user_code
from workbench.device import apple_model
from workbench.device.hardware import Device
from workbench.measurement import inputs
from workbench.measurement.candidate import Candidate, Refusal
from workbench.spec import (
    Impl,
    Limits,
    Sizes,
    Spec,
    SpecFault,
    WorkbenchError,
    is_number,
    sizes_text,
)

if TYPE_CHECKING:
    from metal_shim.emulate import EmulatedRun, MetalLaunch
    from workbench.measurement.handover import Given, Returned

EMULATOR = "metal_shim.emulate"
COMPILER = "metal_shim.compiler"
LAUNCH_LIMIT_S = 300.0  # of one check: compiling takes most of it
COUNTED_BYTES = 1 << 19  # requested by a counted run at most: 0.1 to 0.3 s of CPU
COUNTED_FLOPS = 1 << 22


def require_emulator() -> None:
    """Raise CompilerMissing where no compiler is installed that emulates Metal kernels."""
    import_module(COMPILER).find_compiler()


def emulator_environment(base: Environment) -> Environment:
    """Return the environment of an emulated run: Triton and ptxas take no part in it, and the
    compiler of the emulator does, where there is one."""
    compiler = import_module(COMPILER)
    versions = {k: v for k, v in base.versions.items() if k in ("workbench", "torch", "numpy")}
    with suppress(compiler.CompilerMissing):
        versions["clang"] = compiler.find_compiler().number
    return replace(base, versions=versions)


def emulator_files() -> tuple[Path, ...]:
    """Return the files that decide what an emulated run counts."""
    shim = Path(str(import_module("metal_shim").__file__)).parent
    names = ("host.py", "emulate.py", "signature.py", "compiler.py", "runtime.cpp")
    return (Path(__file__), shim / "include" / "metal_stdlib", *(shim / name for name in names))


# Refusals, before anything runs


def dispatch_refusal(impl: Impl, config: Any, problem: Problem, device: Device) -> str | None:
    """Return in one sentence why a Metal kernel cannot run on the device, or None: by the limits
    of its buffers and of each dispatch."""
    if reason := buffer_refusal(problem.spec, problem.sizes, problem.dtype, device):
        return reason
    try:
        launches = plan_launches(impl, config, problem.sizes, problem.dtype)
    except WorkbenchError as error:
        return first_sentence(error)
    except Exception as error:  # the launcher's own code
        return f"the launcher of {impl.title} failed ({first_sentence(error)})"
    if not launches:
        return f"the launcher of {impl.title} does not launch a Metal kernel"
    return next((reason for launch in launches if (reason := launch.refusal())), None)


def buffer_refusal(spec: Spec, sizes: Sizes, dtype: str, device: Device) -> str | None:
    """Return why a tensor is larger than the memory of the largest such device, or None."""
    if device.memory is None:
        return None
    for name, tensor in {**spec.inputs, **spec.outputs}.items():
        one = replace(spec, inputs={name: tensor}, outputs={}, impls=[])
        needed = one.bytes_read(sizes, dtype)
        if needed > device.memory.value:
            most = f"{device.memory.value / 2**30:.0f} GiB"
            return f"the buffer of {name} needs {needed / 2**30:.0f} GiB; {device.title} has {most}"
    return None


def plan_launches(impl: Impl, config: Any, sizes: Sizes, dtype: str) -> list[MetalLaunch]:
    """Return the dispatches of one call at these sizes; nothing runs."""
    emulator = import_module(EMULATOR)
    with emulator.planning() as launches, user_code(f"the launcher of {impl.title}"):
        impl(*inputs.shapes(impl.spec, sizes, dtype), config=config)
    result: list[MetalLaunch] = launches
    return result


# The size at which bytes are counted


def counted_sizes(impl: Impl, config: Any, limits: Limits, dtype: str, sizes: Sizes) -> Sizes:
    """Return sizes small enough to emulate at which the config moves its bytes as at `sizes`.

    Extents are halved while the kernel's formula says that fewer bytes are requested: first those
    that leave each tile as it is. At the result a config still has whole tiles, so that its edges
    do not count for more than they do at `sizes`.
    """
    at = dict(sizes)
    while _cost(impl, config, limits, dtype, at) > 1:
        now = _requested_bytes(impl, config, limits, dtype, at)
        smaller = []
        for axis in at:
            less = impl.spec.nearest_sizes({**at, axis: max(1, at[axis] // 2)})
            if not _takes(impl, config, limits, dtype, less):
                continue
            then = _requested_bytes(impl, config, limits, dtype, less)
            if then < now:
                same_tile = _tile(impl, config, limits, dtype, less) == _tile(
                    impl, config, limits, dtype, at
                )
                smaller.append((not same_tile, -at[axis], axis, less))
        if not smaller:
            return at
        at = min(smaller, key=lambda each: each[:3])[3]
    return at


def _cost(impl: Impl, config: Any, limits: Limits, dtype: str, sizes: Sizes) -> float:
    """Return the work of an emulated run over the most that one should have."""
    moved = _requested_bytes(impl, config, limits, dtype, sizes)
    return max(moved / COUNTED_BYTES, impl.spec.flops(**sizes) / COUNTED_FLOPS)


def _takes(impl: Impl, config: Any, limits: Limits, dtype: str, sizes: Sizes) -> bool:
    if impl.spec.refuse(sizes):
        return False
    return impl.rejection_reason(config, limits, dtype, sizes) is None


def _tile(impl: Impl, config: Any, limits: Limits, dtype: str, sizes: Sizes) -> Any:
    works = impl.work_of(config, limits, dtype, sizes)
    return [(work.steps, work.load_bytes, work.store_bytes) for work in works] if works else None


def _requested_bytes(impl: Impl, config: Any, limits: Limits, dtype: str, sizes: Sizes) -> int:
    """Return the bytes that a call requests by the kernel's own formula, or else its least."""
    return sum(_bytes(impl, config, limits, dtype, sizes))


def _bytes(impl: Impl, config: Any, limits: Limits, dtype: str, sizes: Sizes) -> tuple[int, int]:
    """Return the bytes that a call requests to read and to write, as `_requested_bytes` does."""
    works = impl.work_of(config, limits, dtype, sizes)
    if works is None:
        return impl.spec.bytes_read(sizes, dtype), impl.spec.bytes_written(sizes, dtype)
    read = sum(work.tiles * work.steps * work.load_bytes for work in works)
    return read, sum(work.tiles * work.store_bytes for work in works)


@dataclass(frozen=True)
class Scales:
    """How many times as many bytes a call reads and writes as the counted run did."""

    read: float
    write_scale: float


# Counting, which takes the place of compiling


def emulate_all(
    pool: Workers,
    problem: Problem,
    candidates: Sequence[Candidate],
    device: Device,
    timeout_s: float,
) -> Iterator[tuple[Candidate, Compiled | Refusal]]:
    """Compile each config for the emulator and count the bytes of a small run; yield the results in
    the order of completion."""
    done: SimpleQueue[tuple[Candidate, Future[Any]]] = SimpleQueue()
    futures = []
    for candidate in candidates:
        task = (problem.kernel, candidate, dict(problem.sizes), problem.dtype, device)
        future = pool.submit(count_task, *task, timeout_s=timeout_s)
        future.add_done_callback(partial(_put, done, candidate))
        futures.append(future)
    try:
        for _ in candidates:
            candidate, ended = done.get()
            yield candidate, _compiled_result(candidate, ended)
    finally:
        for future in futures:
            future.cancel()


def _put(
    done: SimpleQueue[tuple[Candidate, Future[Any]]], candidate: Candidate, ended: Future[Any]
) -> None:
    done.put((candidate, ended))


def _compiled_result(candidate: Candidate, ended: Future[Any]) -> Compiled | Refusal:
    try:
        result = ended.result()
    except (SourceChanged, SpecFault):
        raise
    except Exception as error:
        reason = f"the emulated run {error}" if cause_of(error) else first_sentence(error)
        return Refusal("compile", reason, cause=cause_of(error))
    if isinstance(result, Compiled):
        return replace(result, ttgir=candidate.key)
    assert isinstance(result, Refusal)
    return result


def count_task(
    kernel: str, candidate: Candidate, sizes: Sizes, dtype: str, device: Device
) -> Compiled | Refusal:
    """Emulate one config at a small size in a worker, counting sectors. Returns its dispatches at
    `sizes` with the traffic, or a Refusal."""
    emulator = import_module(EMULATOR)
    case = candidate.case
    impl = load_kernel(kernel).impl(case.impl, candidate.code)
    config = impl.config(**case.config)
    small = counted_sizes(impl, config, device.limits, dtype, sizes)
    try:
        runs = _emulated_runs(impl, config, small, dtype)
        launches = plan_launches(impl, config, sizes, dtype)
        place = CountedPlace(impl, config, device.limits, dtype)
        totals = place.totals(runs, small, sizes)
    except (SpecFault, SourceChanged):
        raise
    except emulator.EmulationError as error:
        return Refusal("check", f"at {sizes_text(small)}: {first_sentence(error)}", rule="process")
    except WorkbenchError as error:
        return Refusal("compile", first_sentence(error))
    if not runs:
        return Refusal("check", "the launch does not run a Metal kernel", rule="launches")
    at = [_bytes(impl, config, device.limits, dtype, each) for each in (small, sizes)]
    scales = Scales(*(large / max(1, less) for less, large in zip(*at, strict=True)))
    traffic = traffic_of(runs, launches, small, scales)
    written = impl.spec.bytes_written(sizes, dtype)
    edge_bytes = max(0, at[1][1] - written) if impl.work else 0
    barriers, accesses, rounds = totals
    traffic = replace(
        traffic,
        all_barriers=round(barriers),
        all_accesses=round(accesses),
        all_bank_rounds=round(rounds),
        edge_bytes=edge_bytes,
    )
    return compiled_launches(launches, traffic)


@dataclass(frozen=True)
class CountedPlace:
    """A config of an Impl whose counts are carried over to other sizes."""

    impl: Impl
    config: Any
    limits: Limits
    dtype: str

    def totals(self, runs: Sequence[EmulatedRun], small: Sizes, sizes: Sizes) -> Totals:
        """Return what a call counts at `sizes`, after runs at `small`. A loop of few steps counts
        once more with half of them, since what stands behind the loop does not grow with it."""
        now, then, counted = self._steps(small), self._steps(sizes), _totals(runs)
        if now is None or then is None:
            at = self.config, self.limits, self.dtype
            less, more = (_requested_bytes(self.impl, *at, each) for each in (small, sizes))
            return _scale_totals(counted, more / max(1, less))
        tiles, steps = then[0] / now[0], then[1] / now[1]
        half = self._halve_steps(small) if steps != 1 else None
        if half is None or (fewer := self._steps(half)) is None:
            return _scale_totals(counted, tiles * steps)
        behind = _totals(_emulated_runs(self.impl, self.config, half, self.dtype))
        beyond = (then[1] - now[1]) / (now[1] - fewer[1])
        a, b, c = (n + beyond * (n - m) for n, m in zip(counted, behind, strict=True))
        return _scale_totals((a, b, c), tiles)

    def _steps(self, sizes: Sizes) -> tuple[int, int] | None:
        """Return the tiles and the steps of each; None where the Impl declares neither, or several
        dispatches."""
        works = self.impl.work_of(self.config, self.limits, self.dtype, sizes)
        return (works[0].tiles, works[0].steps) if works and len(works) == 1 else None

    def _halve_steps(self, sizes: Sizes) -> Sizes | None:
        """Return sizes with as many tiles of the same bytes and fewer steps, or None."""
        at = self.config, self.limits, self.dtype
        now = self._steps(sizes)
        for axis in sizes:
            less = self.impl.spec.nearest_sizes({**sizes, axis: max(1, sizes[axis] // 2)})
            if not _takes(self.impl, *at, less):
                continue
            then = self._steps(less)
            if now and then and then[0] == now[0] and then[1] < now[1]:
                return less
        return None


Totals = tuple[float, float, float]


def _totals(runs: Sequence[EmulatedRun]) -> Totals:
    """Return the barriers of all threadgroups, the accesses to threadgroup memory and the bank
    rounds of the dispatches of a call."""
    return (
        sum(run.traffic.barriers / prod(run.group) for run in runs),
        sum(run.traffic.threadgroup_accesses for run in runs),
        sum(run.traffic.bank_rounds for run in runs),
    )


def _scale_totals(totals: Totals, factor: float) -> Totals:
    a, b, c = totals
    return factor * a, factor * b, factor * c


def _emulated_runs(impl: Impl, config: Any, sizes: Sizes, dtype: str) -> list[EmulatedRun]:
    emulator = import_module(EMULATOR)
    arguments = inputs.make(impl.spec, sizes, dtype, "cpu")
    options = emulator.EmulationOptions(counting=True)
    with (
        user_code(f"the launch of {impl.title}", LAUNCH_LIMIT_S),
        emulator.emulation(options) as runs,
    ):
        impl(*arguments, config=config)
    counted: list[EmulatedRun] = runs
    return counted


def compiled_launches(launches: Sequence[MetalLaunch], traffic: CountedTraffic | None) -> Compiled:
    """Return the dispatches of one call, with the traffic that was counted, if any."""
    shapes = tuple(_shape(launch) for launch in launches)
    largest = max(launches, key=lambda launch: launch.threadgroups)
    name, grid = largest.call.source.name, _threadgroups(largest)
    return Compiled(None, name, grid, len(launches), shapes=shapes, traffic=traffic)


def _shape(launch: MetalLaunch) -> LaunchShape:
    return LaunchShape(
        function=launch.call.source.name,
        grid=_threadgroups(launch),
        threads=launch.threads,
        shared_bytes=launch.threadgroup_bytes,
        registers=None,
        occupancy=None,
    )


def _threadgroups(launch: MetalLaunch) -> tuple[int, ...]:
    return tuple(-(-n // t) for n, t in zip(launch.grid, launch.group, strict=True))


def traffic_of(
    runs: Sequence[EmulatedRun], launches: Sequence[MetalLaunch], sizes: Sizes, scales: Scales
) -> CountedTraffic:
    """Return what emulated runs of one call counted, for a call that moves `scales` times as many
    bytes in `launches`. Buffers of shapes and strides, a few bytes that every thread reads, are
    left out."""
    buffers = [_buffer(name, counts, scales) for run in runs for name, counts in _arrays(run)]
    threads = sum(run.traffic.threads for run in runs)
    return CountedTraffic(
        sizes=dict(sizes),
        buffers=tuple(buffers),
        dispatches=len(launches),
        threads=max(launch.threads for launch in launches),
        threadgroups=sum(launch.threadgroups for launch in launches),
        threadgroup_bytes=max(launch.threadgroup_bytes for launch in launches),
        barriers=round(sum(run.traffic.barriers for run in runs) / max(1, threads)),
        bank_rounds=sum(run.traffic.bank_rounds for run in runs),
    )


def _arrays(run: EmulatedRun) -> Iterator[tuple[str, Any]]:
    source = run.call.source
    for name, counts in run.traffic.buffers.items():
        if name in source.inputs or name in source.outputs:
            yield name, counts


def _buffer(name: str, counts: Any, scales: Scales) -> BufferCounts:
    written = counts.requested_written > counts.requested_read
    return BufferCounts(
        name=name,
        requested_read=counts.requested_read,
        requested_written=counts.requested_written,
        unique_read=counts.unique_read,
        unique_written=counts.unique_written,
        sectors=counts.sectors,
        scale=scales.write_scale if written else scales.read,
    )


# Checking


def emulate_calls(
    kernel: str, candidate: Candidate, calls: Sequence[Given]
) -> list[Returned] | Refusal:
    """Launch one config on the inputs of each call in the emulator, in a worker, each in the next
    schedule. Returns the outputs, or a Refusal for the first launch that fails."""
    from workbench.measurement.handover import launch_on_inputs

    emulator = import_module(EMULATOR)
    impl = load_kernel(kernel).impl(candidate.case.impl, candidate.code)
    config = impl.config(**candidate.case.config)
    results: list[Returned] = []
    for number, call in enumerate(calls):
        at = sizes_text(call.sizes)
        schedule = emulator.SCHEDULES[number % len(emulator.SCHEDULES)]
        try:
            with (
                user_code(f"the launch of {impl.title}", LAUNCH_LIMIT_S),
                emulator.emulation(emulator.EmulationOptions(schedule)) as runs,
            ):
                result = launch_on_inputs(impl, config, call)
        except (SpecFault, SourceChanged):
            raise
        except Exception as error:
            reason = f"the emulator stopped at {at}: {first_sentence(error)}"
            return Refusal("check", reason, rule="process")
        results.append(replace(result, launches=tuple(run.call.source.name for run in runs)))
        if result.fault is not None:
            return Refusal("check", f"at {at} {result.fault.reason}", rule=result.fault.rule)
    return results


# Prediction


def metal_prediction(
    problem: Problem, candidate: Candidate, compiled: Compiled, device: Device
) -> Predicted:
    """Return the time that `apple-2` predicts. Raises ValueError where the device lacks a figure,
    or the config was not counted."""
    traffic = compiled.traffic
    if traffic is None:
        raise ValueError("the emulator counted no bytes: no prediction")
    flops = problem.spec.flops(**problem.sizes)
    if not is_number(flops):
        raise ValueError(f"the Spec declares {flops} FLOPs: no prediction")
    work = apple_model.MetalWork(
        bytes=traffic.bytes,
        least_bytes=problem.spec.bytes(problem.sizes, problem.dtype),
        flops=flops,
        threads=traffic.threads * traffic.threadgroups,
        dispatches=traffic.dispatches,
    )
    return apple_model.predict(device, work, problem.dtype)
