"""Recording without a GPU: all sources of launches, how programs end, ranks, real libraries."""

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
import workload_program

import workbench.workload
from workbench.workload import file as files
from workbench.workload.errors import WorkloadError
from workbench.workload.identity import text_hash
from workbench.workload.signature import PlainArgument, TensorArgument
from workbench.workload.triton_hooks import TritonHooks

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The program, recorded in this process."""
    path = tmp_path_factory.mktemp("workload") / "run.workload"
    with workbench.workload.record(path):
        workload_program.main(5)
    return files.read(path)


def of(workload, name):
    return [s for s in workload.signatures if s.signature.function.name == name]


def test_every_launch_is_counted(recorded):
    assert recorded.launches == 5 * (2 * 3 + 1)
    assert {s.signature.function.name: 0 for s in recorded.signatures}.keys() == {
        "plain", "tuned", "guessed", "triton_poi_fused_add_gelu_mul_0",
    }  # fmt: skip
    assert [s.launches for s in of(recorded, "plain")] == [5, 5]
    (process,) = recorded.processes
    assert process.mode == "caught" and process.complete and process.versions["triton"]


def test_a_signature_holds_layouts_scalars_and_constants(recorded):
    signature = of(recorded, "plain")[0].signature
    x = TensorArgument("float32", (100,), (1,), 16, 0)
    assert signature.arguments == {
        "x": x,
        "y": TensorArgument("float32", (100,), (1,), 16, 1),
        "n": PlainArgument("int", 100),
        "eps": PlainArgument("float", "1e-05"),
        "BLOCK": PlainArgument("int", 64),
    }
    assert signature.grid == (2,) and signature.function.constexprs == ("BLOCK",)
    assert Path(signature.function.file).name == "workload_program.py"
    aliased = of(recorded, "guessed")[0].signature.arguments
    assert aliased["x"].storage == aliased["y"].storage == 0


def test_a_signature_says_what_chose_its_config(recorded):
    tuned = of(recorded, "tuned")[0].signature
    assert (tuned.origin, tuned.choices, tuned.tuned) == ("autotune", 2, False)
    assert tuned.config["BLOCK"] == PlainArgument("int", 64) and tuned.warps == 4
    assert tuned.key == ("100", "torch.float32", "torch.float32")
    assert tuned.grid == (2,)
    guessed = of(recorded, "guessed")[0].signature
    assert guessed.origin == "heuristics" and guessed.config == {"BLOCK": PlainArgument("int", 128)}


def test_a_kernel_of_inductor_has_its_grid_and_config(recorded):
    (each,) = of(recorded, "triton_poi_fused_add_gelu_mul_0")
    signature, block = each.signature, each.signature.config["XBLOCK"].value
    assert each.launches == 5 and signature.origin == "inductor"
    assert signature.grid == (8192 // block, 1, 1)
    assert list(signature.arguments) == ["in_ptr0", "in_ptr1", "out_ptr0", "xnumel"]
    assert signature.arguments["in_ptr0"] == signature.arguments["in_ptr1"]


@pytest.mark.parametrize("loaded", [True, False])
def test_a_kernel_that_a_process_of_inductor_compiled_is_recorded(tmp_path, loaded):
    """It comes without its Python function and without its list of configs."""
    kernel, _ = workload_program.of_inductor()
    whole, _ = workload_program.of_inductor()
    kernel.fn.fn, kernel.configs, kernel.compile_results = None, None, [1, 2, 3]
    if loaded:
        kernel._reload_kernel = lambda: whole
    big = torch.empty(64, 128)
    with workbench.workload.record(tmp_path / "a.workload"):
        for _ in range(2):
            kernel.run(big, big, torch.empty(64, 128), 8192, stream=0)
    workload = files.read(tmp_path / "a.workload")
    assert workload.launches == 2 and bool(workload.notes) != loaded
    if not loaded:
        ((function, launches),) = workload.omissions
        assert function.name == "triton_poi_fused_add_gelu_mul_0" and launches == 2
        return
    (each,) = workload.signatures
    assert each.signature.choices == 3 and each.launches == 2
    assert each.signature.function.text_hash == text_hash(whole.fn)


def test_heuristics_around_an_autotuner_leave_it_to_that(tmp_path):
    both = triton.heuristics({"EVEN": lambda a: a["n"] % 2 == 0})(
        triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])(
            chosen_below
        )
    )
    x = torch.ones(64)
    with workbench.workload.record(tmp_path / "a.workload"):
        for _ in range(3):
            both[(4,)](x, 64)
    assert "run" not in vars(both)
    (each,) = files.read(tmp_path / "a.workload").signatures
    assert each.launches == 3 and each.signature.origin == "autotune" and each.signature.key
    assert each.signature.arguments["EVEN"].value is True


@triton.jit
def chosen_below(x, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    pass


def test_nothing_stays_replaced(recorded):
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.jit import JITFunction

    for method in (JITFunction.run, Autotuner.run, Autotuner._bench, Heuristics.run):
        assert method.__module__.startswith("triton.")
    assert workbench.workload.recorder.LaunchRecorder.active is None


@triton.jit
def other(x, eps, flag, BLOCK: tl.constexpr):
    pass


def test_types_layouts_and_alignment_are_told_apart(tmp_path):
    whole = torch.zeros(65, 8)
    launches = [
        (whole, 1, None), (whole, 1.0, None), (whole, True, None), (whole.t(), 1, None),
        (whole[1:], 1, None), (whole.view(-1)[1:], 1, None), (whole.to(torch.int32), 1, None),
        (whole.to("meta"), 1, None), (whole, 1, whole), (None, 1, whole), (whole, 1, "text"),
        (whole, 1, (1, whole)), (whole, float("nan"), None), (whole, 2**40, tl.float16),
    ]  # fmt: skip
    path = tmp_path / "a.workload"
    with workbench.workload.record(path):
        for _ in range(3):
            for args in launches:
                other[(1,)](*args, BLOCK=1)
            other[[1]](*launches[0], BLOCK=1, num_warps=2)
    workload = files.read(path)
    assert workload.launches == 3 * (len(launches) + 1)
    # on the device meta a tensor has no address, and counts as aligned
    assert len(workload.signatures) == len(launches)
    assert {each.launches for each in workload.signatures} == {3, 6}
    aligned = {
        s.signature.arguments["x"].align
        for s in workload.signatures
        if isinstance(s.signature.arguments["x"], TensorArgument)
    }
    assert aligned == {4, 16}


def test_small_integer_tensors_keep_their_values_where_requested(tmp_path):
    for values, kept in ((False, None), (True, (3, 1, 2))):
        path = tmp_path / f"{values}.workload"
        with workbench.workload.record(path, values=values):
            other[(1,)](torch.tensor([3, 1, 2]), 1, torch.ones(3), BLOCK=1)
        (each,) = files.read(path).signatures
        assert each.signature.arguments["x"].values == kept
        assert each.signature.arguments["flag"].values is None


def test_launches_that_an_autotuner_times_are_its_own(tmp_path, monkeypatch):
    """With a GPU the autotuner times each config; here its clock is replaced, and no GPU asked."""
    from triton.runtime.jit import JITFunction

    monkeypatch.setattr(JITFunction, "run", lambda self, *args, grid, warmup, **kwargs: None)
    tuned = triton.autotune(
        [triton.Config({"BLOCK": b}) for b in (1, 2)], key=["eps"],
        do_bench=lambda call, quantiles: [call() or 1.0] * 3,
    )(other)  # fmt: skip
    with workbench.workload.record(path := tmp_path / "a.workload"):
        workbench.workload.recorder.LaunchRecorder.active._hooks._caught = False
        for _ in range(4):
            tuned[(1,)](None, 1, None)
    (each,) = files.read(path).signatures
    assert each.launches == 4 and each.signature.tuned and each.signature.choices == 2


def test_memory_is_bounded_by_signatures(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.workload.recorder.MOST_SIGNATURES", 5)
    monkeypatch.setattr("workbench.workload.recorder.MOST_KEYS", 8)
    path = tmp_path / "a.workload"
    with workbench.workload.record(path):
        for n in [*range(1, 21), *range(1, 6)]:
            other[(n,)](n, 1, None, BLOCK=1)
    workload = files.read(path)
    assert workload.launches == 25 and len(workload.signatures) == 5
    assert sum(each.launches for each in workload.signatures) == 10
    assert [(f.name, n) for f, n in workload.omissions] == [("other", 15)]


def test_the_hash_follows_the_code_and_what_it_calls(monkeypatch):
    before = text_hash(workload_program.plain)
    assert text_hash(workload_program.plain) == before != text_hash(workload_program.tuned)
    with monkeypatch.context() as patched:
        patched.setattr(workload_program, "SCALE", tl.constexpr(3))
        assert text_hash(workload_program.plain) != before  # a constant of what it calls
        assert text_hash(workload_program.tuned) == text_hash(workload_program.tuned)
    with monkeypatch.context() as patched:
        patched.setattr(workload_program, "doubled", workload_program.guessed.fn)
        assert text_hash(workload_program.plain) != before
    assert text_hash(workload_program.plain) == before


def test_a_global_named_like_an_argument_or_a_local_is_no_part_of_the_hash(monkeypatch):
    before = text_hash(workload_program.plain)
    code = workload_program.plain.fn.__code__
    assert code.co_varnames[: code.co_argcount] != code.co_varnames  # it has locals, too
    for name in code.co_varnames:  # a script's own `n = 4096` at its top level
        monkeypatch.setattr(workload_program, name, 4096, raising=False)
    assert text_hash(workload_program.plain) == before


def test_a_second_recording_is_refused(tmp_path):
    with (
        workbench.workload.record(tmp_path / "a"),
        pytest.raises(WorkloadError, match="is being recorded already"),
        workbench.workload.record(tmp_path / "b"),
    ):
        pass


def test_a_file_that_cannot_be_written_is_refused_before_the_program(tmp_path):
    with pytest.raises(WorkloadError), workbench.workload.record(tmp_path):
        pytest.fail("it began")
    assert workbench.workload.recorder.LaunchRecorder.active is None


# Whole programs


def command(tmp_path, *words):
    paths = [*map(str, (TESTS.parent, TESTS)), os.environ.get("PYTHONPATH", "")]
    out = tmp_path / "run.workload"
    done = subprocess.run(
        [sys.executable, "-m", "workbench", "workload", "record", "--out", str(out), "--", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) in ([], ["run.workload"])
    return done, files.read(out) if out.exists() else None


PROGRAM = str(TESTS / "workload_program.py")


@pytest.mark.newest
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("end", "code", "complete"),
    [("raise", 1, True), ("interrupt", 130, True), ("kill", 137, False)],
)
def test_a_program_that_ends_in_any_way_leaves_what_it_launched(tmp_path, end, code, complete):
    done, workload = command(tmp_path, sys.executable, PROGRAM, "3", *([end] if end else []))
    assert done.returncode == code, done.stderr
    assert workload.launches == 3 * 6 and workload.processes[0].complete == complete
    assert "guessed" in done.stdout and "no GPU" in done.stdout
    assert ("did not end by themselves" in done.stdout) != complete


TWO_RANKS = """
import os, subprocess, sys
ranks = [
    subprocess.Popen(
        [sys.executable, {program!r}, str(1 + r), "exit"], env={{**os.environ, "RANK": str(r)}}
    )
    for r in range(2)
]
sys.exit(max(p.wait() for p in ranks))
"""


@pytest.mark.nightly
@pytest.mark.newest
def test_processes_of_a_launcher_are_recorded_and_merged(tmp_path):
    done, workload = command(tmp_path, sys.executable, "-c", TWO_RANKS.format(program=PROGRAM))
    assert done.returncode == 5, done.stderr
    assert sorted(p.rank for p in workload.processes) == [0, 1]
    assert workload.launches == (1 + 2) * 6 and all(p.complete for p in workload.processes)
    assert {s.launches for s in workload.signatures} == {3}


@pytest.mark.newest
def test_a_program_without_launches_is_a_sentence(tmp_path):
    done, workload = command(tmp_path, sys.executable, "-c", "print('hello')")
    assert done.returncode == 2 and workload is None and done.stdout == "hello\n"
    assert "No Python process of" in done.stderr and done.stderr.count("\n") == 1


# Libraries of others: the extra `workload-test`

libraries = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("liger_kernel", "fla"))),
    reason="liger-kernel and fla-core are not installed: pip install -e '.[workload-test]'",
)


@pytest.mark.nightly
@libraries
@pytest.mark.newest
def test_every_forward_operation_of_liger_and_ten_of_fla_are_recorded(tmp_path):
    import workload_operations

    operations = {**workload_operations.liger(), **workload_operations.fla()}
    assert len(operations) == 30 + 10
    for name, operation in operations.items():
        with workbench.workload.record(path := tmp_path / f"{name}.workload"):
            operation()
        workload = files.read(path)
        assert workload.launches and all(each.signature.grid for each in workload.signatures)
    tuned = [s.signature for s in workload.signatures if s.signature.origin == "autotune"]
    assert tuned and all(each.choices > 1 and each.key for each in tuned)


@pytest.mark.nightly
@pytest.mark.newest
def test_the_example_program_of_fla_is_recorded_with_its_backward_pass(tmp_path):
    """Without a GPU its layers are tiny; values are not computed."""
    script = TESTS.parent / "examples" / "workloads" / "fla_layers.py"
    file = tmp_path / "a.workload"
    command = ["-m", "workbench", "workload", "record", "--quiet", "--out", file, "--"]
    done = subprocess.run(
        [sys.executable, *command, sys.executable, script, "--steps", "1"],
        cwd=TESTS.parent, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = {s.signature.function.name for s in files.read(file).signatures}
    assert {"chunk_gla_fwd_kernel_o", "chunk_gla_bwd_kernel_intra"} <= names
    assert {"chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "chunk_bwd_kernel_dqkwg"} <= names


@triton.jit
def shared_below(x, n, BLOCK: tl.constexpr):
    pass


def test_with_a_gpu_each_launch_is_told_from_that_of_another_autotuner(tmp_path, monkeypatch):
    """Two autotuners share a function, a third one has a `run` of its own, launches fail in
    between, and the function is launched by itself."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    class Own(Autotuner):
        def run(self, *args, **kwargs):
            return super().run(*args, **kwargs)

    fails = [False]

    def launch(self, *args, grid, warmup, **kwargs):
        grid(kwargs) if callable(grid) else None
        if fails[0]:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(JITFunction, "run", launch)
    monkeypatch.setattr(Autotuner, "_bench", lambda self, *args, **kwargs: [1.0, 1.0, 1.0])
    monkeypatch.setattr(Autotuner, "check_disk_cache", lambda self, key, configs, bench: bench())
    monkeypatch.setattr(TritonHooks, "skips_launches", False)
    several = [
        triton.autotune([triton.Config({"BLOCK": 16 * i}) for i in range(1, 2 + n)], key=["n"])(
            shared_below
        )
        for n in (1, 2)
    ]
    configs = [triton.Config({"BLOCK": b}) for b in (1, 2, 4, 8)]
    several.append(Own(shared_below, shared_below.arg_names, configs, ["n"], None, None))
    x, y = torch.ones(64), torch.ones(64)
    with workbench.workload.record(tmp_path / "a.workload"):
        for _ in range(5):
            for number, each in enumerate(several):
                for _ in range(number + 1):
                    each[lambda m: (4,)](x, 64)
                    each[(4,)](x=x, n=64)
            fails[0] = True
            with pytest.raises(RuntimeError):
                several[0][(4,)](x=y, n=64)
            fails[0] = False
            several[1][(4,)](x=x, n=64)
            shared_below[(4,)](x, 64, BLOCK=16)
    known = files.read(tmp_path / "a.workload").signatures
    by_choices = Counter()
    for each in known:
        by_choices[each.signature.origin, each.signature.choices] += each.launches
    assert by_choices == {
        ("autotune", 2): 10, ("autotune", 3): 25, ("autotune", 4): 30, ("call", 1): 5,
    }  # fmt: skip
