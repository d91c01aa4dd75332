"""Compare two candidates of one problem, and keep the outcomes: shared by `compare` and `gate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from workbench import catalog
from workbench.backend.protocol import Measures, Problem
from workbench.code.compared_pair import ComparedPair, compiled_change
from workbench.commands.console import plan_line, say_result
from workbench.commands.operands import Operand, OperandError, titles
from workbench.commands.options import CommandError
from workbench.commands.result import RunResult
from workbench.commands.run import (
    Opener,
    OpenResources,
    Recorder,
    any_backend,
    backend_for,
    draw_ended_run,
    execute,
    gpu_present,
    target_backend,
)
from workbench.compile import Compiled
from workbench.data.clock import folder_of, timestamp
from workbench.data.errors import first_line
from workbench.data.record import Comparison, Outcome, Profile, Run, Verdict, key_of
from workbench.device.hardware import METAL
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.measurement.energy import COMPARED_WINDOWS
from workbench.reports.run_index import write_run_page
from workbench.revisions.worktree import WORKING, Worktrees
from workbench.spec import Impl
from workbench.tuner.energy import add_energies
from workbench.tuner.space import RecordFactory

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Pair:
    """Two candidates of one problem, and their names."""

    problem: Problem
    left: Candidate
    right: Candidate
    names: tuple[str, str]


def compare_pair(
    pair: Pair, recorder: Recorder, threshold: float, energy: bool = False
) -> ComparedPair:
    """Compare a pair, and store both outcomes and the comparison. Returns them. A candidate that
    fails is an outcome too, and then there is no verdict. With `energy` the joules of both are
    measured too, after the verdict; if that is stopped, the rest is stored."""
    backend = cast(Measures, recorder.backend)
    compiled, refusals = _compile_pair(pair, recorder)
    results: tuple[Timed | Refusal, Timed | Refusal]
    verdict: Verdict | None = None
    if refusals:
        other = Refusal("measure", "the other operand could not run", own=False)
        results = refusals.get(pair.left.key, other), refusals.get(pair.right.key, other)
    else:
        *both, verdict = backend.compare(pair.left, pair.right, threshold)
        results = both[0], both[1]
    stopped: KeyboardInterrupt | None = None
    if energy and all(isinstance(result, Timed) for result in results):
        try:
            results = _add_energy(backend, pair, results)
        except KeyboardInterrupt as error:
            stopped = error
    factory = RecordFactory(recorder.run, pair.problem, backend.protocol)
    left, right = (
        factory.outcome(c, result, "compare", compiled.get(c.key))
        for c, result in zip((pair.left, pair.right), results, strict=True)
    )
    operands = (left, pair.names[0]), (right, pair.names[1])
    comparison = comparison_of(recorder.run, operands, verdict, backend.rules.looks)
    for outcome, place in ((left, "left"), (right, "right")):
        recorder.keep(outcome, place)
    recorder.keep(comparison)
    recorder.counts[verdict.word if verdict else "none"] += 1
    if stopped is not None:
        raise stopped
    return ComparedPair(comparison, left, right, compiled_change(left, right))


def comparison_of(
    run: Run, operands: Sequence[tuple[Outcome, str]], verdict: Verdict | None, looks: int = 1
) -> Comparison:
    """Return the comparison of two outcomes, each with its name."""
    (left, left_name), (right, right_name) = operands
    case = right.case
    at = timestamp(), case.kernel, dict(case.sizes), case.dtype
    names = left_name, right_name, left.key, right.key
    return Comparison(run.id, *at, *names, verdict, looks)


def _add_energy(
    backend: Measures, pair: Pair, results: tuple[Timed | Refusal, Timed | Refusal]
) -> tuple[Timed | Refusal, Timed | Refusal]:
    left, right = add_energies(backend, (pair.left, pair.right), results, COMPARED_WINDOWS)
    return left, right


def _compile_pair(pair: Pair, recorder: Recorder) -> tuple[dict[str, Compiled], dict[str, Refusal]]:
    """Return both compiled candidates, by key; and, by key, why one cannot run."""
    backend, both = recorder.backend, (pair.left, pair.right)
    refusals: dict[str, Refusal] = {}
    for candidate in both:
        impl, limits = candidate.impl, backend.device.limits
        reason = impl.rejection_reason(
            candidate.config, limits, pair.problem.dtype, pair.problem.sizes
        )
        if reason is not None:
            refusals[candidate.key] = Refusal("refused", reason)
    todo = [c for c in both if c.impl.backend == "triton" and c.key not in refusals]
    ceilings: Mapping[str, Any] = {}
    lost: str | None = None
    try:
        ceilings = backend.begin(pair.problem, todo)
    except RuntimeError as error:
        lost = first_line(error)
    recorder.begin(ceilings)
    if lost is not None:
        return {}, {c.key: Refusal("measure", lost) for c in both}
    compiled: dict[str, Compiled] = {}
    places = {pair.left.key: "left", pair.right.key: "right"}
    for candidate, result in backend.compile(todo):
        if isinstance(result, Refusal):
            refusals[candidate.key] = result
        else:
            compiled[candidate.key] = result
            recorder.write_dispatches(candidate.case, result, places[candidate.key])
    return compiled, refusals


def placed_candidate(factory: RecordFactory, impl: Impl, config: Any, place: str) -> Candidate:
    """Return the candidate of one operand, whose key names its place: left or right."""
    candidate = factory.candidate(impl, config, False)
    key = key_of(candidate.case, of=candidate.key, operand=place)
    return replace(candidate, key=key)


@dataclass
class PairMaker:
    """Create the candidates of the operands of one problem."""

    factory: RecordFactory
    limits: Any
    trees: Worktrees | None

    def pair(self, operands: tuple[Operand, Operand], file: Path | None = None) -> Pair:
        """Return the pair of two operands; `file` is the kernel's file in the work tree, if an
        operand is a revision. Raises CatalogError, OperandError or WorktreeError."""
        problem = self.factory.problem
        picked = []
        for operand, place in zip(operands, ("left", "right"), strict=True):
            version = self._version(operand, file)
            spec = catalog.version_of(version) if version else problem.spec
            impl, config = operand.choose(spec, self.limits, problem.dtype, problem.sizes)
            candidate = placed_candidate(self.factory, impl, config, place)
            picked.append(replace(candidate, version=str(version) if version else None))
        left, right = picked
        names = titles(operands, (left.impl, right.impl), (left.config, right.config))
        return Pair(problem, left, right, names)

    def _version(self, operand: Operand, file: Path | None) -> Path | None:
        if operand.revision == WORKING or file is None or self.trees is None:
            return None
        within = self.trees.repository.relative_path(file)
        version = self.trees.file(operand.revision, within)
        if version is None:
            raise OperandError(f"{operand.revision} has no file {within}; name a later revision.")
        return version


def require_gpu(open_backend: Opener) -> None:
    """Raise CommandError where nothing can be measured."""
    if open_backend is any_backend and target_backend(None) == METAL:
        return
    if open_backend in (backend_for, any_backend) and not gpu_present():
        raise CommandError(
            "Comparing needs a GPU that torch sees, and there is none here; run it where there is "
            "one, or name two stored runs (`workbench history` lists them). Machine code is "
            "compared without one: `workbench gate --device h200`, `workbench compare --triton`."
        )


def run_comparisons(
    opened: OpenResources, run: Run, out: Path, obtain: Callable[[Recorder], None]
) -> RunResult:
    """Store and draw the comparisons that `obtain` makes. Returns the run with its page."""
    recorder = opened.recorder(run)
    draw = partial(draw_comparisons, folder=folder_of(out, run.id))
    execute(recorder, obtain, draw)
    return recorder.result(draw_ended_run(recorder, draw).resolve())


def draw_comparisons(recorder: Recorder, folder: Path, profiles: Sequence[Profile] = ()) -> Path:
    """Write the page of the comparisons so far, with the operands' profiles. Returns its path."""
    from workbench.reports.compare import page

    html = page(recorder.run, recorder.outcomes, recorder.comparisons, profiles=profiles)
    return write_run_page(folder, html)


