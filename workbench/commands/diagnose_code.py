"""Diagnose machine code without a GPU: of a kernel for named devices, or of a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import catalog
from workbench.backend.offline import model_time
from workbench.code.code_reading import CodeError, code_of_file
from workbench.commands.code_configs import ALL, devices_of
from workbench.commands.code_report import chosen_device
from workbench.commands.console import say_result
from workbench.commands.diagnosed import (
    Diagnosed,
    DiagnosisReport,
    NotEvaluable,
    diagnosed_of,
    fact_gaps,
    missing_code,
    missing_counters,
    missing_timeline,
    short,
)
from workbench.commands.operands import Operand, config_operand
from workbench.commands.options import CommandError
from workbench.commands.result import RunResult
from workbench.commands.run import require_triton
from workbench.commands.sizes import check_dtype, sizes_of
from workbench.compile import CompileError, compile_config, machine_codes_of
from workbench.compile.facts import code_facts, facts_of_launch
from workbench.data.code_facts import CodeFacts
from workbench.data.record import Case, Evidence, Predicted, Record, Resources, group_by
from workbench.data.selection import select
from workbench.data.units import percent, rough
from workbench.device import hardware
from workbench.device.bounds import bound_s
from workbench.device.correction import SizedConfig
from workbench.device.error_band import error_words
from workbench.device.hardware import device_named
from workbench.reports.code import partition_sentence
from workbench.spec import Impl, Sizes, Spec, label, sizes_text, values
from workbench.traces.rules import code_rules, evaluate_code, missing_of_code

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.diagnose import DiagnoseOptions

QUIET = "no rule of machine code holds"
WIDTH = 9  # of a device's name in the terminal


@dataclass(frozen=True)
class OfDevice:
    """A kernel's code for one device: its facts by launched kernel, or why there are none."""

    device: str
    title: str
    facts: tuple[CodeFacts, ...] = ()
    limit: Diagnosed | None = None  # by the model; None where it has no time
    reason: str = ""


def file_report(path: Path) -> DiagnosisReport:
    """Return the diagnoses of a file of machine code. Raises CodeError."""
    require_triton()
    code = code_of_file(path)
    if not code.listing.instructions:
        raise CodeError(f"{path} is {code.notes[0]}.")
    notes = code.notes if code.partitions is None else (*code.notes, partition_sentence(code))
    return report_of(path.name, [code_facts(code, code.arch)], notes)


def kernel_report(options: DiagnoseOptions, kernel: str) -> tuple[DiagnosisReport, list[OfDevice]]:
    """Return the diagnoses of a kernel's machine code, and what was compiled for each device.

    Raises CommandError where it can be compiled for none, and the errors of kernels, sizes and
    devices that are not there.
    """
    require_triton()
    spec = catalog.spec_of(kernel)
    dtype = options.dtype or "bf16"
    check_dtype(spec, dtype)
    sizes = sizes_of(spec, options.sizes)
    operand = config_operand(options.impl, spec) if options.impl else Operand()
    name = options.device
    devices = devices_of([ALL]) if name == ALL else [chosen_device(name)]
    every = [_device_facts(device, operand, spec, sizes, dtype) for device in devices]
    if all(each.reason for each in every):
        first = every[0]
        raise CommandError(
            f"{first.title} cannot be compiled for {first.device} at {sizes_text(sizes)}, {dtype} "
            f"({first.reason}); name another config with --impl."
        )
    facts = [one for each in every for one in each.facts]
    titles = {each.title for each in every}
    named = titles.pop() if len(titles) == 1 else f"{spec.name}, each device's own config,"
    title = f"{named} at {sizes_text(sizes)}, {dtype}: machine code, no GPU"
    report = report_of(title, facts, ())
    limits = tuple(each.limit for each in every if each.limit) if len(every) == 1 else ()
    report = replace(report, results=(*limits, *report.results))
    plain = {each.device: each.reason or "compiled" for each in every}
    configs = {each.device: each.title for each in every}
    return replace(report, more={"kernel": kernel, "devices": plain, "configs": configs}), every


