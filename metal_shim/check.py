"""Check the Metal kernels of an operation on the CPU: `python -m metal_shim.check softmax`.

Runs each Metal Impl at the Spec's check sizes in each dtype and schedule, and prints the checks in
the order in which a fault of one hides those of the next: synccheck, racecheck, memcheck,
initcheck, then the comparison with the reference.
"""

from __future__ import annotations

import argparse
import errno
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metal_shim.compiler import find_compiler
from metal_shim.emulate import (
    SCHEDULES,
    CheckName,
    EmulatedRun,
    EmulationError,
    EmulationFinding,
    EmulationOptions,
    EndlessRun,
    MetalLaunch,
    Schedule,
    emulation,
    planning,
    run_corners,
)
from workbench import catalog
from workbench.data.errors import first_sentence
from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED, stopped_by
from workbench.data.units import amount
from workbench.device.hardware import UNCOMPILED
from workbench.spec import Impl, Sizes, Spec, WorkbenchError, label, sizes_text, values

if TYPE_CHECKING:  # it imports torch, and --help and --limits need none
    from workbench.measurement.correctness import PreparedProblem

DEVICE = "m2max"  # its limits are those of every Apple GPU since the M1

LIMITS = """\
What an emulated run cannot show:
- whether Apple's compiler takes the text: clang reads it in its mode C++ for OpenCL
- registers, and the smaller number of threads that a kernel with many of them may have
- last bits: fast maths, fused multiply-adds, denormals, the order in which simd_sum adds
- forward progress between threadgroups, caches, memory banks, occupancy, and any time
- textures, ray tracing, tensor_ops and atomic_thread_fence, which the emulator does not have
- shifts by the width of a number or more: masked here, undefined in MSL
- private arrays past their end through a pointer, while the address stays on the thread's stack
- more than one fault of a run: it ends at the first
"""


class NoMetalImpl(WorkbenchError, ValueError):
    """A kernel has no Metal Impl to check."""


class NotANumber(WorkbenchError, ValueError):
    """A value of the command line is no number."""


@dataclass(frozen=True)
class MetalCase:
    """One Impl at one size in one dtype."""

    impl: Impl
    config: Any
    sizes: Sizes
    dtype: str

    def __str__(self) -> str:
        at = f"{sizes_text(self.sizes)}, {self.dtype}, {label(values(self.config))}"
        return f"{self.impl.title} ({at})"


@dataclass
class CheckReport:
    """Findings of all runs by check, wrong answers, the Impls of which a run did not end, and the
    dispatches of the last clean run of each Impl, in their order."""

    runs: int = 0
    findings: dict[CheckName, list[EmulationFinding]] = field(
        default_factory=lambda: {name: [] for name in CheckName}
    )
    wrong: list[str] = field(default_factory=list)
    endless: list[str] = field(default_factory=list)
    dispatches: dict[str, tuple[MetalCase, list[EmulatedRun]]] = field(default_factory=dict)
    corners: int = 0  # runs of corner threadgroups at bench sizes
    not_ended: list[str] = field(default_factory=list)  # cases of which not all corners ran

    @property
    def is_clean(self) -> bool:
        """Whether no run had a finding or a wrong answer."""
        return not self.wrong and not any(self.findings.values())


def _silent(text: str) -> None:
    pass


def metal_impls(spec: Spec) -> list[Impl]:
    """Return the Metal Impls of an operation. Raises NoMetalImpl where it has none."""
    impls = [impl for impl in spec.impls if impl.backend == "metal"]
    if not impls:
        known = ", ".join(catalog.names_in(catalog.METAL))
        raise NoMetalImpl(f"{spec.name} has no Metal impl; these kernels have: {known}.")
    return impls


def cases(spec: Spec, at_bench: bool = False) -> Iterator[MetalCase]:
    """Yield the default config of each Metal Impl at each size to check and in each dtype, or at
    each bench size in the first."""
    limits, dtypes = UNCOMPILED[DEVICE].limits, list(spec.tolerance)
    for impl in metal_impls(spec):
        for sizes in spec.bench if at_bench else spec.check:
            for dtype in dtypes[:1] if at_bench else dtypes:
                config = impl.default(limits, dtype, sizes)
                if impl.rejection_reason(config, limits, dtype, sizes) is None:
                    yield MetalCase(impl, config, sizes, dtype)


