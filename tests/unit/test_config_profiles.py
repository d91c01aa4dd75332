"""`--also profile` of sweep, measure and compare, with a small program in the place of ncu."""

import csv
import gzip
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from null_backend import Null
from nullside import KERNEL
from synthetic import softmax

from workbench.cli import main
from workbench.commands import config_profiles
from workbench.commands.compare import CompareOptions
from workbench.commands.compare_command import CompareCommand
from workbench.commands.console import SweepConsole, console_for
from workbench.commands.measure import MeasureOptions
from workbench.commands.measure_command import MeasureCommand
from workbench.commands.options import CommandError
from workbench.commands.report import ReportOptions
from workbench.commands.report_pages import make, stored_run
from workbench.commands.sweep import SweepOptions
from workbench.commands.sweep_command import SweepCommand
from workbench.data.record import Evidence, Profile, Record
from workbench.reports.figures.profiled import _profiled_config, profiled_table
from workbench.reports.figures.profiled_traffic import ProfiledCalls, bytes_at, excess
from workbench.traces.profilers import ToolRun, profilers
from workbench.traces.profilers.running.child import ChildEnd
from workbench.traces.profilers.running.machine import Machine

pytestmark = pytest.mark.unit

RAW = Path(__file__).parents[1] / "golden" / "traces" / "h200" / "raw_base.csv.gz"
NCU = """#!{python} -S
import os, sys
words = sys.argv[1:]
def value(name):
    return words[words.index(name) + 1]
if "--import" in words:
    folder = os.path.dirname(value("--import"))
    slow = "num_warps=4" in open(os.path.join(folder, "call.py")).read()
    print(open({pages!r}[slow]).read(), end="")
    sys.exit(0)
open(value("--log-file"), "w").write("==PROF== Connected\\n")
if {report!r}:
    open(value("-o") + ".ncu-rep", "wb").write(b"NVR" + bytes(1))
"""


def pages(folder):
    """Raw pages of ncu with one launch each: the first two kernels of a real report."""
    rows = list(csv.reader(io.StringIO(gzip.decompress(RAW.read_bytes()).decode())))
    begin = next(n for n, row in enumerate(rows) if row[:1] == ["ID"])
    paths = []
    for number in (0, 1):
        chosen = [*rows[begin : begin + 2], rows[begin + 2 + number]]
        text = io.StringIO()
        csv.writer(text, quoting=csv.QUOTE_ALL).writerows(chosen)
        path = folder / f"raw{number}.csv"
        path.write_text(text.getvalue())
        paths.append(str(path))
    return paths


class Place:
    """A kernel, a database, and a machine with a GPU and ncu that are none."""

    def __init__(self, folder, monkeypatch, report=True):
        self.folder, self.url = folder, f"sqlite:///{folder / 'h.db'}"
        (folder / "toy.py").write_text(KERNEL)
        program = folder / "ncu"
        text = NCU.format(python=sys.executable, pages=pages(folder), report=report)
        program.write_text(text)
        program.chmod(0o755)
        versions = {"torch": "2.11.0", "triton": "3.6.0"}
        machine = Machine(sys.executable, "cuda", versions, {}, {"ncu": str(program)})
        monkeypatch.setattr(config_profiles, "machine_here", lambda: machine)

    def run(self, name, predicts=False, **more):
        null = Null(predicts=predicts)
        kernel, tuned = str(self.folder / "toy.py"), self.folder / "tuned.json"
        kept = {"out": self.folder / "results", "database": self.url, "also": ("profile",), **more}
        if name == "sweep":
            wanted = SweepOptions("tile_size", kernel, **kept)
            return SweepCommand(wanted, SweepConsole(True), lambda *_: null, tuned).go()
        if name == "measure":
            wanted = MeasureOptions(kernel, **kept)
            return MeasureCommand(wanted, console_for(wanted), lambda *_: null, tuned).go()
        wanted = CompareOptions("blocks", "blocks:num_warps=4", kernel=(kernel,), **kept)
        return CompareCommand(wanted, console_for(wanted), lambda *_: null).go()

    def page(self):
        (path,) = self.folder.glob("results/*/report.html")
        return path.read_text()


@pytest.fixture
def place(tmp_path, monkeypatch):
    return Place(tmp_path, monkeypatch)


