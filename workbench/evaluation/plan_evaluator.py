"""PlanEvaluator a file under test by its plans, in processes that never import it.

A process that may run the file records what its launcher does. Others, which hold the Spec as it
was before any code of the file ran, build the device functions from their text, interpret and
compile them, and compare. Rules that they decide are evidence; the others are the file's word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench import catalog
from workbench.backend.checking import CheckCall, CheckRequest
from workbench.backend.processes import COMPILE_TIMEOUT_S, CompileJob, compile_task, outcome_of
from workbench.backend.workers import LOST
from workbench.catalog.source import files_of
from workbench.compile import Compiled
from workbench.data.errors import first_sentence
from workbench.data.user_code import LIMIT_S
from workbench.device.hardware import Device
from workbench.dsl import CORES_OF_A_CPU
from workbench.evaluation.calls import HIDDEN, calls_at
from workbench.evaluation.evaluator import Evaluator
from workbench.evaluation.launcher_text import defined_names, opaque_reason
from workbench.evaluation.plan import (
    LaunchPlan,
    LaunchStep,
    NotReplayable,
    PlannedCall,
    PlannedConstant,
    PlannedView,
    fault_of,
)
from workbench.evaluation.problem import SpecFacts
from workbench.evaluation.processes import Processes
from workbench.evaluation.recording import CallLayout, record_plan
from workbench.evaluation.replay import ReplaySpec, write_plan
from workbench.evaluation.sampled import SampledRun, run_some
from workbench.evaluation.submission import Submission, Wanted
from workbench.evaluation.tasks import PreparedTask
from workbench.evaluation.verdict import RuleResult, Shown, call_results, fail_rules, shown_by
from workbench.measurement.candidate import Candidate, Refusal
from workbench.measurement.rules import RuleName
from workbench.spec import Sizes, sizes_text

RETRY_S = 4 * COMPILE_TIMEOUT_S  # of a second try to compile
LARGER_S = 90.0  # to make inputs and reference near the sizes to time, and to run programs
# Rules that say what the launcher does, and not what its plan does.
_OF_THE_LAUNCHER: tuple[RuleName, ...] = ("launches", "operators", "functions", "process")


def sources_of(kernel: str) -> dict[str, bytes]:
    """Return the files of a kernel that is named by its path, as they are now: it and those that
    it imports. Empty for those of the workbench and of installed packages."""
    if not catalog.is_path(kernel) or not Path(kernel).is_file():
        return {}
    return {str(path): path.read_bytes() for path in files_of(Path(kernel).resolve())}


@dataclass(frozen=True)
class PlanEvaluation:
    """What the plans of a file show. `claim` says in one clause why the file's word is needed for
    some rules, and is empty where they show all."""

    results: Sequence[RuleResult] = ()
    claim: str = ""
    error: float | None = None
    hidden_sizes: Sequence[Mapping[str, int]] = ()
    compilation: Compiled | Refusal | None = None
    kernel: str = ""  # file that replays the plan; empty where there is none
    submission: Submission | None = None  # the config as that file has it
    plan: str = ""  # digest


@dataclass(frozen=True)
class _Sizes:
    """The sizes that a config takes."""

    named_sizes: list[Mapping[str, int]]
    hidden_sizes: list[Mapping[str, int]]
    larger: list[Mapping[str, int]]
    refused_sizes: list[Mapping[str, int]]  # that the Spec does not let it refuse


class PlanEvaluator:
    """One strict evaluation."""

    def __init__(
        self,
        processes: Processes,
        wanted: Wanted,
        spec: str,
        device: Device,
        seed: int,
        folder: Path,
        own: Mapping[str, bytes],
        limit_s: float,
        task: PreparedTask | None = None,
    ) -> None:
        """`own` holds the files of the kernel under test; plans are written to `folder`. Of a task
        of another format the submission's own text is read."""
        self._task = task
        self._processes, self._wanted, self._spec = processes, wanted, spec
        self._device, self._seed, self._folder = device, seed, folder
        self._own, self._limit_s = own, limit_s

    def evaluate(
        self, submission: Submission, facts: SpecFacts, timed_here: bool
    ) -> PlanEvaluation:
        """Return what the plans of a config show. Where a GPU will time it (`timed_here`), that
        checks the results at those sizes."""
        sizes = _divide_sizes(submission, facts)
        hidden = sizes.hidden_sizes
        results: list[RuleResult] = []
        if more := [n for n in submission.mutates if n not in facts.mutates]:
            reason = f"it declares to change {more[0]}, which the Spec does not allow (`mutates`)"
            results.append(RuleResult("inputs", "broken", reason))
        if submission.blocker:
            return PlanEvaluation(results, submission.blocker, hidden_sizes=hidden)
        if not sizes.named_sizes:
            reason = "the config takes none of the sizes to check"
            return PlanEvaluation([*results, *fail_rules(Refusal("check", reason))])
        opaque = self._opaque()
        calls = calls_at(sizes.named_sizes, hidden, self._seed)
        request = CheckRequest(self._spec, self._wanted.dtype, calls)
        inputs = self._processes.trusted.inputs_of(request)
        every, layouts = self._layouts(facts, sizes, request, inputs.result())
        plan = self._record_plan(submission, layouts)
        if isinstance(plan, Refusal):
            return PlanEvaluation([*results, *fail_rules(plan)], opaque or "", hidden_sizes=hidden)
        if isinstance(plan, LaunchPlan) and (broken := _broken_by(plan, every)):
            results += broken
        elif isinstance(plan, LaunchPlan):
            fault = fault_of(plan, [layout.inputs for layout in layouts])
            plan = fault or plan
        if isinstance(plan, str) or any(r.state == "broken" for r in results):
            reason = plan if isinstance(plan, str) else ""
            return PlanEvaluation(results, reason or opaque or "", hidden_sizes=hidden)
        if any(s.options.get("launch_cooperative_grid") for c in plan.calls for s in _steps(c)):
            reason = "its programs wait for each other; the interpreter cannot run them"
            missing = fail_rules(Refusal("check", reason))
            return PlanEvaluation([*results, *missing], hidden_sizes=hidden, plan=plan.digest)
        replayed = self._write_plan(plan, submission, facts)
        if isinstance(replayed, str):
            return PlanEvaluation(results, replayed, hidden_sizes=hidden, plan=plan.digest)
        replay = _Replayed(self, plan, every, sizes, replayed, facts, request)
        return replay.evaluate(submission, results, opaque, timed_here)

    def _opaque(self) -> str | None:
        """Return why the launcher's text does not say what it does, or None. Files of the workbench
        are trusted as those that evaluate are."""
        if not self._own:
            named = not catalog.is_path(kernel := self._wanted.kernel) and "." not in kernel
            return None if named else f"{kernel} is not a file whose text was read"
        sources = self._processes.sources
        defined = _trusted_names(self._spec, sources)
        (_, data), *others = self._own.items()
        entry = None
        if self._task is not None:
            data, entry = self._task.audited_text, self._task.entry
        texts = {(Path(path).name, text) for path, text in sources.items()}
        package = Path(catalog.__file__).parents[1]
        for path, text in others:
            if (Path(path).name, text) not in texts and not Path(path).is_relative_to(package):
                return f"it imports {Path(path).name}, which is not a file of the Spec"
        task = self._processes.builders.submit(
            opaque_reason, data, defined, entry, timeout_s=COMPILE_TIMEOUT_S
        )
        try:
            reason: str | None = task.result()
        except LOST:
            return "its text cannot be read"
        return reason

    def _layouts(
        self, facts: SpecFacts, sizes: _Sizes, request: CheckRequest, inputs: Sequence[Any]
    ) -> tuple[list[Mapping[str, int]], list[CallLayout]]:
        """Return the sizes of the calls to record, the timed ones first, and their inputs."""
        by_call = dict(zip(request.calls, inputs, strict=True))
        by_pairs = {call.pairs: inputs_at for call, inputs_at in by_call.items()}
        every = [facts.timed_sizes, *sizes.larger, *sizes.named_sizes, *sizes.hidden_sizes]
        every = list({tuple(s.items()): s for s in every}.values())
        plain = self._processes.trusted.ask(
            plain_layouts, self._spec, self._wanted.dtype, every, timeout_s=LIMIT_S
        ).result()
        layouts = []
        for at, views in zip(every, plain, strict=True):
            if (inputs_at := by_pairs.get(tuple(at.items()))) is not None:
                views = tuple(
                    PlannedView(i, x.dtype, tuple(x.shape), tuple(x.strides), 0)
                    for i, x in enumerate(inputs_at.inputs)
                )
            # few cores, so that each program of a persistent launcher computes several tiles
            layouts.append(CallLayout(views, CORES_OF_A_CPU if at in sizes.named_sizes else 0))
        return every, layouts

    def _record_plan(
        self, submission: Submission, layouts: Sequence[CallLayout]
    ) -> LaunchPlan | str | Refusal:
        job = self._wanted.kernel, submission.candidate, layouts, self._device
        task = self._processes.recorders.submit(record_plan, *job, timeout_s=LIMIT_S)
        try:
            plan: LaunchPlan | str = task.result()
        except LOST as error:
            return Refusal("check", f"recording its launches: {error}", rule="process")
        except Exception as error:  # whatever the process sent
            return first_sentence(error)
        return plan

    def _write_plan(
        self, plan: LaunchPlan, submission: Submission, facts: SpecFacts
    ) -> tuple[Path, tuple[str, ...]] | str:
        sources, config = self._processes.sources, dict(submission.config)
        of = ReplaySpec(self._spec, sources, submission.impl, config, facts.mutates)
        task = self._processes.builders.submit(
            write_plan, self._folder, plan, of, timeout_s=COMPILE_TIMEOUT_S
        )
        try:
            result: tuple[Path, tuple[str, ...]] = task.result()
        except NotReplayable as reason:
            return str(reason)
        except LOST as error:
            return f"building its device functions {error}"
        return result


