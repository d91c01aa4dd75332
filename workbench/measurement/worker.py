"""Tasks of the measuring process: check, first pass, halving, final, comparison.

Arguments and results are plain values. The process keeps one bench, for its last problem. Each
config is checked before it is timed, in the same process, on the inputs and memory that are timed.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from workbench import catalog
from workbench.catalog.source import Loaded, SourceChanged, load_kernel
from workbench.data.environment import fingerprint
from workbench.data.errors import first_sentence
from workbench.data.record import Energy, Environment, Measured, Stage, Verdict
from workbench.data.stats import median
from workbench.data.triton_key import key_of_triton
from workbench.device import hardware
from workbench.device.bounds import bound_s, cache_bytes, hot_bound_s
from workbench.measurement import preflight, rounds
from workbench.measurement.candidate import WHOLE, Candidate, Refusal, Timed, Untimed
from workbench.measurement.halving import halve
from workbench.measurement.protocol import BOOST, Protocol
from workbench.measurement.rounds import Window
from workbench.spec import Impl, Sizes, Spec, SpecFault

if TYPE_CHECKING:
    from workbench.measurement.correctness import Checked
    from workbench.measurement.tamper import Snapshot


@dataclass(frozen=True)
class MeasureJob:
    """The problem of a measuring process."""

    kernel: str  # name, module or path
    sizes: Sizes
    dtype: str
    protocol: Protocol
    seed: int = 0  # of the inputs; the next one is that of the second check


@dataclass(frozen=True)
class WorkerTask:
    """One variant of an experiment: a candidate at its own problem. With the `host` clock a call
    lasts until the GPU is idle, including all launches by the CPU. With `boost` it is also timed in
    that state, before the clock settles."""

    job: MeasureJob
    candidate: Candidate
    regime: Literal["cold", "hot"] = "cold"
    clock: Literal["device", "host"] = "device"
    boost: bool = False


@dataclass(frozen=True)
class TaskTime:
    """The outcome of one task. `kernels` is the number of kernels that one call launches, from a
    captured graph, and `peak_bytes` the GPU memory of a call beyond its inputs; None where
    unknown. `boost` is its time in that state; None where not requested or not correct."""

    result: Timed | Refusal
    kernels: int | None = None
    peak_bytes: int | None = None
    boost: Timed | Refusal | None = None


@dataclass(frozen=True)
class PairTime:
    """Two operands measured against each other; no verdict where one of them has no time."""

    left: Timed | Refusal | None  # None where it was right, and the other one failed
    right: Timed | Refusal | None
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Spent:
    """Seconds of one task by activity; the rest of `total` was preparation and flushes."""

    check: float = 0.0  # results computed and compared
    timing_s: float = 0.0  # inside timed samples
    total: float = 0.0


@dataclass
class _Alone:
    """The candidate that this process times while other processes time theirs in turns."""

    candidate: Candidate
    entrant: Any
    check: Checked
    windows: list[Window] = field(default_factory=list)


@dataclass
class _State:
    """State of the process between tasks."""

    job: MeasureJob
    spec: Any
    bench: Any
    device: hardware.Device
    sensors: Any
    problems: dict[int, Any]  # by seed
    kernel: Loaded | None = None
    launches: dict[str, list[str]] = field(default_factory=dict)  # of one call, by config's key
    durations: Spent = field(default_factory=Spent)
    alone: _Alone | None = None  # see `open_alone`
    moved_bytes: int | None = None  # see `Timed.moved_bytes`


_now: _State | None = None
_snapshot: Snapshot | None = None  # the functions that the check relies on, before user code ran


def _state() -> _State:
    if _now is None:
        raise RuntimeError("the measuring process has no problem yet")
    return _now


def describe(repository: Path | None) -> tuple[hardware.Device, Environment, str] | None:
    """Return the live GPU, the fingerprint of machine and software, and the name of the GPU's lock.
    None where torch sees no GPU."""
    device = hardware.live()
    if device is None:
        return None
    import torch

    from workbench.measurement.clocks import Clocks

    index = torch.cuda.current_device()
    others = preflight.others_on_gpu(Clocks(index).processes(), {os.getpid()})
    result = replace(fingerprint(index, repository), others_on_gpu=others)
    return device, result, preflight.lock_name(index)


def describe_of(kernel: str) -> tuple[str, tuple[hardware.Device, Environment, str] | None]:
    """Return the folder of a kernel's file and `describe` of it, before anyone has asked."""
    file = catalog.module_of(kernel).__file__
    folder = Path(file).parent if file else Path.cwd()
    return str(folder), describe(folder)