@pytest.mark.parametrize(("name", "configs"), [("sweep", 1), ("measure", 1), ("compare", 2)])
def test_profiles_are_stored_with_the_run_and_drawn(place, name, configs):
    file = place.folder / "result.json"
    code = place.run(name, json=file)
    kept = stored_run("last", place.url)
    assert code in (0, 1) and kept.run.engine == name
    assert len(kept.profiles) == configs
    keys = {o.key for o in kept.outcomes if isinstance(o, Record)}
    assert {p.outcome for p in kept.profiles} <= keys and kept.profiles[0].metrics
    (run,) = json.loads(file.read_text())["runs"]
    assert [p["outcome"] for p in run["profiles"]] == [p.outcome for p in kept.profiles]
    page = place.page()
    assert '<h2 id="h-profiled">Profiled</h2>' in page and "time under ncu" in page
    assert ('<th scope="col">change</th>' in page) == (configs == 2)
    (again,) = make(ReportOptions(name, ("last",), out=place.folder / "again.html",
                                  database=place.url))  # fmt: skip
    assert "time under ncu" in again.read_text()
    assert len(list(place.folder.glob("results/*/profile_*/call.py"))) == configs


def test_a_tool_that_gives_nothing_costs_no_time(tmp_path, monkeypatch, capfd):
    place = Place(tmp_path, monkeypatch, report=False)
    trace = profilers()["trace"]

    def tried(tool, machine, workload, folder, *rest, **more):
        if tool is trace:
            return ToolRun(workload, folder, ChildEnd(1), ())
        return real(tool, machine, workload, folder, *rest, **more)

    real = config_profiles.run_tool
    monkeypatch.setattr(config_profiles, "run_tool", tried)
    assert place.run("measure") == 0
    err = capfd.readouterr().err
    assert "trace records toy.blocks" in err and "is not profiled" in err
    kept = stored_run("last", place.url)
    assert not kept.profiles and any(isinstance(o, Record) for o in kept.outcomes)


def test_ctrl_c_keeps_the_times_and_what_was_profiled(place, monkeypatch):
    ended = []

    def stopped(tool, machine, workload, folder, *rest, **more):
        ended.append(folder)
        if len(ended) == 1:
            return real(tool, machine, workload, folder, *rest, **more)
        return ToolRun(workload, folder, ChildEnd(130, stop_signal=2), ())

    real = config_profiles.run_tool
    monkeypatch.setattr(config_profiles, "run_tool", stopped)
    assert place.run("compare") == 130
    kept = stored_run("last", place.url)
    assert len(kept.profiles) == 1 and kept.comparisons


def test_each_profile_is_stored_and_the_page_is_there_before_the_next(place, monkeypatch):
    """So a kill costs the config that is being profiled alone."""
    seen = []

    def before(tool, machine, workload, folder, *rest, **more):
        seen.append((len(stored_run("last", place.url).profiles), "Both operands" in place.page()))
        return real(tool, machine, workload, folder, *rest, **more)

    real = config_profiles.run_tool
    monkeypatch.setattr(config_profiles, "run_tool", before)
    assert place.run("compare") in (0, 1)
    assert seen == [(0, True), (1, True)]


@pytest.mark.parametrize("name", ["sweep", "measure", "compare"])
def test_where_nothing_runs_it_is_refused_before_any_work(place, name):
    with pytest.raises(CommandError, match="nothing runs that could be profiled"):
        place.run(name, predicts=True)
    assert not list(place.folder.glob("results/*"))


def test_what_is_not_measured_is_not_profiled(tmp_path, capfd):
    for name in "ab":
        (tmp_path / f"{name}.json").write_text("[]")
    code = main(
        ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--also", "profile"]
    )
    assert code == 2 and len(capfd.readouterr().err.splitlines()) == 1


# The table

METRICS = st.dictionaries(
    st.sampled_from(["dram_throughput", "occupancy", "dram_bytes", "stall_barrier", "l2_hit"]),
    st.floats(0, 1), max_size=5,
)  # fmt: skip


@given(st.lists(st.tuples(METRICS, st.floats(1e-7, 1e-2)), min_size=1, max_size=4))
def test_each_row_has_a_cell_for_each_config(known):
    records = [o for o in softmax()[1] if isinstance(o, Record)][: len(known)]
    profiles = [
        Profile("r", "t", "ncu", "", "0", "_rows", launch="0", total_s=spent, outcome=record.key,
                metrics=tuple(Evidence(n, v, "1", "profiled") for n, v in metrics.items()))
        for record, (metrics, spent) in zip(records, known, strict=True)
    ]  # fmt: skip
    table = profiled_table(profiles, records)
    assert all(len(row) == len(table.heads) for row in table.rows)
    assert len(table.heads) == len(known) + 1 + (len(known) == 2)
    titles = [row[0] for row in table.rows]
    assert titles[0] == "limited by" and len(set(titles)) == len(titles)
    assert profiled_table(profiles, []) is None


