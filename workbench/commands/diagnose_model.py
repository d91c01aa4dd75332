"""Diagnose without a GPU: what limits a predicted time, and what would shorten it, by the terms of
the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from workbench.commands.diagnosed import (
    Diagnosed,
    DiagnosisReport,
    missing_code,
    missing_counters,
    missing_timeline,
)
from workbench.commands.result import RunResult
from workbench.data.record import Case, Evidence, Predicted, Record, Resources, group_by
from workbench.data.selection import select
from workbench.data.units import percent, rough
from workbench.device.bounds import bound_s
from workbench.device.error_band import error_words
from workbench.device.hardware import device_named
from workbench.spec import sizes_text

RULE = "model"
NEAR = 0.8  # of the roofline bound: what is left is within the model's error
# By the largest term of the model: what would shorten it.
ADVICE: Mapping[str, str] = {
    "memory": "fewer bytes: a narrower dtype, or its neighbours' work fused into it",
    "compute": "fewer operations, or a dtype with a higher peak",
    "cache": "fewer requests to the cache: larger tiles, so that each load serves more",
    "shared memory": "fewer accesses to shared memory: operands in registers, larger tiles",
    "instructions": "fewer instructions beside the product: indices, casts and masks in the loop",
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
