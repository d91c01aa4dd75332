"""The database at its limits: read without writing, migrated, indexed, pruned, checked."""

import os
import pty
import sqlite3
import time
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
import synthetic

from workbench import cli
from workbench.data import database as module
from workbench.data.database import HistoryError, open_history
from workbench.data.events import EventLog, RunFinished
from workbench.data.record import Comparison, Finding

pytestmark = pytest.mark.unit

MADE, OUTCOMES = synthetic.softmax()
RUN = replace(MADE, id="r1", kernel="matmul")
RECORD = replace(OUTCOMES[1], run="r1", case=replace(OUTCOMES[1].case, kernel="matmul"))
FAILURE = replace(synthetic.failure(RUN, OUTCOMES[0], "compile", "out of memory"), run="r1")

# A PostgreSQL server takes the same tests where they are of no file: see test_history.py.
SERVER = os.environ.get("WORKBENCH_TEST_DATABASE")


@pytest.fixture(params=["sqlite", *(["server"] if SERVER else [])])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'h.db'}"
    engine = sa.create_engine(SERVER)
    module._METADATA.drop_all(engine)
    engine.dispose()
    return SERVER


@pytest.fixture
def place(tmp_path):
    """A database in a folder of its own, with one run."""
    path = tmp_path / "disk" / "h.db"
    with open_history(f"sqlite:///{path}") as history:
        history.add_run(RUN)
        history.add(RECORD)
        history.add(FAILURE)
    return path


def snapshot(folder):
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}


# Reading


