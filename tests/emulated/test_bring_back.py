"""A measurement on a Mac rehearsed: kernels run in the emulator, and a clock of its own goes on by
what each call is said to take. All but MLX and the GPU is what a Mac runs."""

import gzip
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from metal_shim.bring_back import main
from metal_shim.rehearsal import REHEARSED, RehearsalCall, RehearsalDriver, SameProcess
from workbench import catalog, cli
from workbench.backend.metal.metal import MetalLive, NoMetal
from workbench.backend.protocol import Problem, TimingTask
from workbench.commands.bring_back import BringBack, BringBackPlan, bring_back, new_bring_back
from workbench.commands.compare import CompareOptions
from workbench.commands.compare_command import CompareCommand
from workbench.commands.console import SweepConsole, console_for
from workbench.commands.run import new_run
from workbench.commands.sweep import SweepOptions
from workbench.commands.sweep_command import SweepCommand
from workbench.data.database import open_history
from workbench.data.events import event_of, read
from workbench.data.record import Finding, Measured, Record
from workbench.data.returned import MOST_BYTES, ReturnedError, pack, unpack
from workbench.device.hardware import UNCOMPILED
from workbench.measurement import metal_worker
from workbench.measurement.candidate import Refusal, Timed
from workbench.tuner.space import RecordFactory

ROOT = Path(__file__).parents[2]
SMALL = BringBackPlan(kernels=("softmax",), checked_kernels=("softmax",), sizes=1, ceilings=False,
                      rehearsal=True)  # fmt: skip


def backend_of(mac=REHEARSED, driver=None, **more):
    driver = driver or RehearsalDriver()
    return MetalLive(None, mac=mac, driver=driver, process=SameProcess(), **more)


def said_nothing(text):
    pass


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """The file of a small rehearsal."""
    return bring_back(backend_of(), SMALL, tmp_path_factory.mktemp("out"), said_nothing)


def test_a_rehearsal_runs_every_step_and_is_refused(rehearsed, tmp_path, capsys):
    lines = [json.loads(line) for line in gzip.decompress(rehearsed.read_bytes()).splitlines()]
    kinds = [line["type"] for line in lines]
    assert kinds[0] == "Run" and kinds[-2:] == ["RunFinished", "BringBackEnd"]
    assert {line["experiment"] for line in lines if line["type"] == "Finding"} == {
        "metal_checks", "emulator",
    }  # fmt: skip
    threads = {line["case"]["config"]["threads"] for line in lines
               if line["type"] == "Record" and line["case"]["backend"] == "metal"}  # fmt: skip
    assert threads == {32, 64, 128, 256, 512, 1024}
    assert rehearsed.stat().st_size < MOST_BYTES / 20
    with pytest.raises(ReturnedError, match="rehearsal"):
        unpack(rehearsed, list(UNCOMPILED))
    url = f"sqlite:///{tmp_path / 'history.db'}"
    assert cli.main(["history", "--load", str(rehearsed), "--database", url]) == 2
    assert "rehearsal" in capsys.readouterr().err
    with open_history(url) as history:
        assert history.runs() == []


def test_the_file_of_a_true_run_would_be_imported(tmp_path):
    """The same steps, said to be no rehearsal: every line that they write is allowed."""
    backend, plan = backend_of(), replace(SMALL, rehearsal=True)
    path = bring_back(backend, plan, tmp_path, said_nothing)
    lines = gzip.decompress(path.read_bytes()).decode().replace('"rehearsal"', '"full"', 1)
    events = [event_of(line.encode()) for line in lines.splitlines()[:-1]]
    assert {e.checked for e in events if isinstance(e, Record)} == {"rehearsal"}
    path.write_bytes(pack(events, rehearsal=False))
    with pytest.raises(ReturnedError, match="not measured on a GPU"):
        unpack(path, list(UNCOMPILED))
    events = [replace(e, checked="gpu") if isinstance(e, Record) else e for e in events]
    path.write_bytes(pack(events, rehearsal=False))
    assert unpack(path, list(UNCOMPILED)) == events
    with open_history(f"sqlite:///{tmp_path / 'history.db'}") as history:
        assert history.import_run(events) == len(events)
        run = history.run("last")
        assert run.device == "m2max" and all(o.run == run.id for o in history.outcomes(run.id))


