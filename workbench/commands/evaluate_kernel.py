"""Judge one kernel or submission, print the verdict, and store or verify it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import catalog
from workbench.backend.prewarm import Libraries, prewarmer
from workbench.commands.console import aloud, console_for
from workbench.commands.field import SIZES
from workbench.commands.instrumentation import completion_event, dispatch_events
from workbench.commands.operands import knobs_of
from workbench.commands.options import DEFAULT_TARGET, CommandError
from workbench.commands.result import SCHEMA, write_result
from workbench.commands.run import check_files, check_sanitizer, gpu_present, require_triton
from workbench.commands.sizes import parsed_sizes
from workbench.compile import Compiled
from workbench.data.clock import run_id, timestamp
from workbench.data.environment import fingerprint
from workbench.data.events import EventLog, KernelDispatched, OpCompleted, RunFinished
from workbench.data.exits import FAILED, PASSED, UNDECIDED
from workbench.data.project import project_id
from workbench.data.record import (
    Case,
    Checked,
    Environment,
    Measured,
    Phase,
    Predicted,
    Record,
    Run,
)
from workbench.data.temporary import temporary_folder
from workbench.device import hardware
from workbench.device.error_band import device_words
from workbench.device.hardware import Device
from workbench.evaluation.digests import files_digests
from workbench.evaluation.evaluator import INTERPRET_TIMEOUT_S, Evaluator
from workbench.evaluation.plan_evaluator import (
    PlanEvaluation,
    PlanEvaluator,
    add_claims,
    sources_of,
)
from workbench.evaluation.problem import SpecFacts
from workbench.evaluation.processes import Processes, hidden_memory
from workbench.evaluation.submission import Submission, Wanted
from workbench.evaluation.tasks import PreparedTask, prepare_task, task_format
from workbench.evaluation.times import EvaluatedTimes, measured_times, predicted_times
from workbench.evaluation.verdict import (
    RuleResult,
    RulesVerdict,
    Shown,
    fail_rules,
    shown_by,
    verdict_of,
)
from workbench.measurement.candidate import Refusal
from workbench.spec import Sizes, WorkbenchError, label, sizes_text

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.backend.live import Live
    from workbench.commands.evaluate import EvaluateOptions


EXIT_CODES = {
    "correct": PASSED, "plausible": UNDECIDED, "rejected": FAILED, "undecided": UNDECIDED,
}  # fmt: skip


@dataclass(frozen=True)
class Evaluation:
    """The verdict on one kernel, with all that it was reached by."""

    request: Wanted
    device: Device
    is_predicted: bool
    facts: SpecFacts
    verdict: RulesVerdict
    submission: Submission | None = None  # None where its process ended before it was described
    compilation: Compiled | None = None
    times: EvaluatedTimes | None = None
    hidden_sizes: Sequence[Mapping[str, int]] = ()
    seed: int = 0
    environment: Environment | None = None  # of the GPU; None where no GPU took part
    claim: str = ""  # why the file's word is needed for some rules
    spec: str | None = None  # the kernel whose Spec planned, where that is not the file's own
    task: Path | None = None  # of another format
    file: str = ""  # under test, as it was named
    digests: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the content of the JSON file. EvaluatedTimes are in seconds."""
        broken, submission = self.verdict.broken_rule, self.submission
        resources = self.compilation.resources if self.compilation else None
        return {
            "schema": SCHEMA,
            "file": self.file or self.request.kernel,
            "spec": None if self.task else self.spec,
            "task": None if self.task is None else str(self.task),
            "kernel": self.facts.name,
            "impl": submission.impl if submission else None,
            "config": dict(submission.config) if submission else {},
            "dtype": self.request.dtype,
            "sizes": dict(self.facts.timed_sizes),
            "device": self.device.name,
            "predicted": self.is_predicted,
            "verdict": self.verdict.word,
            "rule": broken.rule if broken else None,
            "reason": broken.reason if broken else None,
            "rules": [asdict(result) for result in self.verdict.rules],
            "claim": self.claim or None,
            "digests": dict(self.digests),
            "error_in_tolerances": self.verdict.error,
            "hidden_sizes": [dict(sizes) for sizes in self.hidden_sizes],
            "seed": self.seed,
            "resources": asdict(resources) if resources else None,
            "times": self.times.plain() if self.times else None,
        }


