"""The database of all runs: SQLite in the user's data folder, or PostgreSQL by its URL.

One row per outcome. Its columns are for searching; the whole outcome is kept beside them as one
line of JSON, so nothing is lost, and the columns can be rebuilt from it.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from workbench.data.environment import environment_id
from workbench.data.events import BadLine, Event, RunFinished, RunState, read
from workbench.data.record import Comparison, Failure, Finding, Outcome, Record, Run, dumps, loads
from workbench.spec import WorkbenchError

if TYPE_CHECKING:
    pass

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

_OUTCOMES = sa.Table(
    "outcomes",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),  # of the payload: no row twice
    sa.Column("key", sa.Text, nullable=False),
    # Not a foreign key: outcomes are kept even when the line of their run was damaged.
    sa.Column("run", sa.Text, nullable=False, index=True),
    sa.Column("kernel", sa.Text, nullable=False),
    sa.Column("impl", sa.Text, nullable=False),
    sa.Column("backend", sa.Text, nullable=False),
    sa.Column("dtype", sa.Text, nullable=False),
    sa.Column("device", sa.Text, nullable=False),
    sa.Column("sizes", sa.JSON, nullable=False),
    sa.Column("config", sa.JSON, nullable=False),
    sa.Column("phase", sa.Text),  # of a record
    sa.Column("stage", sa.Text),  # of a failure
    sa.Column("predicted", sa.Boolean),
    sa.Column("time_s", sa.Double),
    sa.Column("flops", sa.Double),  # an integer in the payload; it may pass 64 bits
    sa.Column("bytes", sa.Double),
    sa.Column("reason", sa.Text),
    sa.Column("at", sa.Text, nullable=False),
    sa.Column("at_epoch_s", sa.Double, nullable=False, index=True),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Index("ix_outcomes_key_at", "key", "at_epoch_s"),
    sa.Index("ix_outcomes_kernel_at", "kernel", "at_epoch_s"),
)

# This and the next table were added later; opening an older database creates them.
_COMPARISONS = sa.Table(
    "comparisons",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    sa.Column("run", sa.Text, nullable=False, index=True),
    sa.Column("kernel", sa.Text, nullable=False, index=True),
    sa.Column("dtype", sa.Text, nullable=False),
    sa.Column("sizes", sa.JSON, nullable=False),
    sa.Column("left_side", sa.Text, nullable=False),
    sa.Column("right_side", sa.Text, nullable=False),
    sa.Column("word", sa.Text),  # None where an operand gave no time
    sa.Column("ratio", sa.Double),  # right over left, in time
    sa.Column("at", sa.Text, nullable=False),
    sa.Column("at_epoch_s", sa.Double, nullable=False, index=True),
    sa.Column("payload", sa.Text, nullable=False),
)

_FINDINGS = sa.Table(
    "findings",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    sa.Column("run", sa.Text, nullable=False, index=True),
    sa.Column("experiment", sa.Text, nullable=False, index=True),
    sa.Column("kernel", sa.Text, nullable=False, index=True),
    sa.Column("dtype", sa.Text, nullable=False),
    sa.Column("sizes", sa.JSON, nullable=False),
    sa.Column("word", sa.Text, nullable=False),
    sa.Column("at", sa.Text, nullable=False),
    sa.Column("at_epoch_s", sa.Double, nullable=False, index=True),
    sa.Column("payload", sa.Text, nullable=False),
)

_BUSY_S = 30  # how long to wait for another process that is writing
_KEYS_AT_ONCE = 500  # SQLite before 3.32 takes 999 parameters a statement


class HistoryError(WorkbenchError):
    """The database cannot be opened, read or written; one sentence, with what to do next."""


class Imported(NamedTuple):
    """Result of `import_events`."""

    kept: int  # runs, outcomes and ends of runs that the history now holds, new or not
    bad: list[BadLine]


@dataclass(frozen=True)
class Row:
    """One outcome as `search` returns it: a time in seconds, or a reason. `commit` and `dirty` are
    of the repository that held the kernel; None if unknown."""

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


def default_url() -> str:
    """Return the URL of the default database. Its folder may not exist yet."""
    from platformdirs import user_data_dir

    path = Path(user_data_dir("kernel-workbench", appauthor=False)) / "history.db"
    return URL.create("sqlite", database=str(path)).render_as_string()


def open_history(url: str | None = None) -> History:
    """Open the database, and create its tables if it is new. Returns the history.

    `url` is SQLAlchemy's, `sqlite:////path/history.db` or `postgresql+psycopg://host/name`; None is
    `default_url()`. Raises HistoryError where it cannot be opened.
    """
    place = _place(url or default_url())
    history = History(_engine(place), _name(place))
    try:
        history._prepare()
    except BaseException:
        history.close()
        raise
    return history


class History:
    """Runs and outcomes in a database; see `open_history`. Every method may raise HistoryError."""

    def __init__(self, engine: sa.Engine, name: str) -> None:
        self._engine = engine
        self._name = name

    def close(self) -> None:
        """Close the connections. Everything is committed already."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Writing

    def add_run(self, run: Run) -> None:
        """Store a run that begins. The same run twice is stored once."""
        with self._writing() as db:
            self._insert_run(db, run)

    def finish_run(self, run_id: str, state: RunState) -> None:
        """Store how a run ended. Raises HistoryError where there is no such run."""
        with self._writing() as db:
            if not _set_state(db, run_id, state):
                raise HistoryError(f"{self._name} holds no run {run_id}; add the run first")

    def add(self, outcome: Outcome) -> None:
        """Store an outcome; it is committed on return. The same outcome twice is stored once."""
        with self._writing() as db:
            _insert_once(db, _OUTCOMES, _outcome_row(outcome))

    def add_comparison(self, result: Comparison) -> None:
        """Store the comparison of two operands of a run; the same twice is stored once."""
        with self._writing() as db:
            _insert_once(db, _COMPARISONS, _comparison_row(result))

    def add_finding(self, result: Finding) -> None:
        """Store the finding of an experiment; the same twice is stored once."""
        with self._writing() as db:
            _insert_once(db, _FINDINGS, _finding_row(result))

    def import_events(self, path: Path | str) -> Imported:
        """Store the events of a file; a second time adds nothing. Returns the count and the bad
        lines.

        All or nothing: a failure half way leaves the database unchanged. Raises EventsError where
        the file cannot be read.
        """
        result = read(path)
        with self._writing() as db:
            kept = sum(self._import(db, event) for event in result.events)
        return Imported(kept, result.bad)

    def _import(self, db: sa.Connection, event: Event) -> bool:
        match event:
            case Run():
                self._insert_run(db, event)
                return True
            case RunFinished():
                return _set_state(db, event.run, event.state)
            case Record() | Failure():
                _insert_once(db, _OUTCOMES, _outcome_row(event))
                return True
            case Comparison():
                _insert_once(db, _COMPARISONS, _comparison_row(event))
                return True
            case Finding():
                _insert_once(db, _FINDINGS, _finding_row(event))
                return True
        return False  # dispatches and steps stay in the events file

    def _insert_run(self, db: sa.Connection, run: Run) -> None:
        row = _run_row(run)
        environment = _environment_row(run, row["environment"])
        _insert_once(db, _ENVIRONMENTS, environment)
        if _insert_once(db, _RUNS, row):
            return
        stored = db.scalar(sa.select(_RUNS.c.payload).where(_RUNS.c.id == run.id))
        if stored != row["payload"]:
            raise HistoryError(
                f"{self._name} holds another run with the id {run.id}; give this one a new id"
            )

    # Reading

    def find(self, keys: Iterable[str], phase: str | None = None) -> dict[str, Outcome]:
        """Return the newest outcome of each key that has one. With a phase, only records of that
        phase count, and failures, which have none: a config that failed need not be tried again."""
        wanted = list(dict.fromkeys(keys))
        results: dict[str, Outcome] = {}
        with self._reading() as db:
            for start in range(0, len(wanted), _KEYS_AT_ONCE):
                query = _newest(wanted[start : start + _KEYS_AT_ONCE], phase)
                results.update((row.key, loads(row.payload)) for row in db.execute(query))
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
        with self._reading() as db:
            return [loads(payload) for payload in db.scalars(query)]

    def run(self, which: str) -> Run:
        """Return the run with this id, or the only one whose id begins so; "last" is the newest.
        Raises HistoryError where there is none or several."""
        query = sa.select(_RUNS.c.id, _RUNS.c.payload).order_by(*_NEWEST_RUN).limit(4)
        if which != "last":
            query = query.where(_RUNS.c.id.startswith(which, autoescape=True))
        with self._reading() as db:
            exact = db.scalar(sa.select(_RUNS.c.payload).where(_RUNS.c.id == which))
            result = db.execute(query).all()
            if exact or (result and which == "last") or len(result) == 1:
                run: Run = loads(exact or result[0].payload)
                return run
        raise HistoryError(self._no_run(which, [row.id for row in result]))

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
        query = sa.select(_OUTCOMES.c.payload).where(_OUTCOMES.c.run == run_id)
        with self._reading() as db:
            return [loads(payload) for payload in db.scalars(query.order_by(_OUTCOMES.c.id))]

    def comparisons(self, run_id: str) -> list[Comparison]:
        """Return all comparisons of a run, in the order in which they were added."""
        query = sa.select(_COMPARISONS.c.payload).where(_COMPARISONS.c.run == run_id)
        with self._reading() as db:
            return [loads(payload) for payload in db.scalars(query.order_by(_COMPARISONS.c.id))]

    def findings(self, run_id: str) -> list[Finding]:
        """Return all findings of a run, in the order in which they were added."""
        query = sa.select(_FINDINGS.c.payload).where(_FINDINGS.c.run == run_id)
        with self._reading() as db:
            return [loads(payload) for payload in db.scalars(query.order_by(_FINDINGS.c.id))]

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
        query = _equal(_ROWS, _OUTCOMES, kernel=kernel, impl=impl, device=device, dtype=dtype)
        if failures_only:
            query = query.where(_OUTCOMES.c.stage.is_not(None))
        if since is not None:
            query = query.where(_OUTCOMES.c.at_epoch_s >= _since(since))
        with self._reading() as db:
            return [Row(**row) for row in db.execute(query.limit(limit)).mappings()]

    # The database

    def _prepare(self) -> None:
        if self._engine.dialect.name == "sqlite":
            self._use_wal()
        with self._writing() as db:
            if self._engine.dialect.name == "postgresql":  # no concurrent creation of tables
                db.execute(sa.select(sa.func.pg_advisory_xact_lock(0x6B776264)))
            tables = set(sa.inspect(db).get_table_names())
            if _SCHEMA.name not in tables:
                self._refuse_foreign(tables)
                _METADATA.create_all(db)
                db.execute(_SCHEMA.insert().values(version=SCHEMA))
            else:
                for later in (_COMPARISONS, _FINDINGS):
                    if later.name not in tables:
                        later.create(db)
            version = db.scalar(sa.select(sa.func.max(_SCHEMA.c.version)))
        if not isinstance(version, int) or version > SCHEMA:
            raise HistoryError(
                f"{self._name} has schema {version}, and this workbench knows schemas up to "
                f"{SCHEMA}; upgrade the workbench, or choose another history"
            )

    def _refuse_foreign(self, tables: set[str]) -> None:
        taken = sorted(tables & set(_METADATA.tables))
        if taken:
            raise HistoryError(
                f"{self._name} has a table {taken[0]!r} that the workbench did not make; "
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
            raise HistoryError(f"cannot {verb} {self._name}: {_reason(error)}") from None

    def _no_run(self, which: str, several: Sequence[str]) -> str:
        if several:
            shown = ", ".join(several[:3]) + (", ..." if len(several) > 3 else "")
            return f"several runs begin with {which!r} ({shown}); give more of the id"
        if which == "last":
            return f"{self._name} holds no run yet; start one, or import an events file"
        return f"{self._name} holds no run {which!r}; list the runs to see their ids"


_NEWEST_RUN = (_RUNS.c.started_epoch_s.desc(), _RUNS.c.id.desc())

_ROWS = (
    sa.select(
        *(
            _OUTCOMES.c[name]
            for name in Row.__dataclass_fields__
            if name not in ("commit", "dirty")
        ),
        _ENVIRONMENTS.c["commit"],
        _ENVIRONMENTS.c.dirty,
    )
    .select_from(
        _OUTCOMES.outerjoin(_RUNS, _RUNS.c.id == _OUTCOMES.c.run).outerjoin(
            _ENVIRONMENTS, _ENVIRONMENTS.c.id == _RUNS.c.environment
        )
    )
    .order_by(_OUTCOMES.c.at_epoch_s.desc(), _OUTCOMES.c.id.desc())
)


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


def _equal(query: sa.Select[Any], table: sa.Table, **wanted: str | None) -> sa.Select[Any]:
    return query.where(*(table.c[name] == v for name, v in wanted.items() if v is not None))


def _insert_once(db: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> bool:
    """Insert a row unless one with the same identity exists. Returns whether it is new."""
    insert = sqlite.insert if db.dialect.name == "sqlite" else postgresql.insert
    return db.execute(insert(table).values(row).on_conflict_do_nothing()).rowcount > 0


def _set_state(db: sa.Connection, run_id: str, state: str) -> bool:
    done = db.execute(_RUNS.update().where(_RUNS.c.id == run_id).values(state=state))
    return done.rowcount > 0


def _environment_row(run: Run, identity: str) -> dict[str, Any]:
    env = run.environment
    return {
        "id": identity,
        "gpu": env.gpu,
        "driver": env.driver,
        "commit": env.commit,
        "dirty": env.dirty,
        "payload": dumps(env),
    }


def _run_row(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "engine": run.engine,
        "name": run.name,
        "kernel": run.kernel,
        "device": run.device,
        "dtype": run.dtype,
        "predicted": run.predicted,
        "started": run.started,
        "started_epoch_s": _epoch(run.started),
        "state": "running",
        "environment": environment_id(run.environment),
        "payload": dumps(run),
    }


def _outcome_row(outcome: Outcome) -> dict[str, Any]:
    case, payload = outcome.case, dumps(outcome)
    record = outcome if isinstance(outcome, Record) else None
    return {
        "digest": hashlib.sha256(payload.encode()).hexdigest(),
        "key": outcome.key,
        "run": outcome.run,
        "kernel": case.kernel,
        "impl": case.impl,
        "backend": case.backend,
        "dtype": case.dtype,
        "device": case.device,
        "sizes": dict(case.sizes),
        "config": dict(case.config),
        "phase": record and record.phase,
        "stage": None if isinstance(outcome, Record) else outcome.stage,
        "predicted": record and not record.measured,
        "time_s": record and record.time_s,
        "flops": record and float(record.flops),
        "bytes": record and float(record.bytes),
        "reason": None if isinstance(outcome, Record) else _storable(outcome.reason),
        "at": outcome.at,
        "at_epoch_s": _epoch(outcome.at),
        "payload": payload,
    }


def _comparison_row(result: Comparison) -> dict[str, Any]:
    payload = dumps(result)
    return {
        "digest": hashlib.sha256(payload.encode()).hexdigest(),
        "run": result.run,
        "kernel": result.kernel,
        "dtype": result.dtype,
        "sizes": dict(result.sizes),
        "left_side": result.left,
        "right_side": result.right,
        "word": result.verdict and result.verdict.word,
        "ratio": result.verdict and result.verdict.time.middle,
        "at": result.at,
        "at_epoch_s": _epoch(result.at),
        "payload": payload,
    }


def _finding_row(result: Finding) -> dict[str, Any]:
    payload = dumps(result)
    return {
        "digest": hashlib.sha256(payload.encode()).hexdigest(),
        "run": result.run,
        "experiment": result.experiment,
        "kernel": result.kernel,
        "dtype": result.dtype,
        "sizes": dict(result.sizes),
        "word": result.word,
        "at": result.at,
        "at_epoch_s": _epoch(result.at),
        "payload": payload,
    }


def _storable(text: str) -> str:
    """Return text without NUL and lone surrogates (of a compiler's broken UTF-8), which databases
    refuse. The payload keeps the original text."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def _epoch(at: str) -> float:
    """Return seconds since 1970, which sort across offsets; 0 if the text cannot be parsed."""
    try:
        when = datetime.fromisoformat(at)
    except ValueError:
        return 0.0
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _since(text: str) -> float:
    if not (seconds := _epoch(text)):
        raise HistoryError(f"{text!r} is not a date; write it as 2026-11-21 or 2026-11-21T09:30")
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


def _engine(place: URL) -> sa.Engine:
    kind, name = place.get_backend_name(), _name(place)
    if kind not in ("sqlite", "postgresql"):
        raise HistoryError(
            f"cannot open {name}: the history is kept in SQLite or PostgreSQL; "
            "begin the URL with sqlite:/// or postgresql+psycopg://"
        )
    try:
        return sa.create_engine(place, pool_pre_ping=True) if kind != "sqlite" else _sqlite(place)
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
        raise HistoryError(f"cannot open {name}: {_first_line(error)}; correct the URL") from None


def _sqlite(place: URL) -> sa.Engine:
    if place.database and not place.database.startswith((":memory:", "file:")):
        Path(place.database).parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(place, connect_args={"timeout": _BUSY_S})
    sa.event.listen(engine, "connect", _set_up_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # Python's own BEGIN leaves CREATE TABLE outside
    connection.execute("PRAGMA foreign_keys=ON")
    # With a write-ahead log NORMAL survives a kill -9; only a power cut can lose the newest rows.
    connection.execute("PRAGMA synchronous=NORMAL")


def _begin_sqlite(db: sa.Connection) -> None:
    """Take the lock at once in a writer: SQLite does not wait for a reader that becomes a
    writer."""
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
    if isinstance(error, ValueError):
        return f"a row is damaged ({_first_line(error)}); import its events file into a new history"
    what = _first_line(getattr(error, "orig", None) or error)
    advice = (then for word, then in _ADVICE if word in what)
    return f"{what}; {next(advice, 'check the URL and the rights to that database')}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__
