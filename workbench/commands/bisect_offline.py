"""Search without a GPU, by machine code: for `bisect --device`. Nothing runs.

Code that is GOOD's is as fast as GOOD for sure, and BAD's as slow as BAD; any other is undecided.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from workbench import catalog
from workbench.backend.compilers import Compiler, Compilers, CompileTask, FactsJob
from workbench.backend.protocol import Problem
from workbench.catalog.source import load_kernel
from workbench.code.compared_pair import code_change, has_facts
from workbench.commands.code_configs import devices_of
from workbench.commands.code_run import CodeRun, new_code_run, stored_code
from workbench.commands.console import say_result
from workbench.commands.operands import Operand, OperandError
from workbench.commands.options import CommandError
from workbench.commands.run import require_triton, say_page
from workbench.commands.stored import stored_runs
from workbench.data.compiled_code import CodeVersions
from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED
from workbench.data.record import Case, Outcome
from workbench.device.hardware import METAL, Device, backend_of
from workbench.reports.pair_texts import missing_reason, reasons
from workbench.reports.run_index import write_run_page
from workbench.reports.versions import changes_page
from workbench.revisions.bisection import SHORT, Decision
from workbench.revisions.worktree import Repository, WorktreeError, Worktrees
from workbench.spec import ResolveError, values

if TYPE_CHECKING:
    from workbench.commands.bisect_command import BisectCommand


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
    trees: Worktrees = field(init=False)
    pools: Compilers = field(init=False)
    compiler: Compiler = field(init=False)
    code_run: CodeRun = field(init=False)
    device: Device = field(init=False)

    def go(self) -> int:
        """Run to the end. Returns 0 where the commit was located, 3 where some were left undecided,
        2 where GOOD and BAD have the same machine code, or 130 after Ctrl-C. Raises CommandError
        where one of them does not compile."""
        options = self.command.options
        if options.require:
            raise CommandError("--device measures nothing; leave out --require idle-gpu.")
        assert options.device is not None
        if backend_of(options.device) == METAL:
            raise CommandError(
                "bisect --device compares machine code, and Metal kernels have none."
            )
        (self.device,) = devices_of([options.device])
        require_triton()
        with (
            stored_runs(options.database, reading=False) as history,
            Worktrees(self.repository) as self.trees,
            Compilers([None]) as self.pools,
        ):
            (self.compiler,) = self.pools.versions()
            names = options.good, options.bad
            versions = CodeVersions(*names, (self.device.name,), options.threshold, configs=0)
            case = Case(self.problem.spec.name, "", "triton", {}, self.problem.sizes,
                        self.problem.dtype, self.device.name)  # fmt: skip
            compilers, root = [self.compiler], self.repository.root
            run = new_code_run(options, "bisect", [case], versions, compilers, root)
            code = INTERRUPTED
            with stored_code(options, run, history) as self.code_run:
                code = self._search()
        page = write_run_page(self.code_run.folder, changes_page(self.code_run.changes)).resolve()
        say_page(self.command.console, page)
        return self.command.write(code, [self.code_run.result(page)])

    def _search(self) -> int:
        """Return the exit code of the search."""
        command, options = self.command, self.command.options
        good, bad = self._must(self.good, options.good), self._must(self.bad, options.bad)
        if self.code_run.compare(good, bad, commit=self.bad[:SHORT]).word == "SAME":
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
            outcome = self._outcome(commit)
            if isinstance(outcome, str):
                return Decision("skip", outcome.rstrip("."))
            pair = self.code_run.compare(good, outcome, commit=commit[:SHORT])
            if pair.word == "FAILS":
                return Decision("skip", reasons(pair).rstrip("."))
            if pair.word == "SAME":
                return Decision("good", "the machine code of GOOD")
            if code_change(bad, outcome).word == "SAME":
                return Decision("bad", "the machine code of BAD")
            return Decision("skip", "other machine code than both: undecided without a GPU")

        command.result["bad_against_good"] = "other machine code than GOOD's; nothing was measured"
        return command.search(self.trees, (self.good, self.bad), self.file, decide)

    def _must(self, commit: str, named: str) -> Outcome:
        outcome = self._outcome(commit)
        if isinstance(outcome, str) or not has_facts(outcome):
            reason = outcome if isinstance(outcome, str) else missing_reason(outcome)
            raise CommandError(
                f"{named} cannot be compiled ({reason.rstrip('.')}); name another commit."
            )
        return outcome

    def _outcome(self, commit: str) -> Outcome | str:
        """Return the outcome of a commit, or why it has no config to compile."""
        try:
            job = self._job(commit)
        except (catalog.CatalogError, OperandError, WorktreeError, ResolveError) as error:
            return f"it cannot be loaded: {error}"
        if isinstance(job, str):
            return job
        tasks = [CompileTask(0, self.compiler, job, self.device)]
        ((_, outcome),) = self.code_run.obtain(self.pools, tasks, self.code_run.find_known(tasks))
        return outcome

    def _job(self, commit: str) -> FactsJob | str:
        problem, device = self.problem, self.device
        within = self.repository.relative_path(self.file)
        version = self.trees.file(commit, within)
        if version is None:
            return f"it has no file {within}"
        version_of = load_kernel(problem.kernel, str(version))
        at = device.limits, problem.dtype, problem.sizes
        impl, config = self.operand.choose(version_of.spec, *at)
        if reason := impl.rejection_reason(config, *at):
            return reason
        case = Case(impl.spec.name, impl.name, impl.backend, values(config), dict(problem.sizes),
                    problem.dtype, device.name)  # fmt: skip
        return FactsJob(problem.kernel, case, version_of.hashes[impl.name], str(version))