def add_claims(
    planned: PlanEvaluation,
    evaluator: Evaluator,
    submission: Submission,
    facts: SpecFacts,
    strict: bool,
) -> PlanEvaluation:
    """Return what plans show with what the file itself says where they do not show all, and no
    rule is broken. Without `strict` there are no plans, and the file is trusted."""
    is_broken = any(result.state == "broken" for result in planned.results)
    if is_broken or (strict and not planned.claim):
        return planned
    compiled = evaluator.compile(submission, facts)
    checked = evaluator.check(submission, facts)
    more = [*checked.results, *(fail_rules(compiled) if isinstance(compiled, Refusal) else ())]
    if strict:
        more = _mark_results(more, None, _divide_sizes(submission, facts).refused_sizes, "claim")
    results = [*planned.results, *more]
    if planned.submission is not None:
        return replace(planned, results=results)
    error, hidden = checked.error, checked.hidden_sizes
    return replace(planned, results=results, compilation=compiled, error=error, hidden_sizes=hidden)


@dataclass
class _Replayed:
    """A plan that was written as a file, and what is asked of it."""

    evaluator: PlanEvaluator
    plan: LaunchPlan
    every: Sequence[Mapping[str, int]]  # sizes of its calls
    sizes: _Sizes
    replay_file: tuple[Path, tuple[str, ...]]
    facts: SpecFacts
    request: CheckRequest
    computed_sizes: list[Mapping[str, int]] = field(default_factory=list)  # sizes that were right
    note: str = ""  # why one near those to time was not computed

    def evaluate(
        self,
        submission: Submission,
        results: list[RuleResult],
        opaque: str | None,
        timed_here: bool,
    ) -> PlanEvaluation:
        """Return what the plan shows."""
        evaluator, path = self.evaluator, str(self.replay_file[0])
        processes = evaluator._processes
        candidate = replace(submission.candidate, code="")
        job = CompileJob(
            path, candidate, self.facts.timed_sizes, evaluator._wanted.dtype, evaluator._device,
            None, submission.title,
        )  # fmt: skip
        compiling = processes.builders.submit(compile_task, job, timeout_s=COMPILE_TIMEOUT_S)
        calls = processes.trusted.calls(self.request, path, candidate, evaluator._limit_s)
        checked = outcome_of(calls, "check")
        error, claim = None, opaque or ""
        if isinstance(checked, Refusal) and checked.rule is None and checked.cause is None:
            claim = claim or checked.reason  # the interpreter lacks what it uses
        elif isinstance(checked, Refusal):
            results += fail_rules(checked)
        else:
            functions = {call: self._functions(call) for call in self.request.calls}
            by_calls = call_results(self.request.calls, checked, functions, self.sizes.named_sizes)
            if not self.facts.hidden_sizes:  # the Spec names all that there are
                every = [r for r in by_calls if r.rule != "sizes" or r.state != "not run"]
                by_calls = [*every, RuleResult("sizes", "kept")] if every != by_calls else every
            results += by_calls
            right = [r.check.error for r in checked if not r.check.wrong]
            error = max(right, default=None)
            self.computed_sizes += [*self.sizes.named_sizes, *self.sizes.hidden_sizes]
        compiled = outcome_of(compiling, "check")
        if _is_late(compiled):  # a machine with other work, or device code that takes long
            again = processes.builders.submit(compile_task, job, timeout_s=RETRY_S)
            compiled = outcome_of(again, "check")
        if _is_late(compiled):
            reason = f"its machine code was not there after {RETRY_S:g} s; try again without load"
            results = [r for r in results if r.rule != "sizes" or r.state == "broken"]
            return PlanEvaluation(
                [RuleResult("sizes", "not run", reason), *_mark_results(results, opaque, ())],
                claim, error, self.sizes.hidden_sizes, plan=self.plan.digest,
            )  # fmt: skip
        if isinstance(compiled, Refusal):
            results += fail_rules(compiled)
        if not timed_here and not any(r.state == "broken" for r in results):
            results = self._add_larger(results, candidate)
        results = _mark_results(results, opaque, self.sizes.refused_sizes)
        works = None if isinstance(compiled, Compiled) and compiled.works else submission.works
        same = replace(
            submission,
            code="",
            works=works,
            libraries=tuple(n for n in submission.libraries if n in self.facts.libraries),
        )
        return PlanEvaluation(
            results, claim, error, self.sizes.hidden_sizes, compiled, path, same, self.plan.digest
        )

    def _functions(self, call: CheckCall) -> tuple[str, ...]:
        """Return the names of the device functions that a call launches."""
        place = next(i for i, at in enumerate(self.every) if dict(at) == call.sizes)
        names = self.replay_file[1]
        return tuple(names[s.function] for s in _launches(self.plan, place))

    def _add_larger(self, results: list[RuleResult], candidate: Candidate) -> list[RuleResult]:
        """Return the results with what programs near the sizes to time give."""
        note = self._larger(candidate)
        if isinstance(note, RuleResult):
            return [note, *(r for r in results if r.rule != "sizes")]
        untested = self._untested_reason()
        sizes = next((r for r in results if r.rule == "sizes"), None)
        if sizes is None or sizes.state != "kept":
            return results
        shown: Shown = "claim" if untested else "evidence"
        sizes_kept = RuleResult("sizes", "kept", untested or note, shown)
        return [sizes_kept if r is sizes else r for r in results]

    def _larger(self, candidate: Candidate) -> RuleResult | str:
        """Run programs at the larger sizes; return a remark, or what is broken."""
        for at in self.sizes.larger:
            place = next(i for i, s in enumerate(self.every) if s == at)
            every = at != self.sizes.larger[0] or not self._may_be_sampled(place)
            if every and at != self.sizes.larger[-1]:
                continue
            evaluator = self.evaluator
            job = str(self.replay_file[0]), candidate, at, evaluator._wanted.dtype
            seed = evaluator._seed % (1 << 31)
            task = evaluator._processes.trusted.run(run_some, *job, seed, every, timeout_s=LARGER_S)
            try:
                result: SampledRun | Refusal = task.result()
            except Exception as error:  # late, out of memory, or not in the interpreter
                self.note = f"at {sizes_text(at)} {first_sentence(error)}"
                continue
            if isinstance(result, Refusal):
                return RuleResult(result.rule or "sizes", "broken", result.reason)
            if result.is_whole:
                self.computed_sizes.append(at)
                return f"{result.programs} of {result.total} programs at {sizes_text(at)} are right"
        return ""

    def _may_be_sampled(self, place: int) -> bool:
        """Return whether each program of a call writes its own elements, into fresh memory."""
        call = self.plan.calls[place]
        return (
            len(call.steps) == 1
            and not any(m.fill is not None for m in call.memory)
            and not self.facts.mutates
            and not any("atomic" in f.text for f in self.plan.functions)
        )

    def _untested_reason(self) -> str:
        """Return what launches at the sizes to time do that no computed call did, or nothing."""
        if not any(at in self.computed_sizes for at in self.sizes.larger):
            return f"no size near those to time was computed ({self.note or 'none is taken'})"
        known = {
            kind
            for i, at in enumerate(self.every)
            if at in self.computed_sizes
            for kind in _kinds(self.plan, i)
        }
        place = next(i for i, at in enumerate(self.every) if at == self.facts.timed_sizes)
        new = [kind for kind in _kinds(self.plan, place) if kind not in known]
        if not new:
            return ""
        name = self.replay_file[1][new[0][0]]
        flags = ", ".join(f"{n}={v}" for n, v in new[0][1])
        what = f"{name} with {flags}" if flags else name
        return f"only the sizes to time launch {what}"


