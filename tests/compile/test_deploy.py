"""Whole programs with pinned configs, ranks that compare their choices, and exports."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import deployed_program
import pytest
from deployed_program import entry

from workbench.commands import workload_export, workload_run
from workbench.commands.options import OptionError
from workbench.commands.workload_export import WorkloadExportOptions
from workbench.commands.workload_run import WorkloadRunOptions
from workbench.data.tuned_cache import TunedError
from workbench.workload.deployed import begin, counts_of, counts_text
from workbench.workload.errors import WorkloadError
from workbench.workload.pinned import TableLookup
from workbench.workload.ranks import difference
from workbench.workload.tuned_table import write

PROGRAM = str(Path(deployed_program.__file__))
TESTS = Path(__file__).parents[1]


def environment(**more):
    paths = [*map(str, (TESTS.parent, TESTS)), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    return {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1", **more}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "tuned.json"
    changed = entry(300, 128, text_hash="0" * 16)
    other = entry(400, 128, arch="sm_80")
    write(path, [entry(100, 128), entry(200, 128), changed, other])
    return path


@pytest.mark.newest
def test_a_program_runs_with_the_table_and_its_own_exit_code(tmp_path, table):
    """Under the interpreter nothing can be timed, so a benchmark would end the program."""
    out = tmp_path / "run.json"
    words = ["workload", "run", "--tuned", str(table), "--policy", "first", "--json", str(out)]
    sizes = ["100", "200", "100", "300", "400", "500", "fail"]
    done = subprocess.run(
        [sys.executable, "-m", "workbench", *words, "--", sys.executable, PROGRAM, *sizes],
        env=environment(), capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    printed = done.stdout.splitlines()
    assert printed[0] == "128 128 128 64 64 64"
    assert printed[-1].startswith("tuned.json: 5 keys looked up: 2 hits, 3 misses (")
    assert "1 stale, the function has changed" in printed[-1] and "1 stale entries" in printed[-1]
    document = json.loads(out.read_text())
    assert document["exit_code"] == 7 and document["lookups"]["hits"] == 2
    assert document["lookups"]["given"] == {"the first config": 3}


@pytest.mark.nightly
@pytest.mark.newest
def test_two_ranks_compare_what_they_chose(tmp_path):
    tables = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, block in zip(tables, (64, 128), strict=True):
        write(path, [entry(100, 128), entry(400, block)])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM, "rank", *map(str, tables)],
            env=environment(RANK=str(r), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
            stderr=subprocess.PIPE, text=True,
        )
        for r in range(2)
    ]  # fmt: skip
    for process in ranks:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 1 and "Ranks 0 and 1 launch different configs" in errors
        assert '"BLOCK": 64' in errors and '"BLOCK": 128' in errors


def test_what_one_rank_alone_launches_is_no_difference():
    assert difference([{"f": "1"}, {"g": "2"}, {"f": "1", "g": "2"}]) == ""
    assert "Ranks 1 and 2 launch different configs of g: 2 and 3" in difference(
        [{"f": "1"}, {"g": "2"}, {"g": "3"}]
    )


def test_lookups_of_all_processes_are_counted():
    hit = TableLookup("m.f", ("1",), "hit", "table", "{}")
    stale = replace(hit, result="other triton", given="tune", config="")
    text = counts_text(counts_of([[hit, stale], [], [hit, replace(stale, result="absent")]]))
    assert text == (
        "4 keys looked up in 2 processes: 2 hits, 2 misses (1 not in the table, 1 stale, of "
        "another Triton; got 2 tuned by Triton), 1 stale entries"
    )
    assert counts_text(counts_of([[]])) == "no key of an autotuned function was looked up"


def test_a_wrong_variable_is_a_note_and_ends_the_program_under_the_policy_error(capsys):
    for text in ("no.json", '{"table": 3', '{"tabel": "t.json"}', '{"table": "t", "policy": "x"}'):
        begin(text)
        error = capsys.readouterr().err
        assert error.startswith("note: no config is pinned: ") and error.count("\n") == 1
    with pytest.raises(SystemExit) as end:
        begin('{"table": "no.json", "policy": "error"}')
    assert end.value.code == 2


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, OptionError, "No program is named"),
        ({"target": ("t.json", "--", "a.py")}, OptionError, "one word too many"),
        ({"target": ("--", "a.py")}, TunedError, "cannot be read"),
        ({"target": ("--", "a.py"), "policy": "best"}, WorkloadError, "no policy 'best'"),
    ],
)
def test_mistaken_command_lines_of_run_are_sentences(options, error, words):
    with pytest.raises(error, match=words):
        workload_run.run(WorkloadRunOptions(Path("no.json"), **options))


# Exports


def exported(table, out, to, *, trust=True):
    return workload_export.run(WorkloadExportOptions(table, out, to, trust))


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "gfx942"])
def test_tritons_own_autotuner_reads_the_exported_cache(tmp_path, monkeypatch, arch):
    """Keys are right, or Triton would time; a config that the list lacks is read, too."""
    import torch
    from triton import knobs
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    from workbench.workload.triton_cache import ArchDriver

    monkeypatch.syspath_prepend(str(TESTS))
    known = {"module": "deployed_program", "arch": arch}
    entries = [entry(100, 128, **known), entry(200, 512, 2, **known)]
    left_out = [entry(300, 128, arch=arch), entry(400, 128, **known, triton="1.0")]
    write(table := tmp_path / "tuned.json", [*entries, *left_out])
    assert exported(table, tmp_path / "cache", "triton-cache") == 0
    assert len(list((tmp_path / "cache").glob("*/scaled.autotune.json"))) == 2

    launched = []
    monkeypatch.setattr(JITFunction, "run", lambda self, *a, **k: launched.append(k))
    monkeypatch.setattr(deployed_program.scaled, "cache", {})
    monkeypatch.setattr(
        deployed_program.scaled, "_do_bench", lambda *a, **k: pytest.fail("it is timed")
    )
    monkeypatch.setattr(driver, "_active", ArchDriver(arch))
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "cache")
        for n in (100, 200):
            deployed_program.scaled[(1,)](torch.zeros(n), torch.empty(n), n)
    assert [(k["BLOCK"], k["num_warps"]) for k in launched] == [(128, 8), (512, 2)]


@pytest.mark.parametrize(
    ("out", "to", "words"),
    [
        ("o", "pyton", "no format to export --to"),
        ("o", "triton-cache", "add --trust"),
        ("t", "python", "is the table itself"),
    ],
)
def test_mistaken_command_lines_of_export_are_sentences(out, to, words):
    with pytest.raises(OptionError, match=words):
        exported(Path("t"), Path(out), to, trust=False)


def moe(batch, config=(64, 128, 64, 8, 4, 3), **changes):
    names = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")
    names = (*names, "num_warps", "num_stages")
    arguments = {
        "a_ptr": f"bfloat16[{batch}, 4096]", "b_ptr": "bfloat16[8, 3584, 4096]", "top_k": "2",
        "sorted_token_ids_ptr": "int32[64]", "expert_ids_ptr": "int32[8]",
        "MUL_ROUTED_WEIGHT": "False", "use_fp8_w8a8": "False", "group_n": "0", "group_k": "0",
        **changes,
    }  # fmt: skip
    return entry(
        batch, 0, function="fused_moe_kernel", device="NVIDIA H200 NVL",
        config=dict(zip(names, config, strict=True)), arguments=arguments,
    )  # fmt: skip


def test_vllms_format_has_a_file_a_shape_and_a_key_a_batch(tmp_path, capsys):
    several = [
        moe(16), moe(1, (16, 64, 128, 1, 4, 4)), moe(64, top_k="1", MUL_ROUTED_WEIGHT="True"),
        moe(8, use_fp8_w8a8="True", group_n="128", group_k="128"), entry(100, 64),
    ]  # fmt: skip
    write(table := tmp_path / "tuned.json", several)
    assert exported(table, tmp_path / "moe", "vllm-moe") == 0
    base = "E=8,N=1792,device_name=NVIDIA_H200"
    names = [f"{base}.json", f"{base},dtype=fp8_w8a8,block_shape=[128,128].json"]
    assert sorted(p.name for p in (tmp_path / "moe").iterdir()) == sorted(names)
    # read as vLLM does: keys become whole numbers, and the nearest is taken
    configs = {int(k): v for k, v in json.loads((tmp_path / "moe" / names[0]).read_text()).items()}
    assert list(configs) == [1, 16]
    assert configs[min(configs, key=lambda k: abs(k - 13))] == {
        "BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8,
        "num_warps": 4, "num_stages": 3,
    }  # fmt: skip
    errors = capsys.readouterr().err
    assert "the second product" in errors and "not recorded with the arguments" in errors


def test_arguments_of_a_recorded_launch_are_those_that_the_export_reads():
    from workbench.workload.exported import moe_place
    from workbench.workload.signature import PlainArgument, TensorArgument
    from workbench.workload.tuned_table import argument_texts

    tensors = {
        "a_ptr": TensorArgument("float8_e4m3fn", (7, 64), (64, 1), 16, 0),
        "b_ptr": TensorArgument("float8_e4m3fn", (4, 32, 64), (2048, 64, 1), 16, 1),
        **{n: TensorArgument("int32", (8,), (1,), 16, 2) for n in ("sorted_token_ids_ptr",
           "expert_ids_ptr")},
    }  # fmt: skip
    plain = {"top_k": PlainArgument("int", 2), "use_fp8_w8a8": PlainArgument("bool", True)}
    texts = argument_texts({**tensors, **plain})
    name, batch = moe_place(replace(moe(1), arguments=texts, device="AMD Instinct MI300X"))
    assert (name, batch) == ("E=4,N=16,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8.json", 7)


hostile = [
    ("m", "f", "k"), ("__main__", 'f"""', "'''\n"), ("a\nimport os", "é\\", "\\"), ("m", "f", "l"),
]  # fmt: skip