def warm() -> None:
    """Import the compiler while the GPU is being opened, and all that the check relies on."""
    import torch

    from workbench.measurement.tamper import snapshot

    global _snapshot
    _snapshot = snapshot()

    def open_context() -> None:
        if torch.cuda.is_available():
            torch.zeros(1, device="cuda")

    opening = threading.Thread(target=open_context)
    opening.start()
    key_of_triton()  # where it is not known, half a second, which the first launch would take
    opening.join()


def load() -> None:
    """Launch the kernels that every problem needs, so that they are compiled and loaded: with an
    empty cache Triton compiles a driver module and a launcher of each kernel in C, one to two
    seconds."""
    import torch

    from workbench.measurement.clocks import Clocks
    from workbench.measurement.probe import sm_clock

    if torch.cuda.is_available():
        sm_clock(Clocks(torch.cuda.current_device()))
        preflight.rehearse()


def import_kernel(kernel: str) -> None:
    """Import a kernel's file and all that its launches need."""
    load_kernel(kernel).load()


# Libraries that are slow to import, in processes of their own


def share_of(impls: Sequence[Impl], share: int, of: int) -> list[str]:
    """Return the names of the libraries that process number `share` of `of` gets ready. Those that
    import the same modules are together."""
    groups = list(dict.fromkeys(impl.imports for impl in impls if impl.imports))
    return [impl.name for impl in impls if impl.imports in groups[share::of]]


def import_libraries(kernel: str, share: int, of: int) -> None:
    """Import what the first launches of a share of a kernel's libraries import. No work for the
    GPU."""
    impls = load_kernel(kernel).spec.impls
    names = share_of(impls, share, of)
    for module in dict.fromkeys(m for i in impls if i.name in names for m in i.imports):
        with suppress(ImportError):  # of a package that is not installed: it is refused later
            import_module(module)


def compile_libraries(job: MeasureJob, share: int, of: int) -> None:
    """Compile a share of a problem's libraries for its inputs, without a launch. A failure is that
    of the launch later."""
    import torch

    from workbench.measurement import inputs

    spec = load_kernel(job.kernel).spec
    names = share_of(spec.impls, share, of)
    compilable = [i for i in spec.impls if i.name in names and hasattr(i.launch, "compile_only")]
    if compilable:
        _set_precision()
        arguments = inputs.make(spec, job.sizes, job.dtype, "cuda", job.seed)
        for impl in compilable:
            with suppress(Exception):
                impl.launch.compile_only(*arguments)  # type: ignore[attr-defined]
        del arguments
        torch.cuda.empty_cache()


def begin(job: MeasureJob) -> None:
    """Make inputs and reference of a problem. Raises torch.OutOfMemoryError when it is too
    large."""
    global _now
    _now = None  # frees the last problem's memory
    _now = _prepare_state(job)


def _prepare_state(job: MeasureJob) -> _State:
    import torch

    from workbench.measurement import inputs
    from workbench.measurement.bench import Bench
    from workbench.measurement.clocks import Clocks
    from workbench.measurement.probe import sm_clock

    device = hardware.live()
    if device is None:
        raise RuntimeError("torch sees no GPU in the measuring process")
    _set_precision()
    torch.cuda.empty_cache()  # of what ran here before
    kernel = load_kernel(job.kernel)
    kernel.load()
    spec = kernel.spec
    at, seeds = (spec, job.sizes, job.dtype), (job.seed, job.seed + 1)
    pair = [inputs.make(*at, "cuda", seed) for seed in seeds]
    problems, moved, certain = observe_problems(*at, pair)
    costs = certain, spec.flops(**job.sizes), job.dtype
    bound, hot_bound = bound_s(device, *costs), hot_bound_s(device, *costs)
    sensors = Clocks(torch.cuda.current_device())
    cache, clock = cache_bytes(device), sm_clock(sensors)
    bench = Bench(*at, cache, bound, job.protocol, clock, hot_bound, pair, moved)
    _load_checks(problems[0])
    fewer = moved if 0 < moved < WHOLE * spec.bytes(*at[1:]) else None
    return _State(job, spec, bench, device, sensors, problems, kernel, moved_bytes=fewer)


