"""Command lines, refusals and assertions of profilers as text, and programs inside of the recorder
with a package `torch` that records nothing."""

import json
import os
import subprocess
import sys
import types
from contextlib import contextmanager
from pathlib import Path

import fake_torch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.traces.profilers import ProfilerError, RecordingStatus, ToolRun, preflight, profilers
from workbench.traces.profilers.running.call_script import OneCall, script_of
from workbench.traces.profilers.running.child import ChildEnd
from workbench.traces.profilers.running.expected import check_inside, check_marked_calls
from workbench.traces.profilers.running.machine import COLLECTORS, Machine
from workbench.traces.profilers.running.workload import (
    RECORDER,
    MarkedCalls,
    ProgramError,
    StepSchedule,
    Workload,
    python_command,
    title_of,
)
from workbench.traces.trace import ActivityKind, Total, Trace

pytestmark = pytest.mark.unit

VERSIONS = {"torch": "2.11.0", "triton": "3.6.0"}
TOOLS = {
    name: f"/tools/{name}"
    for name in ("ncu", "nsys", "compute-sanitizer", "rocprofv3", "rocprof", "rocprof-compute")
}
PATHS = {**TOOLS, "python": "/venv/bin/python", "python3.12": "/usr/bin/python3.12"}
MACHINES = {
    "nvidia": Machine("/wb/python", "cuda", VERSIONS, {}, PATHS),
    "amd": Machine("/wb/python", "hip", VERSIONS, {}, PATHS),
    "none": Machine("/wb/python", "", VERSIONS, {}, PATHS),
    "bare": Machine("/wb/python", "cuda", {}, {}, PATHS),
}
CALLS = Workload(
    ("/wb/python", "R/call.py"),
    "softmax.rows",
    StepSchedule(1, 1, 1),
    MarkedCalls(10, True, "_rows", 1),
)


def argv(tool, workload, machine="nvidia"):
    words = profilers()[tool].argv(MACHINES[machine], workload, Path("R"))
    return " ".join("RECORDER" if word == str(RECORDER) else word for word in words)


@pytest.fixture
def step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("step.py").write_text("")
    return ("python", "step.py", "--lr", "1")


# Command lines


@pytest.mark.parametrize("machine", ["nvidia", "amd", "none"])
def test_the_command_line_of_a_program(step, machine):
    plain = Workload(step, "step.py")
    assert argv("trace", plain, machine) == (
        "/venv/bin/python RECORDER torch --folder R -- step.py --lr 1"
    )
    steps = Workload(step, "step.py", StepSchedule(2, 3, 5), None, ("--shapes", "--stacks"))
    assert argv("trace", steps, machine) == (
        "/venv/bin/python RECORDER torch --folder R --wait 2 --warmup 3 --active 5 --shapes "
        "--stacks -- step.py --lr 1"
    )
    inside = Workload(step, "step.py", data="inside")
    assert argv("proton", inside, machine) == (
        "/venv/bin/python RECORDER proton --folder R --data inside -- step.py --lr 1"
    )


def test_the_command_line_of_one_call():
    steps = "--wait 1 --warmup 1 --active 1 --stepping"
    assert argv("trace", CALLS) == (f"/wb/python RECORDER torch --folder R {steps} -- R/call.py")
    assert argv("proton", CALLS) == (
        f"/wb/python RECORDER proton --folder R {steps} --data tree -- R/call.py"
    )


def test_the_files_that_must_come_back():
    def names(tool, workload):
        return [str(path) for path in profilers()[tool].reads(workload, Path("R"))]

    assert names("trace", CALLS) == ["R/torch.pt.trace.json", "R/operators.json"]
    assert names("proton", CALLS) == ["R/proton.hatchet"]
    assert names("proton", Workload((), "x", data="trace")) == ["R/proton.chrome_trace"]


# Words of an argument: no option of an interpreter among them ends the script's own.
WORDS = st.lists(st.text(st.characters(exclude_characters="\0"), max_size=8), max_size=5)


@given(WORDS, st.sampled_from([[], ["-u"], ["-X", "dev"], ["-W", "error", "-B"]]))
def test_the_words_of_a_program_arrive_untouched(words, flags):
    python, program = python_command(["python", *flags, "-m", "pkg", *words], MACHINES["none"])
    assert python == ["/venv/bin/python", *flags] and program == ["-m", "pkg", *words]


