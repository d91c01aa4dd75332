"""Parts of commands with two of everything: what they start, decide, print and return."""

import io
import json
import signal
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import drawn_printed
import pytest
import synthetic
from rich.console import Console

from workbench.backend import supervisor
from workbench.backend.cluster import spread
from workbench.backend.cluster.cluster import ClusterError, SchedulerGone, WorkerDied
from workbench.backend.measuring import GpuGone, WorkerRefused
from workbench.commands import (
    calibrate_command,
    compiler_comparison,
    gpu_lines,
    operands,
    problem,
    sweep_command,
    trace_comparison,
    traces,
    tune_function,
    tune_words,
    tuned,
    workload_comparison,
    workload_run,
    workload_tuning,
)
from workbench.commands.options import CommandError, OptionError
from workbench.commands.profile import ProfileOptions
from workbench.commands.profile_command import ProfileCommand
from workbench.commands.result import shared_sizes
from workbench.commands.run import wants_cluster
from workbench.commands.sweep import SweepOptions
from workbench.commands.workload_tune import WorkloadTuneOptions
from workbench.data.exits import COULD_NOT_RUN, FAILED, INTERRUPTED, PASSED, UNDECIDED
from workbench.data.expected_change import ExpectationResult
from workbench.data.record import Evidence, Failure, Finding, Record
from workbench.data.tuned_cache import Entry, Tuned, TunedError
from workbench.data.verdict import exit_code
from workbench.device.hardware import find_device
from workbench.traces.trace import Dispatch, Trace
from workbench.traces.trace_compare import TraceComparison, TraceOperand, compare
from workbench.workload import engine, plan, program_runner
from workbench.workload.pinned import TableLookup
from workbench.workload.program_runs import NamedOutput, ProgramRun

pytestmark = pytest.mark.unit


def lines_of(call, width=200):
    return drawn_printed.printed(call, width)


# Jobs on the GPUs of a cluster


class Farm:
    """A cluster by hand: `news` are its answers to looks, `gpus` those that join."""

    place = "tcp://here"

    def __init__(self, *news, refusals=()):
        self.news, self.stopping, self.refusals = list(news), False, list(refusals)
        self.lost = self.reconnected = 0
        self.gone = ClusterError("gone for good")

    def refresh(self):
        new = self.news.pop(0) if self.news else []
        if isinstance(new, Exception):
            raise new
        return new

    def join(self, address, about):
        if isinstance(about, Exception):
            raise about
        return about

    def scheduler_lost(self):
        self.lost += 1

    def reconnect(self):
        self.reconnected += 1
        if self.reconnected > 1:
            raise self.gone

    def stop(self):
        self.stopping = True


def gpu(name, references=None):
    return SimpleNamespace(title=name, references=references or {"copy": 4e12})


@pytest.fixture
def spread_on(monkeypatch):
    monkeypatch.setattr(spread, "LOOK_S", 0.001)
    monkeypatch.setattr(spread, "STOP_S", 2.0)

    def make(*news, **more):
        farm, said = Farm(*news, **more), []
        return spread.Spread(farm, said.append), farm, said

    return make


def job(title, *ends, done=None):
    """Return a job whose runs end in these ways, one after the other."""
    ends = list(ends)

    def run(on):
        end = ends.pop(0) if ends else None
        if isinstance(end, BaseException):
            raise end
        if done is not None:
            done.append((title, on.title))

    return spread.Job(title, run)


def test_jobs_go_to_gpus_and_those_of_a_lost_one_to_another(spread_on):
    done = []
    one, farm, said = spread_on(
        [("a", gpu("A"))], [], [("b", gpu("B", {"copy": 2e12}))], [("c", None)]
    )
    first = job("first", GpuGone("left"), done=done)
    one.run([first, job("second", done=done), job("third", done=done)])
    assert sorted(title for title, _ in done) == ["first", "second", "third"] and first.moves == 1
    assert done[-1][1] == "B" and farm.stopping
    assert said[0] == "A: copy 4 TB/s"
    assert "A has left during first, which goes on with another GPU." in said
    assert "B: copy 2 TB/s" in said[-1]


def test_a_gpu_with_other_references_is_said(spread_on):
    one, _, said = spread_on()
    one._serving = [gpu("A")]
    one._announce(gpu("B", {"copy": 4e12 / 1.04}))
    one._announce(gpu("C", {"copy": 4e12 / 1.02}))
    assert said == ["B: copy 3.85 TB/s; 4 % from A, so their times are not ranked together",
                    "C: copy 3.92 TB/s"]  # fmt: skip


def test_a_job_that_loses_its_gpu_too_often_is_an_error(spread_on):
    one, _, said = spread_on()
    lost = job("heavy")
    for number in range(1, spread.MOVES + 2):
        one._waiting.clear()
        one._requeue(lost, gpu("A"))
        assert lost.moves == number and bool(one._waiting) == (number <= spread.MOVES)
    assert str(one._errors[0]).startswith("heavy lost its worker 6 times; its results are")
    assert len(said) == spread.MOVES


@pytest.mark.parametrize(
    ("error", "usable", "waits", "errors"),
    [
        (None, True, 0, 0),
        (GpuGone("x"), False, 1, 0),
        (WorkerDied("x"), False, 1, 0),
        (WorkerRefused("x"), False, 1, 0),
        (KeyboardInterrupt(), False, 1, 0),
        (ValueError("x"), True, 0, 1),
    ],
)
def test_how_a_job_ends_on_a_gpu(spread_on, error, usable, waits, errors):
    one, _, _ = spread_on()
    first = job("first", *([error] if error is not None else []))
    one._running.add(first)
    assert one._run_job(first, gpu("A")) is usable
    assert (len(one._waiting), len(one._errors), one._running) == (waits, errors, set())


def test_jobs_are_shared_among_the_gpus(spread_on):
    one, _, _ = spread_on()
    shares = []
    for waiting, serving in ((0, 0), (0, 2), (1, 2), (2, 2), (5, 2), (6, 3)):
        one._waiting.clear()
        one._waiting.extend(job(str(n)) for n in range(waiting))
        one._serving = [gpu(str(n)) for n in range(serving)]
        shares.append((one.share, one.gpus))
    assert shares == [(1, 1), (1, 2), (1, 2), (2, 2), (3, 2), (3, 3)]


