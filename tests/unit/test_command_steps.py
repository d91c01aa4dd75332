"""Steps of commands with fakes that record calls: what they start, keep, ask and leave, by hand."""

import io
import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest
import synthetic

from workbench.api import notebook, outcome_table, results
from workbench.commands import (
    history,
    instrumentation,
    profiled_kernel,
    stored,
    workload_export,
    workload_run,
)
from workbench.commands.options import OptionError
from workbench.commands.workload_record import WorkloadRecordOptions
from workbench.data import user_code
from workbench.data.database import HistoryError
from workbench.data.record import Record
from workbench.reports import page_drawing
from workbench.revisions import bisection
from workbench.workload import program_runner
from workbench.workload.errors import WorkloadError

pytestmark = pytest.mark.unit

RECORDS = [o for o in synthetic.matmul()[1] if isinstance(o, Record)]
PREDICTED = [o for o in synthetic.matmul(predicted=True)[1] if isinstance(o, Record)]


def test_the_script_of_the_user_is_unseen_and_comes_back(monkeypatch):
    main = SimpleNamespace(__file__="mine.py", __spec__="spec")
    monkeypatch.setitem(sys.modules, "__main__", main)
    with user_code.hide_main():
        assert not hasattr(main, "__file__") and main.__spec__ is None
    assert (main.__file__, main.__spec__) == ("mine.py", "spec")


def test_pages_are_written_and_the_first_error_is_raised_at_the_end(monkeypatch, tmp_path):
    calls = []

    class Process:
        def ask(self, call, run, *what, timeout_s):
            calls.append((run, timeout_s))
            if run == "lost":
                raise page_drawing.LOST[0]("died")
            if run == "odd":
                raise KeyError(run)
            return f"page of {run}"

        def end(self):
            calls.append("end")

    monkeypatch.setattr(page_drawing, "Solo", Process)
    monkeypatch.setattr(page_drawing, "DRAWING", nullcontext())
    monkeypatch.setattr(page_drawing, "page_of", lambda run, *_: f"drawn here: {run}")
    monkeypatch.setattr(page_drawing, "write_run_page", lambda *words: calls.append(words))
    one = page_drawing.PageDrawing()
    assert one.begin(tmp_path, "a", [], None, []) == tmp_path / "report.html"
    one.begin(tmp_path, "odd", [], None, [])
    one.begin(tmp_path, "lost", [], None, [])
    with pytest.raises(KeyError, match="odd"):
        one.finish()
    assert calls == [("a", 120.0), (tmp_path, "page of a"), ("odd", 120.0), ("lost", 120.0),
                     (tmp_path, "drawn here: lost"), "end"]  # fmt: skip


def test_a_program_is_there_and_its_processes_heed_the_startup(monkeypatch):
    ls, last = program_runner.program_words(["ls", "a"])
    assert (Path(ls).name, last) == ("ls", "a")
    with monkeypatch.context() as patched:
        patched.setattr(program_runner, "whole_command", lambda *_: ["./not-there"])
        with pytest.raises(WorkloadError, match=r"no program \./not-there"):
            program_runner.program_words(["x"])
    monkeypatch.setenv("PYTHONPATH", "mine")
    own = str(Path(program_runner.sitecustomize.__file__).parent)
    assert program_runner.startup_variables({"A": "1"}) == {"PYTHONPATH": f"{own}:mine", "A": "1"}
    monkeypatch.delenv("PYTHONPATH")
    assert program_runner.startup_variables({}) == {"PYTHONPATH": own}
    for target in ((), ("--",), ("--", "", "x")):
        with pytest.raises(OptionError, match="No program is named; write: u"):
            WorkloadRecordOptions(target=target).check_program("u")
    WorkloadRecordOptions(target=("--", "x")).check_program("u")