def test_what_is_a_python_program(step, tmp_path):
    machine = MACHINES["none"]
    Path("tool").write_text("#!/usr/bin/env python3.12\n")
    Path("shell").write_text("#!/bin/sh\n")
    assert python_command(["step.py", "a"], machine) == (["/wb/python"], ["step.py", "a"])
    assert python_command(["./tool", "a"], machine) == (["python3.12"], ["tool", "a"])
    assert title_of(["python", "-X", "dev", "a/b.py", "c"]) == "b.py"
    assert title_of(["python", "-m", "pkg", "x"]) == "pkg"
    assert title_of(["python", "-c", "print(1)"]) == "python" and title_of(["pytest", "q"])
    for words in (["./shell"], ["none.py"], ["nothing"], ["python"], ["python", "-"],
                  ["python", "-m"], ["python", "none.py"], ["python9", "step.py"]):  # fmt: skip
        with pytest.raises(ProgramError, match=r"^[^\n]+\.$"):
            python_command(words, machine)


# Refusals


@pytest.mark.parametrize(
    ("tool", "machine", "words"),
    [
        ("proton", "none", "no driver shows one here; `--tool trace`"),
        ("proton", "bare", "Triton is not installed"),
        ("trace", "bare", "torch is not installed"),
    ],
)
def test_a_tool_that_cannot_run_here_says_so(tool, machine, words):
    with pytest.raises(ProfilerError, match=words):
        preflight(profilers()[tool], MACHINES[machine], CALLS)


@pytest.mark.parametrize("tool", ["trace", "proton"])
@pytest.mark.parametrize("name", COLLECTORS)
def test_one_collector_a_process(tool, name):
    machine = Machine("p", "cuda", VERSIONS, {name: "/tool.so"})
    with pytest.raises(ProfilerError, match=f"{name} is set.*env -u {name}"):
        preflight(profilers()[tool], machine, CALLS)


def test_a_tool_that_can_run_is_not_refused():
    nvidia, amd = ("ncu", "nsys", "sanitizer"), ("rocprof", "rocprof-compute", "rocprofv3")
    for machine, names in (("nvidia", nvidia), ("amd", amd)):
        for name in (*names, "trace", "proton"):
            preflight(profilers()[name], MACHINES[machine], CALLS)
    preflight(profilers()["trace"], MACHINES["none"], CALLS)
    masked = Machine("p", "hip", VERSIONS, {"HIP_VISIBLE_DEVICES": "0"})
    with pytest.raises(ProfilerError, match="ROCR_VISIBLE_DEVICES"):
        preflight(profilers()["proton"], masked, CALLS)


# The script of one call


class Calls:
    """Stand-ins for what the script imports; each call of one is kept by its name."""

    def __init__(self):
        self.log = []

    def called(self, name, result=None):
        def call(*words, **more):
            self.log.append(name if name != "push" else f"push {words[0]}")
            return result

        return call

    @contextmanager
    def marked(self, name):
        self.log.append(f"begin {name}")
        yield
        self.log.append("end")

    def modules(self):
        new = types.SimpleNamespace
        nvtx = new(range_push=self.called("push"), range_pop=self.called("pop"))
        runtime = new(cudaProfilerStart=self.called("on"), cudaProfilerStop=self.called("off"))
        cuda = new(nvtx=nvtx, cudart=lambda: runtime, synchronize=self.called("wait"))
        tensor = new(copy_=self.called("copy"), clone=lambda: None)
        impl = self.called("call")
        impl.config = lambda **knobs: knobs
        spec = new(reference=self.called("call"), inputs={"x": 0, "y": 0})
        catalog = new(spec_of=lambda kernel: spec, impl_of=lambda spec, name: impl)
        return {
            "torch": new(cuda=cuda, profiler=new(record_function=self.marked)),
            "workbench": new(step=self.called("step"), catalog=catalog),
            "workbench.measurement": new(inputs=new(make=lambda *w, **m: (tensor, tensor))),
        }


@given(
    st.sampled_from(["cuda", "hip", ""]),
    st.sampled_from(["rows", None]),
    st.integers(1, 4),
    st.sampled_from([(), ("y",)]),
    st.sampled_from(["softmax", "some.module", '/a/"b".py']),
)
def test_the_script_of_one_call_marks_each_call(gpu, impl, calls, mutates, kernel):
    one = OneCall(kernel, "softmax.rows", impl, {"block_m": 2}, {"M": 4}, "bf16", gpu, calls,
                  mutates)  # fmt: skip
    stand_ins = Calls()
    before, path = dict(sys.modules), list(sys.path)
    sys.modules.update(stand_ins.modules())
    try:
        exec(compile(script_of(one, "0"), "call.py", "exec"), {})
    finally:
        sys.modules.clear()
        sys.modules.update(before)
        sys.path[:] = path
    wait, copy = ["wait"] * bool(gpu), ["copy"] * len(mutates)
    nvidia = gpu == "cuda"
    one_call = [*copy, *["push wb"] * nvidia, "begin wb", "call", "end", *["pop"] * nvidia]
    assert stand_ins.log == [
        "call", *wait, "step", *copy, "call", *wait, "step",
        *["on"] * nvidia, *one_call * calls, *wait, *["off"] * nvidia, "step",
    ]  # fmt: skip