def test_a_cluster_without_gpus_is_waited_for_up_to_a_limit(spread_on, monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(
        spread, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=lambda s: None)
    )
    one, farm, said = spread_on()
    one._look_for_gpus()
    clock.now = 159.9
    one._look_for_gpus()
    clock.now = 160.0
    with pytest.raises(ClusterError, match="has no worker with a GPU; start one there"):
        one._look_for_gpus()
    one._serving = [gpu("A")]
    one._look_for_gpus()
    assert one._alone_since is None and one.first().title == "A"
    one._serving, one._served = [], True
    one._look_for_gpus()
    clock.now += 60.0
    with pytest.raises(KeyboardInterrupt):
        one._look_for_gpus()
    assert said == ["No GPU is left; the results are stored, and the same command continues."]
    farm.refusals = ["The worker a was refused.", "The worker b was refused."]
    one._served = False
    with pytest.raises(ClusterError, match="worker b was refused"):
        one._look_for_gpus()
    one._joining = 1
    one._look_for_gpus()


def test_a_scheduler_that_goes_away_is_said_and_waited_for(spread_on):
    one, farm, said = spread_on(SchedulerGone(), SchedulerGone())
    one._look()
    assert farm.lost == 1 and said[1] == "The scheduler tcp://here is back."
    assert said[0].startswith(
        "The scheduler tcp://here does not answer; waiting up to 120 s for it."
    )
    with pytest.raises(KeyboardInterrupt):
        one._look()
    assert said[3] == "gone for good" and farm.lost == 2


def test_errors_of_jobs_are_raised_once_the_others_are_done(spread_on):
    done = []
    one, _, _ = spread_on(
        [("a", gpu("A")), ("b", ValueError("joins not")), ("c", WorkerRefused("no"))]
    )
    with pytest.raises(ValueError):
        one.run([job("first", ValueError("mine")), job("second", done=done)])
    assert done == [("second", "A")] and len(one._errors) == 2


def test_options_of_clusters_exclude_each_other():
    def options(**more):
        return SimpleNamespace(**({"workers": None, "device": None} | more))

    assert not wants_cluster(options()) and wants_cluster(options(workers="2"))
    assert wants_cluster(options(workers="tcp://a:1", require=("idle-gpu",)))
    for more, words in (
        (
            {"workers": "1", "device": "h200"},
            "With --device nothing is measured; leave out --device or --workers",
        ),
        (
            {"workers": "tcp://a:1", "require": ("sanitizer",)},
            "--require sanitizer uses this machine's GPU; leave out --require sanitizer or --work",
        ),
    ):
        with pytest.raises(OptionError, match=words):
            wants_cluster(options(**more))


def test_lines_of_gpus_name_the_problem():
    out = io.StringIO()
    lines = gpu_lines.GpuLines(False, console=Console(file=out, width=100, highlight=False))
    one = gpu_lines.ProblemConsole(lines, "N=8", "node GPU 0")
    plan = SimpleNamespace(candidates=[1, 2, 3])
    one.begin(None, plan, 2)
    assert out.getvalue() == "N=8 on node GPU 0: 3 configs to try, 2 known from earlier runs\n"
    gpu_lines.ProblemConsole(lines, "N=16", "node GPU 1").begin(None, plan, 0)
    assert out.getvalue().endswith("N=16 on node GPU 1: 3 configs to try\n")
    drawn = lines._draw().plain.splitlines()
    assert [line.partition("  ")[0] for line in drawn] == ["node GPU 0: N=8", "node GPU 1: N=16"]
    assert all(len(line) <= 100 for line in drawn)
    one.end()
    assert len(lines._draw().plain.splitlines()) == 1
    quiet = gpu_lines.GpuLines(True, console=Console(file=out, width=100))
    quiet.say("nothing")
    assert "nothing" not in out.getvalue()


# Runs of a compared program


class Run:
    """A started process of a program and its gate."""

    def __init__(self, ends=None, waits=True):
        self.code, self.waited_for, self.steps = ends, waits, []

    def __getattr__(self, name):
        return lambda *args: self.steps.append(name)

    def poll(self):
        return self.code


@pytest.fixture
def runner(monkeypatch, tmp_path):
    started, ended, notes = [], [], []
    monkeypatch.setattr(program_runner, "Gate", lambda folder: Run())
    monkeypatch.setattr(
        program_runner, "start_child", lambda words, **more: started.append(more) or Run()
    )
    monkeypatch.setattr(
        program_runner, "run_child", lambda words, **more: ended.append(more) or "ended"
    )
    monkeypatch.setattr(program_runner, "wait_for_child", lambda process: "waited")
    monkeypatch.setattr(program_runner, "startup_variables", dict)
    clock = iter(range(100, 1000))

    def make(at_once, rounds=3):
        one = program_runner.ProgramRunner(
            ["python"],
            program_runner.MarkOptions(""),
            program_runner.Deployment(str(tmp_path / "t.json"), "nearest"),
            rounds,
            at_once,
            aside=False,
            tell=notes.append,
            now=lambda: float(next(clock)),
        )
        return one, started, ended

    return make


def test_a_run_by_itself_has_a_folder_and_the_table_where_it_is_pinned(runner):
    one, started, ended = runner(1)
    with one:
        with one.once(1, True) as (folder, end, wall_s):
            assert folder.name == "1-1" and folder.is_dir() and (end, wall_s) == ("ended", 1.0)
        assert not folder.exists()
        with one.once(1, False) as (folder, _, _):
            assert folder.name == "1-0"
        place = one._place
    assert not place.exists() and started == []
    marks = [json.loads(more["more"][program_runner.sitecustomize.MARKS]) for more in ended]
    tables = [more["more"][program_runner.sitecustomize.TUNED] for more in ended]
    assert [m["gate"] for m in marks] == [False, False] and bool(tables[0]) and tables[1] == ""
    assert marks[0]["folder"].endswith("1-1") and "nearest" in tables[0]


def test_runs_that_import_at_once_are_those_that_follow(runner):
    one, started, _ended = runner(3)
    with one:
        with one.once(0, False) as (_folder, end, wall_s):
            assert (
                end == "waited"
                and wall_s == 1.0
                and list(one.started_runs) == [(0, True), (1, True)]
            )
        with one.once(0, True):
            pass
        assert len(started) == 3 and list(one.started_runs) == [(1, True)]
        left = one.started_runs[1, True]
    assert left.gate.steps == ["close"] and left.process.steps == [
        "terminate",
        "wait",
        "kill",
        "wait",
    ]
    assert [json.loads(m["more"][program_runner.sitecustomize.MARKS])["gate"] for m in started] == [
        True
    ] * 3
    assert [program_runner.order_of(n) for n in range(3)] == [
        (False, True),
        (True, False),
        (False, True),
    ]


