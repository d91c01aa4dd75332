"""Metrics of instructions and of what a Spec declares, and the rules that stand on them: real
counters of one H200, and source pages that these tests write."""

import gzip
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_pages import PageRow, sampled, source_page
from synthetic import softmax

from workbench.cli import main
from workbench.code.listing import read_sass
from workbench.commands.traces import kernel_run
from workbench.data.matrix_work import MATRIX_COUNTERS
from workbench.traces.instruction_metrics import instruction_metrics, sampled_stalls
from workbench.traces.metric import STALLS
from workbench.traces.profilers.names import CHIPS, names_of
from workbench.traces.readers import read
from workbench.traces.rule_metrics import (
    OTHERS,
    plain_metrics,
    rule_metrics,
    stored_metrics,
)
from workbench.traces.rules import evaluate_kernel, kernel_rules, missing_of_kernel
from workbench.traces.trace import CounterValue, Dispatch
from workbench.traces.trace_summary import summarise

GOLDEN = Path(__file__).parents[1] / "golden"
H200 = GOLDEN / "traces" / "h200"
RAW, PAGE = H200 / "raw_base.csv.gz", H200 / "source_sass.csv.gz"
PRODUCT_FLOP = 2 * 4096**3
# Of the golden kernels: a sum of two fp32 tensors of 64 MiB, two bf16 products of 4096 cubed.
DECLARED = (
    {"least_bytes": 3.0 * 2**26, "least_bytes_read": 2.0 * 2**26, "declared_flop": 2.0**24},
    {"least_bytes": 3.0 * 2**25, "least_bytes_read": 2.0**26, "declared_flop": PRODUCT_FLOP},
    {"least_bytes": 3.0 * 2**25, "least_bytes_read": 2.0**26, "declared_flop": PRODUCT_FLOP},
)
NEW = ("excess_traffic", "atomics", "barriers", "masked_lanes", "tma_store", "tmem_latency",
       "clock", "model")  # fmt: skip

pytestmark = pytest.mark.unit


def dispatches(tmp_path, *kernels, **options):
    path = tmp_path / "page.csv"
    path.write_text(source_page(*kernels, **options))
    return read([path]).dispatches


def names(metrics):
    return [match.name for match in evaluate_kernel(metrics)]


def golden_metrics(*files):
    return [rule_metrics(d, "ncu") for d in read(files or (RAW, PAGE)).dispatches]


# Real counters and instructions of one H200


def test_instructions_and_counters_of_a_real_product_agree():
    """Operations by opcode times executions are those of ncu's counter, to the last one."""
    for dispatch in read([RAW, PAGE]).dispatches:
        counted = instruction_metrics(dispatch)
        alone = replace(dispatch, instructions=None)
        known = rule_metrics(alone, "ncu")
        for name in ("matrix_flop", "ideal_sectors", "local_sectors", "excessive_sectors"):
            assert counted[name] == known[name], name
    assert counted["matrix_flop"] == PRODUCT_FLOP and counted["local_sectors"] == 351_764_480
    # one addition for each element of the sum, and nothing else
    assert golden_metrics()[0]["vector_flop"] == DECLARED[0]["declared_flop"]


def test_real_kernels_use_all_lanes_and_no_atomics():
    for metrics in golden_metrics():
        assert metrics["memory_lanes"] == 32 and metrics["masked_share"] == 0
        assert metrics["atomic_share"] == metrics["fence_share"] == 0
    assert [round(each["exchange_share"], 3) for each in golden_metrics()] == [0, 0.041, 0.019]


@pytest.mark.parametrize("files", [(RAW, PAGE), (PAGE, RAW)], ids=["page last", "page first"])
def test_the_pages_of_one_report_are_joined(files):
    """The source page has no ids: its kernels are those of the raw page in the same order."""
    joined = read(files).dispatches
    assert [(d.name, d.id) for d in joined] == [("add", "0"), ("mm", "1"), ("mm", "2")]
    assert [len(d.instructions.texts) for d in joined] == [56, 880, 1576]
    assert all(d.counters for d in joined)


def test_pages_of_other_kernels_are_not_joined(tmp_path):
    path = tmp_path / "page.csv"
    path.write_text(source_page(("other", [PageRow("EXIT")])))
    joined = read([RAW, path]).dispatches
    assert len(joined) == 4 and not any(d.instructions for d in joined if d.counters)