def test_launches_of_a_trace_are_those_of_one_call():
    """Two calls: three launches of one kernel in each, and one of another."""
    (record, *_) = (o for o in softmax()[1] if isinstance(o, Record))
    profiles = [
        Profile("r", "t", "nsys", "", "0", name, count=count, total_s=total, outcome=record.key)
        for name, count, total in (("a", 6, 3e-6), ("b", 2, 1e-6))
    ]
    result = _profiled_config("t", record, profiles)
    assert (result.launches, result.spent_s) == (4, pytest.approx(2e-6))


# On the roofline


def test_a_profiled_config_has_its_traffic_on_the_roofline(place):
    place.run("measure")
    file = place.folder / "points.csv"
    figure = place.folder / "roof.svg"
    options = ReportOptions(
        "roofline", ("last",), out=place.folder / "roof.html", csv=file, figure=figure,
        database=place.url,
    )  # fmt: skip
    (page, *_) = make(options)
    rows = [row for row in csv.DictReader(file.open()) if row["impl"] == "blocks"]
    cold = next(row for row in rows if row["regime"] == "cold")
    hot = next(row for row in rows if row["regime"] == "hot")
    (profile,) = stored_run("last", place.url).profiles
    dram = next(e.value for e in profile.metrics if e.name == "dram_bytes")
    assert float(cold["profiled_dram_bytes"]) == dram and not hot["profiled_dram_bytes"]
    assert float(cold["profiled_l2_bytes"]) > 0 and float(cold["profiled_l1_bytes"]) > 0
    text = page.read_text()
    assert 'data-word="P-dram"' in text and "profiled by ncu" in text
    assert figure.stat().st_size > 1000


@given(st.lists(st.tuples(st.floats(1, 1e12), st.floats(1, 1e12), st.booleans()), min_size=1,
                max_size=5))  # fmt: skip
def test_traffic_is_the_sum_of_a_calls_launches(launches):
    """Where a launch lacks a counter, its level is not known."""
    record = next(o for o in softmax()[1] if isinstance(o, Record) and o.is_measured)
    profiles = [
        Profile("r", "t", "ncu", "", "0", "k", launch=str(n), outcome=record.key, metrics=(
            Evidence("dram_bytes", dram, "B", "profiled"),
            *([Evidence("l2_bytes", l2, "B", "profiled")] if known else []),
        ))
        for n, (dram, l2, known) in enumerate(launches)
    ]  # fmt: skip
    traffic = ProfiledCalls.select(profiles).traffic(record)
    assert bytes_at(traffic, "dram") == pytest.approx(sum(dram for dram, _, _ in launches))
    whole = all(known for _, _, known in launches)
    assert (bytes_at(traffic, "cache") is not None) == whole
    assert bytes_at(traffic, "shared") is None
    assert excess(record, traffic) == pytest.approx(bytes_at(traffic, "dram") / record.bytes)


@given(st.floats(1, 1e15), st.floats(1, 1e15), st.sampled_from([None, "mma", "tcgen05"]))
def test_flops_of_a_profiled_config_are_those_of_its_unit(vector, matrix, unit):
    """Declared ones stand in where the unit's are not counted."""
    record = next(o for o in softmax()[1] if isinstance(o, Record) and o.is_measured)
    record = replace(record, resources=replace(record.resources, matrix_unit=unit))
    counted = {"dram_bytes": 1e6, "vector_flop": vector, "matrix_flop": matrix}
    own = "matrix_flop" if unit else "vector_flop"
    for left_out, flops in ((None, counted[own]), (own, record.flops)):
        metrics = tuple(
            Evidence(n, v, "B", "profiled") for n, v in counted.items() if n != left_out
        )
        profile = Profile("r", "t", "ncu", "", "0", "k", launch="0", outcome=record.key,
                          metrics=metrics)  # fmt: skip
        (dram,) = ProfiledCalls.select([profile]).traffic(record)
        assert dram.flops == flops
