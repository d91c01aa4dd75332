"""Try the configs of one kernel, refuse wrong answers, time what is right:
`python -m workbench.sweep tile_size`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from workbench.backend.protocol import Backend, Candidate, Measures
from workbench.data.record import Outcome, Record
from workbench.tuner.finals import Finals, Step
from workbench.tuner.first_pass import Compilation, FirstPass, SearchPlan
from workbench.tuner.space import Earlier, Plan


@dataclass
class TimeBreakdown:
    """Where a sweep's wall time went, in seconds. `compile` is not part of it: that ran beside."""

    seconds: dict[str, float] = field(default_factory=dict)
    configs_per_minute: float | None = None  # from the start to the complete table
    _spent: dict[str, float] = field(default_factory=dict)  # on this side before
    _begun: float = field(default_factory=time.monotonic)

    def begin(self, backend: Backend) -> None:
        """Another problem is ready to be swept."""
        self._spent, self._begun = dict(backend.spent), time.monotonic()
        self.seconds, self.configs_per_minute = {}, None

    def table(self, counts: Mapping[str, int], started: float) -> None:
        """Every config has been tried."""
        tried = sum(counts[k] for k in ("measured", "wrong", "failed") if k in counts)
        if self.configs_per_minute is None and "compiled" in counts:
            self.configs_per_minute = 60 * tried / (time.monotonic() - started)

    def end(self, backend: Backend, wait_s: float, started: float) -> None:
        """`start`: until the first config could be tried; `wait`: the GPU waited for the compiler;
        `check`; `timed`: between the clock's two readings; `flush`: made ready, flushed the cache,
        settled the clock; `idle`: the rest, in which outcomes were stored."""
        now = time.monotonic()
        spent = {k: v - self._spent.get(k, 0.0) for k, v in backend.spent.items()}
        results = {"start": self._begun - started, "wait": wait_s, **spent}
        results["idle"] = max(0.0, now - started - sum(results.values()))
        self.seconds = results


class Engine:
    """One sweep under way. `first` is what will be compiled first, `outcomes` the sweep itself."""

    def __init__(self, plan: Plan, backend: Backend, earlier: Earlier, search: SearchPlan) -> None:
        self._plan, self._backend, self._earlier = plan, backend, earlier
        self._known: dict[str, Outcome] = {
            c.key: replace(old, run=plan.run.id, default=c.default)
            for c in plan.candidates
            if (old := earlier.first.get(c.key)) is not None
        }
        self._first_pass = FirstPass(plan, backend, self._known, search)

    @property
    def first(self) -> list[Candidate]:
        """What is compiled first; empty when all is known."""
        return self._first_pass.first

    @property
    def wait_s(self) -> float:
        """How long the GPU had nothing to do because nothing was compiled yet."""
        return self._first_pass.wait_s

    @property
    def finished(self) -> bool:
        """Whether all is known, so that nothing has to be obtained."""
        if self.first:
            return False
        return self._backend.predicts or not self._first_pass_records() or bool(self._old_finals())

    def outcomes(self) -> Iterator[Outcome | Compilation | Step]:
        """Every outcome as soon as it is known. A config that fails is an outcome, not an end.

        What was known comes first, marked as of this run, and is not obtained again.
        """
        yield from self._plan.refused
        yield from list(self._known.values())
        for result in self._first_pass.outcomes():
            if not isinstance(result, Compilation):
                self._known[result.key] = result
            yield result
        if not self._backend.predicts and (first_pass := self._first_pass_records()):
            old = self._old_finals()
            measures = cast(Measures, self._backend)  # it does not predict
            yield from old or Finals(self._plan, measures, self._earlier, first_pass).outcomes()

    def _first_pass_records(self) -> list[Record]:
        """Records of the screen, fastest first."""
        results = [
            o
            for o in self._known.values()
            if isinstance(o, Record) and o.phase == "first_pass" and o.same_as is None
        ]
        return sorted(results, key=lambda r: r.time_s)

    def _old_finals(self) -> list[Outcome]:
        """An earlier final with its hot time, where it stands for this sweep too: it is of one run,
        holds the default and every baseline, and that run knew all of this screen, or its final
        holds the screen's best. (The race may have found others faster than the screen's best.)"""
        first_pass, finals = self._first_pass_records(), self._earlier.final
        best = first_pass[0].key
        sure = [r.key for r in first_pass if r.default] + [b.key for b in self._plan.baselines]
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
        return [replace(o, run=self._plan.run.id) for o in ours]


def run(
    plan: Plan, backend: Backend, earlier: Earlier, search: SearchPlan | None = None
) -> Iterator[Outcome | Compilation | Step]:
    """A whole sweep: see `Engine.outcomes`."""
    return Engine(plan, backend, earlier, search or SearchPlan()).outcomes()