@pytest.mark.parametrize(
    ("stopped", "ended", "ranks", "code"),
    [(None, 3, "", 3), (None, 0, "", 0), (2, 0, "", "stopped by 2"), (None, 0, "differ", 2),
     (None, 3, "differ", 3)],
)  # fmt: skip
def test_a_run_ends_as_its_program_or_by_a_difference(monkeypatch, stopped, ended, ranks, code):
    said, written = [], []
    table = Path("t.json")
    monkeypatch.setattr(workload_run, "check_options", lambda options: None)
    monkeypatch.setattr("workbench.workload.program_runner.program_words", list)
    monkeypatch.setattr(workload_run, "prints_aside", lambda options: False)
    end = SimpleNamespace(stop_signal=stopped, code=ended)
    child = "workbench.traces.profilers.running.child.run_child"
    monkeypatch.setattr(child, lambda words, **more: end)
    monkeypatch.setattr(workload_run, "stopped_by", lambda signal: f"stopped by {signal}")
    monkeypatch.setattr(workload_run, "differing", lambda processes: ranks)
    monkeypatch.setattr(workload_run, "console_for", lambda options: "console")
    monkeypatch.setattr(workload_run, "say_result", lambda console, text: said.append(text))
    monkeypatch.setattr("workbench.commands.result.write_result",
        lambda *words, **more: written.append((words[2], more["difference"])) or words[2],
    )  # fmt: skip
    monkeypatch.setattr(workload_run, "COULD_NOT_RUN", 2)
    options = SimpleNamespace(program=["x"], policy="tune", verify=True, tuned=table)
    assert workload_run.run(options) == code and written == [(code, ranks or None)]
    assert said == [
        "t.json: no key of an autotuned function was looked up.",
        *filter(None, [ranks]),
    ]
    options.verify = False
    assert workload_run.run(options) == ("stopped by 2" if stopped else ended)


def test_what_is_left_out_of_an_export_is_counted():
    entries = [SimpleNamespace(module="m", function=f) for f in "aab"]
    left = SimpleNamespace(left_out=[(e, "x") for e in entries])
    assert workload_export.reasons(left) == {("m.a", "x"): 2, ("m.b", "x"): 1}


def test_columns_that_are_empty_are_left_out():
    table = ["aa", "bb", "cc"], [("1", "", ""), ("", "", "3")]
    html = notebook.card("kind", False, "sentence", table)
    assert re.findall(r"<th[^>]*>(\w+)", html) == ["aa", "cc"]


def test_outcomes_are_by_phase_and_time_with_their_intervals():
    heads, rows = outcome_table.outcome_table(RECORDS[:3], [])
    assert heads == outcome_table.HEADS and len(rows) == 3
    times = [f"{1e6 * r.time_s:.2f} µs" for r in sorted(RECORDS[:3], key=lambda r: r.time_s)]
    assert [r[3] for r in rows] == times
    assert " to " in rows[0][4] and rows[0][6].endswith(", first pass")
    heads, rows = outcome_table.outcome_table([RECORDS[0], PREDICTED[0]], [])
    assert heads == outcome_table.PREDICTED_HEADS and rows[0][3].startswith("~")
    assert rows[0][6] == "predicted" and rows[0][5].count("~") == 2 and "~" not in rows[1][5]


def test_sentences_of_profiles_and_of_a_history():
    def profiled(*totals):
        profiles = [SimpleNamespace(name=f"k{n}", total_s=t, tool="ncu", count=n + 1)
                    for n, t in enumerate(totals)]  # fmt: skip
        one = results.ProfileResult.__new__(results.ProfileResult)
        result = SimpleNamespace(runs=[SimpleNamespace(profiles=profiles)])
        one.__dict__["_called"] = SimpleNamespace(result=result)
        return one

    one = profiled(1e-3, 3e-3, None)
    assert one.sentence.startswith("3 kernels by ncu; k1 takes longest, 3")
    assert [r[0] for r in one._table()[1]] == ["k1", "k0", "k2"] and one._table()[1][2][2] == ""
    assert profiled(None).sentence.startswith("The tool timed no kernel")
    kept = results.HistoryResult.__new__(results.HistoryResult)
    more = {"measured": [{"at": "1"}, {"at": "3"}], "predicted": [{"at": "2"}]}
    kept.__dict__["_called"] = SimpleNamespace(result=SimpleNamespace(more=more))
    assert kept.sentence == "3 outcomes: 2 measured, 1 predicted." and kept.predicted
    more["predicted"] = []
    assert not kept.predicted and [row["at"] for row in kept.rows] == ["3", "1"]


