"""The database of all runs: SQLite in the user's data folder, or PostgreSQL by its URL.

One row per outcome. Its columns are for searching; the whole outcome is kept beside them as one
line of JSON, so nothing is lost, and the columns can be rebuilt from it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from workbench.data.clock import epoch_of, is_id
from workbench.data.closing import Closing
from workbench.data.environment import environment_id
from workbench.data.errors import first_line
from workbench.data.events import BadLine, Event, RunFinished, RunState, iterate
from workbench.data.files import history_file
from workbench.data.plain import check_fields
from workbench.data.record import (
    Comparison,
    Environment,
    Failure,
    Finding,
    Outcome,
    Profile,
    Record,
    Run,
    decode_plain,
    dumps,
    loads,
)
from workbench.data.returned import ENGINE as BROUGHT_BACK
from workbench.spec import WorkbenchError, sizes_text

SCHEMA = 2  # version that this code writes; a higher one was written by a newer workbench

_METADATA = sa.MetaData()

_SCHEMA = sa.Table(
    "workbench_schema",
    _METADATA,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
)

_ENVIRONMENTS = sa.Table(
    "environments",
    _METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("gpu", sa.Text),
    sa.Column("driver", sa.Text),
    sa.Column("commit", sa.Text),
    sa.Column("dirty", sa.Boolean),
    sa.Column("payload", sa.Text, nullable=False),
)

_RUNS = sa.Table(
    "runs",
    _METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("engine", sa.Text, nullable=False, index=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("kernel", sa.Text, nullable=False, index=True),
    sa.Column("device", sa.Text, nullable=False, index=True),
    sa.Column("dtype", sa.Text, nullable=False),
    sa.Column("predicted", sa.Boolean, nullable=False),
    sa.Column("started", sa.Text, nullable=False),  # as recorded, with its offset
    sa.Column("started_epoch_s", sa.Double, nullable=False, index=True),  # to sort by
    sa.Column("state", sa.Text, nullable=False),  # "running" also when the process was killed
    sa.Column("environment", sa.ForeignKey("environments.id"), nullable=False, index=True),
    sa.Column("payload", sa.Text, nullable=False),
)

_FILTERS = ("kernel", "impl", "device", "dtype", "stage")


def _entries(name: str, *more: Any) -> sa.Table:
    """Return the table of one kind of entries of runs: what all kinds have, and its own columns."""
    return sa.Table(
        name,
        _METADATA,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False, unique=True),  # of the payload: no row twice
        # Not a foreign key: entries are kept even when the line of their run was damaged.
        sa.Column("run", sa.Text, nullable=False, index=True),
        sa.Column("kernel", sa.Text, nullable=False),
        sa.Column("dtype", sa.Text, nullable=False),
        sa.Column("sizes", sa.JSON, nullable=False),
        sa.Column("at", sa.Text, nullable=False),
        sa.Column("at_epoch_s", sa.Double, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        *more,
    )


_OUTCOMES = _entries(
    "outcomes",
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("impl", sa.Text, nullable=False),
    sa.Column("backend", sa.Text, nullable=False),
    sa.Column("device", sa.Text, nullable=False),
    sa.Column("config", sa.JSON, nullable=False),
    sa.Column("phase", sa.Text),  # of a record
    sa.Column("stage", sa.Text),  # of a failure
    sa.Column("predicted", sa.Boolean),
    sa.Column("time_s", sa.Double),
    sa.Column("flops", sa.Double),  # an integer in the payload; it may pass 64 bits
    sa.Column("bytes", sa.Double),
    sa.Column("reason", sa.Text),
    sa.Index("ix_outcomes_key_at", "key", "at_epoch_s"),
    # Each holds all that `search` filters by, so that no row is read that does not match: the
    # payloads make rows long. With all filters in one index, every combination of them is fast.
    sa.Index("ix_outcomes_newest", "at_epoch_s", "id", *_FILTERS),
    sa.Index("ix_outcomes_kernel_newest", "kernel", "at_epoch_s", "id", *_FILTERS[1:]),
    sa.Index(
        "ix_outcomes_failed_newest",
        "at_epoch_s",
        "id",
        *_FILTERS,
        sqlite_where=sa.text("stage IS NOT NULL"),
        postgresql_where=sa.text("stage IS NOT NULL"),
    ),
)

# Indexes that earlier versions made, and that those above replace.
_OBSOLETE = ("ix_outcomes_kernel_at", "ix_outcomes_at_epoch_s")

# This and the next two tables were added later; opening an older database creates them.
_COMPARISONS = _entries(
    "comparisons",
    sa.Column("left_side", sa.Text, nullable=False),
    sa.Column("right_side", sa.Text, nullable=False),
    sa.Column("word", sa.Text),  # None where an operand gave no time
    sa.Column("ratio", sa.Double),  # right over left, in time
)

_FINDINGS = _entries(
    "findings",
    sa.Column("experiment", sa.Text, nullable=False, index=True),
    sa.Column("word", sa.Text, nullable=False),
)

_PROFILES = _entries(  # their kernel is empty for kernels of others
    "profiles",
    sa.Column("impl", sa.Text, nullable=False),
    sa.Column("config", sa.JSON, nullable=False),
    sa.Column("device", sa.Text, nullable=False),
    sa.Column("tool", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),  # of the kernel in the file
    sa.Column("launch", sa.Text, nullable=False),
    sa.Column("launches", sa.Integer, nullable=False),
    sa.Column("duration_s", sa.Double),  # of all launches, while a profiler watched
)

# The kinds of entries, in the order in which they are added.
Entry = Record | Failure | Comparison | Finding | Profile
_KINDS: tuple[tuple[sa.Table, Any], ...] = (
    (_OUTCOMES, (Record, Failure)),
    (_COMPARISONS, Comparison),
    (_FINDINGS, Finding),
    (_PROFILES, Profile),
)

_BUSY_S = 120  # how long to wait for another process that is writing: a backup took 45 s
_RUNS_AT_ONCE = 50
_KEYS_AT_ONCE = 500  # SQLite before 3.32 takes 999 parameters a statement
_BATCH = 500  # events of an import that are added in one transaction
_MANY_BAD = 100  # lines of a file whose faults are kept: more than anybody reads


class HistoryError(WorkbenchError):
    """The database cannot be opened, read or written; one sentence, with what to do next."""


class Imported(NamedTuple):
    """Result of `import_events`."""

    total: int  # runs, outcomes and ends of runs that the history now holds, new or not
    bad: list[BadLine]  # the first _MANY_BAD of them
    unreadable: int  # how many lines were bad


@dataclass(frozen=True)
class Row:
    """One outcome as `search` returns it: a time in seconds, or a reason. `commit` and `dirty` are
    of the repository that held the kernel; None if unknown, as for operands of a comparison."""

    at: str
    run: str
    kernel: str
    impl: str
    backend: str
    dtype: str
    device: str
    sizes: Mapping[str, int]
    config: Mapping[str, int]
    phase: str | None
    stage: str | None
    predicted: bool | None
    time_s: float | None
    flops: float | None
    bytes: float | None
    reason: str | None
    commit: str | None
    dirty: bool | None
    registers: int | None = None  # a thread's; None where nothing was compiled
    spill_bytes: int | None = None
    low_s: float | None = None  # of the 95 % interval of a measured time
    high_s: float | None = None


@dataclass(frozen=True)
class OldRuns:
    """Runs that `History.delete` would delete, and how much with them."""

    runs: tuple[str, ...]  # ids
    oldest: str = ""  # when the first and the last of them began
    newest: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)  # rows by table
    orphans: int = 0  # outcomes of runs that are not stored
    orphans_before_s: float = 0.0
    kept_runs: int = 0  # runs that stay
    needed_runs: int = 0  # of these, runs that would go if nothing else needed them


@dataclass(frozen=True)
class RunFacts:
    """A run without its options: when it began, in seconds since 1970, and its environment."""

    id: str
    started_s: float
    environment: Environment


class BestTime(NamedTuple):
    """The shortest time of an Impl in one run, in seconds, and the row of the database."""

    id: int
    run: str
    kernel: str
    impl: str
    sizes: str  # `M=4096,N=4096`
    dtype: str
    device: str
    time_s: float


def default_url() -> str:
    """Return the URL of the default database. Its folder may not exist yet."""
    return URL.create("sqlite", database=str(history_file())).render_as_string()


def open_history(url: str | None = None, reading: bool = False) -> History:
    """Open the database, and create its tables and indexes if they are missing. Returns the
    history.

    `url` is SQLAlchemy's, `sqlite:////path/history.db` or `postgresql+psycopg://host/name`; None is
    `default_url()`. With `reading` nothing is created or written and no lock is waited for; a
    database that does not exist yet is then an empty one, and one on a read-only disk can be read.
    Raises HistoryError where it cannot be opened.
    """
    place = _place(url or default_url())
    history = History(_engine(place, reading), _name(place), reading)
    try:
        history._prepare()
    except BaseException:
        history.close()
        raise
    return history


class History(Closing):
    """Runs and outcomes in a database; see `open_history`. Every method may raise HistoryError.

    A damaged row is left out of what a method returns, and `damaged` counts it.
    """

    def __init__(self, engine: sa.Engine, name: str, reading: bool = False) -> None:
        self._engine = engine
        self.name = name  # in messages, without a password: `the history /folder/history.db`
        self._reading_only = reading
        self._absent: frozenset[str] = frozenset()  # tables of later versions, when only reading
        self.damaged = 0
        self.exists = True  # False if there is none yet, and an empty one is read in its place

    def close(self) -> None:
        """Close the connections. Everything is committed already."""
        self._engine.dispose()

    # Writing

    def add_run(self, run: Run) -> None:
        """Store a run that begins. The same run twice is stored once."""
        with self._writing() as db:
            self._insert_run(db, run)

    def finish_run(self, run_id: str, state: RunState) -> None:
        """Store how a run ended. Raises HistoryError where there is no such run."""
        with self._writing() as db:
            if not _set_state(db, run_id, state):
                raise HistoryError(f"{self.name} holds no run {run_id}; add the run first")

    def add(self, *entries: Entry) -> None:
        """Store entries of runs in one transaction; it is committed on return. The same entry twice
        is stored once."""
        with self._writing() as db:
            self._import(db, entries)

    def import_events(self, path: Path | str) -> Imported:
        """Store the events of a file; a second time adds nothing. Returns the count and the bad
        lines.

        Nothing is added if a run of the file has the id of another run. The events are then added
        in batches, so that other processes can write between them; what a full disk interrupts,
        the next import completes. Raises EventsError where the file cannot be read.
        """
        for event in iterate(path, word=b'"Run"'):
            if isinstance(event, Run):
                self._refuse_another(event)
        stored, unreadable = 0, 0
        bad: list[BadLine] = []
        for some in _batches(iterate(path), _BATCH):
            lines = [each for each in some if isinstance(each, BadLine)]
            unreadable += len(lines)
            bad = [*bad, *lines][:_MANY_BAD]
            with self._writing() as db:
                stored += self._import(db, [e for e in some if not isinstance(e, BadLine)])
        return Imported(stored, bad, unreadable)

    def import_run(self, events: Sequence[Event]) -> int:
        """Store the events of one run in one transaction; a second time adds nothing. Returns how
        many of them the history now holds. Raises HistoryError where another run has its id."""
        with self._writing() as db:
            return self._import(db, events)

    def _refuse_another(self, run: Run) -> None:
        """Raise HistoryError where a run of an events file is another one of its id, or one that
        comes with a checksum alone."""
        if run.engine == BROUGHT_BACK:
            raise HistoryError(
                "a run of metal_shim.bring_back comes with a checksum: load the finished "
                "results_*.jsonl.gz"
            )
        with self._reading() as db:
            stored = db.scalar(sa.select(_RUNS.c.payload).where(_RUNS.c.id == run.id))
        if stored is not None and stored != dumps(run):
            raise self._another(run.id)

    def _another(self, run_id: str) -> HistoryError:
        return HistoryError(
            f"{self.name} holds another run with the id {run_id}; give this one a new id"
        )

    def _import(self, db: sa.Connection, events: Sequence[Event]) -> int:
        """Add some events; dispatches and steps stay in the events file. Returns how many the
        database now holds."""
        count = 0
        for run in (e for e in events if isinstance(e, Run)):
            self._insert_run(db, run)
            count += 1
        for table, kinds in _KINDS:
            rows = [_entry_row(table, e) for e in events if isinstance(e, kinds)]
            if rows:
                _insert_new(db, table, rows)
                count += len(rows)
        for end in (e for e in events if isinstance(e, RunFinished)):
            count += _set_state(db, end.run, end.state)
        return count

    def _insert_run(self, db: sa.Connection, run: Run) -> None:
        row = _run_row(run)
        environment = {**vars(run.environment), "payload": dumps(run.environment)}
        environment["id"] = row["environment"]
        _insert_new(db, _ENVIRONMENTS, [_table_row(_ENVIRONMENTS, environment)])
        if _insert_new(db, _RUNS, [row]):
            return
        stored = db.scalar(sa.select(_RUNS.c.payload).where(_RUNS.c.id == run.id))
        if stored != row["payload"]:
            raise self._another(run.id)

    # Reading

    def find(self, keys: Iterable[str], phase: str | None = None) -> dict[str, Outcome]:
        """Return the newest outcome of each key that has one. With a phase, only records of that
        phase count, and failures, which have none: a config that failed need not be tried again."""
        results: dict[str, Outcome] = {}
        with self._reading() as db:
            for some in _batches(dict.fromkeys(keys), _KEYS_AT_ONCE):
                for row in db.execute(_newest(some, phase)):
                    if (outcome := self._load(row.payload, (Record, Failure))) is not None:
                        results[row.key] = outcome
        return results

    def runs(
        self,
        kernel: str | None = None,
        engine: str | None = None,
        device: str | None = None,
        limit: int = 50,
    ) -> list[Run]:
        """Return the runs that match, the newest first."""
        query = sa.select(_RUNS.c.payload).order_by(*_NEWEST_RUN).limit(limit)
        query = _equal(query, _RUNS, kernel=kernel, engine=engine, device=device)
        return self._all(query, Run)

    def newest_runs(self) -> Iterator[Run]:
        """Yield all runs, the newest first; the database is read a page at a time."""
        query = sa.select(_RUNS.c.payload).order_by(*_NEWEST_RUN).limit(_RUNS_AT_ONCE)
        for start in itertools.count(0, _RUNS_AT_ONCE):
            with self._reading() as db:
                payloads = list(db.scalars(query.offset(start)))
            for payload in payloads:
                if (run := self._load(payload, Run)) is not None:
                    yield run
            if len(payloads) < _RUNS_AT_ONCE:
                return

    def run(self, which: str) -> Run:
        """Return the run with this id, or the only one whose id begins so; "last" is the newest.
        Raises HistoryError where there is none or several, or where its row is damaged."""
        query = sa.select(_RUNS.c.id, _RUNS.c.payload).order_by(*_NEWEST_RUN).limit(4)
        if which != "last":
            query = query.where(_RUNS.c.id.startswith(which, autoescape=True))
        with self._reading() as db:
            exact = db.scalar(sa.select(_RUNS.c.payload).where(_RUNS.c.id == which))
            result = db.execute(query).all()
        if exact is None and which != "last" and len(result) > 1:
            raise HistoryError(self._no_run(which, [str(row.id) for row in result]))
        for payload in [row.payload for row in result] if exact is None else [exact]:
            if (run := self._load(payload, Run)) is not None:
                return cast(Run, run)
        if exact is not None or result:
            raise HistoryError(
                f"the row of the run {which} in {self.name} is damaged; import its events file "
                "into a new history"
            )
        raise HistoryError(self._no_run(which, []))

    def stored_run(self, run_id: str) -> Run | None:
        """Return the run with this id; None where there is none, as outcomes are kept without their
        run, or where its row is damaged."""
        query = sa.select(_RUNS.c.payload).where(_RUNS.c.id == run_id)
        return next(iter(self._all(query, Run)), None)

    def state(self, run_id: str) -> str:
        """Return "complete", "interrupted" or "failed"; "running" also if the process was killed.
        Raises HistoryError where there is no such run."""
        with self._reading() as db:
            state = db.scalar(sa.select(_RUNS.c.state).where(_RUNS.c.id == run_id))
        if state is None:
            raise HistoryError(self._no_run(run_id, []))
        return str(state)

    def outcomes(self, run_id: str) -> list[Outcome]:
        """Return all outcomes of a run, in the order in which they were added."""
        return self._entries_of_run(_OUTCOMES, run_id)

    def comparisons(self, run_id: str) -> list[Comparison]:
        """Return all comparisons of a run, in the order in which they were added."""
        return self._entries_of_run(_COMPARISONS, run_id)

    def findings(self, run_id: str) -> list[Finding]:
        """Return all findings of a run, in the order in which they were added."""
        return self._entries_of_run(_FINDINGS, run_id)

    def profiles(self, run_id: str) -> list[Profile]:
        """Return all profiles of a run, in the order in which they were added."""
        return self._entries_of_run(_PROFILES, run_id)

    def _entries_of_run(self, table: sa.Table, run_id: str) -> list[Any]:
        if table.name in self._absent:
            return []
        query = sa.select(table.c.payload).where(table.c.run == run_id).order_by(table.c.id)
        return self._all(query, dict(_KINDS)[table])

    def run_facts(self) -> dict[str, RunFacts]:
        """Return what all runs have in common, by id. One without an environment that can be read
        is left out and counted."""
        query = sa.select(_ENVIRONMENTS.c.id, _ENVIRONMENTS.c.payload)
        columns = (_RUNS.c.id, _RUNS.c.started_epoch_s, _RUNS.c.environment)
        with self._reading() as db:
            loaded = {row.id: self._load(row.payload, Environment) for row in db.execute(query)}
            rows = db.execute(sa.select(*columns)).all()
        runs = {}
        for run, started_s, environment in rows:
            environment_facts = loaded.get(environment)
            if environment_facts is not None and isinstance(started_s, (int, float)) and is_id(run):
                runs[run] = RunFacts(run, float(started_s), environment_facts)
            elif environment_facts is not None:  # a damaged environment is counted already
                self.damaged += 1
        return runs

    def timed_records(self, phases: Sequence[str]) -> Iterator[Record]:
        """Yield the measured records of these phases in the order in which they were stored, each
        with its first sample alone. A few are held at a time."""
        words = [word for phase in phases for word in _phases(phase)]
        query = sa.select(_OUTCOMES.c.payload).where(_OUTCOMES.c.phase.in_(words))
        query = query.where(_OUTCOMES.c.predicted.is_(False)).order_by(_OUTCOMES.c.id)
        yield from self._stream_records(query)

    def timed_by_id(self, ids: Sequence[int]) -> Iterator[Record]:
        """Yield the measured records of these rows, each with its first sample alone."""
        for some in _batches(ids, _KEYS_AT_ONCE):
            query = sa.select(_OUTCOMES.c.payload).where(_OUTCOMES.c.id.in_(some))
            yield from self._stream_records(query.order_by(_OUTCOMES.c.id))

    def _stream_records(self, query: sa.Select[Any]) -> Iterator[Record]:
        with self._reading() as db:
            streamed = db.execution_options(stream_results=True, yield_per=_BATCH)
            for payload in streamed.scalars(query):
                record = self._load(payload, Record, _drop_samples)
                if record is not None:
                    yield record

    def best_times(self, phase: str) -> list[BestTime]:
        """Return the shortest time of each Impl in each run and for each problem, in one phase,
        from the columns alone. Rows that cannot be read are left out and counted."""
        columns = _OUTCOMES.c
        problem = (columns.run, columns.kernel, columns.impl, columns.sizes, columns.dtype)
        raw = [sa.type_coerce(c, sa.types.NullType()).label(c.name) for c in problem]
        best = sa.func.min(sa.type_coerce(columns.time_s, sa.types.NullType()))
        query = sa.select(columns.id, *raw, columns.device, best.label("time_s"))
        query = query.where(columns.phase.in_(_phases(phase)), columns.time_s > 0)
        if self._engine.dialect.name == "sqlite":  # where `id` is of the row with the least time
            query = query.group_by(*problem, columns.device)
        else:
            query = query.group_by(columns.id)
        with self._reading() as db:
            rows = [_best_time(row) for row in db.execute(query)]
        self.damaged += rows.count(None)
        kept: dict[tuple[object, ...], BestTime] = {}
        for row in rows:
            if row is not None:
                key = (row.run, row.kernel, row.impl, row.sizes, row.dtype, row.device)
                kept[key] = min(kept.get(key, row), row, key=lambda r: r.time_s)
        return list(kept.values())

    def search(
        self,
        kernel: str | None = None,
        impl: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        since: str | None = None,
        failures_only: bool = False,
        limit: int = 50,
    ) -> list[Row]:
        """Return the outcomes that match, the newest first. `since` is an ISO 8601 date or time,
        UTC unless it has an offset."""
        query = _equal(_PICKED, _OUTCOMES, kernel=kernel, impl=impl, device=device, dtype=dtype)
        if failures_only:
            query = query.where(_OUTCOMES.c.stage.is_not(None))
        if since is not None:
            query = query.where(_OUTCOMES.c.at_epoch_s >= epoch_s(since))
        with self._reading() as db:
            result = db.execute(_rows_of(query.limit(limit))).mappings()
            rows = [_row(dict(row)) for row in result]
        self.damaged += rows.count(None)
        return [row for row in rows if row is not None]

    # Deleting

    def old_runs(
        self,
        before_s: float | None,
        keep: int = 0,
        kernel: str | None = None,
        device: str | None = None,
        needed: Container[str] = (),
    ) -> OldRuns:
        """Return the runs that began before a moment (None: any), without the newest `keep` of
        those that match, those `needed`, the newest complete ceilings of each device, and those
        that may still run because they began in the last day. Deletes nothing."""
        query = sa.select(_RUNS.c.id, _RUNS.c.started, _RUNS.c.started_epoch_s, _RUNS.c.state)
        query = query.add_columns(_RUNS.c.engine, _RUNS.c.device).order_by(*_NEWEST_RUN)
        with self._reading() as db:
            every = db.execute(_equal(query, _RUNS, kernel=kernel, device=device)).all()
            old = [r for r in every[keep:] if before_s is None or _began(r) < before_s]
            busy = _ceilings_in_use(every) | {r.id for r in old if r.id in needed}
            busy |= {r.id for r in old if r.state == "running" and time.time() - _began(r) < 86400}
            going = [r for r in old if r.id not in busy]
            ids = tuple(r.id for r in going)
            orphans = 0
            if before_s is not None and kernel is None and device is None:
                orphans = db.scalar(sa.select(sa.func.count()).where(_orphan_clause(before_s))) or 0
            return OldRuns(
                ids,
                str(going[-1].started) if going else "",
                str(going[0].started) if going else "",
                {table.name: _count(db, table, ids) for table in _RUN_TABLES},
                orphans,
                before_s or 0.0,
                len(every) - len(going),
                len(old) - len(going),
            )

    def delete(self, old: OldRuns) -> None:
        """Delete runs with all that was stored of them, some at a time so that other processes can
        write between, and give the space back."""
        for ids in _batches(old.runs, _BATCH):
            with self._writing() as db:
                for table in _RUN_TABLES:
                    db.execute(table.delete().where(table.c.run.in_(ids)))
                db.execute(_RUNS.delete().where(_RUNS.c.id.in_(ids)))
        with self._writing() as db:
            if old.orphans:
                db.execute(_OUTCOMES.delete().where(_orphan_clause(old.orphans_before_s)))
            used = sa.select(_RUNS.c.environment)
            unused = db.execute(_ENVIRONMENTS.delete().where(_ENVIRONMENTS.c.id.not_in(used)))
        if not (old.runs or old.orphans or unused.rowcount):
            return  # a million outcomes take half a minute to compact
        with self._guard("compact"), self._engine.connect() as connection:
            _compact(connection)

    @property
    def is_read_only(self) -> bool:
        """Return whether its file or folder cannot be written to."""
        return "mode" in self._engine.url.query

    def problems(self) -> list[str]:
        """Return what the database itself finds wrong with its file, a sentence each; empty if it
        finds nothing or is a server, which checks its own."""
        if self._engine.dialect.name != "sqlite":
            return []
        with self._reading() as db:
            lines = db.exec_driver_sql("PRAGMA integrity_check(20)").scalars().all()
        return [str(line) for line in lines if line != "ok"]

    def _all(self, query: sa.Select[Any], kinds: Any) -> list[Any]:
        """Return the objects of the payloads that can be read."""
        with self._reading() as db:
            loaded = [self._load(payload, kinds) for payload in db.scalars(query)]
        return [each for each in loaded if each is not None]

    def _load(self, payload: object, kinds: Any, load: Callable[[str], Any] | None = None) -> Any:
        """Return the object of a payload, by `loads` if no other function is given; None, and count
        it, if it is damaged."""
        try:
            result = check_fields((load or loads)(payload)) if isinstance(payload, str) else None
        except (ValueError, TypeError, RecursionError, ArithmeticError, AttributeError):
            result = None
        if isinstance(result, kinds):
            return result
        self.damaged += 1
        return None

    # The database

    def _prepare(self) -> None:
        """Create what is missing, under a lock; when only reading, note what is missing."""
        if self._reading_only:
            with self._reading() as db:
                tables = set(sa.inspect(db).get_table_names())
                if _SCHEMA.name in tables:
                    self._refuse_newer(db)
            if _SCHEMA.name in tables:
                self._absent = frozenset(set(_METADATA.tables) - tables)
            else:
                self._refuse_foreign(tables)
                self._read_an_empty_one()
            return
        if self._engine.dialect.name == "sqlite":
            self._use_wal()
        with self._reading() as db:
            whole = _is_whole(db)
            if whole:
                self._refuse_newer(db)
        if not whole:
            self._migrate()

    def _migrate(self) -> None:
        """Create the tables of a new database, or those tables and indexes that an older version
        did not make."""
        with self._writing() as db:
            if self._engine.dialect.name == "postgresql":  # no concurrent creation of tables
                db.execute(sa.select(sa.func.pg_advisory_xact_lock(0x6B776264)))
            tables = set(sa.inspect(db).get_table_names())
            if _SCHEMA.name not in tables:
                self._refuse_foreign(tables)
                _METADATA.create_all(db)
                db.execute(_SCHEMA.insert().values(version=SCHEMA))
                return
            self._refuse_newer(db)
            _METADATA.create_all(db)  # tables that are missing
            indexes = _index_names(db)
            for index in sorted(_OUTCOMES.indexes, key=lambda i: str(i.name)):
                if index.name not in indexes:
                    index.create(db)
            for name in sorted(indexes.intersection(_OBSOLETE)):
                db.execute(sa.text(f"DROP INDEX {name}"))

    def _read_an_empty_one(self) -> None:
        """Read an empty database in memory in place of one that is not there yet."""
        self.exists = False
        self._engine.dispose()
        self._engine = _sqlite(URL.create("sqlite"), reading=False)
        with self._engine.begin() as db:
            _METADATA.create_all(db)

    def _refuse_newer(self, db: sa.Connection) -> None:
        version = db.scalar(sa.select(sa.func.max(_SCHEMA.c.version)))
        if not isinstance(version, int) or version > SCHEMA:
            raise HistoryError(
                f"{self.name} has schema {version}, and this workbench knows schemas up to "
                f"{SCHEMA}; upgrade the workbench, or choose another history"
            )

    def _refuse_foreign(self, tables: set[str]) -> None:
        taken = sorted(tables & set(_METADATA.tables))
        if taken:
            raise HistoryError(
                f"{self.name} has a table {taken[0]!r} that the workbench did not make; "
                "choose an empty database"
            )

    def _use_wal(self) -> None:
        """Switch SQLite to write-ahead logging: readers and one writer at once. SQLite reports
        "locked" here without waiting when two processes open a new file together, hence the loop.
        """
        deadline = time.monotonic() + _BUSY_S
        with self._guard("open"):
            while True:
                try:
                    with self._engine.connect() as db:
                        db.connection.driver_connection.execute("PRAGMA journal_mode=WAL")  # type: ignore[union-attr]
                    return
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error) or time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        if self._reading_only:
            raise HistoryError(f"{self.name} was opened to be read; open it without `reading`")
        with self._guard("write"), self._engine.execution_options(writes=True).begin() as db:
            yield db

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._guard("read"), self._engine.connect() as db:
            yield db

    @contextmanager
    def _guard(self, verb: str) -> Iterator[None]:
        try:
            yield
        # sqlite3.Error: from statements that bypass SQLAlchemy. ValueError: a damaged payload.
        except (SQLAlchemyError, sqlite3.Error, ValueError) as error:
            raise HistoryError(f"cannot {verb} {self.name}: {_reason(error)}") from None

    def _no_run(self, which: str, several: Sequence[str]) -> str:
        if several:
            shown = ", ".join(several[:3]) + (", ..." if len(several) > 3 else "")
            return f"several runs begin with {which!r} ({shown}); give more of the id"
        if which == "last":
            return f"{self.name} holds no run yet; start one, or import an events file"
        return f"{self.name} holds no run {which!r}; list the runs to see their ids"


_NEWEST_RUN = (_RUNS.c.started_epoch_s.desc(), _RUNS.c.id.desc())

_NEWEST_OUTCOME = (_OUTCOMES.c.at_epoch_s.desc(), _OUTCOMES.c.id.desc())

# Which outcomes `search` returns: an index alone holds the whole result.
_PICKED = sa.select(_OUTCOMES.c.id).order_by(*_NEWEST_OUTCOME)


def _rows_of(picked: sa.Select[Any]) -> sa.Select[Any]:
    """Return the query of the rows that another query picks by their ids. Values come as they are
    stored: a damaged one must not end the query."""
    held = [name for name in Row.__dataclass_fields__ if name in _OUTCOMES.c]
    columns: dict[str, Any] = {name: _OUTCOMES.c[name] for name in held}
    for name in ("commit", "dirty"):  # a comparison's operand may come from another commit
        own = _RUNS.c.engine.not_in(("compare", "gate", "bisect"))
        columns[name] = sa.case((own, _ENVIRONMENTS.c[name]))
    columns["payload"] = _OUTCOMES.c.payload
    ids = picked.subquery()
    query: Any = (
        sa.select(*(sa.type_coerce(c, sa.types.NullType()).label(n) for n, c in columns.items()))
        .select_from(
            ids.join(_OUTCOMES, _OUTCOMES.c.id == ids.c.id)
            .outerjoin(_RUNS, _RUNS.c.id == _OUTCOMES.c.run)
            .outerjoin(_ENVIRONMENTS, _ENVIRONMENTS.c.id == _RUNS.c.environment)
        )
        .order_by(*_NEWEST_OUTCOME)
    )
    return cast("sa.Select[Any]", query)


def _row(values: dict[str, Any]) -> Row | None:
    """Return a row of `search`; None if a value is not what it must be."""
    try:
        for name in ("sizes", "config"):
            if isinstance(values[name], str):
                values[name] = json.loads(values[name])
        for name in ("predicted", "dirty"):
            if values[name] in (0, 1):
                values[name] = bool(values[name])
        values |= _payload_fields(values.pop("payload"))
        return cast(Row, check_fields(Row(**values)))
    except (ValueError, TypeError, RecursionError):
        return None


_PAYLOAD_FIELDS = {"resources": ("registers", "spill_bytes"), "timing": ("low_s", "high_s")}


def _payload_fields(payload: Any) -> dict[str, Any]:
    """Return registers, spills and the interval that the payload of an outcome holds, as far as it
    holds them."""
    try:
        whole = json.loads(payload)
        parts = [(whole.get(part) or {}, names) for part, names in _PAYLOAD_FIELDS.items()]
        return {name: values[name] for values, names in parts for name in names if name in values}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _best_time(row: Any) -> BestTime | None:
    """Return a row of `best_times`; None if a value is not what it must be."""
    try:
        sizes = json.loads(row.sizes) if isinstance(row.sizes, str) else row.sizes
        names = (row.kernel, row.impl, row.dtype, row.device)
        whole = all(isinstance(n, int) and n >= 0 for n in sizes.values())
        fits = whole and all(isinstance(n, str) and n.isprintable() for n in (*names, *sizes))
        if not (fits and is_id(row.run) and 0 < row.time_s < math.inf):
            return None
        return BestTime(row.id, row.run, *names[:2], sizes_text(sizes), *names[2:], row.time_s)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _drop_samples(payload: str) -> Any:
    """Return the record of a payload with its first sample alone: checking thousands of samples
    takes most of the time of reading it."""
    plain = json.loads(payload)
    timing = plain.get("timing") if isinstance(plain, dict) else None
    for name, length in (("samples_s", 1), ("window_sizes", 0), ("window_mhz", 0)):
        if isinstance(timing, dict) and isinstance(timing.get(name), list):
            timing[name] = timing[name][:length]
    return decode_plain(plain)


# Tables whose rows belong to a run.
_RUN_TABLES = tuple(table for table, _ in _KINDS)


def _compact(connection: sa.Connection) -> None:
    """Give the space of deleted rows back; neither database does so inside a transaction."""
    if connection.dialect.name == "sqlite":
        plain: Any = connection.connection.driver_connection
        plain.execute("VACUUM")
        plain.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    else:
        connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM")


def _orphan_clause(before_s: float) -> sa.ColumnElement[bool]:
    return sa.and_(_OUTCOMES.c.at_epoch_s < before_s, _OUTCOMES.c.run.not_in(sa.select(_RUNS.c.id)))


def _ceilings_in_use(newest_first: Sequence[Any]) -> set[str]:
    """Return each device's newest complete run of `ceilings`, which pages and experiments take."""
    by_device: dict[str, str] = {}
    for run in newest_first:
        if run.engine == "ceilings" and run.state == "complete":
            by_device.setdefault(run.device, run.id)
    return set(by_device.values())


