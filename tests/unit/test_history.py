"""The history: what is added is found again, by any process, and every fault has a sentence."""

import io
import os
import random
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from rich.console import Console

import workbench
from workbench.commands.history import (
    HEADINGS,
    HistoryOptions,
    fitting_widths,
    history_table,
    show_history,
)
from workbench.data import database as module
from workbench.data.database import (
    SCHEMA,
    History,
    HistoryError,
    default_url,
    open_history,
)
from workbench.data.environment import environment_id
from workbench.data.events import EventLog, EventsError, OpCompleted, RunFinished
from workbench.data.record import (
    Case,
    Environment,
    Failure,
    Measured,
    Predicted,
    Record,
    Run,
    dumps,
    loads,
)
from workbench.data.units import console_duration

ROOT = Path(workbench.__file__).parents[1]
AT = "2026-11-21T09:30:00+01:00"
CASE = Case(
    "matmul", "tiles", "triton", {"block_m": 128, "num_warps": 8}, {"M": 64}, "bf16", "h200"
)
CLOCK = Measured(1.5e-5, 1.4e-5, 1.6e-5, (1.4e-5, 1.5e-5, 1.6e-5), "cold", "events", "p1")
MODEL = Predicted(1.25e-3, "m1", 9e-6, 1e-6, 1e-6, 1e-7, 1e-6, "compute")
RECORD = Record(CASE, "k1", "r1", AT, "first_pass", CLOCK, 10, 20, "gpu", 0.25)
FAILURE = Failure(CASE, "k2", "r1", AT, "compile", "out of shared memory")
ENVIRONMENT = Environment(
    "NVIDIA H200", "570.1", 1 << 37, 700.0, "unknown", 0, "Linux 6.1", "cpu", "3.11.7",
    {"torch": "2.13.0"}, {}, "c0ffee1234567890", True,
)  # fmt: skip
RUN = Run(
    id="r1",
    engine="sweep",
    name="tile_size",
    command="workbench sweep tile_size",
    started=AT,
    kernel="matmul",
    sizes={"M": 64},
    dtype="bf16",
    device="h200",
    predicted=False,
    vary=("tile",),
    tune=(),
    impls={"tiles": {"knobs": {"block_m": "tile"}}},
    ceilings={},
    environment=ENVIRONMENT,
)


def at(minute: int, offset: str = "+00:00") -> str:
    return f"2026-11-21T10:{minute:02d}:00{offset}"


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


# A PostgreSQL server takes the same tests: WORKBENCH_TEST_DATABASE=postgresql+psycopg://.../name,
# whose tables are dropped.
SERVER = os.environ.get("WORKBENCH_TEST_DATABASE")


@pytest.fixture(params=["sqlite", *(["server"] if SERVER else [])])
def url(request, tmp_path):
    if request.param == "sqlite":
        return url_of(tmp_path / "made" / "h.db")
    engine = sa.create_engine(SERVER)
    module._METADATA.drop_all(engine)
    engine.dispose()
    return SERVER


@pytest.fixture
def history(url):
    with open_history(url) as opened:
        yield opened


# What is added is found again


def test_a_run_and_its_outcomes_come_back_equal_and_in_order(history):
    history.add_run(RUN)
    outcomes = [RECORD, FAILURE, replace(RECORD, key="k0", timing=MODEL, at=at(0, "+09:00"))]
    for outcome in outcomes:
        history.add(outcome)
    assert history.run("r1") == RUN
    assert history.outcomes("r1") == outcomes
    assert history.outcomes("r2") == []


def test_it_is_still_there_after_closing(url):
    with open_history(url) as first:
        first.add_run(RUN)
        first.add(RECORD)
    with open_history(url) as second:
        assert second.outcomes("r1") == [RECORD]


def test_the_same_thing_twice_is_stored_once(history):
    for _ in range(2):
        history.add_run(RUN)
        history.add(RECORD)
    assert history.runs() == [RUN]
    assert history.outcomes("r1") == [RECORD]
    with pytest.raises(HistoryError, match="another run with the id r1"):
        history.add_run(replace(RUN, kernel="softmax"))