def checked(spec: Spec, report: CheckReport, progress: Callable[[str], None] = _silent) -> None:
    """Run every case, its schedules side by side, and enter the findings into a report. Of an Impl
    with a run that does not end the further cases are left out. Raises CompilerMissing."""
    from workbench.measurement.correctness import PreparedProblem

    find_compiler()
    with ThreadPoolExecutor(len(SCHEDULES)) as pool:
        for case in cases(spec):
            if case.impl.name not in report.endless:
                progress(str(case))
                problem = PreparedProblem.make(spec, case.sizes, case.dtype, "cpu")
                for outcome in pool.map(partial(_run, case, problem), SCHEDULES):
                    _enter(outcome, case, report)


def check_corners(
    spec: Spec, report: CheckReport, progress: Callable[[str], None] = _silent
) -> None:
    """Run the corner threadgroups of every dispatch at the bench sizes, on addresses alone, and
    enter what they show."""
    from workbench.measurement import inputs

    planned = list[tuple[MetalCase, MetalLaunch]]()
    for case in cases(spec, at_bench=True):
        try:
            with planning() as launches:
                case.impl(*inputs.shapes(spec, case.sizes, case.dtype), config=case.config)
            planned += [(case, launch) for launch in launches]
        except Exception as error:  # a launcher that reads its inputs, or a refused launch
            report.not_ended.append(f"{case}, {first_sentence(error).rstrip('.')}")
    progress(f"{spec.name} at bench sizes")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = [(case, pool.submit(run_corners, launch)) for case, launch in planned]
    report.corners += len(runs)
    for case, run in runs:
        try:
            run.result()
        except EndlessRun:
            report.not_ended.append(f"{case}, cut short")
        except EmulationError as error:
            report.findings[error.finding.check].append(error.finding)
        except WorkbenchError as error:  # a text that clang does not take with checked casts
            report.not_ended.append(f"{case}, {first_sentence(error).rstrip('.')}")


def _run(
    case: MetalCase, problem: PreparedProblem, schedule: Schedule
) -> EmulationError | tuple[str | None, list[EmulatedRun]]:
    """Return the fault of a run, or what is wrong in its results and its counted dispatches."""
    from workbench.measurement.correctness import check

    counting = schedule is SCHEDULES[-1]
    try:
        with emulation(EmulationOptions(schedule, counting, unset=counting)) as runs:
            return check(case.impl, case.config, problem).wrong, runs if counting else []
    except EmulationError as error:
        return error


def _enter(
    outcome: EmulationError | tuple[str | None, list[EmulatedRun]],
    case: MetalCase,
    report: CheckReport,
) -> None:
    report.runs += 1
    if isinstance(outcome, EmulationError):
        report.findings[outcome.finding.check].append(outcome.finding)
        if isinstance(outcome, EndlessRun) and case.impl.name not in report.endless:
            report.endless.append(case.impl.name)
        return
    wrong, runs = outcome
    if wrong:
        report.wrong.append(f"{case}: {wrong}")
    if runs:
        report.dispatches[case.impl.name] = (case, runs)


def lines(report: CheckReport, name: str) -> Iterator[str]:
    """Yield the lines that the command prints."""
    yield f"{name}: {report.runs} runs emulated on a CPU; Apple's compiler and GPU took no part"
    for check_name, findings in report.findings.items():
        first = f": {findings[0]}" if findings else ""
        yield f"{check_name.value:<10} {amount(len(findings), 'finding')}{first}"
    first = f": {report.wrong[0]}" if report.wrong else ""
    yield f"{'results':<10} {amount(len(report.wrong), 'wrong result')}{first}"
    if report.corners or report.not_ended:
        cut = f"; not all of {'; '.join(report.not_ended)}" if report.not_ended else ""
        yield f"{'corners':<10} {amount(report.corners, 'dispatch')} at bench sizes{cut}"
    for impl in report.endless:
        yield f"{impl}: a run did not end, and its further runs were left out"
    for case, runs in report.dispatches.values():
        yield f"dispatches of {case}"
        for run in runs:
            yield from _dispatch_lines(run)


