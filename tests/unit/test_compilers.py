"""Versions of the compiler: where they are, folders that hold none, and runs that are stopped."""

import io
import json
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from compiled_cases import CASE, FACTS, FakeCompilers, Pools, other

from workbench.backend import compilers
from workbench.backend.compilers import (
    Compiler,
    CompilerError,
    Compilers,
    CompileTask,
    FactsJob,
)
from workbench.catalog.source import code_hash
from workbench.commands import compiler_comparison
from workbench.commands.code_configs import ChosenConfig, ConfigChooser, devices_of
from workbench.commands.code_run import new_code_run, stored_code
from workbench.commands.compare import CompareOptions
from workbench.commands.compare_command import CompareCommand
from workbench.commands.compiler_comparison import CompilerComparison, folder_of_version
from workbench.commands.console import plain_console
from workbench.commands.gate import GateOptions
from workbench.commands.options import CommandError
from workbench.commands.report import draw
from workbench.data.compiled_code import CodeVersions
from workbench.data.database import open_history
from workbench.data.events import read
from workbench.data.record import Comparison, Failure, Record
from workbench.data.tuned_cache import Entry, Tuned
from workbench.device.hardware import DEVICES, UnknownDevice
from workbench.measurement.candidate import Refusal
from workbench.reports.pair_texts import missing_verdict

# Where a version is


def test_a_version_is_the_installed_one_or_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(compilers.sys, "prefix", str(tmp_path / "env"))
    monkeypatch.setattr(compiler_comparison, "installed_version", lambda: "3.9.0")
    assert folder_of_version("3.9.0") is None
    for place in (tmp_path / "env" / "triton-3.6.0", tmp_path / "triton-3.7.0"):
        (place / "triton").mkdir(parents=True)
        (place / "triton" / "__init__.py").touch()
        assert folder_of_version(place.name.removeprefix("triton-")) == place
        assert folder_of_version(str(place)) == place
    with pytest.raises(CommandError, match=r"pip install --no-deps --target \S+ triton==3\.5\.1"):
        folder_of_version("3.5.1")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CommandError, match="holds no triton"):
        folder_of_version(str(tmp_path / "empty"))


@pytest.mark.parametrize("text", ["", "latest", "3.6.0 --index-url x", "-3", "3;x", "3.6\n"])
def test_what_is_no_version_is_one_sentence(text):
    with pytest.raises(CommandError, match="is not a version"):
        folder_of_version(text)


def test_nothing_is_installed_without_a_yes(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(compiler_comparison.subprocess, "run", lambda *a, **m: ran.append(a))
    monkeypatch.setattr(compilers.sys, "prefix", str(tmp_path))
    for reply in ("", "\n", "n\n", "maybe\n"):
        monkeypatch.setattr("sys.stdin", io.StringIO(reply))
        with pytest.raises(CommandError, match="is not here"):
            folder_of_version("3.5.1", interactive=True)
    assert not ran


def test_a_yes_installs_into_a_folder_of_its_own(tmp_path, monkeypatch):
    ran = []

    def pip(command, **more):
        ran.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(compiler_comparison.subprocess, "run", pip)
    monkeypatch.setattr(compilers.sys, "prefix", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    folder = folder_of_version("3.5.1", interactive=True)
    assert ran[0][-3:] == ["--target", str(folder), "triton==3.5.1"] and "--no-deps" in ran[0]


HOSTILE = {
    "raises": ("raise RuntimeError('boom')", "boom"),
    "exits": ("import sys; sys.exit(0)", "cannot be used"),
    "dies": ("import os; os._exit(7)", "died"),
    "hangs": ("import time; time.sleep(600)", "took longer"),
    "other": ("", "cannot be used"),
    "syntax": ("def", "cannot be used"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_is_one_sentence(name, tmp_path, monkeypatch):
    text, reason = HOSTILE[name]
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text(text)
    monkeypatch.setattr(compilers, "PROBE_S", 5.0 if name == "hangs" else 60.0)
    with Compilers([tmp_path]) as pools, pytest.raises(CompilerError, match=reason) as raised:
        pools.versions()
    assert str(tmp_path) in str(raised.value) and "\n" not in str(raised.value)


# Options


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"left": "tiles", "right": "tiles"}, "leave out LEFT and RIGHT"),
        ({"also": ("energy",)}, "leave out --also"),
        ({"require": ("idle-gpu",), "trust": True}, "leave out --require and --trust"),
        ({"impl": "tiles"}, "name it with --kernel"),
        ({"kernel": ("copy", "matmul"), "sizes": "N=4"}, "name it with --kernel"),
    ],
)
def test_options_that_do_not_fit_two_compilers(more, reason, tmp_path):
    wanted = CompareOptions(**{"triton": ("3.6.0", "3.9.0"), "out": tmp_path, **more})
    with pytest.raises(CommandError, match=reason):
        CompareCommand(wanted, plain_console()).go()


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (CompareOptions(), "Name two operands"),
        (CompareOptions("tiles"), "Name two operands"),
        (CompareOptions("tiles", "tiles", device=("h200",)), "--device is for --triton"),
        (CompareOptions("tiles", "tiles", kernel=("copy", "matmul")), "of one kernel"),
    ],
)
def test_operands_that_are_missing(wanted, reason):
    with pytest.raises(CommandError, match=reason):
        CompareCommand(wanted, plain_console()).go()


