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
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metal_shim import compiler, emulate
from metal_shim.compiler import find_compiler
from metal_shim.emulate import SCHEDULES, CheckName, EmulatedRun, EmulationError, EndlessRun
from workbench import catalog
from workbench.data.environment import installed_version
from workbench.data.errors import first_sentence
from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED, stopped_by
from workbench.data.files import write_file
from workbench.data.units import amount
from workbench.device.hardware import UNCOMPILED
from workbench.spec import Impl, Sizes, Spec, WorkbenchError, label, sizes_text, values

if TYPE_CHECKING:  # it imports torch, and --help and --limits need none
    from workbench.measurement.correctness import PreparedProblem

DEVICE = "m2max"  # its limits are those of every Apple GPU since the M1

LIMITS = """\
What an emulated run cannot show:
- whether Apple's compiler takes the text: clang reads it in its mode C++ for OpenCL
- registers, and the lower thread limit of a kernel that uses many
- last bits: fast maths, fused multiply-adds, denormals, the order in which simd_sum adds
- forward progress between threadgroups, caches, memory banks, occupancy, and any time
- textures, ray tracing, tensor_ops and atomic_thread_fence: the emulator does not have them
- shifts by the width of a number or more: masked here, undefined in MSL
- private arrays past their end through a pointer, while the address stays on the thread's stack
- more than one fault of a run: it ends at the first
"""

REPEATED = (  # options that may be given several times
    ("arg", "NAME=VALUE", "n=128, x=fp16:3x128, y=64=0, x=@x.npy, args.field=1"),
    ("define", "NAME=VALUE", None),
    ("constant", "NAME=VALUE", "value of a function constant"),
    ("include", "FOLDER", None),
    ("same-value", "NAME", "an output to which threads may write the same value"),
    ("expect", "NAME=FILE.npy", "expected values of an output, within 1e-3"),
)
UNCHANGED = "unchanged since a clean check, so nothing ran; use --again to run it"


