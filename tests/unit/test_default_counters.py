"""Counters that are asked for by default on AMD's GPUs and on Blackwell. None of the groups was
ever run: their names are held against AMD's definitions and files of rocprof-compute."""

import csv
import gzip
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.commands import profile_counters
from workbench.commands.profile_counters import add_default_counters
from workbench.device.hardware import DEVICES
from workbench.traces.metric import METRICS, metric_values
from workbench.traces.profilers import ToolRun, ncu, profilers, rocprofv3
from workbench.traces.profilers.names import CHIPS, names_of
from workbench.traces.profilers.names.amd import ARCHITECTURES, AmdCounters, default_groups
from workbench.traces.profilers.names.defaults import BLACKWELL, default_counters, matrix_counters
from workbench.traces.profilers.running.child import ChildEnd
from workbench.traces.profilers.running.machine import Machine
from workbench.traces.profilers.running.workload import MarkedCalls, Workload
from workbench.traces.rule_metrics import rule_metrics
from workbench.traces.trace import CounterValue, Dispatch, Trace

GOLDEN = Path(__file__).parents[1] / "golden" / "traces"
# The AMD metrics of the design that have a formula, on every CDNA GPU.
CDNA = {"dram_bytes", "l2_hit", "bank_conflicts", "vector_flop", "matrix_flop", "valu_share",
        "mfma_share", "vmem_share", "lds_share", "salu_share", "smem_share", "waves_waiting",
        "lanes_on"}  # fmt: skip
RDNA = {"dram_bytes", "l2_hit", "bank_conflicts", "waves_waiting"}

PROGRAMS = {name: f"/t/{name}" for name in ("ncu", "rocprofv3", "rocprofv3-avail")}
CALLS = Workload(("/p/python", "R/call.py"), "softmax.rows", None, MarkedCalls(1, True, "_rows", 1))

pytestmark = pytest.mark.unit


def lines(tool, workload):
    """All command lines of a tool."""
    machine = Machine("/p/python", "hip" if tool == "rocprofv3" else "cuda", {}, {}, PROGRAMS)
    first = profilers()[tool].argv(machine, workload, Path("R"))
    further = profilers()[tool].further(machine, workload, Path("R"))
    return [" ".join(words) for words in (first, *(command.argv for command in further))]


def counted(names, value=3.0):
    counters = {n: CounterValue(n, value + k, "", "", "ok") for k, n in enumerate(names)}
    return Dispatch("k", counters=counters)


# AMD


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_each_group_fits_into_one_pass_and_all_metrics_come_of_them(arch):
    known = ARCHITECTURES[arch]
    groups = [group.split(",") for group in default_groups(arch)]
    for group in groups:
        used = {}
        for name in group:
            used[known.block(name)] = used.get(known.block(name), 0) + known.costs.get(name, 1)
        assert all(used[block] <= known.limits[block] for block in used), group
        assert len(set(group)) == len(group)
    names = {name for group in groups for name in group}
    assert names <= known.names
    assert set(metric_values(counted(names), "rocprofv3")) == (RDNA if arch == "gfx1100" else CDNA)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_counters_of_a_ratio_are_of_one_pass_where_one_can_count_them(arch):
    known = ARCHITECTURES[arch]
    groups = [set(group.split(",")) for group in default_groups(arch)]
    names = set().union(*groups)
    for metric in METRICS:
        value = metric_values(counted(names), "rocprofv3").get(metric.name)
        if value is not None:
            needs = set(value.source.split(", "))
            assert not known.fits(list(needs)) or any(needs <= group for group in groups)


@given(st.lists(st.sampled_from(sorted(ARCHITECTURES["gfx942"].names)), max_size=30),
       st.integers(1, 8), st.integers(1, 4))  # fmt: skip
def test_a_pass_holds_no_more_than_its_blocks(names, sq, tcc):
    known = AmdCounters(frozenset(names), {"SQ": sq, "TCC": tcc})
    distinct = set(names)
    blocks = [known.block(name) for name in distinct]
    assert known.fits(names) == (blocks.count("SQ") <= sq and blocks.count("TCC") <= tcc)


@pytest.mark.parametrize("arch, file", [
    ("gfx90a", "rocprof_compute/MI200_pmc_perf.csv.gz"),
    ("gfx942", "rocprof_compute/MI300X_A1_pmc_perf.csv.gz"),
])  # fmt: skip
def test_names_stand_in_files_of_real_gpus(arch, file):
    """F8 operations alone do not: that profile did not ask for them."""
    path = GOLDEN / file
    with gzip.open(path, "rt") as text:
        heads = set(next(csv.reader(text)))
    assert ARCHITECTURES[arch].names - heads <= {"SQ_INSTS_VALU_MFMA_MOPS_F8"}


