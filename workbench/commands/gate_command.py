"""Compare the kernels of a suite with a baseline, one after the other."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import workbench
from workbench import catalog
from workbench.backend.protocol import Backend, Problem
from workbench.backend.supervisor import contain_workers, supervise
from workbench.backend.workers import BEGIN_S, Workers
from workbench.code.compared_pair import compared_pairs
from workbench.commands.comparison import (
    Pair,
    PairMaker,
    compare_pair,
    require_gpu,
    run_comparisons,
    say_begin,
)
from workbench.commands.console import say, say_result
from workbench.commands.gate_checks import say_checks
from workbench.commands.gate_files import GateFiles, describe_both
from workbench.commands.gate_report import GateReport
from workbench.commands.operands import Operand, OperandError
from workbench.commands.options import CommandError
from workbench.commands.pair_results import times_result
from workbench.commands.result import RunResult
from workbench.commands.run import (
    Opener,
    OpenResources,
    Recorder,
    any_backend,
    check_outputs,
    new_run,
    resources,
    say_page,
    target_backend,
)
from workbench.commands.sizes import check_dtype
from workbench.data.clock import folder_of, is_id
from workbench.data.exits import PASSED
from workbench.data.record import Comparison, Outcome, Run, decode_plain, encode_plain
from workbench.data.verdict import NO_VERDICT, STOPPED
from workbench.device import hardware
from workbench.device.hardware import METAL
from workbench.reports import compare
from workbench.reports.pair_texts import problem_name
from workbench.reports.run_index import write_run_page
from workbench.revisions.changed_kernels import ChangedKernels, LeftOut, leave, removed_impls
from workbench.revisions.worktree import WORKING, Repository, WorktreeError, Worktrees
from workbench.spec import Spec, WorkbenchError, sizes_text
from workbench.tuner.space import RecordFactory

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.gate import GateOptions


@dataclass(frozen=True)
class GateMeasured:
    """What was measured: the run, or the reason why there is none."""

    result: RunResult | None
    nothing: str = ""

    def plain(self, left_out: Sequence[LeftOut]) -> dict[str, Any]:
        """Return this as plain data, with all that was left out."""
        run = self.result
        names = ("run", "outcomes", "comparisons")
        plain = run and {
            **{name: encode_plain(getattr(run, name)) for name in names},
            "state": run.state,
            "events": str(run.events),
        }
        left = [asdict(each) for each in left_out]
        return {"nothing": self.nothing, "left_out": left, "run": plain}


@dataclass
class GateCommand:
    """Run a gate from the options to the page."""

    options: GateOptions
    console: Console
    open_backend: Opener = any_backend
    is_apart: bool = False  # kernels are imported in other processes only, and checked first

    def __post_init__(self) -> None:
        self.report = GateReport(self.options, self.console)
        self.left_out = self.report.left_out

    def go(self) -> int:
        """Run to the end. Returns the worst exit code of all (see `verdict.exit_code`), or 130
        after Ctrl-C."""
        options = self.options
        repository = Repository.find(self._place())
        repository.full_hash(options.baseline)
        check_outputs(options)
        files = self.report.files = self._files(repository)
        if not options.kernel:
            self._changed_kernels(repository).list_removed()
        if not files:
            unread = any(left.broken for left in self.left_out)
            reason = "a changed file cannot be read" if unread else "no kernel's file has changed"
            return self._nothing(reason)
        if options.device:
            from workbench.commands.gate_offline import OfflineGate

            with Worktrees(repository) as trees:
                known = GateFiles(repository, trees, options.baseline, options.dtype, files)
                return OfflineGate(self.report, known).go()
        require_gpu(self.open_backend)
        if self.is_apart:
            return self._decide(self._measured_apart(files, repository))
        return self._decide(self._measure(files, repository))

    def _place(self) -> Path:
        """Return the folder in which to look for the repository: that of the first kernel, or the
        current one."""
        kernels = self.options.kernel
        return catalog.file_of(kernels[0]) if kernels else Path.cwd()

    def _files(self, repository: Repository) -> list[Path]:
        """Return the kernels' files: those named; the built-in ones inside their own repository;
        else all that changed since the baseline."""
        if self.options.kernel:
            return [catalog.file_of(kernel) for kernel in self.options.kernel]
        home = Path(workbench.__file__).resolve().parent
        if home.parent == repository.root:
            return [home / "kernels" / f"{name}.py" for name in catalog.kernel_names()]
        return self._changed_kernels(repository).files()

    def _changed_kernels(self, repository: Repository) -> ChangedKernels:
        return ChangedKernels(repository, self.options.baseline, self.left_out)

    def _measured_apart(self, files: list[Path], repository: Repository) -> GateMeasured:
        """Check the results, then measure in a child process; return what that sent."""
        expected = list[Expected]()
        if target_backend(None) != METAL:
            with contain_workers(), Worktrees(repository) as trees:
                expected = self._check(files, repository, trees)
        plain = apart(lambda: self._measure_in_child(files, repository))
        if plain is None:
            self.left_out.append(LeftOut("the measurement", "it did not end", broken=True))
            return GateMeasured(None, "the measurement did not end")
        unchecked = [left for left in self.left_out if left.broken]
        self.left_out[:] = [LeftOut(**left) for left in plain["left_out"]]
        self.left_out += [left for left in unchecked if left not in self.left_out]
        if (run := plain["run"]) is None:
            missing(expected, (), (), self.left_out)
            return GateMeasured(None, str(plain["nothing"]))
        of, outcomes, comparisons = (
            decode_plain(run[name]) for name in ("run", "outcomes", "comparisons")
        )
        events = Path(run["events"])
        result = RunResult(of, outcomes, comparisons, state=run["state"], events=events)
        if not is_id(of.id):
            raise CommandError("The measuring process sent no run; look at what the kernels do.")
        if result.state != "interrupted":
            missing(expected, outcomes, comparisons, self.left_out)
        page = write_run_page(
            folder_of(self.options.out, result.run.id),
            compare.page(result.run, result.outcomes, result.comparisons),
        )
        return GateMeasured(replace(result, page=page.resolve()))

    def _measure_in_child(self, files: list[Path], repository: Repository) -> dict[str, Any]:
        """Measure in the child, which imports modules of the current folder after all others."""
        sys.path.append(os.getcwd())
        return self._measure(files, repository).plain(self.left_out)

    def _check(self, files: list[Path], repository: Repository, trees: Worktrees) -> list[Expected]:
        """Check the results of all changed Impls. Returns the comparisons that are to come."""
        options = self.options
        with ExitStack() as stack:
            with Workers(1) as workers:  # torch asks the driver in a process of its own
                device = workers.submit(hardware.live, timeout_s=BEGIN_S).result()
            if device is None:
                raise CommandError("The GPU cannot be described; run `workbench doctor`.")
            known = GateFiles(repository, trees, options.baseline, options.dtype, files)
            described = describe_both(
                known, (device,), options.dtype, self.left_out, stack, lambda specs, devices: None
            )
            self.report.checks = say_checks(
                self.console, described.judges, described.changed_impls, options.dtype
            )
            return [
                (now.name, impl.name, dict(launch.sizes))
                for then, now in described.kernels
                for impl in then.impls
                for launch in impl.launches
                if launch.config is not None
            ]

    def _measure(self, files: list[Path], repository: Repository) -> GateMeasured:
        """Compare the kernels, all in this process and its workers."""
        with (
            Worktrees(repository) as trees,
            resources(self.options, lambda: self.open_backend(None, repository.root)) as opened,
        ):
            return self._compare(files, trees, opened)

    def _compare(self, files: list[Path], trees: Worktrees, opened: OpenResources) -> GateMeasured:
        options, backend = self.options, opened.backend
        if backend.device.backend == METAL:
            check_own_files(files)
        problems = [p for file in files for p in self._problems(file)]
        if not problems:
            return GateMeasured(None, "no kernel can be timed")
        run = new_run("gate", options.baseline, options.command, backend, problems)
        pairs = [pair for p in problems for pair in self._pairs(p, run, trees, backend)]
        self.report.say_left_out()
        if not pairs:
            return GateMeasured(None, f"nothing of {options.baseline} can be compared")
        say_begin(self.console, run, options.threshold)

        def obtain(recorder: Recorder) -> None:
            for pair in pairs:
                cells = compare.line(compare_pair(pair, recorder, options.threshold))
                self.console.print("  ".join(filter(None, cells)), soft_wrap=True)

        return GateMeasured(run_comparisons(opened, run, options.out, obtain))

    def _problems(self, file: Path) -> Iterator[Problem]:
        """Yield a problem for each size to time. Raises CommandError where the dtype is missing."""
        try:
            spec = catalog.spec_of(name := _kernel_name(file))
        except catalog.CatalogError as error:
            return self.report.leave(file.name, str(error), broken=True)
        check_dtype(spec, self.options.dtype)
        for sizes in spec.bench:
            yield Problem(name, spec, dict(sizes), self.options.dtype)

    def _pairs(
        self, problem: Problem, run: Run, trees: Worktrees, backend: Backend
    ) -> Iterator[Pair]:
        """Yield a pair for each Triton Impl, on a Mac each Metal Impl: at the baseline and in the
        work tree, each at its default config."""
        factory = RecordFactory(run, problem, backend.protocol)
        maker = PairMaker(factory, backend.device.limits, trees)
        file = Path(catalog.module_of(problem.kernel).__file__ or "")
        baseline = self.options.baseline
        try:
            then_file = trees.file(baseline, trees.repository.relative_path(file))
        except WorktreeError as error:
            return self.report.leave(problem.spec.name, str(error), broken=True)
        if then_file is None:
            return self.report.leave(problem.spec.name, f"new since {baseline}")
        language = METAL if backend.device.backend == METAL else "triton"
        self._leave_removed_impls(problem.spec, then_file, language)
        for impl in [i for i in problem.spec.impls if i.backend == language]:
            try:
                then = catalog.version_of(then_file)
                if impl.name not in [i.name for i in then.impls]:
                    self.report.leave(impl.title, f"new since {baseline}")
                    continue
                both = (impl, catalog.impl_of(then, impl.name))
                at = backend.device.limits, problem.dtype, problem.sizes
                reasons = [i.default_or_reason(*at)[1] for i in both]
                if all(reasons):  # it never ran there, so nothing can have become slower
                    self.report.leave(f"{impl.title} at {sizes_text(problem.sizes)}", reasons[0])
                    continue
                operands = Operand(impl.name, {}, baseline), Operand(impl.name, {}, WORKING)
                yield maker.pair(operands, file)
            except (catalog.CatalogError, OperandError, WorktreeError) as error:
                self.report.leave(impl.title, str(error), broken=True)

    def _leave_removed_impls(self, spec: Spec, then_file: Path, language: str) -> None:
        try:
            then = catalog.version_of(then_file)
        except catalog.CatalogError:  # said of each Impl below
            return
        for title in removed_impls(then, spec, language):
            self.report.leave(title, f"removed since {self.options.baseline}")

    def _decide(self, measured: GateMeasured) -> int:
        """Print the result, and write the comment and the JSON document. Returns the exit code."""
        if (run := measured.result) is None:
            return self._nothing(measured.nothing)
        every = compared_pairs(run.run, run.outcomes, run.comparisons)
        say_result(self.console, compare.conclusion(every), "bold", whole=False)
        for pair in every if len(every) > 1 else []:
            if pair.word in (NO_VERDICT, "SLOW", "CLOCK"):
                say_result(self.console, f"  {problem_name(pair)}: {compare.conclusion([pair])}")
        assert run.page is not None
        say_page(self.console, run.page)
        ended = [STOPPED] if run.state == "interrupted" else []
        names, words = (self.options.baseline, WORKING), [*self.report.words, *ended]
        result = times_result(every, names, words)
        gpu = run.run.environment.gpu or run.run.device
        return self.report.end(result, [run], pairs=every, gpu=gpu)

    def _nothing(self, reason: str) -> int:
        """Report that there is no pair. Returns 0, or 2 if a named kernel could not run."""
        text = f"Nothing to compare with {self.options.baseline}: {reason}."
        return self.report.end_without_pairs("times", text, reason)


def check_own_files(files: Sequence[Path]) -> None:
    """Raise CommandError on a Mac for a built-in kernel: its Metal Impls lie in a file of another
    package, which the baseline's version of the kernel does not load."""
    for file in files:
        if (name := _kernel_name(file)) in catalog.kernel_names():
            raise CommandError(
                f"On a Mac gate compares the Metal kernels of files of your own, and {name} is "
                "built in: name your file with --kernel, or compare two of its Metal Impls or "
                f"configs (`workbench compare LEFT RIGHT --kernel {name}`)."
            )