def test_samples_tell_the_stalls_of_a_page_alone():
    """Within a point of the counters, which are another measurement."""
    counters = golden_metrics(RAW)
    for of_page, dispatch in zip(counters, read([PAGE]).dispatches, strict=True):
        shares = sampled_stalls(dispatch.instructions)
        assert set(shares) <= set(STALLS) and sum(shares.values()) == pytest.approx(1)
        for reason, part in shares.items():
            assert part == pytest.approx(of_page[f"stall_{reason}"], abs=0.03), reason


def test_golden_kernels_with_their_declared_work_have_no_new_cause():
    for metrics, declared in zip(golden_metrics(), DECLARED, strict=True):
        known = {**metrics, **declared, "plain_clock": metrics["sm_clock"] * 1.01}
        known["traffic_ratio"] = known["dram_bytes"] / known["least_bytes"]
        assert set(NEW) & set(missing_of_kernel(known)) == set()
        assert not set(NEW) & set(names(known))


@pytest.mark.parametrize("wrong", ["least_bytes_read", "declared_flop"])
def test_a_wrong_spec_is_contradicted_by_real_counters(wrong):
    """The product reads 2.8 times its inputs: so declared bytes are contradicted from 3.8 on."""
    metrics = golden_metrics()[1]
    for factor, holds in ((1.0, False), (0.5, wrong == "declared_flop"), (4.0, True)):
        declared = {**DECLARED[1], wrong: DECLARED[1][wrong] * factor}
        assert ("model" in names({**metrics, **declared})) == holds


@given(st.floats(1, 1e12), st.floats(0, 1e12), st.floats(1, 1e12))
def test_operations_outside_of_the_matrix_unit_are_declared_too(matrix, vector, flop):
    known = {"least_bytes_read": 1.0, "dram_read_bytes": 1.0, "matrix_flop": matrix,
             "declared_flop": flop}  # fmt: skip
    assert bool(names(known)) == (matrix > 1.25 * flop)
    both = {**known, "vector_flop": vector}
    assert bool(names(both)) == (matrix > 1.25 * flop or matrix + vector < 0.75 * flop)


@given(st.floats(1e9, 2e9))
def test_numbers_of_another_clock_are_said_to_be(plain):
    metrics = {"sm_clock": 1.575e9, "plain_clock": plain}
    matches = evaluate_kernel(metrics)
    assert bool(matches) == (abs(1.575e9 / plain - 1) > 0.03)
    if matches:
        assert "the counters are of 1.57 GHz" in matches[0].diagnosis.sentence


def test_a_lowered_or_changing_clock_is_named():
    still = {"plain_clock": 1.6e9, "plain_clock_low": 1.59e9, "plain_clock_high": 1.61e9}
    assert names(still) == [] and names({**still, "plain_clock_high": 1.9e9}) == ["clock"]
    (match,) = evaluate_kernel({**still, "throttle_power cap": 1.0})
    assert "lowered the clock of the plain time (power cap)" in match.diagnosis.sentence


# Excess traffic


@given(st.floats(0, 1e8), st.floats(0, 1e8), st.floats(0, 1e8), st.floats(1, 50), st.floats(0.6, 1))
def test_excess_traffic_is_split_by_what_asks_for_it(local, excessive, ideal, ratio, busy):
    metrics = {
        "duration": 1e-3, "least_bytes": 1e8, "dram_bytes": ratio * 1e8, "traffic_ratio": ratio,
        "dram_throughput": busy, "local_sectors": local, "excessive_sectors": excessive,
        "ideal_sectors": ideal,
    }  # fmt: skip
    matches = [m for m in evaluate_kernel(metrics) if m.name == "excess_traffic"]
    assert bool(matches) == (ratio >= 1.5)
    for match in matches:
        parts = [e.value for e in match.diagnosis.evidence if e.unit == "1"][1:]
        requested = local + excessive + max(0.0, ideal - 1e8 / 32)
        assert math.fsum(parts) == pytest.approx(1) if requested else not parts
        # never below the time of the least bytes at the roof of DRAM
        assert match.diagnosis.gain_ns <= 1e6 * (1 - busy / ratio) * (1 + 1e-9)


