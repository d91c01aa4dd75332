"""Write a run to both stores: the events file and the database."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.data.clock import timestamp
from workbench.data.database import Entry, History
from workbench.data.events import EventLog, RunFinished, RunState
from workbench.data.interrupts import Interrupts
from workbench.data.record import Run


@dataclass
class Store:
    """The events file and the database of a run. Ctrl-C is deferred until both are written."""

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

    def keep(self, *entries: Entry) -> None:
        """Store entries, those that were obtained at once in one transaction; they are in both
        stores on return. The database comes first, since a run that goes on reads that one: a kill
        between the two costs nothing. Where it cannot be written the events file still has them."""
        with self.interrupts.later():
            try:
                self.history.add(*entries)
            finally:
                for entry in entries:
                    self.log.write(entry)

    def end(self, state: RunState, counts: Mapping[str, int], seconds: Mapping[str, float]) -> None:
        """Store how the run ended, and its seconds by part."""
        assert self.run is not None
        end = RunFinished(timestamp(), self.run.id, state, dict(counts), dict(seconds))
        with self.interrupts.later():
            self.log.write(end)
            self.history.finish_run(self.run.id, state)
