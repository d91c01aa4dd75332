"""Check and time configs on a Metal device, in the process that has it.

Results are checked at the Spec's sizes to check, and at the sizes to time where the reference on
the CPU takes about a second. The driver prepares calls: MLX's on a Mac, or one with a clock of its
own in a rehearsal and in tests.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, Literal
from typing import Protocol as Interface

from workbench.catalog.source import SourceChanged, load_kernel
from workbench.data.errors import first_sentence
from workbench.data.record import Checked as CheckedBy
from workbench.data.record import Verdict
from workbench.data.units import duration
from workbench.data.user_code import user_code
from workbench.device.bounds import bound_s
from workbench.device.hardware import Device
from workbench.measurement import inputs, rounds
from workbench.measurement.candidate import Candidate, Refusal, Timed, Untimed
from workbench.measurement.correctness import Checked, PreparedProblem, check, check_outputs
from workbench.measurement.metal_timing import MetalEntrant, MetalProtocol, TimedCall, measured_time
from workbench.measurement.reference import output_tuple
from workbench.measurement.rounds import Window
from workbench.spec import Impl, Sizes, Spec, SpecFault, sizes_text

CHECKED_FLOPS = 4e9  # of a reference in float64, about a second of a CPU
CHECKED_BYTES = 1 << 28
LAUNCH_LIMIT_S = 300.0
MLX = "metal_shim.mlx_backend"


class MetalDriver(Interface):
    """Prepares calls on a device and tells its time. `checked_by` says where results come from."""

    @property
    def checked_by(self) -> CheckedBy:
        """Return "gpu", or "rehearsal" where none took part."""

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""

    def prepare(self, impl: Impl, config: Any, inputs: Sequence[Any], cold_bytes: int) -> TimedCall:
        """Return a call of a config on copies of these inputs that hold `cold_bytes` in all."""

    def empty(self) -> TimedCall:
        """Return a call of an empty kernel."""

    def info(self) -> Mapping[str, Any]:
        """Return what is known of the device, with its `architecture`."""


def mlx_driver() -> MetalDriver:
    """Return the driver of this machine's Metal device; imports MLX."""
    driver: MetalDriver = import_module(MLX).MlxDriver()
    return driver


def info(driver: MetalDriver | None) -> Mapping[str, Any]:
    """Return the device's description; `driver` None is MLX's, here and below."""
    return (driver or mlx_driver()).info()


@dataclass(frozen=True)
class MetalTask:
    """One config to check and time at one size."""

    kernel: str
    candidate: Candidate
    sizes: Sizes
    dtype: str
    device: Device
    regime: Literal["cold", "hot"] = "cold"


@dataclass(frozen=True)
class MetalPair:
    """Times of two operands, and the verdict on the right one."""

    left: Timed | Refusal
    right: Timed | Refusal
    verdict: Verdict | None


def resolve_task(task: MetalTask) -> tuple[Spec, Impl, Any]:
    """Return the Spec, Impl and config of a task. MLX's own version is no Impl of the file."""
    kernel, case = load_kernel(task.kernel, task.candidate.version), task.candidate.case
    if case.backend == "mlx":
        impl = import_module("metal_shim.operations").mlx_impl(kernel.spec)
        return kernel.spec, impl, impl.config()
    impl = kernel.impl(case.impl, task.candidate.code)
    return kernel.spec, impl, impl.config(**case.config)


@dataclass(frozen=True)
class CheckedTask:
    """A config that gave the correct results, and the seconds that it took to compile."""

    check: Checked
    compile_s: float
    checker: CheckedBy


_results: dict[tuple[str, str], CheckedTask | Refusal] = {}  # by kernel and the candidate's key


def check_task(task: MetalTask, driver: MetalDriver, seed: int) -> CheckedTask | Refusal:
    """Return the largest error of a config over the sizes to check, or why it is wrong; kept for
    the life of the process."""
    key = (task.kernel, task.candidate.key)
    if key not in _results:
        _results[key] = _check(task, driver, seed)
    return _results[key]


def _compile_s(call: Callable[[], Any], now: Callable[[], float]) -> float:
    """Return the seconds by which the first call outlasts the second, at least 0: MLX compiles a
    kernel at its first launch, once for the life of the process."""
    times = [now()]
    for _ in range(2):
        call()
        times.append(now())
    return max(0.0, (times[1] - times[0]) - (times[2] - times[1]))


