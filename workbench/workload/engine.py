"""Tune the signatures of a workload within a budget, the longest first and each family as one.

The engine decides what is swept, for how long, and whether another config replaces the one in use;
what sweeps a launch and compares its configs is passed in.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from workbench.backend.measuring import GpuGone, WorkerRefused
from workbench.data.clock import timestamp
from workbench.data.record import Measured, Outcome, Record, Verdict
from workbench.data.selection import MODEL_SHARE
from workbench.data.units import percent
from workbench.device.error_band import band_of
from workbench.spec import WorkbenchError
from workbench.workload.families import Middle, gaps
from workbench.workload.identity import text_hash
from workbench.workload.plan import WorkItem, time_for
from workbench.workload.rebuilt import RebuiltLaunch, limit_configs, rebuild_launch, widen_search
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
    is_checked: bool
    page: Path
    predicts: bool  # no GPU took part
    gpu: str  # of a cluster: host and GPU
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


Sweep = Callable[[RebuiltLaunch, float], SweptLaunch]  # a launch, and seconds for it


@dataclass
class WorkloadTuning:
    """Tune groups of items, each by the sweep of one GPU; results are stored as they are known."""

    items: Sequence[WorkItem]
    journal: TuningJournal
    seconds: float
    say: Callable[[str], None]
    note: Callable[[str], None]
    trust: bool = False  # import source files that differ from the record
    widen: bool = False  # sweep configs one step beyond, where the best is at an end
    gpus: Callable[[], int] = lambda: 1  # that work now
    start_s: float = field(default_factory=time.monotonic)

    @property
    def open_items(self) -> list[WorkItem]:
        """Items without a result."""
        return [item for item in self.items if item.digest not in self.journal.results]

    @property
    def tuned_items(self) -> list[tuple[WorkItem, TunedSignature]]:
        """Items with their results."""
        results = self.journal.results
        return [(item, results[item.digest]) for item in self.items if item.digest in results]

    @property
    def is_spent(self) -> bool:
        """Whether the budget is used up."""
        return time.monotonic() - self.start_s >= self.seconds

    def tune(self, group: Sequence[WorkItem], sweep: Sweep) -> None:
        """Tune a family, or a signature alone, while there is budget; then the sizes between those
        of the family."""
        if self.is_spent:
            return
        results = self.journal.results
        if not all(item.digest in results for item in group):
            self._tune_members(group, sweep)
        for gap in gaps(group, results):
            if gap.middle is not None and gap.middle.item.digest not in results:
                self._tune_middle(gap.middle, sweep)
            elif gap.middle is None and gap.reason:
                name = gap.first.signature.function.name
                self.note(f"no size of {name} between two tuned ones is measured: {gap.reason}")

    def _tune_members(self, group: Sequence[WorkItem], sweep: Sweep) -> None:
        swept: dict[str, tuple[WorkItem, SweptLaunch]] = {}
        for item in group:
            with self._keep_failure(item):
                swept[item.digest] = item, self._sweep_item(item, sweep)
        chosen = family_choices(
            {digest: each.times_s for digest, (_, each) in swept.items()},
            {digest: each.labels[0] for digest, (_, each) in swept.items()},
        )
        for digest, (item, each) in swept.items():
            with self._keep_failure(item):
                self._keep(item, decide_config(item, each, chosen[digest]))

    def _tune_middle(self, between: Middle, sweep: Sweep) -> None:
        """Measure the configs of both sizes, and the one in use, at the size between them."""
        item = between.item
        with self._keep_failure(item):
            with _REBUILDING:
                launch = limit_configs(rebuild_launch(item.signature, self.trust), between.configs)
            swept = sweep(launch, LEAST_S)
            self._keep(item, decide_config(item, swept, swept.best))

    def _sweep_item(self, item: WorkItem, sweep: Sweep) -> SweptLaunch:
        """Adopt the launch of an item and sweep its configs. Raises WorkbenchError."""
        seconds = self.time_of(item)
        with _REBUILDING:
            launch = rebuild_launch(item.signature, self.trust)
        swept = sweep(launch, seconds)
        if not self.widen:
            return swept
        more = widen_search(launch, launch.configs[swept.labels.index(swept.best)])
        return swept if more is None else sweep(more, seconds)

    def time_of(self, item: WorkItem) -> float:
        """Return the seconds of the budget that an item gets."""
        remaining = self.seconds - (time.monotonic() - self.start_s)
        own = self.gpus() * time_for(item, self.open_items, remaining)
        return max(LEAST_S, min(remaining, own))

    @contextmanager
    def _keep_failure(self, item: WorkItem) -> Iterator[None]:
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


def decide_config(item: WorkItem, swept: SweptLaunch, chosen: str) -> TunedSignature:
    """Return the result of an item: the config in use, unless the chosen one is faster."""
    used = swept.labels[0]
    reason = f"the config in use, {used}, stays"
    if used not in swept.records and chosen != used:
        reason = f"the config in use, {used}, has no time to compare with; see {swept.page}"
    elif chosen != used and swept.predicts:
        times_s = swept.times_s
        if times_s[used] > times_s[chosen] * (1 + MODEL_SHARE):
            ratio = times_s[used] / times_s[chosen]
            words = f"{chosen} is predicted {ratio:.2f}x as fast as {used}"
            result = result_of(item, swept, chosen, "predicted", words)
            return replace(result, before_s=time_of(swept.records[used]))
        reason += f": {chosen} is predicted within 2 %"
    elif chosen != used:
        verdict, before, after = swept.compare(used, chosen)
        if verdict is not None and verdict.word == "FAST":
            assert isinstance(before, Record) and isinstance(after, Record)  # both ran
            words = f"{chosen} takes {percent(verdict.time.middle)} of the time of {used}"
            result = result_of(item, swept, chosen, "faster", words)
            times = time_of(before), time_of(after)
            return replace(result, before_s=times[0], after_s=times[1], protocol=source_of(after))
        text = "did not run again" if verdict is None else f"gave {verdict.word}"
        reason += f": against it {chosen} {text}"
    return result_of(item, swept, used, "kept", reason)


def result_of(
    item: WorkItem, swept: SweptLaunch, name: str, status: Status, reason: str
) -> TunedSignature:
    """Return a result with the config of this name, and its time before and after."""
    config = swept.launch.configs[swept.labels.index(name)].all_kwargs()
    plain = {n: v for n, v in config.items() if isinstance(v, (int, str, type(None)))}
    record = swept.records.get(name)
    band = None if record is None or record.is_measured else band_of(record)
    time_s = None if record is None else time_of(record)
    source = "" if record is None else source_of(record)
    return TunedSignature(
        item.digest,
        status,
        reason,
        tuple(sorted(plain.items())),
        time_s,
        time_s,
        f"{PREDICTED} by {source}" if source and swept.predicts else source,
        text_hash(swept.launch.kernel),
        swept.is_checked,
        timestamp(),
        str(swept.page),
        swept.gpu,
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