def evaluate(options: EvaluateOptions) -> int:
    """Run the command. Returns its exit code: 0 if the kernel is correct, 1 if it breaks a rule, 3
    if that is undecided. Raises CommandError where the options name no kernel, or two verdicts."""
    require_triton()
    check_files(options.events_file, options.json, {"--sarif": options.sarif})
    if options.verify is not None and options.reuse is not None:
        raise CommandError("--verify judges again, and --reuse does not; name one of them.")
    before = None if options.verify is None else stored_verdict(options.verify)
    if before is not None:
        options = options_of(before, options)
    if options.kernel is None:
        raise CommandError("Name the kernel's file, or --verify a verdict's JSON file.")
    check_sanitizer(options.require, options.device)
    if options.reuse is not None and (old := _reused_verdict(options, options.reuse)) is not None:
        return _say_reused_verdict(options, options.reuse, old)
    with ExitStack() as opened:
        again = {} if before is None else {"seed": before["seed"]}
        evaluation = _evaluate_task(options, opened, **again)
    if options.events_file is not None:
        with EventLog(options.events_file) as log:
            for event in events_of(evaluation, options):
                log.write(event)
    console = console_for(options)
    show(console, evaluation)
    code = EXIT_CODES[evaluation.verdict.word]
    if options.accept_claims and evaluation.verdict.word == "plausible":
        code = PASSED
    state = evaluation.verdict.state("sanitizer")
    if "sanitizer" in options.require and code == PASSED and state != "kept":
        code = UNDECIDED
    plain = {**evaluation.plain(), "request": request_of(options)}
    if before is not None:
        plain["differs"] = differing(before, plain)
        code = FAILED if plain["differs"] else code
        names = ", ".join(plain["differs"])
        with aloud(console):
            console.print(f"not verified: other {names}" if names else "verified", style="bold")
    return write_result(options, "evaluate", code, **plain)


def _reused_verdict(options: EvaluateOptions, path: Path) -> Mapping[str, Any] | None:
    """Return the verdict of a file that answers this evaluation. No code of a file under test has
    run by then."""
    kernel = str(options.kernel)
    with temporary_folder() as folder:
        trusted = options.spec or kernel
        if options.task is not None:
            task = prepare_task(options.task, Path(kernel), folder)
            kernel, trusted = str(task.kernel), str(task.spec)
        digests = files_digests(sources_of(trusted), sources_of(kernel))
    live = hardware.live() if options.device is None and gpu_present() else None
    return verdict_to_reuse(path, options, digests, live.name if live else None)


def _say_reused_verdict(options: EvaluateOptions, path: Path, document: Mapping[str, Any]) -> int:
    """Print a verdict that was reached before, and write it. Returns its exit code."""
    console = console_for(options)
    reason = f" ({document['rule']}: {document.get('reason')})" if document.get("rule") else ""
    with aloud(console):
        console.print(f"{document['verdict']}{reason}", style="bold")
        console.print(f"as {path} says, of the same files, request and versions; nothing was run")
    head = ("command", "version", "exit_code", "meaning")
    plain = {name: value for name, value in document.items() if name not in head}
    return write_result(options, "evaluate", document["exit_code"], **plain)


def _evaluate_task(
    options: EvaluateOptions, opened: ExitStack, seed: int | None = None
) -> Evaluation:
    """Return the evaluation of a kernel, which may be a submission to a task of another format."""
    if options.task is None:
        spec = options.spec
        if spec and spec not in catalog.kernel_names() and (format_ := task_format(Path(spec))):
            raise CommandError(f"{spec} is a task of {format_}; give it as --task, not as --spec.")
        options = replace(options, dtype=options.dtype or "bf16")
        return _evaluate(options, opened, seed)
    if options.spec is not None:
        raise CommandError("--task and --spec both name who judges; name one of them.")
    submission, task = Path(str(options.kernel)), options.task
    prepared = prepare_task(task, submission, opened.enter_context(temporary_folder()))
    dtype = options.dtype or prepared.dtype
    named = replace(options, kernel=str(prepared.kernel), spec=str(prepared.spec), dtype=dtype)
    try:
        evaluation = _evaluate(named, opened, seed, prepared)
    except WorkbenchError as error:  # it names the copies
        text = str(error).replace(str(prepared.kernel), str(submission))
        raise CommandError(text.replace(str(prepared.spec), str(task))) from error
    return replace(evaluation, task=task, file=str(submission))