def test_the_stored_command_names_both_versions_once():
    wanted = CompareOptions(triton=("3.6.0", "3.9.0"), kernel=("copy",), device=("h200",))
    assert "--triton 3.6.0 3.9.0 --kernel copy --device h200" in wanted.command
    assert "--device h200 --device mi300x" in GateOptions("HEAD", device=("h200", "mi300x")).command


def test_devices_are_named_or_all():
    assert [d.name for d in devices_of(())] == list(DEVICES) and len(DEVICES) == 10
    assert devices_of(("all",)) == devices_of(()) == devices_of(("h200", "all"))
    assert [d.name for d in devices_of(("MI300X", "h200", "h200"))] == ["mi300x", "h200"]
    with pytest.raises(UnknownDevice):
        devices_of(("h2000",))


# Which configs


def test_tuned_configs_come_before_defaults():
    from workbench import catalog

    impl = catalog.impl_of(catalog.spec_of("copy"), "blocks")
    config = {"block_n": 4096, "num_warps": 8}
    common = {
        "kernel": "copy", "impl": "blocks", "config": config, "dtype": "bf16", "device": "h200",
        "torch": "2.0", "triton": "3.6.0", "predicted": False, "time_s": 1e-3, "low_s": None,
        "high_s": None, "regime": "", "protocol": "", "run": "r", "configs": 3,
    }  # fmt: skip
    own = code_hash(impl)
    entries = [
        Entry(**common, sizes={"N": 1 << 20}, source=own, at="2026-11-01T00:00:00+00:00"),
        Entry(**common, sizes={"N": 1 << 24}, source="another", at="2026-11-02T00:00:00+00:00"),
    ]
    chooser = ConfigChooser("bf16", Tuned({e.key: e for e in entries}))
    on = {c.device.name: c for c in chooser.kernel_configs("copy", devices_of(("h200", "a100")))}
    assert on["h200"].job.tuning_date == "2026-11-01" and dict(on["h200"].job.case.config) == config
    assert on["a100"].job.tuning_date == "" and dict(on["a100"].job.case.config) != config


def test_a_kernel_of_another_dtype_names_it():
    (config,) = ConfigChooser("fp32", Tuned()).kernel_configs("copy", devices_of(("h200",)))
    assert config.job.case.dtype == "fp32"
    every = list(ConfigChooser("bf16", Tuned()).kernel_configs("fp8_matmul", devices_of(("h200",))))
    assert {c.job.case.dtype for c in every if isinstance(c, ChosenConfig)} == {"fp8"}


# Runs that are stopped


def tasks(count):
    compiler, device = Compiler("3.9.0", "k", None), DEVICES["a100"]
    jobs = [FactsJob("matmul", CASE, f"code {n}") for n in range(count)]
    return [CompileTask(0, compiler, job, device) for job in jobs]


@contextmanager
def stored(folder):
    """A run of its own in the database of the folder, at each use."""
    options = CompareOptions(triton=("3.6.0", "3.9.0"), out=folder)
    versions = CodeVersions("Triton 3.6.0", "Triton 3.9.0", ("a100",), 0.01, 4)
    run = new_code_run(options, "compare", [CASE], versions, [])
    with (
        open_history(f"sqlite:///{folder / 'runs.db'}") as history,
        stored_code(options, run, history) as one,
    ):
        yield one


def obtained(folder, pools, some):
    """What a run yields for these tasks, by place."""
    results = {}
    with stored(folder) as one:
        for n, outcome in one.obtain(pools, some, one.find_known(some)):
            results[n] = outcome
    return results, one


def events(one):
    return read(one.events).events