def test_an_outcome_that_lacks_something_is_not_taken_for_a_twin(history):
    with pytest.raises(HistoryError, match="cannot write"):
        history.add(replace(RECORD, case=replace(CASE, kernel=None)))


def test_runs_share_their_environment(history):
    history.add_run(RUN)
    history.add_run(replace(RUN, id="r2"))
    changed = replace(RUN, id="r3", environment=replace(ENVIRONMENT, commit=None))
    history.add_run(changed)
    with history._reading() as db:
        ids = set(db.scalars(sa.text("select id from environments")))
    assert ids == {environment_id(ENVIRONMENT), environment_id(changed.environment)}


def test_the_state_of_a_run(history):
    history.add_run(RUN)
    assert history.state("r1") == "running"
    history.finish_run("r1", "interrupted")
    history.add_run(RUN)  # a resumed run announces itself again
    assert history.state("r1") == "interrupted"
    for call in (lambda: history.state("r9"), lambda: history.finish_run("r9", "failed")):
        with pytest.raises(HistoryError, match=r"no run '?r9"):
            call()


def test_numbers_and_texts_that_databases_dislike_come_back(history):
    odd = "NUL \0, half a character \udcff, smile \U0001f600, 'quote\"; drop table runs; --"
    outcomes = [
        replace(FAILURE, reason=odd),
        replace(RECORD, flops=3**60, error=float("inf")),
        replace(RECORD, flops=0, bytes=0, case=replace(CASE, config={}, sizes={})),
    ]
    for outcome in outcomes:
        history.add(outcome)
    assert history.outcomes("r1") == outcomes
    assert {row.flops for row in history.search()} == {None, float(3**60), 0.0}


# find


def test_find_gives_the_newest_outcome_of_each_key(history):
    old, new = replace(RECORD, at=at(5)), replace(RECORD, at=at(6))
    for outcome in (new, old, FAILURE):
        history.add(outcome)
    assert history.find(["k1", "k2", "k3", "k1"]) == {"k1": new, "k2": FAILURE}
    assert history.find([]) == {}


def test_newest_means_the_instant_and_not_the_text(history):
    earlier = replace(RECORD, at="2026-11-21T12:00:00+09:00")  # 03:00 UTC
    later = replace(RECORD, at="2026-11-21T05:00:00-01:00")  # 06:00 UTC
    for outcome in (later, earlier, replace(RECORD, at="the day before")):
        history.add(outcome)
    assert history.find(["k1"]) == {"k1": later}


def test_of_two_at_the_same_instant_the_last_added_wins(history):
    history.add(RECORD)
    history.add(replace(RECORD, error=0.5))
    assert history.find(["k1"])["k1"].error == 0.5


def test_a_phase_selects_records_and_keeps_failures(history):
    final = replace(RECORD, phase="final", at=at(30))
    failed_later = replace(FAILURE, at=at(31))
    for outcome in (RECORD, final, replace(RECORD, key="k2"), failed_later):
        history.add(outcome)
    assert history.find(["k1", "k2"], "first_pass") == {"k1": RECORD, "k2": failed_later}
    assert history.find(["k1"], "final") == {"k1": final}
    assert history.find(["k1"], "hot") == {}


def test_find_reads_only_the_newest_of_many_keys_and_by_an_index(url, tmp_path, monkeypatch):
    """What makes it fast for a history with a past: few statements, and no sample of an outcome
    that a newer one replaced."""
    keys, wanted = [f"k{n}" for n in range(120)], []
    path = tmp_path / "e.jsonl"
    with EventLog(path) as log:
        log.write(RUN)
        for round_ in range(3):
            for key in [*keys, "another"]:
                log.write(replace(RECORD, key=key, at=at(round_)))
    read = []
    monkeypatch.setattr(module, "_KEYS_AT_ONCE", 50)
    monkeypatch.setattr(module, "loads", lambda text: read.append(text) or loads(text))
    with open_history(url) as history:
        history.import_events(path)
        sa.event.listen(
            history._engine, "before_cursor_execute",
            lambda db, cursor, statement, given, *_: wanted.append((statement, given)),
        )  # fmt: skip
        result = history.find(keys, "first_pass")
        chosen = [(text, given) for text, given in wanted if text.lower().startswith("select")]
        assert len(chosen) == 3, "120 keys in statements of 50"
        if url.startswith("sqlite"):
            with history._reading() as db:
                plan = db.exec_driver_sql("EXPLAIN QUERY PLAN " + chosen[0][0], chosen[0][1]).all()
            assert any("ix_outcomes_key_at" in row[-1] for row in plan), plan
    assert sorted(result) == sorted(keys) and all(r.at == at(2) for r in result.values())
    assert len(read) == len(keys)