def observe_problems(
    spec: Spec, sizes: Sizes, dtype: str, pair: Sequence[tuple[Any, ...]]
) -> tuple[dict[int, Any], int, int]:
    """Return the problem of the first inputs, the bytes that a call moves, and those that it moves
    for certain. Where its reference reads a part of the inputs there are both problems, and the
    bytes are the least of them."""
    from workbench.measurement.correctness import PreparedProblem
    from workbench.measurement.reads import Reads

    moved, certain = spec.bytes(sizes, dtype), spec.certain_bytes(sizes, dtype)
    problems: dict[int, Any] = {}
    for seed, given in enumerate(pair):
        reads = None if spec.has_stored_outputs else Reads()
        try:
            problems[seed] = PreparedProblem.wrap(spec, dtype, given, sizes, reads)
        except Exception:  # of following the reads, or of the reference
            problems[seed] = PreparedProblem.wrap(spec, dtype, given, sizes)
            return problems, moved, min(certain, spec.bytes_written(sizes, dtype))
        if reads is None:
            break
        most, least = reads.bytes(spec, sizes, dtype)
        moved, certain = min(moved, most), min(certain, least)
        if least >= spec.bytes(sizes, dtype):
            break
    return problems, moved, certain


def _set_precision() -> None:
    """Ask for equal precision: torch lets cuBLAS add the parts of a split K in bf16, 0.4 % of the
    rms off. What torch.compile compiled before this it compiles again."""
    import torch

    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def _load_checks(prepared: Any) -> None:
    """Check the reference itself, so that the kernels of the check are loaded and cost no config
    its time limit."""
    from workbench.measurement.correctness import check_outputs
    from workbench.measurement.inputs import torch_dtype

    kinds = [t.dtype or prepared.dtype for t in prepared.spec.outputs.values()]
    check_outputs(
        [e.to(torch_dtype(k)) for e, k in zip(prepared.expected_outputs, kinds, strict=True)],
        prepared,
    )


def self_test() -> dict[str, float]:
    """Return `preflight.self_test` of this GPU by name: `dram` in B/s, `launch` and `resolution` in
    s."""
    state = _state()
    return preflight.self_test(cache_bytes(state.device), state.job.protocol)


def references() -> dict[str, float]:
    """Return `preflight.references` of this GPU. Raises RuntimeError where torch sees none."""
    device = hardware.live()
    if device is None:
        raise RuntimeError("torch sees no GPU in the measuring process")
    return preflight.references(cache_bytes(device), Protocol())


def account_seconds(task: Callable[..., Any]) -> Callable[..., tuple[Any, Spent]]:
    """Return the task wrapped, so that it returns its result and its seconds by activity."""

    @wraps(task)
    def task_call(*args: Any) -> tuple[Any, Spent]:
        started = time.perf_counter()
        _state().durations = Spent()
        result = task(*args)
        return result, replace(_state().durations, total=time.perf_counter() - started)

    return task_call


@contextmanager
def _checking() -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        state = _state()
        check = state.durations.check + time.perf_counter() - started
        state.durations = replace(state.durations, check=check)


def _took(entrant: Any, windows: Sequence[Window]) -> None:
    state = _state()
    took = state.durations.timing_s + entrant.calls * sum(sum(w.samples_s) for w in windows)
    state.durations = replace(state.durations, timing_s=took)


@account_seconds
def first_pass(
    candidate: Candidate, best_s: float | None, kernel: str | None = None
) -> Timed | Refusal:
    """Check a config, time it briefly and return the result. Sampling stops after a first sample
    over `give_up` times `best_s`. A call must launch the compiled function `kernel`, if named."""
    try:
        return _first_pass(candidate, best_s, kernel)
    except BaseException as error:
        return _error_refusal(error, "launch")


def _first_pass(candidate: Candidate, best_s: float | None, kernel: str | None) -> Timed | Refusal:
    from workbench.measurement.bench import Impossible

    checked = _verify(candidate)
    if isinstance(checked, Refusal):
        return checked
    bench, protocol = _state().bench, _state().job.protocol
    rotation = bench.calls(*resolve(candidate))
    first = bench.first_time(rotation)
    if reason := _note_kernels(candidate, rotation, kernel):
        return Refusal("check", reason, rule="launches")
    slow = best_s is not None and first > protocol.give_up * best_s and first > 20e-6
    for attempt in (1, 2):
        try:
            timed = bench.choose_method(rotation, first, protocol.first_pass_graph_s)
            least = 1 if slow else protocol.first_pass_samples
            window = timed.window(0.0 if slow else protocol.first_pass_s, least)
            _took(timed, [window])
            return _timed_result(bench.summarise(timed, [window], "cold"), checked)
        except Impossible as impossible:
            if attempt == 2:
                return Refusal("measure", str(impossible), rule="floor")
    raise AssertionError("unreachable")


def _timed_result(timing: Measured | None, checked: Checked, repeats: bool | None = None) -> Timed:
    state, error, bits = _state(), checked.error, checked.bits
    moved = state.moved_bytes
    return Timed(timing, error, "gpu", bits, state.job.seed, repeats, moved_bytes=moved)


