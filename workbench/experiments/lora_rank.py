"""Does the rank of a LoRA update cost time? Ranks of 4 to 64 at three sizes of layer.

`lora_delta` is the update alone, `lora` the whole layer, both for 64 rows of x in fp32.
Neither the bytes nor the FLOPs of the update come near a microsecond at these sizes, so a good
implementation takes as long at rank 64 as at 4. At each rank the fastest of ours is taken; the
library's products stand beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench import catalog
from workbench.data.record import Chart, Evidence, Kind
from workbench.experiments import Arm, Asked, Experiment, ExperimentError, Found, Judgement
from workbench.experiments.analysis.floors import floor, origin, roofs
from workbench.experiments.analysis.times import (
    Span,
    kind_of,
    line,
    mark,
    over,
    quickest,
    reasons,
    row,
    worded,
)
from workbench.reports.experiment import quantity
from workbench.reports.figures.compare import unit_of
from workbench.spec import Sizes, Spec, sizes_text

RANKS = (4, 8, 16, 32, 64)
ROWS = 64  # 4 x 16 or 2 x 32 rows of x: as metal-candle's benches/training.rs has them
EXTENTS = (512, 1024, 2048)
LIBRARY = "torch"
FLAT = 1.15  # largest over least time: what this project asks of its own at these sizes
# At 64 rows; a persistent product is for many more tiles than these sizes have.
IMPLS: Mapping[str, Sequence[str]] = {
    "lora_delta": ("fused", "split_k"),
    "lora": ("tiles", "split_k"),
}


def arms(asked: Asked) -> list[Arm]:
    """Each Impl at each rank and size, and the library's products."""
    spec = _spec(asked)
    ours = IMPLS.get(asked.kernel) or [i.name for i in spec.impls if i.backend == "triton"]
    library = [i.name for i in spec.impls if i.name == LIBRARY]
    return [
        Arm(f"{impl}, {sizes_text(at, ' ')}", asked.kernel, impl, at, asked.dtype)
        for sizes in _layers(asked)
        for rank in RANKS
        for at in [{**sizes, "r": rank}]
        for impl in (*_taken(spec, ours, at, asked), *library)
    ]


def _spec(asked: Asked) -> Spec:
    spec = catalog.spec_of(asked.kernel) if asked.kernel else None
    if spec is None or set(spec.axes) != {"M", "K", "N", "r"}:
        raise ExperimentError(
            f"lora_rank varies the axis r of kernels of M, N, K and r, and {asked.kernel!r} is "
            "none; name --kernel lora or lora_delta."
        )
    return spec


def _layers(asked: Asked) -> list[Sizes]:
    """Sizes without their rank."""
    if asked.sizes:
        return [{axis: n for axis, n in asked.sizes.items() if axis != "r"}]
    return [{"M": ROWS, "K": extent, "N": extent} for extent in EXTENTS]


def _taken(spec: Spec, ours: Sequence[str], at: Sizes, asked: Asked) -> list[str]:
    """The Impls that take these sizes at their default: one for small ranks refuses large ones.
    Where none does, all of them, whose refusals then say why."""
    limits, taken = asked.device.limits, []
    for name in ours:
        impl = catalog.impl_of(spec, name)
        default = impl.default(limits, asked.dtype, at)
        if not impl.rejection_reason(default, limits, asked.dtype, at):
            taken.append(name)
    return taken or list(ours)


@dataclass(frozen=True)
class Layer:
    """One size over all ranks: the fastest of ours at each, and the library's."""

    sizes: Sizes
    ours: Mapping[int, Found]
    library: Mapping[int, Found]

    @property
    def name(self) -> str:
        """`M=64 K=512 N=512`."""
        return sizes_text(self.sizes, " ")

    @property
    def spread(self) -> Span | None:
        """The largest time over the least; None with fewer than two ranks."""
        if len(self.ours) < 2:
            return None
        ordered = sorted(self.ours.values(), key=lambda each: each.time_s or 0.0)
        return over(ordered[0], ordered[-1])


def layer(sizes: Sizes, found: Mapping[str, Found]) -> Layer:
    """What became of one size."""
    ours: dict[int, Found] = {}
    library: dict[int, Found] = {}
    for rank in RANKS:
        at = [f for f in found.values() if dict(f.arm.sizes) == {**sizes, "r": rank}]
        best = quickest([f for f in at if f.arm.impl != LIBRARY])
        other = quickest([f for f in at if f.arm.impl == LIBRARY])
        if best is not None:
            ours[rank] = best
        if other is not None:
            library[rank] = other
    return Layer(sizes, ours, library)