def test_what_is_compiled_is_not_compiled_again(tmp_path):
    some = tasks(4)
    first = Pools([FACTS, Refusal("compile", "no\n room"), KeyboardInterrupt()])
    results, one = obtained(tmp_path, first, some)
    assert list(results) == [0, 1] and one.state == "interrupted"
    second = Pools([FACTS, FACTS])
    results, one = obtained(tmp_path, second, some)
    assert [job.code for job in second.compiled] == ["code 2", "code 3"]
    assert results[1].reason == "no room" and one.state == "complete"
    assert [results[n].code for n in (0, 2, 3)] == [FACTS.code] * 3
    assert {o.run for o in results.values()} == {one.run.id}
    kept = [e for e in events(one) if isinstance(e, Record | Failure)]
    assert kept == [results[n] for n in sorted(results)]
    with open_history(f"sqlite:///{tmp_path / 'runs.db'}", reading=True) as history:
        assert history.outcomes(one.run.id) == kept and len(history.runs()) == 2


@pytest.mark.parametrize(
    "lost",
    [
        Refusal("compile", "took longer than 60 s", cause="timeout"),
        Refusal("compile", "OSError: [Errno 28] No space left on device"),
    ],
)
def test_what_the_machine_failed_at_is_tried_again_in_the_next_run(tmp_path, lost):
    results, _ = obtained(tmp_path, Pools([lost]), tasks(1))
    assert results[0].reason == lost.reason
    results, _ = obtained(tmp_path, again := Pools([FACTS]), tasks(1))
    assert results[0].code == FACTS.code and len(again.compiled) == 1


def test_a_row_without_the_facts_is_compiled_again(tmp_path):
    with stored(tmp_path) as one:
        (task,) = tasks(1)
        for part in ("code", "resources"):
            one.store.keep(replace(task.outcome(FACTS), **{part: None}))
    with stored(tmp_path) as one:
        assert one.find_known(tasks(1)) == {}


def test_the_pairs_of_a_run_are_those_of_its_records(tmp_path):
    """Of a config that two pairs share one outcome is stored; verdicts are kept beside."""
    with stored(tmp_path) as one:
        before, wide, fails = (
            one.keep(task.outcome(result))
            for task, result in zip(
                tasks(3), (FACTS, other(registers=252), Refusal("compile", "no")), strict=True
            )
        )
        pairs = [one.compare(one.keep(before), after) for after in (wide, fails)]
        entry = replace(pairs[0].comparison, by="time", reason="it broke")
        one.keep_comparison(entry)
    assert [p.word for p in one.changes.pairs] == ["WORSE", "FAILS"] == [p.word for p in pairs]
    first = one.changes.pairs[0]
    assert replace(first, timed_pair=None) == pairs[0] and missing_verdict(first) == "it broke"
    assert len([e for e in events(one) if isinstance(e, Record)]) == 2
    assert [e.by for e in events(one) if isinstance(e, Comparison)] == ["code", "code", "time"]


def test_a_key_holds_compiler_code_device_and_config():
    (task,) = tasks(1)
    keys = {
        replace(task, compiler=compiler, device=device).key
        for compiler in (task.compiler, Compiler("3.9.0", "other", None))
        for device in (DEVICES["a100"], DEVICES["h100"])
    }
    assert len(keys) == 4 and task.key in keys
    assert replace(task, job=FactsJob("matmul", CASE, "other")).key not in keys


def test_a_command_that_is_stopped_says_so_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compiler_comparison, "Compilers", FakeCompilers)
    monkeypatch.setattr(compiler_comparison, "folder_of_version", lambda *a: None)
    document = tmp_path / "result.json"
    wanted = CompareOptions(
        triton=("3.6.0", "3.9.0"), kernel=("copy",), out=tmp_path, json=document,
        database=f"sqlite:///{tmp_path / 'runs.db'}",
    )  # fmt: skip

    def compare():
        code = CompilerComparison(
            wanted, plain_console(), tmp_path / "tuned.json", has_gpu=lambda: False
        ).go()
        return code, json.loads(document.read_text()), capsys.readouterr().out

    monkeypatch.setattr(FakeCompilers, "stop_after", 5)
    code, plain, text = compare()
    assert code == plain["exit_code"] == 130 and plain["comparison"]["interrupted"]
    assert "stopped after 2 of 10" in text and Path(plain["runs"][0]["page"]).is_file()
    monkeypatch.setattr(FakeCompilers, "stop_after", 99)
    code, plain, text = compare()
    assert code == plain["exit_code"] == 3 and "5 of 20 are compiled already" in text
    assert [p["word"] for p in plain["comparison"]["parts"]] == ["WORSE"] * 10
    assert [len(run["predicted"]) for run in plain["runs"]] == [20]
    assert drawn_again(wanted, plain) == Path(plain["runs"][0]["page"]).read_bytes()


def drawn_again(options, plain):
    """The page that `report` draws of the run's id, and the same of its events file."""
    run = plain["runs"][0]
    again = options.out / "again.html"
    both = []
    for which in (run["run"]["id"], run["events"]):
        draw("versions", which, again, options.database)
        both.append(again.read_bytes())
    assert both[0] == both[1]
    return both[0]