def _began(run: Any) -> float:
    """Return when a run began, in seconds since 1970; of a damaged row never, so that it stays."""
    began = run.started_epoch_s
    return float(began) if isinstance(began, (int, float)) else math.inf


def _count(db: sa.Connection, table: sa.Table, runs: Sequence[str]) -> int:
    some = _batches(runs, _BATCH)
    counts = (sa.select(sa.func.count()).where(table.c.run.in_(ids)) for ids in some)
    return sum(db.scalar(query) or 0 for query in counts)


def _is_whole(db: sa.Connection) -> bool:
    """Return whether every table and index is there, and none that was replaced."""
    tables = set(sa.inspect(db).get_table_names())
    if not set(_METADATA.tables) <= tables:
        return False
    indexes = _index_names(db)
    return {str(i.name) for i in _OUTCOMES.indexes} <= indexes and not indexes & set(_OBSOLETE)


def _index_names(db: sa.Connection) -> set[str]:
    return {str(index["name"]) for index in sa.inspect(db).get_indexes(_OUTCOMES.name)}


def _batches(each: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(each)
    while some := list(islice(rest, size)):
        yield some


def _phases(phase: str) -> tuple[str, ...]:
    """Return the words for a phase in this schema and in schema 1."""
    return (phase, "screen") if phase == "first_pass" else (phase,)


def _newest(keys: Sequence[str], phase: str | None) -> sa.Select[Any]:
    newest_first = (_OUTCOMES.c.at_epoch_s.desc(), _OUTCOMES.c.id.desc())
    rank = sa.func.row_number().over(partition_by=_OUTCOMES.c.key, order_by=newest_first)
    ranked = sa.select(_OUTCOMES.c.id, rank.label("rank")).where(_OUTCOMES.c.key.in_(keys))
    if phase is not None:
        ranked = ranked.where(
            sa.or_(_OUTCOMES.c.phase.in_(_phases(phase)), _OUTCOMES.c.stage.is_not(None))
        )
    # The payloads, which hold all samples, are read for the newest only.
    best = ranked.subquery()
    return (
        sa.select(_OUTCOMES.c.key, _OUTCOMES.c.payload)
        .join(best, best.c.id == _OUTCOMES.c.id)
        .where(best.c.rank == 1)
    )


def _equal(query: sa.Select[Any], table: sa.Table, **columns: str | None) -> sa.Select[Any]:
    return query.where(*(table.c[name] == v for name, v in columns.items() if v is not None))


def _insert_new(db: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Insert the rows of which none with the same identity exists, in one statement for all.
    Returns whether the only one is new."""
    insert = sqlite.insert if db.dialect.name == "sqlite" else postgresql.insert
    return db.execute(insert(table).on_conflict_do_nothing(), list(rows)).rowcount > 0


def _set_state(db: sa.Connection, run_id: str, state: str) -> bool:
    done = db.execute(_RUNS.update().where(_RUNS.c.id == run_id).values(state=state))
    return done.rowcount > 0


def _run_row(run: Run) -> dict[str, Any]:
    values = {**vars(run), "environment": environment_id(run.environment), "payload": dumps(run)}
    values |= {"started_epoch_s": epoch_of(run.started), "state": "running"}
    return _table_row(_RUNS, values)


# Columns whose names in the entry are others.
_NAMES = {"left_side": "left", "right_side": "right", "launches": "count", "duration_s": "total_s"}


def _entry_row(table: sa.Table, entry: Any) -> dict[str, Any]:
    """Return the row of an entry: the columns of its table, from its own fields and its case."""
    payload = dumps(entry)
    values = {**(vars(entry.case) if isinstance(entry, (Record, Failure)) else {}), **vars(entry)}
    if isinstance(entry, Record):
        values |= {"predicted": not entry.is_measured, "time_s": entry.time_s}
        values |= {"flops": float(entry.flops), "bytes": float(entry.bytes)}
    elif isinstance(entry, Comparison) and (verdict := entry.verdict):
        values |= {"word": verdict.word, "ratio": verdict.time.middle}
    values |= {"digest": hashlib.sha256(payload.encode()).hexdigest(), "payload": payload}
    values["at_epoch_s"] = epoch_of(entry.at)
    values |= {column: values.get(name) for column, name in _NAMES.items()}
    stored = {n: dict(v) if isinstance(v, Mapping) else v for n, v in values.items()}
    return _table_row(table, stored)


def _table_row(table: sa.Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a table's columns; without an id the database makes one. Texts hold no
    NUL and no lone surrogates (of a compiler's broken UTF-8), which databases refuse. The payload,
    in ASCII, keeps the original text."""
    names = [column.name for column in table.c if column.name != "id" or "id" in values]
    return {
        name: value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
        if isinstance(value := values.get(name), str)
        else value
        for name in names
    }


def epoch_s(
    text: str, named: str = "", example: str = "it as 2026-11-21 or 2026-11-21T09:30"
) -> float:
    """Return seconds since 1970 of an ISO 8601 date, UTC unless it has an offset. Raises
    HistoryError, which calls the text `named`."""
    if not (seconds := epoch_of(text)):
        raise HistoryError(f"{named or repr(text)} is not a date; write {example}")
    return seconds


# Opening


def _place(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # the text is not repeated, as it may hold a password
        raise HistoryError(
            "the history's URL cannot be understood; write sqlite:////folder/history.db or "
            "postgresql+psycopg://user@host/database"
        ) from None


def _name(place: URL) -> str:
    if place.get_backend_name() == "sqlite":
        return f"the history {place.database or 'in memory'}"
    return f"the history {place.render_as_string(hide_password=True)}"


def _engine(place: URL, reading: bool = False) -> sa.Engine:
    kind, name = place.get_backend_name(), _name(place)
    if kind not in ("sqlite", "postgresql"):
        raise HistoryError(
            f"cannot open {name}: the history is kept in SQLite or PostgreSQL; "
            "begin the URL with sqlite:/// or postgresql+psycopg://"
        )
    try:
        if kind == "sqlite":
            return _sqlite(place, reading)
        return sa.create_engine(place, pool_pre_ping=True)
    except OSError as error:
        what = (error.strerror or "refused").lower()
        raise HistoryError(
            f"cannot open {name}: its folder cannot be made ({what}); choose another folder"
        ) from None
    except ModuleNotFoundError as error:
        raise HistoryError(
            f"cannot open {name}: the Python package {error.name} is missing; install it "
            "(pip install 'psycopg[binary]')"
        ) from None
    except (SQLAlchemyError, TypeError, ValueError) as error:
        raise HistoryError(
            f"cannot open {name}: {first_line(error).rstrip('.')}; correct the URL"
        ) from None


def _sqlite(place: URL, reading: bool) -> sa.Engine:
    path = None
    if place.database and not place.database.startswith((":memory:", "file:")):
        path = Path(place.database)
        _refuse_irregular(path, _name(place))
        if reading:
            place = _reading_url(place, path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            _refuse_read_only(path, _name(place))
    engine = sa.create_engine(place, connect_args={"timeout": _BUSY_S})
    sa.event.listen(engine, "connect", _set_up_sqlite)
    if reading:
        sa.event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA query_only=ON"))
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _refuse_irregular(path: Path, name: str) -> None:
    """Raise HistoryError for a FIFO or a device, which SQLite would wait for or write into."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # not there yet; NUL in the name
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise HistoryError(f"cannot open {name}: it is not a regular file; choose a file")


def _refuse_read_only(path: Path, name: str) -> None:
    """Raise HistoryError where nothing can be written: before a run, not at its first outcome."""
    if path.is_file() and not (_writable(path) and _writable(path.parent)):
        raise HistoryError(
            f"cannot write {name}: it is read-only; choose a file in a folder that you may write to"
        )


def _reading_url(place: URL, path: Path) -> URL:
    """Return the URL that reads a database: in memory where there is none yet; without any lock or
    file beside it where nothing can be written."""
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return URL.create("sqlite")
    if _writable(path) and _writable(path.parent):
        return place
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size and not _writable(path.parent):
        raise HistoryError(
            f"cannot read {_name(place)}: its newest rows are in {log.name}, which needs a folder "
            "that you may write to; copy both files there"
        )
    how = {"mode": "ro"} if _writable(path.parent) else {"mode": "ro", "immutable": "1"}
    named = f"file:{quote(str(path.absolute()))}"
    return URL.create("sqlite", database=named, query={**how, "uri": "true"})


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK)


def _set_up_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # Python's own BEGIN leaves CREATE TABLE outside
    connection.text_factory = lambda text: text.decode("utf-8", "replace")  # of a damaged row
    connection.execute("PRAGMA foreign_keys=ON")
    # With a write-ahead log NORMAL survives a kill -9; only a power cut can lose the newest rows.
    connection.execute("PRAGMA synchronous=NORMAL")


def _begin_sqlite(db: sa.Connection) -> None:
    """Take the lock at once in a writer: SQLite waits for no reader that becomes a writer."""
    writes = db.get_execution_options().get("writes")
    db.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


_ADVICE: tuple[tuple[str, str], ...] = (
    ("not a database", "move that file away, and import the events files into a new history"),
    ("malformed", "move that file away, and import the events files into a new history"),
    ("unable to open", "choose a file in a folder that you may write to"),
    ("readonly", "choose a file in a folder that you may write to"),
    ("disk I/O error", "check the disk, or choose another folder"),
    ("full", "free some space, then run the same command again"),
    ("locked", f"another process has held it for {_BUSY_S} s: try again when it has ended"),
    ("connect", "check that the server runs and that the URL names it rightly"),
)


def _reason(error: Exception) -> str:
    what = first_line(getattr(error, "orig", None) or error).strip().rstrip(".")
    if isinstance(error, ValueError):
        return f"a row is damaged ({what}); import its events file into a new history"
    advice = (then for word, then in _ADVICE if word in what)
    return f"{what}; {next(advice, 'check the URL and the rights to that database')}"