def shape_of(spread: Span | None, kind: Kind) -> str:
    """`flat`, `grows`, or `undecided` where the interval does not carry either; a prediction has
    no interval and is taken at its word."""
    if spread is None:
        return "undecided"
    grows = spread.above(FLAT)
    return "undecided" if grows is None else "grows" if grows else "flat"


_WORDS = {"flat": "flat in rank", "grows": "the rank costs time", "undecided": "not decided"}


def judge(asked: Asked, found: Mapping[str, Found]) -> list[Judgement]:
    """Flat where the largest time is at most 1.15 times the least at every size."""
    spec = _spec(asked)
    layers = [layer(sizes, found) for sizes in _layers(asked)]
    kinds = {each.name: kind_of(*each.ours.values()) for each in layers}
    shapes = [shape_of(each.spread, kinds[each.name]) for each in layers]
    overall = next((s for s in ("grows", "undecided") if s in shapes), "flat")
    rows = [e for each in layers for e in _evidence(spec, asked, each, kinds[each.name])]
    charts = [_chart(layers, kinds)] if any(each.ours for each in layers) else []
    caveats = [*_caveats(layers), *reasons(found)]
    said = "; ".join(_said(each, kinds[each.name]) for each in layers)
    kind: Kind = "predicted" if "predicted" in kinds.values() else "measured"
    word = worded(_WORDS[overall], kind)
    return [Judgement(word, f"Largest over least time: {said}.", rows, charts, caveats)]


def _said(each: Layer, kind: Kind) -> str:
    spread = each.spread
    if spread is None:
        return f"{each.name} has fewer than two ranks with a time"
    tilde = mark(kind)
    between = f" ({spread.low:.2f} to {spread.high:.2f})" if kind == "measured" else ""
    ordered = sorted(each.ours, key=lambda r: each.ours[r].time_s or 0.0)
    return (
        f"{each.name} {tilde}{spread.value:.2f}{between}, "
        f"{tilde}{quantity(each.ours[ordered[0]].time_s or 0.0, 's')} at rank {ordered[0]} to "
        f"{tilde}{quantity(each.ours[ordered[-1]].time_s or 0.0, 's')} at {ordered[-1]}"
    )


def _evidence(spec: Spec, asked: Asked, each: Layer, kind: Kind) -> list[Evidence]:
    at = roofs(asked.device, asked.ceilings)
    rows: list[Evidence | None] = []
    for rank, found in each.ours.items():
        rows.append(found.evidence(f"rank {rank}: {found.arm.impl}", each.name))
        library = each.library.get(rank)
        ratio = over(library, found) if library is not None else None
        if ratio is not None:
            name = f"rank {rank}: over the library's time"
            rows.append(row(name, ratio, "1", kind, each.name))
        least = floor(spec, {**each.sizes, "r": rank}, asked.dtype, at)
        if least.least_s is not None and rank in (min(each.ours), max(each.ours)):
            name = f"rank {rank}: floor by {least.bound}"
            rows.append(Evidence(name, least.least_s, "s", "computed", group=each.name))
    spread = each.spread
    if spread is not None:
        shape = shape_of(spread, kind)
        met = None if shape == "undecided" else shape == "flat"
        rows.append(row("largest over least time", spread, "1", kind, each.name, f"<= {FLAT}", met))
    launch = at.best("launch")
    if launch is not None:
        rows.append(Evidence("one launch", launch.value, "s", origin(launch), launch.low,
                             launch.high, each.name))  # fmt: skip
    return [each for each in rows if each is not None]


def _caveats(layers: Sequence[Layer]) -> list[str]:
    said = []
    for each in layers:
        missing = [str(rank) for rank in RANKS if rank not in each.ours]
        if missing:
            said.append(f"{each.name} has no time at rank {', '.join(missing)}.")
    return said


def _chart(layers: Sequence[Layer], kinds: Mapping[str, Kind]) -> Chart:
    layers = [each for each in layers if each.ours]
    least = min(found.time_s or 0.0 for each in layers for found in each.ours.values())
    scale, unit = unit_of(least)
    series = tuple(line(each.name, each.ours, scale, kinds[each.name]) for each in layers)
    return Chart("Time against rank", "rank", f"time of one call, {unit}", series, x_log=True)


EXPERIMENT = Experiment(
    "LoRA forward at ranks of 4 to 64: does the rank cost time?", arms, judge,
    kernels=("lora_delta", "lora"), dtype="fp32",
)  # fmt: skip