# runs, run, search


def test_runs_are_filtered_newest_first(history):
    created = [
        replace(RUN, id="a", started=at(1)),
        replace(RUN, id="b", started=at(3), kernel="softmax"),
        replace(RUN, id="c", started=at(2), engine="measure", device="mi300x"),
    ]
    for run in created:
        history.add_run(run)
    assert [r.id for r in history.runs()] == ["b", "c", "a"]
    assert [r.id for r in history.runs(limit=1)] == ["b"]
    assert [r.id for r in history.runs(kernel="matmul")] == ["c", "a"]
    assert [r.id for r in history.runs(engine="measure", device="mi300x")] == ["c"]
    assert history.runs(kernel="nothing") == []


def test_a_run_is_found_by_id_by_prefix_and_as_the_last(history):
    with pytest.raises(HistoryError, match="holds no run yet; start one"):
        history.run("last")
    for minute, identity in enumerate(["2026-a", "2026-ab", "2025_z", "2025-y"]):
        history.add_run(replace(RUN, id=identity, started=at(minute)))
    assert history.run("last").id == "2025-y"
    assert history.run("2026-a").id == "2026-a"  # exact, though another begins so too
    assert history.run("2025_").id == "2025_z"  # _ and % are letters here
    with pytest.raises(HistoryError, match=r"several runs begin with '202' .*give more"):
        history.run("202")
    for absent in ("%", "1999"):
        with pytest.raises(HistoryError, match="holds no run"):
            history.run(absent)


@pytest.mark.parametrize("engine", ["compare", "gate", "bisect"])
def test_an_operand_of_a_comparison_is_of_no_known_commit(history, engine):
    history.add_run(replace(RUN, engine=engine))
    history.add(RECORD)
    (row,) = history.search()
    assert (row.commit, row.dirty, row.run) == (None, None, RUN.id)


def test_search_filters_and_tells_where_it_came_from(history):
    history.add_run(RUN)
    other = replace(CASE, impl="library", backend="torch", dtype="fp16", device="mi300x")
    predicted = replace(RECORD, timing=MODEL, phase="predict", at=at(2))
    for outcome in (RECORD, predicted, replace(RECORD, case=other, at=at(1)), FAILURE):
        history.add(outcome)
    newest, library, *_ = history.search()
    assert (newest.predicted, newest.time_s, newest.phase) == (True, 1.25e-3, "predict")
    assert (newest.commit, newest.dirty) == ("c0ffee1234567890", True)
    assert (newest.sizes, newest.config) == (CASE.sizes, CASE.config)
    assert history.search(impl="library") == [library] == history.search(dtype="fp16")
    assert history.search(kernel="matmul", device="mi300x") == [library]
    assert [row.reason for row in history.search(failures_only=True)] == [FAILURE.reason]
    assert history.search(since="2026-11-21T10:01:30") == [newest]
    assert history.search(since="2026-11-21T12:01:30+02:00") == [newest]
    assert history.search(since=newest.at) == [newest], "that moment itself counts"
    assert len(history.search(since="2026-11-21")) == 4
    assert len(history.search(limit=2)) == 2
    with pytest.raises(HistoryError, match="'yesterday' is not a date; write it as"):
        history.search(since="yesterday")


# Importing an events file


