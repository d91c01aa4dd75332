"""Compute the roofline bound of a call: the larger of bytes over bandwidth and FLOPs over peak."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from workbench.data.record import Evidence, Kind, State
from workbench.device.ceilings import Ceiling, CeilingSet, ceiling_of, clock_words, stated_ceilings
from workbench.device.hardware import Device
from workbench.spec import Sizes, Spec


def ceilings(
    device: Device, known: Mapping[str, Mapping[str, Any]], state: State = "sustained"
) -> CeilingSet:
    """Return the ceilings of `known`, see `hardware.ceilings`, and the device's stated ones, for
    times of this state."""
    results = [ceiling_of(device.name, name, plain) for name, plain in known.items()]
    every = [*(c for c in results if c is not None), *stated_ceilings(device.name, device)]
    by_name = {c.name: c for c in every}
    cache_bytes = device.cache.value or None
    return CeilingSet(device.name, tuple(by_name.values()), cache_bytes, state=state)


def split(every: CeilingSet) -> tuple[CeilingSet, CeilingSet]:
    """Return the ceilings that were measured on the device, and all others."""
    measured = tuple(c for c in every.ceilings if c.is_measured)
    others = tuple(c for c in every.ceilings if not c.is_measured)
    return replace(every, ceilings=measured), replace(every, ceilings=others)


def ceiling_row(c: Ceiling, group: str, name: str = "") -> Evidence:
    """Return a ceiling as evidence, named after what it limits unless a name is given."""
    stated: Kind = "computed" if c.origin == "computed" else "datasheet"
    kind: Kind = "measured" if c.is_measured else stated
    what = ", ".join(filter(None, (name or c.what, clock_words(c.state))))
    return Evidence(what, c.value, c.unit, kind, c.low, c.high, group)


@dataclass(frozen=True)
class Bound:
    """Least time of a call under one set of ceilings, in seconds. The time of an unknown ceiling is
    None; `least_s` is then that of the other alone."""

    memory: Ceiling | None
    compute: Ceiling | None
    memory_s: float | None
    compute_s: float | None

    @property
    def least_s(self) -> float | None:
        """Larger of the two times, in seconds; None if neither is known."""
        return max((s for s in (self.memory_s, self.compute_s) if s is not None), default=None)

    @property
    def bound(self) -> str:
        """Ceiling that sets the bound: "memory" or "compute"."""
        return "compute" if (self.compute_s or 0.0) > (self.memory_s or 0.0) else "memory"


def bound(spec: Spec, sizes: Sizes, dtype: str, at: CeilingSet) -> Bound:
    """Return the least time of a call: each input read and each output written once, all FLOPs at
    the peak of the dtype."""
    memory, compute = at.best("dram"), at.best("compute", dtype)
    moved, flops = spec.bytes(sizes, dtype), spec.flops(**sizes)
    memory_s = moved / memory.value if memory else None
    return Bound(memory, compute, memory_s, flops / compute.value if compute else None)
