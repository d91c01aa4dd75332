"""What a trace lacks, so that no KPI of its timeline is rated: bad records, records that were not
read, and launches without their work. Pure functions of a trace."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.data.record import group_by
from workbench.data.record_tally import RATED
from workbench.data.units import amount
from workbench.traces.timeline import range_name
from workbench.traces.trace import WORK, Activities, ActivityKind, Trace, is_launch

AGAIN = "record again, fewer steps at once"
GRAPHS = (
    "record every kernel of a graph (nsys: --cuda-graph-trace=node; torch.profiler: begin before "
    "the graph is captured)"
)


@dataclass(frozen=True)
class Shortfall:
    """One thing that a trace lacks. `hides_work`: work of a device is missing, so that even the
    values of the timeline say nothing; else they are those of the records that are left."""

    reason: str  # a clause, with its counts
    remedy: str
    hides_work: bool

    @property
    def sentence(self) -> str:
        """Reason and remedy as one sentence."""
        return f"{self.reason}; {self.remedy}."


def shortfalls(trace: Trace, launches: Sequence[int]) -> list[Shortfall]:
    """Return what a trace lacks, by `trace.activities.launches()`; empty where its timeline is
    complete."""
    tally = trace.tally
    result = []
    for name, count in tally.unread.items():
        reason = f"{amount(count, 'record')} of {name} may be work of a device, not read"
        result.append(Shortfall(reason, tally.remedies[name], True))
    result += filter(
        None, (_launches_without_work(trace), _early_kernels(trace.activities, launches))
    )
    for kind, share in tally.shares().items():
        if share > RATED:
            result.append(Shortfall(", ".join(tally.sentences(kind)), AGAIN, False))
    return result


def _launches_without_work(trace: Trace) -> Shortfall | None:
    """Return the launches and replays whose kernels are not in the file."""
    table = trace.activities
    lost = {(table.processes[p], c) for p, c in trace.tally.lost_work if p in table.processes}
    done = {(table.process_numbers[i], table.correlations[i]) for i in table.select(*WORK)} | lost
    known = {n for n, name in enumerate(table.names.entries) if is_launch(name)}
    calls = [
        i
        for i in table.select(ActivityKind.CALL)
        if table.name_numbers[i] in known and table.correlations[i] >= 0
    ]
    empty = [i for i in calls if (table.process_numbers[i], table.correlations[i]) not in done]
    outer = _holders(table, calls, set(empty))
    empty = [i for i in empty if i not in outer]
    if not empty:
        return None
    names = Counter(map(table.name, empty))
    listed = ", ".join(f"{name} {count:,}" for name, count in names.most_common(3))
    remedy = GRAPHS if any("Graph" in name for name in names) else AGAIN
    if not any(True for _ in table.select(*WORK)):
        remedy = "read the file of its kernels together with it, or record them"
    share = f"{len(empty):,} of {len(calls) - len(outer):,} launches"
    reason = f"{share} have no work in the file ({listed}){_steps_without_kernels(table)}"
    return Shortfall(reason, remedy, True)


def _early_kernels(table: Activities, launches: Sequence[int]) -> Shortfall | None:
    """Return the kernels that begin before the call that launched them does (kineto issue 1380)."""
    launched = [i for i in table.select(ActivityKind.KERNEL) if launches[i] >= 0]
    early = sum(table.starts[i] < table.starts[launches[i]] for i in launched)
    if early <= RATED * len(launched):
        return None
    reason = f"{early:,} of {len(launched):,} kernels begin before the call that launched them"
    return Shortfall(f"{reason}, so the clocks of host and device differ", AGAIN, False)


def _holders(table: Activities, calls: Sequence[int], empty: set[int]) -> set[int]:
    """Return the launches without work that hold one with work, or lie within one: a call of the
    runtime makes one of the driver, and only one of both has the id of the kernel."""
    result: set[int] = set()
    for of_thread in group_by(calls, table.thread).values():
        of_thread.sort(key=lambda i: (table.starts[i], -table.ends[i]))
        outer = -1
        for i in of_thread:
            if outer >= 0 and table.ends[i] <= table.ends[outer] > table.starts[i]:
                is_other = table.name_numbers[i] != table.name_numbers[outer]
                if is_other and (i in empty) != (outer in empty):
                    result.add(i if i in empty else outer)
            else:
                outer = i
    return result


def _steps_without_kernels(table: Activities) -> str:
    """Return how many of the numbered ranges launched no work of the file; empty where all did."""
    done = {(table.process_numbers[i], table.correlations[i]) for i in table.select(*WORK)}
    spans = [
        (table.starts[i], table.ends[i], range_name(name))
        for i in table.select(ActivityKind.RANGE)
        if "#" in range_name(name := table.name(i))
    ]
    times = sorted(
        table.starts[i]
        for i in table.select(ActivityKind.CALL)
        if (table.process_numbers[i], table.correlations[i]) in done
    )
    without = [span for span in spans if bisect_left(times, span[0]) == bisect_left(times, span[1])]
    if not without:
        return ""
    return f"; {len(without):,} of {len(spans):,} ranges {without[0][2]} launched none of it"


def lone_kernel(table: Activities, kernels: Sequence[int]) -> str:
    """Return a sentence on a launch that holds over nine tenths of the time of at least ten
    kernels; empty where none does."""
    lengths = [table.length(i) for i in kernels]
    share = max(lengths, default=0) / (sum(lengths) or 1)
    if len(kernels) < 10 or share <= 0.9:
        return ""
    name = table.name(kernels[lengths.index(max(lengths))])
    return f"one launch of {name[:60]} holds {100 * share:.1f} % of the kernel time of its device"
