"""Compare the machine code of changed kernels with a baseline's, for `gate --device`: no GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import catalog
from workbench.backend.compilers import Compiler, Compilers, FactsJob
from workbench.commands.changed_kernels import LeftOut, leave, removed_impls
from workbench.commands.code_configs import devices_of
from workbench.commands.code_store import NAME, CodeStore, CompileTask
from workbench.commands.code_table import finish, pairs_as_compiled
from workbench.commands.console import say_result
from workbench.commands.gate_checks import ChangedImpl, changed_impls, checked_code, say_checks
from workbench.commands.gate_comment import write_comment
from workbench.commands.options import CommandError, GateOptions
from workbench.commands.result import write_result
from workbench.commands.run import check_outputs, require_triton
from workbench.commands.worktree import WORKING, Repository, WorktreeError, Worktrees
from workbench.data.clock import folder_of, run_id, timestamp
from workbench.data.code_pair import CodePair, exit_code_of
from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED, PASSED
from workbench.data.impl_check import ImplCheck
from workbench.data.record import Case
from workbench.data.units import counted
from workbench.device.hardware import METAL, Device, backend_of
from workbench.reports.compilers import CodeChanges
from workbench.source import code_hash, loaded
from workbench.spec import Impl, ResolveError, Sizes, Spec, values

if TYPE_CHECKING:
    from rich.console import Console

Both = tuple[FactsJob, FactsJob, Device]


@dataclass
class OfflineGate:
    """Compile the changed kernels at the baseline and as they are, for the named devices."""

    options: GateOptions
    console: Console
    repository: Repository
    left_out: list[LeftOut] = field(default_factory=list)
    unchanged: int = 0  # configs with the same code and config: not compiled
    changed: list[ChangedImpl] = field(default_factory=list)  # whose results are checked

    def go(self, files: Sequence[tuple[str, Path]]) -> int:
        """Compare the kernels, each with its file. Returns 0, 3 where something is suspected to be
        worse, 2 where something does not compile any more, or 130 after Ctrl-C. Raises
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
        started = time.monotonic()
        with Worktrees(self.repository) as trees, Compilers([None]) as pools:
            (compiler,) = pools.versions()
            every = [
                both
                for kernel, file in files
                for both in self._of_kernel(kernel, file, trees, devices)
            ]
            checks = say_checks(self.console, self.changed, options.dtype, devices[0].limits)
            return self._go(pools, compiler, every, devices, started, checks)

    def _of_kernel(
        self, kernel: str, file: Path, trees: Worktrees, devices: Sequence[Device]
    ) -> Iterator[Both]:
        """Yield the configs of one kernel that may differ, at both versions."""
        baseline, dtype = self.options.baseline, self.options.dtype
        try:
            spec = catalog.spec_of(kernel)
            then_file = trees.file(baseline, trees.repository.within(file))
            if then_file is None:
                self._leave(spec.name, f"new since {baseline}")
                self.changed += changed_impls(kernel, spec, None)
                return
            then = loaded(kernel, str(then_file)).spec
        except (catalog.CatalogError, WorktreeError) as error:
            self._leave(file.name, str(error), broken=True)
            return
        if dtype not in spec.tolerance:
            self._leave(spec.name, f"it does not support {dtype}")
            return
        self.changed += changed_impls(kernel, spec, then_file)
        for title in removed_impls(then, spec, "triton"):
            self._leave(title, f"removed since {baseline}")
        for impl in [i for i in spec.impls if i.backend == "triton"]:
            if impl.name not in [i.name for i in then.impls]:
                self._leave(impl.title, f"new since {baseline}")
                continue
            for device in devices:
                yield from self._of_impl(kernel, spec, impl, then, str(then_file), device)

    def _of_impl(
        self, kernel: str, spec: Spec, impl: Impl, then: Spec, version: str, device: Device
    ) -> Iterator[Both]:
        old = catalog.impl_of(then, impl.name)
        for sizes in spec.bench:
            before = self._job(kernel, old, version, sizes, device)
            after = self._job(kernel, impl, None, sizes, device)
            if isinstance(before, str) or isinstance(after, str):
                # where the baseline did not run either, nothing can have become slower
                broken = not isinstance(before, str)
                reason = after if isinstance(after, str) else f"at the baseline: {before}"
                self._leave(f"{impl.title} on {device.name}", reason, broken)
                continue
            if before.code and before.code == after.code and before.case == after.case:
                self.unchanged += 1
                continue
            yield before, after, device

    def _job(
        self, kernel: str, impl: Impl, version: str | None, sizes: Sizes, device: Device
    ) -> FactsJob | str:
        """Return the default config of a version, or why it cannot run at these sizes."""
        dtype = self.options.dtype
        try:
            config = impl.default(device.limits, dtype, sizes)
        except ResolveError as error:
            return str(error)
        if reason := impl.rejection_reason(config, device.limits, dtype, sizes):
            return reason
        name = impl.spec.name
        case = Case(name, impl.name, impl.backend, values(config), dict(sizes), dtype, device.name)
        return FactsJob(kernel, case, code_hash(impl), version)

    def _leave(self, what: str, reason: str, broken: bool = False) -> None:
        leave(self.left_out, what, reason, broken)

    def _go(
        self,
        pools: Compilers,
        compiler: Compiler,
        every: Sequence[Both],
        devices: Sequence[Device],
        started: float,
        checks: Sequence[ImplCheck],
    ) -> int:
        options, run = self.options, run_id("gate", "code")
        file = (options.events_file or options.out / NAME) if options.events else None
        broken = any(left.broken for left in self.left_out)
        more: dict[str, Any] = {"baseline": options.baseline, "unchanged": self.unchanged,
                "checks": [asdict(check) for check in checks],
                "left_out": [asdict(left) for left in self.left_out]}  # fmt: skip
        if not every:
            for left in self.left_out:
                self.console.print(f"left out  {left.what}: {left.reason}", soft_wrap=True)
            text = f"{counted(self.unchanged, 'config')} have the code and the config of"
            text = f"Nothing to compile: {text} {options.baseline}."
            say_result(self.console, text, whole=False)
            code = checked_code(checks, COULD_NOT_RUN if broken else PASSED)
            nothing = f"{counted(self.unchanged, 'config')} have the same code and config"
            write_comment(options, code, self.left_out, checks, nothing=nothing)
            return write_result(options, "gate", code, **more)
        pairs, interrupted = list[CodePair](), False
        with closing(CodeStore(file, run)) as store:
            both = [
                (CompileTask(0, compiler, a, device), CompileTask(0, compiler, b, device))
                for a, b, device in every
            ]
            self.console.print(
                f"{compiler.title}: {counted(len(both), 'config')} of {options.baseline} and "
                f"{WORKING}, {counted(len(devices), 'device')}; nothing runs",
                style="bold",
            )
            try:
                none_tuned = [""] * len(both)
                for pair in pairs_as_compiled(store, pools, both, options.threshold, none_tuned):
                    pairs.append(pair)
            except KeyboardInterrupt:
                interrupted = True
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
            interrupted=interrupted,
            of=len(every),
            unchanged=self.unchanged,
            checks=checks,
        )
        result = finish(self.console, changes, folder_of(options.out, run))
        code = INTERRUPTED if interrupted else exit_code_of(pairs, broken)
        code = checked_code(checks, code)
        write_comment(options, code, self.left_out, checks, changes=changes)
        return write_result(options, "gate", code, code_changes=result, **more)