# What must have come back


def trace_of(ranges=10, kernels=10, name="_rows"):
    trace = Trace("torch.profiler")
    for at in range(ranges):
        trace.activities.add(ActivityKind.RANGE, "wb", 100 * at, 100 * at + 50)
    for at in range(kernels):
        trace.activities.add(ActivityKind.CALL, "cuLaunch", 100 * at + 1, 100 * at + 2,
                             correlation=at)  # fmt: skip
        trace.activities.add(ActivityKind.KERNEL, name, 100 * at + 60, 100 * at + 90, "0",
                             correlation=at)  # fmt: skip
    trace.activities.add(ActivityKind.KERNEL, "before", 5000, 5001, "0", correlation=77)
    trace.activities.add(ActivityKind.CALL, "cuLaunch", 4000, 4001, correlation=77)
    return trace


def ended(workload=CALLS, status=None, code=0, files=("f",)):
    return ToolRun(workload, Path("R"), ChildEnd(code), tuple(map(Path, files)), status)


def test_the_expected_launches_pass():
    check_marked_calls(ended(), trace_of())


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (trace_of(ranges=9, kernels=9), "10 calls .* 9 ranges named wb"),
        (trace_of(kernels=9), "10 launches of _rows were expected.* 9 x _rows"),
        (trace_of(name="other"), "10 launches of _rows were expected.* 10 x other"),
        (trace_of(kernels=0), "launched nothing that was recorded"),
    ],
)
def test_other_launches_are_an_error_that_names_them(trace, words):
    with pytest.raises(ProfilerError, match=words):
        check_marked_calls(ended(), trace)


def test_more_launches_than_expected_are_an_error():
    trace = trace_of()
    trace.activities.add(ActivityKind.KERNEL, "more", 95, 96, "0", correlation=3)
    with pytest.raises(ProfilerError, match=r"10 launches .* 10 x _rows, 1 x more"):
        check_marked_calls(ended(), trace)


def test_a_tree_of_proton_has_the_launches_as_totals():
    for count, is_right in ((10, True), (11, False)):
        trace = Trace("proton", totals=[Total(ActivityKind.KERNEL, "_rows", count, 1.0)])
        if is_right:
            check_marked_calls(ended(), trace)
        else:
            with pytest.raises(ProfilerError, match="11 x _rows"):
                check_marked_calls(ended(), trace)


def test_a_program_that_used_the_gpu_has_kernels():
    program = Workload(("python", "step.py"), "step.py")
    check_marked_calls(
        ended(program, RecordingStatus("ended", gpu_used=False)), Trace("torch.profiler")
    )
    with pytest.raises(ProfilerError, match="no kernel was recorded"):
        check_marked_calls(
            ended(program, RecordingStatus("ended", gpu_used=True)), Trace("torch.profiler")
        )


def test_a_kernel_without_scopes_has_no_records_inside():
    inside = Workload((), "softmax.rows", None, MarkedCalls(1, True), data="inside")
    with pytest.raises(ProfilerError, match="no scopes inside"):
        check_marked_calls(ended(inside), Trace("proton"))


PROGRAM = Workload(("python", "step.py"), "step.py", StepSchedule(2, 3, 5))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (ended(PROGRAM, None, 137), "before torch.profiler could write .SIGKILL."),
        (ended(PROGRAM, RecordingStatus("recording")), "before torch.profiler could write"),
        (ended(PROGRAM, RecordingStatus("unused")), "never imported torch"),
        (ended(PROGRAM, RecordingStatus("unused"), 1), "exit code 1 before it imported torch"),
        (ended(PROGRAM, RecordingStatus("ended", conflict=True)), "uses torch.profiler itself"),
        (ended(PROGRAM, RecordingStatus("ended", fault="RuntimeError: x")), "RuntimeError: x"),
        (ended(PROGRAM, RecordingStatus("ended", 4)), "made 4 steps, and 5 come before"),
        (ended(PROGRAM, RecordingStatus("ended", 9, "steps"), files=()), "left no file"),
        (ended(CALLS, RecordingStatus("ended"), 1), "python R/call.py. repeats"),
    ],
)
def test_nothing_usable_is_one_sentence(run, words):
    with pytest.raises(ProfilerError, match=words) as error:
        check_inside(run, "torch", "torch.profiler")
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