def test_reading_needs_no_lock_and_changes_nothing(place, monkeypatch):
    monkeypatch.setattr(module, "_BUSY_S", 0.1)
    before = place.read_bytes()
    with closing(sqlite3.connect(place, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with open_history(f"sqlite:///{place}", reading=True) as history:
            assert history.outcomes("r1") == [RECORD, FAILURE]
            with pytest.raises(HistoryError, match="opened to be read"):
                history.add(RECORD)
        with open_history(f"sqlite:///{place}") as history:  # nothing is missing, so no lock
            assert history.run("last") == RUN
        writer.execute("ROLLBACK")
    assert place.read_bytes() == before


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_read_only_disk_can_be_read(place, monkeypatch, capsys, what):
    """Permission bits do not bind root, so the system's word is put in its place."""
    monkeypatch.setattr(module, "_writable", lambda p: p != (place if what == "file" else p))
    before = snapshot(place.parent)
    assert cli.main(["history", "--database", f"sqlite:///{place}"]) == 0
    assert "matmul" in capsys.readouterr().out
    if what == "folder":
        assert snapshot(place.parent) == before


def test_a_run_does_not_begin_with_a_database_that_takes_no_outcome(place, monkeypatch):
    monkeypatch.setattr(module, "_writable", lambda path: False)
    with pytest.raises(HistoryError, match="it is read-only; choose a file"):
        open_history(f"sqlite:///{place}")


def test_newest_rows_that_a_read_only_disk_hides_are_told(place, monkeypatch):
    monkeypatch.setattr(module, "_writable", lambda path: False)
    place.with_name("h.db-wal").write_bytes(b"rows")
    with pytest.raises(HistoryError, match=r"newest rows are in h\.db-wal.*copy both files"):
        open_history(f"sqlite:///{place}", reading=True)


@pytest.mark.parametrize("there", [False, True], ids=["absent", "empty"])
def test_a_database_that_is_not_there_is_read_as_an_empty_one(tmp_path, capsys, there):
    path = tmp_path / "none" / "h.db" if not there else tmp_path / "h.db"
    if there:
        path.touch()
    assert cli.main(["history", "--database", f"sqlite:///{path}"]) == 0
    assert "Nothing in the history matches" in capsys.readouterr().out
    assert [p.stat().st_size for p in tmp_path.iterdir()] == ([0] if there else [])


@pytest.mark.parametrize("kind", ["fifo", "device"])
@pytest.mark.parametrize("command", [["history"], ["history", "--prune", "--keep", "1"]])
def test_what_is_no_file_is_one_sentence(tmp_path, capsys, kind, command):
    path = "/dev/null"
    if kind == "fifo":
        os.mkfifo(path := str(tmp_path / "fifo"))
    assert cli.main([*command, "--database", f"sqlite:///{path}"]) == 2
    assert "it is not a regular file" in capsys.readouterr().err


# Older databases


def older(place):
    """As the version before this one left it: without the tables and indexes that came later."""
    with closing(sqlite3.connect(place)) as db:
        for name in ("newest", "kernel_newest", "failed_newest"):
            db.execute(f"drop index ix_outcomes_{name}")
        db.execute("create index ix_outcomes_kernel_at on outcomes (kernel, at_epoch_s)")
        db.execute("create index ix_outcomes_at_epoch_s on outcomes (at_epoch_s)")
        db.execute("drop table findings")
        db.commit()


def names_of(place):
    with closing(sqlite3.connect(place)) as db:
        return {name for (name,) in db.execute("select name from sqlite_master")}


def test_an_older_database_is_read_as_it_is_and_migrated_by_the_next_writer(place):
    whole = names_of(place)
    older(place)
    before = names_of(place)
    with open_history(f"sqlite:///{place}", reading=True) as history:
        assert history.outcomes("r1") == [RECORD, FAILURE] and history.findings("r1") == []
        assert len(history.search(failures_only=True)) == 1
    assert names_of(place) == before
    open_history(f"sqlite:///{place}").close()
    assert names_of(place) == whole


# Indexes

FILTERS = {
    "": {}, "kernel": {"kernel": "k"}, "impl": {"impl": "i"}, "device": {"device": "d"},
    "dtype": {"dtype": "t"}, "failures": {"failures_only": True}, "since": {"since": "2026-11-21"},
    "all": {"kernel": "k", "impl": "i", "device": "d", "dtype": "t", "failures_only": True},
}  # fmt: skip


@pytest.mark.parametrize("name", FILTERS)
def test_each_filter_reads_an_index_alone(place, name):
    """A row is read only if it is shown: rows are long, and a million of them took 90 s."""
    statements = []
    with open_history(f"sqlite:///{place}") as history:
        sa.event.listen(
            history._engine, "before_cursor_execute",
            lambda db, cursor, statement, given, *_: statements.append((statement, given)),
        )  # fmt: skip
        history.search(**FILTERS[name])
        query, given = next(s for s in statements if s[0].startswith("SELECT"))
        with history._reading() as db:
            plan = db.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", given)
            steps = [row[-1] for row in plan]
    picking = next(s for s in steps if "outcomes" in s and "USING" in s)
    assert "USING COVERING INDEX ix_outcomes_" in picking, steps
    assert not any(s.startswith("SCAN outcomes") and "COVERING" not in s for s in steps), steps
    expected = {"kernel": "kernel_newest", "failures": "failed_newest", "all": "kernel_newest"}
    assert f"ix_outcomes_{expected.get(name, 'newest')}" in picking


# Importing


def test_an_import_lets_other_writers_in_between_its_batches(tmp_path, url, monkeypatch):
    path = tmp_path / "e.jsonl"
    with EventLog(path) as log:
        log.write(RUN)
        for n in range(10):
            log.write(replace(RECORD, key=f"k{n}"))
        log.write(RunFinished(RUN.started, "r1", "complete", {}))
    monkeypatch.setattr(module, "_BATCH", 4)
    real, sizes = module._batches, []
    with open_history(url) as history, open_history(url) as other:

        def batches(each, size):
            for some in real(each, size):
                other.add(replace(RECORD, key=f"other{len(sizes)}"))
                sizes.append(len(some))
                yield some

        monkeypatch.setattr(module, "_batches", batches)
        assert history.import_events(path).total == 12
        assert sizes == [4, 4, 4] and history.state("r1") == "complete"
        keys = [o.key for o in history.outcomes("r1") if o.key.startswith("k")]
        assert keys == [f"k{n}" for n in range(10)]


# Pruning


def days_ago(days):
    return (datetime.now(UTC) - timedelta(days=days)).isoformat()


AGES = {"new": 1, "month": 30, "old": 100, "older": 200, "live": 0.1}


@pytest.fixture
def aged(url, tmp_path, monkeypatch):
    """Runs of several ages, each with an outcome, a comparison and a finding."""
    monkeypatch.setattr("workbench.data.tuned_cache.default_path", lambda: tmp_path / "t.json")
    with open_history(url) as history:
        for name, days in AGES.items():
            env = replace(RUN.environment, commit=name)
            at = days_ago(days)
            history.add_run(replace(RUN, id=name, started=at, environment=env))
            history.add(replace(RECORD, run=name, at=at))
            history.add(Comparison(name, at, "matmul", {}, "bf16", "a", "b", "k1", "k2", None))
            history.add(Finding(name, at, "x", "matmul", {}, "bf16", "w", "It is."))
            if name != "live":
                history.finish_run(name, "complete")
        history.add(replace(RECORD, run="nobody", at=days_ago(300)))
    return url


def pruned(url_, capsys, *words):
    code = cli.main(["history", "--prune", *words, "--database", url_])
    with open_history(url_, reading=True) as history:
        left = [r.id for r in history.runs()]
        for name in AGES:
            counts = {len(history.outcomes(name)), len(history.comparisons(name)),
                      len(history.findings(name))}  # fmt: skip
            assert counts == {int(name in left)}, "a run goes whole"
        with history._reading() as db:
            commits = set(db.scalars(sa.text('select "commit" from environments')))
        assert commits == set(left)
    text = capsys.readouterr()
    return code, left, text.out + text.err


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (("--older-than", "90d"), ["live", "new", "month"]),
        (("--older-than", "2w"), ["live", "new"]),
        (("--older-than", "9999d"), ["live", "new", "month", "old", "older"]),
        (("--keep", "2"), ["live", "new"]),
        (("--keep", "0"), ["live"]),
        (("--older-than", "90d", "--keep", "4"), ["live", "new", "month", "old"]),
        (("matmul", "--keep", "4"), ["live", "new", "month", "old"]),
        (("--device", MADE.device, "--older-than", "150d"), ["live", "new", "month", "old"]),
    ],
)
def test_what_is_pruned(aged, capsys, words, left):
    code, kept, text = pruned(aged, capsys, *words, "--yes")
    assert (code, kept) == (0, left)
    gone = len(AGES) - len(left)
    assert f"To delete: {gone} runs (" in text or "Nothing to delete" in text or not gone
    assert f"{len(left)} runs stay" in text