def test_the_advice_is_that_of_the_largest_part():
    metrics = {"least_bytes": 1e8, "dram_bytes": 3e8, "traffic_ratio": 3.0,
               "dram_throughput": 0.9, "local_sectors": 1.0, "excessive_sectors": 0.0,
               "ideal_sectors": 0.0}  # fmt: skip
    (spilled,) = evaluate_kernel(metrics)
    assert "smaller tile" in spilled.diagnosis.advice
    (again,) = evaluate_kernel({**metrics, "ideal_sectors": 1e8})
    assert "Pass over the data once" in again.diagnosis.advice
    (unknown,) = evaluate_kernel({n: v for n, v in metrics.items() if "sectors" not in n})
    assert "Of the sectors" not in unknown.diagnosis.sentence


# Written pages

LOOP = [PageRow("FFMA R2, R3, R4, R5", 2000), PageRow("@P0 BRA 0x7f00", 1000)]
PLANTED = {
    "atomics": [
        *LOOP,
        PageRow("LDG.E R4, desc[UR4][R6.64]", 500),
        PageRow("REDG.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR4][R2.64], R7", 500,
                samples={"long_scoreboard": 500, "lg_throttle": 300, "selected": 100}),
    ],
    "barriers": [
        *LOOP,
        PageRow("SHFL.BFLY PT, R3, R2, 0x10, 0x1f", 700, samples=sampled("short_scoreboard", 300)),
        PageRow("BAR.SYNC.DEFER_BLOCKING 0x0", 500, samples=sampled("barrier", 300)),
        PageRow("LDS R4, [R6]", 500, samples=sampled("wait", 200)),
    ],
    "masked_lanes": [
        *LOOP,
        PageRow("@P1 LDG.E.128 R16, desc[UR4][R20.64]", 500, 4, sampled("long_scoreboard", 300)),
        PageRow("STG.E.128 desc[UR4][R2.64], R8", 500, 8, sampled("wait", 300)),
        PageRow("@P1 LDGSTS.E [R1], desc[UR4][R2.64]", 900, 0),  # not counted
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_written_page_has_the_word_of_its_planted_cause(tmp_path, name):
    """And without the columns that it needs, the rule is not evaluable."""
    (dispatch,) = dispatches(tmp_path, ("k", PLANTED[name]))
    assert names(rule_metrics(dispatch, "ncu")) == [name]
    needed = "Predicated-On" if name == "masked_lanes" else "stall_"
    for column in ("Instructions Executed", needed):
        (less,) = dispatches(tmp_path, ("k", PLANTED[name]), without=column)
        left = rule_metrics(less, "ncu")
        assert name not in names(left) and name in missing_of_kernel(left)


def test_fences_beside_atomics_change_the_advice(tmp_path):
    plain, fenced = PLANTED["atomics"], [*PLANTED["atomics"], PageRow("MEMBAR.SC.GPU", 500)]
    (few,) = evaluate_kernel(rule_metrics(*dispatches(tmp_path, ("k", plain)), "ncu"))
    (more,) = evaluate_kernel(rule_metrics(*dispatches(tmp_path, ("k", fenced)), "ncu"))
    assert "relaxed" not in few.diagnosis.advice and "sem='relaxed'" in more.diagnosis.advice


# As the rules mean them: REDUX, ATOMS and LDGSTS are none of these.
COUNTED = {
    "atomic_share": ("ATOMG", "RED"),
    "fence_share": ("MEMBAR",),
    "exchange_share": ("BAR", "SHFL", "LDS", "STS"),
}
OPCODES = ("FFMA", "LDG.E.64", "STG.E", "LDGSTS.E.BYPASS.128", "REDUX.SUM", "RED.E.ADD", "BAR.SYNC",
           "SHFL.IDX", "LDS.128", "STS", "MEMBAR.ALL.GPU", "ATOMG.E.CAS", "ATOMS.ADD")  # fmt: skip
ROWS = st.lists(
    st.builds(
        PageRow,
        st.sampled_from([f"{guard}{name} R2, R4" for name in OPCODES for guard in ("", "@!P0 ")]),
        st.integers(0, 10**6),
        st.integers(0, 32),
    ),
    min_size=1,
    max_size=20,
)


@given(ROWS)
def test_shares_are_of_what_ran(tmp_path_factory, rows):
    (dispatch,) = dispatches(tmp_path_factory.mktemp("page"), ("k", rows))
    metrics = instruction_metrics(dispatch)
    whole = sum(row.executed for row in rows)
    if not whole:
        assert not set(COUNTED) & set(metrics)
        return

    def executed(stems):
        heads = [r.text.removeprefix("@!P0 ").split()[0].split(".")[0] for r in rows]
        return sum(r.executed for r, stem in zip(rows, heads, strict=True) if stem in stems)

    for name, stems in COUNTED.items():
        assert metrics[name] == pytest.approx(executed(stems) / whole)
    accesses = [r for r in rows if "LDG." in r.text or "STG." in r.text]
    if count := sum(r.executed for r in accesses):
        on = sum(r.executed * r.lanes for r in accesses)
        none = sum(r.executed for r in accesses if not r.lanes)
        assert metrics["memory_lanes"] == pytest.approx(on / count)
        assert metrics["masked_share"] == pytest.approx(none / count)
    else:
        assert "memory_lanes" not in metrics


# Bulk stores and tensor memory: compiled code for sm_100, with samples that these tests write


def compiled(name="ws1_cuda_100.nvdisasm_gi.txt"):
    text = gzip.decompress((GOLDEN / "code" / f"{name}.gz").read_bytes()).decode()
    return [op.text for op in read_sass(text).instructions]


def metrics_of(tmp_path, texts, samples):
    """Metrics of these instructions; `samples` by place, of a reason each."""
    rows = [PageRow(text, samples=samples.get(at, {})) for at, text in enumerate(texts)]
    return rule_metrics(*dispatches(tmp_path, ("k", rows)), "ncu")


def places(texts, *stems):
    return [at for at, text in enumerate(texts) if any(stem in text for stem in stems)]


def test_samples_at_bulk_stores_are_those_of_one_lane(tmp_path):
    texts = compiled()
    stores, others = places(texts, "UTMASTG", "UTMACMDFLUSH"), places(texts, "F2FP", "UTMALDG")
    waits = [at for at in places(texts, "DEPBAR.LE SB0") if at > min(stores)]
    assert stores and waits and others
    for at in (*stores, *waits):
        metrics = metrics_of(tmp_path, texts, {at: sampled("wait", 30), others[0]: {"wait": 70}})
        assert metrics["tma_store_samples"] == pytest.approx(0.3), texts[at]
        assert "tma_store" in names(metrics)
    metrics = metrics_of(tmp_path, texts, {at: sampled("wait", 5) for at in others})
    assert metrics["tma_store_samples"] == 0 and "tma_store" not in names(metrics)


def test_waits_of_other_asynchronous_copies_are_none_of_stores(tmp_path):
    texts = compiled("mm_cuda_90.nvdisasm_g.txt")
    at = places(texts, "DEPBAR.LE")
    metrics = metrics_of(tmp_path, texts, {each: sampled("wait", 9) for each in at})
    assert at and metrics["tma_store_samples"] == 0


def test_what_reads_tensor_memory_waits_for_it(tmp_path):
    """The load, the NOP behind it, and the conversion that reads its registers; not one that reads
    others."""
    texts = compiled()
    (load,) = places(texts, "LDTM")
    behind, reader = load + 1, places(texts, "F2FP")[0]
    assert texts[behind].startswith("NOP") and reader > load
    other = next(at for at in range(load, len(texts)) if "ISETP.NE.U32.AND P2" in texts[at])
    for at in (load, behind, reader):
        samples = {at: sampled("long_scoreboard", 30), other: {"long_scoreboard": 70}}
        metrics = metrics_of(tmp_path, texts, samples)
        assert metrics["tmem_load_samples"] == pytest.approx(0.3), texts[at]
        assert "tmem_latency" in names(metrics)
    ready = {load: {"long_scoreboard": 30}, other: {"long_scoreboard": 60, "not_selected": 10}}
    assert "tmem_latency" not in names(metrics_of(tmp_path, texts, ready))


def test_a_register_that_is_written_again_waits_for_its_last_load(tmp_path):
    texts = ["LDTM.x4 R4, tmem[UR15]", "LDG.E R5, desc[UR4][R8.64]", "MOV R6, R20",
             "FADD R9, R4, R2", "FADD R9, R5, R2", "FADD R9, R6, R2", "FADD R9, R7, R2",
             "FADD R9, R8, R2", "STG.E desc[UR4][R7.64], R2"]  # fmt: skip
    expected = {0, 3, 6, 8}
    for at in range(len(texts)):
        metrics = metrics_of(tmp_path, texts, {at: sampled("long_scoreboard", 1)})
        assert metrics["tmem_load_samples"] == (at in expected), texts[at]


# What a run declares


def test_a_record_tells_declared_work_and_clock():
    _, outcomes = softmax()
    timing = replace(outcomes[0].timing, sm_mhz=1500.0, window_mhz=(1490.0, 1510.0),
                     throttle=("power cap",))  # fmt: skip
    record = replace(outcomes[0], timing=timing, bytes_read=7)
    assert plain_metrics(record) == {
        "least_bytes": record.bytes, "least_bytes_read": 7, "declared_flop": record.flops,
        "plain_clock": 1.5e9, "plain_clock_low": 1.49e9, "plain_clock_high": 1.51e9,
        "throttle_power cap": 1.0,
    }  # fmt: skip
    bare = replace(record, timing=replace(timing, sm_mhz=None), bytes_read=None)
    assert set(plain_metrics(bare)) == {"least_bytes", "declared_flop"}


def first_launch():
    """The golden product alone, as ncu records one marked call."""
    trace = read([RAW, PAGE])
    trace.dispatches = trace.dispatches[1:2]
    return summarise(trace)


@pytest.mark.parametrize("calls, known", [(1, True), (2, False)])
def test_declared_work_counts_for_a_call_of_one_launch(calls, known):
    run, outcomes = softmax()
    records = [replace(outcomes[0], bytes_read=outcomes[0].bytes // 2)]
    kept = kernel_run(first_launch(), replace(run, engine="profile"), records, "mm", calls)
    (profile,) = kept.profiles
    values = {e.name: e for e in profile.metrics}
    assert ("least_bytes" in values) == known == ("model" in {f.rule for f in kept.findings})
    if known:
        assert values["least_bytes"].kind == "computed"
        assert values["traffic_ratio"].value == pytest.approx(
            values["dram_bytes"].value / outcomes[0].bytes
        )


def test_what_is_stored_gives_rules_what_the_file_gives():
    for dispatch in read([RAW, PAGE]).dispatches:
        fresh = rule_metrics(dispatch, "ncu", DECLARED[1])
        stored = {e.name: e.value for e in stored_metrics(dispatch, "ncu", DECLARED[1])}
        assert set(fresh) <= set(stored)
        assert all(stored[n] == value for n, value in fresh.items() if not n.startswith("stall_"))


def test_each_new_rule_says_what_it_needs_and_what_gives_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose", str(RAW), "--all"]) == 0
    out = capsys.readouterr().out
    lines = {line.split()[2]: line for line in out.splitlines() if "not evaluable" in line}
    for name in NEW:
        assert "`workbench profile KERNEL --tool ncu` collects them" in lines[name]
    assert OTHERS["least_bytes"].source in lines["excess_traffic"]
    assert OTHERS["memory_lanes"].source in lines["masked_lanes"]
    assert main(["diagnose", str(PAGE), "--all"]) == 0
    out = capsys.readouterr().out
    for name in ("atomics", "barriers", "masked_lanes", "tma_store", "tmem_latency"):
        assert f"not evaluable: {name} " not in out


def test_a_source_page_alone_is_shown_by_kernel(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["read", str(PAGE), "--database", f"sqlite:///{tmp_path}/h.db"]) == 0
    out = capsys.readouterr().out
    assert "stall long_scoreboard 72 %" in out and "stall lg_throttle" in out


def test_thresholds_of_the_new_rules_are_listed():
    assert {n: dict(kernel_rules()[n].thresholds) for n in NEW} == {
        "excess_traffic": {"ratio": 1.5, "dram": 0.6},
        "atomics": {"atomics": 0.01, "stall": 0.6},
        "barriers": {"waiting": 0.4, "exchange_share": 0.2},
        "masked_lanes": {"lanes": 16, "none": 0.3, "copied": 0.5},
        "tma_store": {"tma_store_samples": 0.2},
        "tmem_latency": {"tmem_load_samples": 0.2, "stall_not_selected": 0.05},
        "clock": {"apart": 0.03},
        "model": {"apart": 0.25},
    }


# Reports, by a package that stands in for NVIDIA's

PACKAGE = """
class Ids(list):
    def value(self, at):
        return self[at]


class Metric:
    def __init__(self, whole, instances=()):
        self.whole, self.instances = whole, dict(instances)
    def has_value(self):
        return True
    def unit(self):
        return ""
    def has_correlation_ids(self):
        return bool(self.instances)
    def correlation_ids(self):
        return Ids(self.instances)
    def num_instances(self):
        return len(self.instances)
    def value(self, at=None):
        return self.whole if at is None else list(self.instances.values())[at]


S = "smsp__pcsamp_warps_issue_stalled_"
CODE = {0: "LDG.E R2, [R4.64]", 16: "RED.E.ADD [R6.64], R2", 32: "EXIT"}
METRICS = {
    S + "long_scoreboard": Metric(30, {16: 30}), S + "membar": Metric(0, {0: 0}),
    S + "lg_throttle": Metric(7, {16: 7}), S + "lg_throttle_not_issued": Metric(5, {16: 5}),
    S + "no_instructions": Metric(3, {32: 3}),
    "inst_executed": Metric(300, {0: 100, 16: 100, 32: 100}),
    "thread_inst_executed_true": Metric(7300, {0: 900, 16: 3200, 32: 3200}),
    "sass__inst_executed_per_opcode": Metric(300, {"LDG": 100, "RED": 100, "EXIT": 100}),
    "gpu__time_duration.sum": Metric(5000),
    "derived__memory_l2_theoretical_sectors_global_excessive": Metric(640, {0: 640}),
    "memory_l2_theoretical_sectors_global_ideal": Metric(160, {0: 160}),
}


class Action:
    def name(self):
        return "k"
    def metric_names(self):
        return list(METRICS)
    def metric_by_name(self, name):
        return METRICS.get(name)
    def sass_by_pc(self, at):
        return CODE.get(at, "")
    def source_info(self, at):
        return None
    def source_files(self):
        return {"/a/k.py": "text", "/a/other.py": "", "/b/both.py": "1", "/c/both.py": "2"}


def load_report(path):
    return [[Action()]]
"""


def test_a_report_gives_samples_by_reason_and_executions_by_opcode(tmp_path, monkeypatch):
    (tmp_path / "ncu_report.py").write_text(PACKAGE)
    (tmp_path / "k.ncu-rep").write_bytes(b"NVR\0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (here := tmp_path / "here").mkdir()
    (here / "json.py").write_text("x = 1\n")  # is not taken for Python's own
    monkeypatch.chdir(here)
    (dispatch,) = read([tmp_path / "k.ncu-rep"]).dispatches
    metrics = rule_metrics(dispatch, "ncu")
    stalls = {n.removeprefix("stall_"): v for n, v in metrics.items() if n.startswith("stall_")}
    assert stalls == {
        "long_scoreboard": 0.75, "membar": 0.0, "lg_throttle": 0.175, "no_instruction": 0.075,
    }  # fmt: skip
    assert metrics["memory_lanes"] == 9 and metrics["atomic_share"] == pytest.approx(1 / 3)
    assert set(names(metrics)) == {"atomics", "masked_lanes"}
    assert metrics["vector_flop"] == 0
    assert dispatch.instructions.sources == {"k.py": "text"}
    assert "L1 Wavefronts Shared Excessive" not in dispatch.instructions.heads
    assert dispatch.instructions.total("L2 Theoretical Sectors Global Excessive") == 640
    assert metrics["excess_sectors"] == pytest.approx(640 / 800)
    alone = rule_metrics(replace(dispatch, instructions=None), "ncu")
    assert alone["atomic_share"] == metrics["atomic_share"] and "memory_lanes" not in alone


@pytest.mark.parametrize("chip", CHIPS.values())
def test_counters_of_the_matrix_unit_are_one_for_each_type(chip):
    """Those of one sparsity and the realtime ones would count the same work again."""
    named = [n for n in names_of(chip) if MATRIX_COUNTERS.fullmatch(f"{n}.sum")]
    types = [name.removeprefix("sm__ops_path_tensor_src_") for name in named]
    assert types and not any("sparsity" in t or "realtime" in t for t in types)
    counters = {f"{name}.sum": CounterValue(f"{name}.sum", 2.0) for name in names_of(chip)}
    metrics = rule_metrics(Dispatch("k", counters=counters), "ncu")
    assert metrics["matrix_flop"] == 2.0 * len(types)