def _is_late(compiled: Any) -> bool:
    return isinstance(compiled, Refusal) and compiled.cause == "timeout"


def _launches(plan: LaunchPlan, place: int) -> list[LaunchStep]:
    return _steps(plan.calls[place])


def _steps(call: PlannedCall) -> list[LaunchStep]:
    return [s for s in call.steps if isinstance(s, LaunchStep)]


def _kinds(plan: LaunchPlan, place: int) -> list[tuple[int, tuple[tuple[str, Any], ...]]]:
    """Return the functions that a call launches, each with its flags: arguments, not numbers."""
    return [
        (
            launch.function,
            tuple(
                (n, a.value)
                for n, a in sorted(launch.arguments.items())
                if isinstance(a, PlannedConstant) and type(a.value) in (bool, str, type(None))
            ),
        )
        for launch in _launches(plan, place)
    ]


def _broken_by(plan: LaunchPlan, every: Sequence[Sizes]) -> list[RuleResult]:
    """Return the rules that a plan breaks by what it holds."""
    for at, call in zip(every, plan.calls, strict=False):
        if call.operators:
            names = ", ".join(call.operators[:4])
            reason = f"torch computes in the launch ({names}); compute it in the kernel"
            return [RuleResult("operators", "broken", f"at {sizes_text(at)} {reason}")]
        if not any(isinstance(step, LaunchStep) for step in call.steps):
            reason = f"at {sizes_text(at)} the launch runs no Triton kernel"
            return [RuleResult("launches", "broken", reason)]
    return []