def _evaluate(
    options: EvaluateOptions, opened: ExitStack, seed: int | None, task: PreparedTask | None = None
) -> Evaluation:
    assert options.kernel is not None
    impl, colon, rest = (options.impl or "").partition(":")
    knobs = knobs_of(options.impl or "", rest) if colon else {}
    impl_name = impl.rpartition(".")[2] or None
    request = Wanted(options.kernel, impl_name, knobs, options.dtype or "bf16")
    timed = parsed_sizes(options.sizes, SIZES) if options.sizes else None
    trusted = options.spec or options.kernel
    # read before any code of a file runs
    sources, own = sources_of(trusted), sources_of(options.kernel)
    opened.enter_context(hidden_memory())
    live, device = _target(options, opened)
    seed = secrets.randbits(62) if seed is None else seed
    opened.callback((processes := Processes(sources, own)).close)
    evaluator = Evaluator(processes, request, trusted, device, seed)
    facts = evaluator.facts(timed)
    facts_by_name: dict[str, Any] = {
        "request": request, "device": device, "is_predicted": live is None, "facts": facts,
        "seed": seed, "environment": live.environment if live is not None else None,
        "digests": files_digests(sources, own), "spec": options.spec,
    }  # fmt: skip
    submission = evaluator.describe(facts)
    if isinstance(submission, Refusal):
        return Evaluation(verdict=verdict_of(fail_rules(submission)), **facts_by_name)
    planned = PlanEvaluation()
    if options.spec is not None:
        folder = opened.enter_context(temporary_folder())
        by_plan = PlanEvaluator(
            processes, request, trusted, device, seed, folder, own, INTERPRET_TIMEOUT_S, task
        )
        planned = by_plan.evaluate(submission, facts, live is not None)
    return _decide(options, evaluator, submission, planned, live, facts_by_name)


def _decide(
    options: EvaluateOptions,
    evaluator: Evaluator,
    submission: Submission,
    planned: PlanEvaluation,
    live: Live | None,
    fields: dict[str, Any],
) -> Evaluation:
    """Return the evaluation of what plans show, and of what the file itself says where they do not
    show all."""
    facts, request, strict = fields["facts"], fields["request"], options.spec is not None
    planned = add_claims(planned, evaluator, submission, facts, strict)
    results, error, hidden = [*planned.results], planned.error, planned.hidden_sizes
    compiled, of_plan = planned.compilation, planned.submission
    fields |= {"submission": submission, "hidden_sizes": hidden, "claim": planned.claim}
    verdict = verdict_of(results, error, strict)
    if isinstance(compiled, Refusal) or compiled is None:
        return Evaluation(verdict=verdict, **fields)
    timed = of_plan or submission
    fields["digests"] |= {"plan": planned.plan or None, "machine_code": compiled.binary}
    times = None
    if verdict.broken_rule is None and live is not None:
        kernel = planned.kernel or request.kernel
        more, times = measured_times(live, timed, facts, compiled, kernel, request.dtype)
        shown: Shown = "evidence" if of_plan else "claim"
        results += shown_by(more, shown) if strict else more
        verdict = verdict_of(results, error, strict)
        if "sanitizer" in options.require and verdict.broken_rule is None:
            sizes = hidden[-1] if hidden else facts.timed_sizes
            ran = replace(request, kernel=kernel)
            results += shown_by([_sanitizer_result(ran, timed, sizes)], shown if strict else "")
            verdict = verdict_of(results, error, strict)
    elif verdict.word in ("correct", "plausible"):
        times = predicted_times(fields["device"], timed, facts, compiled, request.dtype)
    kept = times if verdict.broken_rule is None else None
    return Evaluation(verdict=verdict, compilation=compiled, times=kept, **fields)


def _sanitizer_result(request: Wanted, submission: Submission, sizes: Sizes) -> RuleResult:
    """Return the result of the rule `sanitizer`, for a call at these sizes."""
    from workbench.backend.sanitizing import call_of, sanitize_call

    config, dtype = submission.config, request.dtype
    call = call_of(request.kernel, submission.title, submission.impl, config, sizes, dtype)
    return RuleResult("sanitizer", *sanitize_call(call))


def _target(options: EvaluateOptions, opened: ExitStack) -> tuple[Live | None, Device]:
    """Return the GPU that is measured on, if there is one and no other was named, and the device
    that is compiled for."""
    trusted, here = options.spec or options.kernel or "", options.device is None
    prewarm = opened.enter_context(
        prewarmer(trusted, Libraries.MEASURING, wanted=here, compiles=False)
    )
    if here and gpu_present():
        from workbench.backend.live import Live

        live = Live(None, prewarm=prewarm)
        opened.callback(live.close)
        return live, live.device
    return None, hardware.device_named(options.device or DEFAULT_TARGET)


# Events