def _device_facts(
    device: hardware.Device, operand: Operand, spec: Spec, sizes: Sizes, dtype: str
) -> OfDevice:
    """Return the facts of a config for one device. Raises the errors of a config that is none."""
    impl, config = operand.choose(spec, device.limits, dtype, sizes)
    if impl.backend != "triton":
        raise CommandError(f"{impl.title} is not a Triton kernel; name one with --impl.")
    title = f"{impl.title} {label(values(config))}".rstrip()
    if reason := impl.rejection_reason(config, device.limits, dtype, sizes):
        return OfDevice(device.name, title, reason=reason.rstrip("."))
    try:
        launched = machine_codes_of(impl, config, sizes, dtype, device)
    except (CompileError, CodeError) as error:
        return OfDevice(device.name, title, reason=str(error).rstrip("."))
    facts = tuple(facts_of_launch(one, device, spec, sizes, dtype) for one in launched)
    case = Case(spec.name, impl.name, impl.backend, values(config), sizes, dtype, device.name)
    return OfDevice(device.name, title, facts, _limit(case, impl, config, device))


def _limit(case: Case, impl: Impl, config: Any, device: hardware.Device) -> Diagnosed | None:
    """Return what limits the time that the model predicts; None where it predicts none."""
    try:
        compiled = compile_config(impl, config, case.sizes, case.dtype, device)
        timing = model_time(device, compiled, SizedConfig(impl, config, case.sizes), case.dtype)
    except (CompileError, ValueError):
        return None
    spec = impl.spec
    costs = spec.flops(**case.sizes), spec.bytes(case.sizes, case.dtype)
    return model_limit(case, timing, compiled.resources, *costs)


def report_of(title: str, facts: Sequence[CodeFacts], notes: Sequence[str]) -> DiagnosisReport:
    """Return the diagnoses of machine code, in the order of the rules."""
    names = {one.function for one in facts}
    targets = {one.target for one in facts}
    results: list[tuple[int, Diagnosed]] = []
    heads = []
    for one in facts:
        parts = (one.target if len(targets) > 1 else "", one.function if len(names) > 1 else "")
        subject = " ".join(filter(None, parts))
        matches = evaluate_code(one)
        heads.append(f"{subject or one.function}: {matches[0].rule.word if matches else QUIET}")
        for match in matches:
            source = f"machine code for {one.target}"
            text = diagnosed_of(match.name, match.rule.word, match.diagnosis, subject, source)
            results.append((match.rule.order, text))
    results.sort(key=lambda each: each[0])
    missing = (*_missing(facts), *missing_counters(), *missing_timeline())
    return DiagnosisReport(
        title, tuple(heads), tuple(text for _, text in results), missing, tuple(notes)
    )


def _missing(facts: Sequence[CodeFacts]) -> Iterator[NotEvaluable]:
    """Yield the rules that none of the codes serves."""
    every: list[Mapping[str, tuple[str, ...]]] = [missing_of_code(one) for one in facts]
    for name in code_rules():
        if all(name in lacking for lacking in every):
            yield from fact_gaps({name: every[0][name]})


def say_devices(console: Console, report: DiagnosisReport, every: Sequence[OfDevice]) -> None:
    """Print one line for each device and rule that holds there, and one for each device on which
    none does or for which the config cannot be compiled; then each piece of advice once."""
    console.print(report.title, style="bold", soft_wrap=True)
    for each in every:
        lines = list(_lines(each))
        for line in lines or ["no rule holds at its threshold"]:
            say_result(console, f"{each.device:<{WIDTH}} {line}")
    advice: dict[tuple[str, str], dict[str, None]] = {}
    for one in (one for each in every for one in each.facts):
        for match in evaluate_code(one):
            key = match.rule.word, match.diagnosis.advice
            advice.setdefault(key, {})[one.target] = None
    words = Counter(word for word, _ in advice)
    for (word, text), devices in advice.items():
        on = f" on {', '.join(devices)}" if words[word] > 1 else ""
        say_result(console, f"{word}{on}: {text}")


