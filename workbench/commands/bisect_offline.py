"""Search without a GPU, by machine code: for `bisect --device`. Nothing runs.

Code that is GOOD's is as fast as GOOD for sure, and BAD's as slow as BAD; any other is undecided.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workbench import catalog
from workbench.backend.compilers import Compiler, Compilers, FactsJob
from workbench.backend.protocol import Problem
from workbench.catalog.source import load_kernel
from workbench.commands.code_configs import devices_of
from workbench.commands.code_store import NAME, CodeStore, CompileTask
from workbench.commands.console import say_result
from workbench.commands.operands import Operand, OperandError
from workbench.commands.options import CommandError
from workbench.commands.run import require_triton
from workbench.data.clock import run_id
from workbench.data.compiled_code import CompiledCode
from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED
from workbench.data.record import Case
from workbench.device.hardware import METAL, Device, backend_of
from workbench.revisions.bisection import Bisection, Decision
from workbench.revisions.worktree import Repository, WorktreeError, Worktrees
from workbench.spec import ResolveError, values

if TYPE_CHECKING:
    from workbench.commands.bisect import BisectCommand


@dataclass
class OfflineBisect:
    """One search by machine code."""

    command: BisectCommand
    problem: Problem
    operand: Operand
    repository: Repository
    file: Path
    good: str
    bad: str

    def go(self) -> int:
        """Run to the end. Returns 0 where the commit was located, 3 where some were left undecided,
        2 where GOOD and BAD have the same machine code, or 130 after Ctrl-C. Raises CommandError
        where one of them does not compile."""
        options = self.command.options
        if options.strict or options.database is not None:
            raise CommandError("--device measures nothing; leave out --strict and --database.")
        assert options.device is not None
        if backend_of(options.device) == METAL:
            raise CommandError(
                "bisect --device compares machine code, and Metal kernels have none."
            )
        (device,) = devices_of([options.device])
        require_triton()
        file = (options.events_file or options.out / NAME) if options.events else None
        with (
            Worktrees(self.repository) as trees,
            Compilers([None]) as pools,
            closing(CodeStore(file, run_id("bisect", "code"))) as store,
        ):
            (compiler,) = pools.versions()
            compiling = Compiling(self, trees, pools, compiler, store, device)
            try:
                code = compiling.search()
            except KeyboardInterrupt:
                code = INTERRUPTED
        return self.command.write(code, [])


@dataclass
class Compiling:
    """The machine code of commits, on one device."""

    of: OfflineBisect
    trees: Worktrees
    pools: Compilers
    compiler: Compiler
    store: CodeStore
    device: Device

    def search(self) -> int:
        """Return the exit code of the search."""
        of, command = self.of, self.of.command
        options = command.options
        good, bad = self._must(of.good, options.good), self._must(of.bad, options.bad)
        if good == bad:
            text = (
                f"{options.good} and {options.bad} have the same machine code for "
                f"{self.device.name}, so none of the commits between made it slower there."
            )
            say_result(command.console, text, "bold", whole=False)
            return COULD_NOT_RUN
        command.console.print(
            f"{self.compiler.title}, {self.device.name}: GOOD and BAD differ in machine code; "
            "nothing runs, and that BAD is slower is taken as given"
        )

        def decide(commit: str) -> Decision:
            try:
                code = self._code(commit)
            finally:
                self.trees.drop(commit)
            if not isinstance(code, CompiledCode):
                return Decision("skip", code)
            if code.code == good:
                return Decision("good", "the machine code of GOOD")
            if code.code == bad:
                return Decision("bad", "the machine code of BAD")
            return Decision("skip", "other machine code than both: undecided without a GPU")

        search = Bisection(of.repository, self.trees.root(of.good), of.good, of.bad)
        candidates = search.search(decide, command.tell)
        command.result["bad_against_good"] = "other machine code than GOOD's; nothing was measured"
        return command.conclude(search, candidates, of.file)

    def _must(self, commit: str, named: str) -> str:
        code = self._code(commit)
        if not isinstance(code, CompiledCode):
            raise CommandError(f"{named} cannot be compiled ({code}); name another commit.")
        return code.code

    def _code(self, commit: str) -> CompiledCode | str:
        """Return the facts of a commit, or why there are none, without a dot."""
        try:
            job = self._job(commit)
        except (catalog.CatalogError, OperandError, WorktreeError, ResolveError) as error:
            return f"it cannot be loaded: {str(error).rstrip('.')}"
        if isinstance(job, str):
            return job.rstrip(".")
        task = CompileTask(0, self.compiler, job, self.device)
        ((_, result),) = self.store.obtain(self.pools, [task])
        return result.rstrip(".") if isinstance(result, str) else result

    def _job(self, commit: str) -> FactsJob | str:
        problem, device = self.of.problem, self.device
        within = self.trees.repository.relative_path(self.of.file)
        version = self.trees.file(commit, within)
        if version is None:
            return f"it has no file {within}"
        version_of = load_kernel(problem.kernel, str(version))
        chosen = self.of.operand.choose(
            version_of.spec, device.limits, problem.dtype, problem.sizes
        )
        impl, config = chosen
        if reason := impl.rejection_reason(config, device.limits, problem.dtype, problem.sizes):
            return reason
        case = Case(impl.spec.name, impl.name, impl.backend, values(config), dict(problem.sizes),
                    problem.dtype, device.name)  # fmt: skip
        return FactsJob(problem.kernel, case, version_of.hashes[impl.name], str(version))