def test_events_of_a_time_name_what_measured_it():
    run = synthetic.matmul()[0]
    record = next(r for r in RECORDS if r.phase == "final")
    done = instrumentation.completion_event(run, record, "x")
    assert done.device_us == pytest.approx(record.time_s * 1e6) and done.predicted_us is None
    assert done.op_path.startswith("sweep/tile_size/matmul/") and done.op_path.endswith("/x/final")
    assert "4096" not in done.op_path
    hosts = {"device": (2e6, 5e6), "host": (None, 2e6)}  # by its own clock, of 2 s and 5 s
    for method, times in hosts.items():
        clock = replace(record.timing, median_s=2.0, host_s=5.0, method=method)
        done = instrumentation.completion_event(run, replace(record, timing=clock))
        assert (done.device_us, done.host_us) == times
    guess = instrumentation.completion_event(run, PREDICTED[0])
    assert guess.predicted and guess.device_us is guess.host_us is None
    assert guess.predicted_us == pytest.approx(PREDICTED[0].time_s * 1e6)
    several = SimpleNamespace(name="n", engine="other", sizes={}, dtype="bf16")
    path = instrumentation.op_path(several, record.case)
    assert path.startswith("other/matmul/") and "M=4096" in path and "bf16" in path
    bare = SimpleNamespace(resources=None, kernel="k", grid=(1, 1, 1), shapes=(), launches=1)
    assert list(instrumentation.dispatch_events(run, record.case, bare)) == []
    full = SimpleNamespace(
        resources=record.resources, kernel="k", grid=(3, 1, 1), shapes=(), launches=2
    )
    (event,) = instrumentation.dispatch_events(run, record.case, full)
    assert (event.grid, event.launches, event.registers) == (
        (3, 1, 1),
        2,
        record.resources.registers,
    )


@pytest.mark.parametrize(("answer", "agreed"), [("y\n", True), (" YES \n", True), ("\n", False)])
def test_a_user_is_asked_before_anything_is_deleted(monkeypatch, answer, agreed):
    said = []
    stdin = io.StringIO(answer)
    stdin.isatty = lambda: True
    monkeypatch.setattr(history.sys, "stdin", stdin)
    monkeypatch.setattr(history, "say", said.append)
    assert history._confirm() is agreed
    assert said == ["Delete them? [y/N]", *([] if agreed else ["Nothing was deleted."])]
    stdin.isatty = lambda: False
    with pytest.raises(HistoryError, match="add --yes"):
        history._confirm()


def test_moments_and_damaged_rows():
    spans = {"2h": 7200.0, "3d": 259200.0, "1w": 604800.0, "1y": 31536000.0}
    assert {text: 1e9 - history._parse_moment(text, 1e9) for text in spans} == spans
    text = {n: stored.damage_text(SimpleNamespace(damaged=n, name="h")) for n in (1, 2)}
    assert text[1].startswith("1 row of h cannot be used and is left out")
    assert text[2].startswith("2 rows of h cannot be used and are left out")


def test_a_bisection_is_over_where_every_other_candidate_was_skipped():
    one = bisection.Bisection.__new__(bisection.Bisection)
    one.candidates = ["c", "b", "a"]
    marks = ("b", "skip"), ("x", "good"), ("a", "good")
    one.steps = [SimpleNamespace(commit=c, decision=SimpleNamespace(mark=m)) for c, m in marks]
    assert not one.is_over
    one.steps[2].decision.mark = "skip"
    assert one.is_over
    one.steps, one.candidates = [], ["c"]
    assert one.is_over


def test_a_new_capture_has_a_name_of_its_own(tmp_path):
    day = date(2026, 11, 24)
    first = tmp_path / "softmax_2026-11-24.gputrace"
    assert profiled_kernel.trace_path("softmax", day, tmp_path) == first
    first.mkdir()
    second = tmp_path / "softmax_2026-11-24_2.gputrace"
    assert profiled_kernel.trace_path("softmax", day, tmp_path) == second
    second.mkdir()
    assert (
        profiled_kernel.trace_path("softmax", day, tmp_path).name == "softmax_2026-11-24_3.gputrace"
    )
    options = SimpleNamespace(impl="rows", sizes=None, dtype="bf16", calls=4)
    assert profiled_kernel.words_of(options, "calls") == [
        *("--impl", "rows", "--dtype", "bf16", "--calls", "4"),
    ]
