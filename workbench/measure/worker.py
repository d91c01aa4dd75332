"""What runs in the measuring process: check, screen, race, final. Plain values in and out.

The process keeps one bench, for the problem it was given first. Correctness comes before time,
in the same process, on the very inputs and memory that are timed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench import catalog, hardware, stats
from workbench.environment import fingerprint
from workbench.measure.protocol import Protocol
from workbench.record import Environment, Measured
from workbench.spec import Impl, Sizes


@dataclass(frozen=True)
class Job:
    """The problem that a measuring process works on."""

    kernel: str  # name, module or path
    sizes: Sizes
    dtype: str
    protocol: Protocol


@dataclass(frozen=True)
class Choice:
    """One Impl at one config, by name."""

    impl: str
    config: Mapping[str, int]


@dataclass(frozen=True)
class Screened:
    """A right answer and its time, or the sentence that says what went wrong."""

    error: float = 0.0  # of the answer, in tolerances
    timing: Measured | None = None
    stage: str | None = None  # "check", "launch" or "measure" where it failed
    reason: str | None = None
    poisoned: bool = False  # the process can measure nothing any more


class _State:
    """What the process keeps between tasks."""

    job: Job
    bench: Any
    problems: dict[int, Any]  # by seed
    spec: Any
    nvml: Any


_state = _State()


def describe(repository: Path | None) -> tuple[hardware.Device, Environment] | None:
    """The live GPU and the fingerprint of machine and software; None where torch sees no GPU."""
    device = hardware.live()
    if device is None:
        return None
    import torch

    return device, fingerprint(torch.cuda.current_device(), repository)


def begin(job: Job) -> dict[str, float]:
    """Make inputs, reference and self-test. Returns the measured memory ceiling in bytes/s and
    the launch floor in seconds. Raises torch.OutOfMemoryError when the problem is too large."""
    import torch

    from workbench.check import Posed
    from workbench.measure.bench import Bench
    from workbench.measure.clocks import Clocks

    device = hardware.live()
    if device is None:
        raise RuntimeError("torch sees no GPU in the measuring process")
    # like for like: torch lets cuBLAS add the parts of a split K in bf16, 0.4 % of the rms off
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    spec = catalog.spec_of(job.kernel)
    _state.job, _state.spec = job, spec
    cache = int(device.cache.value) if device.cache else 64 << 20
    floor = floor_s(device, spec.bytes(job.sizes, job.dtype), spec.flops(**job.sizes), job.dtype)
    _state.bench = Bench(spec, job.sizes, job.dtype, cache, floor, job.protocol)
    _state.problems = {0: Posed.given(spec, job.dtype, _state.bench.first_inputs)}
    _state.nvml = Clocks(torch.cuda.current_device())
    return self_test(cache)


def floor_s(device: hardware.Device, bytes_: int, flops: int, dtype: str) -> float:
    """Seconds that no call can beat: least bytes over the peak bandwidth, FLOPs over the peak."""
    dram = bytes_ / device.dram.value if device.dram else 0.0
    peak = device.peaks.get(dtype)
    # fp32 may run on the matrix unit where a library chooses tf32: no floor from fp32's own peak
    compute = flops / peak.value if peak and dtype != "fp32" else 0.0
    return max(dram, compute)


def self_test(cache_bytes: int) -> dict[str, float]:
    """Memory ceiling (bytes/s) from the workbench's own copy, and launch floor (s) from an empty
    launch in a graph."""
    from workbench.measure.bench import Bench

    spec = catalog.spec_of("copy")
    impl = catalog.impl_of(spec, "blocks")
    found = {}
    for name, count in (("dram", 1 << 28), ("launch", 1)):
        bench = Bench(spec, {"N": count}, "bf16", cache_bytes, 0.0, _state.job.protocol)
        rotation = bench.calls(impl, impl.config(), "cold" if count > 1 else "hot")
        timed = bench.timed(rotation, bench.first_time(rotation))
        seconds = stats.median(bench.window(timed, 0.02, least=10))
        found[name] = spec.bytes({"N": count}, "bf16") / seconds if count > 1 else seconds
    return found


def screen(choice: Choice, best_s: float | None) -> Screened:
    """Check, then time briefly. A first sample over `give_up` times the best is the last one."""
    try:
        return _screen(choice, best_s)
    except Exception as error:
        return _failed(error, "launch")


def _screen(choice: Choice, best_s: float | None) -> Screened:
    from workbench.check import check
    from workbench.measure.bench import Impossible

    impl, config = resolve(_state.spec, choice)
    checked = check(impl, config, _state.problems[0])
    if checked.wrong:
        return Screened(checked.error, stage="check", reason=checked.wrong)
    bench, protocol = _state.bench, _state.job.protocol
    rotation = bench.calls(impl, config)
    first = bench.first_time(rotation)
    slow = best_s is not None and first > protocol.give_up * best_s and first > 20e-6
    for attempt in (1, 2):
        try:
            timed = bench.timed(rotation, first)
            least = 1 if slow else protocol.screen_samples
            samples = bench.window(timed, 0.0 if slow else protocol.screen_s, least)
            return Screened(checked.error, bench.measured(timed, [samples], "cold"))
        except Impossible as error:
            if attempt == 2:
                return Screened(checked.error, stage="measure", reason=str(error))
    raise AssertionError("unreachable")


def race(choices: Sequence[Choice], best_s: float) -> list[Screened]:
    """The best of the screen once more, in the order given."""
    return [screen(choice, best_s) for choice in choices]


def final(choices: Sequence[Choice], estimates: Sequence[float]) -> list[Screened]:
    """All choices against each other: the clock settled, then windows in rounds whose order is
    reversed each time, until every interval is narrow or the rounds are used up."""
    try:
        return _final(choices, estimates)
    except Exception as error:
        return [_failed(error, "measure") for _ in choices]


def _final(choices: Sequence[Choice], estimates: Sequence[float]) -> list[Screened]:
    bench = _state.bench
    results = [_checked(choice) for choice in choices]
    timed = {}
    for i, (choice, estimate) in enumerate(zip(choices, estimates, strict=True)):
        if results[i].reason is None:
            try:
                rotation = bench.calls(*resolve(_state.spec, choice))
                first = bench.first_time(rotation)
                timed[i] = bench.timed(rotation, estimate or first)
            except Exception as error:  # a library's call that no graph can hold, say
                results[i] = _failed(error, "measure")
    _settle(bench, _state.job.protocol, timed)
    windows, clocks = _rounds(timed)
    for i in timed:
        results[i] = _checked(choices[i], seed=1)  # other values, after the last timed call
        if results[i].reason is None:
            results[i] = _with_time(results[i], timed[i], windows[i], clocks)
    return results


def _with_time(
    right: Screened, timed: Any, windows: Sequence[Sequence[float]], clocks: Sequence[Any]
) -> Screened:
    """A right answer with its final time; an impossible time is that config's loss alone."""
    try:
        also = _state.nvml.median(clocks)
        return replace(right, timing=_state.bench.measured(timed, windows, "cold", **also))
    except Exception as error:
        return _failed(error, "measure")


