"""Try the configs of one kernel, reject wrong results, time the correct ones: `python -m
workbench.sweep tile_size`."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from workbench.backend.protocol import Backend, Measures
from workbench.data.energy import energy_of
from workbench.data.record import Finding, Outcome, Record
from workbench.data.selection import representatives
from workbench.measurement.candidate import Candidate
from workbench.tuner.finals import Finals, Step
from workbench.tuner.first_pass import Dispatch, FirstPass, SearchPlan
from workbench.tuner.space import Earlier, Plan
from workbench.tuner.stopped import stopped_search


@dataclass
class TimeBreakdown:
    """Wall time of a sweep by part, in seconds. `compile` is not a part of it, since it runs in
    parallel."""

    seconds: dict[str, float] = field(default_factory=dict)
    configs_per_minute: float | None = None  # from the start to the complete table
    _seconds: dict[str, float] = field(default_factory=dict)  # by the backend before this problem
    _start_s: float = field(default_factory=time.monotonic)

    def begin(self, backend: Backend) -> None:
        """Start the breakdown of another problem."""
        self._seconds, self._start_s = dict(backend.seconds), time.monotonic()
        self.seconds, self.configs_per_minute = {}, None

    def table(self, counts: Mapping[str, int], started: float) -> None:
        """Compute the configs per minute, once every config has been tried."""
        tried = sum(counts[k] for k in ("measured", "wrong", "failed") if k in counts)
        if self.configs_per_minute is None and "compiled" in counts:
            self.configs_per_minute = 60 * tried / (time.monotonic() - started)

    def end(self, backend: Backend, wait_s: float, started: float) -> None:
        """Compute the seconds of each part: `start`: until the first config could be tried; `wait`:
        the GPU waited for the compiler; `check`; `timed`: between the clock's two readings;
        `flush`: preparing, flushing the cache, settling the clock; `idle`: the rest, in which
        outcomes were stored."""
        now = time.monotonic()
        spent = {k: v - self._seconds.get(k, 0.0) for k, v in backend.seconds.items()}
        results = {"start": self._start_s - started, "wait": wait_s, **spent}
        results["idle"] = max(0.0, now - started - sum(results.values()))
        self.seconds = results


class Engine:
    """Run one sweep. `first` is the batch that is compiled first, `outcomes` the sweep itself."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        earlier: Earlier,
        search: SearchPlan,
        energy: bool = False,
        sanitize: bool = False,
    ) -> None:
        """Plan the sweep. With `energy`, the joules of the finalists are measured too; with
        `sanitize`, compute-sanitizer has to accept them."""
        self.plan = plan
        self._backend, self._earlier = backend, earlier
        self._energy, self._sanitize, self._search = energy, sanitize, search
        self._outcomes = self._earlier_outcomes(earlier)
        self._first_pass = FirstPass(plan, backend, self._outcomes, search, earlier.chance_left)

    def _earlier_outcomes(self, earlier: Earlier) -> dict[str, Outcome]:
        return {
            c.key: replace(old, run=self.plan.run.id, default=c.default)
            for c in self.plan.candidates
            if (old := earlier.first.get(c.key)) is not None
        }

    def look_again(self, earlier: Earlier) -> int:
        """Take over the outcomes that another process stored after the sweep was planned, for
        instance while this one waited for the GPU. To be called before `outcomes`. Returns the
        number of configs that are known now and were not."""
        outcomes = self._earlier_outcomes(earlier)
        new = {key: outcome for key, outcome in outcomes.items() if key not in self._outcomes}
        self._outcomes |= new
        self._earlier = replace(earlier, previous_best=self._earlier.previous_best)
        self._first_pass.skip(new, earlier.chance_left)
        return len(new)

    @property
    def first(self) -> list[Candidate]:
        """Candidates that are compiled first; empty if every outcome is known."""
        return self._first_pass.first

    @property
    def wait_s(self) -> float:
        """Seconds in which the GPU was idle because nothing was compiled yet."""
        return self._first_pass.wait_s

    @property
    def is_finished(self) -> bool:
        """Whether every outcome is known, so that nothing has to be compiled or measured."""
        if self.first:
            return False
        return self._backend.predicts or not self._first_pass_records() or bool(self._old_finals())

    def outcomes(self) -> Iterator[Outcome | Dispatch | Step | Finding]:
        """Yield every outcome as soon as it is known. A config that fails is an outcome and ends
        nothing. Where the search stopped since going on cannot pay, a finding says so.

        Known outcomes come first, marked as of this run, and are not obtained again.
        """
        if not (self._backend.predicts or self.is_finished):
            cast(Measures, self._backend).begin_libraries()
        yield from self.plan.failures
        yield from list(self._outcomes.values())
        for result in self._first_pass.outcomes():
            if not isinstance(result, tuple):
                self._outcomes[result.key] = result
            yield result
        chance, tried = self._first_pass.chance_left, len(self._outcomes)
        if chance is not None and self._search.stop_rule and tried < len(self.plan.candidates):
            yield stopped_search(self.plan, tried, chance, self._search.stop_rule.share)
        if not self._backend.predicts and (first_pass := self._first_pass_records()):
            old = self._old_finals()
            measures = cast(Measures, self._backend)  # it does not predict
            finals = Finals(
                self.plan,
                measures,
                self._earlier,
                first_pass,
                self._energy,
                self._sanitize,
                self._search.libraries_s,
            )
            yield from old or finals.outcomes()

    def _first_pass_records(self) -> list[Record]:
        """Return a record of the first pass for each machine code that was timed, fastest
        first."""
        outcomes = self._outcomes.values()
        records = [o for o in outcomes if isinstance(o, Record) and o.phase == "first_pass"]
        chosen = representatives(self.plan.run, records, self.plan.launches)
        return sorted(chosen, key=lambda r: r.time_s)

    def _old_finals(self) -> list[Outcome]:
        """Return the records of an earlier final benchmark, with its hot time, if they are valid
        for this sweep too: they are of one run, include today's launches and every quick library,
        and that run either knew all of this first pass or its final benchmark includes the fastest
        of this first pass. (The halving may have found others faster than that one.)"""
        if self._sanitize:
            return []  # they are not known to have been accepted
        first_pass, finals = self._first_pass_records(), self._earlier.final
        best = first_pass[0].key
        sure = [r.key for r in first_pass if r.default or r.key in self.plan.launches]
        sure += [b.key for b in self.plan.baselines if not b.impl.imports]
        known = [self._earlier.first[r.key] for r in first_pass if r.key in self._earlier.first]
        runs = {o.run for o in known}
        if best in finals:
            runs = {finals[best].run}
        old = [o for key in sure if isinstance(o := finals.get(key), Record)]
        if len(runs) != 1 or len(known) != len(first_pass) or len(old) != len(sure):
            return []
        held = (*finals.values(), *self._earlier.hot.values())
        ours = [o for o in held if isinstance(o, Record) and o.run in runs]
        if not ours or not {o.run for o in old} <= runs:
            return []
        if self._energy and any(o.phase == "final" and energy_of(o) is None for o in ours):
            return []  # their times are known, their energy is not
        return [replace(o, run=self.plan.run.id) for o in ours]


def run(
    plan: Plan, backend: Backend, earlier: Earlier, search: SearchPlan | None = None
) -> Iterator[Outcome | Dispatch | Step | Finding]:
    """Run a whole sweep. Returns an iterator: see `Engine.outcomes`."""
    return Engine(plan, backend, earlier, search or SearchPlan()).outcomes()