def test_importing_refills_and_importing_again_adds_nothing(history, tmp_path):
    path = tmp_path / "e.jsonl"
    with EventLog(path) as log:
        log.write(RUN)
        log.write(RECORD)
        log.write(OpCompleted(AT, "r1", "sweep/x", 1.0, None, False))
        log.write(FAILURE)
        log.write(RunFinished(AT, "r1", "complete", {}))
    with open(path, "ab") as file:
        file.write(b'\xff\n{"type":"Record"')
    for _ in range(2):
        kept, bad, unreadable = history.import_events(path)
        assert kept == 4 and unreadable == 2 and [line.number for line in bad] == [6, 7]
        assert history.runs() == [RUN] and history.state("r1") == "complete"
        assert history.outcomes("r1") == [RECORD, FAILURE]


def test_outcomes_are_kept_when_the_line_of_their_run_was_damaged(history, tmp_path):
    path = tmp_path / "e.jsonl"
    with EventLog(path) as log:
        log.write(RECORD)
        log.write(RunFinished(AT, "r1", "complete", {}))
    assert history.import_events(path) == (1, [], 0)
    assert history.outcomes("r1") == [RECORD]
    assert history.search()[0].commit is None
    with pytest.raises(EventsError):
        history.import_events(tmp_path / "absent.jsonl")


def test_an_import_that_fails_half_way_adds_nothing(history, tmp_path):
    history.add_run(RUN)
    path = tmp_path / "e.jsonl"
    with EventLog(path) as log:
        log.write(RECORD)
        log.write(replace(RUN, dtype="fp16"))
    with pytest.raises(HistoryError, match="another run"):
        history.import_events(path)
    assert history.outcomes("r1") == []


# Several processes

WRITER = """
import sys
from dataclasses import replace
sys.path.insert(0, {tests!r})
from test_history import RECORD, RUN, open_history
me = sys.argv[1]
with open_history({url!r}) as history:
    history.add_run(replace(RUN, id=me))
    for n in range({count}):
        history.add(replace(RECORD, run=me, key=f"{{me}}-{{n}}"))
        print(n, flush=True)
"""


def start_writer(url: str, me: str, count: int) -> subprocess.Popen:
    code = WRITER.format(tests=str(Path(__file__).parent), url=url, count=count)
    return subprocess.Popen(
        [sys.executable, "-c", code, me], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )


@pytest.mark.nightly
def test_processes_that_open_a_new_history_and_write_at_once_all_succeed(url):
    writers = [start_writer(url, f"w{n}", 60) for n in range(3)]
    text = [writer.communicate() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0], text
    with open_history(url) as history:
        for n in range(3):
            assert [r.key for r in history.outcomes(f"w{n}")] == [f"w{n}-{i}" for i in range(60)]
        assert len(history.runs()) == 3


def test_whatever_was_added_before_a_kill_9_is_there(url):
    writer = start_writer(url, "w", 10**9)
    text = [writer.stdout.readline() for _ in range(40)]
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.communicate()[0].splitlines()
    assert text[0] == b"0\n"
    last = int(rest[-1]) if rest and rest[-1].isdigit() else 39
    with open_history(url) as history:
        kept = [r.key for r in history.outcomes("w")]
        assert kept == [f"w-{n}" for n in range(len(kept))] and len(kept) >= last
        assert history.state("w") == "running"
        history.add(RECORD)  # no lock was left behind


def test_a_reader_does_not_wait_for_a_writer(url):
    with open_history(url) as writer, open_history(url) as reader:
        writer.add(RECORD)
        with writer._writing() as db:
            db.execute(sa.text("update outcomes set kernel = 'changed'"))
            # were it to wait, it would wait for ever, and be told that the database is locked
            assert reader.find(["k1"]) == {"k1": RECORD}
            assert reader.search()[0].kernel == "matmul"
        assert reader.search()[0].kernel == "changed"


def test_sqlite_writes_ahead_and_waits_when_busy(tmp_path):
    with open_history(url_of(tmp_path / "h.db")) as history, history._reading() as db:
        wanted = ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        assert [db.scalar(sa.text(f"pragma {name}")) for name in wanted] == ["wal", 1, 120_000, 1]


def test_another_process_that_never_lets_go(tmp_path, monkeypatch):
    path = tmp_path / "h.db"
    open_history(url_of(path)).close()
    monkeypatch.setattr(module, "_BUSY_S", 0.1)
    holder = sqlite3.connect(path, isolation_level=None)
    with open_history(url_of(path)) as history:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(HistoryError, match="locked; another process has held it") as error:
            history.add(RECORD)
        assert_sentence(error, path)
        holder.execute("ROLLBACK")
        history.add(RECORD)
    holder.close()