def _mark_results(
    results: Sequence[RuleResult],
    opaque: str | None,
    refused_sizes: Sequence[Sizes],
    shown: Shown = "evidence",
) -> list[RuleResult]:
    """Return the results with what shows each, and without sizes that were refused."""
    marked = []
    for result in results:
        if result.rule == "sizes" and result.state != "broken" and refused_sizes:
            first, count = sizes_text(refused_sizes[0]), len(refused_sizes)
            reason = f"it refuses {count} of the Spec's sizes, such as {first}"
            result = RuleResult("sizes", "not run", reason)
        if opaque and result.rule in _OF_THE_LAUNCHER and result.state == "kept":
            result = replace(result, shown="claim", reason=opaque)
        marked.append(result)
    return shown_by(marked, shown)


def _divide_sizes(submission: Submission, facts: SpecFacts) -> _Sizes:
    reasons = submission.rejections[1:]
    every = [*facts.named_sizes, *facts.hidden_sizes, *facts.larger]
    taken = [reason is None for reason in reasons]
    pairs = list(zip(every, taken, strict=True))
    first, second = len(facts.named_sizes), len(facts.named_sizes) + len(facts.hidden_sizes)
    refused = [s for s, ok in pairs[:second] if not ok and s not in facts.refusable]
    return _Sizes(
        [s for s, ok in pairs[:first] if ok],
        [s for s, ok in pairs[first:second] if ok][:HIDDEN],
        [s for s, ok in pairs[second:] if ok],
        refused,
    )