def _kernel_name(file: Path) -> str:
    """Return the name of the kernel in a file: of a built-in one its own, to load it once."""
    home = Path(workbench.__file__).resolve().parent / "kernels"
    return file.stem if file.resolve().parent == home else str(file)


Expected = tuple[str, str, dict[str, int]]  # kernel, Impl and sizes


def missing(
    expected: Sequence[Expected],
    outcomes: Sequence[Outcome],
    comparisons: Sequence[Comparison],
    left_out: list[LeftOut],
) -> None:
    """Add the comparisons that the measuring process owes and did not send."""
    whose = {o.key: o.case.impl for o in outcomes}
    sent = [(c.kernel, whose.get(c.left_key), dict(c.sizes)) for c in comparisons]
    for kernel, impl, sizes in expected:
        title = f"{kernel}.{impl}"
        named = any(f"{left.what} ".startswith((f"{kernel} ", f"{title} ")) for left in left_out)
        if (kernel, impl, sizes) not in sent and not named:
            leave(left_out, f"{title} at {sizes_text(sizes)}", "its comparison is missing", True)


# The process that decides imports none of the user's code: nothing which that code patches, and no
# way in which it ends its process, changes more than what it sends.
def apart(task: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """Return the plain data that a task returned in a child process, or None where that ended
    without it, which is said then. Raises CommandError with the sentence of its error."""
    with TemporaryFile() as file:

        def send() -> int:
            try:
                sent: dict[str, Any] = {"result": task()}
            except WorkbenchError as error:
                sent = {"error": str(error)}
            file.write(json.dumps(sent).encode())
            file.flush()
            return PASSED

        supervise(send, partial(say, err=True))
        file.seek(0)
        try:
            plain = json.loads(file.read())
        except ValueError:
            return None
    if not isinstance(plain, dict) or not isinstance(plain.get("result", {}), dict):
        return None
    if "error" in plain:
        raise CommandError(" ".join(str(plain["error"]).split()))
    result: dict[str, Any] | None = plain.get("result")
    return result