def _note_kernels(candidate: Candidate, rotation: Any, kernel: str | None) -> str | None:
    """Store the kernels of one call, with which those of its duplicates must agree. Returns why
    they are not those that were compiled, or None."""
    launches = _state().bench.launches(rotation)
    if launches is None:
        return None
    _state().launches[candidate.key] = launches
    if kernel is None or any(kernel in launch or launch[0] in " [" for launch in launches):
        return None
    names = ", ".join(dict.fromkeys(launch.partition(" ")[0][:80] for launch in launches))
    launched = names or "nothing"
    return f"a call launches {launched} on its own stream, and not the compiled kernel `{kernel}`"


@account_seconds
def duplicate(candidate: Candidate, leader: str) -> Timed | Refusal | None:
    """Check a config whose machine code is that of the config with the key `leader`.

    Returns a Timed without samples where its result is right and it launches the same kernels, a
    Refusal where it is wrong, and None where its launches differ or are unknown: it needs a time of
    its own.
    """
    checked = _verify(candidate)
    if isinstance(checked, Refusal):
        return checked
    try:
        bench = _state().bench
        launches = bench.launches(bench.calls(*resolve(candidate)))
    except BaseException as error:
        return _error_refusal(error, "launch")
    kernels = _state().launches.get(leader)
    if launches is None or launches != kernels:
        return None
    return _timed_result(None, checked)


@account_seconds
def halve_candidates(
    candidates: Sequence[Candidate], estimates: Sequence[float], keep: int
) -> list[Timed | Refusal]:
    """Return times from successive halving among configs that were right in the first pass.

    Windows are taken in turn, the slower half is dropped, the rest get twice the windows, until at
    most `keep` are left. Every config gets the median of all windows it took part in.
    """
    from workbench.measurement.correctness import Checked

    unchecked = Checked(0.0)  # here; the first pass has
    entrants, failed = _entrants(candidates, estimates)
    windows = halve(entrants, _state().job.protocol, keep)
    for i, taken in windows.items():
        _took(entrants[i], taken)
    return [
        failed[i] if i in failed else _add_time(unchecked, entrants[i], windows[i], "boost", {})
        for i in range(len(candidates))
    ]


@account_seconds
def final(candidates: Sequence[Candidate], estimates: Sequence[float]) -> list[Timed | Refusal]:
    """Return times of all candidates against each other.

    The clock is settled first, then windows are taken in rounds whose order is reversed each time,
    until every interval is narrow or the rounds are used up. Those that are far from the best take
    few rounds of their own after that.
    """
    try:
        return _final(candidates, estimates)
    except BaseException as error:
        return [_error_refusal(error, "measure") for _ in candidates]


def _final(candidates: Sequence[Candidate], estimates: Sequence[float]) -> list[Timed | Refusal]:
    checks = [_verify(candidate) for candidate in candidates]
    failed = {i: c for i, c in enumerate(checks) if isinstance(c, Refusal)}
    right = [i for i in range(len(candidates)) if i not in failed]
    entrants, unable = _entrants(candidates, estimates, only=right)
    failed |= unable
    protocol, far = _state().job.protocol, _far(candidates, entrants)
    near = {i: e for i, e in entrants.items() if i not in far}
    windows, also = _play_rounds(near, near=protocol.near)
    few = protocol.far_rounds
    brief = replace(protocol, settle_s=0.0, rounds=few, most_rounds=few)  # the clock has settled
    windows |= _play_rounds({i: entrants[i] for i in far}, brief)[0]
    results: list[Timed | Refusal] = []
    for i, candidate in enumerate(candidates):
        first = checks[i]
        if i in failed or isinstance(first, Refusal):
            results.append(failed[i])
            continue
        last, repeats = _checked_again(candidate, entrants[i], first)
        if isinstance(last, Refusal):
            results.append(last)
        else:
            more = {**also, "brief": i in far or _slowdown_share(windows, i) > protocol.near}
            results.append(
                _add_time(last, entrants[i], windows[i], "sustained", more, repeats=repeats)
            )
    return results


def _slowdown_share(windows: Mapping[int, Sequence[Window]], i: int) -> float:
    """Return by which share an entrant is slower than the fastest."""
    medians = {n: median([s for w in taken for s in w.samples_s]) for n, taken in windows.items()}
    return medians[i] / min(medians.values()) - 1


def _far(candidates: Sequence[Candidate], entrants: Mapping[int, Any]) -> set[int]:
    """Return the entrants that are far from the best, but for the default and the libraries, with
    which the winner is compared."""
    own = {i: e.estimate_s for i, e in entrants.items() if not candidates[i].case.is_baseline}
    most_s = (1 + _state().job.protocol.far) * min(own.values(), default=0.0)
    return {i for i, s in own.items() if s > most_s and not candidates[i].default}