@pytest.mark.parametrize(("code", "words"), [(3, "exit code 3"), (-9, "SIGKILL|137"), (0, "0")])
def test_a_run_that_ends_before_its_turn_is_an_error(runner, monkeypatch, code, words):
    one, _, _ = runner(2)
    monkeypatch.setattr(program_runner, "Gate", lambda folder: Run(waits=False))
    monkeypatch.setattr(program_runner, "start_child", lambda words, **more: Run(code))
    with one, pytest.raises(program_runner.UngatedError, match=words), one.once(0, False):
        pass


def test_runs_that_are_long_in_importing_are_noted_each_minute(runner, monkeypatch):
    one, _, _ = runner(2)
    times = [0.0, 59.9, 60.0, 100.0, 120.0, 121.0]
    notes, gates = [], [Run(waits=False), Run()]
    monkeypatch.setattr(program_runner, "Gate", lambda folder: gates.pop(0) if gates else Run())
    one.tell = notes.append
    first = gates[0]
    one.now = lambda: times.pop(0) if times else 200.0

    def sleep(seconds):
        first.waited_for = len(times) < 2

    monkeypatch.setattr(program_runner, "time", SimpleNamespace(sleep=sleep))
    with one:
        one._start(0, False)
    assert [n[:49] for n in notes] == [
        "after 60 s 1 of 2 runs have not used the GPU thro",
        "after 120 s 1 of 2 runs have not used the GPU thr",
    ]


def comparison(*runs):
    return SimpleNamespace(
        runs=list(runs), stop_signal=0, failure="", lookups="", outputs=[], repeats=[], last=None
    )


def test_outputs_are_compared_with_the_last_run_without_the_table():
    import numpy as np

    def out(value):
        return [NamedOutput("y", (1,), np.array([value]))]

    one = comparison()
    workload_comparison.add_outputs(one, out(9.0), True)
    assert one.outputs == [] and one.last is None
    workload_comparison.add_outputs(one, out(1.0), False)
    assert one.repeats == []
    workload_comparison.add_outputs(one, out(1.5), True)
    workload_comparison.add_outputs(one, out(1.25), False)
    workload_comparison.add_outputs(one, out(1.5), True)
    assert [(d.name, d.compared, d.largest) for d in one.outputs] == [("y", 2, 0.5)]
    assert [(d.compared, d.largest) for d in one.repeats] == [(1, 0.25)]


def test_the_run_of_a_program_adds_what_it_left(monkeypatch, tmp_path):
    monkeypatch.setattr(workload_comparison, "read_marks", lambda folder: ((0.5,), 2.0, []))
    monkeypatch.setattr(workload_comparison, "lookups_in", lambda folder: {})
    monkeypatch.setattr(workload_comparison, "keep", lambda folder, comparison: None)
    monkeypatch.setattr(
        workload_comparison, "draw", lambda folder, comparison: order.append("draw")
    )
    order, ends = [], []

    class Runner:
        @contextmanager
        def once(self, number, pinned):
            order.append((number, pinned))
            yield tmp_path, ends.pop(0), 3.0

    def end(code=0, stopped=0):
        return SimpleNamespace(code=code, stop_signal=stopped)

    one = comparison()
    ends.extend([end(), end(), end(), end(7)])
    assert workload_comparison.one_round(one, Runner(), tmp_path, 0)
    assert not workload_comparison.one_round(one, Runner(), tmp_path, 1)
    assert order == [(0, False), (0, True), "draw", (1, True), (1, False)]
    assert one.failure.startswith("The program without") and "in round 2" in one.failure
    assert one.runs[:2] == [
        ProgramRun(False, 0, 3.0, 2.0, (0.5,)),
        ProgramRun(True, 0, 3.0, 2.0, (0.5,)),
    ]
    ends.append(end(stopped=2))
    assert not workload_comparison.one_run(one, Runner(), 2, True) and one.stop_signal == 2
    assert len(one.runs) == 3 and one.lookups


def test_differences_of_outputs_as_text():
    difference = workload_comparison.OutputDifference
    say = workload_comparison.difference_text
    assert say(difference("y", 0, 3, 0.0, 0.0)) == (
        "not compared: 3 calls differ in shape, are not recorded or missing"
    )
    assert (
        say(difference("y", 2, 0, 0.5, 0.25)) == "largest difference 0.5 (relative 0.25) in 2 calls"
    )
    assert say(difference("y", 2, 1, 0.5, 0.25, 0.0)) == (
        "largest difference 0.5 (relative 0.25) in 2 calls, 1 not compared; "
        "between runs without the table 0"
    )


def lookup(function, key, config):
    return TableLookup(function, key, "hit", "table", config)


def test_processes_that_choose_differently_are_named():
    same = [
        [lookup("f", ("1",), "a"), lookup("g", ("1",), "")],
        [lookup("f", ("1",), "a"), lookup("g", ("1",), "b")],
    ]
    assert workload_run.differing(same) == ""
    other = [*same, [lookup("f", ("1",), "c")]]
    assert "Processes 0 and 2" in workload_run.differing(other).replace("Process ", "Processes ")


# The tuning of a workload


class Sweeper:
    """Sweeps give the times of `tables`, one after the other; comparisons give a verdict."""

    def __init__(self, tables=(), predicts=True, verdict=None):
        self.tables, self.predicts, self.verdict, self.seconds = list(tables), predicts, verdict, []

    def swept(self, times_s):
        launch = SimpleNamespace(
            configs=[triton_config(name) for name in ("old", "new")], kernel=print
        )
        records = {name: recorded(time_s) for name, time_s in times_s.items()}
        return engine.SweptLaunch(
            launch,
            records,
            ["old", "new"],
            True,
            Path("page"),
            self.predicts,
            "node GPU 1",
            self.compared,
        )

    def compared(self, used, chosen):
        return self.verdict, recorded(2.0, measured=True), recorded(1.0, measured=True)

    def __call__(self, launch, seconds):
        self.seconds.append(seconds)
        times_s = self.tables.pop(0)
        if isinstance(times_s, Exception):
            raise times_s
        return self.swept(times_s)