def events_of(
    evaluation: Evaluation, options: EvaluateOptions
) -> Iterator[Run | KernelDispatched | OpCompleted | RunFinished]:
    """Yield the events of an evaluation. The code under test is not trusted, so there is no Record:
    an import of the file must not bring its times into the history."""
    run = _run_of(evaluation, options)
    yield run
    if options.events and (submission := evaluation.submission) is not None:
        case = _case(evaluation, submission.impl, submission.config)
        if evaluation.compilation is not None:
            yield from dispatch_events(run, case, evaluation.compilation)
        if (times := evaluation.times) is not None:
            yield completion_event(run, _record(evaluation, run, case, times.timing))
            for name, timing in times.libraries.items():
                library = _case(evaluation, name, {})
                yield completion_event(run, _record(evaluation, run, library, timing))
    yield RunFinished(timestamp(), run.id, "complete", {evaluation.verdict.word: 1})


def _run_of(evaluation: Evaluation, options: EvaluateOptions) -> Run:
    facts, device, request = evaluation.facts, evaluation.device, evaluation.request
    return Run(
        project=project_id(),
        id=run_id("evaluate", facts.name),
        engine="evaluate",
        name=facts.name,
        command=options.command,
        started=timestamp(),
        kernel=facts.name,
        sizes=dict(facts.timed_sizes),
        dtype=request.dtype,
        device=device.name,
        predicted=evaluation.is_predicted,
        ceilings=hardware.ceilings(device, request.dtype),
        environment=evaluation.environment or fingerprint(None, None),
        source=request.kernel,
    )


def _case(evaluation: Evaluation, impl: str, config: Mapping[str, int]) -> Case:
    facts, device = evaluation.facts, evaluation.device.name
    backend = "triton" if config else "torch"
    sizes, dtype = dict(facts.timed_sizes), evaluation.request.dtype
    return Case(facts.name, impl, backend, dict(config), sizes, dtype, device)


def _record(evaluation: Evaluation, run: Run, case: Case, timing: Measured | Predicted) -> Record:
    """Return a record that is in no store, for the event of its time."""
    facts, predicted = evaluation.facts, evaluation.is_predicted
    phase: Phase = "predict" if predicted else "final"
    checked: Checked = "interpreter" if predicted else "gpu"
    error, at = evaluation.verdict.error or 0.0, timestamp()
    costs = facts.flops, facts.bytes
    return Record(case, "", run.id, at, phase, timing, *costs, checked, error)


# The console


def show(console: Console, evaluation: Evaluation) -> None:
    """Print the verdict, the rules and the times; a quiet console the verdict alone."""
    from workbench.reports.tables import text_table

    for line in _heading(evaluation):
        console.print(line)
    strict = evaluation.verdict.strict
    table = text_table(("rule", "", *(("shown by",) if strict else ()), "reason"), right=())
    before = ""
    for result in evaluation.verdict.rules:
        again = result.reason and result.reason == before
        shown = (result.shown,) if strict else ()
        table.add_row(result.rule, result.state, *shown, "as above" if again else result.reason)
        before = result.reason
    console.print(table)
    for line in _time_lines(evaluation):
        console.print(line)
    with aloud(console):
        console.print(_last(evaluation), style="bold")


def _heading(evaluation: Evaluation) -> Iterator[str]:
    submission, facts = evaluation.submission, evaluation.facts
    name = submission.title if submission else facts.name
    config = f", {label(submission.config)}" if submission and submission.config else ""
    kind = "no GPU took part" if evaluation.is_predicted else "measured"
    yield f"{name}{config}"
    place = f"{evaluation.request.dtype}, {evaluation.device.name} ({kind})"
    yield f"{sizes_text(facts.timed_sizes)}, {place}"
    if evaluation.hidden_sizes:
        others = " and ".join(sizes_text(sizes) for sizes in evaluation.hidden_sizes)
        yield f"also checked at {others}"