def _checked_again(
    candidate: Candidate, entrant: Any, first: Checked
) -> tuple[Checked | Refusal, bool | None]:
    """Check the results of timed calls and, after the last of them, a call on other values. Returns
    the larger error with the bits of `first`, and whether all bits were the same."""
    state = _state()
    second = _verify(candidate, seed=1)
    if isinstance(second, Refusal):
        return second, None
    with _checking():
        try:
            timed = state.bench.check_calls(entrant, [state.problems[0], state.problems[1]])
        except BaseException as error:
            return _error_refusal(error, "measure"), None
    if wrong := next((c.wrong for _, c in timed if c.wrong), None):
        return Refusal("check", f"in timed calls, {wrong}", rule="timed"), None
    worst = max((first, second, *(c for _, c in timed)), key=lambda c: c.error)
    bits = [c.bits == (first, second)[problem].bits for problem, c in timed]
    return replace(first, error=worst.error), all(bits) if bits else None


def _entrants(
    candidates: Sequence[Candidate], estimates: Sequence[float], only: Collection[int] | None = None
) -> tuple[dict[int, Any], dict[int, Refusal]]:
    """Return an entrant of each candidate, and those that failed, such as a library's call that no
    graph can hold."""
    bench = _state().bench
    entrants: dict[int, Any] = {}
    failed: dict[int, Refusal] = {}
    for i, (candidate, estimate) in enumerate(zip(candidates, estimates, strict=True)):
        if only is not None and i not in only:
            continue
        try:
            rotation = bench.calls(*resolve(candidate))
            first = bench.first_time(rotation)
            entrants[i] = bench.choose_method(rotation, estimate or first)
        except BaseException as error:
            failed[i] = _error_refusal(error, "measure")
    return entrants, failed


def _play_rounds(
    entrants: Mapping[int, Any],
    protocol: Protocol | None = None,
    busiest: Any = None,
    near: float = math.inf,
) -> tuple[dict[int, list[Window]], dict[str, Any]]:
    """Return windows of each entrant in turn after the clock has settled, and the sensors
    meanwhile. Defaults: the job's protocol, and settling under the fastest config. `near` is as in
    `rounds.play`."""
    if not entrants:
        return {}, {}
    state, readings = _state(), []
    protocol = protocol or state.job.protocol
    rounds.settle(busiest or min(entrants.values(), key=lambda a: a.estimate_s), protocol)
    others = [_processes(state.sensors)]

    def note_readings() -> None:
        readings.append(state.sensors.read())
        others.append(_processes(state.sensors))

    windows = rounds.play(entrants, protocol, note_readings, near=near)
    for i, taken in windows.items():
        _took(entrants[i], taken)
    came = max(0, max(others) - others[0])
    return windows, {**state.sensors.summary(readings), "others_on_gpu": came}


def _rest_windows(entrants: Mapping[int, Any]) -> dict[int, list[Window]]:
    """Return windows of each entrant in the state boost."""
    windows = rounds.rested_windows(entrants, BOOST)
    for i, taken in windows.items():
        _took(entrants[i], taken)
    return windows


def _processes(sensors: Any) -> int:
    """Return the number of processes on the GPU, 0 if the driver does not list them."""
    return len(sensors.processes() or ())


def _heaviest(entrants: Mapping[int, Any]) -> Any:
    """Return the entrant that keeps the GPU busy for longest, or None where there is none: under an
    empty kernel the clock would settle at a value that holds for none of the others."""
    alone = [entrant for entrant in entrants.values() if entrant.method != "host"] or list(
        entrants.values()
    )
    return max(alone, key=lambda entrant: entrant.estimate_s, default=None)


def _add_time(
    checked: Checked,
    entrant: Any,
    windows: Sequence[Window],
    state: str,
    also: Mapping[str, Any],
    regime: str = "cold",
    repeats: bool | None = None,
) -> Timed | Refusal:
    """Return a checked result with its time; an impossible time fails only this config."""
    try:
        timing = _state().bench.summarise(entrant, windows, regime, state, **also)
        return _timed_result(timing, checked, repeats)
    except BaseException as impossible:
        return _error_refusal(impossible, "measure")


def _verify(candidate: Candidate, seed: int = 0) -> Checked | Refusal:
    """Return the check of a candidate's result, or why it is wrong. A library baseline is checked
    like the rest. The values are those of the second set of inputs where `seed` is 1."""
    from workbench.measurement.correctness import PreparedProblem, check

    state = _state()
    with _checking():
        try:
            if seed not in state.problems:
                inputs = state.bench.second_inputs
                state.problems[seed] = PreparedProblem.wrap(
                    state.spec, state.job.dtype, inputs, state.job.sizes
                )
            checked = check(*resolve(candidate), state.problems[seed])
        except BaseException as error:
            return _error_refusal(error, "launch")
    if _snapshot is not None and (name := _snapshot.replaced_function()) is not None:
        reason = f"the kernel's code replaced {name}, on which checks and times rely"
        return Refusal("check", reason, is_poisoned=True, rule="functions")
    return Refusal("check", checked.wrong, rule=checked.rule) if checked.wrong else checked


