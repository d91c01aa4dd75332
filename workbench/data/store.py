"""Both places that keep a run: the events file and the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.data.clock import timestamp
from workbench.data.database import History
from workbench.data.events import EventLog, RunFinished, RunState
from workbench.data.interrupts import Interrupts
from workbench.data.record import Comparison, Finding, Outcome, Run

Entry = Outcome | Comparison | Finding


@dataclass
class Store:
    """Both places that keep a run: the events file and the database. Ctrl-C never falls between
    them."""

    history: History
    interrupts: Interrupts
    log: EventLog = field(default_factory=lambda: EventLog(None))
    run: Run | None = None

    def begin(self, run: Run) -> None:
        """Store the run itself, before its first outcome."""
        self.run = run
        with self.interrupts.later():
            self.log.write(run)
            self.history.add_run(run)

    def keep(self, entry: Entry) -> None:
        """Store an outcome, a comparison or a finding: in both places when this returns."""
        with self.interrupts.later():
            self.log.write(entry)
            if isinstance(entry, Comparison):
                self.history.add_comparison(entry)
            elif isinstance(entry, Finding):
                self.history.add_finding(entry)
            else:
                self.history.add(entry)

    def end(self, state: RunState, counts: Mapping[str, int], seconds: Mapping[str, float]) -> None:
        """Store how the run ended, and where its seconds went."""
        assert self.run is not None
        end = RunFinished(timestamp(), self.run.id, state, dict(counts), dict(seconds))
        with self.interrupts.later():
            self.log.write(end)
            self.history.finish_run(self.run.id, state)
