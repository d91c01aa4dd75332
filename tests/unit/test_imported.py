"""Imported data is data: it names no path, executes nothing, commands no terminal, and damage in it
costs itself."""

import ast
import io
import json
import math
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st
from nightly import by_turns

import workbench
from workbench import cli
from workbench.commands.console import clean, plain_console, say
from workbench.commands.report_pages import _place
from workbench.data import clock
from workbench.data.database import HistoryError, open_history
from workbench.data.events import EventLog, read
from workbench.data.plain import check_fields
from workbench.data.record import dumps, loads

pytestmark = pytest.mark.unit

PACKAGE = Path(workbench.__file__).parent
RUN, OUTCOMES = synthetic.softmax()
HOSTILE_IDS = ["../../../x", "/etc/x", "..", ".", "", ".hidden", "a/b", "a\\b", "-rf", "a\nb",
               "a\x1b[2J", "x" * 300, "nul\0", "half\ud800"]  # fmt: skip


@pytest.fixture
def url(tmp_path):
    place = f"sqlite:///{tmp_path / 'h.db'}"
    with open_history(place) as history:
        history.add_run(RUN)
        for outcome in OUTCOMES:
            history.add(outcome)
        history.finish_run(RUN.id, "complete")
    return place


def changed(tmp_path, statement, *values):
    with sqlite3.connect(tmp_path / "h.db") as db:
        db.execute(statement, values)
    db.close()


# Ids and paths


@given(st.text() | st.sampled_from(HOSTILE_IDS))
def test_the_folder_of_a_run_lies_inside_the_results(text):
    out = Path("/results")
    folder = clock.folder_of(out, text)
    assert folder.parent == out and folder.resolve().parent == out and folder != out
    assert folder.name.isprintable() and len(folder.name.encode()) < 200
    assert _place([replace(RUN, id=text)], "report.html").parent.parent == Path("results")


@given(st.from_regex(r"\A[0-9]{8}-[0-9]{6}-[\w.-]{1,40}\Z"))
def test_the_folder_of_a_usual_id_is_its_name(text):
    assert clock.is_id(text) and clock.folder_of(Path("r"), text).name == text


@pytest.mark.parametrize("words", [("sweep", "../../x"), ("sweep", "a/b\n"), ("", "\ud800")])
def test_an_id_of_a_new_run_is_one(words):
    assert clock.is_id(clock.run_id(*words))


@pytest.mark.parametrize("name", HOSTILE_IDS, ids=ascii)
def test_an_id_that_is_a_path_is_not_loaded(tmp_path, monkeypatch, url, name, capsys):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "e.jsonl"
    path.write_text(dumps(replace(RUN, id=name)) + "\n" + dumps(OUTCOMES[0]) + "\n")
    result = read(path)
    assert result.events == [OUTCOMES[0]] and "the field id of a Run" in result.bad[0].reason
    assert cli.main(["report", "sweep", str(path)]) == 2
    payload = dumps(replace(RUN, id=name))
    changed(tmp_path, "update runs set payload = ?", payload)
    assert cli.main(["report", "sweep", "last", "--database", url]) == 2
    text = capsys.readouterr().err
    assert "is damaged" in text and "Traceback" not in text
    assert {p.name for p in tmp_path.iterdir()} <= {"e.jsonl", "h.db", "h.db-wal", "h.db-shm"}


# Sources


def trap(tmp_path):
    file = tmp_path / "trap.py"
    file.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    return file


