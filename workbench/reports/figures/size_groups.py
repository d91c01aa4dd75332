"""Group the outcomes of a run by size and dtype."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from workbench.data.record import Failure, Outcome, Record, Run, group_by
from workbench.reports.sweep import nearest_ceiling
from workbench.spec import sizes_text


@dataclass(frozen=True)
class Group:
    """Outcomes of one size and dtype, in their order."""

    run: Run
    outcomes: tuple[Outcome, ...]

    @property
    def name(self) -> str:
        """Return sizes and dtype: `M=4096 N=4096, bf16`."""
        case = self.outcomes[0].case
        return sizes_text(case.sizes, " ") + f", {case.dtype}"

    @property
    def records(self) -> list[Record]:
        """Return the outcomes with a time."""
        return [o for o in self.outcomes if isinstance(o, Record)]

    @property
    def failures(self) -> list[Failure]:
        """Return the outcomes without a time."""
        return [o for o in self.outcomes if isinstance(o, Failure)]

    def ceiling(self, record: Record) -> tuple[float, str] | None:
        """Return the share and name of the nearest ceiling, preferably a measured one, or None."""
        if not (record.bytes or record.flops):  # nothing is declared
            return None
        if record.phase == "hot":  # its inputs may come from the cache, not from memory
            return None
        dtype, every = record.case.dtype, self.run.ceilings.items()
        known = {name: ceiling for name, ceiling in every if ceiling.get("dtype", dtype) == dtype}
        result = nearest_ceiling(replace(self.run, ceilings=known), record)
        return (result[0], result[1]) if result else None

    def library_ratio(self, record: Record) -> float | None:
        """Return the best baseline's time over this one's, in the same regime, or None. Above 1 the
        record is faster."""
        times = [r.time_s for r in self.records if r.case.is_baseline and r.phase == record.phase]
        return min(times) / record.time_s if times else None


def groups_of(run: Run, outcomes: Sequence[Outcome]) -> list[Group]:
    """Return the outcomes by size and dtype, in the order of their first outcome."""
    each = group_by(outcomes, lambda o: (*sorted(o.case.sizes.items()), o.case.dtype))
    return [Group(run, tuple(group)) for group in each.values()]