# Faults


def assert_sentence(error: pytest.ExceptionInfo, path: object) -> None:
    text = str(error.value)
    assert "\n" not in text and str(path) in text and "; " in text and "sqlalche.me" not in text


def filled(path: Path) -> bytes:
    """A real history of some 200 kB, in one file."""
    with open_history(url_of(path)) as history:
        history.add_run(RUN)
        clock = replace(CLOCK, samples_s=tuple(i * 1e-7 for i in range(200)))
        for n in range(40):
            history.add(replace(RECORD, key=f"k{n}", timing=clock))
    assert not path.with_name(path.name + "-wal").exists()
    return path.read_bytes()


def use(path: Path) -> bool:
    """Read and write a history. Returns whether it noticed damage."""
    with open_history(url_of(path)) as history:
        history.find(f"k{n}" for n in range(40))
        history.outcomes("r1")
        history.search()
        history.add_run(RUN)
        history.add(replace(RECORD, key="new"))
        return bool(history.damaged or history.problems())


@pytest.mark.parametrize("size", [17, 4096, 100_000])
def test_random_bytes_are_not_a_history(tmp_path, size):
    path = tmp_path / "h.db"
    junk = random.Random(size).randbytes(size)
    path.write_bytes(junk)
    with pytest.raises(HistoryError, match="not a database; move that file away") as error:
        open_history(url_of(path))
    assert_sentence(error, path)
    assert path.read_bytes() == junk


@pytest.mark.parametrize("part", [0.001, 0.05, 0.3, 0.5, 0.9])
def test_a_truncated_history_is_refused_in_a_sentence(tmp_path, part):
    path = tmp_path / "h.db"
    whole = filled(path)
    path.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(HistoryError, match="into a new history") as error:
        use(path)
    assert_sentence(error, path)


def test_damage_anywhere_gives_a_sentence_or_no_harm(tmp_path):
    path = tmp_path / "h.db"
    whole = filled(path)
    rng = random.Random(1)
    refused = 0
    for _ in range(40):
        start = rng.randrange(len(whole) - 600)
        path.write_bytes(whole[:start] + rng.randbytes(600) + whole[start + 600 :])
        try:
            refused += use(path)
        except HistoryError as error:
            refused += 1
            assert "\n" not in str(error) and "; " in str(error)
        for left in ("-wal", "-shm"):
            path.with_name(path.name + left).unlink(missing_ok=True)
    assert refused > 20


def test_a_full_disk_is_told_and_what_was_there_stays(tmp_path):
    path = tmp_path / "h.db"
    with open_history(url_of(path)) as history:
        history.add(RECORD)

        @sa.event.listens_for(history._engine, "begin")
        def no_more_pages(db):
            db.exec_driver_sql("PRAGMA max_page_count=1")  # SQLite's own disk-full path

        with pytest.raises(HistoryError, match="full; free some space") as error:
            for n in range(200):
                history.add(replace(FAILURE, key=str(n), reason="long " * 200))
        assert_sentence(error, path)
        assert history.find(["k1"]) == {"k1": RECORD}


LIMITED = """
import resource, sys
from dataclasses import replace
sys.path.insert(0, {tests!r})
from test_history import FAILURE, HistoryError, open_history
with open_history({url!r}) as history:
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    n = 0
    try:
        while True:
            history.add(replace(FAILURE, key=str(n), reason="long " * 200))
            n += 1
    except HistoryError as error:
        print(n, error, sep="|")
"""


def test_a_write_that_the_system_refuses_loses_only_itself(tmp_path):
    url = url_of(tmp_path / "h.db")
    code = LIMITED.format(tests=str(Path(__file__).parent), url=url)
    message = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    count, _, sentence = message.stdout.partition("|")
    assert sentence.startswith(f"cannot write the history {tmp_path}/h.db: "), message.stderr
    with open_history(url) as history:
        assert [f.key for f in history.outcomes("r1")] == [str(n) for n in range(int(count))]
        assert int(count) > 2