HOT_ROUNDS = 12


@account_seconds
def hot(candidate: Candidate) -> Timed | Refusal:
    """Return the time of calls back to back on the same buffers, which the cache may hold.

    Hot windows alternate with cold ones under the same load, so that they differ by the cache and
    not by the clock: alone, after a pause, a matmul of 206 us ran at 175 us, all due to the clock.
    """
    try:
        bench = _state().bench
        entrants = {}
        for i, regime in enumerate(("cold", "hot")):
            rotation = bench.calls(*resolve(candidate), regime)
            entrants[i] = bench.choose_method(rotation, bench.first_time(rotation))
        # after a final, in which the clock has settled; nothing is ranked by this time
        brief = replace(_state().job.protocol, settle_s=0.0, rounds=HOT_ROUNDS)
        windows, also = _play_rounds(entrants, brief)
        timing = bench.summarise(entrants[1], windows[1], "hot", "sustained", **also)
        return Timed(timing, 0.0, "gpu")
    except BaseException as error:
        return _error_refusal(error, "measure")


@account_seconds
def compare(left: Candidate, right: Candidate, requested_threshold: float) -> PairTime:
    """Return the times and verdict of `right` against `left`.

    Is it slower by more than `requested_threshold` (0.01 is one percent)? Both are checked first;
    `left` takes part twice, which measures the noise floor beside the two.
    """
    checks = _verify(left), _verify(right)
    if isinstance(checks[0], Refusal) or isinstance(checks[1], Refusal):
        return PairTime(_refusal_of(checks[0]), _refusal_of(checks[1]))
    entrants, failed = _entrants([left, left, right], [0.0] * 3)
    if failed:
        return PairTime(failed.get(0) or failed.get(1), failed.get(2))
    try:
        sensors = _state().sensors
        played = rounds.compare(
            entrants[0], entrants[1], entrants[2], _state().job.protocol, requested_threshold
        )
        also = sensors.summary([sensors.read()])
        for entrant, taken in zip(
            entrants.values(), (played.left, played.again, played.right), strict=True
        ):
            _took(entrant, taken)
        ends = (
            (checks[0], left, entrants[0], played.left),
            (checks[1], right, entrants[2], played.right),
        )
        timed = []
        for first, candidate, entrant, taken in ends:
            last, repeats = _checked_again(candidate, entrant, first)
            timed.append(
                last
                if isinstance(last, Refusal)
                else _add_time(last, entrant, taken, "sustained", also, repeats=repeats)
            )
    except BaseException as error:
        return PairTime(None, _error_refusal(error, "measure"))
    verdict = played.verdict if all(isinstance(t, Timed) for t in timed) else None
    return PairTime(timed[0], timed[1], verdict)


def open_alone(candidate: Candidate) -> Refusal | None:
    """Check a candidate and keep it as the one that `window_alone` times. Returns why it has no
    time, or None."""
    checked = _verify(candidate)
    if isinstance(checked, Refusal):
        return checked
    entrants, failed = _entrants([candidate], [0.0])
    if failed:
        return failed[0]
    _state().alone = _Alone(candidate, entrants[0], checked)
    return None


def window_alone(seconds: float, least: int) -> Window:
    """Return a window of about `seconds` of the open candidate, with nothing left on the GPU."""
    alone = _open_candidate()
    alone.windows.append(alone.entrant.begin(seconds, least).window())
    return alone.windows[-1]


def close_alone(count: int | None = None) -> Timed | Refusal:
    """Check the results of timed calls of the open candidate. Returns its time in the last `count`
    windows, all of them by default, or why it has none after all, such as a wrong result or windows
    that are shorter than possible."""
    alone = _open_candidate()
    _state().alone = None
    last, _ = _checked_again(alone.candidate, alone.entrant, alone.check)
    if isinstance(last, Refusal):
        return last
    windows = alone.windows if count is None else alone.windows[-count:]
    return _add_time(last, alone.entrant, windows, "sustained", {})


def _open_candidate() -> _Alone:
    alone = _state().alone
    if alone is None:
        raise RuntimeError("the measuring process has no open candidate")
    return alone