def triton_config(name):
    return SimpleNamespace(all_kwargs=lambda: {"NAME": name, "pre_hook": print})


def recorded(time_s, measured=False):
    record = next(o for o in synthetic.matmul(predicted=not measured)[1] if isinstance(o, Record))
    change = {"median_s": time_s} if measured else {"predicted_s": time_s}
    return replace(record, timing=replace(record.timing, **change))


def items_of(*shares):
    launch = drawn_printed.drawn_numbers.launch
    return [
        plan.WorkItem(launch("add", 8 * (n + 1), 8), 1, share, None, 1e-6)
        for n, share in enumerate(shares)
    ]


@pytest.fixture
def tuning(monkeypatch):
    """A tuning of items whose launches need not be rebuilt, its clock, and what it says."""
    clock, said = SimpleNamespace(now=100.0), []
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(engine, "rebuild_launch", lambda signature, trust: signature)
    monkeypatch.setattr(engine, "text_hash", lambda kernel: "hash")

    def make(items, seconds=400.0, **more):
        results = {}
        journal = SimpleNamespace(results=results, add=lambda r: results.update({r.digest: r}))
        one = engine.WorkloadTuning(
            items, journal, seconds, said.append, said.append, start_s=100.0, **more
        )
        return one, clock, said

    return make


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [(1.02, 1.0, "kept"), (1.021, 1.0, "predicted"), (1.0, 1.0, "kept"), (0.5, 1.0, "kept")],
)
def test_a_predicted_config_replaces_the_one_in_use_beyond_two_percent(
    monkeypatch, before, after, status
):
    monkeypatch.setattr(engine, "text_hash", lambda kernel: "hash")
    sweeper, (item,) = Sweeper(), items_of(1.0)
    result = engine.decide_config(item, sweeper.swept({"old": before, "new": after}), "new")
    assert result.status == status and (result.digest, result.gpu) == (item.digest, "node GPU 1")
    name = "new" if status == "predicted" else "old"
    assert result.config == (("NAME", name),) and result.protocol.startswith("predicted by ")
    if status == "kept":
        assert result.reason == "the config in use, old, stays: new is predicted within 2 %"
    else:
        times_s = result.before_s.median, result.after_s.median
        assert (
            times_s == (before, after) and result.reason == "new is predicted 1.02x as fast as old"
        )


@pytest.mark.parametrize(
    ("chosen", "times_s", "verdict", "status", "reason"),
    [
        ("old", {"old": 1.0}, None, "kept", "the config in use, old, stays"),
        ("new", {"new": 1.0}, None, "kept",
         "the config in use, old, has no time to compare with; see page"),
        ("new", {"old": 2.0, "new": 1.0}, None, "kept",
         "the config in use, old, stays: against it new did not run again"),
        ("new", {"old": 2.0, "new": 1.0}, "SAME", "kept",
         "the config in use, old, stays: against it new gave SAME"),
        ("new", {"old": 2.0, "new": 1.0}, "FAST", "faster", "new takes 50 % of the time of old"),
    ],
)  # fmt: skip
def test_what_is_decided_of_a_signature(monkeypatch, chosen, times_s, verdict, status, reason):
    monkeypatch.setattr(engine, "text_hash", lambda kernel: "hash")
    half = SimpleNamespace(middle=0.5)
    sweeper = Sweeper(predicts=False, verdict=verdict and SimpleNamespace(word=verdict, time=half))
    (item,) = items_of(1.0)
    result = engine.decide_config(item, sweeper.swept(times_s), chosen)
    assert (result.status, result.reason) == (status, reason)
    if status == "faster":
        assert (result.before_s.median, result.after_s.median) == (2.0, 1.0)
    elif "old" not in times_s:
        assert result.before_s is None and result.protocol == ""


def test_the_budget_of_a_workload_is_shared(tuning):
    items = items_of(0.75, 0.25)
    one, clock, _ = tuning(items)
    assert one.time_of(items[0]) == 300.0 and one.time_of(items[1]) == 100.0 and not one.is_spent
    clock.now = 499.9
    assert not one.is_spent and one.time_of(items[0]) == engine.LEAST_S
    clock.now = 500.0
    assert one.is_spent and one.open_items == items
    many, clock, _ = tuning(items, gpus=lambda: 2)
    clock.now = 100.0
    assert many.time_of(items[0]) == 400.0 and many.time_of(items[1]) == 200.0
    sweeper = Sweeper([{"old": 1.0}, {"old": 1.0}])
    one.tune(items[:1], sweeper)
    assert sweeper.seconds == [300.0] and [i for i, _ in one.tuned_items] == items[:1]
    clock.now = 600.0
    one.tune(items[1:], sweeper)
    assert sweeper.seconds == [300.0] and one.open_items == items[1:]
    for options, words in (
        ({"budget": "9"}, "--budget is shared as time"),
        ({"cover": 0.0}, "--cover is a share"),
        ({"cover": 1.01}, "--cover is a share"),
    ):
        with pytest.raises(OptionError, match=words):
            workload_tuning.check_tuning(WorkloadTuneOptions(("f",), dry_run=True, **options))
    given = WorkloadTuneOptions(("f",), dry_run=True, cover=1.0, budget="2m")
    assert workload_tuning.check_tuning(given) == 120.0


def test_members_that_fail_cost_themselves_alone(tuning, monkeypatch):
    items = items_of(0.3, 0.3, 0.3)
    one, _, said = tuning(items)
    same = {"old": 1.0, "new": 2.0}
    monkeypatch.setattr(engine, "gaps", lambda group, results: ())
    decide = engine.decide_config

    def decide_config(item, *more):
        if item is items[2]:
            raise CommandError("lost")
        return decide(item, *more)

    monkeypatch.setattr(engine, "decide_config", decide_config)
    one.tune(items, Sweeper([same, CommandError("no room"), same]))
    stays = "the config in use, old, stays"
    assert said == ["add: no room", f"add: {stays}", "add: lost"]
    assert [result.status for _, result in one.tuned_items] == ["kept", "failed", "failed"]
    one, _, _ = tuning(items)
    with pytest.raises(GpuGone):
        one.tune(items, Sweeper([GpuGone("gone")]))


# Supervised commands