@pytest.mark.nightly
def test_a_killed_rehearsal_loses_nothing_and_continues(tmp_path):
    """kill -9 in the middle: what is in the file stays, and the same command does the rest."""
    command = [sys.executable, "-m", "metal_shim.bring_back", "--rehearse", "--out", str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "copy.mlx" in line:
            os.kill(process.pid, signal.SIGKILL)
            break
    process.wait()
    (path,) = tmp_path.glob("*.jsonl")
    before = read(path)
    assert not before.bad and any(isinstance(e, Record) for e in before.events)
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "continues the run" in again.stdout and "softmax: right" not in again.stdout
    (packed,) = tmp_path.glob("*.jsonl.gz")
    after = gzip.decompress(packed.read_bytes()).splitlines()
    assert not list(tmp_path.glob("*.jsonl"))
    keys = [json.loads(line)["key"] for line in after if b'"key"' in line]
    assert len(set(keys)) == len(keys) and json.loads(after[0])["id"] == before.events[0].id


def test_without_a_mac_it_says_so(capsys, tmp_path):
    assert main(["--out", str(tmp_path)]) == 2
    assert "no Metal device" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_ctrl_c_ends_in_one_line(monkeypatch, capsys, tmp_path):
    def stopped(self):
        yield from ()
        raise KeyboardInterrupt

    monkeypatch.setattr(BringBack, "outcomes", stopped)
    assert main(["--rehearse", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "stopped; the same command continues\n"
    assert [p.suffix for p in tmp_path.iterdir()] == [".jsonl"]


def test_a_folder_that_is_not_there_is_made_or_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["--rehearse", "--out", str(tmp_path / "file" / "x")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# The backend


def candidate_of(backend, kernel="softmax", sizes=None, impl="simd_rows", **knobs):
    spec = catalog.spec_of(kernel)
    problem = Problem(kernel, spec, sizes or dict(spec.check[1]), "fp32")
    run = new_run("measure", "x", "x", backend, [problem])
    own = catalog.impl_of(spec, impl)
    config = replace(own.default(backend.device.limits, "fp32", problem.sizes), **knobs)
    return problem, RecordFactory(run, problem, backend.protocol).candidate(own, config, False)


@pytest.mark.parametrize(
    "mac", [replace(REHEARSED, power="battery"), replace(REHEARSED, low_power=True)]
)
def test_slow_power_is_refused_by_default(mac):
    with pytest.raises(NoMetal):
        backend_of(mac)
    assert backend_of(mac, battery=True).device.name == "m2max"


def test_a_time_is_that_of_the_call_alone():
    """Of the clock of the rehearsal: 20 us and the bytes, without dispatch and evaluation."""
    backend = backend_of()
    problem, candidate = candidate_of(backend)
    backend.begin(problem)
    ((_, compiled),) = backend.compile([candidate])
    assert compiled.launches == 1 and compiled.shapes[0].threads == candidate.config.threads
    result = backend.time(candidate, compiled, None).result()
    expected = 2e-5 + problem.spec.bytes_read(problem.sizes, "fp32") / 1e11
    assert isinstance(result, Timed) and result.timing.median_s == pytest.approx(expected, rel=0.02)
    assert result.timing.method == "eval" and result.timing.protocol == backend.protocol
    assert result.timing.compile_s == 0.0  # nothing is compiled on this clock


def test_compiling_is_told_apart_by_the_first_call():
    clock = iter([0.0, 3.0, 3.5, 10.0, 10.5, 12.0])
    assert metal_worker._compile_s(lambda: None, lambda: next(clock)) == 2.5
    assert metal_worker._compile_s(lambda: None, lambda: next(clock)) == 0.0


def test_a_comparison_has_a_verdict_and_a_noise_floor():
    backend = backend_of()
    problem, left = candidate_of(backend, sizes={"M": 64, "N": 4096})
    _, right = candidate_of(backend, sizes={"M": 64, "N": 4096}, threads=512)
    backend.begin(problem)
    first, second, verdict = backend.compare(left, right, 0.01)
    assert isinstance(first, Timed) and isinstance(second, Timed)
    assert verdict.word == "SAME" and 0 < verdict.noise < 0.01


def test_what_cannot_be_timed_is_a_failure_of_its_own(monkeypatch):
    """A wrong kernel, a short one, a library of torch's and a call by the host's clock: the others
    keep their times."""
    backend = backend_of()
    problem, good = candidate_of(backend)
    _, short = candidate_of(backend, threads=64)
    _, wrong = candidate_of(backend, threads=128)
    _, library = candidate_of(backend, impl="torch")
    prepare = RehearsalDriver.prepare

    def prepared(self, impl, config, inputs, cold_bytes):
        call = prepare(self, impl, config, inputs, cold_bytes)
        return RehearsalCall(self, 0.0, "short") if config.threads == 64 else call

    check = metal_worker.check

    def checked(impl, config, given):
        result = check(impl, config, given)
        return replace(result, wrong="y is wrong") if config.threads == 128 else result

    monkeypatch.setattr(RehearsalDriver, "prepare", prepared)
    monkeypatch.setattr(metal_worker, "check", checked)
    tasks = [TimingTask(problem, c) for c in (good, short, wrong, library)]
    tasks.append(TimingTask(problem, good, clock="host"))
    results = [part.result for part in backend.measure_interleaved(tasks)]
    assert isinstance(results[0], Timed)
    words = ["too short", "y is wrong", "only Metal kernels", "before the launch"]
    for result, word in zip(results[1:], words, strict=True):
        assert isinstance(result, Refusal) and word in result.reason


def test_a_time_below_the_roofline_bound_is_refused(monkeypatch):
    """33 MB in 8 us would be 4 TB/s on a chip of 400 GB/s; at 120 us it is a time."""
    backend = backend_of()
    problem, candidate = candidate_of(backend, sizes={"M": 4096, "N": 1024})
    backend.begin(problem)
    monkeypatch.setattr(metal_worker, "CHECKED_BYTES", 0)  # at the sizes to check alone
    for call_s, kind in ((8e-6, Refusal), (1.2e-4, Timed)):
        call = lambda self, *given, call_s=call_s: RehearsalCall(self, call_s, "call")  # noqa: E731
        monkeypatch.setattr(RehearsalDriver, "prepare", call)
        (result,) = backend.final([candidate], [0.0])
        assert isinstance(result, kind)
        if kind is Refusal:
            assert result.rule == "floor" and "below the roofline bound" in result.reason


def test_the_command_compare_on_a_mac(tmp_path):
    options = CompareOptions(
        "simd_rows", "simd_rows:threads=512", kernel=("softmax",), sizes="M=64,N=4096",
        dtype="fp32", out=tmp_path / "out", database=f"sqlite:///{tmp_path / 'history.db'}",
    )  # fmt: skip
    command = CompareCommand(options, console_for(options), lambda device, folder: backend_of())
    assert command.go() == 0
    (page,) = (tmp_path / "out").glob("*/*.html")
    assert "SAME" in page.read_text()


class Dying(SameProcess):
    """A process that is lost at the first task of several."""

    def ask(self, task, *args, timeout_s):
        if task is metal_worker.measure_tasks and len(args[0]) > 1:
            raise ChildProcessError("its process died (exit code 1)")
        return super().ask(task, *args, timeout_s=timeout_s)


def test_a_config_that_kills_the_process_costs_only_itself():
    backend = MetalLive(None, mac=REHEARSED, driver=RehearsalDriver(), process=Dying())
    problem, one = candidate_of(backend)
    _, other = candidate_of(backend, threads=64)
    backend.begin(problem)
    assert all(isinstance(r, Timed) for r in backend.final([one, other], [0.0, 0.0]))


def test_a_sweep_on_a_mac(tmp_path):
    """The engine of `workbench sweep` on this backend, from the options to the page."""
    driver = RehearsalDriver()
    options = SweepOptions(
        "block_size", "softmax", sizes=("M=8,N=1024",), dtype="fp32", impl=("online",),
        device="m2max", out=tmp_path / "out", database=f"sqlite:///{tmp_path / 'history.db'}",
    )  # fmt: skip
    opener = lambda device, folder: backend_of(driver=driver)  # noqa: E731
    console = SweepConsole(quiet=True)
    command = SweepCommand(options, console, opener, tuned_file=tmp_path / "tuned.json")
    assert command.go() == 0
    records = [o for o in command.outcomes if isinstance(o, Record)]
    assert {r.phase for r in records} == {"first_pass", "final", "hot"}
    assert all(isinstance(r.timing, Measured) for r in records)
    assert {r.case.backend for r in records if r.phase == "first_pass"} == {"metal"}
    assert [r.case.impl for r in records if r.case.is_baseline] == ["mlx"]
    assert len({r.case.config.get("threads") for r in records if not r.case.is_baseline}) == 6
    text = command.page.read_text()
    assert "at the boost clock" not in text and "unstable" not in text
    assert "evaluated by MLX" in text and "predicted" not in command.sentences[0]


def test_a_step_that_fails_is_a_finding(monkeypatch):
    backend = backend_of()
    steps = BringBack(backend, new_bring_back(backend, True), SMALL, say=said_nothing)
    monkeypatch.setattr(
        "workbench.commands.bring_back.count_task",
        lambda *args: (_ for _ in ()).throw(OSError("no clang in /usr/bin/clang")),
    )
    (finding,) = [e for e in steps._emulator() if isinstance(e, Finding)]
    assert finding.word == "not possible" and "/usr" not in finding.sentence