def test_outcomes_of_no_run_go_by_their_own_age(aged, capsys):
    pruned(aged, capsys, "--older-than", "90d", "--yes")
    with open_history(aged, reading=True) as history:
        assert history.outcomes("nobody") == []


def test_runs_that_are_needed_stay(aged, capsys, tmp_path):
    """Those of tuned configs, and the newest ceilings of a device."""
    from workbench.data.tuned_cache import write
    from workbench.tuner.tuned import entries_of

    write(
        tmp_path / "t.json", [replace(e, run="older") for e in entries_of(*synthetic.matmul(), {})]
    )
    with open_history(aged) as history:
        for name, days in (("ceilings-1", 300), ("ceilings-2", 400)):
            history.add_run(
                replace(RUN, id=name, engine="ceilings", started=days_ago(days),
                        environment=replace(RUN.environment, commit=name))
            )  # fmt: skip
            history.finish_run(name, "complete")
    code, left, text = pruned(aged, capsys, "--older-than", "90d", "--yes")
    assert (code, left) == (0, ["live", "new", "month", "older", "ceilings-1"])
    assert "(2 of them since a tuned config or the newest ceilings" in text


def test_nothing_goes_without_a_yes(aged, capsys, monkeypatch):
    every = ["live", "new", "month", "old", "older"]
    code, left, text = pruned(aged, capsys, "--keep", "1")
    assert (code, left) == (2, every) and "add --yes" in text
    for reply, expected in ((b"n\n", every), (b"\n", every), (b"yes\n", ["live"])):
        ours, theirs = pty.openpty()
        os.write(ours, reply)
        with os.fdopen(theirs) as terminal:
            monkeypatch.setattr("sys.stdin", terminal)
            code, left, text = pruned(aged, capsys, "--keep", "1")
        os.close(ours)
        assert left == expected and code == (0 if reply == b"yes\n" else 2)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--prune"], "needs --older-than"),
        (["--older-than", "90d"], "belong to --prune"),
        (["--prune", "--older-than", "soon"], "--older-than soon is not a date"),
        (["--prune", "--keep", "1", "--failures"], "deletes whole runs"),
        (["--prune", "--keep", "-1"], "Invalid value for '--keep'"),
    ],
)
def test_what_cannot_be_pruned_is_one_sentence(words, text, tmp_path, capsys):
    assert cli.main(["history", *words, "--database", f"sqlite:///{tmp_path / 'h.db'}"]) == 2
    assert text in capsys.readouterr().err


