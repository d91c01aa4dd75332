"""One contract for all commands: --events-file, --events, --quiet and --json, and the two events of
every time, on the null side."""

import json
import os
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from null_backend import ENVIRONMENT, Fate, Null
from nullside import KERNEL
from synthetic import softmax

import workbench
from workbench import cli
from workbench.commands import evaluate_kernel, experiment_command
from workbench.commands.ceilings import CeilingsOptions
from workbench.commands.ceilings_command import CeilingsCommand
from workbench.commands.compare import CompareOptions
from workbench.commands.compare_command import CompareCommand
from workbench.commands.console import SweepConsole, console_for, prints_aside
from workbench.commands.evaluate import EvaluateOptions
from workbench.commands.evaluate_kernel import Evaluation
from workbench.commands.experiment import ExperimentOptions
from workbench.commands.experiment_command import ExperimentCommand
from workbench.commands.gate import GateOptions
from workbench.commands.gate_command import GateCommand
from workbench.commands.instrumentation import completion_event, dispatch_events, op_path
from workbench.commands.measure import MeasureOptions
from workbench.commands.measure_command import MeasureCommand
from workbench.commands.options import CommandError, commands
from workbench.commands.result import MEANINGS, json_text
from workbench.commands.sweep import SweepOptions
from workbench.commands.sweep_command import SweepCommand
from workbench.compile import Compiled, LaunchShape
from workbench.data.clock import timestamp
from workbench.data.events import (
    EventLog,
    KernelDispatched,
    OpCompleted,
    RunFinished,
    read,
)
from workbench.data.record import Failure, Measured, Record, Run
from workbench.device.hardware import DEVICES
from workbench.evaluation.problem import SpecFacts
from workbench.evaluation.submission import Submission, Wanted
from workbench.evaluation.times import EvaluatedTimes
from workbench.evaluation.verdict import RuleResult, verdict_of
from workbench.experiments import Analysis, Experiment, Variant
from workbench.measurement.rules import RULES

pytestmark = pytest.mark.unit

STDOUT = Path("-")
OBTAIN = ("sweep", "measure", "compare", "gate", "experiment", "ceilings", "evaluate")
LIST = ("report", "read", "diagnose", "history", "tuned", "devices", "doctor")


def git(folder, *words):
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(folder), *name, *words], check=True, capture_output=True)


def variants(context):
    sizes = {"N": 4096}
    return [
        Variant("cold", "copy", "blocks", sizes, context.dtype),
        Variant("1/8", "copy", "blocks", sizes, context.dtype, regime="hot"),
        Variant("odd", "copy", "blocks", sizes, context.dtype, config={"block_n": 65536}),
    ]


def analyse(context, results):
    return [Analysis("seen", "It has a time.", [])]


class Place:
    """A repository with a kernel in it, and every command that obtains outcomes."""

    def __init__(self, folder):
        self.folder, self.out = folder, folder / "results"
        self.kernel = folder / "toy.py"
        self.kernel.write_text(KERNEL.replace("default=2)", "default=1)"))
        self.null = Null()

    def begin(self):
        """Commit the kernel, and change it."""
        git(self.folder, "init", "-q", "-b", "main")
        git(self.folder, "add", "toy.py")
        git(self.folder, "commit", "-q", "-m", "1")
        self.kernel.write_text(KERNEL)

    def run(self, name, predicts=False, **more):
        """Run a command, and return its exit code."""
        self.null = Null(lambda c: Fate(), predicts=predicts)
        kept = {"out": self.out, "database": f"sqlite:///{self.folder / 'history.db'}", **more}
        opened = lambda *place: self.null  # noqa: E731
        kernel, tuned = str(self.kernel), self.folder / "tuned.json"
        if name == "sweep":
            wanted = SweepOptions("tile_size", kernel, **kept)
            console = SweepConsole(wanted.quiet, prints_aside(wanted))
            return SweepCommand(wanted, console, opened, tuned).go()
        if name == "measure":
            wanted = MeasureOptions(kernel, **kept)
            return MeasureCommand(wanted, console_for(wanted), opened, tuned).go()
        if name == "compare":
            wanted = CompareOptions("blocks", "blocks:num_warps=4", kernel=(kernel,), **kept)
            return CompareCommand(wanted, console_for(wanted), opened).go()
        if name == "gate":
            self.begin()
            wanted = GateOptions("HEAD", kernel=(kernel,), **kept)
            return GateCommand(wanted, console_for(wanted), opened).go()
        if name == "experiment":
            wanted = ExperimentOptions("probe", **kept)
            return ExperimentCommand(wanted, console_for(wanted), opened, tuned).go()
        if name == "ceilings":
            wanted = CeilingsOptions(**kept)
            return CeilingsCommand(wanted, console_for(wanted), opened, list).go()
        del kept["out"], kept["database"]
        return evaluate_kernel.evaluate(EvaluateOptions("copy", **kept))

    def events(self, file=None):
        """The events of the run's own file, or of `file`."""
        (path,) = [file] if file else self.out.glob("*/events.jsonl")
        result = read(path)
        assert not result.bad
        return result.events