def _check(task: MetalTask, driver: MetalDriver, seed: int) -> CheckedTask | Refusal:
    spec, impl, config = resolve_task(task)
    at = (config, task.device.limits, task.dtype)
    sizes = [s for s in spec.check if impl.rejection_reason(*at, s) is None]
    small = spec.flops(**task.sizes) <= CHECKED_FLOPS
    small = small and spec.held_bytes(task.sizes, task.dtype) <= CHECKED_BYTES
    if small and dict(task.sizes) not in map(dict, sizes):
        sizes.append(task.sizes)
    if not sizes:
        return Refusal("check", "it takes none of the sizes to check, so its result is unchecked")
    results: list[Checked] = []
    compile_s = 0.0
    for each in sizes:
        try:
            problem = PreparedProblem.make(spec, each, task.dtype, "cpu", seed)
            with user_code(f"the launch of {impl.title}", LAUNCH_LIMIT_S):
                if not results and not impl.mutates:
                    call = partial(impl, *problem.inputs, config=config)
                    compile_s = _compile_s(call, driver.now)
                results.append(check(impl, config, problem))
        except (SpecFault, SourceChanged):
            raise
        except Exception as error:
            return Refusal("launch", f"at {sizes_text(each)}: {first_sentence(error)}")
        if results[-1].wrong:
            return Refusal(
                "check", f"at {sizes_text(each)} {results[-1].wrong}", rule=results[-1].rule
            )
    worst = max(results, key=lambda checked: checked.error)
    return CheckedTask(worst, compile_s, driver.checked_by)


def measure_tasks(
    tasks: Sequence[MetalTask],
    rules: MetalProtocol,
    most_rounds: int | None,
    driver: MetalDriver | None,
    seed: int,
) -> list[Timed | Refusal]:
    """Check all tasks, warm each up, time the right ones in turns, and return a result for each.
    There are at most `most_rounds` turns, or as many as the protocol has."""
    driver = driver or mlx_driver()
    results: dict[int, Timed | Refusal] = {}
    checks: dict[int, CheckedTask] = {}
    entrants: dict[int, MetalEntrant] = {}
    for at, task in enumerate(tasks):
        checked = check_task(task, driver, seed)
        entrant = checked if isinstance(checked, Refusal) else _entrant(task, rules, driver)
        if isinstance(entrant, Refusal):
            results[at] = entrant
        else:
            assert isinstance(checked, CheckedTask)
            checks[at], entrants[at] = checked, entrant
    turns = rules
    if most_rounds is not None:
        turns = replace(rules, rounds=2, least_rounds=2, most_rounds=most_rounds)
    for at, taken in rounds.play(entrants, turns, now=driver.now).items():
        brief = most_rounds is not None
        results[at] = _time_call(tasks[at], checks[at], entrants[at], taken, rules, seed, brief)
    return [results[at] for at in range(len(tasks))]


def _entrant(task: MetalTask, rules: MetalProtocol, driver: MetalDriver) -> MetalEntrant | Refusal:
    """Return a warm call of a task, or why there is none."""
    spec, impl, config = resolve_task(task)
    cold = rules.cold_bytes if task.regime == "cold" else 0
    try:
        arguments = inputs.make(spec, task.sizes, task.dtype, "cpu", secrets.randbits(31))
        with user_code(f"the launch of {impl.title}", LAUNCH_LIMIT_S):
            call = driver.prepare(impl, config, arguments, cold)
        return MetalEntrant.warm_up(call, driver.empty(), rules)
    except (SpecFault, SourceChanged):
        raise
    except Untimed as error:
        return Refusal("measure", str(error))
    except Exception as error:
        return Refusal("launch", first_sentence(error))


def _time_call(
    task: MetalTask,
    checked: CheckedTask,
    entrant: MetalEntrant,
    windows: Sequence[Window],
    rules: MetalProtocol,
    seed: int,
    brief: bool = False,
) -> Timed | Refusal:
    """Return a result with its time; that of a `brief` pass need not be narrow. A cold time below
    the roofline bound is refused, as on any GPU."""
    stable = brief or rounds.stable(windows, rules)
    timing = measured_time(windows, entrant.warm, rules, task.regime, stable, checked.compile_s)
    bound = _bound_s(task) if task.regime == "cold" else 0.0
    if timing.median_s < rules.bound * bound:
        times = f"{duration(timing.median_s)} is below the roofline bound of {duration(bound)}"
        return Refusal("measure", f"{times}: the calls did not do all of their work", rule="floor")
    return Timed(timing, checked.check.error, checked.checker, checked.check.bits, seed)