def test_the_space_is_given_back(place):
    with open_history(f"sqlite:///{place}") as history:
        for n in range(300):
            history.add(replace(FAILURE, key=str(n), reason="long " * 500))
        size = place.stat().st_size
        history.delete(history.old_runs(time.time()))
        assert place.stat().st_size < size / 4
        assert history.runs() == [] and history.problems() == []


# Damage


@pytest.mark.parametrize("column", ["started", "started_epoch_s", "state", "engine", "payload"])
@pytest.mark.parametrize("odd", ["\x1b[2J", b"\xff", 5])
def test_a_damaged_run_ends_no_pruning(place, capsys, tmp_path, monkeypatch, column, odd):
    monkeypatch.setattr("workbench.data.tuned_cache.default_path", lambda: tmp_path / "t.json")
    with closing(sqlite3.connect(place)) as db:
        db.execute(f"update runs set {column} = ?", (odd,))
        db.commit()
    words = ["history", "--prune", "--older-than", "2026-12-31", "--yes"]
    assert cli.main([*words, "--database", f"sqlite:///{place}"]) == 0
    text = capsys.readouterr()
    assert "\x1b" not in text.out and text.err == ""


def test_the_doctor_checks_the_file_itself(place):
    from workbench.commands.doctor import _database

    with open_history(f"sqlite:///{place}") as history:
        for n in range(200):
            history.add(replace(FAILURE, key=str(n), reason="long " * 50))
    assert _database(f"sqlite:///{place}").ok
    whole = bytearray(place.read_bytes())
    for page in range(8, len(whole) // 4096, 3):
        whole[page * 4096 : page * 4096 + 200] = os.urandom(200)
    place.write_bytes(whole)
    check = _database(f"sqlite:///{place}")
    assert check.ok is False and check.remedy and "\n" not in check.result


def test_a_row_of_search_is_what_was_stored(place):
    with open_history(f"sqlite:///{place}") as history:
        first = asdict(history.search()[-1])
    assert first["sizes"] == dict(RECORD.case.sizes) and first["predicted"] is False
    assert first["dirty"] is RUN.environment.dirty


def test_space_is_given_back_only_where_something_was_deleted(tmp_path, monkeypatch):
    """A million outcomes take half a minute to compact."""
    compacted = []
    monkeypatch.setattr("workbench.data.database._compact", compacted.append)
    run, outcomes = synthetic.softmax()
    with open_history(f"sqlite:///{tmp_path / 'h.db'}") as history:
        history.add_run(run)
        history.add(*outcomes[:1])
        history.finish_run(run.id, "complete")
        history.delete(history.old_runs(0.0))
        assert not compacted and history.stored_run(run.id)
        history.delete(history.old_runs(time.time()))
        assert len(compacted) == 1 and not history.stored_run(run.id)