@account_seconds
def energy(candidates: Sequence[Candidate], windows: int) -> list[Energy | str]:
    """Return the energy of one call of each candidate, from `windows` windows in turns, or one
    sentence that says why it has none. Taken after all times, which it does not change."""
    import torch

    from workbench.measurement.back_to_back import BackToBack
    from workbench.measurement.energy import EnergyError, energies
    from workbench.measurement.energy_counter import open_counter

    reasons: dict[int, str] = {}
    try:
        counter = open_counter(torch.cuda.current_device())
        entrants, failed = _entrants(candidates, [0.0] * len(candidates))
        reasons |= {i: refusal.reason for i, refusal in failed.items()}
        loads: dict[int, Any] = {}
        for i, entrant in entrants.items():
            try:
                loads[i] = BackToBack(entrant)
            except EnergyError as error:
                reasons[i] = str(error)
        torch.cuda.synchronize()
        taken = energies(loads, counter, windows)
    except EnergyError as error:
        return [reasons.get(i, str(error)) for i in range(len(candidates))]
    except BaseException as error:
        reason = _error_refusal(error, "measure").reason
        return [reasons.get(i, reason) for i in range(len(candidates))]
    return [taken[i] if i in taken else reasons[i] for i in range(len(candidates))]


def _refusal_of(checked: Checked | Refusal) -> Refusal | None:
    return checked if isinstance(checked, Refusal) else None


@account_seconds
def measure_interleaved(parts: Sequence[WorkerTask]) -> list[TaskTime]:
    """Return the times of tasks of different problems, measured against each other.

    Each is checked, then all are timed in rounds as in `final` and by the protocol of the first,
    then each is checked again with other values. Those with `boost` are timed in that state before
    the rounds, each window after a pause. A task after which the GPU no longer responds is
    the first that is `poisoned`, and none has a time then. Raises ChildProcessError where it is not
    known which task did that.
    """
    own = _state()
    tasks = _Interleaved(parts, {(own.job.kernel, *own.job.sizes.items(), own.job.dtype): own})
    try:
        poison = tasks.open()
        if poison is not None:  # the others cannot be timed either
            return tasks.refuse_tasks(poison)
        try:
            taken = tasks.take()
        except BaseException as cause:  # it is unknown which task caused it
            refusal = _error_refusal(cause, "measure")
            if refusal.is_poisoned:  # the parent identifies it, as when the process dies
                raise ChildProcessError(f"the GPU answers it no more ({refusal.reason})") from cause
            return tasks.refuse_tasks(refusal)
        return tasks.close(taken)
    finally:
        _enter(own)


class _InterleavedWindows(NamedTuple):
    """Windows of tasks by their places: in rounds, and after pauses; and facts of all of them."""

    rounds: Mapping[int, Sequence[Window]]
    pauses: Mapping[int, Sequence[Window]]
    also: Mapping[str, Any]


@dataclass
class _Interleaved:
    """Tasks that are measured against each other, by their places."""

    parts: Sequence[WorkerTask]
    states: dict[Any, _State]
    refusals: dict[int, Refusal] = field(default_factory=dict)
    entrants: dict[int, Any] = field(default_factory=dict)
    counts: dict[int, tuple[int | None, int | None]] = field(default_factory=dict)

    def open(self) -> Refusal | None:
        """Check each task and prepare it. Returns the refusal after which the GPU no longer
        responds, at which it stops, or None."""
        for i, part in enumerate(self.parts):
            try:
                with _switch_problem(_problem_state(self.states, part.job)):
                    checked = _verify(part.candidate)
                    if isinstance(checked, Refusal):
                        self.refusals[i] = checked
                    else:
                        self.entrants[i], self.counts[i] = _entrant(part)
            except BaseException as unable:
                self.refusals[i] = _error_refusal(unable, "measure")
            if i in self.refusals and self.refusals[i].is_poisoned:
                return self.refusals[i]
        return None

    def take(self) -> _InterleavedWindows:
        """Return the windows of all that can be timed."""
        parts, entrants = self.parts, self.entrants
        rested = _rest_windows({i: e for i, e in entrants.items() if parts[i].boost})
        windows, also = _play_rounds(entrants, parts[0].job.protocol, _heaviest(entrants))
        return _InterleavedWindows(windows, rested, also)

    def close(self, taken: _InterleavedWindows) -> list[TaskTime]:
        """Check each task again, with other values, and return its times. After one that poisons
        the GPU none has a time."""
        results: list[TaskTime] = []
        for i in range(len(self.parts)):
            time, boost = self._close_task(i, taken)
            results.append(TaskTime(time, *self.counts.get(i, (None, None)), boost))
            if isinstance(time, Refusal) and time.is_poisoned:
                rest = range(len(results), len(self.parts))
                results += [TaskTime(time, *self.counts.get(n, (None, None))) for n in rest]
                break
        return results

    def _close_task(
        self, i: int, taken: _InterleavedWindows
    ) -> tuple[Timed | Refusal, Timed | Refusal | None]:
        """Return the time of a task, or why it has none, and its time after pauses."""
        if i not in self.entrants:
            return self.refusals[i], None
        part, entrant = self.parts[i], self.entrants[i]
        with _switch_problem(_problem_state(self.states, part.job)):
            checked = _verify(part.candidate, seed=1)
            if isinstance(checked, Refusal):
                return checked, None
            time = _add_time(
                checked, entrant, taken.rounds[i], "sustained", taken.also, part.regime
            )
            if i not in taken.pauses:
                return time, None
            return time, _add_time(checked, entrant, taken.pauses[i], "boost", {}, part.regime)

    def refuse_tasks(self, refusal: Refusal) -> list[TaskTime]:
        """Return each task without a time: for its own reason, or for this one."""
        return [TaskTime(self.refusals.get(i, refusal)) for i in range(len(self.parts))]


