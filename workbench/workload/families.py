"""Decide the sizes between those of a family: which are measured, and which a table may serve."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from workbench.workload.between import NoMiddle, middle
from workbench.workload.plan import WorkItem, numbers_of
from workbench.workload.tuned_table import ConfigValue
from workbench.workload.tuning import TunedSignature

Results = Mapping[str, TunedSignature]  # by the digest of the signature


@dataclass(frozen=True)
class Middle:
    """The size between two members of a family, and the configs that may serve it."""

    item: WorkItem
    configs: tuple[Mapping[str, ConfigValue], ...]  # of the two members


@dataclass(frozen=True)
class SizeGap:
    """Two members next to each other: the middle between them, why there is none, or neither where
    both keep the config in use, which then serves all sizes between them."""

    first: WorkItem
    second: WorkItem
    middle: Middle | None = None
    reason: str = ""

    def is_served(self, results: Results) -> bool:
        """Return whether the sizes between the two were measured, or keep the config in use."""
        if self.middle is None:
            return not self.reason
        result = results.get(self.middle.item.digest)
        return result is not None and result.status != "failed"


def gaps(members: Sequence[WorkItem], results: Results) -> Iterator[SizeGap]:
    """Yield the gaps of a family, by size, once all its members have results."""
    for first, second in pairwise(_sort_by_size(members)):
        tuned = [results[m.digest] for m in (first, second)]
        if any(result.status == "failed" for result in tuned):
            yield SizeGap(first, second, reason="a size at its end could not be tuned")
        elif all(r.status == "kept" for r in tuned) and tuned[0].config == tuned[1].config:
            yield SizeGap(first, second)
        else:
            yield _size_gap(first, second, tuned)


def _sort_by_size(members: Sequence[WorkItem]) -> list[WorkItem]:
    return sorted(members, key=lambda item: numbers_of(item.signature))


def _size_gap(first: WorkItem, second: WorkItem, tuned: Sequence[TunedSignature]) -> SizeGap:
    try:
        signature = middle(first.signature, second.signature)
    except NoMiddle as error:
        return SizeGap(first, second, reason=str(error))
    least_s = (first.least_s * second.least_s) ** 0.5  # of a size near the geometric mean
    item = WorkItem(signature, 0, 0.0, None, least_s, first.family)
    return SizeGap(first, second, Middle(item, tuple(dict(result.config) for result in tuned)))


def measured_families(members: Sequence[WorkItem], results: Results) -> list[WorkItem]:
    """Return the members and the middles between them, each with the family that it has in a table:
    sizes between which `nearest` may choose. A gap that was not measured ends one family, and the
    next begins."""
    if not members:
        return []
    parts: list[list[WorkItem]] = [[_sort_by_size(members)[0]]]
    for gap in gaps(members, results):
        if not gap.is_served(results):
            parts.append([])
        elif gap.middle is not None:
            parts[-1].append(gap.middle.item)
        parts[-1].append(gap.second)
    name = members[0].family
    names = [name if len(parts) == 1 else f"{name}/{part}" for part in range(1, len(parts) + 1)]
    return [
        replace(item, family=own) for own, part in zip(names, parts, strict=True) for item in part
    ]
