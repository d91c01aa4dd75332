"""Compare the machine code of changed kernels with a baseline's, for `gate --device`: no GPU.

This process decides and imports no kernel. All of the baseline is read and compiled before code of
the branch runs, and all processes that ran that code have ended before the result is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.backend.compilers import Compiler, Compilers, CompileTask, FactsJob
from workbench.backend.described import DefaultLaunch, DescribedImpl, Description
from workbench.backend.supervisor import contain_workers
from workbench.commands.code_configs import devices_of
from workbench.commands.code_run import CodeRun, new_code_run, stored_code
from workbench.commands.code_table import finish
from workbench.commands.gate_checks import say_checks
from workbench.commands.gate_files import GateFiles, describe_both
from workbench.commands.gate_report import GateReport
from workbench.commands.options import CommandError
from workbench.commands.pair_results import code_result
from workbench.commands.run import check_outputs, require_triton
from workbench.commands.stored import stored_runs
from workbench.data.clock import timestamp
from workbench.data.compiled_code import CodeVersions
from workbench.data.database import History
from workbench.data.record import Case, Outcome
from workbench.data.units import amount
from workbench.device.hardware import METAL, Device, backend_of, device_named
from workbench.revisions.worktree import WORKING


@dataclass
class OfflineGate:
    """Compile the changed kernels at the baseline and as they are, for the named devices."""

    report: GateReport
    files: GateFiles

    def go(self) -> int:
        """Compare the kernels. Returns 0, 1 where a result is wrong, 3 where something is suspected
        to be worse, 2 where something does not compile any more, or 130 after Ctrl-C. Raises
        CommandError for options that need a measurement, UnknownDevice, or CompilerError."""
        options = self.report.options
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
                stored = self._obtain_outcomes(devices, history)
            # all processes that ran code of the branch have ended here
            if stored is None:
                many = amount(self.report.unchanged_configs, "config")
                many += " has" if self.report.unchanged_configs == 1 else " have"
                text = f"{many} the code and the config of {options.baseline}"
                nothing = f"{many} the same code and config"
                return self.report.end_without_pairs(
                    "machine code", f"Nothing to compile: {text}.", nothing
                )
            changes, run = finish(self.report.console, stored)
        result = code_result(changes, self.report.words)
        return self.report.end(result, [run], pairs=changes.pairs)

    def _obtain_outcomes(self, devices: Sequence[Device], history: History) -> CodeRun | None:
        """Check the results, and return the run that compared machine code; None where none can
        differ."""
        report, started, baseline = self.report, timestamp(), CompiledBaseline(self.files.dtype)
        options = report.options
        with ExitStack() as stack:
            described = describe_both(
                self.files, tuple(devices), options.dtype, report.left_out, stack, baseline.compile
            )
            report.checks = say_checks(
                report.console, described.judges, described.changed_impls, options.dtype
            )
            report.unchanged_configs = described.unchanged_configs
            tasks = [both for one in described.kernels for both in self._tasks(*one, baseline)]
            if not tasks:
                return None
            compiler = tasks[0][1].compiler
            report.console.print(
                f"{compiler.title}: {amount(len(tasks), 'config')} of {options.baseline} and "
                f"{WORKING}, {amount(len(devices), 'device')}; nothing runs",
                style="bold",
            )
            versions = CodeVersions(
                options.baseline, WORKING, tuple(device.name for device in devices),
                options.threshold, len(tasks), report.unchanged_configs,
                tuple(f"{left.what}: {left.reason}" for left in report.left_out),
                tuple(report.checks),
            )  # fmt: skip
            cases = [after.job.case for _, after in tasks]
            run = new_code_run(options, "gate", cases, versions, [compiler], self.files.root)
            with (
                Compilers([None], here=self.files.root) as pools,
                stored_code(options, replace(run, started=started), history) as stored,
            ):
                known = stored.find_known([after for _, after in tasks]) | baseline.outcomes
                deque(stored.pairs(pools, tasks, known), maxlen=0)
            return stored

    def _tasks(
        self, then: Description, now: Description, baseline: CompiledBaseline
    ) -> Iterator[tuple[CompileTask, CompileTask]]:
        """Yield the configs of one kernel that may differ, at both versions."""
        since = self.report.options.baseline
        for was in (impl for impl in then.impls if impl.backend == "triton"):
            if (impl := now.impl(was.name)) is None:
                self.report.leave(f"{then.name}.{was.name}", f"removed since {since}")
                continue
            after = {_place(launch): launch for launch in impl.launches}
            for launch in was.launches:
                title = f"{then.name}.{was.name} on {launch.device}"
                to = after.get(_place(launch))
                if launch.config is None:  # it never ran there: nothing can have become slower
                    self.report.leave(title, f"at the baseline: {launch.reason}")
                elif to is None or to.config is None:
                    self.report.leave(title, to.reason if to else "it names no config", broken=True)
                else:
                    before = baseline.task(then, was, launch)
                    yield before, baseline.task(now, impl, to, self.files.digest)
        for impl in now.impls:
            if impl.backend == "triton" and then.impl(impl.name) is None:
                self.report.leave(f"{now.name}.{impl.name}", f"new since {since}")


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