def evaluation(options, opened, seed):
    """A kernel that is right, timed on a GPU beside a library."""
    device, case = DEVICES["h200"], {"block_n": 1024, "num_warps": 4}
    facts = SpecFacts("copy", (), (), {"N": 4096}, 8 << 20, 0)
    timing = Measured(1e-5, 9e-6, 2e-5, (9e-6, 2e-5), "cold", "graph", "p4", host_s=4e-6)
    return Evaluation(
        Wanted("copy", None, {}, "bf16"),
        device,
        False,
        facts,
        verdict_of([RuleResult(rule.name, "kept") for rule in RULES], 0.5),
        Submission("copy", "blocks", case, "", (None,), None, ("torch",)),
        Compiled(softmax()[1][0].resources, "_blocks", (4,), 1),
        EvaluatedTimes(timing, 1e-6, {"torch": replace(timing, median_s=2e-5)}),
        environment=ENVIRONMENT,
    )


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Pages take a second to draw, and are tested elsewhere."""
    for name in ("sweep", "measure", "compare", "experiment", "ceilings"):
        page = f"workbench.reports.{name}.page"
        monkeypatch.setattr(page, lambda *given, **more: "<p>page</p>")
    toy = Experiment("a test's own", variants, analyse, kernels=("copy",))
    monkeypatch.setattr(experiment_command, "find_experiment", lambda name: toy)
    groups = "workbench.commands.ceilings_command.ceilings.groups_of"
    from workbench.experiments.analysis import ceilings

    every = ceilings.groups_of
    monkeypatch.setattr(groups, lambda *given: [g for g in every(*given) if g.boost][:1])
    monkeypatch.setattr(evaluate_kernel, "_evaluate", evaluation)
    monkeypatch.setattr(evaluate_kernel, "require_triton", lambda: None)
    return Place(tmp_path)


@pytest.mark.parametrize("name", [*OBTAIN, *LIST])
def test_every_command_declares_the_same_options(name):
    fields = commands()[name].__dataclass_fields__
    words = {f.metadata.get("name") or f"--{f.name}" for f in fields.values()}
    assert words >= {"--quiet", "--json"}
    if name in OBTAIN:
        assert words >= {"--events-file", "--events/--no-events"}
    assert not any(fields[n].metadata["stored"] for n in ("quiet", "json"))


@pytest.mark.parametrize("name", OBTAIN)
def test_the_result_alone_is_on_standard_output(name, place, capfd):
    code = place.run(name, json=STDOUT)
    text, err = capfd.readouterr()
    result = json.loads(text)
    assert (result["schema"], result["command"]) == (1, name)
    assert (result["exit_code"], result["meaning"]) == (code, MEANINGS[code])
    assert err.strip(), "the table is on standard error"
    if name == "evaluate":
        assert result["verdict"] == "correct" and result["times"]["std_s"] > 0
        return
    (run,) = result["runs"]
    stored = place.events()
    records = [e for e in stored if isinstance(e, Record)]
    assert [m["key"] for m in run["measured"]] == [r.key for r in records] and records
    assert not run["predicted"] and run["state"] == "complete"
    assert len(run["failures"]) == sum(isinstance(e, Failure) for e in stored)
    assert Path(run["page"]).is_file() and Path(run["events"]).is_file()
    assert all(m["bytes_read"] + m["bytes_written"] == m["bytes"] for m in run["measured"])
    for plain, record in zip(run["measured"], records, strict=True):
        kept = plain["statistics"]
        assert kept["min_s"] <= kept["p5_s"] <= record.time_s <= kept["p95_s"] <= kept["max_s"]
        assert plain["timing"]["samples_s"] == list(record.timing.samples_s)
    expected = {"compare": "comparisons", "gate": "comparisons", "experiment": "findings"}
    for kind in ("comparisons", "findings"):
        assert bool(run[kind]) == (expected.get(name) == kind)


@pytest.mark.parametrize("name", OBTAIN)
def test_quiet_prints_the_result_and_no_more(name, place, capfd):
    place.run(name, quiet=True, json=place.folder / "new" / "result.json")
    lines = capfd.readouterr().out.splitlines()
    assert 1 <= len(lines) <= (12 if name == "ceilings" else 4), "one line a ceiling"
    if name == "evaluate":
        assert lines == ["correct"]
    else:
        assert lines[-1].startswith("report  ") and len(lines) >= 2
    assert json.loads((place.folder / "new" / "result.json").read_text())["command"] == name


@pytest.mark.parametrize("name", OBTAIN)
def test_every_time_has_its_event_and_every_launch_its_geometry(name, place):
    file = place.folder / "events" / "all.jsonl"
    place.run(name, events_file=file)
    assert not list(place.out.glob("*/events.jsonl")), "in place of the run's own"
    events = place.events(file)
    launches = [e for e in events if isinstance(e, KernelDispatched)]
    times = [e for e in events if isinstance(e, OpCompleted)]
    (run,) = [e for e in events if isinstance(e, Run)]
    assert isinstance(events[-1], RunFinished) and {e.run for e in launches + times} == {run.id}
    records = [e for e in events if isinstance(e, Record)]
    if name != "evaluate":
        assert [e.device_us for e in times] == [r.time_s * 1e6 for r in records]
    assert times and all(e.host_us == pytest.approx(4.0) and not e.predicted for e in times)
    assert all(e.op_path.startswith(f"{run.engine}/") for e in times)
    assert launches and all(e.threads > 0 and e.grid and e.launches == 1 for e in launches)
    for launch in launches:
        assert any(e.op_path.startswith(launch.op_path + "/") for e in times)
    several = Counter(e.op_path for e in times)
    assert several.most_common(1)[0][1] == 1, "a path names one time"


@pytest.mark.parametrize("name", OBTAIN)
def test_events_can_be_left_out(name, place):
    file = place.folder / "all.jsonl"
    place.run(name, events_file=file, events=False)
    assert not [e for e in place.events(file) if isinstance(e, (KernelDispatched, OpCompleted))]


@pytest.mark.parametrize("name", ["sweep", "measure", "experiment"])
def test_a_prediction_has_no_time_of_a_clock(name, place, capfd):
    place.run(name, predicts=True, json=STDOUT)
    (run,) = json.loads(capfd.readouterr().out)["runs"]
    assert run["predicted"] and not run["measured"]
    times = [e for e in place.events() if isinstance(e, OpCompleted)]
    assert [e.predicted_us for e in times] == [
        p["timing"]["predicted_s"] * 1e6 for p in run["predicted"]
    ]
    assert {(e.device_us, e.host_us, e.predicted, e.method) for e in times} == {
        (None, None, True, "")
    }


@pytest.mark.parametrize("option", ["json", "events_file"])
def test_a_place_that_cannot_be_is_refused_before_any_work(place, option):
    flag = option.replace("_", "-")
    for name in OBTAIN:
        with pytest.raises(CommandError, match=f"is a folder; name the .*--{flag} FILE"):
            place.run(name, **{option: place.folder})
        if name == "gate":
            git(place.folder, "branch", "-m", "other")
            subprocess.run(["rm", "-r", place.folder / ".git"], check=True)
    assert not place.out.exists()


def test_events_and_document_are_two_files(place):
    for one in (place.folder / "one", STDOUT):
        with pytest.raises(CommandError, match=r"both name .*; give each its own file"):
            place.run("measure", json=one, events_file=one)
    assert not place.out.exists()


def test_events_can_go_to_standard_output(place, capfd):
    """No table lies between the lines."""
    place.run("measure", events_file=STDOUT)
    text, err = capfd.readouterr()
    types = [json.loads(line)["type"] for line in text.splitlines()]
    assert types[0] == "Run" and types[-1] == "RunFinished" and "vs baseline" in err


def test_numbers_that_are_not_finite_are_null():
    content = {"a": [float("nan"), float("inf"), 1.5], "b": ("x", None)}
    assert json.loads(json_text(content)) == {"a": [None, None, 1.5], "b": ["x", None]}


@pytest.mark.parametrize("words", [["devices"], ["doctor"], ["history"], ["tuned"],
                                   ["experiment"]], ids=str)  # fmt: skip
def test_what_is_listed_is_one_object_too(words, tmp_path, capfd, monkeypatch):
    url = f"sqlite:///{tmp_path / 'h.db'}"
    more = ["--database", url] if words[0] in ("doctor", "history") else []
    more += ["--file", str(tmp_path / "tuned.json")] if words[0] == "tuned" else []
    assert cli.main([*words, *more, "--json", "-"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["command"] == words[0] and len(result) > 5
    assert cli.main([*words, *more, "--json", str(tmp_path / "all.json"), "--quiet"]) == 0
    again = json.loads((tmp_path / "all.json").read_text())
    assert again.keys() == result.keys()


# The events of one time


RUN, OUTCOMES = softmax()
FIRST = next(o for o in OUTCOMES if isinstance(o, Record))


@given(
    median_s=st.floats(1e-7, 1.0),
    host_s=st.none() | st.floats(1e-7, 1e-2),
    method=st.sampled_from(["graph", "events", "host"]),
)
def test_a_time_by_the_hosts_clock_is_no_time_of_the_device(median_s, host_s, method):
    timing = replace(FIRST.timing, median_s=median_s, host_s=host_s, method=method)
    event = completion_event(RUN, replace(FIRST, timing=timing))
    assert event.method == method and event.predicted_us is None
    if method == "host":
        assert (event.device_us, event.host_us) == (None, median_s * 1e6)
    else:
        assert event.device_us == median_s * 1e6
        assert event.host_us == (None if host_s is None else host_s * 1e6)


def test_a_path_is_as_long_as_the_run_needs():
    case = FIRST.case
    assert op_path(RUN, case).split("/")[:4] == ["sweep", RUN.name, case.kernel, case.impl]
    several = replace(RUN, engine="measure", sizes={})
    parts = op_path(several, case, "1/8").split("/")
    assert parts[:3] == ["measure", case.kernel, case.impl] and parts[-1] == "1_8"
    assert case.dtype in parts[-2] and op_path(RUN, replace(case, config={})).endswith(case.impl)


def test_each_kernel_of_a_call_has_its_geometry():
    parts = LaunchShape("_parts", (8,), 128, 0, 32, 1.0, launches=3)
    shapes = (parts, LaunchShape("_merge", (1,), 64, 8, 40, 0.5))
    compiled = Compiled(FIRST.resources, "_parts", (8,), 4, shapes=shapes)
    first, second = dispatch_events(RUN, FIRST.case, compiled, "left")
    assert (first.function, first.grid, first.launches) == ("_parts", (8,), 3)
    assert (second.function, second.threads, second.occupancy) == ("_merge", 64, 0.5)
    assert first.op_path == second.op_path == op_path(RUN, FIRST.case, "left")


def test_an_older_event_is_read(tmp_path):
    """Events of version 0.1.0 had no path of a launch and no method."""
    compiled = Compiled(FIRST.resources, "_rows", (8, 2), 1)
    new = [*dispatch_events(RUN, FIRST.case, compiled), completion_event(RUN, FIRST)]
    later = ("op_path", "function", "launches"), ("predicted_us", "method")
    with EventLog(tmp_path / "new.jsonl") as log:
        for event in new:
            log.write(event)
    lines = []
    for text, names in zip((tmp_path / "new.jsonl").read_text().splitlines(), later, strict=True):
        plain = json.loads(text)
        lines.append(json.dumps({k: v for k, v in plain.items() if k not in names}))
    (tmp_path / "old.jsonl").write_text("\n".join(lines) + "\n")
    result = read(tmp_path / "old.jsonl")
    assert not result.bad and [type(e) for e in result.events] == [KernelDispatched, OpCompleted]
    assert read(tmp_path / "new.jsonl").events == new


# A frame of them


def test_a_frame_has_both_events_and_reports_damage(tmp_path, caplog):
    compiled = Compiled(FIRST.resources, "_rows", (8, 2), 1)
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.write(RUN)
        for event in dispatch_events(RUN, FIRST.case, compiled):
            log.write(event)
        log.write(FIRST)
        log.write(completion_event(RUN, FIRST))
        log.write(RunFinished(timestamp(), RUN.id, "complete", {}))
    with path.open("ab") as file:
        file.write(b'{"type":"OpCompleted","at":\n')
    frame = workbench.events_frame(path)
    assert frame.type.tolist() == ["KernelDispatched", "OpCompleted"]
    launches = frame[(frame.type == "KernelDispatched") & frame.kernel.str.startswith("softmax")]
    times = frame[(frame.type == "OpCompleted") & frame.op_path.str.startswith("sweep/")]
    assert launches.blocks.tolist() == [16] and launches.grid.tolist() == [(8, 2)]
    assert times.device_us.tolist() == [FIRST.time_s * 1e6]
    assert times.op_path.iloc[0].startswith(launches.op_path.iloc[0])
    assert frame.attrs["damaged"][0].startswith("line 6: not JSON")
    assert "1 damaged" in caplog.text and os.fspath(path) in caplog.text


def test_a_frame_of_nothing_has_its_columns(tmp_path):
    (tmp_path / "events.jsonl").write_text("")
    frame = workbench.events_frame(tmp_path / "events.jsonl")
    assert frame.empty and {"op_path", "device_us", "host_us", "grid"} <= set(frame.columns)


def test_a_document_holds_data_alone():
    given = {"path": Path("a/b"), "count": np.int64(3), "share": np.float32(0.5), "nan": np.nan}
    assert json.loads(json_text(given)) == {"path": "a/b", "count": 3, "share": 0.5, "nan": None}
    with pytest.raises(TypeError, match="a Fate cannot be written as JSON"):
        json_text({"fate": Fate()})
