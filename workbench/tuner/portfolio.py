"""Choose the smallest set of configs that stays near the best at each of several sizes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench.spec import WorkbenchError

WITHIN = 0.03  # share of a size's best time by which a config may be slower
MOST_NODES = 200_000  # of the exact search, about a second; beyond it the result is greedy


class PortfolioError(WorkbenchError, ValueError):
    """No set of configs runs at the sizes; the message is one sentence."""


@dataclass(frozen=True)
class Served:
    """The member of a portfolio that is fastest at one size."""

    member: str  # config key
    ratio: float  # its time over the best time that any config has there; at least 1


@dataclass(frozen=True)
class Portfolio:
    """A set of configs. `exact` means that no smaller set exists; it is False if the search was cut
    short and this is the smallest set that was found."""

    members: tuple[str, ...]  # config keys, sorted
    served: Mapping[str, Served]  # by size label
    within: float
    exact: bool

    @property
    def geomean_ratio(self) -> float:
        """Geometric mean over the sizes of the ratios to the best; at least 1."""
        logs = [math.log(s.ratio) for s in self.served.values()]
        return math.exp(math.fsum(logs) / len(logs))


def portfolio(
    times_s: Mapping[str, Mapping[str, float]], within: float = WITHIN, most_nodes: int = MOST_NODES
) -> Portfolio:
    """Return the smallest set of configs that stays within `within` of the best at every size.

    `times_s` holds seconds by size label and config key; a config that is absent at a size, or
    whose time there is not a finite number above zero, does not run there. Among equally small sets
    the one with the least geometric mean of ratios is taken, then the first by its keys. This is
    minimum set cover, which is solved exactly up to `most_nodes` steps of branch and bound; after
    that the smallest set found, which is never larger than the greedy one, is returned and
    `Portfolio.exact` is False unless a bound proves its size. Raises PortfolioError where a size
    has no time.
    """
    ratios = _ratios(times_s)
    covers = _covers(ratios, within)
    search = _Cover(list(ratios), covers, ratios, most_nodes)
    members = search.best()
    served = {size: _serving(ratios[size], members) for size in ratios}
    return Portfolio(members, served, within, search.exact)


def _ratios(times_s: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the time over the size's best, by size and config; configs that did not run are left
    out."""
    if not times_s:
        raise PortfolioError("There are no sizes to serve; name at least one with --sizes.")
    results = {}
    for size, times in times_s.items():
        ran = {key: t for key, t in times.items() if math.isfinite(t) and t > 0}
        if not ran:
            raise PortfolioError(f"No config has a time at {size}; leave these sizes out.")
        best_s = min(ran.values())
        results[size] = {key: t / best_s for key, t in ran.items()}
    return results


def _covers(ratios: Mapping[str, Mapping[str, float]], within: float) -> dict[str, frozenset[str]]:
    """Return the sizes that each config serves; configs that serve none are left out."""
    results: dict[str, set[str]] = {}
    for size, its in ratios.items():
        for key, ratio in its.items():
            if ratio <= 1 + within:
                results.setdefault(key, set()).add(size)
    return {key: frozenset(results[key]) for key in sorted(results)}


def _serving(ratios: Mapping[str, float], members: Sequence[str]) -> Served:
    ratio, member = min((ratios[m], m) for m in members if m in ratios)
    return Served(member, ratio)


class _Cover:
    """Depth-first search: the size with the fewest configs left is served by each of them in
    turn."""

    def __init__(
        self,
        sizes: Sequence[str],
        covers: Mapping[str, frozenset[str]],
        ratios: Mapping[str, Mapping[str, float]],
        most_nodes: int,
    ) -> None:
        self._sizes = sizes
        self._covers = covers
        self._ratios = ratios
        self._serving = {s: [k for k, its in covers.items() if s in its] for s in sizes}
        self._nodes_left = most_nodes
        self._best = self._greedy()
        self._cost = self._cost_of(self._best)
        self.exact = True

    def best(self) -> tuple[str, ...]:
        every = frozenset(self._sizes)
        self._visit((), every)
        self.exact = self.exact or len(self._best) == self._least(every)
        return self._best

    def _greedy(self) -> tuple[str, ...]:
        """Return the greedy set: repeatedly take the config that serves most of the sizes left."""
        left, members = set(self._sizes), []
        while left:
            member = max(self._covers, key=lambda k: (len(self._covers[k] & left), -self._sum(k)))
            members.append(member)
            left -= self._covers[member]
        return tuple(sorted(members))

    def _sum(self, key: str) -> float:
        """Return the sum of the logarithms of a config's ratios at the sizes that it serves."""
        return math.fsum(math.log(self._ratios[size][key]) for size in self._covers[key])

    def _visit(self, members: tuple[str, ...], left: frozenset[str]) -> None:
        if not left:
            self._offer(members)
            return
        if self._nodes_left <= 0:
            self.exact = False
            return
        self._nodes_left -= 1
        if len(members) + self._least(left) > len(self._best):
            return
        hardest = min(left, key=lambda s: (len(self._serving[s]), s))
        keys = self._serving[hardest]
        for member in sorted(keys, key=lambda k: (-len(self._covers[k] & left), self._sum(k), k)):
            self._visit((*members, member), left - self._covers[member])

    def _least(self, left: frozenset[str]) -> int:
        """Return a lower bound of the configs still needed: none serves more of the sizes left than
        the one that serves most of them."""
        return math.ceil(len(left) / max(len(its & left) for its in self._covers.values()))

    def _offer(self, members: tuple[str, ...]) -> None:
        chosen = tuple(sorted(members))
        cost = self._cost_of(chosen)
        if cost < self._cost:
            self._best, self._cost = chosen, cost

    def _cost_of(self, members: tuple[str, ...]) -> tuple[int, float, tuple[str, ...]]:
        ratios = (_serving(self._ratios[s], members).ratio for s in self._sizes)
        return len(members), math.fsum(math.log(r) for r in ratios), members
