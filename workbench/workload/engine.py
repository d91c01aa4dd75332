"""Tune the signatures of a workload within a budget, the longest first and each family as one.

The engine decides what is swept, for how long, and whether another config replaces the one in use;
what sweeps and compares is passed in as a `Bench`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from workbench.backend.cluster.joining import WorkerRefused
from workbench.backend.measuring import GpuGone
from workbench.data.clock import timestamp
from workbench.data.record import Measured, Outcome, Record, Verdict
from workbench.data.units import percent
from workbench.device.error_band import band_of
from workbench.spec import WorkbenchError
from workbench.tuner.selection import MODEL_SHARE
from workbench.workload.families import Middle, gaps
from workbench.workload.identity import text_hash
from workbench.workload.plan import WorkItem, time_for
from workbench.workload.rebuilt import RebuiltLaunch, limited, rebuilt, widened
from workbench.workload.tuned_table import PREDICTED, MeasuredTime
from workbench.workload.tuning import Status, TunedSignature, TuningJournal, family_choices

LEAST_S = 20.0  # of a signature on a GPU: inputs of 1.6 GB take 6 s of it
MOVES = (GpuGone, WorkerRefused)  # to another GPU of a cluster: they end no signature
_REBUILDING = threading.Lock()  # imports the program's modules


@dataclass(frozen=True)
class SweptLaunch:
    """A launch after its sweep: configs with comparable times, by their label."""

    launch: RebuiltLaunch
    records: Mapping[str, Record]
    labels: Sequence[str]  # of the launch's configs, that in use first
    checked: bool
    page: Path
    # Times two configs in interleaved rounds. The verdict is on the second of them.
    compare: Callable[[str, str], tuple[Verdict | None, Outcome | None, Outcome | None]]

    @property
    def times_s(self) -> dict[str, float]:
        """Seconds by config."""
        return {name: record.time_s for name, record in self.records.items()}

    @property
    def best(self) -> str:
        """The config with the least time."""
        return min(self.records, key=lambda name: self.records[name].time_s)


class Bench(Protocol):
    """Sweeps the configs of launches, on one GPU or by prediction."""

    @property
    def predicts(self) -> bool:
        """Whether no GPU takes part."""

    @property
    def title(self) -> str:
        """Host and GPU of a cluster; empty for this machine."""

    def sweep(self, launch: RebuiltLaunch, seconds: float) -> SweptLaunch:
        """Sweep the configs of a launch. Raises WorkbenchError where none has a time."""


@dataclass
class WorkloadTuning:
    """Tune groups of items, each on a bench; results are stored as they are known."""

    items: Sequence[WorkItem]
    journal: TuningJournal
    seconds: float
    say: Callable[[str], None]
    note: Callable[[str], None]
    trust: bool = False  # import source files that differ from the record
    widen: bool = False  # sweep configs one step beyond, where the best is at an end
    gpus: Callable[[], int] = lambda: 1  # that work now
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> list[WorkItem]:
        """Items without a result."""
        return [item for item in self.items if item.digest not in self.journal.results]

    @property
    def done(self) -> list[tuple[WorkItem, TunedSignature]]:
        """Items with their results."""
        results = self.journal.results
        return [(item, results[item.digest]) for item in self.items if item.digest in results]

    @property
    def is_spent(self) -> bool:
        """Whether the budget is used up."""
        return time.monotonic() - self.started >= self.seconds

    def tune(self, group: Sequence[WorkItem], bench: Bench) -> None:
        """Tune a family, or a signature alone, while there is budget; then the sizes between those
        of the family."""
        if self.is_spent:
            return
        results = self.journal.results
        if not all(item.digest in results for item in group):
            self._tune_members(group, bench)
        for gap in gaps(group, results):
            if gap.middle is not None and gap.middle.item.digest not in results:
                self._tune_middle(gap.middle, bench)
            elif gap.middle is None and gap.reason:
                name = gap.first.signature.function.name
                self.note(f"no size of {name} between two tuned ones is measured: {gap.reason}")

    def _tune_members(self, group: Sequence[WorkItem], bench: Bench) -> None:
        swept: dict[str, tuple[WorkItem, SweptLaunch]] = {}
        for item in group:
            with self._failing_alone(item):
                swept[item.digest] = item, self._sweep(item, bench)
        chosen = family_choices(
            {digest: each.times_s for digest, (_, each) in swept.items()},
            {digest: each.labels[0] for digest, (_, each) in swept.items()},
        )
        for digest, (item, each) in swept.items():
            with self._failing_alone(item):
                self._keep(item, decided(item, each, chosen[digest], bench))

    def _tune_middle(self, between: Middle, bench: Bench) -> None:
        """Measure the configs of both sizes, and the one in use, at the size between them."""
        item = between.item
        with self._failing_alone(item):
            with _REBUILDING:
                launch = limited(rebuilt(item.signature, self.trust), between.configs)
            swept = bench.sweep(launch, LEAST_S)
            self._keep(item, decided(item, swept, swept.best, bench))

    def _sweep(self, item: WorkItem, bench: Bench) -> SweptLaunch:
        """Adopt the launch of an item and sweep its configs. Raises WorkbenchError."""
        seconds = self.time_of(item)
        with _REBUILDING:
            launch = rebuilt(item.signature, self.trust)
        swept = bench.sweep(launch, seconds)
        if not self.widen:
            return swept
        more = widened(launch, launch.configs[swept.labels.index(swept.best)])
        return swept if more is None else bench.sweep(more, seconds)

    def time_of(self, item: WorkItem) -> float:
        """Return the seconds of the budget that an item gets."""
        remaining = self.seconds - (time.monotonic() - self.started)
        own = self.gpus() * time_for(item, self.left, remaining)
        return max(LEAST_S, min(remaining, own))

    @contextmanager
    def _failing_alone(self, item: WorkItem) -> Iterator[None]:
        """Return a context manager in which an error is the result of this item."""
        try:
            yield
        except MOVES:
            raise
        except WorkbenchError as error:
            self._keep(item, TunedSignature(item.digest, "failed", str(error)))

    def _keep(self, item: WorkItem, result: TunedSignature) -> None:
        self.journal.add(result)
        self.say(f"{item.title}: {result.reason}")


def decided(item: WorkItem, swept: SweptLaunch, chosen: str, bench: Bench) -> TunedSignature:
    """Return the result of an item: the config in use, unless the chosen one is faster."""
    used = swept.labels[0]
    if chosen == used:
        return result_of(item, swept, used, bench, "kept", f"the config in use, {used}, stays")
    if used not in swept.records:
        reason = f"the config in use, {used}, has no time to compare with; see {swept.page}"
        return result_of(item, swept, used, bench, "kept", reason)
    if bench.predicts:
        return _predicted(item, swept, chosen, bench)
    verdict, *records = swept.compare(used, chosen)
    before, after = records
    if verdict is None or verdict.word != "FAST":
        text = "did not run again" if verdict is None else f"gave {verdict.word}"
        reason = f"the config in use, {used}, stays: against it {chosen} {text}"
        return result_of(item, swept, used, bench, "kept", reason)
    assert isinstance(before, Record) and isinstance(after, Record)  # a verdict needs both
    reason = f"{chosen} takes {percent(verdict.time.middle)} of the time of {used}"
    result = result_of(item, swept, chosen, bench, "faster", reason)
    protocol = source_of(after)
    return replace(result, before_s=time_of(before), after_s=time_of(after), protocol=protocol)


def _predicted(item: WorkItem, swept: SweptLaunch, chosen: str, bench: Bench) -> TunedSignature:
    used = swept.labels[0]
    before, after = (swept.records[name].time_s for name in (used, chosen))
    if before <= after * (1 + MODEL_SHARE):
        reason = f"the config in use, {used}, stays: {chosen} is predicted within 2 %"
        return result_of(item, swept, used, bench, "kept", reason)
    reason = f"{chosen} is predicted {before / after:.2f}x as fast as {used}"
    result = result_of(item, swept, chosen, bench, "predicted", reason)
    return replace(result, before_s=MeasuredTime(before, before, before))


def result_of(
    item: WorkItem, swept: SweptLaunch, name: str, bench: Bench, status: Status, reason: str
) -> TunedSignature:
    """Return a result with the config of this name, and its time before and after."""
    config = swept.launch.configs[swept.labels.index(name)].all_kwargs()
    plain = {n: v for n, v in config.items() if isinstance(v, (int, str, type(None)))}
    record = swept.records.get(name)
    time_s = protocol = band = None
    if record is not None:
        time_s, protocol = time_of(record), source_of(record)
        band = None if record.measured else band_of(record)
    return TunedSignature(
        item.digest,
        status,
        reason,
        tuple(sorted(plain.items())),
        time_s,
        time_s,
        f"{PREDICTED} by {protocol}" if protocol and bench.predicts else protocol or "",
        text_hash(swept.launch.kernel),
        swept.checked,
        timestamp(),
        str(swept.page),
        bench.title,
        None if band is None else (band.low, band.high),
    )


def source_of(record: Record) -> str:
    """Return the protocol or the model of a time."""
    timing = record.timing
    return timing.protocol if isinstance(timing, Measured) else timing.model


def time_of(record: Record) -> MeasuredTime:
    """Return the time of a record with its interval, which holds the median."""
    timing = record.timing
    if isinstance(timing, Measured):
        middle = timing.median_s
        return MeasuredTime(middle, min(timing.low_s, middle), max(timing.high_s, middle))
    return MeasuredTime(record.time_s, record.time_s, record.time_s)
