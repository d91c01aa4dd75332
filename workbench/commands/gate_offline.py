"""Compare the machine code of changed kernels with a baseline's, for `gate --device`: no GPU.

This process decides and imports no kernel. All of the baseline is read and compiled before code of
the branch runs, and all processes that ran that code have ended before the result is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.backend.compilers import Compilers, FactsJob
from workbench.backend.described import DefaultLaunch, DescribedImpl, Description
from workbench.code.code_pair import CodePair, exit_code_of, paired
from workbench.commands.code_configs import devices_of
from workbench.commands.code_store import NAME, CodeStore, CompileTask
from workbench.commands.code_table import finish
from workbench.commands.console import say_result
from workbench.commands.gate_checks import checked_code, say_checks
from workbench.commands.gate_comment import write_comment
from workbench.commands.gate_files import GateFiles, both_described
from workbench.commands.options import CommandError, GateOptions
from workbench.commands.result import write_result
from workbench.commands.run import check_outputs, require_triton
from workbench.commands.supervisor import contained
from workbench.data.clock import folder_of, run_id, timestamp
from workbench.data.compiled_code import CompiledCode
from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED, PASSED
from workbench.data.impl_check import ImplCheck
from workbench.data.record import Case
from workbench.data.units import amount
from workbench.device.hardware import METAL, Device, backend_of
from workbench.reports.compilers import CodeChanges
from workbench.revisions.changed_kernels import LeftOut, leave
from workbench.revisions.worktree import WORKING
from workbench.spec import label

if TYPE_CHECKING:
    from rich.console import Console

Facts = CompiledCode | str


@dataclass
class OfflineGate:
    """Compile the changed kernels at the baseline and as they are, for the named devices."""

    options: GateOptions
    console: Console
    files: GateFiles
    left_out: list[LeftOut] = field(default_factory=list)
    unchanged: int = 0  # configs of files that are the baseline's: not compiled
    interrupted: bool = False

    def go(self) -> int:
        """Compare the kernels. Returns 0, 1 where a result is wrong, 3 where something is suspected
        to be worse, 2 where something does not compile any more, or 130 after Ctrl-C. Raises
        CommandError for options that need a measurement, UnknownDevice, or CompilerError."""
        options = self.options
        if options.strict or options.database is not None:
            raise CommandError("--device measures nothing; leave out --strict and --database.")
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
        started, run = time.monotonic(), run_id("gate", "code")
        with contained():
            checks, pairs, many = self._obtained(devices, run)
        # here nothing that ran the branch's code runs any more
        if not many:
            return self._nothing(checks)
        changes = CodeChanges(
            title="Changed kernels",
            before=options.baseline,
            after=WORKING,
            devices=[device.name for device in devices],
            pairs=pairs,
            left_out=[(f"{left.what}: {left.reason}", 1) for left in self.left_out],
            command=options.command,
            at=timestamp(),
            seconds=time.monotonic() - started,
            interrupted=self.interrupted,
            of=many,
            unchanged=self.unchanged,
            checks=checks,
        )
        result = finish(self.console, changes, folder_of(options.out, run))
        code = INTERRUPTED if self.interrupted else exit_code_of(pairs, self._is_broken)
        code = checked_code(checks, code)
        write_comment(options, code, self.left_out, checks, changes=changes)
        return write_result(options, "gate", code, code_changes=result, **self._more(checks))

    def _obtained(
        self, devices: Sequence[Device], run: str
    ) -> tuple[list[ImplCheck], list[CodePair], int]:
        """Return the checks of results, the pairs of machine code, and how many of these there
        would be after the last one."""
        options = self.options
        file = (options.events_file or options.out / NAME) if options.events else None
        with ExitStack() as stack:
            compiled = _BothVersions(stack, file, run, self.files)
            known = both_described(
                self.files, tuple(devices), options.dtype, self.left_out, stack, compiled.baseline
            )
            checks = say_checks(self.console, known.judges, known.changed, options.dtype)
            self.unchanged = known.unchanged
            both = [pair for one in known.kernels for pair in self._both(*one, devices)]
            if both:
                self.console.print(
                    f"{compiled.title}: {amount(len(both), 'config')} of {options.baseline} and "
                    f"{WORKING}, {amount(len(devices), 'device')}; nothing runs",
                    style="bold",
                )
            pairs: list[CodePair] = []
            try:
                for pair in compiled.pairs(both, options.threshold):
                    pairs.append(pair)
            except KeyboardInterrupt:
                self.interrupted = True
            return checks, pairs, len(both)

    def _both(
        self, then: Description, now: Description, devices: Sequence[Device]
    ) -> Iterator[Both]:
        """Yield the configs of one kernel that may differ, at both versions."""
        by_name = {device.name: device for device in devices}
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
                    before = _job(then, was, launch, self.options.dtype, then.file, "")
                    digest = self.files.digest
                    job = _job(now, impl, to, self.options.dtype, None, digest)
                    yield Both(before, job, by_name[launch.device])
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


@dataclass(frozen=True)
class Both:
    """One config at the baseline and as it is."""

    before: FactsJob
    after: FactsJob
    device: Device


def _place(launch: DefaultLaunch) -> tuple[Any, ...]:
    return launch.device, *sorted(launch.sizes.items())


def _job(
    kernel: Description,
    impl: DescribedImpl,
    launch: DefaultLaunch,
    dtype: str,
    version: str | None,
    digest: str,
) -> FactsJob:
    config = dict(launch.config or {})
    at = dict(launch.sizes)
    case = Case(kernel.name, impl.name, impl.backend, config, at, dtype, launch.device)
    return FactsJob(kernel.file, case, impl.code, version, digest)


class _BothVersions:
    """The machine code of both versions: the baseline's is obtained first, in processes of its own,
    which end before code of the branch runs."""

    def __init__(self, stack: ExitStack, file: Path | None, run: str, files: GateFiles) -> None:
        self._stack, self._files, self._place = stack, files, (file, run)
        self._before: dict[str, Facts] = {}
        self.title = ""

    @cached_property
    def _store(self) -> CodeStore:  # whose file is created where something is compiled
        return self._stack.enter_context(closing(CodeStore(*self._place)))

    def baseline(self, described: Sequence[Description], devices: Sequence[Device]) -> None:
        """Compile the baseline's configs of these kernels. What an earlier run stored of them is
        not taken: code of the branch may have run beside it and written to that file."""
        if not described:
            return
        by_name = {device.name: device for device in devices}
        with Compilers([None]) as pools:
            (compiler,) = pools.versions()
            self.title = compiler.title
            jobs = [
                CompileTask(0, compiler, _job(then, impl, launch, dtype, then.file, ""), device)
                for then in described
                for impl in then.impls
                for launch in impl.launches
                if launch.config is not None
                for dtype, device in [(self._files.dtype, by_name[launch.device])]
            ]
            for n, facts in self._store.obtain(pools, jobs, again=True):
                self._before[jobs[n].key] = facts

    def pairs(self, both: Sequence[Both], threshold: float) -> Iterator[CodePair]:
        """Compile the branch's configs, and yield each pair as it is compiled."""
        if not both:
            return
        with Compilers([None], here=self._files.root) as pools:
            (compiler,) = pools.versions()
            tasks = [CompileTask(0, compiler, one.after, one.device) for one in both]
            for n, after in self._store.obtain(pools, tasks):
                one = both[n]
                key = CompileTask(0, compiler, one.before, one.device).key
                was, case = one.before.case, one.after.case
                note = "" if dict(was.config) == dict(case.config) else f"was {label(was.config)}"
                yield paired(case, self._before[key], after, threshold, note=note)