def test_a_place_that_is_no_place_for_a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for name in ("file/h.db", "file/deeper/h.db", "folder"):
        with pytest.raises(HistoryError, match="choose a") as error:
            open_history(url_of(tmp_path / name))
        assert_sentence(error, tmp_path / name)


def test_a_history_that_may_only_be_read(tmp_path):
    """Permission bits do not bind root, so SQLite is asked for a connection that cannot write."""
    path = tmp_path / "h.db"
    filled(path)
    with open_history(f"sqlite:///file:{path}?mode=ro&uri=true") as history:
        assert len(history.outcomes("r1")) == 40
        with pytest.raises(HistoryError, match="readonly database; choose a file") as error:
            history.add(replace(RECORD, key="new"))
    assert_sentence(error, path)


def test_a_newer_schema_is_refused_and_left_alone(url):
    with open_history(url) as history, history._writing() as db:
        db.execute(sa.text("update workbench_schema set version = 99"))
    with pytest.raises(HistoryError, match=f"schema 99.*up to {SCHEMA}; upgrade the workbench"):
        open_history(url)


def test_a_database_of_someone_else_is_left_alone(tmp_path):
    path = tmp_path / "h.db"
    with sqlite3.connect(path) as db:
        db.execute("create table runs (id text)")
    with pytest.raises(HistoryError, match="table 'runs' that the workbench did not make") as error:
        open_history(url_of(path))
    assert_sentence(error, path)
    assert list(db.execute("select name from sqlite_master")) == [("runs",)]
    db.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("not a url", "URL cannot be understood"),
        ("postgresql://me:hunter2@host:port/x", "URL cannot be understood"),
        ("nosuch://me:hunter2@host/x", "kept in SQLite or PostgreSQL"),
        ("mysql://me:hunter2@host/x", "kept in SQLite or PostgreSQL"),
        ("sqlite+nosuch:///x", "; correct the URL"),
        ("postgresql+nosuch://me:hunter2@host/x", "; correct the URL"),
        ("postgresql+psycopg2://me:hunter2@127.0.0.1:1/x", "missing; install it|check that"),
    ],
)
def test_a_bad_url_is_refused_without_repeating_its_password(tmp_path, monkeypatch, url, reason):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HistoryError, match=reason) as error:
        open_history(url)
    text = str(error.value)
    assert "hunter2" not in text and "\n" not in text and "; " in text


def test_a_driver_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(HistoryError, match="pip install 'psycopg"):
        open_history("postgresql+psycopg://me@127.0.0.1:1/x")


def test_the_default_place_is_the_users_data_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_data_dir", lambda name, appauthor: tmp_path / name)
    assert default_url() == f"sqlite:///{tmp_path}/kernel-workbench/history.db"
    with open_history(None) as history:
        assert history.runs() == []
    assert (tmp_path / "kernel-workbench" / "history.db").exists()


def test_no_sql_is_of_one_database_only():
    from sqlalchemy.dialects import postgresql, sqlite

    for dialect in (sqlite.dialect(), postgresql.dialect()):
        for query in (module._newest(["a"], "final"), module._rows_of(module._PICKED)):
            assert "SELECT" in str(query.compile(dialect=dialect))
        for table in module._METADATA.sorted_tables:
            sql = str(sa.schema.CreateTable(table).compile(dialect=dialect))
            assert "CREATE TABLE" in sql


def test_importing_it_needs_neither_torch_nor_triton_nor_rich():
    code = (
        "import workbench.data.database, sys; print({'torch', 'triton', 'rich'} & {*sys.modules})"
    )
    message = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert message.stdout == "set()\n", message.stderr


# On the terminal


def rows_of(history: History, *outcomes):
    history.add_run(RUN)
    for outcome in outcomes:
        history.add(outcome)
    return history.search()


def test_a_predicted_time_cannot_be_taken_for_a_measured_one(history):
    predicted = replace(RECORD, timing=MODEL, phase="predict", at=at(1))
    cells = history_table(rows_of(history, RECORD, predicted))
    times = [row[HEADINGS.index("time")] for row in cells]
    assert times == ["~1.25 ms predicted", "15 us"]