# Programs inside of the recorder


def run_both(folder, text, *words, options=()):
    """Run a program alone and recorded: exit code, output and errors of both, and the status."""
    (folder / "step.py").write_text(text)
    fake_torch.write(folder)
    out = folder / "out"
    out.mkdir(exist_ok=True)
    root = str(Path(__file__).parents[2])
    variables = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{root}"}
    recorder = [str(RECORDER), "torch", "--folder", "out", *options, "--"]
    ends = []
    for before in ([], recorder):
        done = subprocess.run(
            [sys.executable, *before, "step.py", *words], cwd=folder, env=variables,
            capture_output=True, text=True, check=False, timeout=60, input="from stdin",
        )  # fmt: skip
        ends.append((done.returncode, done.stdout, done.stderr))
    status = out / "recording.json"
    return ends[0], ends[1], json.loads(status.read_text()) if status.exists() else None


ALIKE = {
    "words": "import sys; print(sys.argv, __name__, __file__, sys.path[0], __spec__, input())",
    "code": "import sys; sys.exit(3)",
    "text": "raise SystemExit('in words')",
    "error": "def f():\n    raise ValueError('no')\ntry:\n    1/0\nexcept Exception:\n    f()",
    "syntax": "def f(:",
    "hook": "import sys\nsys.excepthook = lambda *e: print('mine', e[0])\n1/0",
    "interrupt": "raise KeyboardInterrupt",
    "leaves": "import os, sys; print('x', flush=True); os._exit(5)",
    "ends": "import atexit; atexit.register(print, 'last'); print('first')",
    "thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(.05), print('late'))).start()",
    "fork": "import os\nif os.fork() == 0:\n    raise SystemExit(1)\n"
    "print(os.wait()[1], os.path.exists('out/torch.pt.trace.json'))",
    "chdir": "import os; os.chdir('out'); print(os.listdir() is None)",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A)",
    "steps": "import workbench\nfor _ in range(3): workbench.step()\nprint('done')",
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_program_runs_as_if_alone(name, tmp_path):
    alone, recorded, status = run_both(tmp_path, "import torch\n" + ALIKE[name], "a", "--b")
    if name == "syntax":
        assert status["state"] == "unused"
    else:
        assert status["state"] == "ended" and status["recorded"] == "program"
        assert (tmp_path / "out" / "torch.pt.trace.json").exists()
    assert recorded == alone


def test_nothing_is_recorded_before_torch_is_imported(tmp_path):
    alone, recorded, status = run_both(tmp_path, "print(1)")
    assert recorded == alone and status["state"] == "unused"


STEPS = "import torch, workbench\nfor _ in range({}): workbench.step()\n"
SCHEDULE = ("--wait", "1", "--warmup", "1", "--active", "2")


@pytest.mark.parametrize(("count", "recorded"), [(0, "program"), (2, ""), (4, "steps")])
def test_a_schedule_counts_steps(tmp_path, count, recorded):
    """Without any step the whole program is kept; with some, nothing before the first to record."""
    _, _, status = run_both(tmp_path, STEPS.format(count), options=SCHEDULE)
    assert (status["recorded"], status["steps"]) == (recorded, count)
    if recorded:
        log = json.loads((tmp_path / "out" / "torch.pt.trace.json").read_text())["log"]
        assert log == (["start", "stop", "start"] if count else ["start", "stop"])


def test_a_program_that_profiles_itself_gets_an_error(tmp_path):
    text = "from torch.profiler import profile\nwith profile(): pass"
    alone, recorded, status = run_both(tmp_path, text)
    assert alone[0] == 0 and recorded[0] == 1 and "has one profiler" in recorded[2]
    assert status["conflict"] and status["exception"] == "RuntimeError"


def test_an_error_of_the_profiler_is_none_of_the_programs(tmp_path):
    text = "import torch.profiler as p\ndef bad(*x): raise RuntimeError('no')\n"
    text += "p.profile.stop = bad\nprint('goes on')"
    alone, recorded, status = run_both(tmp_path, text)
    assert recorded == alone and status["fault"] == "RuntimeError: no"


def test_a_step_outside_of_a_recording_does_nothing():
    import workbench

    assert workbench.step() is None
