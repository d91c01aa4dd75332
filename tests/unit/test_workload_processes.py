"""How a process of a program begins, in this process: with a table, a recording, steps, a gate."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import triton
from triton.runtime import autotuner

import workbench.workload
from workbench.compile import stand_in
from workbench.device.hardware import DEVICES
from workbench.workload import (
    deployed,
    gate,
    pinned,
    program,
    ranks,
    step_hooks,
    step_marks,
    triton_cache,
    triton_hooks,
)
from workbench.workload.deployed import Deployment, LookupCounts, LookupFile
from workbench.workload.errors import WorkloadError
from workbench.workload.startup import sitecustomize
from workbench.workload.tuned_table import MeasuredTime, PinnedEntry

pytestmark = pytest.mark.unit


# A table


def test_a_deployment_is_a_path_or_an_object():
    assert Deployment.parse("t.json") == Deployment("t.json", "tune", False, None)
    whole = Deployment("t.json", "first", True, "f")
    assert Deployment.parse(f"  {whole.text()}") == whole
    for text in ("{", '{"policy": "first"}'):
        with pytest.raises(WorkloadError, match="neither a path nor an object"):
            Deployment.parse(text)


def test_a_table_is_pinned_and_verified_as_the_variable_says(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(deployed, "pin_table", lambda *words: calls.append(words) or "table")
    monkeypatch.setattr(ranks, "verify_often", lambda table: calls.append(table))
    deployed.begin("t.json")
    assert calls == [("t.json", "tune", None, None)]
    deployed.begin(Deployment("t.json", "first", True, str(tmp_path)).text())
    assert calls[1][:3] == ("t.json", "first", None) and calls[2:] == ["table"]
    look = pinned.TableLookup("m.f", ("8",), "hit", "table", "{}")
    calls[1][3](look)
    calls[1][3](look)
    assert deployed.lookups_in(tmp_path) == {str(os.getpid()): [look, look]}


@pytest.mark.parametrize("policy", ["tune", "error"])
def test_a_table_that_cannot_be_pinned_is_a_note_or_the_end(monkeypatch, capsys, policy):
    def fails(*_):
        raise WorkloadError("no table")

    monkeypatch.setattr(deployed, "pin_table", fails)
    if policy == "error":
        with pytest.raises(SystemExit, match="2"):
            deployed.begin(Deployment("t", policy).text())
    else:
        deployed.begin(Deployment("t", policy).text())
    assert capsys.readouterr().err == "note: no config is pinned: no table\n"


def test_a_file_of_lookups_that_cannot_be_written_is_one_note(tmp_path, capsys):
    look = pinned.TableLookup("m.f", (), "absent", "tune", "")
    file = LookupFile(tmp_path / "missing")
    file.keep(look)
    (tmp_path / "missing").mkdir()
    file.keep(look)
    assert list((tmp_path / "missing").iterdir()) == []
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("note: lookups are not counted (")
    (tmp_path / "1.lookups").write_text('{"function": "m.f", "key": ["1"], "result": "hit", '
                                        '"given": "table", "config": ""}\n{"function"')  # fmt: skip
    one = pinned.TableLookup("m.f", ("1",), "hit", "table", "")
    assert deployed.lookups_in(tmp_path) == {"1": [one]}


def lookups(*pairs):
    return [pinned.TableLookup("m.f", (str(n),), result, given, "")
            for n, (result, given) in enumerate(pairs)]  # fmt: skip


def test_lookups_are_counted_over_processes():
    one = lookups(("hit", "table"), ("absent", "tune"), ("changed", "first"))
    other = lookups(("absent", "tune"), ("other triton", "first"), ("absent", "nearest"))
    absent, old = deployed.REASONS["absent"], deployed.REASONS["changed"]
    newer = deployed.REASONS["other triton"]
    counts = deployed.counts_of([one, [], other])
    assert counts == LookupCounts(6, 1, {absent: 3, newer: 1, old: 1},
                                  {"the first config": 2, "tuned by Triton": 2,
                                   "the nearest measured key": 1}, 2)  # fmt: skip
    assert counts.stale == 2
    assert deployed.counts_text(counts) == (
        f"6 keys looked up in 2 processes: 1 hits, 5 misses (3 {absent}, 1 {newer}, 1 {old}; got 2 "
        "the first config, 2 tuned by Triton, 1 the nearest measured key), 2 stale entries"
    )
    few = deployed.counts_of([one[:1]])
    assert deployed.counts_text(few) == "1 keys looked up: 1 hits, 0 misses, 0 stale entries"
    none = deployed.counts_of([[]])
    assert deployed.counts_text(none) == "no key of an autotuned function was looked up"


# A recording


@pytest.fixture
def recorders(monkeypatch):
    """The recorders that were made, each a list of its calls."""
    made = []

    class Recorder(list):
        def __init__(self, path, options):
            super().__init__([("path", path), ("options", options)])
            made.append(self)

        def __enter__(self):
            self.append("enter")

        def end(self):
            self.append("end")

        def step(self):
            self.append("step")

    monkeypatch.setattr(program, "LaunchRecorder", Recorder)
    monkeypatch.setattr(program.atexit, "register", lambda call: made[-1].append("at exit"))
    monkeypatch.setattr(stand_in, "stand_in", lambda device, for_program: made.append(device))
    monkeypatch.setattr(os, "_exit", lambda status: made[-1].append(status))
    monkeypatch.delitem(sys.modules, step_hooks.MEETING, raising=False)
    yield made
    sys.modules.pop(step_hooks.MEETING, None)


def test_a_process_is_recorded_until_it_exits(recorders):
    options = program.RecordOptions(2, True, None)
    program.begin(program.handed_on(Path("f"), options))
    (one,) = recorders
    assert one[:4] == [("path", Path("f", f"process.{os.getpid()}.workload")),
                       ("options", options), "enter", "at exit"]  # fmt: skip
    sys.modules[step_hooks.MEETING].step()
    os._exit(3)
    assert one[4:] == ["step", "end", 3]


def test_a_process_of_another_device_has_its_stand_in(recorders):
    program.begin(program.handed_on(Path("f"), program.RecordOptions(device="h200")))
    assert recorders[0] == DEVICES["h200"] and recorders[1][2] == "enter"


def test_each_function_is_called_at_a_step_in_its_order(monkeypatch):
    monkeypatch.delitem(sys.modules, step_hooks.MEETING, raising=False)
    calls = []
    for name in ("first", "second", "third"):
        step_hooks.add_step_hook(lambda name=name: calls.append(name))
    sys.modules[step_hooks.MEETING].step()
    assert calls == ["first", "second", "third"]
    del sys.modules[step_hooks.MEETING]


def test_a_recording_of_a_program_has_its_rank_in_its_name(monkeypatch, tmp_path):
    from workbench.workload import recorder

    made = []

    class Recorder:
        def __init__(self, *words):
            made.append(words)

        def __enter__(self):
            made.append("enter")

        def __exit__(self, *_):
            made.append("exit")

    monkeypatch.setattr(recorder, "LaunchRecorder", Recorder)
    monkeypatch.setenv("RANK", "2")
    with workbench.workload.record("run.workload", profile_steps=5, values=True):
        assert made[1:] == ["enter"]
    assert made == [(Path("run.rank2.workload"), program.RecordOptions(5, True)), "enter", "exit"]
    with workbench.workload.record("run.workload"):
        assert made[3][1] == program.RecordOptions(3, False, None)
    names = {r: workbench.workload.rank_file(Path("a/b.c"), r).name for r in (None, "", "x", "0")}
    assert names == {None: "b.c", "": "b.c", "x": "b.c", "0": "b.rank0.c"}


def test_a_pinned_table_is_verified_where_that_is_asked(monkeypatch):
    calls = []
    monkeypatch.setattr(pinned, "pin_table", lambda *words: calls.append(words) or "table")
    monkeypatch.setattr(ranks, "verify_often", calls.append)
    assert workbench.workload.pin("t") == "table" and calls == [("t", "tune", None)]
    assert workbench.workload.pin("t", "first", arch="sm_90", verify=True) == "table"
    assert calls[1:] == [("t", "first", "sm_90"), "table"]


def test_an_output_goes_to_the_marks_of_a_compared_run(monkeypatch):
    calls = []
    monkeypatch.delitem(sys.modules, "workbench.workload.step_marks", raising=False)
    workbench.workload.output("loss", 1.0)
    monkeypatch.setitem(sys.modules, "workbench.workload.step_marks", step_marks)
    monkeypatch.setattr(step_marks.StepMarks, "active", None)
    workbench.workload.output("loss", 2.0)
    active = SimpleNamespace(output=lambda *words: calls.append(words))
    monkeypatch.setattr(step_marks.StepMarks, "active", active)
    workbench.workload.output("loss", 3.0)
    assert calls == [("loss", 3.0)]


def test_a_gate_is_asked_as_torch_first_uses_the_gpu(monkeypatch):
    calls, finders = [], []
    torch = SimpleNamespace(cuda=SimpleNamespace(_lazy_call=calls.append))
    monkeypatch.setattr(sys, "meta_path", finders)
    gate.call_before_gpu("then")
    monkeypatch.setitem(sys.modules, "torch", torch)
    (finder,) = finders
    finder._then()
    assert calls == ["then"]


# The module that Python imports at its start


def test_the_users_own_start_is_imported_first(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys._users_own = __name__\n")
    monkeypatch.setattr(sys, "path", [str(sitecustomize.HERE), str(tmp_path)])
    sitecustomize._import_users_own()
    assert sys.__dict__.pop("_users_own") == "sitecustomize"
    monkeypatch.setattr(sys, "path", [str(sitecustomize.HERE)])
    sitecustomize._import_users_own()
    assert "_users_own" not in sys.__dict__
    assert sitecustomize._import_hook().__name__ == "AfterImport"


def test_what_the_variables_name_begins_after_triton(monkeypatch, capsys):
    began = []
    for name in ("deployed", "program"):
        module = ModuleType(name)
        module.begin = lambda text, name=name: began.append((name, text))
        monkeypatch.setitem(sys.modules, f"workbench.workload.{name}", module)
    monkeypatch.delenv(sitecustomize.TUNED, raising=False)
    monkeypatch.delenv(sitecustomize.VARIABLE, raising=False)
    sitecustomize._begin_modules()
    assert began == []
    monkeypatch.setenv(sitecustomize.TUNED, "t")
    sitecustomize._begin_modules()
    assert began == [("deployed", "t")]
    monkeypatch.setenv(sitecustomize.VARIABLE, "v")
    root = str(sitecustomize.PACKAGE.parent)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != root])
    sitecustomize._begin_modules()
    assert began[1:] == [("deployed", "t"), ("program", "v")] and sys.path.count(root) == 1
    assert capsys.readouterr().err == ""
    sys.modules["workbench.workload.program"].begin = lambda text: 1 / 0
    sitecustomize._begin_safely("program", sitecustomize.VARIABLE)
    assert capsys.readouterr().err == (
        f"note: {sitecustomize.VARIABLE} has no effect in this process (ZeroDivisionError: division"
        " by zero).\n"
    )


# Triton's own cache


@pytest.mark.parametrize(
    ("arch", "target"),
    [("sm_90", ("cuda", 90, 32)), ("sm_100", ("cuda", 100, 32)), ("gfx942", ("hip", "gfx942", 64)),
     ("gfx1100", ("hip", "gfx1100", 32))],
)  # fmt: skip
def test_each_architecture_is_a_target_of_triton(arch, target):
    own = triton_cache.ArchDriver(arch).get_current_target()
    assert (own.backend, own.arch, own.warp_size) == target
    with pytest.raises(WorkloadError, match="no target 'M3'"):
        triton_cache.ArchDriver("M3").get_current_target()


def entry(**more):
    time = MeasuredTime(2e-5, 1e-5, 3e-5)
    given = {"arch": "sm_90", "device": "NVIDIA H200", "triton": triton.__version__,
             "torch": "2.11.0", "module": "mine", "function": "add", "text_hash": "a" * 16,
             "key": ("1024", "torch.float32"), "config": {"BLOCK": 64}, "before_s": time,
             "after_s": time, "family": None, "protocol": "p1", "at": "2026"}  # fmt: skip
    return PinnedEntry(**given | more)


def tuner_of(name, **more):
    """An autotuner of Triton without its kernel, whose cache writes one file a key."""
    base = SimpleNamespace(__name__=name)
    tuner = autotuner.Autotuner.__new__(autotuner.Autotuner)
    tuner.__dict__.update({"fn": SimpleNamespace(fn=base), "base_fn": base, "configs": ["one"],
                           "early_config_prune": None, "perf_model": None, **more})  # fmt: skip
    return tuner


@pytest.fixture
def module(monkeypatch):
    """A module with two autotuned functions, one below a heuristic and an odd one with no `fn`."""
    one = ModuleType("mine")
    config = SimpleNamespace(pre_hook=None)
    one.odd, one.more = 7, tuner_of("other", configs=[config])
    one.add = SimpleNamespace(fn=SimpleNamespace(fn=tuner_of("add", configs=[config])))
    monkeypatch.setitem(sys.modules, "mine", one)
    monkeypatch.setattr(triton_cache, "text_hash", lambda tuner: "a" * 16)
    return one


def test_the_autotuner_of_an_entry_is_below_its_name(module):
    assert triton_cache._tuner(entry()) is module.add.fn.fn
    assert triton_cache._tuner(entry(function="other")) is module.more
    reasons = [entry(module="__main__"), entry(module="not_there"), entry(text_hash="b" * 16),
               entry(function="odd")]  # fmt: skip
    assert [triton_cache._tuner(each) for each in reasons] == [
        "it is in the program's own script, which cannot be imported",
        "not_there cannot be imported (ModuleNotFoundError)",
        "the function has changed since",
        "mine has no autotuned function of this name",
    ]


def test_an_entry_that_triton_would_not_read_is_left_out(module, monkeypatch):
    written = []
    monkeypatch.setattr(triton_cache, "_write", lambda *words: written.append(words))
    monkeypatch.setattr(triton_cache, "config_of", lambda e, tuner: dict(e.config).get("BLOCK"))
    tuner = module.add.fn.fn

    def said(**more):
        return triton_cache._write_entry(entry(**more), "f")

    assert said(triton="1.0") == f"it is of Triton 1.0, and this is {triton.__version__}"
    assert said(function="odd") == "mine has no autotuned function of this name"
    assert "no key" in said(key=())
    none = "its config or its key is none that the function can have"
    assert said(key=("x y",)) == said(config={}) == none and written == []
    assert said() == "" and len(written) == 1
    assert written[0][1:3] == ((1024, "torch.float32"), 64)
    for name in ("early_config_prune", "perf_model"):
        monkeypatch.setattr(tuner, name, True)
        assert said() == "its configs are pruned by the arguments of a launch"
        monkeypatch.setattr(tuner, name, None)
    tuner.configs.append(SimpleNamespace(pre_hook=print))
    assert said() == "its configs have hooks, and Triton reads no cache of such configs"


def test_the_cache_has_the_three_times_in_milliseconds_and_a_folder_a_key(monkeypatch, tmp_path):
    asked = []

    def check(key, configs, benchmark):
        benchmark()
        asked.append((key, configs, tuner.configs_timings, triton.knobs.cache.dir))
        assert type(triton.runtime.driver._active) is triton_cache.ArchDriver
        folder = Path(triton.knobs.cache.dir, f"key{key[0]}")
        folder.mkdir()
        (folder / "a.json").write_text("{}")

    tuner = SimpleNamespace(configs=["one"], configs_timings="before", check_disk_cache=check)
    before = triton.runtime.driver._active

    def written(each, draft):
        if each.key == ("3",):
            return "odd"
        triton_cache._write(tuner, each.key, "config", each, draft)
        return ""

    monkeypatch.setattr(triton_cache, "_write_entry", written)
    some = [entry(key=(str(n),)) for n in (1, 2, 3)]
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    folder = tmp_path / "a" / "b"
    for _ in range(2):  # the second time the folders are there
        result = triton_cache.export_triton_cache(some, folder)
    assert result.exported_entries == 2 and result.left_out == [(some[2], "odd")]
    assert result.files == [folder / f"key{n}" / "a.json" for n in (1, 2)]
    assert all(path.is_file() for path in result.files)
    assert asked[0][:2] == (("1",), ["one"])
    assert asked[0][2]["config"] == pytest.approx([0.02, 0.01, 0.03])
    assert tuner.configs_timings == "before" and triton.runtime.driver._active is before
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    with pytest.raises(WorkloadError, match="unset TRITON_INTERPRET"):
        triton_cache.export_triton_cache(some, folder)


def test_the_finder_and_the_methods_are_put_back(monkeypatch):
    calls = []
    hooks = triton_hooks.TritonHooks(SimpleNamespace(
        launched_by_inductor=lambda tuner, args: calls.append((tuner, args))))  # fmt: skip
    hooks._finder = "finder"
    monkeypatch.setattr(sys, "meta_path", ["other", "finder"])
    owner = SimpleNamespace(run="new")
    hooks._replaced.append((owner, "run", "real"))
    hooks._bound.append(SimpleNamespace(run=1))
    bound = hooks._bound[0]
    hooks.remove()
    hooks.remove()
    assert sys.meta_path == ["other"] and owner.run == "real" and not hasattr(bound, "run")
    seen = []
    run = hooks._inductor_run(
        lambda *words, stream, **more: seen.append(hooks._context.benchmarking) or stream
    )
    assert run("tuner", 1, 2, stream=7) == 7 and calls == [("tuner", (1, 2))] and seen == [True]
    run("tuner", 1, stream=7, benchmark_run=True)
    hooks._context.benchmarking = True
    run("tuner", 1, stream=7)
    assert len(calls) == 1 and hooks._context.benchmarking is True
    for driver, caught in ((SimpleNamespace(stands_in=True), True), (SimpleNamespace(), False)):
        monkeypatch.setattr(triton.runtime.driver, "_active", driver)
        fresh = triton_hooks.TritonHooks(None)
        assert fresh.skips_launches is caught and json.dumps(fresh._caught) == json.dumps(caught)