def test_every_amd_device_is_covered_or_asks_for_nothing():
    amd = {d.limits.arch for d in DEVICES.values() if d.limits.arch.startswith("gfx")}
    assert amd == set(ARCHITECTURES)
    assert default_groups("gfx908") == () == default_counters("trace", "gfx942")


def test_each_group_is_a_run_of_its_own_and_no_check_ends_it():
    asked = replace(CALLS, defaults=default_groups("gfx1100"))
    text = lines("rocprofv3", asked)
    assert len(text) == 1 + len(asked.defaults) and not any("pmc-check" in each for each in text)
    assert " --pmc FETCH_SIZE" in " ".join(text)
    own = replace(asked, counters=("SQ_WAVES",))
    assert len(lines("rocprofv3", own)) == 3  # what the user names, and its check


def test_a_group_that_cannot_be_counted_is_a_note(tmp_path, monkeypatch):
    workload = replace(CALLS, defaults=("A,B", "C"))
    wanted = rocprofv3.reads(workload, tmp_path)
    monkeypatch.setattr(rocprofv3, "check_exit", lambda *a: None)
    monkeypatch.setattr(rocprofv3, "check_whole", lambda *a: None)
    monkeypatch.setattr(rocprofv3, "read", lambda paths: Trace("rocprofv3"))
    done = ToolRun(workload, tmp_path, ChildEnd(0, False, False), (wanted[0], wanted[2]))
    assert rocprofv3.parse(done).notes == [
        "rocprofv3 counted none of A, B, which are asked by default"
    ]
    own = replace(done, workload=replace(workload, counters=("A,B", "C")))
    with pytest.raises(rocprofv3.ProfilerError, match="left no counters0_results"):
        rocprofv3.parse(own)


# Blackwell


@pytest.mark.parametrize("arch", BLACKWELL)
def test_matrix_counters_of_blackwell_exist_and_give_the_flops(arch):
    chip = CHIPS[arch]
    names = default_counters("ncu", arch)
    assert names == matrix_counters(chip) and len(names) >= 9
    assert all(name.removesuffix(".sum") in names_of(chip) for name in names)
    kinds = ("bf16", "fp16", "fp4", "fp64", "int8", "tf32")
    assert all(any(kind in name for name in names) for kind in kinds)
    assert rule_metrics(counted(names, 0.0), "ncu")["matrix_flop"] == sum(range(len(names)))


def test_other_chips_and_sets_ask_for_none_of_them():
    assert default_counters("ncu", "sm_90") == default_counters("nsys", "sm_100") == ()
    asked = replace(CALLS, defaults=default_counters("ncu", "sm_100"))
    (line, *_) = lines("ncu", asked)
    assert " --metrics sm__ops_path_tensor_src_bf16_dst_fp32.sum," in line
    both = replace(asked, counters=("sm__cycles_active.avg",))
    assert " --metrics sm__cycles_active.avg,sm__ops_path" in lines("ncu", both)[0]
    assert "sm__ops_path" not in lines("ncu", replace(asked, selection="full"))[0]


def test_a_default_without_a_value_is_a_note_and_not_an_error():
    workload = replace(CALLS, defaults=("a.sum", "b.sum", "c.sum"))
    first, second = counted(("a.sum", "b.sum")), counted(("a.sum", "b.sum"))
    second.counters["b.sum"] = CounterValue("b.sum", None, "", "n/a", "refused")
    trace = Trace("ncu", dispatches=[first, second])
    assert ncu._absent_defaults(workload, trace) == ["b.sum", "c.sum"]
    assert ncu._absent_defaults(replace(workload, selection="full"), trace) == []


@pytest.mark.parametrize("device, tool, gpu", [
    ("mi300x", "rocprofv3", "hip"), ("b200", "ncu", "cuda"), ("h200", "ncu", "cuda"),
])  # fmt: skip
def test_a_kernel_is_asked_for_the_defaults_of_its_gpu(monkeypatch, device, tool, gpu):
    monkeypatch.setattr(profile_counters.hardware, "live", lambda: DEVICES[device])
    asked = add_default_counters(CALLS, tool, gpu)
    assert asked.defaults == default_counters(tool, DEVICES[device].limits.arch)
    assert bool(asked.defaults) == (device != "h200")
    program = Workload(("python", "step.py"), "step.py")
    assert add_default_counters(program, tool, gpu) is program
    assert add_default_counters(CALLS, tool, "") is CALLS