def _problem_state(states: dict[Any, _State], job: MeasureJob) -> _State:
    """Return the state of a problem, made where it does not exist yet."""
    key = (job.kernel, *job.sizes.items(), job.dtype)
    if key not in states:
        states[key] = _prepare_state(job)
    return states[key]


@contextmanager
def _switch_problem(state: _State) -> Iterator[None]:
    """Run the block on another problem; its seconds count for the task."""
    before = _state()
    _enter(state)
    try:
        yield
    finally:
        _enter(before)


def _enter(state: _State) -> None:
    """Make this problem the current one; the seconds so far go with the task."""
    global _now
    state.durations = _state().durations
    _now = state


def _entrant(part: WorkerTask) -> tuple[Any, tuple[int | None, int | None]]:
    """Return an entrant of a task, and the kernels and bytes of memory of one call."""
    from workbench.measurement.bench import BenchTime
    from workbench.measurement.graphs import graphs
    from workbench.measurement.stream import host_samples

    bench = _state().bench
    rotation = bench.calls(*resolve(part.candidate), part.regime)
    first = bench.first_time(rotation)
    peak = rotation.peak_bytes()
    counting = graphs()
    kernels = None if rotation.waits else counting.kernels(rotation.restored_call)
    rotation.forget()  # outputs that were never written, before their memory is freed
    if part.clock == "host":
        # the device alone may take a tenth of that, which would make windows ten times too long
        first = min(host_samples(rotation.step(), 2))
        return BenchTime("host", rotation, 1, first, bench.clock), (kernels, peak)
    return bench.choose_method(rotation, first), (kernels, peak)


def resolve(candidate: Candidate) -> tuple[Impl, Any]:
    """Return the Impl and the config of a candidate, found by name in this process. Raises
    SourceChanged where its code is not the one that was planned."""
    state = _state()
    if candidate.version:
        kernel = load_kernel(state.job.kernel, candidate.version)
    else:
        kernel = state.kernel or Loaded(state.spec, {})
    impl = kernel.impl(candidate.case.impl, candidate.code)
    return impl, impl.config(**candidate.case.config)


def _error_refusal(error: BaseException, stage: Stage) -> Refusal:
    if isinstance(error, (SourceChanged, SpecFault)):  # nothing more can be measured
        raise error
    if type(error).__name__ == "OutOfMemoryError":
        import torch

        torch.cuda.empty_cache()
        return Refusal("measure", _memory_sentence(str(error)))
    if isinstance(error, Untimed):
        return Refusal("check", str(error), rule="streams" if _is_unjoined(error) else None)
    lost = _is_gpu_lost()
    return Refusal(stage, first_sentence(error), is_poisoned=lost, cause="crash" if lost else None)


def _is_unjoined(error: Untimed) -> bool:
    from workbench.measurement.graphs import NotJoined

    return isinstance(error, NotJoined)


def _memory_sentence(text: str) -> str:
    """Return a sentence on a failed allocation: how much was requested, and what was there."""
    import torch

    free, total = torch.cuda.mem_get_info()
    wanted = re.search(r"allocate ([\d.]+ \w+)", text)
    return (
        f"out of GPU memory: a call tried to allocate {wanted[1] if wanted else 'memory'}, where "
        f"{free / 2**30:.1f} of {total / 2**30:.0f} GiB are free next to the inputs in rotation; "
        "name smaller sizes if that is what the kernel needs"
    )


def _is_gpu_lost() -> bool:
    """Return whether the GPU no longer responds to this process: after an illegal or misaligned
    access or an assertion, every further call fails."""
    import torch

    if not torch.cuda.is_available():
        return False
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False
