"""Bouts: two candidates of one problem against each other, and where what comes of them is kept.

Both outcomes and the verdict are in the events file and in the database before the next bout.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import catalog
from workbench.backend.protocol import Backend, Candidate, Measures, Problem, Refusal, Timed
from workbench.commands.operands import Side, SideError, titles
from workbench.commands.worktree import WORKING, Worktrees
from workbench.compile import Compiled
from workbench.data.events import EventLog, RunState
from workbench.data.record import Comparison, Outcome, Run, Verdict, key_of
from workbench.device import hardware
from workbench.reports import write_page
from workbench.tuner.space import Identity

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.data.store import Store
    from workbench.reports.compare import Bout as Shown


@dataclass(frozen=True)
class Bout:
    """Two candidates of one problem, and what they are called."""

    problem: Problem
    left: Candidate
    right: Candidate
    names: tuple[str, str]


@dataclass
class Ring:
    """Where bouts are held, one after the other, and where what comes of them is kept."""

    backend: Measures
    store: Store
    run: Run
    log: EventLog
    asked: float  # 0.01 is one percent
    outcomes: list[Outcome] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    _begun: bool = False

    def hold(self, bout: Bout) -> Shown:
        """One bout; a side that fails is an outcome, and then there is no verdict."""
        from workbench.reports.compare import Bout as Shown

        made, why = self._ready(bout)
        found: tuple[Timed | Refusal, Timed | Refusal]
        verdict: Verdict | None = None
        if why:
            other = Refusal("measure", "the other side could not run", own=False)
            found = why.get(bout.left.key, other), why.get(bout.right.key, other)
        else:
            *both, verdict = self.backend.contest(bout.left, bout.right, self.asked)
            found = both[0], both[1]
        identity = Identity(self.run, bout.problem, self.backend.protocol)
        left, right = (
            identity.outcome(c, f, "compare", made.get(c.key))
            for c, f in zip((bout.left, bout.right), found, strict=True)
        )
        told = Comparison(
            self.run.id, _now(), bout.problem.spec.name, dict(bout.problem.sizes),
            bout.problem.dtype, *bout.names, left.key, right.key, verdict,
            self.backend.rules.looks,
        )  # fmt: skip
        self._keep(left, right, told)
        return Shown(told, left, right)

    def _ready(self, bout: Bout) -> tuple[dict[str, Compiled], dict[str, Refusal]]:
        """What the compiler makes of both; or, by key, why a side cannot run."""
        sides = (bout.left, bout.right)
        refused = {c.key: _refused(c, bout.problem, self.backend) for c in sides}
        why = {key: refusal for key, refusal in refused.items() if refusal is not None}
        todo = [c for c in sides if c.impl.backend == "triton" and c.key not in why]
        ceilings: Mapping[str, Any] = {}
        try:
            ceilings = self.backend.begin(bout.problem, todo)
        except RuntimeError as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            why = {c.key: Refusal("measure", lines[0]) for c in sides}
        if not self._begun:
            self.run = replace(self.run, ceilings={**self.run.ceilings, **ceilings})
            self.store.begin(self.run, self.log)
            self._begun = True
        if any(r.stage == "measure" for r in why.values()):
            return {}, why
        made: dict[str, Compiled] = {}
        for candidate, found in self.backend.compiled(todo):
            if isinstance(found, Refusal):
                why[candidate.key] = found
            else:
                made[candidate.key] = found
        return made, why

    def _keep(self, left: Outcome, right: Outcome, told: Comparison) -> None:
        self.outcomes += [left, right]
        self.comparisons.append(told)
        self.store.keep(left)
        self.store.keep(right)
        with self.store.interrupts.later():
            self.log.write(told)
            self.store.history.add_comparison(told)

    def hold_all(self, bouts: Iterable[Bout], say: Callable[[Shown], None]) -> RunState:
        """All bouts, each told as it ends. Ctrl-C ends it early, with all so far."""
        try:
            for bout in bouts:
                say(self.hold(bout))
        except KeyboardInterrupt:
            self._end("interrupted")
            return "interrupted"
        self._end("complete")
        return "complete"

    def _end(self, state: RunState) -> None:
        if not self._begun:
            self.store.begin(self.run, self.log)
        words = Counter(c.verdict.word if c.verdict else "none" for c in self.comparisons)
        self.store.end(state, words, dict(self.backend.spent))

    def draw(self, folder: Path) -> Path:
        """Write the page of what was held so far."""
        from workbench.reports.compare import page

        html = page(self.run, self.outcomes, self.comparisons)
        return write_page(folder / "report.html", html)


def _refused(candidate: Candidate, problem: Problem, backend: Backend) -> Refusal | None:
    impl, limits = candidate.impl, backend.device.limits
    why = impl.rejection_reason(candidate.config, limits, problem.dtype, problem.sizes)
    return Refusal("refused", why) if why is not None else None


@dataclass
class Corner:
    """Makes candidates of the sides of one problem."""

    identity: Identity
    limits: Any
    trees: Worktrees | None

    def bout(self, sides: tuple[Side, Side], file: Path | None = None) -> Bout:
        """The bout of two sides; `file` is the kernel's, as it is, where a side is a revision.

        Raises CatalogError, SideError or WorktreeError.
        """
        problem = self.identity.problem
        picked = []
        for side, place in zip(sides, ("left", "right"), strict=True):
            version = self._version(side, file)
            spec = catalog.version_of(version) if version else problem.spec
            impl, config = side.chosen(spec, self.limits, problem.dtype, problem.sizes)
            made = self.identity.candidate(impl, config, False)
            source = catalog.source_hash(catalog.module_of(str(version or problem.kernel)))
            key = key_of(made.case, question=made.key, source=source, side=place)
            picked.append(replace(made, key=key, version=str(version) if version else None))
        left, right = picked
        names = titles(sides, (left.impl, right.impl), (left.config, right.config))
        return Bout(problem, left, right, names)

    def _version(self, side: Side, file: Path | None) -> Path | None:
        if side.revision == WORKING or file is None or self.trees is None:
            return None
        within = self.trees.repository.within(file)
        found = self.trees.file(side.revision, within)
        if found is None:
            raise SideError(f"{side.revision} has no file {within}; name a later revision.")
        return found


def opened_run(
    engine: str, name: str, command: str, backend: Backend, problems: Sequence[Problem]
) -> Run:
    """A run over these problems; sizes are left empty where there are several."""
    now = datetime.now(UTC)
    kernels = list(dict.fromkeys(p.spec.name for p in problems))
    short = kernels[0] if len(kernels) == 1 else "suite"
    dtypes = list(dict.fromkeys(p.dtype for p in problems))
    alike = all(dict(p.sizes) == dict(problems[0].sizes) for p in problems)
    return Run(
        id=f"{now:%Y%m%d-%H%M%S}-{engine}-{short}-{secrets.token_hex(2)}",
        engine=engine,
        name=name,
        command=command,
        started=now.isoformat(timespec="milliseconds"),
        kernel=", ".join(kernels),
        sizes=dict(problems[0].sizes) if alike and len(kernels) == 1 else {},
        dtype=", ".join(dtypes),
        device=backend.device.name,
        predicted=backend.predicts,
        vary=(),
        tune=(),
        impls={},
        ceilings=_ceilings(backend, dtypes),
        environment=backend.environment,
        source=", ".join(dict.fromkeys(p.kernel for p in problems)),
    )


def _ceilings(backend: Backend, dtypes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Those of the datasheet; `compute` carries its dtype's name where there are several."""
    found: dict[str, dict[str, Any]] = {}
    for dtype in dtypes:
        for name, ceiling in hardware.ceilings(backend.device, dtype).items():
            several = name == "compute" and len(dtypes) > 1
            found[f"compute_{dtype}" if several else name] = ceiling
    return found


def say_begin(console: Console, run: Run, threshold: float) -> None:
    """The first lines: on what, and what is asked."""
    from workbench.commands.console import plan_line

    console.print(plan_line(run), style="bold")
    sizes = ", ".join(f"{k} = {v}" for k, v in run.sizes.items())
    about = ", ".join(part for part in (run.kernel, sizes, run.dtype) if part)
    console.print(f"{about}; threshold {threshold * 100:.2g} %")


def show_bout(console: Console, shown: Shown, run: Run) -> None:
    """Both sides in columns, the ratio, the word and the sentence."""
    from rich.table import Table
    from rich.text import Text

    from workbench.reports.compare import HEADS, conclusion, ratio_lines, side_rows

    rows = side_rows(shown, run)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(max_width=40)
    table.add_column(max_width=40)
    for n in range(len(HEADS)):
        cells = [row[n] if n < len(row) else "" for row in rows]
        table.add_row(Text(HEADS[n]), *map(Text, cells))
    console.print(table)
    verdict = shown.comparison.verdict
    for line in ratio_lines(verdict) if verdict else []:
        console.print(line)
    word = f"{verdict.word}. " if verdict else ""
    console.print(word + conclusion([shown]), style="bold")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
