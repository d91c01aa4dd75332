"""A suite of kernels against a baseline, for use in CI: what the `gate` command does."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import workbench
from workbench import catalog
from workbench.backend.protocol import Backend, Measures, Problem
from workbench.commands.compare import Opened, needs_gpu
from workbench.commands.comparison import Bout, Corner, Ring, opened_run, say_begin
from workbench.commands.operands import Side, SideError
from workbench.commands.options import SessionError, backend_for, undisturbed, writable
from workbench.commands.worktree import WORKING, Repository, Worktrees
from workbench.data import verdict
from workbench.data.database import open_history
from workbench.data.events import EventLog
from workbench.data.interrupts import Interrupts
from workbench.data.record import Run
from workbench.data.store import Store
from workbench.measurement.protocol import Protocol
from workbench.reports import drawn_at_least, write_page
from workbench.spec import Impl, Limits, ResolveError, sizes_text
from workbench.tuner.space import Identity

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.reports.compare import Bout as Shown


@dataclass(frozen=True)
class Question:
    """What `gate` was asked, in the words of the command line."""

    baseline: str
    kernels: tuple[str, ...] = ()
    dtype: str = "bf16"
    threshold: float = Protocol().asked
    out: Path = Path("results")
    summary: Path | None = None
    database: str | None = None
    strict: bool = False  # refuse where others use the GPU

    @property
    def command(self) -> str:
        """The exact command that asks this again."""
        words = ["workbench", "gate", self.baseline]
        for kernel in self.kernels:
            words += ["--kernel", kernel]
        words += ["--dtype", self.dtype, "--threshold", f"{self.threshold:g}"]
        return shlex.join(words + (["--json", str(self.summary)] if self.summary else []))


def rejection_of_default(impl: Impl, problem: Problem, limits: Limits) -> str | None:
    """Return why the default config cannot run at these sizes, or None."""
    try:
        config = impl.default(limits, problem.dtype, problem.sizes)
    except ResolveError as error:
        return str(error)
    return impl.rejection_reason(config, limits, problem.dtype, problem.sizes)


@dataclass(frozen=True)
class Left:
    """Something that was not compared, and why; `broken` where it should have been."""

    what: str
    why: str
    broken: bool = False


@dataclass
class Gate:
    """A gate from the question to the page."""

    question: Question
    console: Console
    opened: Opened | None = None
    left_out: list[Left] = field(default_factory=list)

    def go(self) -> int:
        """Run to the end. Returns the worst exit code of all (see `compare.exit_code`), or 130
        after Ctrl-C. Raises the errors of the parts, each of which is one sentence."""
        asked = self.question
        repository = Repository.of(self._place())
        repository.known(asked.baseline)
        writable(asked.out)
        files = self._files(repository)
        if not files:
            return self._nothing("no kernel's file has changed")
        needs_gpu(self.opened)
        with ExitStack() as stack:
            trees = stack.enter_context(Worktrees(repository))
            history = stack.enter_context(open_history(asked.database))
            interrupts = stack.enter_context(Interrupts())
            backend = (self.opened or backend_for)(None, repository.root)
            stack.callback(backend.close)
            undisturbed(backend, self.question.strict)
            return self._go(files, trees, backend, Store(history, interrupts))

    def _place(self) -> Path:
        """Where the repository is looked for: at the first kernel, or where the user stands."""
        if not self.question.kernels:
            return Path.cwd()
        file = catalog.module_of(self.question.kernels[0]).__file__
        return Path(file) if file else Path.cwd()

    def _files(self, repository: Repository) -> list[Path]:
        """The kernels' files: those named; the built-in ones inside their own repository; else
        all that changed since the baseline."""
        if self.question.kernels:
            modules = [catalog.module_of(kernel) for kernel in self.question.kernels]
            return [Path(m.__file__) for m in modules if m.__file__]
        home = Path(workbench.__file__).resolve().parent
        if home.parent == repository.root:
            return [home / "kernels" / f"{name}.py" for name in catalog.kernel_names()]
        changed = [repository.root / f for f in repository.changed_since(self.question.baseline)]
        return [f for f in changed if holds_kernel(f.read_text(encoding="utf-8"))]

    def _go(self, files: list[Path], trees: Worktrees, backend: Backend, store: Store) -> int:
        asked = self.question
        problems = [p for file in files for p in self._problems(file)]
        if not problems:
            return self._nothing("no kernel can be timed")
        run = opened_run("gate", asked.baseline, asked.command, backend, problems)
        bouts = [b for p in problems for b in self._bouts(p, run, trees, backend)]
        for left in self.left_out:
            self.console.print(f"left out  {left.what}: {left.why}", soft_wrap=True)
        if not bouts:
            return self._nothing(f"nothing of {asked.baseline} can be compared")
        say_begin(self.console, run, asked.threshold)
        folder = asked.out / run.id
        with EventLog(folder / "events.jsonl") as log:
            ring = Ring(cast(Measures, backend), store, run, log, asked.threshold)
            with drawn_at_least(lambda: ring.draw(folder)):
                state = ring.hold_all(bouts, self._say)
        page = ring.draw(folder).resolve()
        code = 130 if state == "interrupted" else self._code(ring)
        self._conclude(ring, page, code)
        return code

    def _problems(self, file: Path) -> Iterator[Problem]:
        """Each of its sizes to time. Raises SessionError where it lacks the dtype."""
        try:
            spec = catalog.spec_of(named := _named(file))
        except catalog.CatalogError as error:
            return self._leave(file.name, str(error), broken=True)
        if self.question.dtype not in spec.tolerance:
            raise SessionError(catalog.unknown("dtype", self.question.dtype, spec.tolerance))
        for sizes in spec.bench:
            yield Problem(named, spec, dict(sizes), self.question.dtype)

    def _bouts(
        self, problem: Problem, run: Run, trees: Worktrees, backend: Backend
    ) -> Iterator[Bout]:
        """Each Triton Impl as of the baseline and as it is, each at its own default config."""
        identity = Identity(run, problem, backend.protocol)
        corner = Corner(identity, backend.device.limits, trees)
        file = Path(catalog.module_of(problem.kernel).__file__ or "")
        baseline = self.question.baseline
        if trees.file(baseline, trees.repository.within(file)) is None:
            self._leave(problem.spec.name, f"new since {baseline}")
            return
        for impl in [i for i in problem.spec.impls if i.backend == "triton"]:
            try:
                then = catalog.version_of(trees.at(baseline) / trees.repository.within(file))
                if impl.name not in [i.name for i in then.impls]:
                    self._leave(impl.title, f"new since {baseline}")
                    continue
                both = (impl, catalog.impl_of(then, impl.name))
                whys = [rejection_of_default(i, problem, backend.device.limits) for i in both]
                if all(whys):  # it never ran there, so nothing can have become slower
                    self._leave(f"{impl.title} at {sizes_text(problem.sizes)}", str(whys[0]))
                    continue
                sides = Side(impl.name, {}, baseline), Side(impl.name, {}, WORKING)
                yield corner.bout(sides, file)
            except (catalog.CatalogError, SideError) as error:
                self._leave(impl.title, str(error), broken=True)

    def _leave(self, what: str, why: str, broken: bool = False) -> None:
        left = Left(what, why, broken)
        if left not in self.left_out:  # once, not for each size
            self.left_out.append(left)

    def _code(self, ring: Ring) -> int:
        from workbench.reports.compare import corrected

        verdicts = [c.verdict for c in corrected(ring.comparisons)]
        broken = [None for left in self.left_out if left.broken]
        return verdict.exit_code([*verdicts, *broken])

    def _nothing(self, why: str) -> int:
        """No bout: fine where nothing changed, and 2 where something named could not run."""
        broken = any(left.broken for left in self.left_out)
        for left in self.left_out:
            self.console.print(f"left out  {left.what}: {left.why}", soft_wrap=True)
        self.console.print(f"Nothing to compare with {self.question.baseline}: {why}.")
        code = verdict.COULD_NOT_RUN if broken else 0
        self._write({"exit_code": code, "comparisons": []})
        return code

    def _say(self, shown: Shown) -> None:
        from workbench.reports.compare import line

        self.console.print("  ".join(cell for cell in line(shown) if cell), soft_wrap=True)

    def _conclude(self, ring: Ring, page: Path, code: int) -> None:
        from workbench.reports.compare import bouts_of, conclusion

        shown = bouts_of(ring.outcomes, ring.comparisons)
        self.console.print(conclusion(shown), style="bold")
        for bout in shown if len(shown) > 1 else []:
            v = bout.comparison.verdict
            if v is None or v.word in ("SLOW", "CLOCK"):
                self.console.print(f"  {bout.name}: {conclusion([bout])}", soft_wrap=True)
        self.console.print(f"report  {page}", soft_wrap=True)
        self._write({
            "exit_code": code, "run": ring.run.id, "device": ring.run.device,
            "page": str(page), "comparisons": [_plain(bout) for bout in shown],
        })  # fmt: skip

    def _write(self, found: dict[str, Any]) -> None:
        if self.question.summary is None:
            return
        whole = {
            "baseline": self.question.baseline, "threshold": self.question.threshold, **found,
            "left_out": [asdict(left) for left in self.left_out],
        }  # fmt: skip
        write_page(self.question.summary, json.dumps(whole, indent=1) + "\n")


def holds_kernel(text: str) -> bool:
    """Whether a Python file registers an Impl: a function under `@name.impl(...)` at its top. A
    file that cannot be parsed is taken for none: it can be no older kernel's successor either."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return False
    calls = [
        d.func for f in body if isinstance(f, ast.FunctionDef) for d in f.decorator_list
        if isinstance(d, ast.Call)
    ]  # fmt: skip
    return any(isinstance(called, ast.Attribute) and called.attr == "impl" for called in calls)


def _named(file: Path) -> str:
    """How the kernel is asked for: a built-in one by its name, so that it is loaded once."""
    home = Path(workbench.__file__).resolve().parent / "kernels"
    return file.stem if file.resolve().parent == home else str(file)


def _plain(bout: Shown) -> dict[str, Any]:
    """One comparison for the summary, its verdict as it stands among the others."""
    from workbench.data.record import Record
    from workbench.reports.compare import troubles

    c, v = bout.comparison, bout.comparison.verdict
    sides = {
        place: {
            "name": name,
            "config": dict(o.case.config) if o else {},
            "median_s": o.time_s if isinstance(o, Record) else None,
        }
        for place, name, o in (("left", c.left, bout.left), ("right", c.right, bout.right))
    }
    told = asdict(v) if v else None
    return {
        "kernel": c.kernel, "impl": bout.right.case.impl if bout.right else "", "dtype": c.dtype,
        "sizes": dict(c.sizes), "exit_code": verdict.exit_code([v]), **sides, "verdict": told,
        "troubles": troubles(bout),
    }  # fmt: skip
