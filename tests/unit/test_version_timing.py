"""Two versions of the compiler measured against each other, on a GPU that takes no time."""

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from compiled_cases import CASE, FACTS, RESOURCES, FakeCompilers
from fake_gpu import FakeGpu, FakeVariant, Weather

from workbench.backend import version_timing
from workbench.backend.compilers import FactsJob
from workbench.backend.version_timing import VersionTimer
from workbench.commands import compiler_comparison
from workbench.commands.compiler_comparison import CompilerComparison
from workbench.commands.console import plain_console
from workbench.commands.options import CompareOptions
from workbench.data.code_pair import exit_code_of, paired
from workbench.data.verdict import Ratio, verdict
from workbench.device.hardware import DEVICES
from workbench.measurement.candidate import Refusal

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
            return (device, None, "gpu-0") if device else None
        if self.folder == NEW and name in machine.fails:
            result = machine.fails[name]
            if isinstance(result, Exception):
                raise result
            return result
        if name == "window_alone":
            return FakeVariant(machine.gpu, machine.seconds[self.folder]).window(*args)
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
        assert result.word == word and result.time.middle == pytest.approx(slower, rel=0.02)
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
        ({"open_alone": Refusal("launch", "illegal", poisoned=True)}, "illegal", 3),
        ({"window_alone": LOST}, "a measuring process died (exit code 7)", 3),
        ({"close_alone": Refusal("check", "in timed calls, wrong")}, "in timed calls", 0),
        ({"open_alone": TimeoutError("took longer than 120 s")}, "took longer", 3),
    ],
)
def test_what_fails_is_a_reason_and_no_verdict(on, fails, words, ended):
    machine = on(Machine({OLD: 1e-4, NEW: 1e-4}, fails, Weather.wait_idle()))
    with machine.timer() as timer:
        timer.device()
        reason = timer.compare(JOB, 0.01)
        assert isinstance(reason, str) and words in reason and "\n" not in reason
        assert machine.ended == ended
        machine.fails = {}
        assert timer.compare(JOB, 0.01).word == "SAME"  # new processes where the old are gone
        assert len(machine.started) == 3 + ended


def test_without_a_gpu_nothing_is_locked(on):
    machine = on(Machine({}, device="none"))
    with machine.timer() as timer:
        assert timer.device() is None
    assert machine.locks == [] and machine.ended == 3


def compare(tmp_path, monkeypatch, machine):
    monkeypatch.setattr(compiler_comparison, "Compilers", FakeCompilers)
    monkeypatch.setattr(compiler_comparison, "folder_of_version", lambda *a: None)
    file = tmp_path / "r.json"
    wanted = CompareOptions(triton=("3.6.0", "3.9.0"), kernel=("copy",), out=tmp_path, json=file)
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
    pairs = {p["case"]["device"]: p for p in document["code_changes"]["pairs"]}
    here = pairs.pop("a100")
    assert not any(p["measured"] or p["unmeasured"] for p in pairs.values()) and len(pairs) == 9
    known = here["measured"]["word"] if here["measured"] else here["unmeasured"]
    assert known == shown and f"measured  copy.blocks: {'' if fails else f'{slower:.3f}x'}" in text
    assert "9 on other devices remain suspected" in text
    page = Path(document["code_changes"]["page"]).read_text()
    assert "Only the column measured was run" in page and shown in page
    assert ("1.200x (1.200 to 1.200) SLOW" in page) == (slower == 1.2)


def pair(word=None):
    after = replace(FACTS, code="b", resources=replace(RESOURCES, spill_bytes=64))
    known = paired(CASE, FACTS, after)
    assert known.word == "WORSE"
    if word is None:
        return known
    ratio = {"SLOW": Ratio(1.2, 1.19, 1.21), "FAST": Ratio(0.8, 0.79, 0.81),
             "SAME": Ratio(1.0, 0.999, 1.001),
             "INCONCLUSIVE": Ratio(1.01, 0.9, 1.1)}[word]  # fmt: skip
    result = verdict(ratio, None, 0.01, 0.0, 48)
    assert result.word == word
    return replace(known, measured=result)


@pytest.mark.parametrize(
    "words, status",
    [
        (["SAME", "FAST"], 0), (["SAME", "SLOW", None], 1), (["SAME", "INCONCLUSIVE"], 3),
        (["FAST", None], 3), ([], 0),
    ],
)  # fmt: skip
def test_a_verdict_replaces_a_suspicion(words, status):
    assert exit_code_of([pair(word) for word in words]) == status