def _dispatch_lines(run: EmulatedRun) -> Iterator[str]:
    """Yield the geometry of a dispatch and the traffic of its buffers."""
    grid, group = ("x".join(map(str, extents)) for extents in (run.grid, run.group))
    used = run.traffic.threadgroup_bytes
    if run.cut_from:
        group += f", cut from {'x'.join(map(str, run.cut_from))} to the grid"
    yield (
        f"  {run.call.source.name}: grid of {grid} threads, threadgroups of {group}, "
        f"{used} bytes of threadgroup memory"
    )
    for buffer, bytes_ in run.traffic.buffers.items():
        requested = bytes_.requested_read + bytes_.requested_written
        unique = bytes_.unique_read + bytes_.unique_written
        yield (
            f"    {buffer:<10} {requested:>10} bytes requested, {unique:>10} unique, "
            f"{32 * bytes_.sectors:>10} in sectors"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0 if clean, 1 with findings, 2 where nothing
    could be checked or printed, 130 after Ctrl-C, 141 where a closed pipe wants no more output."""
    parser = argparse.ArgumentParser(prog="python -m metal_shim.check", description=__doc__)
    parser.add_argument(
        "kernel", nargs="?", help="name of an operation, the path of its file, or FILE.metal"
    )
    parser.add_argument("--limits", action="store_true", help="print what a check cannot show")
    file = parser.add_argument_group("for a kernel of FILE.metal")
    file.add_argument("--kernel", dest="function", default="", metavar="NAME", help="which one")
    file.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE",
                      help="n=128, x=fp16:3x128, y=64=0, x=@x.npy, args.field=1")  # fmt: skip
    file.add_argument("--grid", metavar="X,Y,Z", help="threads of the grid")
    file.add_argument("--groups", metavar="X,Y,Z", help="threadgroups of the grid, in its place")
    file.add_argument("--group", default="32", metavar="X,Y,Z", help="threads of a threadgroup")
    file.add_argument("--define", action="append", default=[], metavar="NAME=VALUE")
    file.add_argument("--constant", action="append", default=[], metavar="NAME=VALUE",
                      help="value of a function constant")  # fmt: skip
    file.add_argument("--include", action="append", default=[], metavar="FOLDER")
    file.add_argument("--same-value", action="append", default=[], metavar="NAME",
                      help="an output to which threads may write the same value")  # fmt: skip
    file.add_argument("--expect", action="append", default=[], metavar="NAME=FILE.npy",
                      help="what an output must be, within 1e-3 of it")  # fmt: skip
    parser.add_argument(
        "--mlx", nargs=argparse.REMAINDER, metavar=("SCRIPT", "ARGUMENT"),
        help="run an MLX program (or -m MODULE) and check each of its custom kernels",
    )  # fmt: skip
    try:
        return _answered(parser.parse_args(arguments))
    except WorkbenchError as error:
        return _failed(str(error))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python would fail again as it ends
        if error.errno == errno.EPIPE:
            return stopped_by(13)
        return _failed(f"the output cannot be written ({error.strerror}); free some space.")


def _answered(options: argparse.Namespace) -> int:
    if options.limits:
        print(LIMITS, end="", flush=True)
    if options.mlx is not None:
        return _program(options.mlx)
    if options.kernel is None:
        return 0 if options.limits else _failed("name a kernel, as in: metal_shim.check softmax")
    if options.kernel.endswith(".metal"):
        return _of_a_file(options)
    spec, report = catalog.spec_of(options.kernel), CheckReport()
    try:
        checked(spec, report, _progress)
        check_corners(spec, report, _progress)
    except KeyboardInterrupt:
        print("\n".join(lines(report, spec.name)), flush=True)  # what was obtained
        raise
    finally:
        _progress("")
    print("\n".join(lines(report, spec.name)), flush=True)
    return 0 if report.is_clean else 1


def _of_a_file(options: argparse.Namespace) -> int:
    """Check a kernel of a Metal file."""
    find_compiler()
    path = Path(options.kernel)
    if not path.is_file():
        return _failed(f"there is no file {path}.")
    file_check, whole = import_module("metal_shim.file_check"), import_module("metal_shim.whole")
    group = _extents(options.group)
    if options.groups:
        grid = tuple(n * t for n, t in zip(_extents(options.groups), group, strict=True))
    else:
        grid = _extents(options.grid or "0")
    constants = {n: _number(v) for n, v in _pairs(options.constant).items()}
    folders = [Path(folder) for folder in options.include]
    needed = whole.WholeOptions(_pairs(options.define), folders, constants)
    arguments = file_check.FileArguments(
        _pairs(options.arg), grid, group, 0, tuple(options.same_value), needed
    )
    result = file_check.check_file(path, options.function, arguments)
    print(
        f"{path.name}, {options.function}: four schedules emulated on a CPU; "
        "Apple's compiler and GPU took no part"
    )
    for name in CheckName:
        findings = [finding for finding in result.findings if finding.check is name]
        print(f"{name.value:<10} {amount(len(findings), 'finding')}")
        for finding in findings:
            print(f"  {finding}")
    for run in result.runs:
        print("\n".join(_dispatch_lines(run)))
    wrong = _unexpected(result.outputs, _pairs(options.expect))
    for sentence in wrong:
        print(sentence)
    sys.stdout.flush()
    return 1 if result.findings or wrong else 0


def _unexpected(outputs: Mapping[str, Any], expected: Mapping[str, str]) -> list[str]:
    """Return one sentence for each output that is not as its file says."""
    numpy, wrong = import_module("numpy"), list[str]()
    array_of = import_module("metal_shim.file_check").array_of
    for name, path in expected.items():
        if name not in outputs:
            wrong.append(f"results    {name} has no values")
            continue
        one, other = outputs[name].astype(float), array_of(path.removeprefix("@")).astype(float)
        if one.size != other.size:
            wrong.append(f"results    {name} has {one.size} elements, and {path} {other.size}")
            continue
        close = numpy.isclose(one, other.reshape(one.shape), rtol=1e-3, atol=1e-3, equal_nan=True)
        if not close.all():
            at = tuple(int(i) for i in numpy.argwhere(~close)[0])
            wrong.append(
                f"results    {name} is wrong in {int((~close).sum())} of {close.size} elements, "
                f"first at {list(at)}: {one[at]:.6g} in place of {other.reshape(one.shape)[at]:.6g}"
            )
    return wrong


def _extents(text: str) -> tuple[int, int, int]:
    """Return three extents; what is not named is 1. Raises NotANumber."""
    if not re.fullmatch(r"\d+(,\d+){0,2}", text, flags=re.ASCII):
        raise NotANumber(f"{text!r} is not one to three whole numbers, as in 64,2,1.")
    x, y, z = [*map(int, text.split(",")), 1, 1][:3]
    return x, y, z


def _number(text: str) -> int | float:
    try:
        return int(text) if re.fullmatch(r"[-+]?\d+", text, flags=re.ASCII) else float(text)
    except ValueError:
        raise NotANumber(f"{text!r} is not a number.") from None


def _pairs(words: Sequence[str]) -> dict[str, str]:
    """Return `NAME=VALUE` as a mapping; a name alone is 1."""
    return {name: value or "1" for name, _, value in (word.partition("=") for word in words)}


def _program(words: Sequence[str]) -> int:
    """Check the kernels of an MLX program."""
    if not words or words == ["-m"]:
        return _failed("name a program, as in: metal_shim.check --mlx train.py")
    if words[0] != "-m" and not os.path.isfile(words[0]):
        return _failed(f"there is no file {words[0]}; name a Python program, or -m MODULE.")
    if importlib.util.find_spec("mlx") is None:
        return _failed("MLX is not installed; pip install 'mlx[cpu]'.")
    find_compiler()
    return int(import_module("metal_shim.mlx_program").check_program(words))


def _progress(text: str) -> None:
    """Show what runs now, in place of what ran before, where a person watches."""
    if sys.stderr.isatty():
        print(f"\r\033[2K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr)
        sys.stderr.flush()


def _failed(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return COULD_NOT_RUN


if __name__ == "__main__":
    sys.exit(main())