@pytest.fixture
def supervised(monkeypatch):
    """A supervisor of a child by hand, the signals that it sends, its clock and what it says."""
    sent, said, clock = [], [], SimpleNamespace(now=100.0, sleep=lambda s: None)
    running = []
    marks = SimpleNamespace(running=lambda: running)
    one = supervisor._Supervisor(7, marks, 5, said.append)
    monkeypatch.setattr(supervisor.os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(
        supervisor, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=clock.sleep)
    )
    return one, sent, said, clock, running


def mark(what="the import", began_s=100.0, limit_s=5.0, is_program=False):
    return SimpleNamespace(what=what, began_s=began_s, limit_s=limit_s, deadline=began_s + limit_s,
                           is_program=is_program)  # fmt: skip


def test_signals_are_passed_on_and_ctrl_c_only_later(supervised):
    one, sent, _, _clock, _ = supervised
    one._hit(signal.SIGQUIT, None)
    assert sent == [(7, signal.SIGQUIT)] and one._stop is None
    one._hit(signal.SIGINT, None)
    assert len(sent) == 1 and (one._stop, one._stop_s, one._is_passed_on) == (
        signal.SIGINT,
        100.0,
        False,
    )
    one._hit(signal.SIGTERM, None)
    assert sent[1:] == [(7, signal.SIGTERM)] and one._stop == signal.SIGINT
    one._check()
    one._check()
    assert sent[2:] == [(7, signal.SIGINT)]


def test_code_that_outlasts_its_limit_is_killed(supervised):
    one, sent, said, clock, running = supervised
    running.append(mark())
    clock.now = 105.0
    one._check()
    assert sent == []
    clock.now = 105.01
    one._check()
    assert sent == [(7, signal.SIGKILL)] and one._ended == "the import took longer than 5 s"
    assert one._exit_code(b"", 9) == COULD_NOT_RUN
    assert said == ["error: the import took longer than 5 s; correct it and run the command again."]
    assert one._exit_code(b"3", 0) == 3


def test_code_that_goes_on_after_a_stop_is_killed(supervised):
    one, sent, said, clock, running = supervised
    one._hit(signal.SIGTERM, None)
    running.append(mark(began_s=101.0, limit_s=999.0))
    clock.now = 101.0 + supervisor.PATIENCE_S
    one._check()
    assert one._ended is None
    clock.now += 0.01
    one._check()
    assert one._ended == "stopped" and sent[-1] == (7, signal.SIGKILL)
    assert one._exit_code(b"", 9) == 128 + signal.SIGTERM and said == ["stopped"]


def test_a_command_that_does_not_end_after_a_stop_is_killed(supervised):
    one, _sent, _, clock, running = supervised
    one._hit(signal.SIGTERM, None)
    clock.now = 100.0 + supervisor.ENDING_S
    one._check()
    assert one._ended is None
    clock.now += 0.01
    one._check()
    assert one._ended.startswith(
        f"stopped: the command went on for {supervisor.ENDING_S:.0f} s after SIGTERM"
    )
    one._stop, one._ended = signal.SIGINT, None
    running.append(mark(is_program=True))
    clock.now += 1000
    one._check()
    assert one._stop is None


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (3 << 8, COULD_NOT_RUN, "the import ended the process (exit code 3)"),
        (signal.SIGKILL, COULD_NOT_RUN, "(SIGKILL; the system may have run out of memory)"),
        (signal.SIGSEGV, COULD_NOT_RUN, "(SIGSEGV);"),
        (signal.SIGTERM, 143, None),
        (signal.SIGINT, 130, None),
    ],
)
def test_how_a_child_ended(supervised, status, code, words):
    one, _, said, _, running = supervised
    running.append(mark())
    assert one._exit_code(b"", int(status)) == code
    assert said == [] if words is None else words in said[0]
    running.clear()
    if words:
        one._exit_code(b"", int(status))
        assert said[-1].startswith("error: the code that it ran ended")


def test_the_code_of_a_command_may_come_in_pieces(supervised, monkeypatch):
    one, _, _, _, _ = supervised
    pieces = [None, b"1", b"4", b"", b"2", b""]
    ends = [(0, 0), (0, 0), (0, 0), (0, 0), (7, 512)]
    monkeypatch.setattr(one, "_more", lambda wait_s: pieces.pop(0) if pieces else b"")
    monkeypatch.setattr(supervisor.os, "waitpid", lambda pid, how: ends.pop(0))
    assert one._child_end() == (b"142", 512) and one._pid == 0
    one._send(signal.SIGTERM)


def test_orphans_are_ended_when_they_are_late(monkeypatch):
    killed, adopted, clock = [], [], SimpleNamespace(now=100.0)
    children = [{1}, {1, 2, 3}, {1, 2}, {1}]
    monkeypatch.setattr(
        supervisor, "_children", lambda: children.pop(0) if len(children) > 1 else children[0]
    )
    monkeypatch.setattr(supervisor, "_adopt", adopted.append)
    monkeypatch.setattr(supervisor.os, "kill", lambda pid, number: killed.append(pid))
    monkeypatch.setattr(supervisor.os, "waitpid", lambda pid, how: None)

    def sleep(seconds):
        clock.now += 2.1

    monkeypatch.setattr(
        supervisor, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep)
    )
    with supervisor._Orphans():
        pass
    assert killed == [2] and adopted == [True, False] and children == [{1}]
    children[:] = [{1}, {1, 9}]
    with supervisor._Orphans():
        pass
    assert killed[1:] and set(killed[1:]) == {9} and adopted[2:] == [True, False]


# What sweeps say and keep