def _time_lines(evaluation: Evaluation) -> Iterator[str]:
    times = evaluation.times
    if evaluation.claim:
        yield f"A plan does not show all: {evaluation.claim}."
    if times is None:
        code, word = evaluation.compilation, evaluation.verdict.word
        if code is None or word not in ("correct", "plausible"):
            yield "No time is given: only a correct result has one."
        else:
            yield f"No time is predicted: {code.not_modelled or 'the device lacks a figure'}."
        return
    tilde = "~" if evaluation.is_predicted else ""
    reached = 100 * (times.bound_s or 0.0) / times.seconds
    share = f", {tilde}{reached:.0f} % of the bound" if times.bound_s else ""
    kind = "predicted" if evaluation.is_predicted else "measured"
    yield f"time    {tilde}{times.seconds * 1e6:.4g} us {kind}{share}"
    if evaluation.is_predicted:
        yield f"error   {device_words(evaluation.device.name, evaluation.facts.name)}"
    if times.bound_s:
        yield f"bound   {times.bound_s * 1e6:.4g} us by the stated bandwidth and peak rate"
    if times.best_library is not None:
        name, seconds = times.best_library
        ratio = seconds / times.seconds
        yield f"library {seconds * 1e6:.4g} us {name}: the kernel is {ratio:.2f} times as fast"
    elif evaluation.is_predicted:
        yield "library not predicted; it is measured where there is a GPU"


def _last(evaluation: Evaluation) -> str:
    verdict = evaluation.verdict
    if verdict.broken_rule is not None:
        return f"{verdict.word}: {verdict.broken_rule.rule}"
    open_ = [result.rule for result in verdict.rules if result.state == "not run"]
    claims = f"; by the file's word: {', '.join(verdict.claims)}" if verdict.claims else ""
    return f"{verdict.word}{claims}" + (f"; not run: {', '.join(open_)}" if open_ else "")


_TEXTS = ("file", "dtype", "device", "verdict")
REQUESTED = ("spec", "task", "impl", "sizes", "dtype", "device", "accept_claims")
BOUND = ("submission", "spec", "format", "versions")
COMPARED = ("verdict", "rule", "hidden_sizes", "config", "sizes")


def stored_verdict(path: Path) -> Mapping[str, Any]:
    """Return the content of a verdict's file. Raises CommandError where it is none."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
        raise CommandError(f"{path} cannot be read ({reason}); name a verdict's file.") from None
    known = isinstance(content, dict) and content.get("command") == "evaluate"
    if not known or not all(isinstance(content.get(name), str) for name in _TEXTS):
        raise CommandError(f"{path} holds no verdict; name a file of `evaluate --json`.")
    maps = all(isinstance(content.get(name), dict) for name in ("config", "sizes", "digests"))
    numbers = all(type(content.get(name)) is int for name in ("seed", "exit_code"))
    if not maps or not numbers:
        raise CommandError(f"{path} lacks what a verdict is bound to; evaluate the kernel again.")
    return dict(content)


def request_of(options: EvaluateOptions) -> dict[str, Any]:
    """Return what was asked of an evaluation, as it was given, but for the file's own place."""
    request = {name: getattr(options, name) for name in REQUESTED}
    task = None if options.task is None else str(options.task)
    return {**request, "task": task, "require": list(options.require)}


def verdict_to_reuse(
    path: Path, options: EvaluateOptions, digests: Mapping[str, Any], device: str | None
) -> Mapping[str, Any] | None:
    """Return the verdict of a file where it answers this evaluation: the same request, the same
    content of a file under test and of its Spec, the same versions, and the same GPU where times
    were measured. None otherwise, or where there is no file yet. Raises CommandError."""
    if not path.exists():
        return None
    stored = stored_verdict(path)
    before = stored["digests"]
    alike = all(before.get(name) == digests.get(name) for name in BOUND)
    measured_on = None if stored.get("predicted") else stored["device"]
    if digests["submission"] is None or not alike or measured_on != device:
        return None
    return stored if stored.get("request") == request_of(options) else None


def options_of(stored: Mapping[str, Any], options: EvaluateOptions) -> EvaluateOptions:
    """Return the options by which a verdict was reached. A kernel and a Spec that are named replace
    those of the file, which may lie elsewhere here."""
    knobs = ",".join(f"{name}={value}" for name, value in stored["config"].items())
    impl = stored.get("impl")
    return replace(
        options,
        kernel=options.kernel or stored["file"],
        spec=options.spec or stored.get("spec"),
        task=options.task or (Path(stored["task"]) if stored.get("task") else None),
        impl=f"{impl}:{knobs}" if impl and knobs else impl,
        sizes=",".join(f"{axis}={extent}" for axis, extent in stored["sizes"].items()),
        dtype=stored["dtype"],
        device=stored["device"] if stored.get("predicted") else None,
    )


def differing(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of what differs between a stored verdict and the same evaluation now."""
    names = [name for name in COMPARED if stored.get(name) != now.get(name)]
    before, after = stored["digests"], now["digests"]
    return names + [n for n in sorted({*before, *after}) if before.get(n) != after.get(n)]
