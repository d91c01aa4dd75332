"""Two versions of the compiler measured against each other, on a GPU that takes no time."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
from compiled_cases import CASE, FACTS, FakeCompilers, other, paired, timed
from fake_gpu import FakeGpu, FakeVariant, Weather

from workbench.backend import version_timing
from workbench.backend.compilers import FactsJob
from workbench.backend.version_timing import NoVersionTimes, VersionTimer
from workbench.cli import main
from workbench.commands import compiler_comparison
from workbench.commands.compare import CompareOptions
from workbench.commands.compiler_comparison import CompilerComparison
from workbench.commands.console import plain_console
from workbench.commands.result import RunResult
from workbench.data.database import open_history
from workbench.data.environment import UNKNOWN
from workbench.data.events import RunFinished, read
from workbench.data.record import Comparison, Failure, Measured, Record
from workbench.data.verdict import Ratio, exit_code, verdict
from workbench.device.hardware import DEVICES
from workbench.measurement.candidate import Refusal, Timed

pytestmark = pytest.mark.unit

OLD, NEW = Path("old"), Path("new")
JOB = FactsJob("matmul", CASE, "code")


class Machine:
    """A GPU, its lock, and the processes on it: `seconds` of a call by version; `fails` maps the
    name of a task to what it does in the process of the second version."""

    def __init__(self, seconds, fails=None, weather=None, device="a100"):
        self.gpu, self.seconds = FakeGpu(3, weather), seconds
        self.fails, self.device = fails or {}, device
        self.asked, self.ended, self.locks = [], 0, []
        self.started = []
        self.stopped = 0  # after so many windows; 0 for never

    def start(self, folder):
        self.started.append(folder)
        return FakeProcess(self, folder)

    @contextmanager
    def lock(self, name, on_wait):
        self.locks.append(name)
        yield
        self.locks.append("released")

    def timer(self, folders=(OLD, NEW), on_wait=print):
        return VersionTimer(folders, on_wait, self.start)


class FakeProcess:
    def __init__(self, machine, folder):
        self.machine, self.folder = machine, folder

    def begin(self, task, *args):
        pass

    def ask(self, task, *args, timeout_s):
        machine, name = self.machine, task.__name__
        machine.asked.append((name, self.folder))
        if name == "describe":
            device = DEVICES.get(machine.device)
            return (device, UNKNOWN, "gpu-0") if device else None
        if self.folder == NEW and name in machine.fails:
            result = machine.fails[name]
            if isinstance(result, Exception):
                raise result
            return result
        if name == "window_alone":
            machine.stopped -= 1
            if not machine.stopped:
                raise KeyboardInterrupt
            return FakeVariant(machine.gpu, machine.seconds[self.folder]).window(*args)
        if name == "close_alone":
            time_s = machine.seconds[self.folder]
            one = (time_s, time_s, time_s, (time_s,))
            timing = Measured(*one, "cold", "events", "p4", rounds=args[0])
            return Timed(timing, 0.5, "library")
        return None

    def end(self):
        self.machine.ended += 1


@pytest.fixture
def on(monkeypatch):
    def use(machine):
        monkeypatch.setattr(version_timing.preflight, "gpu_lock", machine.lock)
        return machine

    return use


@pytest.mark.parametrize(
    "slower, word", [(1.0, "SAME"), (1.1, "SLOW"), (0.9, "FAST")], ids=["same", "slow", "fast"]
)
@pytest.mark.parametrize("weather", [None, Weather.wait_idle(noise=0.002)], ids=["wild", "calm"])
def test_windows_of_three_processes_decide(on, slower, word, weather):
    machine = on(Machine({OLD: 1e-4, NEW: slower * 1e-4}, weather=weather))
    with machine.timer() as timer:
        assert timer.device().name == "a100"
        result = timer.compare(JOB, 0.03)
        known = result.verdict
        assert known.word == word and known.time.middle == pytest.approx(slower, rel=0.02)
        times = result.before.timing, result.after.timing
        assert [t.median_s for t in times] == [1e-4, slower * 1e-4]
        assert times[0].rounds == known.rounds * 2 or times[0].rounds >= known.rounds
        assert machine.locks == ["gpu-0"] and machine.ended == 0
        timer.compare(JOB, 0.03)
    assert machine.started == [OLD, OLD, NEW] and machine.ended == 3
    assert machine.locks == ["gpu-0", "released"]  # once for both comparisons
    windows = [folder for name, folder in machine.asked if name == "window_alone"]
    assert windows.count(OLD) >= 2 * windows.count(NEW) > 0  # with those that settle the clock
    order = [name for name, folder in machine.asked if folder == NEW]
    assert order[:2] == ["begin", "open_alone"] and order[-1] == "close_alone"


LOST = ChildProcessError("died (exit code 7)")


@pytest.mark.parametrize(
    "fails, words, ended",
    [
        ({"begin": RuntimeError("out of memory.\nmore")}, "out of memory", 3),
        ({"open_alone": Refusal("check", "wrong by 3")}, "wrong by 3", 0),
        ({"open_alone": Refusal("launch", "illegal", is_poisoned=True)}, "illegal", 3),
        ({"window_alone": LOST}, "a measuring process died (exit code 7)", 3),
        ({"close_alone": Refusal("check", "in timed calls, wrong")}, "in timed calls", 0),
        ({"open_alone": TimeoutError("took longer than 120 s")}, "took longer", 3),
    ],
)
def test_what_fails_is_a_reason_and_no_verdict(on, fails, words, ended):
    machine = on(Machine({OLD: 1e-4, NEW: 1e-4}, fails, Weather.wait_idle()))
    with machine.timer() as timer:
        timer.device()
        result = timer.compare(JOB, 0.01)
        assert (
            isinstance(result, NoVersionTimes)
            and words in result.reason
            and "\n" not in result.reason
        )
        assert result.place == (1 if isinstance(next(iter(fails.values())), Refusal) else None)
        assert machine.ended == ended
        machine.fails = {}
        assert (
            timer.compare(JOB, 0.01).verdict.word == "SAME"
        )  # new processes where the old are gone
        assert len(machine.started) == 3 + ended


def test_without_a_gpu_nothing_is_locked(on):
    machine = on(Machine({}, device="none"))
    with machine.timer() as timer:
        assert timer.device() is None
    assert machine.locks == [] and machine.ended == 1


def compare(tmp_path, monkeypatch, machine, kernels=("copy",)):
    monkeypatch.setattr(compiler_comparison, "Compilers", FakeCompilers)
    monkeypatch.setattr(FakeCompilers, "stop_after", 10**6)
    monkeypatch.setattr(compiler_comparison, "folder_of_version", lambda *a: None)
    file = tmp_path / "r.json"
    wanted = CompareOptions(
        triton=("3.6.0", "3.9.0"), kernel=kernels, out=tmp_path, json=file,
        database=f"sqlite:///{tmp_path / 'runs.db'}",
    )  # fmt: skip
    command = CompilerComparison(
        wanted, plain_console(), tmp_path / "tuned.json",
        has_gpu=lambda: True, timer=lambda folders, on_wait: machine.timer(),
    )  # fmt: skip
    code = command.go()
    return code, json.loads(file.read_text())


@pytest.mark.parametrize(
    "fails, slower, status, shown",
    [
        ({}, 1.2, 1, "SLOW"), ({}, 1.0, 3, "SAME"),
        ({"open_alone": Refusal("check", "wrong by 3")}, 1.0, 3, "wrong by 3"),
    ],
)  # fmt: skip
def test_the_present_device_alone_is_measured(
    on, tmp_path, monkeypatch, capsys, fails, slower, status, shown
):
    machine = on(Machine({OLD: 1e-4, NEW: slower * 1e-4}, fails, Weather.wait_idle()))
    code, document = compare(tmp_path, monkeypatch, machine)
    text = capsys.readouterr().out
    # nine other devices have no verdict: what is suspected there remains so
    assert code == document["exit_code"] == status
    pairs = {p["case"]["device"]: p for p in document["comparison"]["parts"]}
    check_expected(document["runs"][0]["predicted"])
    here = pairs.pop("a100")
    assert not any(p["verdict"] or p["unmeasured"] for p in pairs.values()) and len(pairs) == 9
    known = here["verdict"]["word"] if here["verdict"] else here["unmeasured"]
    assert known == shown and f"measured  copy.blocks: {'' if fails else f'{slower:.3f}x'}" in text
    assert "9 on other devices remain suspected" in text
    page = Path(document["runs"][0]["page"]).read_text()
    assert "Only the column measured was run" in page and shown in page
    assert ("1.200x (1.200 to 1.200) SLOW" in page) == (slower == 1.2)


def check_expected(records):
    """Each predicted time has the seconds between which a measured one is expected, where its
    device was ever compared."""
    seen = set()
    for record in records:
        bands = DEVICES[record["case"]["device"]].bands
        known, ends = record["timing"], record["expected_s"]
        assert (ends is not None) == bool(bands and known)
        if ends:
            low, high = (s / known["predicted_s"] for s in ends)
            assert any(b.low <= low * (1 + 1e-9) and b.high == pytest.approx(high) for b in bands)
        seen.add(ends is not None)
    assert seen == {True, False}


def stored(tmp_path):
    """The only run, its outcomes and comparisons in the database, and the same of the events file;
    then those alone that were timed."""
    with open_history(f"sqlite:///{tmp_path / 'runs.db'}", reading=True) as history:
        (run,) = history.runs(limit=9)
        assert run.kind == "code"
        outcomes, comparisons = history.outcomes(run.id), history.comparisons(run.id)
        state = history.state(run.id)
    events = [
        e for e in read(tmp_path / run.id / "events.jsonl").events
        if isinstance(e, (Comparison, Record, Failure, RunFinished)) and e.run == run.id
    ]  # fmt: skip
    assert [e for e in events if isinstance(e, Comparison)] == comparisons
    assert [e for e in events if isinstance(e, (Record, Failure))] == outcomes
    assert [e.state for e in events if isinstance(e, RunFinished)] == [state]
    one = RunResult(run, outcomes, comparisons).timed_part()
    return one.run, one.outcomes, one.comparisons, state


def test_each_verdict_is_stored_and_drawn_again(on, tmp_path, monkeypatch, capsys):
    machine = on(Machine({OLD: 1e-4, NEW: 1.2e-4}, weather=Weather.wait_idle()))
    code, _ = compare(tmp_path, monkeypatch, machine, ("copy", "softmax"))
    run, outcomes, comparisons, state = stored(tmp_path)
    assert code == 1 and state == "complete" and run.device == "a100" and not run.predicted
    assert (run.engine, run.kernel) == ("compare", "copy, softmax")
    assert run.environment.versions["triton"] == "3.6.0 and 3.9.0"
    assert [c.verdict.word for c in comparisons] == ["SLOW"] * len(comparisons)
    assert len(outcomes) == 2 * len(comparisons) and len({o.key for o in outcomes}) == len(outcomes)
    assert comparisons[0].left.endswith("by Triton 3.6.0")
    assert comparisons[0].right.endswith("by Triton 3.9.0")
    told = capsys.readouterr().out
    assert f"`workbench report compare {run.id}` draws them again" in " ".join(told.split())
    database = ["--database", f"sqlite:///{tmp_path / 'runs.db'}"]
    again = tmp_path / "again.html"
    assert main(["report", "compare", run.id, "--out", str(again), *database]) == 0
    assert "<dt>Right</dt><dd>Triton 3.9.0</dd>" in again.read_text()
    assert "SLOW" in again.read_text() and "by Triton 3.9.0" in again.read_text()
    assert main(["history", "--json", str(tmp_path / "h.json"), *database]) == 0
    measured = json.loads((tmp_path / "h.json").read_text())["measured"]
    assert sorted(row["time_s"] for row in measured) == sorted(o.time_s for o in outcomes)
    drawn = ["report", "roofline", "--out", str(tmp_path / "r.html"), "--json", str(tmp_path / "r")]
    assert main([*drawn, "--kernel", "copy", "--device", "a100", *database]) == 0
    points = json.loads((tmp_path / "r").read_text())["points"]
    assert points and {p["kind"] for p in points} == {"measured"}
    assert main([*drawn, "--kernel", "copy", "--device", "h200", *database]) == 2


def test_ctrl_c_keeps_the_verdicts_so_far(on, tmp_path, monkeypatch, capsys):
    """In the windows of the second config."""
    machine = on(Machine({OLD: 1e-4, NEW: 1.2e-4}, weather=Weather.wait_idle()))
    with machine.timer() as timer:
        timer.device()
        timer.compare(JOB, 0.01)
    windows = sum(name == "window_alone" for name, _ in machine.asked)
    machine.stopped = windows + 5
    code, document = compare(tmp_path, monkeypatch, machine, ("copy", "softmax"))
    assert code == 130 and machine.locks[-1] == "released"
    _, outcomes, comparisons, state = stored(tmp_path)
    assert state == "interrupted" and len(comparisons) == 1 and len(outcomes) == 2
    known = [p["verdict"]["word"] for p in document["comparison"]["parts"] if p["verdict"]]
    assert known == ["SLOW"]
    page = Path(document["runs"][0]["page"]).read_text()
    assert "1.200x (1.200 to 1.200) SLOW" in page and "The measurement was stopped" in page


def test_a_version_that_fails_is_a_stored_failure(on, tmp_path, monkeypatch):
    wrong = {"open_alone": Refusal("check", "wrong by 3")}
    machine = on(Machine({OLD: 1e-4, NEW: 1e-4}, wrong, Weather.wait_idle()))
    compare(tmp_path, monkeypatch, machine)
    _, outcomes, (comparison,), _ = stored(tmp_path)
    by_key = {o.key: o.reason for o in outcomes}
    assert comparison.verdict is None
    assert by_key[comparison.right_key] == "wrong by 3"
    assert by_key[comparison.left_key] == "the other version could not run"


def test_without_a_gpu_no_verdict_is_stored(on, tmp_path, monkeypatch, capsys):
    machine = on(Machine({}, device="rtx5090"))
    machine.device = "none"
    compare(tmp_path, monkeypatch, machine)
    with open_history(f"sqlite:///{tmp_path / 'runs.db'}", reading=True) as history:
        (run,) = history.runs(limit=9)
    assert run.kind == "code"
    database = ["--database", f"sqlite:///{tmp_path / 'runs.db'}"]
    assert main(["report", "compare", run.id, *database]) == 2
    assert f"draw it with `workbench report versions {run.id}`" in capsys.readouterr().err
    assert main(["report", "compare", *database]) == 2


def pair(word=None):
    known = paired(CASE, FACTS, other(spill_bytes=64))
    assert known.word == "WORSE"
    if word is None:
        return known
    ratio = {"SLOW": Ratio(1.2, 1.19, 1.21), "FAST": Ratio(0.8, 0.79, 0.81),
             "SAME": Ratio(1.0, 0.999, 1.001),
             "INCONCLUSIVE": Ratio(1.01, 0.9, 1.1)}[word]  # fmt: skip
    result = verdict(ratio, None, 0.01, 0.0, 48)
    assert result.word == word
    return timed(known, result)


@pytest.mark.parametrize(
    "words, status",
    [
        (["SAME", "FAST"], 0), (["SAME", "SLOW", None], 1), (["SAME", "INCONCLUSIVE"], 3),
        (["FAST", None], 3), ([], 0),
    ],
)  # fmt: skip
def test_a_verdict_replaces_a_suspicion(words, status):
    assert exit_code([pair(word).final_word for word in words] or ["SAME"]) == status
