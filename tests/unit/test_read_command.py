"""`workbench read`: tables, files, exit codes."""

import csv
import io
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.commands.read import ReadOptions, run, summarise
from workbench.commands.trace_tables import kpi_text
from workbench.traces.readers import read
from workbench.traces.trace import ActivityKind, CounterValue, Dispatch, Trace
from workbench.traces.trace_export import cell, json_text, kernels_csv

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "traces"
EAGER = GOLDEN / "h200" / "eager_trace.json.gz"
RAW = GOLDEN / "h200" / "raw_base.csv.gz"

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Pages go into the folder `results` of the current one."""
    monkeypatch.chdir(tmp_path)


def said(capsys, *words):
    code = main(["read", *map(str, words)])
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def test_a_timeline_is_shown_with_its_targets(capsys):
    code, out, _ = said(capsys, EAGER)
    assert code == 0 and "NVIDIA H200" in out
    rows = {line.split("  ")[0]: line for line in out.splitlines()}
    assert "32.07 %" in rows["GPU utilisation"] and "> 80 %" in rows["GPU utilisation"]
    assert "no" in rows["GPU utilisation"].split() and "< 1 µs" in rows["mean gap"]
    assert "> 70 %" in rows["launch efficiency"] and "715.18" in rows["idle: host wait"]
    assert any(line.startswith("void sgemm_largek") for line in out.splitlines())


def test_counters_are_shown_by_kernel(capsys):
    code, out, _ = said(capsys, RAW)
    first = next(line for line in out.splitlines() if line.startswith("mm "))
    assert code == 0 and "80.34 %" in first and "lg_throttle" in first
    assert "needs a timeline" in out


def test_a_checker_is_shown_with_its_verdict(capsys):
    code, out, _ = said(capsys, GOLDEN / "h200" / "oob.log.gz")
    assert code == 1 and "memcheck: fail (514 errors)" in out and "oob+0x160 in bad.py:5" in out


@pytest.mark.parametrize(
    "words", [("absent.json",), (GOLDEN / "h200" / "full.log",), (EAGER, "--range", "nowhere")]
)
def test_nothing_usable_ends_with_2_and_one_sentence(capsys, words):
    code, out, err = said(capsys, *words)
    assert code == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1


def test_a_range_is_of_what_was_launched_in_it():
    path = GOLDEN / "torch_profiler" / "tracelens_h100_bert_small.json.gz"
    whole = summarise(read([path]))
    part = summarise(read([path], range_name="aten::addmm"), "aten::addmm")
    assert 0 < part.times[0].kernel_count < whole.times[0].kernel_count


def test_all_of_it_as_json(tmp_path):
    file = tmp_path / "all.json"
    assert run(ReadOptions((str(EAGER),), json=file)) == 0
    whole = json.loads(file.read_text())
    kpis = {kpi["name"]: kpi for kpi in whole["kpis"]["0"]}
    assert kpis["kernel count"]["value"] == 33 and kpis["GPU utilisation"]["target"] == "> 80 %"
    assert kpis["total time"]["value"] == pytest.approx(1.108896e-3)
    assert whole["kind"] == "profiled" and len(whole["files"][0]["sha256"]) == 64
    assert sum(row["count"] for row in whole["kernels"]) == 33


def test_metrics_as_json_and_csv(tmp_path):
    table, whole = tmp_path / "k.csv", tmp_path / "all.json"
    assert run(ReadOptions((str(RAW),), csv=table, json=whole)) == 0
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [row["duration_ns"] for row in rows] == ["44544", "186816", "1717728"]
    assert float(rows[1]["dram_bytes (B)"]) == 186_625_536 + 28_370_944
    (_, mm, _) = json.loads(whole.read_text())["dispatches"]
    assert mm["metrics"]["occupancy"]["source"].startswith("sm__warps_active")
    assert mm["geometry"]["grid"] == [512, 1, 1]


def test_a_timeline_for_perfetto(tmp_path):
    """Kernels, gaps that fill the idle time, and an arrow from each launch to its kernel."""
    file = tmp_path / "t.json"
    assert run(ReadOptions((str(EAGER),), perfetto=file)) == 0
    events = json.loads(file.read_text())["traceEvents"]
    kinds = Counter(event["ph"] for event in events)
    assert kinds["s"] == kinds["f"] == 36  # 33 kernels and 3 sets
    times = summarise(read([EAGER])).times[0]
    causes = ("host wait", "step", "dependency")
    gaps = [event for event in events if event["ph"] == "X" and event["name"] in causes]
    idle = times.window - times.busy.length
    assert sum(event["dur"] for event in gaps) * 1000 == pytest.approx(idle)
    boxes = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
    arrows = [e for e in events if e["ph"] in "sf"]
    assert all((e["pid"], e["tid"], e["ts"]) in boxes for e in arrows)
    assert all(e["ts"] >= 0 for e in events if e["ph"] == "X" and e["pid"] > 0)


def test_a_perfetto_file_is_a_trace_that_is_read_again(tmp_path):
    file = tmp_path / "t.json"
    run(ReadOptions((str(EAGER),), perfetto=file))
    assert len(read([file]).activities) > 33


def test_without_a_timeline_nothing_is_written(tmp_path, capsys):
    code, _, err = said(capsys, RAW, "--perfetto", tmp_path / "t.json")
    assert code == 2 and "has no timeline" in err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["=1+1", "+1", "@SUM(A1)", "-1", "\t=1"])
def test_a_name_is_no_formula(text):
    assert cell(text) == f"'{text}" and cell("k") == "k"
    trace = Trace("t", dispatches=[Dispatch(text, counters={"a": CounterValue("a", 1.0)})])
    assert list(csv.reader(io.StringIO(kernels_csv(trace, []))))[1][0].startswith("'")


def test_numbers_that_are_not_finite_are_null():
    assert json.loads(json_text({"a": float("nan"), "b": [float("inf"), 1.5]})) == {
        "a": None,
        "b": [None, 1.5],
    }


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(None, "s", "-"), (0.5, "1", "50.00 %"), (33, "kernels", "33"), (1e-3, "s", "1000.0 µs")],
)
def test_values_with_their_units(value, unit, text):
    assert kpi_text(value, unit) == text


def test_control_characters_of_names_are_not_printed(tmp_path, capsys):
    event = {"ph": "X", "cat": "kernel", "name": "k\x1b[31m<b>", "pid": 0, "tid": 7, "ts": 1,
             "dur": 2, "args": {"device": 0}}  # fmt: skip
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    code, out, _ = said(capsys, path)
    assert code == 0 and "\x1b" not in out and "k[31m<b>" in out


def test_a_device_without_launches_is_said(tmp_path, capsys):
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"device": 0}}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    _, out, _ = said(capsys, path)
    assert "no launch is in the file" in out


def test_reading_needs_neither_torch_nor_triton():
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "triton", "msgspec", "pandas"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from workbench.cli import main
sys.exit(main(["read", {str(EAGER)!r}]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "GPU utilisation" in done.stdout


def test_operations_of_the_host_alone_are_shown_by_their_own_time(capsys):
    path = GOLDEN / "torch_profiler" / "hta_cupti_profiler_counters.json.gz"
    trace = read([path])
    _, out, _ = said(capsys, path)
    assert "host operation" in out and "own time" in out and "GPU utilisation" not in out
    assert not list(trace.activities.select(ActivityKind.KERNEL))
