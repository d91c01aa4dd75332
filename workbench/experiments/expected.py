"""Compute the bytes, FLOPs and the least time of a call that a device allows; nothing runs.

The time at peak bandwidth is least bytes / bandwidth, the time at peak compute FLOPs / peak of the
dtype, and the larger of the two is the bound of the roofline model (Williams, Waterman and
Patterson, CACM 52(4), 2009). A time, measured or given, is compared with that bound.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench import catalog
from workbench.data.database import Row
from workbench.data.record import Evidence, State
from workbench.data.units import reading
from workbench.device.ceilings import CeilingSet
from workbench.device.hardware import Device
from workbench.experiments import Analysis, Context, Experiment, Variant, VariantResult
from workbench.experiments.analysis.bounds import Bound, bound, ceiling_row, ceilings, split
from workbench.spec import Sizes, Spec, sizes_text


def analyse_expected(
    spec: Spec,
    sizes: Sizes,
    dtype: str,
    device: Device,
    given_s: float | None = None,
    known: Mapping[str, Mapping[str, Any]] | None = None,
    given: str = "the time given",
    state: State = "sustained",
) -> Analysis:
    """Return the analysis of a call of these sizes on that device, without running it.

    `known` are ceilings as `hardware.ceilings` writes them; measured ones give a second bound.
    `given_s` is a time in seconds to compare with the bound, `given` names it, and `state` is that
    of the clock it was taken at.
    """
    measured, stated = split(ceilings(device, known or {}, state))
    peak, reached = bound(spec, sizes, dtype, stated), bound(spec, sizes, dtype, measured)
    moved, flops = spec.bytes(sizes, dtype), spec.flops(**sizes)
    rows = [
        Evidence("least bytes", moved, "B", "computed", group="the call"),
        Evidence("FLOPs", flops, "FLOP", "computed", group="the call"),
        Evidence("intensity", flops / moved, "FLOP/B", "computed", group="the call"),
        *_rows(peak, f"on {device.title}, as stated", given_s, given),
        *_rows(reached, f"on {device.title}, as measured", given_s, given),
    ]
    best = peak if peak.least_s is not None else reached
    caveats = _caveats(best, moved, dtype, device, measured)
    what = f"{spec.name} {sizes_text(sizes, ' ')} in {dtype}"
    if best.least_s is None:
        text = f"Neither the bandwidth nor the {dtype} peak of {device.title} is known; "
        text += "`workbench ceilings` measures them."
        return Analysis("unknown", f"{what}: {text}", rows, caveats=caveats)
    word = f"at least {reading(best.least_s, 's')}"
    sentence = f"{what} on {device.title}: {_sentence(best, moved, flops)}"
    if given_s is not None:
        times = given_s / best.least_s
        word = f"{_times(times)} the bound"
        sentence += f" {given[0].upper()}{given[1:]}, {reading(given_s, 's')}, is {_times(times)}"
        sentence += " that." if times >= 1 else " that: a cache served part of it, or it is wrong."
    return Analysis(word, sentence, rows, caveats=caveats)


def _times(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.3g}x"


def _rows(at: Bound, group: str, given_s: float | None, given: str) -> list[Evidence]:
    rows = []
    both = ("bandwidth", at.memory, at.memory_s), ("compute", at.compute, at.compute_s)
    for name, ceiling, time_s in both:
        if ceiling is not None and time_s is not None:
            rows.append(ceiling_row(ceiling, group))
            rows.append(Evidence(f"time at that {name}", time_s, "s", "computed", group=group))
    if at.least_s is not None:
        rows.append(Evidence("the larger: the bound", at.least_s, "s", "computed", group=group))
        if given_s is not None:
            over = given_s / at.least_s
            rows.append(Evidence(f"{given}, over the bound", over, "1", "computed", group=group))
    return rows


def _sentence(at: Bound, moved: float, flops: float) -> str:
    parts = []
    terms = (moved, "B", at.memory, at.memory_s), (flops, "FLOP", at.compute, at.compute_s)
    for amount, unit, ceiling, time_s in terms:
        if ceiling and time_s is not None:
            rate = reading(ceiling.value, ceiling.unit)
            parts.append(f"{reading(amount, unit)} at {rate} take {reading(time_s, 's')}")
    assert at.least_s is not None
    return f"{', '.join(parts)}; the bound is {reading(at.least_s, 's')}, set by {at.bound}."


def _caveats(
    at: Bound, moved: float, dtype: str, device: Device, measured: CeilingSet
) -> tuple[str, ...]:
    text = ["Bytes are the least: each input read once and each output written once, in DRAM."]
    if at.memory is None:
        text.append(f"The bandwidth of {device.title} is unknown; its time is left out.")
    if at.compute is None:
        text.append(f"No {dtype} peak of {device.title} is known; its time is left out.")
    if 0 < moved <= device.cache.value:
        held = reading(device.cache.value, "B")
        text.append(f"They fit the last-level cache of {held}: a hot call may take less.")
    launch = measured.best("launch")
    if launch is not None and at.least_s is not None and launch.value > at.least_s:
        text.append(f"A launch alone takes {reading(launch.value, 's')} here, more than the bound.")
    return tuple(text)


def fastest(rows: Iterable[Row], sizes: Sizes) -> Row | None:
    """Return the fastest cold, measured call of these sizes among stored outcomes of one kernel,
    dtype and device; None if there is none."""
    cold = (r for r in rows if r.time_s and r.predicted is False and r.phase != "hot")
    same = [row for row in cold if dict(row.sizes) == dict(sizes)]
    return min(same, key=lambda row: row.time_s or 0.0, default=None)


def variants(context: Context) -> Sequence[Variant]:
    """Return no variants, as nothing is run."""
    return []


def analyse(context: Context, results: Mapping[str, VariantResult]) -> list[Analysis]:
    """Return the analysis of the kernel at the given sizes, else at its first to time."""
    spec = catalog.spec_of(context.kernel)
    sizes = context.sizes or spec.bench[0]
    given_s, named = context.given_s, "the time given"
    state: State = "sustained"
    if given_s is None and (stored := fastest(context.earlier, sizes)) is not None:
        given_s, named = stored.time_s, f"the fastest stored time, of {stored.impl}"
        state = "boost" if stored.phase in ("first_pass", "screen") else "sustained"
    about = spec, sizes, context.dtype, context.device
    return [replace(analyse_expected(*about, given_s, context.ceilings, named, state), sizes=sizes)]


EXPERIMENT = Experiment(
    "bytes, FLOPs and the least time of a call, without running it",
    variants,
    analyse,
    kernels=("q4_k_matmul",),
    dtype="fp16",
    runs=False,
)
