"""Find the commit that made a kernel slower."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import catalog
from workbench.backend.protocol import Problem
from workbench.catalog.source import code_hash
from workbench.commands.comparison import (
    Pair,
    PairMaker,
    compare_pair,
    require_gpu,
    run_comparisons,
    say_begin,
)
from workbench.commands.console import say_result
from workbench.commands.operands import Operand, OperandError, config_operand, repository_with
from workbench.commands.options import CommandError
from workbench.commands.result import RunResult, write_result
from workbench.commands.run import (
    Opener,
    OpenResources,
    Recorder,
    any_backend,
    check_outputs,
    new_run,
    repository_of,
    resources,
    say_page,
)
from workbench.commands.sizes import check_dtype, sizes_of
from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED, PASSED, UNDECIDED
from workbench.data.record import Failure, Verdict, key_of
from workbench.data.units import amount
from workbench.device.hardware import METAL
from workbench.revisions.bisection import (
    SHORT,
    Bisection,
    BisectStep,
    Decision,
    describe,
    subject_of,
)
from workbench.revisions.worktree import WorktreeError, Worktrees
from workbench.spec import sizes_text
from workbench.tuner.space import RecordFactory

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.bisect import BisectOptions


Decide = Callable[[str], Decision]
OWN = ("refused", "compile", "check", "launch")  # stages of which the config itself is the cause
LISTED = 10  # candidates that are printed


@dataclass
class BisectCommand:
    """One search from the options to the commit."""

    options: BisectOptions
    console: Console
    open_backend: Opener = any_backend
    result: dict[str, Any] = field(default_factory=dict)  # of the JSON document

    def go(self) -> int:
        """Run to the end. Returns 0 where the commit was located, 3 where some were left undecided,
        2 where BAD is not slower than GOOD, or 130 after Ctrl-C. Raises CommandError where there
        are no commits to search."""
        options = self.options
        spec = catalog.spec_of(options.kernel)
        check_dtype(spec, options.dtype)
        problem = Problem(options.kernel, spec, sizes_of(spec, options.sizes), options.dtype)
        operand = config_operand(options.impl, spec) if options.impl else Operand()
        repository = repository_with(options.kernel)
        if repository is None:
            raise CommandError(
                f"The file of {options.kernel} is in no git repository, so there are no commits to "
                "search; name a kernel by the path of a file in one."
            )
        file = Path(catalog.module_of(options.kernel).__file__ or "")
        good, bad = Bisection.check(repository, options.good, options.bad)
        check_outputs(options)
        if options.device:
            from workbench.commands.bisect_offline import OfflineBisect

            return OfflineBisect(self, problem, operand, repository, file, good, bad).go()
        require_gpu(self.open_backend)
        folder = repository_of(options.kernel)
        with (
            Worktrees(repository) as trees,
            resources(options, lambda: self.open_backend(None, folder)) as opened,
        ):
            if opened.backend.device.backend == METAL:
                raise CommandError(
                    "bisect measures Triton kernels; compare two Metal versions with `workbench "
                    "compare`."
                )
            search = MeasuredBisect(self, problem, operand, trees, opened, file, good, bad)
            return search.go()

    def tell(self, step: BisectStep, left: int) -> None:
        """Print one step: commit, verdict, ratio, and how many are left."""
        decision = step.decision
        ratio = "" if decision.ratio is None else f"  {decision.ratio:.4f} of GOOD's time"
        text = f"{step.commit[:SHORT]}  {decision.mark:4}{ratio}  {decision.reason}"
        self.console.print(f"{text}; {amount(left, 'step')} left  ({step.subject})",
                           soft_wrap=True)  # fmt: skip

    def search(self, trees: Worktrees, between: tuple[str, str], file: Path, decide: Decide) -> int:
        """Search between GOOD and BAD, whose hashes these are, and conclude. Each checkout is
        removed again. Returns the exit code."""

        def decide_once(commit: str) -> Decision:
            try:
                return decide(commit)
            finally:
                trees.drop(commit)

        search = Bisection(trees.repository, trees.root(between[0]), *between)
        return self._conclude(search, search.search(decide_once, self.tell), file)

    def _conclude(self, bisection: Bisection, candidates: list[str], file: Path) -> int:
        """Print the commit, or those of which one is it. Returns the exit code."""
        repository = bisection.repository
        within = repository.relative_path(file)
        self.result["steps"] = [
            {"commit": s.commit, "subject": s.subject, **asdict(s.decision)}
            for s in bisection.steps
        ]
        self.result["candidates"] = candidates
        if len(candidates) > 1:
            head = (
                f"The first bad commit is one of {len(candidates)}; the others between could not "
                "be decided:"
            )
            say_result(self.console, head, "bold", whole=False)
            for commit in candidates[:LISTED]:
                say_result(self.console, f"  {commit[:SHORT]} {subject_of(repository, commit)}")
            if len(candidates) > LISTED:
                say_result(self.console, f"  and {len(candidates) - LISTED} more")
            return UNDECIDED
        about = describe(repository, candidates[0], within)
        self.result["first_bad"] = about
        say_result(self.console, f"{about['commit']} is the first bad commit", "bold", whole=False)
        say_result(self.console, f"  {about['subject']} ({about['date']})")
        say_result(self.console, f"  {within}: {about['kernel_file']}")
        say_result(self.console, f"  all files: {about['all_files']}")
        decided = [s.decision for s in bisection.steps if s.commit == candidates[0]]
        reason = decided[0].reason if decided else self.result.get("bad_against_good", "")
        if reason:
            say_result(self.console, f"  {reason}")
        return PASSED

    def write(self, code: int, runs: list[RunResult]) -> int:
        """Write the JSON document. Returns the exit code."""
        options = self.options
        whole = {"good": options.good, "bad": options.bad, "threshold": options.threshold}
        return write_result(options, "bisect", code, runs, **whole, **self.result)


@dataclass
class MeasuredBisect:
    """The search on a GPU: each commit is compared with GOOD in turns."""

    command: BisectCommand
    problem: Problem
    operand: Operand
    trees: Worktrees
    resources: OpenResources
    file: Path
    good: str
    bad: str
    _code: int = COULD_NOT_RUN
    _bad_code: str = ""  # hash of BAD's code and config

    def go(self) -> int:
        """Run to the end. Returns the exit code."""
        command, backend = self.command, self.resources.backend
        options = command.options
        run = new_run("bisect", self.problem.spec.name, options.command, backend, [self.problem])
        self._maker = PairMaker(
            RecordFactory(run, self.problem, backend.protocol), backend.device.limits, self.trees
        )
        say_begin(command.console, run, options.threshold)
        result = run_comparisons(self.resources, run, options.out, self._obtain)
        assert result.page is not None
        say_page(command.console, result.page)
        return command.write(INTERRUPTED if result.state == "interrupted" else self._code, [result])

    def _obtain(self, recorder: Recorder) -> None:
        """Compare BAD with GOOD first, then search."""
        command = self.command
        first = self._compare(self.bad, recorder)
        command.result["bad_against_good"] = first.reason
        if first.mark != "bad":
            names = f"BAD ({command.options.bad})", f"GOOD ({command.options.good})"
            what = "is not slower than" if first.ratio else "cannot be compared with"
            text = f"{names[0]} {what} {names[1]}: {first.reason}. Nothing was searched."
            say_result(command.console, text, "bold", whole=False)
            return
        command.console.print(f"BAD against GOOD: {first.reason}", soft_wrap=True)
        decide = partial(self._compare, recorder=recorder)
        self._code = command.search(self.trees, (self.good, self.bad), self.file, decide)

    def _compare(self, commit: str, recorder: Recorder) -> Decision:
        operands = (
            Operand(self.operand.impl, self.operand.knobs, self.good[:SHORT]),
            Operand(self.operand.impl, self.operand.knobs, commit[:SHORT]),
        )
        try:
            pair = self._maker.pair(operands, self.file)
        except (catalog.CatalogError, OperandError, WorktreeError) as error:
            return Decision("skip", f"it cannot be loaded: {str(error).rstrip('.')}")
        codes = [f"{code_hash(c.impl)} {c.config!r}" for c in (pair.left, pair.right)]
        if code_hash(pair.right.impl) and codes[0] == codes[1]:
            return Decision("good", "the code and the config of GOOD", 1.0)
        if commit == self.bad:
            self._bad_code = codes[1] if code_hash(pair.right.impl) else ""
        elif codes[1] == self._bad_code:
            return Decision("bad", "the code and the config of BAD")
        last: Verdict | None = None
        for attempt in range(2):  # an undecided comparison is made once more
            keyed = _key_pair(pair, commit, attempt)
            compared = compare_pair(keyed, recorder, self.command.options.threshold)
            if (result := compared.verdict) is None:
                return self._skip_or_raise(compared.before, compared.after)
            last = result
            words = f"{result.word}: {result.reason}"
            if result.word != "INCONCLUSIVE":
                mark = "bad" if result.word == "SLOW" else "good"
                return Decision(mark, words, result.time.middle)  # type: ignore[arg-type]
        assert last is not None
        if commit == self.bad:
            self._code = UNDECIDED
        return Decision("skip", words, last.time.middle)

    def _skip_or_raise(self, left: object, right: object) -> Decision:
        """Return that a commit is skipped. Raises CommandError where GOOD is what failed."""
        if isinstance(left, Failure) and (left.stage in OWN or not isinstance(right, Failure)):
            raise CommandError(
                f"GOOD ({self.command.options.good}) cannot be measured at "
                f"{sizes_text(self.problem.sizes)} ({left.reason.rstrip('.')}); name another "
                "commit or other sizes."
            )
        if isinstance(right, Failure):
            return Decision("skip", f"{right.stage}: {right.reason.rstrip('.')}")
        return Decision("skip", "it gave no time")


def _key_pair(pair: Pair, commit: str, attempt: int) -> Pair:
    """Return the pair with keys of its own: GOOD is measured beside each commit, and each of these
    times is stored and shown beside the one that it was compared with."""
    left, right = (
        replace(c, key=key_of(c.case, of=c.key, beside=commit, attempt=str(attempt)))
        for c in (pair.left, pair.right)
    )
    return replace(pair, left=left, right=right)
