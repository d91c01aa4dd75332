"""Compare the best of a first pass: halving, final benchmark, and the winner on hot data."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from workbench.backend.protocol import Measures
from workbench.compile import Compiled
from workbench.data.record import Outcome, Phase, Record
from workbench.data.selection import keep_default_bits, select
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.tuner.energy import add_energies
from workbench.tuner.first_pass import LIBRARIES_S, seconds_of
from workbench.tuner.space import Earlier, Plan, RecordFactory


@dataclass(frozen=True)
class Step:
    """The step that begins now and may take longer than one config: a `halving` or `final` of so
    many configs, compute-sanitizer on the finalists (`sanitize`), the winner once more on `hot`
    data, the `libraries` that are slow to import, or the `energy` of the finalists."""

    name: Phase | Literal["halving", "sanitize", "energy", "libraries"]
    total: int


class Finals:
    """Halve the best of the first pass, then compare the finalists, today's launches, the previous
    best and the libraries; last, time the winner on data that the cache may hold, and beside the
    libraries that were slow to import.

    With `energy`, the joules of each finalist are measured after all times; with `sanitize`,
    finalists that compute-sanitizer does not accept are left out before.
    """

    def __init__(
        self,
        plan: Plan,
        backend: Measures,
        earlier: Earlier,
        first_pass: Sequence[Record],
        energy: bool = False,
        sanitize: bool = False,
        libraries_s: Callable[[], float] = lambda: LIBRARIES_S,
    ) -> None:
        self._energy, self._sanitize, self._libraries_s = energy, sanitize, libraries_s
        self._plan, self._backend = plan, backend
        self._previous_best = earlier.previous_best
        self._factory = RecordFactory(plan.run, plan.problem, backend.protocol)
        self._by_key = {c.key: c for c in plan.candidates}
        self._codes = {r.key: Compiled(r.resources, "", (), 1) for r in first_pass if r.resources}
        self._times = {r.key: r.time_s for r in first_pass}
        allowed = keep_default_bits(plan.run, first_pass, first_pass)
        self._ranking = [r.key for r in allowed]
        self._allowed_keys = frozenset(self._ranking)

    def outcomes(self) -> Iterator[Outcome | Step]:
        """Yield each step as it begins and each outcome as it is known."""
        yield from self._halving()
        finalists = self._finalists()
        if self._sanitize:
            refused = yield from self._refuse_racy([c for c in finalists if c.key in self._by_key])
            finalists = [c for c in finalists if c.key not in refused]
        yield Step("final", len(finalists))
        results = self._backend.final(finalists, [self._times.get(c.key, 0.0) for c in finalists])
        outcomes = self._outcomes(finalists, results)
        if self._energy:
            yield from self._add_energy(finalists, results, outcomes)
        else:
            yield from outcomes
            yield from self._hot(outcomes)
        yield from self._libraries(outcomes)

    def _libraries(self, outcomes: Sequence[Outcome]) -> Iterator[Outcome | Step]:
        """Time the libraries that are slow to import beside the winner, as far as they are ready.
        The answer is known by now, and waits for none of them."""
        won = select(self._plan.run, outcomes).winner
        slow = [c for c in self._plan.baselines if c.impl.imports]
        if won is None or not slow:
            return
        yield Step("libraries", len(slow))
        results = self._backend.libraries(self._by_key[won.key], slow, self._libraries_s())
        for candidate, (result, winner_s) in zip(slow, results, strict=True):
            yield self._factory.outcome(candidate, result, "final", None, winner_s=winner_s)

    def _refuse_racy(
        self, candidates: Sequence[Candidate]
    ) -> Generator[Outcome | Step, None, set[str]]:
        """Yield a failure for each candidate that compute-sanitizer does not accept; returns their
        keys."""
        yield Step("sanitize", len(candidates))
        refused: set[str] = set()
        results = self._backend.sanitize(candidates)
        for candidate, reason in zip(candidates, results, strict=True):
            if reason is not None:
                refused.add(candidate.key)
                yield self._factory.failure(candidate, reason, self._codes.get(candidate.key))
        return refused

    def _outcomes(
        self, finalists: Sequence[Candidate], results: Sequence[Timed | Refusal]
    ) -> list[Outcome]:
        return [
            self._factory.outcome(c, r, "final", self._codes.get(c.key))
            for c, r in zip(finalists, results, strict=True)
            if isinstance(r, Timed) or r.own
        ]

    def _add_energy(
        self,
        finalists: Sequence[Candidate],
        results: Sequence[Timed | Refusal],
        outcomes: list[Outcome],
    ) -> Iterator[Outcome | Step]:
        """Yield the outcomes with their energy, which is measured last; if that is stopped, the
        outcomes as they are."""
        hot: list[Outcome] = []
        stopped: KeyboardInterrupt | None = None
        yield Step("energy", len(finalists))
        try:
            hot += [o for o in self._hot(outcomes) if not isinstance(o, Step)]
            outcomes = self._outcomes(finalists, add_energies(self._backend, finalists, results))
        except KeyboardInterrupt as error:
            stopped = error
        yield from (*outcomes, *hot)
        if stopped is not None:
            raise stopped

    def _hot(self, outcomes: Sequence[Outcome]) -> Iterator[Outcome | Step]:
        won = select(self._plan.run, outcomes).winner  # the fastest, or by rule inside a tie
        if won is not None:
            winner = self._by_key[won.key]
            yield Step("hot", 1)
            result = self._backend.hot(winner)
            if isinstance(result, Timed):
                yield self._factory.outcome(winner, result, "hot", self._codes.get(winner.key))

    def _halving(self) -> Iterator[Outcome | Step]:
        rules = self._backend.rules
        entrants = [self._by_key[key] for key in self._ranking[: rules.halve]]
        yield Step("halving", len(entrants))
        estimates = [self._times[c.key] for c in entrants]
        halved = self._backend.halve(entrants, estimates, rules.finalists)
        times = {}
        for candidate, again in zip(entrants, halved, strict=True):
            if isinstance(again, Timed):
                times[candidate.key] = seconds_of(again)
            elif again.own:
                del self._times[candidate.key]
                yield self._factory.failure(candidate, again, self._codes.get(candidate.key))
        keys = [key for key in self._ranking[: rules.halve] if key in self._times]
        # interleaved times of the halving are not comparable with those of the first pass
        self._ranking = sorted(times, key=times.__getitem__) if times else keys
        self._times |= times

    def _finalists(self) -> list[Candidate]:
        """Return the best, the best of each Impl, what launches without a config run today and the
        previous best, if they have a time, and the libraries that are quick to import; each
        once."""
        best = self._ranking[: self._backend.rules.finalists]
        ranked = sorted(self._allowed_keys & self._times.keys(), key=self._times.__getitem__)
        of_impl = {self._by_key[k].impl.name: k for k in (*reversed(ranked), *reversed(best))}
        also = {c.key for c in self._plan.candidates if c.default} | self._previous_best
        also |= {*self._plan.launches, *of_impl.values()}
        rest = [k for k in self._by_key if k in also and k in self._times and k not in best]
        quick = [c for c in self._plan.baselines if not c.impl.imports]
        return [*(self._by_key[k] for k in (*best, *rest)), *quick]