def _rounds(timed: Mapping[int, Any]) -> tuple[dict[int, list[list[float]]], list[Any]]:
    """Windows of each in turn, the order reversed each round, until all are precise."""
    bench, protocol = _state.bench, _state.job.protocol
    windows: dict[int, list[list[float]]] = {i: [] for i in timed}
    clocks, done, end = [], 0, time.perf_counter() + protocol.final_s
    while done < protocol.rounds or (
        done < protocol.most_rounds and time.perf_counter() < end and not _precise(windows)
    ):
        for order in (list(timed), list(timed)[::-1]):
            for i in order:
                windows[i].append(bench.window(timed[i], protocol.window_s))
            clocks.append(_state.nvml.read())
            done += 1
    return windows, clocks


def _checked(choice: Choice, seed: int = 0) -> Screened:
    """The answer alone. A library baseline is judged like the rest."""
    from workbench.check import Posed, check

    job, problems = _state.job, _state.problems
    try:
        if seed not in problems:
            problems[seed] = Posed.of(_state.spec, job.sizes, job.dtype, "cuda", seed)
        checked = check(*resolve(_state.spec, choice), problems[seed])
    except Exception as error:
        return _failed(error, "launch")
    if checked.wrong:
        return Screened(checked.error, stage="check", reason=checked.wrong)
    return Screened(checked.error)


def _settle(bench: Any, protocol: Protocol, timed: Mapping[int, Any]) -> None:
    """Run until two windows in a row agree: the boost clock has given way to the sustained one."""
    if not timed:
        return
    busiest = min(timed.values(), key=lambda t: t.estimate_s)
    end, last = time.perf_counter() + protocol.settle_s, None
    while time.perf_counter() < end:
        now = stats.median(bench.window(busiest, 0.1))
        if last is not None and abs(now - last) <= protocol.settled * last:
            return
        last = now


def _precise(windows: Mapping[int, Sequence[Sequence[float]]]) -> bool:
    protocol = _state.job.protocol
    for taken in windows.values():
        low, high = stats.windowed_interval(taken)
        middle = stats.median([s for window in taken for s in window])
        count = sum(len(window) for window in taken)
        if count < protocol.least_samples or (high - low) / 2 > protocol.precise * middle:
            return False
    return True


def hot(choice: Choice) -> Screened:
    """The same call back to back on the same buffers, which the cache may hold. Its windows take
    turns with cold ones under the same load, so that what differs is the cache and not the clock:
    alone, after a pause, a matmul of 206 us ran at 175 us, all of it the clock's doing."""
    try:
        bench = _state.bench
        timed = {}
        for i, regime in enumerate(("cold", "hot")):
            rotation = bench.calls(*resolve(_state.spec, choice), regime)
            timed[i] = bench.timed(rotation, bench.first_time(rotation))
        _settle(bench, _state.job.protocol, timed)
        windows, clocks = _rounds(timed)
        also = _state.nvml.median(clocks)
        return Screened(timing=bench.measured(timed[1], windows[1], "hot", **also))
    except Exception as error:
        return _failed(error, "measure")


def resolve(spec: Any, choice: Choice) -> tuple[Impl, Any]:
    """The Impl and the config that a choice names."""
    impl = catalog.impl_of(spec, choice.impl)
    return impl, impl.config(**choice.config)


def _failed(error: Exception, stage: str) -> Screened:
    from workbench.compile import first_sentence

    text = first_sentence(error)
    kind = type(error).__name__
    if kind == "OutOfMemoryError":
        import torch

        torch.cuda.empty_cache()
        return Screened(stage="measure", reason="out of GPU memory: the inputs in rotation and "
                        "the outputs do not fit; name smaller sizes")  # fmt: skip
    sticky = kind == "AcceleratorError" or "CUDA error" in text or "HIP error" in text
    return Screened(stage=stage, reason=text, poisoned=sticky)
