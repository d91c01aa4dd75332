"""Both places that keep a run: the events file and the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from workbench.data.database import History
from workbench.data.events import EventLog, RunFinished, RunState
from workbench.data.interrupts import Interrupts
from workbench.data.record import Finding, Outcome, Run


@dataclass
class Store:
    """Both places that keep a run: the events file and the database. Ctrl-C never falls between
    them."""

    history: History
    interrupts: Interrupts
    log: EventLog = field(default_factory=lambda: EventLog(None))
    run: Run | None = None

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

    def end(self, state: RunState, counts: Mapping[str, int], seconds: Mapping[str, float]) -> None:
        """How the run ended, and where its seconds went."""
        assert self.run is not None
        with self.interrupts.later():
            self.log.write(RunFinished(_now(), self.run.id, state, dict(counts), dict(seconds)))
            self.history.finish_run(self.run.id, state)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