def plain_layouts(
    kernel: str, dtype: str, every: Sequence[Sizes]
) -> tuple[tuple[PlannedView, ...], ...]:
    """Return the layouts of dense inputs of a Spec at these sizes, in the checker."""
    from workbench.backend.checking import import_trusted
    from workbench.measurement import inputs

    spec = import_trusted(kernel)
    return tuple(
        tuple(
            PlannedView(
                i, str(x.dtype).removeprefix("torch."), tuple(x.shape), tuple(x.stride()), 0
            )
            for i, x in enumerate(inputs.shapes(spec, at, dtype))
        )
        for at in every
    )


def _trusted_names(spec: str, sources: Mapping[str, bytes]) -> dict[str, frozenset[str]]:
    """Return the names that modules define which a file may import: that of its Spec, and those of
    the workbench's kernels."""
    package = Path(catalog.__file__).parents[1]
    files = {f"workbench.kernels.{p.stem}": p for p in (package / "kernels").glob("*.py")}
    own = ("block_clusters", "gluon")
    files |= {f"workbench.dsl.{name}": package / "dsl" / f"{name}.py" for name in own}
    result = {name: defined_names(path.read_bytes()) for name, path in files.items()}
    for path, data in sources.items():  # the Spec and what it imports
        result[Path(path).stem] = defined_names(data)
    return result
