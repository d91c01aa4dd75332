"""Compare the machine code of changed kernels with a baseline's, for `gate --device`: no GPU.

This process decides and imports no kernel. All of the baseline is read and compiled before code of
the branch runs, and all processes that ran that code have ended before the result is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from workbench.backend.compilers import Compiler, Compilers, CompileTask, FactsJob
from workbench.backend.described import DefaultLaunch, DescribedImpl, Description
from workbench.backend.supervisor import contain_workers
from workbench.code.code_pair import exit_code_of
from workbench.commands.code_configs import devices_of
from workbench.commands.code_run import CodeRun, new_code_run, stored_code
from workbench.commands.code_table import finish
from workbench.commands.console import say_result
from workbench.commands.gate_checks import checked_code, say_checks, write_comment
from workbench.commands.gate_files import GateFiles, describe_both
from workbench.commands.options import CommandError, GateOptions
from workbench.commands.result import write_result
from workbench.commands.run import check_outputs, require_triton
from workbench.commands.stored import stored_runs
from workbench.data.clock import timestamp
from workbench.data.compiled_code import CodeVersions
from workbench.data.database import History
from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED, PASSED
from workbench.data.impl_check import ImplCheck
from workbench.data.record import Case, Outcome
from workbench.data.units import amount
from workbench.device.hardware import METAL, Device, backend_of, device_named
from workbench.revisions.changed_kernels import LeftOut, leave
from workbench.revisions.worktree import WORKING

if TYPE_CHECKING:
    from rich.console import Console


@dataclass
class OfflineGate:
    """Compile the changed kernels at the baseline and as they are, for the named devices."""

    options: GateOptions
    console: Console
    files: GateFiles
    left_out: list[LeftOut] = field(default_factory=list)
    unchanged: int = 0  # configs of files that are the baseline's: not compiled

    def go(self) -> int:
        """Compare the kernels. Returns 0, 1 where a result is wrong, 3 where something is suspected
        to be worse, 2 where something does not compile any more, or 130 after Ctrl-C. Raises
        CommandError for options that need a measurement, UnknownDevice, or CompilerError."""
        options = self.options
        if options.require:
            raise CommandError("--device measures nothing; leave out --require idle-gpu.")
        apple = [name for name in options.device if backend_of(name) == METAL]
        if apple:
            raise CommandError(
                f"gate --device compares machine code, and Metal kernels have none for {apple[0]} "
                "here; compare two Impls or configs of the present file with `workbench compare "
                f"LEFT RIGHT --device {apple[0]}`."
            )
        devices = devices_of(options.device)
        check_outputs(options)
        require_triton()
        with stored_runs(options.database, reading=False) as history:
            with contain_workers():
                checks, stored = self._obtained(devices, history)
            # all processes that ran code of the branch have ended here
            if stored is None:
                return self._nothing(checks)
            changes, result, run = finish(self.console, stored)
        code = INTERRUPTED if changes.interrupted else exit_code_of(changes.pairs, self._is_broken)
        code = checked_code(checks, code)
        write_comment(options, code, self.left_out, checks, changes=changes)
        more = self._more(checks)
        return write_result(options, "gate", code, [run], code_changes=result, **more)

    def _obtained(
        self, devices: Sequence[Device], history: History
    ) -> tuple[list[ImplCheck], CodeRun | None]:
        """Return the checks of results, and the run that compared machine code; None where none can
        differ."""
        options, started, baseline = self.options, timestamp(), CompiledBaseline(self.files.dtype)
        with ExitStack() as stack:
            described = describe_both(
                self.files, tuple(devices), options.dtype, self.left_out, stack, baseline.compile
            )
            checks = say_checks(self.console, described.judges, described.changed, options.dtype)
            self.unchanged = described.unchanged
            tasks = [both for one in described.kernels for both in self._tasks(*one, baseline)]
            if not tasks:
                return checks, None
            compiler = tasks[0][1].compiler
            self.console.print(
                f"{compiler.title}: {amount(len(tasks), 'config')} of {options.baseline} and "
                f"{WORKING}, {amount(len(devices), 'device')}; nothing runs",
                style="bold",
            )
            versions = CodeVersions(
                options.baseline, WORKING, tuple(device.name for device in devices),
                options.threshold, len(tasks), self.unchanged,
                tuple(f"{left.what}: {left.reason}" for left in self.left_out), tuple(checks),
            )  # fmt: skip
            cases = [after.job.case for _, after in tasks]
            run = new_code_run(options, "gate", cases, versions, [compiler], self.files.root)
            with (
                Compilers([None], here=self.files.root) as pools,
                stored_code(options, replace(run, started=started), history) as stored,
            ):
                known = stored.find_known([after for _, after in tasks]) | baseline.outcomes
                deque(stored.pairs(pools, tasks, known), maxlen=0)
            return checks, stored

    def _tasks(
        self, then: Description, now: Description, baseline: CompiledBaseline
    ) -> Iterator[tuple[CompileTask, CompileTask]]:
        """Yield the configs of one kernel that may differ, at both versions."""
        for was in (impl for impl in then.impls if impl.backend == "triton"):
            if (impl := now.impl(was.name)) is None:
                self._leave(f"{then.name}.{was.name}", f"removed since {self.options.baseline}")
                continue
            after = {_place(launch): launch for launch in impl.launches}
            for launch in was.launches:
                title = f"{then.name}.{was.name} on {launch.device}"
                to = after.get(_place(launch))
                if launch.config is None:  # it never ran there: nothing can have become slower
                    self._leave(title, f"at the baseline: {launch.reason}")
                elif to is None or to.config is None:
                    self._leave(title, to.reason if to else "it names no config", broken=True)
                else:
                    before = baseline.task(then, was, launch)
                    yield before, baseline.task(now, impl, to, self.files.digest)
        for impl in now.impls:
            if impl.backend == "triton" and then.impl(impl.name) is None:
                self._leave(f"{now.name}.{impl.name}", f"new since {self.options.baseline}")

    def _leave(self, what: str, reason: str, broken: bool = False) -> None:
        leave(self.left_out, what, reason, broken)

    @property
    def _is_broken(self) -> bool:
        return any(left.broken for left in self.left_out)

    def _more(self, checks: Sequence[ImplCheck]) -> dict[str, Any]:
        return {
            "baseline": self.options.baseline,
            "unchanged": self.unchanged,
            "checks": [asdict(check) for check in checks],
            "files": [str(file) for file in self.files.files],
            "left_out": [asdict(left) for left in self.left_out],
        }

    def _nothing(self, checks: Sequence[ImplCheck]) -> int:
        """Report that no config can differ. Returns the exit code."""
        options = self.options
        for left in self.left_out:
            self.console.print(f"left out  {left.what}: {left.reason}", soft_wrap=True)
        many = amount(self.unchanged, "config")
        text = f"Nothing to compile: {many} have the code and the config of {options.baseline}."
        say_result(self.console, text, whole=False)
        code = checked_code(checks, COULD_NOT_RUN if self._is_broken else PASSED)
        nothing = f"{many} have the same code and config"
        write_comment(options, code, self.left_out, checks, nothing=nothing)
        return write_result(options, "gate", code, **self._more(checks))


def _place(launch: DefaultLaunch) -> tuple[Any, ...]:
    return launch.device, *sorted(launch.sizes.items())


@dataclass
class CompiledBaseline:
    """Outcomes of the baseline's configs. They are obtained first, in processes of their own, which
    end before code of the branch runs; those that an earlier run stored are not taken, as code of
    the branch may have run beside it and written to the database."""

    dtype: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by key
    compiler: Compiler | None = None

    def compile(self, described: Sequence[Description], devices: Sequence[Device]) -> None:
        """Compile the baseline's configs of these kernels."""
        if not described:
            return
        with Compilers([None]) as pools:
            (self.compiler,) = pools.versions()
            tasks = [
                self.task(then, impl, launch)
                for then in described
                for impl in then.impls
                for launch in impl.launches
                if launch.config is not None
            ]
            self.outcomes = {outcome.key: outcome for _, outcome in pools.compile(tasks)}

    def task(
        self, kernel: Description, impl: DescribedImpl, launch: DefaultLaunch, digest: str = ""
    ) -> CompileTask:
        """Return the task of a config: of the baseline, or of the branch by its `digest`."""
        assert self.compiler is not None
        config, at = dict(launch.config or {}), dict(launch.sizes)
        case = Case(kernel.name, impl.name, impl.backend, config, at, self.dtype, launch.device)
        job = FactsJob(kernel.file, case, impl.code, None if digest else kernel.file, digest)
        return CompileTask(0, self.compiler, job, device_named(launch.device))