def test_the_best_so_far_is_said_after_enough_configs_and_time(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(sweep_command, "time", SimpleNamespace(monotonic=lambda: clock.now))
    said = []
    one = SimpleNamespace(
        last_printed=("", 100.0),
        counts=Counter(),
        command=SimpleNamespace(
            console=SimpleNamespace(so_far=lambda r, n: said.append((r.key, n)))
        ),
    )
    say = next(v for v in vars(sweep_command).values() if hasattr(v, "_say_so_far"))._say_so_far
    for key, count, now in (
        ("a", sweep_command.SO_FAR_CONFIGS - 1, 999.0),
        ("a", sweep_command.SO_FAR_CONFIGS, 100.0 + sweep_command.SO_FAR_S),
        ("a", 99, 999.0),
        ("b", 99, 100.0 + 2 * sweep_command.SO_FAR_S - 0.1),
        ("b", 99, 100.0 + 2 * sweep_command.SO_FAR_S),
    ):
        one.counts["measured"], clock.now = count, now
        say(one, SimpleNamespace(key=key))
    assert said == [("a", sweep_command.SO_FAR_CONFIGS), ("b", 99)]


def test_results_of_each_size_are_taken_over():
    def ended(n):
        return SimpleNamespace(
            tables={n: [n]},
            results=[n],
            sentences=[str(n)],
            seconds={n: {}},
            run=n,
            selection=n,
            page=n,
        )

    one = SimpleNamespace(
        tables={}, results=[], sentences=[], seconds={}, run=None, selection=None, page=None
    )
    sweep_command.SweepCommand._take_over(one, [(ended(1), 0), (ended(2), 0)])
    assert (one.results, one.sentences, one.tables, one.run) == (
        [1, 2],
        ["1", "2"],
        {1: [1], 2: [2]},
        2,
    )
    assert one.seconds == {1: {}, 2: {}} and (one.page, one.selection) == (2, 2)


def test_outcomes_are_counted_by_kind():
    _, outcomes = synthetic.matmul()
    record = next(o for o in outcomes if isinstance(o, Record))
    failure = next(o for o in outcomes if isinstance(o, Failure))
    kinds = {"first_pass": "measured", "predict": "predicted", "final": "final", "hot": "hot"}
    assert {phase: sweep_command._kind(replace(record, phase=phase)) for phase in kinds} == kinds
    stages = {"refused": "refused", "check": "wrong", "launch": "failed", "measure": "failed"}
    assert {stage: sweep_command._kind(replace(failure, stage=stage)) for stage in stages} == stages
    assert sweep_command._kind(replace(failure, stage="measure", traffic=object())) == "unpredicted"
    assert sweep_command._kind(replace(failure, stage="check", traffic=object())) == "wrong"
    assert (
        sweep_command._exit_code([failure]) == COULD_NOT_RUN
        and sweep_command._exit_code([failure, record]) == PASSED
    )
    same = SweepOptions(require="same-bits")
    with pytest.raises(CommandError, match="outputs of a GPU"):
        sweep_command.bits_option(same, SimpleNamespace(predicts=True))
    assert sweep_command.bits_option(same, SimpleNamespace(predicts=False)) == "default"
    assert sweep_command.bits_option(SweepOptions(), SimpleNamespace(predicts=True)) == ""


def test_sizes_of_unlike_gpus_are_left_out_of_a_portfolio():
    run, _ = synthetic.softmax()

    def on(n, copy, gpu_name):
        return replace(run, sizes={"N": n}, references={"copy": copy}, gpu=gpu_name)

    tables = {f"N={n}": [n] for n in (1, 2, 3)}
    alike = [on(1, 1.0, "A"), on(2, 1.01, "B"), on(3, 1.02, "C")]
    assert sweep_command.tables_of_alike_gpus(tables, alike) == (tables, "")
    assert sweep_command.tables_of_alike_gpus(tables, alike[:2]) == (tables, ""), (
        "one is of no cluster"
    )
    kept, note = sweep_command.tables_of_alike_gpus(tables, [*alike[:2], on(3, 1.2, "C")])
    assert list(kept) == ["N=1", "N=2"] and note.startswith(
        "N=3 ran on C, whose library references"
    )


@pytest.mark.parametrize(
    ("many", "bits", "expected"),
    [
        (96, "", "exhaustive"),
        (97, "", "model"),
        (97, "default", "exhaustive"),
    ],
)
def test_a_small_space_is_measured_whole(many, bits, expected):
    plan = SimpleNamespace(candidates=[0] * many, run=SimpleNamespace(same_bits_as=bits))
    backend = SimpleNamespace(device=SimpleNamespace(backend="triton"), predicts=False)
    found = problem.default_search(plan, backend)
    assert found.strategy.value == expected and (found.stop_rule is not None) == (
        expected == "model"
    )
    most = problem.MOST[False]
    plan.candidates, plan.run.same_bits_as = [0] * (most + 1), "default"
    found = problem.default_search(plan, backend)
    assert (
        found.strategy.value == "model" and found.stop_rule is None and found.budget.configs == most
    )
    plan.candidates = [0] * most
    assert problem.default_search(plan, backend).strategy.value == "exhaustive"
    backend.predicts = True
    assert problem.default_search(plan, backend).strategy.value == "model"
    backend.device.backend = "metal"
    assert problem.default_search(plan, backend).strategy.value == "exhaustive"
    searches = [None, problem.SearchPlan(), found]
    assert [problem.predicted_configs(s) for s in searches] == [problem.MOST[True], 0, most]
    with pytest.raises(CommandError, match="modle"):
        problem.find_strategy("modle")


def test_a_sweep_and_a_kernel_are_named_once():
    def names(**given):
        resolved = SweepOptions(**given).resolve_names()
        return resolved.name, resolved.kernel

    assert names(name="pipeline") == ("pipeline", "matmul")
    assert names(name="softmax") == names(kernel="softmax") == ("tile_size", "softmax")
    assert names(name="pipeline", kernel="copy") == ("pipeline", "copy")
    with pytest.raises(OptionError, match="is given twice, as softmax and as --kernel copy"):
        SweepOptions(name="softmax", kernel="copy").resolve_names()
    with pytest.raises(OptionError, match="sofmax"):
        SweepOptions(name="sofmax").resolve_names()


# Gates


def test_a_wrong_result_decides_a_gate_whatever_its_speed():
    def codes(states, *words):
        return [exit_code([*states, word]) for word in words]

    assert codes(["right", "wrong"], "SAME", "INCONCLUSIVE", "SLOW", "interrupted") == [
        FAILED, FAILED, FAILED, INTERRUPTED]  # fmt: skip
    for state in ("other reference", "unproven"):
        assert codes([state], "SAME", "SLOW", "FAILS") == [UNDECIDED, FAILED, COULD_NOT_RUN]
    assert codes(["right"], "SAME") == [PASSED] and codes([], "INCONCLUSIVE") == [UNDECIDED]
    assert codes(["other reference", "wrong"], "SAME") == [FAILED]


# Traces and code


def test_operands_of_traces_are_files_or_runs_of_one_kind(monkeypatch, tmp_path):
    (tmp_path / "a.json").write_text("{}")
    assert operands._is_file(str(tmp_path / "a.json")) and operands._is_file(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert not operands._is_file("folder") and operands._is_file("./folder")
    runs = {"20261121-093000-read-a-1111": "read", "20261121-093000-sweep-b-2222": "sweep",
            "20261121-093000-profile-c-3333": "profile"}  # fmt: skip

    class History:
        def run(self, text):
            kind = "times" if runs[text] == "sweep" else "trace"
            about = {"id": text, "source": f"source {text[-4:]}"}
            return SimpleNamespace(engine=runs[text], kind=kind, **about)

        findings = profiles = staticmethod(list)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    History.findings = History.profiles = lambda self, run: [run]
    monkeypatch.setattr(trace_comparison, "stored_runs", lambda database: History())
    monkeypatch.setattr(operands, "open_history", lambda database, reading: History())
    for module in (operands, trace_comparison):
        monkeypatch.setattr(module, "is_run", lambda text: text in runs)

    def operands_named(left, right, also=()):
        named = SimpleNamespace(left=left, right=right, also=also, database=None)
        return trace_comparison.trace_operands(named) if operands.are_traces(named) else None

    read, measured, profiled = runs
    left, right = operands_named(read, profiled)
    assert left.name == f"source 1111 ({read})" and right.findings == [profiled]
    assert not operands_named(measured, measured) and not operands_named(
        read, profiled, ("energy",)
    )
    assert operands_named(read, "tiles") is None and operands_named("tiles", "rows") is None
    assert operands_named("./folder", "") is None  # "Name two operands" follows
    for pair in ((read, measured), (measured, profiled)):
        with pytest.raises(
            CommandError, match="profiled times are never compared with measured ones"
        ):
            operands_named(*pair)
    for pair, words in (
        (("./folder", read), "is a file and .* a stored run"),
        (("tiles", "./folder"), "folder is a file and tiles is not"),
    ):
        with pytest.raises(CommandError, match=words):
            operands_named(*pair)


def test_what_was_expected_of_traces_decides_the_code():
    trace = TraceOperand("t", (), ())
    traces = TraceComparison(trace, trace, "SLOW", "it is slower", (), (), ())

    def code(*states):
        expected = [ExpectationResult("it falls", state, "metric") for state in states]
        return trace_comparison.traces_result(traces, expected).exit_code

    codes = [code("met"), code("met", "not measured"), code("not measured", "not met"), code()]
    assert codes == [PASSED, UNDECIDED, FAILED, UNDECIDED]


def test_a_comparison_of_traces_is_printed():
    def operand(name, total, median):
        findings = [Finding("r", synthetic.AT, "timeline", "", {}, "", "w", "s",
                            (Evidence("total time", total, "s", "profiled"),))]  # fmt: skip
        profiles = [
            replace(
                drawn_printed.drawn_data.profile(drawn_printed.random.Random(3), k),
                total_s=median,
                count=2,
                launch="",
                median_s=median,
                metrics=(Evidence("share", median * 1e4, "1", "profiled"),),
            )
            for k in ("a", name)
        ]
        return TraceOperand(name, findings, profiles)

    result = compare(operand("old", 1.0, 1e-5), operand("new", 1.5, 2e-5), 0.01)
    expected = [
        SimpleNamespace(state="met", text="less", before=1.0, after=2.0, unit="s"),
        SimpleNamespace(state="not measured", text="more", before=None, after=2.0, unit="s"),
    ]
    text = "\n".join(lines_of(lambda to: trace_comparison._print(to, result, expected)))
    assert "before  old\nafter   new\n" in text and "total time  1.000 s  1.500 s   +50 %" in text
    assert (
        "metrics of a that differ" in text and "met: less (1.000 s before, 2.000 s after)" in text
    )
    assert text.endswith("not measured: more") and trace_comparison.sentence(result) in text
    assert trace_comparison.sentence(replace(result, word="SLOW")).startswith("Suspected SLOW: ")
    assert trace_comparison.sentence(replace(result, word="SAME")).startswith("SAME: ")


def test_counters_of_calls_are_known_where_every_call_is_the_same():
    record = next(o for o in synthetic.softmax()[1] if isinstance(o, Record))

    def known(names, calls, launches=None, tool="nsys", records=(record,)):
        trace = Trace(tool)
        for n, name in enumerate(names):
            dispatch = Dispatch(name, str(n), duration_ns=1000.0)
            dispatch.opcodes = {"FADD": 1.0}
            trace.dispatches.append(dispatch)
        found = traces.known_of_calls(trace, records, calls, launches)
        return (
            None
            if found.plain is None
            else (found.plain["call_launches"], len(found.calls), len(found.plain) > 1)
        )

    assert known("aaa", 3) == (1.0, 0, True) and known("ababab", 3) == (2.0, 3, False)
    assert known("ababa", 3) is None and known("abaabb", 3) is None and known("", 3) is None
    assert (
        known("abab", 2, 2) == (2.0, 2, False)
        and known("abab", 2, 3) is None
        and known("ab", 0) is None
    )
    assert known("aa", 2, records=()) is None and known("aa", 2, records=(record, record)) is None
    one = traces.COUNTS_ONE_OF_EACH
    assert known("ab", 5, 2, one) == (2.0, 1, False) and known("ab", 5, 3, one) is None


# Tuned configs


def entry(kernel="softmax", impl="rows", at="2026-11-01", **more):
    given = {
        "kernel": kernel,
        "impl": impl,
        "config": {"w": 4},
        "sizes": {"N": 8},
        "dtype": "bf16",
        "device": "h200",
        "torch": "2",
        "triton": "3",
        "source": "s",
        "predicted": False,
        "time_s": 1e-5,
        "low_s": None,
        "high_s": None,
        "regime": "",
        "protocol": "p",
        "run": "r",
        "at": at,
        "configs": 1,
    } | more
    return Entry(**given)


def test_tuned_configs_are_shown_merged_and_forgotten(tmp_path, capsys):
    from workbench.data.tuned_cache import changing

    mine, other = tmp_path / "mine.json", tmp_path / "other.json"
    with changing(mine) as cache:
        cache.add(entry())
        cache.add(entry("copy", predicted=True))
    with changing(other) as cache:
        cache.add(entry(at="2026-11-02"))
        cache.add(entry("matmul"))
        cache.add(entry("copy", predicted=True))

    def use(**given):
        out = io.StringIO()
        to = Console(file=out, width=200, highlight=False)
        options = SimpleNamespace(
            **(
                {
                    "export": None,
                    "load": None,
                    "code": False,
                    "forget": False,
                    "file": mine,
                    "kernel": None,
                    "impl": None,
                    "device": None,
                }
                | given
            )
        )
        return tuned.use(options, to), out.getvalue()

    shown, text = use()
    assert (
        len(shown["entries"]) == 2 and "copy.rows" in text and "~10 us" in text and " 10 us" in text
    )
    merged, text = use(load=other)
    assert (merged["read"], merged["changed"]) == (
        3,
        2,
    ) and "2 of 3 entries are new or newer" in text
    assert len(use()[0]["entries"]) == 3
    forgotten, text = use(forget=True, kernel="softmax")
    assert "1 entries forgotten" in text and [e["kernel"] for e in use()[0]["entries"]] != forgotten
    assert len(use()[0]["entries"]) == 2 == len(Tuned.load(mine).entries)
    exported, text = use(export=tmp_path / "x.json", kernel="copy")
    assert "1 entries written to" in text and len(exported["entries"]) == 1
    for given, words in (
        ({"forget": True}, "--forget needs a kernel"),
        ({"load": other, "kernel": "copy"}, "takes a file whole"),
        ({"load": other, "device": "h200"}, "takes a file whole"),
        ({"code": True, "forget": True, "kernel": "copy"}, "--code and --forget are two things"),
    ):
        with pytest.raises(TunedError, match=words):
            use(**given)
    assert "Nothing is tuned that matches" in use(kernel="none")[1]
    narrow = lines_of(lambda to: tuned.show_entries([entry()], to), 139)
    wide = lines_of(lambda to: tuned.show_entries([entry()], to), 140)
    assert "versions" not in narrow[0] and "versions" in wide[0]


# Words of tune


def test_arguments_of_a_launch_are_read():
    assert tune_words.arguments_of(["n=4096", "flag=True"], ["n", "flag"]) == {
        "n": 4096,
        "flag": True,
    }
    for words, match in (
        (["n"], "n is not NAME=VALUE"),
        (["m=1"], "argument for --arg"),
        (["n=x y"], "neither a tensor"),
    ):
        with pytest.raises(OptionError, match=match):
            tune_words.arguments_of(words, ["n"])
    tensors = tune_words.arguments_of(["x=bf16[8,4]", "i=int64[16]<5"], ["x", "i"])
    assert tuple(tensors["x"].shape) == (8, 4) and int(tensors["i"].max()) < 5


def test_configs_that_a_device_cannot_launch_come_last():
    from workbench.adapted.call import Call, ConfigEntry, Layout
    from workbench.adapted.travel import Place

    def entry_of(n, grid):
        return ConfigEntry({"BLOCK": n}, {}, grid)

    entries = (entry_of(1, (1, 70_000)), entry_of(2, (1,)), entry_of(3, (1, 65_535)))
    layouts = {"x": Layout((4,), (1,), "fp32")}
    one = Call("add", Place("/f.py", "f", "add"), (), layouts, entries, ())
    limits = find_device("h200").limits
    assert [e.values["BLOCK"] for e in tune_function._launchable(one, limits).entries] == [2, 3, 1]
    with pytest.raises(tune_function.AdaptedError, match="No config of add can be launched"):
        tune_function._launchable(replace(one, entries=one.entries[:1]), limits)
    floats = replace(
        one, tensors={"i": Layout((4,), (1,), "int32"), "x": Layout((4,), (1,), "fp32")}
    )
    assert tune_function._assume_outputs(floats, ()).outputs == (
        "x",
    ) and tune_function._assume_outputs(floats, ("i",)).outputs == ("i",)
    assert tune_function._assume_outputs(
        replace(floats, tensors={"i": floats.tensors["i"]}), ()
    ).outputs == ("i",)
    tuner = SimpleNamespace(reset_to_zero=["a"], restore_value=["b"])
    assert (
        tune_function._restored_tensors(tuner) == ("a", "b")
        and tune_function._restored_tensors(None) == ()
    )
    for configs, given_tuner in (([], None), (None, None)):
        with pytest.raises(tune_function.AdaptedError, match="There are no configs to try"):
            tune_function.configs_of(given_tuner, ((), {}), configs)
    assert tune_function.configs_of(None, ((), {}), [1]) == ([1], [])


# Calibrations


def test_sizes_are_calibrated_kernel_by_kernel_and_those_held_back_last(monkeypatch):
    name = next(v for v in vars(calibrate_command).values() if hasattr(v, "_problems"))
    one = name.__new__(name)
    one.options = SimpleNamespace(measure=2, check=1)
    sizes = {"a": [1, 2, 3], "b": [4]}
    monkeypatch.setattr(calibrate_command.catalog, "spec_of", lambda kernel: kernel)
    one._sizes = lambda spec, dtype, device: [{"N": n} for n in sizes[spec]]
    found = list(one._problems({"a": "bf16", "b": "fp16"}, None))
    assert [(p.problem.kernel, p.problem.sizes["N"], p.is_check) for p in found] == [
        ("a", 1, False), ("b", 4, False), ("a", 2, False), ("a", 3, True)]  # fmt: skip


# Verdicts on two versions, and tools


def test_a_run_has_sizes_where_all_are_the_same():
    case = next(o for o in synthetic.softmax()[1]).case
    other = replace(case, kernel="copy")
    assert shared_sizes([case, case]) == case.sizes and shared_sizes([case, other]) == {}
    assert shared_sizes([case, replace(case, sizes={"M": 1})]) == {} == shared_sizes([])
    refused = compiler_comparison.NoVersionTimes("broken", 1)
    side = compiler_comparison._operand_result
    assert side(refused, 1).reason == "broken" and side(refused, 1).own
    assert side(refused, 0).reason == "the other version could not run"
    assert side(replace(refused, place=None), 0).reason == "broken"


def test_each_tool_gets_what_is_asked_of_it_alone():
    from workbench.traces.profilers.running.workload import Workload

    options = ProfileOptions(metrics="SQ_WAVES A", tool_option=("checks=all", "instrument=x"))
    one = ProfileCommand(options, Console(file=io.StringIO()))
    plain = Workload(("python",), "title")
    assert one._tool_workload(plain, "sanitizer").every and not plain.every
    assert one._tool_workload(plain, "xctrace").instruments == ("x",)
    assert (
        one._tool_workload(plain, "rocprofv3").counters
        and not one._tool_workload(plain, "trace").counters
    )
    without = ProfileCommand(ProfileOptions(), Console(file=io.StringIO()))
    assert not without._tool_workload(plain, "sanitizer").every
