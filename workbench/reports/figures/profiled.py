"""The table of profiled configs: which limit holds, what it may give back, and the metrics behind
it. Two configs have a third column, which says what changed.

Every number but the plain time is of a profiler, which slows launches and flushes caches.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from workbench.data.record import Outcome, Profile, Record, group_by
from workbench.data.units import amount, duration, percent, quantity, three_digits
from workbench.traces.metric import BY_NAME
from workbench.traces.rule_metrics import profile_metrics
from workbench.traces.rules import RuleMatch, evaluate_kernel, word_of

# Metrics that a row shows, where any config has them.
SHOWN = (
    "compute_throughput", "memory_throughput", "dram_throughput", "l2_throughput", "l1_throughput",
    "dram_bytes", "l2_hit", "excess_sectors", "bank_conflicts", "matrix_pipe", "issue_active",
    "occupancy_theoretical", "occupancy", "empty_places", "spill_share",
)  # fmt: skip
STALLS = 3  # reasons to stall that are shown, the largest of any config
HEALTHY = "nothing found"
PROFILER_NOTE = (
    "A profiler slows launches and flushes caches: its times explain, and never stand for times "
    "without one."
)


@dataclass(frozen=True)
class ProfiledTable:
    """Cells of the table; the first column names the row."""

    heads: list[str]
    rows: list[list[str]]
    notes: list[str]


@dataclass(frozen=True)
class _ProfiledConfig:
    """One config under a profiler: all launches of its calls, and the longest of them."""

    title: str
    plain_s: float | None  # without a profiler
    spent_s: float | None  # of all launches of one call
    metrics: Mapping[str, float]  # of the longest launch
    launches: int
    tool: str

    @property
    def has_counters(self) -> bool:
        """Return whether counters were recorded."""
        return bool(self.metrics.keys() - {"duration"})

    @cached_property
    def first(self) -> RuleMatch | None:
        """Return the first rule that holds; None where none does."""
        return word_of(evaluate_kernel(self.metrics))

    @property
    def word(self) -> str:
        """Return the word of the first rule that holds."""
        if not self.has_counters:
            return "no counters"
        return self.first.rule.word if self.first else HEALTHY

    @property
    def gain(self) -> str:
        """Return what the first rule may give back, as a share of the profiled time."""
        gain_ns = self.first.diagnosis.gain_ns if self.first else None
        return "" if gain_ns is None or not self.spent_s else percent(gain_ns / 1e9 / self.spent_s)


def profiled_table(
    profiles: Sequence[Profile],
    outcomes: Sequence[Outcome],
    titles: Mapping[str, str] | None = None,
) -> ProfiledTable | None:
    """Return the table of the profiles that belong to outcomes, or None where none does. `titles`
    are names by the outcomes' keys; by default a config is its own."""
    # a config's hot time has the key of its cold one, and a first pass that of its final
    timed = [o for o in outcomes if isinstance(o, Record) and o.phase != "hot"]
    records = {o.key: o for o in timed}
    known = group_by((p for p in profiles if p.outcome in records), lambda p: p.outcome)
    order = [key for key in records if key in known]
    named = titles or {}
    columns = [
        _profiled_config(named.get(key, records[key].case.label), records[key], known[key])
        for key in order
    ]
    if not columns:
        return None
    tools = " and ".join(dict.fromkeys(c.tool for c in columns))
    rows = [
        ["limited by", *(c.word for c in columns)],
        ["at most to gain, of the profiled time", *(c.gain for c in columns)],
        _row("time without a profiler", [c.plain_s for c in columns], duration),
        _row(f"time under {tools}", [c.spent_s for c in columns], duration),
        *_metric_rows(columns),
    ]
    two = len(columns) == 2
    heads = ["", *(c.title for c in columns), *(["change"] if two else [])]
    return ProfiledTable(heads, [_even(row, len(heads)) for row in rows if any(row[1:])],
                         _notes(columns))  # fmt: skip


def _profiled_config(title: str, record: Record, profiles: Sequence[Profile]) -> _ProfiledConfig:
    newest = max(p.at for p in profiles)
    now = [p for p in profiles if p.at == newest and p.total_s is not None]
    longest = max(now, key=lambda p: p.total_s or 0.0, default=profiles[-1])
    # totals of a trace are of all calls, each of which launches every kernel at least once
    calls = 1 if longest.launch else min((p.count for p in now), default=1)
    spent = math.fsum(p.total_s or 0.0 for p in now) / calls if now else None
    return _ProfiledConfig(
        title, record.time_s, spent, profile_metrics(longest),
        sum(p.count for p in now) // calls, longest.tool,
    )  # fmt: skip


def _metric_rows(columns: Sequence[_ProfiledConfig]) -> list[list[str]]:
    rows = []
    for name in (*SHOWN, *_stalls(columns)):
        metric = BY_NAME[name]
        stall = name.startswith("stall_")
        values = [c.metrics.get(name) for c in columns]
        if any(value is not None for value in values):
            share = metric.unit == "1" or stall
            title = f"{metric.title}, of all stalls" if stall else metric.title
            rows.append(_row(title, values, percent if share else _bytes, points=share))
    return rows


def _stalls(columns: Sequence[_ProfiledConfig]) -> list[str]:
    """Return the reasons to stall that are the largest of any config."""
    largest: dict[str, float] = {}
    for column in columns:
        for name, value in column.metrics.items():
            if name.startswith("stall_") and name in BY_NAME:
                largest[name] = max(value, largest.get(name, 0.0))
    return sorted(largest, key=lambda name: (-largest[name], name))[:STALLS]


def _bytes(value: float) -> str:
    return quantity(value, "B")


def _row(
    title: str, values: Sequence[float | None], text: Callable[[float], str], points: bool = False
) -> list[str]:
    """Return the cells of a row; of two values, also their ratio, or for shares their difference in
    points."""
    cells = [title, *("" if value is None else text(value) for value in values)]
    first, second = values if len(values) == 2 else (None, None)
    if first is not None and second is not None and (points or first):
        cells.append(
            f"{100 * (second - first):+.1f} points"
            if points
            else f"{three_digits(second / first)}x"
        )
    return cells


def _even(row: list[str], width: int) -> list[str]:
    return [*row, *[""] * (width - len(row))][:width]


def _notes(columns: Sequence[_ProfiledConfig]) -> list[str]:
    notes = [PROFILER_NOTE]
    if not any(c.has_counters for c in columns):
        return [*notes, "No counters were recorded, so no rule could say what limits it."]
    return notes + [
        f"{c.title}: metrics of the longest of {amount(c.launches, 'launch')}."
        for c in columns
        if c.launches > 1 and c.has_counters
    ]