def say_begin(console: Console, run: Run, threshold: float) -> None:
    """Print the device, the problem and the threshold."""
    console.print(plan_line(run), style="bold")
    sizes = ", ".join(f"{k} = {v}" for k, v in run.sizes.items())
    about = ", ".join(part for part in (run.kernel, sizes, run.dtype) if part)
    console.print(f"{about}; threshold {threshold * 100:.2g} %")


def show_comparison(console: Console, pair: ComparedPair, run: Run) -> None:
    """Print both operands in columns, the ratio, the verdict and its sentence."""
    from rich.table import Table
    from rich.text import Text

    from workbench.reports.compare import (
        HEADS,
        conclusion,
        energy_lines,
        filled_columns,
        operand_rows,
        ratio_lines,
    )

    rows = operand_rows(pair, run)
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(max_width=40)
    table.add_column(max_width=40)
    for n in filled_columns(rows):
        cells = [row[n] if n < len(row) else "" for row in rows]
        table.add_row(Text(HEADS[n]), *map(Text, cells))
    console.print(table)
    for line in ratio_lines(pair.verdict) if pair.verdict else []:
        console.print(line)
    for line in energy_lines(pair, run):
        console.print(line)
    word = f"{pair.word}. " if pair.word else ""
    say_result(console, word + conclusion([pair]), "bold", whole=False)