@pytest.mark.parametrize("trusted", [False, True])
def test_the_source_of_a_stored_run_is_executed_only_if_trusted(tmp_path, capsys, trusted):
    """`compare` reads `--sizes` by the kernel's Spec, whose file the database names."""
    place, names = f"sqlite:///{tmp_path / 'h.db'}", []
    with open_history(place) as history:
        for minute in (1, 2):
            names.append(f"20261121-09300{minute}-sweep-softmax")
            run = replace(RUN, id=names[-1], source=str(trap(tmp_path)))
            history.add_run(run)
            for outcome in OUTCOMES:
                history.add(replace(outcome, run=run.id))
    sizes = ",".join(f"{k}={v}" for k, v in RUN.sizes.items())
    words = ["compare", *names, "--database", place, "--out", str(tmp_path), "--sizes", sizes]
    assert cli.main([*words, *(["--trust"] if trusted else [])]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and (tmp_path / "sprung").exists() == trusted
    assert ("add --trust" in text) != trusted
    assert cli.main([w for w in words if w not in ("--sizes", sizes)]) in (0, 1, 3)


def test_nothing_else_executes_the_source_of_a_run():
    """Whoever reads `run.source` is listed here, with how it is guarded."""
    known = {
        "data/returned.py": 1,  # refuses one that is not empty
        "commands/compare_command.py": 3,  # behind --trust
        "commands/site_command.py": 1,  # the path whose differences git lists; nothing is imported
        "commands/trace_comparison.py": 1,  # as a name in messages
        "tuner/tuned.py": 1,  # of the run that this process made
    }
    counts = {}
    for path in PACKAGE.rglob("*.py"):
        if ".source" not in (text := path.read_text(encoding="utf-8")):
            continue
        tree = ast.parse(text)
        reads = [
            n for n in ast.walk(tree)
            if isinstance(n, ast.Attribute) and n.attr == "source"
            and isinstance(n.value, ast.Name) and n.value.id in ("run", "old", "stored")
        ]  # fmt: skip
        if reads:
            counts[str(path.relative_to(PACKAGE))] = len(reads)
    assert counts == known


# The terminal

SEQUENCES = ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\r", "\x08", "\u202e", "\u2066", "\ud800"]


@given(st.text() | st.sampled_from(SEQUENCES))
def test_no_text_commands_the_terminal(text):
    out = io.StringIO()
    console = plain_console()
    console.file = out
    console.print(text)
    console.print(text, style="bold")
    console.print(f"[red]{text}", soft_wrap=True)
    for shown in (out.getvalue(), clean(text)):
        bad = [c for c in shown if not c.isprintable() and c not in "\n\t" and ord(c) < 0xA0]
        assert not bad and not set(shown) & set("\u202e\u2066\u200f\ud800")
    clean(text).encode()


def test_a_console_keeps_its_own_colours(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = plain_console()
    console.file = out = io.StringIO()
    console.print("bold\x1b[31m", style="bold")
    assert out.getvalue() == "\x1b[1mbold[31m\x1b[0m\n"


def test_printing_is_cleaned(capsys):
    say("a\x1b[2Jb", err=True)
    assert capsys.readouterr().err == "a[2Jb\n"


def test_commands_print_through_the_console_alone():
    for path in (PACKAGE / "commands").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [
            n.lineno for n in ast.walk(tree)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
            and n.func.id in ("print", "Console")
        ]  # fmt: skip
        assert path.name == "console.py" or not calls, f"{path.name}: {calls}"


def test_an_error_that_quotes_data_is_cleaned_and_stays_one_line(capsys):
    assert cli.main(["report", "x\x1b[2J\ny"]) == 2
    text = capsys.readouterr().err
    assert "\x1b" not in text and text.count("\n") == 1


# Damage

ODD = [
    "5", "[]", "{}", "null", "nonsense", '"text"', "1e999", "[" * 5000, '{"type": []}',
    '{"type": "Case"}', b"\x00\xff", 5, 0.5, dumps(RUN.environment), dumps(OUTCOMES[0]),
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: ascii(odd)[:20])
def test_a_damaged_payload_costs_its_row_and_is_counted(tmp_path, url, odd):
    changed(tmp_path, "update outcomes set payload = ? where id = 2", odd)
    with open_history(url, reading=True) as history:
        left = [o for i, o in enumerate(OUTCOMES) if i != 1]
        loaded = history.outcomes(RUN.id)
        whole = odd == dumps(OUTCOMES[0])
        expected = [OUTCOMES[0], OUTCOMES[0], *left[1:]] if whole else left
        assert (loaded, history.damaged) == (expected, 0 if whole else 1)
        assert len(history.find([o.key for o in OUTCOMES])) >= len({o.key for o in left}) - 1


COLUMNS = ["at", "kernel", "impl", "sizes", "config", "stage", "phase", "predicted", "time_s",
           "run", "reason"]  # fmt: skip


ODD = ("[", "\x1b[2J", b"\xff\xfe", 1e400, -1, "half \\ud800")


@pytest.mark.parametrize(("column", "odd"), by_turns(COLUMNS, ODD), ids=ascii)
def test_a_damaged_column_never_ends_the_list(tmp_path, url, column, odd, capsys):
    changed(tmp_path, f"update outcomes set {column} = ? where id = 2", odd)
    assert cli.main(["history", "--database", url]) == 0
    text = capsys.readouterr()
    assert "softmax" in text.out and "\x1b" not in text.out and "Traceback" not in text.err
    assert text.err.count("\n") <= 1


def test_damage_is_one_line_that_counts(tmp_path, url, capsys):
    changed(tmp_path, "update outcomes set sizes = 'x'")
    assert cli.main(["history", "--database", url]) == 0
    text = capsys.readouterr()
    assert f"note: {len(OUTCOMES)} rows of the history {tmp_path / 'h.db'} cannot be" in text.err
    assert text.err.count("\n") == 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
    | st.sampled_from([math.nan, -1, 0, 10**400, "dreamt", "\x1b[2J", "../x"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=3,
)  # fmt: skip


def spoilt(draw, plain):
    """An object with one field, at any depth, that is gone or holds something else."""
    places = [plain]
    while isinstance(places[-1], dict) and places[-1]:
        name = draw(st.sampled_from(sorted(places[-1])))
        inner = places[-1][name]
        if not isinstance(inner, dict) or not inner or draw(st.booleans()):
            if draw(st.booleans()):
                del places[-1][name]
            else:
                places[-1][name] = draw(VALUES)
            break
        places.append(inner)
    return plain


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    return folder, f"sqlite:///{folder / 'h.db'}"


@given(data=st.data())
def test_any_damage_is_left_out_or_does_no_harm(drawn, data):
    """What is loaded can be stored, listed, selected from and put into words."""
    from workbench.commands.history import history_table
    from workbench.data.selection import select
    from workbench.reports.selection_sentence import sentence

    folder, url = drawn
    entries = [RUN, *OUTCOMES]
    plain = [json.loads(dumps(e)) for e in entries]
    at = data.draw(st.integers(0, len(plain) - 1))
    plain[at] = spoilt(data.draw, plain[at])
    path = folder / "e.jsonl"
    path.write_text("".join(json.dumps(p) + "\n" for p in plain))
    result = read(path)
    assert len(result.events) + len(result.bad) == len(entries) and len(result.bad) <= 1
    (folder / "h.db").unlink(missing_ok=True)
    with open_history(url) as history:
        taken = history.import_events(path)
        assert taken.total == len(result.events)
        assert len(history_table(history.search(limit=100))) + history.damaged >= taken.total - 1
        runs = history.runs()
        for run in runs:
            sentence(select(run, history.outcomes(run.id)))
            assert clock.is_id(run.id)


@given(data=st.data())
def test_whatever_is_checked_is_written_and_read_again(data):
    entry = data.draw(st.sampled_from([RUN, *OUTCOMES]))
    plain = spoilt(data.draw, json.loads(dumps(entry)))
    try:
        first = check_fields(loads(json.dumps(plain)))
    except (ValueError, TypeError, AttributeError, ArithmeticError):
        return
    assert check_fields(loads(dumps(first))) == first


def test_all_that_sweeps_record_is_accepted():
    for make in (synthetic.matmul, synthetic.softmax, synthetic.empty, synthetic.all_failed):
        run, outcomes = make()
        for entry in (run, *outcomes):
            assert check_fields(loads(dumps(entry))) == entry


def test_an_outcome_of_a_run_that_is_not_stored_ends_no_sweep(tmp_path):
    from nullside import Place

    place = Place(tmp_path)
    first = place.sweep()
    changed_ = sqlite3.connect(tmp_path / "history.db")
    with changed_:
        changed_.execute("update runs set payload = '5'")
    changed_.close()
    again = place.sweep()
    assert place.code == 0 and {o.key for o in again} == {o.key for o in first}


def test_an_import_survives_damage_everywhere(tmp_path, url, capsys):
    path = tmp_path / "e.jsonl"
    with EventLog(path) as log:
        log.write(RUN)
    with path.open("ab") as file:
        file.writelines(b"%d\n" % n for n in range(2000))
    assert cli.main(["history", "--load", str(path), "--database", url]) == 0
    text = capsys.readouterr().out
    assert "1 events imported, 2000 lines unreadable" in text and text.count("  line ") == 5
    (other := tmp_path / "raw.csv").write_text("ID,Kernel\n0,add\n")
    assert cli.main(["history", "--load", str(other), "--database", url]) == 2
    assert "holds no event (line 1: not JSON" in capsys.readouterr().err


CEILING = {"unit": "FLOP/s", "kind": "measured", "source": "here", "value": 8e14}
CLOCKS = st.fixed_dictionaries(
    {},
    optional={
        "state": st.sampled_from(["boost", "sustained", "", "idle", None, 3, ["boost"]]),
        "clock_mhz": st.sampled_from([1980.0, 1500, None, 0.0, -1.0, "1500", math.inf, math.nan]),
    },
)


@given(CLOCKS)
def test_the_state_of_a_ceiling_is_written_and_read_by_both_stores_or_refused(
    tmp_path_factory, clocks
):
    folder = tmp_path_factory.mktemp("c")
    run = replace(RUN, ceilings={"compute_bf16_boost_measured": {**CEILING, **clocks}})
    mhz = clocks.get("clock_mhz")
    whole = mhz is None or (isinstance(mhz, float | int) and 0 < mhz < math.inf)
    fits = whole and clocks.get("state", "") in ("boost", "sustained", "")  # "": of no clock
    with EventLog(folder / "e.jsonl") as log:
        log.write(run)
    result = read(folder / "e.jsonl")
    assert result.events == ([run] if fits else [])
    assert fits or "the field ceilings of a Run" in result.bad[0].reason
    with open_history(f"sqlite:///{folder / 'h.db'}") as history:
        history.add_run(run)
        if fits:
            assert history.run(run.id) == run
        else:
            with pytest.raises(HistoryError, match="damaged"):
                history.run(run.id)