def test_the_python_source_compiles_and_equals_the_entries(tmp_path):
    import triton

    several = [
        entry(n, 64 + n, module=m, function=f, at=f"20{n}\n", key=(k, "torch.float16"))
        for n, (m, f, k) in enumerate(hostile)
    ]
    several.append(entry(9, 0, function="g", config={"X": True, "maxnreg": None, "s": "a"}))
    write(table := tmp_path / "tuned.json", several)
    assert exported(table, tmp_path / "configs.py", "python") == 0
    space = {}
    exec(compile((tmp_path / "configs.py").read_text(), "configs", "exec"), space)
    configs = {}
    for name, value in space.items():
        if name.startswith("configs_"):
            configs |= value
    assert len(configs) == len(several)
    for each in several:
        config = configs[each.key]
        assert type(config) is triton.Config
        wanted = {n: v for n, v in each.config.items() if v is not None}
        assert {n: v for n, v in config.all_kwargs().items() if n in wanted} == wanted
        assert set(config.kwargs) == set(wanted) - {"num_warps"}


@pytest.mark.nightly
@pytest.mark.newest
def test_each_second_launch_of_a_kernel_ends_a_step(tmp_path, monkeypatch):
    from workbench.workload.deployed import Deployment, lookups_in
    from workbench.workload.program_runner import startup_variables
    from workbench.workload.program_runs import read_marks
    from workbench.workload.startup import sitecustomize
    from workbench.workload.step_marks import MarkOptions

    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    write(table := tmp_path / "tuned.json", [entry(100, 128)])
    more = {
        sitecustomize.MARKS: MarkOptions(str(tmp_path), "scaled", 2).text(),
        sitecustomize.TUNED: Deployment(str(table), "error", folder=str(tmp_path)).text(),
    }
    done = subprocess.run(
        [sys.executable, PROGRAM, *["100"] * 7],
        env={**environment(), **startup_variables({**more, "TRITON_INTERPRET": "1"})},
        cwd=TESTS, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.stdout == " ".join(["128"] * 7) + "\n", done.stderr
    steps_s, first_s, outputs = read_marks(tmp_path)
    assert len(steps_s) == 2 and first_s > 0 and not outputs
    (lookups,) = lookups_in(tmp_path).values()
    assert [each.result for each in lookups] == ["hit"]
