"""Both places that keep a run: the events file and the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from workbench.events import EventLog, RunFinished, RunState
from workbench.history import History
from workbench.interrupts import Interrupts
from workbench.plan import Earlier, Plan
from workbench.record import Finding, Outcome, Record, Run


@dataclass
class Store:
    """Both places that keep a run: the events file and the database. Ctrl-C never falls between
    them."""

    history: History
    interrupts: Interrupts
    log: EventLog = field(default_factory=lambda: EventLog(None))
    run: Run | None = None

    def earlier(self, made: Plan) -> Earlier:
        """What is known of a plan's configs and need not be obtained again."""
        keys = [c.key for c in made.candidates]
        phase = "predict" if made.run.predicted else "screen"
        first = {k: o for k, o in self.history.find(keys, phase).items() if _lasting(o)}
        if made.run.predicted:
            return Earlier(first)
        finals = self.history.find([*keys, *(b.key for b in made.baselines)], "final")
        return Earlier(first, finals, self.history.find(keys, "hot"))

    def begin(self, begun: Run, log: EventLog) -> None:
        """The run itself, before its first outcome."""
        self.log, self.run = log, begun
        with self.interrupts.later():
            log.write(begun)
            self.history.add_run(begun)

    def keep(self, found: Outcome) -> None:
        """One outcome, in both places when this returns."""
        with self.interrupts.later():
            self.log.write(found)
            self.history.add(found)

    def keep_finding(self, found: Finding) -> None:
        """What an experiment says, in both places when this returns."""
        with self.interrupts.later():
            self.log.write(found)
            self.history.add_finding(found)

    def whole(self, made: Plan, earlier: Earlier) -> Run | None:
        """The earlier run that holds an outcome for every config of this plan; None where they are
        spread over several."""
        runs = {earlier.first[c.key].run for c in made.candidates}
        if not made.run.predicted:
            runs |= {earlier.final[b.key].run for b in made.baselines if b.key in earlier.final}
        if len(runs) != 1:
            return None
        found = self.history.run(runs.pop())
        same = (found.vary, found.tune) == (made.run.vary, made.run.tune)
        return found if same and self.history.state(found.id) == "complete" else None

    def ceilings(self, earlier: Earlier) -> Mapping[str, Mapping[str, Any]]:
        """Those that were measured for the run that earlier outcomes are of."""
        old = next((o for known in (earlier.final, earlier.first) for o in known.values()), None)
        if old is None:
            return {}
        found = self.history.run(old.run).ceilings
        return {name: found[name] for name in found if name.endswith("_measured")}

    def end(self, state: RunState, counts: Mapping[str, int], seconds: Mapping[str, float]) -> None:
        """How the run ended, and where its seconds went."""
        assert self.run is not None
        with self.interrupts.later():
            self.log.write(RunFinished(_now(), self.run.id, state, dict(counts), dict(seconds)))
            self.history.finish_run(self.run.id, state)


def _lasting(found: Outcome) -> bool:
    """Whether an earlier outcome stands: a process that was lost may not be lost again."""
    return isinstance(found, Record) or found.stage in ("refused", "compile", "check")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