def _lines(each: OfDevice) -> Iterator[str]:
    if each.reason:
        yield f"cannot be compiled: {each.reason}"
    for one in each.facts:
        name = f"{short(one.function)}: " if len(each.facts) > 1 else ""
        for match in evaluate_code(one):
            known = match.diagnosis
            at = f" at {', '.join(known.places)}" if known.places else ""
            yield f"{name}{match.rule.word}{at}: {known.sentence}"


RULE = "model"
NEAR = 0.8  # of the roofline bound: what is left is within the model's error
# By the largest term of the model: what would shorten it.
ADVICE: Mapping[str, str] = {
    "memory": "fewer bytes: a narrower dtype, or its neighbours' work fused into it",
    "compute": "fewer operations, or a dtype with a higher peak",
    "cache": "fewer requests to the cache: larger tiles, so that each load serves more",
    "shared memory": "fewer accesses to shared memory: operands in registers, larger tiles",
    "instructions": "fewer instructions around the product: indices, casts and masks in the loop",
    "special functions": "fewer exponentials, roots and divisions",
    "load unit": "fewer lines for each access: neighbouring threads at neighbouring addresses",
    "atomic operations": "fewer atomic operations on one address: add within a program first",
    "latency": "shorter waits: more stages, or more programs on a core",
    "waves": "shorter waits: more threads on a core",
    "launch": "fewer launches: its neighbours fused into it, or a CUDA graph",
}


def model_limit(
    case: Case, timing: Predicted, resources: Resources | None, flops: int, bytes_: int
) -> Diagnosed:
    """Return what limits a predicted time: the largest term of the model, and its share of the
    roofline bound."""
    device = device_named(case.device)
    share = bound_s(device, bytes_, flops, case.dtype) / timing.predicted_s
    word = "launch" if timing.launch_s > timing.predicted_s / 2 else timing.bound
    near = share >= NEAR
    time = f"~{rough(timing.predicted_s)} ({error_words(case, timing, resources)})"
    gain = f"{'nothing to gain but' if near else 'what would help:'} {ADVICE[word]}"
    return Diagnosed(
        subject=f"{case.label} at {sizes_text(case.sizes)}, {case.dtype}",
        rule=RULE,
        word=word,
        sentence=f"{percent(share)} of the ceiling predicted, {time}: {gain}",
        evidence=tuple(_terms(timing)),
        advice="" if near else "Another config may be nearer: workbench sweep",
        effort="",
        source=f"the model {timing.model} of {device.name}; nothing was measured",
    )


def predicted_report(kept: RunResult) -> DiagnosisReport:
    """Return what limits the best config of each problem of a run whose times are predicted."""
    run = kept.run
    known = [o for o in kept.outcomes if isinstance(o, Record) and isinstance(o.timing, Predicted)]
    results = []
    for some in group_by(known, lambda r: (sizes_text(r.case.sizes), r.case.dtype)).values():
        best = _winner(kept, some)
        assert isinstance(best.timing, Predicted)
        results.append(model_limit(best.case, best.timing, best.resources, best.flops, best.bytes))
    missing = (*missing_counters(), *missing_timeline(), *missing_code())
    title = f"{run.id}: {run.command}"
    return DiagnosisReport(title, (), tuple(results), missing, more={"run": run.id})


def _winner(kept: RunResult, some: Sequence[Record]) -> Record:
    """Return the winner of a sweep; else the fastest."""
    won = select(kept.run, some).winner if kept.run.engine == "sweep" else None
    return won or min(some, key=lambda record: record.time_s)


def _terms(timing: Predicted) -> Iterator[Evidence]:
    """Yield the terms of the model, the largest first."""
    terms = {
        "compute": timing.compute_s,
        "memory": timing.dram_s,
        "cache": timing.cache_s,
        "latency": timing.latency_s,
        "launch": timing.launch_s,
    }
    for name, seconds in sorted(terms.items(), key=lambda one: -(one[1] or 0.0)):
        if seconds:
            yield Evidence(name, seconds, "s", "predicted")
