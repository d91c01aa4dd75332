"""Bytes that a profiler counted at each level of memory, beside those that a kernel declares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workbench.data.record import Profile, Record, group_by
from workbench.device.ceilings import Level

# Metrics that hold the bytes of a level: between the GPU and DRAM, between L2 and L1, and those of
# loads and stores to global and local memory in L1.
BYTES: Mapping[Level, str] = {"dram": "dram_bytes", "cache": "l2_bytes", "shared": "l1_bytes"}
NAMES: Mapping[Level, str] = {"dram": "DRAM", "cache": "L2", "shared": "L1"}


class Traffic(NamedTuple):
    """Bytes of one call at one level, as a profiler counted them, and its FLOPs: those counted in
    the matrix unit, or of vector units alone; else those that the kernel declares."""

    level: Level
    bytes: float
    flops: float
    tool: str


@dataclass(frozen=True)
class ProfiledCalls:
    """The newest profiles of each config, by the key of its outcome."""

    outcome_profiles: Mapping[str, Sequence[Profile]]

    @classmethod
    def select(cls, profiles: Sequence[Profile]) -> ProfiledCalls:
        """Return the launches with counters; of a config that was profiled twice the newer."""
        known = group_by((p for p in profiles if p.outcome and p.launch), lambda p: p.outcome)
        newest = {key: max(p.at for p in some) for key, some in known.items()}
        return cls({k: [p for p in some if p.at == newest[k]] for k, some in known.items()})

    def traffic(self, record: Record) -> tuple[Traffic, ...]:
        """Return the traffic of a record's config; empty where none was profiled, and without a
        level that not every launch has counters of."""
        launches = self.outcome_profiles.get(record.key, ())
        if not launches or not record.is_measured:
            return ()
        from workbench.traces.rule_metrics import calls_of, profile_metrics

        every = [profile_metrics(p) for p in sorted(launches, key=launch_order)]
        metrics = next(iter(calls_of(every)), every)  # of the first call, where this is known
        if not metrics:
            return ()
        flops = _metric_sum(metrics, "vector_flop" if _vector(record) else "matrix_flop")
        levels = {level: _metric_sum(metrics, name) for level, name in BYTES.items()}
        return tuple(
            Traffic(level, moved, flops or float(record.flops), launches[0].tool)
            for level, moved in levels.items()
            if moved
        )


def launch_order(profile: Profile) -> tuple[int, str]:
    """Return the place of a launch among those of its file."""
    return int(profile.launch) if profile.launch.isdecimal() else 0, profile.launch


def _vector(record: Record) -> bool:
    return record.resources is not None and record.resources.matrix_unit is None


def _metric_sum(metrics: Sequence[Mapping[str, float]], name: str) -> float | None:
    if any(name not in each for each in metrics):
        return None
    return math.fsum(each[name] for each in metrics)


def excess(record: Record, traffic: Sequence[Traffic]) -> float | None:
    """Return DRAM's bytes over the least that the kernel declares; None where either is not
    known."""
    moved = bytes_at(traffic, "dram")
    return None if moved is None or not record.bytes else moved / record.bytes


def bytes_at(traffic: Sequence[Traffic], level: Level) -> float | None:
    """Return the bytes of one level; None where they are not known."""
    return next((t.bytes for t in traffic if t.level == level), None)
