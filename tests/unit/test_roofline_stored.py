"""`workbench report roofline`: which runs it reads, what it writes, and errors of one sentence."""

import json
from dataclasses import replace

import pytest
import synthetic

from workbench import cli
from workbench.commands.report import ReportOptions
from workbench.commands.report_pages import make, sheet
from workbench.data.database import open_history
from workbench.data.events import EventLog
from workbench.reports import ReportError

SELF_TEST = {"value": 2e12, "unit": "B/s", "source": "copy", "kind": "measured", "low": 1.9e12,
             "high": 2.1e12}  # fmt: skip


@pytest.fixture
def url(tmp_path):
    """Two sweeps and two runs of ceilings of one device, the newer of which did not end."""
    place = f"sqlite:///{tmp_path / 'h.db'}"
    with open_history(place) as history:
        for run, outcomes in (synthetic.softmax(), synthetic.copy()):
            history.add_run(run)
            for outcome in outcomes:
                history.add(outcome)
        for day, rate, state in (("20", 2e12, "complete"), ("21", 3e12, "interrupted")):
            text = {"dram_copy_measured": {**SELF_TEST, "value": rate}}
            run = replace(synthetic.softmax()[0], id=f"ceilings-{day}", engine="ceilings",
                          started=f"2026-11-{day}T00:00:00+00:00", ceilings=text)  # fmt: skip
            history.add_run(run)
            history.finish_run(run.id, state)
    return place


def kernels(result):
    return {p.record.case.kernel for p in result.points}


def test_runs_are_named_or_searched(url):
    (soft, _), (copied, _) = synthetic.softmax(), synthetic.copy()
    assert kernels(sheet([soft.id], database=url)) == {"softmax"}
    assert kernels(sheet([soft.id, copied.id, soft.id], database=url)) == {"softmax", "copy"}
    assert kernels(sheet(kernel="copy", database=url)) == {"copy"}
    assert kernels(sheet(device="NVIDIA H200", database=url)) == {"softmax", "copy"}
    few, every = (sheet([copied.id], everything=e, database=url) for e in (False, True))
    assert len(few.points) < len(every.points) == 15  # 12 configs, two libraries, one hot
    with pytest.raises(ReportError, match="no run of nosuch on h100"):
        sheet(kernel="nosuch", device="h100", database=url)
    with pytest.raises(ReportError, match="not both"):
        sheet([soft.id], kernel="copy", database=url)


def test_the_newest_complete_ceilings_of_the_device_count(url):
    result = sheet([synthetic.softmax()[0].id], database=url)
    best = result.ceilings["NVIDIA H200"].best("dram")
    assert (best.value, best.run, best.low) == (2e12, "ceilings-20", 1.9e12)


def test_an_events_file_needs_no_database(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for run, outcomes in (synthetic.softmax(), synthetic.copy()):
            for event in (run, *outcomes):
                log.write(event)
    assert kernels(sheet([str(path)])) == {"softmax", "copy"}, "all runs of the file"


def test_all_that_is_asked_for_is_written(url, tmp_path, capsys):
    out = {name: tmp_path / "made" / f"r.{name}" for name in ("html", "csv", "json", "svg")}
    words = ["report", "roofline", "--device", "NVIDIA H200", "--database", url]
    words += [
        "--out",
        out["html"],
        "--csv",
        out["csv"],
        "--json",
        out["json"],
        "--figure",
        out["svg"],
    ]
    assert cli.main(list(map(str, words))) == 0
    assert capsys.readouterr().out.split("report  ")[1:] == [f"{path}\n" for path in out.values()]
    assert b"<svg" in out["svg"].read_bytes()
    text = json.loads(out["json"].read_text())["points"]
    assert len(out["csv"].read_text().splitlines()) == len(text) + 1
    assert sorted(p.name for p in out["html"].parent.iterdir()) == sorted(
        p.name for p in out.values()
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("roofline", "last", "--figure", "x.jpg"), "end its name in .png, .svg or .pdf"),
        (("roofline", "nosuch"), "holds no run 'nosuch'"),
        (("sweep", "last", "--csv", "x.csv"), "--csv is an option of the roofline"),
        (("sweep", "a", "b"), "draws one run, and 2 are named"),
        (("rooflin", "last"), "did you mean roofline?"),
    ],
)
def test_errors_are_one_sentence(url, words, text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert cli.main(["report", *words, "--database", url]) == 2
    message = capsys.readouterr().err
    assert text in message and message.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before, "nothing was written"


def test_a_place_that_cannot_be_written_to_is_said(url, tmp_path):
    (tmp_path / "file").touch()
    last = synthetic.softmax()[0].id
    with pytest.raises(ReportError, match="cannot be written to"):
        make(ReportOptions("roofline", (last,), out=tmp_path / "file" / "p.html", database=url))


def test_all_files_are_written_or_none(url, tmp_path):
    (tmp_path / "file").touch()
    good, bad = tmp_path / "new" / "p.html", tmp_path / "file" / "p.csv"
    last = synthetic.softmax()[0].id
    for option, csv, text in (
        ("--csv", bad, "cannot be written to"),
        ("--csv", tmp_path, "is a folder; name the file in it: --csv FILE"),
        ("--csv", good, "--out and --csv both name"),
    ):
        with pytest.raises(ReportError, match=text) as message:
            make(ReportOptions("roofline", (last,), out=good, csv=csv, database=url))
        assert option in str(message.value)
        assert not good.exists() and not list(tmp_path.rglob("*.tmp"))


def test_what_is_unreadable_is_said(url, tmp_path, capsys):
    run, outcomes = synthetic.softmax()
    file = tmp_path / "events.jsonl"
    with EventLog(file) as log:
        log.write(run)
        for outcome in outcomes:
            log.write(outcome)
    make(ReportOptions("roofline", (str(file),), out=tmp_path / "p.html", database=url))
    assert capsys.readouterr().err == ""
    file.write_bytes(file.read_bytes()[:-20])
    make(ReportOptions("roofline", (str(file),), out=tmp_path / "p.html", database=url))
    assert "1 line is unreadable and left out, the first is line" in capsys.readouterr().err


def test_pages_lie_beside_their_runs(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    soft, copied = synthetic.softmax()[0].id, synthetic.copy()[0].id
    one = make(ReportOptions("roofline", (soft,), database=url))[0]
    two = make(ReportOptions("roofline", (soft, copied), database=url))[0]
    assert one == tmp_path / "results" / soft / "roofline.html"
    assert two == tmp_path / "results" / "roofline.html"