class NoMetalImpl(WorkbenchError, ValueError):
    """A kernel has no Metal Impl to check."""


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
    findings: dict[CheckName, list[emulate.EmulationFinding]] = field(
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

    def enter(
        self, case: MetalCase, fault: EmulationError | str | None, runs: list[EmulatedRun]
    ) -> None:
        """Enter a run: its fault or the sentence on its results, and its counted dispatches."""
        self.runs += 1
        if isinstance(fault, EmulationError):
            self.findings[fault.finding.check].append(fault.finding)
        elif fault:
            self.wrong.append(f"{case}: {fault}")
        if isinstance(fault, EndlessRun) and case.impl.name not in self.endless:
            self.endless.append(case.impl.name)
        if runs:
            self.dispatches[case.impl.name] = (case, runs)


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


def check_spec(spec: Spec, report: CheckReport, progress: Callable[[str], Any] = str) -> None:
    """Run every case, its schedules side by side, and enter the findings into a report. Of an Impl
    with a run that does not end the further cases are left out. Raises CompilerMissing."""
    from workbench.measurement.correctness import PreparedProblem

    find_compiler()
    with ThreadPoolExecutor(len(SCHEDULES)) as pool:
        for case in cases(spec):
            if case.impl.name in report.endless:
                continue
            progress(str(case))
            problem = PreparedProblem.make(spec, case.sizes, case.dtype, "cpu")
            for fault, runs in pool.map(partial(_run, case, problem), SCHEDULES):
                report.enter(case, fault, runs)


def check_corners(spec: Spec, report: CheckReport, progress: Callable[[str], Any] = str) -> None:
    """Run the corner threadgroups of every dispatch at the bench sizes, on addresses alone, and
    enter what they show."""
    from workbench.measurement import inputs

    planned = list[tuple[MetalCase, emulate.MetalLaunch]]()
    for case in cases(spec, at_bench=True):
        try:
            with emulate.planning() as launches:
                case.impl(*inputs.shapes(spec, case.sizes, case.dtype), config=case.config)
            planned += [(case, launch) for launch in launches]
        except Exception as error:  # a launcher that reads its inputs, or a refused launch
            report.not_ended.append(f"{case}, {first_sentence(error).rstrip('.')}")
    progress(f"{spec.name} at bench sizes")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = [(case, pool.submit(emulate.run_corners, launch)) for case, launch in planned]
    report.corners += len(runs)
    for case, run in runs:
        fault = run.exception()
        if isinstance(fault, EndlessRun):
            report.not_ended.append(f"{case}, cut short")
        elif isinstance(fault, EmulationError):
            report.findings[fault.finding.check].append(fault.finding)
        elif isinstance(fault, WorkbenchError):  # clang does not take the text with checked casts
            report.not_ended.append(f"{case}, {first_sentence(fault).rstrip('.')}")
        else:
            run.result()


def _run(
    case: MetalCase, problem: PreparedProblem, schedule: emulate.Schedule
) -> tuple[EmulationError | str | None, list[EmulatedRun]]:
    """Return the fault of a run, or what is wrong in its results, and its dispatches if counted."""
    from workbench.measurement.correctness import check

    counting = schedule is SCHEDULES[-1]
    options = emulate.EmulationOptions(schedule, counting, unset=counting)
    try:
        with emulate.emulation(options) as runs:
            return check(case.impl, case.config, problem).wrong, runs if counting else []
    except EmulationError as error:
        return error, []


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
        yield f"{impl}: a run did not end; the runs after it were skipped"
    for case, runs in report.dispatches.values():
        yield f"dispatches of {case}"
        for run in runs:
            yield from _dispatch_lines(run)


def _dispatch_lines(run: EmulatedRun) -> Iterator[str]:
    """Yield the geometry of a dispatch and the traffic of its buffers."""
    grid, group, before = ("x".join(map(str, n)) for n in (run.grid, run.group, run.cut_from or ()))
    cut = before and f", cut from {before} to the grid"
    yield (
        f"  {run.call.source.name}: grid of {grid} threads, threadgroups of {group}{cut}, "
        f"{run.traffic.threadgroup_bytes} bytes of threadgroup memory"
    )
    for buffer, bytes_ in run.traffic.buffers.items():
        yield (
            f"    {buffer:<10} {bytes_.requested_bytes:>10} bytes requested, "
            f"{bytes_.unique:>10} unique, {32 * bytes_.sectors:>10} in sectors"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0 if clean, 1 with findings, 2 where nothing
    could be checked or printed, 130 after Ctrl-C, 141 where a closed pipe wants no more output."""
    parser = argparse.ArgumentParser(prog="python -m metal_shim.check", description=__doc__)
    parser.add_argument(
        "kernel", nargs="?", help="name of an operation, the path of its file, or FILE.metal"
    )
    parser.add_argument("--limits", action="store_true", help="print the limits of the emulator")
    parser.add_argument("--again", action="store_true", help="check again without a change")
    file = parser.add_argument_group("for a kernel of FILE.metal")
    file.add_argument("--kernel", dest="function", default="", metavar="NAME", help="which one")
    file.add_argument("--grid", metavar="X,Y,Z", help="threads of the grid")
    file.add_argument("--groups", metavar="X,Y,Z", help="instead of --grid: its threadgroups")
    file.add_argument("--group", default="32", metavar="X,Y,Z", help="threads of a threadgroup")
    for name, value, text in REPEATED:
        file.add_argument(f"--{name}", action="append", default=[], metavar=value, help=text)
    parser.add_argument(
        "--mlx", nargs=argparse.REMAINDER, metavar=("SCRIPT", "ARGUMENT"),
        help="run an MLX program (or -m MODULE) and check each of its custom kernels",
    )  # fmt: skip
    return run_command(lambda: _run_options(parser.parse_args(arguments)))


def run_command(answer: Callable[[], int], stopped: str = "stopped", *more: type[Exception]) -> int:
    """Return the exit code of a command that answers, was `stopped`, or fails with one sentence."""
    faults: tuple[type[Exception], ...] = (WorkbenchError, *more)
    try:
        return answer()
    except faults as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        print(stopped, file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python would fail again as it ends
        if error.errno == errno.EPIPE:
            return stopped_by(13)
        if error.errno == errno.ENOSPC:
            return _fail(f"the output cannot be written ({error.strerror}); free some space.")
        return _fail(f"the system refuses a file or a program ({error.strerror or error}).")


def _run_options(options: argparse.Namespace) -> int:
    if options.limits:
        print(LIMITS, end="", flush=True)
    if options.mlx is not None:
        return _program(options.mlx)
    if options.kernel is None:
        return 0 if options.limits else _fail("name a kernel, as in: metal_shim.check softmax")
    if options.kernel.endswith(".metal"):
        return _check_file(options)
    verdict = _verdict_file(options.kernel)
    if verdict and verdict.exists() and not options.again:
        print(verdict.read_text(encoding="utf-8") + UNCHANGED, flush=True)
        return 0
    spec, report = catalog.spec_of(options.kernel), CheckReport()
    try:
        check_spec(spec, report, _progress)
        check_corners(spec, report, _progress)
    except KeyboardInterrupt:
        print("\n".join(lines(report, spec.name)), flush=True)  # what was obtained
        raise
    finally:
        _progress("")
    text = "\n".join(lines(report, spec.name)) + "\n"
    print(text, end="", flush=True)
    if verdict and report.is_clean and not report.not_ended:
        write_file(verdict, text)
    return 0 if report.is_clean else 1


def _verdict_file(kernel: str) -> Path | None:
    """Return where the lines of a clean check are kept, under a hash of all that it depends on: the
    files of this project, its libraries, and the compiler. None for a kernel of other files."""
    if kernel not in catalog.names_in(catalog.METAL):
        return None
    folders = (compiler.HERE, Path(catalog.__file__).parents[1])
    paths = [path for folder in folders for path in folder.rglob("*.*") if path.suffix != ".pyc"]
    files = sorted(path for path in (*paths, *compiler.INCLUDE.iterdir()) if path.is_file())
    texts = [path.read_bytes() for path in files]
    versions = [installed_version(name) or "" for name in ("torch", "triton", "numpy")]
    known = (sys.version, platform.machine(), find_compiler().version, *versions)
    return compiler.entry(kernel, *known, *map(str, files), *texts, suffix=".txt")


def _check_file(options: argparse.Namespace) -> int:
    """Check a kernel of a Metal file."""
    from metal_shim import file_check, whole  # with numpy

    find_compiler()
    path, pairs = Path(options.kernel), file_check.pairs
    if not path.is_file():
        return _fail(f"{path} does not exist.")
    group = file_check.extents(options.group)
    grid = file_check.extents(options.groups or options.grid or "0")
    if options.groups:
        grid = grid[0] * group[0], grid[1] * group[1], grid[2] * group[2]
    constants = {n: file_check.number(v) for n, v in pairs(options.constant).items()}
    folders = [Path(folder) for folder in options.include]
    needed = whole.WholeOptions(pairs(options.define), folders, constants)
    same = tuple(options.same_value)
    arguments = file_check.FileArguments(pairs(options.arg), grid, group, 0, same, needed)
    result = file_check.check_file(path, options.function, arguments)
    print(
        f"{path.name}, {options.function}: four schedules emulated on a CPU; "
        "Apple's compiler and GPU took no part",
        *emulate.finding_lines((f.check, str(f)) for f in result.findings),
        *(line for run in result.runs for line in _dispatch_lines(run)), sep="\n", flush=True,
    )  # fmt: skip
    wrong = file_check.deviations(result.outputs, pairs(options.expect))  # may not be readable
    print(*wrong, sep="\n", end="\n" if wrong else "", flush=True)
    return 1 if result.findings or wrong else 0


def _program(words: Sequence[str]) -> int:
    """Check the kernels of an MLX program."""
    if not words or words == ["-m"]:
        return _fail("name a program, as in: metal_shim.check --mlx train.py")
    if words[0] != "-m" and not os.path.isfile(words[0]):
        return _fail(f"{words[0]} does not exist; name a Python program, or -m MODULE.")
    if importlib.util.find_spec("mlx") is None:
        return _fail("MLX is not installed; pip install 'mlx[cpu]'.")
    find_compiler()
    return int(import_module("metal_shim.mlx_program").check_program(words))


def _progress(text: str) -> None:
    """Show what runs now, in place of what ran before, where a person watches."""
    if sys.stderr.isatty():
        print(f"\r\033[2K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr)
        sys.stderr.flush()


def _fail(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return COULD_NOT_RUN


if __name__ == "__main__":
    sys.exit(main())