def _bound_s(task: MetalTask) -> float:
    spec = load_kernel(task.kernel, task.candidate.version).spec
    costs = spec.bytes(task.sizes, task.dtype), spec.flops(**task.sizes), task.dtype
    return bound_s(task.device, *costs)


def compare_tasks(
    left: MetalTask,
    right: MetalTask,
    requested_threshold: float,
    rules: MetalProtocol,
    driver: MetalDriver | None,
    seed: int,
) -> MetalPair:
    """Return the times of two operands and their verdict: both are checked, then timed in turns,
    the left one twice for the noise floor."""
    driver = driver or mlx_driver()
    checks = [check_task(task, driver, seed) for task in (left, right)]
    entrants = [
        c if isinstance(c, Refusal) else _entrant(task, rules, driver)
        for c, task in zip((checks[0], *checks), (left, left, right), strict=True)
    ]
    bad = next((e for e in entrants if isinstance(e, Refusal)), None)
    other = Refusal("measure", "gave no time", own=False)
    if bad is not None:
        either = [e if isinstance(e, Refusal) else other for e in (entrants[0], entrants[2])]
        return MetalPair(either[0], either[1], None)
    first, again, second = (e for e in entrants if isinstance(e, MetalEntrant))
    played = rounds.compare(first, again, second, rules, requested_threshold, driver.now)
    ends = ((left, checks[0], first, played.left), (right, checks[1], second, played.right))
    timed = [
        _time_call(task, c, entrant, windows, rules, seed)
        for task, c, entrant, windows in ends
        if isinstance(c, CheckedTask)
    ]
    both = all(isinstance(result, Timed) for result in timed)
    return MetalPair(timed[0], timed[1], played.verdict if both else None)


@dataclass(frozen=True)
class KernelCheck:
    """Checks of all Metal Impls of one operation; `error` is the largest in units of tolerance."""

    cases: int
    wrong: int
    error: float
    sentence: str  # of the first wrong one, or what was checked


def check_kernel(
    kernel: str, most: int | None, driver: MetalDriver | None, seed: int
) -> KernelCheck:
    """Return the checks of the default config of each Metal Impl at every size to check in each
    dtype, of the first `most` cases alone where that is given."""
    number, worst, reasons = 0, 0.0, list[str]()
    for case in import_module("metal_shim.check").cases(load_kernel(kernel).spec):
        if most is not None and number >= most:
            break
        number += 1
        try:
            problem = PreparedProblem.make(case.impl.spec, case.sizes, case.dtype, "cpu", seed)
            checked = check(case.impl, case.config, problem)
            worst = max(worst, checked.error)
            reason = checked.wrong
        except Exception as error:  # of the launch: Apple's compiler, the driver
            reason = first_sentence(error)
        if reason:
            reasons.append(f"{case}: {reason}")
    sentence = reasons[0] if reasons else f"Cases at sizes to check, in each dtype: {number}."
    return KernelCheck(number, len(reasons), worst, sentence)


def emulator_difference(task: MetalTask, driver: MetalDriver | None, seed: int) -> float:
    """Return the largest difference, in units of the tolerance, between the emulator and the device
    on the same inputs, at the largest size to check that the config takes."""
    spec, impl, config = resolve_task(task)
    at = (config, task.device.limits, task.dtype)
    sizes = max(
        (s for s in spec.check if impl.rejection_reason(*at, s) is None),
        key=lambda s: spec.bytes(s, task.dtype),
    )
    arguments = inputs.make(spec, sizes, task.dtype, "cpu", seed)
    emulator = import_module("metal_shim.emulate")
    with emulator.emulation(emulator.EmulationOptions()):
        emulated = output_tuple(impl(*arguments, config=config))
    expected = tuple(x.double() if x.is_floating_point() else x for x in emulated)
    problem = PreparedProblem(spec, task.dtype, arguments, expected)
    return check_outputs(output_tuple(impl(*arguments, config=config)), problem).error