def test_cells_of_the_table(history):
    (cells,) = history_table(rows_of(history, FAILURE))
    assert dict(zip(HEADINGS, cells, strict=True)) == {
        "at": "2026-11-21 09:30",
        "kernel": "matmul",
        "config": "tiles block_m 128, 8 warps",
        "sizes": "M=64",
        "dtype": "bf16",
        "device": "h200",
        "phase": "compile failed",
        "time": "out of shared memory",
        "registers": "",
        "spills, B": "",
        "commit": "c0ffee12+",
        "run": "r1",
    }


def test_a_row_has_the_registers_and_spills_of_its_code(history):
    from compiled_cases import RESOURCES  # processes that import this file do not find it

    known = replace(RESOURCES, registers=168, spill_bytes=24)
    (row,) = rows_of(history, replace(RECORD, resources=known))
    assert (row.registers, row.spill_bytes) == (168, 24)
    cells = dict(zip(HEADINGS, *history_table([row]), strict=True))
    assert (cells["registers"], cells["spills, B"]) == ("168", "24")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.5, "2.5 s"), (1e-3, "1 ms"), (1.23456e-5, "12.35 us"), (7.5e-7, "750 ns"), (0.0, "0 ns")],
)
def test_a_time_has_its_unit(seconds, text):
    assert console_duration(seconds) == text


def shown(history: History, width: int = 200, **wanted) -> str:
    out = io.StringIO()
    show_history(history, Console(file=out, width=width), HistoryOptions(**wanted))
    return out.getvalue()


def test_showing_the_history(history):
    assert "Nothing in the history matches" in shown(history)
    odd = replace(FAILURE, reason="[red]error[/bold] \x1b[2J line\nline")
    rows_of(history, RECORD, odd, replace(RECORD, timing=MODEL, at=at(9)))
    text = shown(history)
    assert "~1.25 ms predicted" in text and "15 us" in text and "c0ffee12+" in text
    assert "[red]error[/bold]" in text and "\x1b" not in text
    assert "15 us" not in shown(history, failures=True)
    assert "Nothing" in shown(history, kernel="softmax")
    assert "The newest 1;" in shown(history, limit=1)


WHOLE = {"at": 16, "kernel": 6, "config": 30, "sizes": 20, "dtype": 5, "device": 6, "phase": 5,
         "time": 8, "run": 34}  # fmt: skip


@pytest.mark.parametrize(
    ("width", "columns"),
    [  # of 85 and five gaps of two: 95
        (95, {}),
        (94, {"config": 29}),
        (60, {"config": 12, "sizes": 8}),
        (102, {}),  # the device and its gap are 8
        (103, {"device": 6}),
        (110, {"device": 6, "dtype": 5}),
        (146, {"device": 6, "dtype": 5, "run": 34}),
    ],
)
def test_the_history_has_the_columns_that_fit(width, columns):
    always = {h: n for h, n in WHOLE.items() if h not in ("device", "dtype", "run")}
    got = fitting_widths(WHOLE, ("device", "dtype", "run"), width)
    assert got == {**always, **columns} and list(got) == [h for h in WHOLE if h in got]


def test_a_long_reason_leaves_room_for_what_tells_rows_apart():
    got = fitting_widths({**WHOLE, "time": 200}, ("device", "dtype", "run"), 150)
    assert {"device", "dtype"} <= set(got) and "run" not in got
    assert got["time"] == 150 - 110 + 8


@pytest.mark.parametrize("width", [80, 100, 140])
def test_no_time_is_cut_off_and_wide_prints_all_columns(history, width):
    rows_of(history, RECORD)
    lines = shown(history, width).splitlines()
    assert max(map(len, lines)) <= width and "  15 us" in lines[1]
    heads = shown(history, width, wide=True).splitlines()[0]
    assert heads.split() == " ".join(HEADINGS).split()


def test_the_payload_is_the_whole_outcome(history):
    history.add(RECORD)
    with history._reading() as db:
        assert db.scalar(sa.text("select payload from outcomes")) == dumps(RECORD)
