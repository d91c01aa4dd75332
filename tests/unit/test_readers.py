"""Every golden file is read to its golden values, or refused in the right sentence."""

import csv
import gzip
import json
import sqlite3
import sys
import tempfile
from decimal import Decimal
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.catalog import CatalogError, spec_of
from workbench.data.contributed import EXAMPLES
from workbench.traces.metric import exact_counters, metric_values, stall_shares
from workbench.traces.readers import read, readers
from workbench.traces.readers.inputs.source import ReadError, ReadLimits
from workbench.traces.timeline import device_times, devices, kernel_rows
from workbench.traces.trace import ActivityKind

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "traces"

pytestmark = pytest.mark.unit


def golden(name):
    """A golden file, packed or not."""
    path = GOLDEN / name
    return path if path.exists() else GOLDEN / f"{name}.gz"


def table(name):
    return json.loads(gzip.decompress(golden(name).read_bytes()))


def kinds(trace, *wanted):
    return list(trace.activities.select(*wanted))


def spent(trace, *wanted):
    table = trace.activities
    return sum(table.ends[i] - table.starts[i] for i in kinds(trace, *wanted))


# The files


def sources():
    text = (GOLDEN / "SOURCES.tsv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines(), delimiter="\t"))


FREE = ("MIT", "BSD", "repo BSD", "Apache-2.0", "ours")
NO_TRACE = {
    "golden_timelines.json.gz",
    "torch_profiler/GOLDEN.json.gz",
    "h200/full.log",
    "h200/set_source.txt",
    "h200/plain.txt",
    "h200/ncu_list_sets.txt",
    "cases/xctrace_life_cycle_only.xml.gz",
}


def test_every_golden_file_has_a_source_and_a_free_licence():
    files = {p.relative_to(GOLDEN).as_posix() for p in GOLDEN.rglob("*") if p.is_file()}
    rows = sources()
    assert files - {"SOURCES.tsv"} == {row["file"] for row in rows}
    assert all(row["licence"].startswith(FREE) for row in rows)
    assert sum(p.stat().st_size for p in GOLDEN.rglob("*") if p.is_file()) < 6_000_000


@pytest.mark.parametrize("row", sources(), ids=lambda row: row["file"])
def test_every_golden_file_is_read(row):
    if row["file"] in NO_TRACE or "expected_tracelens" in row["file"]:
        return
    trace = read([GOLDEN / row["file"]])
    assert not trace.is_empty and trace.tool and trace.title
    assert trace.files[0].bytes == (GOLDEN / row["file"]).stat().st_size


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("h200/full.log", "ncu --import full.ncu-rep --csv --page raw"),
        ("h200/set_source.txt", "unrecognised option '--source-level'"),
        ("h200/plain.txt", "no known format"),
        ("h200/ncu_list_sets.txt", "no known format"),
        ("torch_profiler/GOLDEN.json", "no known format"),
        ("torch_profiler/expected_tracelens_h100_qwen_gpu_timeline.csv", "no known format"),
        ("../matmul.sm_90.cubin", "machine code"),
        ("../matmul.sm_90.ptx", "PTX"),
        ("../matmul.gfx942.amdgcn", "AMD assembly"),
        ("../matmul.sm_90.resources.txt", "resources of a cubin"),
    ],
)
def test_what_is_no_profile_is_refused_with_its_name(name, words):
    with pytest.raises(ReadError) as refused:
        read([golden(name)])
    assert words in str(refused.value) and golden(name).name in str(refused.value)
    assert ("workbench code" in str(refused.value)) == name.startswith("../")


def test_the_messages_of_ptxas_of_this_project_are_read():
    (dispatch,) = read([ROOT / "tests" / "golden" / "matmul_spills.sm_90.ptxas.txt"]).dispatches
    assert dispatch.counters["spill_stores"].value > 0


# torch.profiler

TORCH = table("torch_profiler/GOLDEN.json")
# The golden values were computed in floats of 64 bits, which lose some ns of each time, so that
# neighbours merge or part; `exact` computes window, busy time and gaps from the decimal text.
LOST_NS = 60
MERGED = ("tracelens_mi210", "tracelens_sglang", "tracelens_vllm")  # gaps of 1 ns are lost there
WORK = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}


def exact(path):
    """Window and busy time in ns and the number of gaps, from the decimal text."""
    text = gzip.decompress(path.read_bytes()).decode()
    events = json.loads(text, parse_float=Decimal)["traceEvents"]
    work = sorted(
        (round(1000 * Decimal(e["ts"])), round(1000 * (Decimal(e["ts"]) + Decimal(e["dur"]))))
        for e in events
        if e.get("ph") == "X" and e.get("cat") in WORK
    )
    busy, gaps, end = 0, 0, work[0][0]
    for start, stop in work:
        gaps += start > end
        busy += max(0, stop - max(start, end))
        end = max(end, stop)
    return end - work[0][0], busy, gaps


@pytest.mark.parametrize("name", [n for n in TORCH if golden(f"torch_profiler/{n}").exists()])
def test_traces_of_torch_have_their_golden_values(name):
    trace, truth = read([golden(f"torch_profiler/{name}")]), TORCH[name]
    counts = {
        "kernels": [ActivityKind.KERNEL],
        "memcpy": [ActivityKind.COPY],
        "memset": [ActivityKind.SET],
        "runtime": [ActivityKind.CALL, ActivityKind.SYNC],
        "sync_calls": [ActivityKind.SYNC],
    }
    for key, wanted in counts.items():
        assert key not in truth or len(kinds(trace, *wanted)) == truth[key], key
    assert devices(trace) == truth["devices"]
    if not truth["devices"]:
        return
    assert trace.vendor == truth["vendor"]
    times = device_times(trace, truth["devices"][0], launched_only=False)
    assert (times.window, times.busy.length, len(times.gaps)) == exact(
        golden(f"torch_profiler/{name}")
    )
    assert times.launches == truth["kernels_with_launch"]
    assert times.kernel_sum == round(1000 * truth["kernel_sum_us"])
    assert spent(trace, ActivityKind.SYNC) == round(1000 * truth["sync_us"])
    assert times.window == pytest.approx(1000 * truth["window_us"], abs=LOST_NS)
    assert times.busy.length == pytest.approx(1000 * truth["busy_us"], abs=LOST_NS)
    assert 100 * times.utilisation == pytest.approx(truth["util_pct"], abs=1e-3)
    share = truth["launch_eff_kernel_union_pct"]
    assert 100 * times.launch_efficiency == pytest.approx(share, abs=1e-3)
    if truth["gaps"] and not name.startswith(MERGED):
        mean, median, _ = times.gap_statistics()
        assert len(times.gaps) == truth["gaps"]
        assert mean == pytest.approx(1000 * truth["gap_mean_us"], abs=1)
        assert median == pytest.approx(1000 * truth["gap_median_us"], abs=1)


@pytest.mark.parametrize("chip", ["h100", "mi300"])
def test_the_window_of_launched_work_is_tracelens_own(chip):
    """Its timeline takes work with a launch alone, as ours does."""
    text = golden(f"torch_profiler/expected_tracelens_{chip}_qwen_gpu_timeline.csv").read_text()
    truth = {row["type"]: float(row["time ms"]) for row in csv.DictReader(text.splitlines())}
    trace = read([golden(f"torch_profiler/tracelens_{chip}_qwen.json")])
    (device,) = devices(trace)
    times = device_times(trace, device)
    assert times.window / 1e6 == pytest.approx(truth["total_time"], rel=1e-6)
    assert times.busy.length / 1e6 == pytest.approx(truth["busy_time"], rel=1e-6)
    assert times.copies.length / 1e6 == pytest.approx(truth["total_memcpy_time"], rel=1e-3)


def test_an_eager_and_a_graph_trace_of_one_program():
    eager, graph = (
        device_times(read([golden(f"h200/{name}_trace.json")]), "0") for name in ("eager", "graph")
    )
    assert eager.window == 1_108_896 and graph.window == 374_427
    assert 100 * eager.utilisation == pytest.approx(32.07, abs=0.01)
    assert 100 * graph.utilisation == pytest.approx(94.73, abs=0.01)
    assert eager.kernel_count == graph.kernel_count == 33
    assert eager.idle()["host wait"] == pytest.approx(715_200, abs=100)
    assert 100 * graph.sync.length / graph.window == pytest.approx(81.8, abs=0.1)
    assert 100 * graph.sync_exposed.length / graph.window == pytest.approx(4.9, abs=0.1)


def test_kernels_of_a_graph_have_its_launch():
    trace = read([golden("h200/graph_trace.json")])
    launches = trace.activities.launches()
    calls = {launches[i] for i in kinds(trace, ActivityKind.KERNEL)}
    assert len(calls) == 3 and -1 not in calls


def test_events_are_the_same_with_and_without_msgspec(monkeypatch):
    path = golden("torch_profiler/tracelens_h100_bert_small.json")
    with_it = read([path])
    monkeypatch.setitem(sys.modules, "msgspec", None)
    without = read([path])
    assert list(with_it.activities) == list(without.activities)


TIMES = st.one_of(
    st.integers(0, 2**50), st.floats(0, 2**40).map(lambda t: round(t, 3)),
    st.integers(0, 2**40).map(str),
)  # fmt: skip
ARGUMENTS = st.one_of(
    st.none(), st.just([]),
    st.fixed_dictionaries({}, optional={
        "correlation": st.one_of(st.integers(-1, 9), st.just("7")), "device": st.integers(0, 2),
        "stream": st.one_of(st.integers(0, 9), st.just("main")), "bytes": st.integers(0, 9),
        "grid": st.lists(st.integers(1, 9), min_size=2, max_size=3),
        "block": st.lists(st.integers(1, 9), min_size=3, max_size=3),
        "registers per thread": st.integers(1, 255), "shared memory": st.integers(0, 9),
        "other": st.just({"grid": 1}),
    }),
)  # fmt: skip
EVENT = st.fixed_dictionaries(
    {
        "ph": st.sampled_from("XXXi"), "name": st.sampled_from(["k", "cudaLaunchKernel", "Memcpy"]),
        "cat": st.sampled_from(["kernel", "gpu_memcpy", "cuda_runtime", "cpu_op", "ac2g"]),
        "pid": st.integers(0, 2), "tid": st.one_of(st.integers(0, 2), st.just("stream 7")),
        "ts": TIMES,
    },
    optional={"dur": TIMES, "args": ARGUMENTS},
)  # fmt: skip


def activities_or_sentence(path):
    try:
        return list(read([path]).activities)
    except ReadError as error:
        return str(error)


@given(st.lists(EVENT, min_size=1, max_size=6))
def test_any_events_are_the_same_with_and_without_msgspec(events):
    """The first events of a block are read by the standard library in both."""
    head = {"schemaVersion": 1, "deviceProperties": []}
    first = {"ph": "X", "cat": "kernel", "name": "first", "pid": 0, "tid": 7, "ts": 1, "dur": 1}
    filler = [{"ph": "i", "name": "x" * 64}] * 80
    text = json.dumps({**head, "traceEvents": [first, *filler, *events, *events]})
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "t.json"
        path.write_text(text)
        with_it = activities_or_sentence(path)
        patch.setitem(sys.modules, "msgspec", None)
        assert activities_or_sentence(path) == with_it


def test_operations_of_the_host_are_kept_of_small_files_or_of_a_range():
    path = golden("torch_profiler/tracelens_h100_bert_small.json")
    large = ReadLimits(operations_bytes=0)
    whole, none = read([path]), read([path], large)
    named = read([path], large, range_name="aten::addmm")
    assert len(kinds(whole, ActivityKind.OP)) > len(kinds(named, ActivityKind.OP)) > 0
    assert not kinds(none, ActivityKind.OP)
    assert any("host operations were left out" in note for note in none.notes)


def test_ranks_of_a_job_keep_their_devices_apart(tmp_path):
    """Each rank calls its device 0."""
    for rank in range(2):
        event = {"ph": "X", "cat": "kernel", "name": f"k{rank}", "pid": 0, "tid": 7, "ts": rank,
                 "dur": 2, "args": {"device": 0, "stream": 7}}  # fmt: skip
        head = {"schemaVersion": 1, "distributedInfo": {"rank": rank},
                "deviceProperties": [{"id": 0, "name": "NVIDIA X"}]}  # fmt: skip
        (tmp_path / f"{rank}.json").write_text(json.dumps({**head, "traceEvents": [event]}))
    trace = read(sorted(tmp_path.iterdir()))
    assert devices(trace) == ["rank 0, 0", "rank 1, 0"] == list(trace.devices)
    for rank, device in enumerate(devices(trace)):
        (row,) = kernel_rows(trace, [device_times(trace, device)])
        assert row.name == f"k{rank}"
    assert devices(read([tmp_path / "0.json"])) == ["0"]


def test_peak_memory_of_a_memory_timeline():
    """Golden: the sizes are signed, so the peak is that of their running sum."""
    rows = json.loads(
        gzip.decompress(golden("torch_profiler/hta_memory_timeline.raw").read_bytes())
    )
    now = peak = 0
    for _, _, size, _ in rows:
        now += size
        peak = max(now, peak)
    memory = read([golden("torch_profiler/hta_memory_timeline.raw")]).tables["memory"]
    assert memory == {"events": len(rows), "peak_bytes": peak, "end_bytes": now}


# nsys, rocprof, Proton: timelines of other tools

OTHERS = table("golden_timelines.json")


def test_ranges_and_calls_of_rocprofv3_are_told_apart():
    """Of each kind every activity, and none of the other."""
    names = ("sdk2025_marker_api_trace.csv", "sdk2025_hip_trace.csv")
    marked, called = (read([golden(f"rocprofv3/{name}")]) for name in names)
    assert len(kinds(marked, ActivityKind.RANGE)) == len(marked.activities) > 1
    assert kinds(called, ActivityKind.CALL) and not kinds(called, ActivityKind.RANGE)


@pytest.mark.parametrize("name", [n for n in OTHERS if n.startswith("nsys")])
def test_exports_of_nsys_have_their_golden_values(name):
    trace, truth = read([golden(name)]), OTHERS[name]
    assert trace.version == f"schema {truth['schema']}"
    assert len(kinds(trace, ActivityKind.KERNEL)) == truth["kernels"]
    assert len(kinds(trace, ActivityKind.COPY)) == truth["memcpys"]
    assert spent(trace, ActivityKind.KERNEL) == truth["kernel_sum_ns"]
    launched = 0
    for device, known in truth["per_device"].items():
        times = device_times(trace, device, launched_only=False)
        launched += times.launches
        assert (times.window, times.busy.length) == (known["window_ns"], known["busy_ns"])
        assert 100 * times.utilisation == pytest.approx(known["util_pct"], abs=1e-4)
        mean, median, _ = times.gap_statistics()
        assert (len(times.gaps), median) == (known["gaps"], known["gap_median_ns"])
        assert mean == pytest.approx(known["gap_mean_ns"], abs=0.01)
    # The golden value takes a correlation id for that of any process: 11 kernels too many.
    calls = {trace.activities.correlations[i] for i in kinds(trace, ActivityKind.CALL)}
    numbers = [trace.activities.correlations[i] for i in kinds(trace, ActivityKind.KERNEL)]
    assert sum(number in calls for number in numbers) == truth["kernels_with_launch"]
    assert truth["kernels_with_launch"] - launched == (11 if "2gpu" in name else 0)
    sums = {}
    for i in kinds(trace, ActivityKind.KERNEL):
        activity = trace.activities[i]
        count, total = sums.get(activity.name, (0, 0))
        sums[activity.name] = (count + 1, total + activity.duration)
    for name_of, count, total in truth["top"]:
        assert sums[name_of] == (count, total)
    waits = [
        [a.name, a.duration]
        for a in map(trace.activities.__getitem__, kinds(trace, ActivityKind.SYNC))
    ]
    expected = {name_of: total for name_of, _, total in truth["sync_api"]}
    assert {n: sum(d for m, d in waits if m == n) for n, _ in waits} == expected


def test_peaks_of_a_gpu_are_in_base_units():
    (known,) = OTHERS["nsys/mock_rtx3080_schema3.24.14.sqlite"]["gpus"]
    (facts,) = read([golden("nsys/mock_rtx3080_schema3.24.14.sqlite")]).devices.values()
    assert {key: facts[key] for key in known} == known


def test_copies_of_two_devices_of_nsys():
    trace = read([golden("nsys/h100_2gpu_trim_schema3.25.0.sqlite")])
    assert len(kinds(trace, ActivityKind.SET)) == 22


@pytest.mark.parametrize("name", [n for n in OTHERS if n.startswith("rocprofv3")])
def test_tables_of_rocprofv3_have_their_golden_values(name):
    trace, truth = read([golden(name)]), OTHERS[name]
    rows = list(trace.activities)
    assert len(rows) == truth["rows"]
    assert sum(row.duration for row in rows) == truth["kernel_sum_ns"]
    assert max(r.end for r in rows) - min(r.start for r in rows) == truth["window_ns"]
    if name.endswith("rocpd-to-csv.csv"):
        return
    (device,) = devices(trace)
    times = device_times(trace, device)
    assert (times.busy.length, len(times.gaps)) == (truth["busy_ns"], truth["gaps"])
    assert 100 * times.utilisation == pytest.approx(truth["util_pct"], abs=1e-4)
    assert times.gap_statistics()[1] == truth["gap_median_ns"]


def test_grids_of_rocprofv3_are_in_blocks():
    first = read([golden("rocprofv3/sdk2025_kernel_trace.csv")]).activities[0]
    assert first.geometry.grid == (16, 1024, 1) and first.geometry.block == (64, 1, 1)
    assert first.geometry.registers == 8 and first.device == "4" and first.lane == "1"


def test_counters_of_rocprofv3():
    trace = read([golden("rocprofv3/sdk2025_counter_collection.csv")])
    assert {d.counters["SQ_WAVES"].value for d in trace.dispatches} == {16384.0}
    assert trace.dispatches[0].duration_ns == 3200098838483232 - 3200098838431081


def test_samples_of_rocprofv3():
    trace = read([golden("rocprofv3/sdk2025_pc_sampling_stochastic_debug.csv")])
    rows = golden("rocprofv3/sdk2025_pc_sampling_stochastic_debug.csv").read_bytes()
    count = len(gzip.decompress(rows).splitlines()) - 1
    assert sum(d.instructions.total("samples") for d in trace.dispatches) == count
    assert any("waitcnt" in d.instructions.heads for d in trace.dispatches)


def test_json_of_rocprofv3_names_kernels_by_their_symbol():
    trace = read([golden("rocprofv3/tracelens_908_first_2000.json")])
    assert len(kinds(trace, ActivityKind.KERNEL)) == 2000
    assert spent(trace, ActivityKind.KERNEL) == 7_099_883
    assert not [n for n in trace.activities.names.entries if n.startswith("kernel ")]


def test_files_of_one_workload_of_rocprof_compute_are_one_trace():
    names = (
        "pmc_perf.csv",
        "timestamps.csv",
        "sysinfo.csv",
        "roofline.csv",
        "pmc_dispatch_info.csv",
    )
    trace = read([golden(f"rocprof_compute/MI200_{name}") for name in names])
    assert len(trace.dispatches) == 3 and trace.tables["system"]["gpu_arch"] == "gfx90a"
    assert all(len(d.counters) > 400 and d.duration_ns > 0 for d in trace.dispatches)
    assert trace.tables["roofline"][0]["HBMBw"] == 1388.8696


def test_sums_of_proton():
    """time (ns) of the leaves; what Proton itself launched is left out."""
    rows = kernel_rows(read([golden("proton/examples_cuda.json")]))
    assert {(r.name, r.count, r.total_ns, r.device) for r in rows} == {
        ("foo0", 10, 204800, "CUDA 1"),
        ("foo1", 1, 204800, "CUDA 0"),
        ("foo2", 1, 204800, "CUDA 2"),
    }
    names = {r.name for r in kernel_rows(read([golden("proton/examples_triton.json")]))}
    assert names == {"triton_kernel"}


def test_a_proton_trace_begins_at_zero_and_keeps_its_first_kernel():
    trace = read([golden("proton/h100_softmax.chrome_trace")])
    (row,) = kernel_rows(trace, [device_times(trace, "0")])
    assert (row.name, row.count, row.total_ns) == ("_rows", 7, 30049)
    assert not trace.notes and trace.activities[0].start == 0


# ncu

NCU = {
    "gpu__time_duration.sum": (44_544, 186_816, 1_717_728),
    "dram__bytes_read.sum": (134_224_896, 186_625_536, 122_809_856),
    "dram__bytes_write.sum": (46_717_952, 28_370_944, 981_836_288),
    "smsp__inst_executed.sum": (2_686_976, 34_258_944, 72_124_416),
    "launch__registers_per_thread": (26, 200, 255),
}
METRIC_PERCENT = {
    "compute_throughput": (5.77, 86.53, 12.54),
    "memory_throughput": (84.41, 58.81, 80.34),
    "dram_throughput": (84.41, 23.92, 13.36),
    "occupancy_theoretical": (100, 12.5, 12.5),
    "occupancy": (81.70, 12.43, 12.50),
}
STALLED = {
    "instruction_latency": (213.18, 8.55, 39.44),
    "stall_long_scoreboard": (159.38, 1.91, 7.98),
    "stall_barrier": (0, 2.24, 4.56),
}


def test_the_raw_page_of_ncu_has_its_golden_values():
    trace = read([golden("h200/raw_base.csv")])
    assert [d.name for d in trace.dispatches] == ["add", "mm", "mm"]
    for number, dispatch in enumerate(trace.dispatches):
        counters, metrics = exact_counters(dispatch), metric_values(dispatch, "ncu")
        for name, values in NCU.items():
            assert counters[name] == values[number], name
        for name, values in METRIC_PERCENT.items():
            assert 100 * metrics[name].value == pytest.approx(values[number], abs=1e-9)
        for name, values in STALLED.items():
            assert metrics[name].value == values[number]
        assert sum(stall_shares(counters).values()) == pytest.approx(1)
    spilled = exact_counters(trace.dispatches[2])
    assert spilled["sass__inst_executed_register_spilling"] == 44_425_216


@pytest.mark.parametrize("name", ["h200/details.csv", "h200/details.txt"])
def test_the_details_of_ncu_agree_with_its_raw_page(name):
    """Labels are mapped to metrics, and units to those without a prefix."""
    details, raw = read([golden(name)]), read([golden("h200/raw_base.csv")])
    for left, right in zip(details.dispatches, raw.dispatches, strict=True):
        mine, truth = exact_counters(left), exact_counters(right)
        both = [n for n in mine if n in truth]
        assert len(both) > 60 and left.geometry.grid == right.geometry.grid
        for metric in both:  # details are rounded to two places, in a unit with a prefix
            assert mine[metric] == pytest.approx(truth[metric], rel=6e-3, abs=6e-3), metric
        assert left.notes


def test_csv_and_text_of_ncu_hold_the_same():
    left, right = (read([golden(f"h200/details.{end}")]) for end in ("csv", "txt"))
    for a, b in zip(left.dispatches, right.dispatches, strict=True):
        assert {n: c.value for n, c in a.counters.items()} == {
            n: c.value for n, c in b.counters.items()
        }


@pytest.mark.parametrize("name", ["source_sass.csv", "source_cuda_sass.csv"])
def test_the_source_pages_of_ncu_hold_every_instruction(name):
    trace = read([golden(f"h200/{name}")])
    tables = [d.instructions for d in trace.dispatches]
    assert [len(t.texts) for t in tables] == [56, 880, 1576]
    assert [t.total("# Samples") for t in tables] == [5484, 18007, 177548]
    assert [t.total("Instructions Executed") for t in tables] == list(
        NCU["smsp__inst_executed.sum"]
    )
    if "cuda" in name:
        assert tables[0].places[0] == "profile_kernels.py:12"


def test_the_stall_counters_of_guide_3():
    (dispatch,) = read([golden("h200/stall_metrics.csv")]).dispatches
    start, end = "smsp__warps_issue_stalled_", ".avg.pct_of_peak_sustained_active"
    values = {name[len(start) : -len(end)]: c.value for name, c in dispatch.counters.items()}
    assert values == {
        "barrier": 3.27,
        "long_scoreboard": 2.81,
        "short_scoreboard": 0.08,
        "wait": 1.70,
    }


def test_a_refused_metric_is_never_zero():
    trace = read([golden("h200/bad_metric.txt")])
    (counter,) = trace.dispatches[0].counters.values()
    assert (counter.value, counter.state) == (None, "refused")
    assert any(counter.name in note for note in trace.notes)


def test_the_summary_of_ncu():
    trace = read([golden("h200/summary.csv")])
    add, *_ = trace.totals
    assert (add.name, add.count, add.total_ns) == ("add", 1, 44_540)
    assert any("merged" in note for note in trace.notes)


def test_old_details_with_the_programs_output_between():
    (dispatch,) = read([golden("ncu/b200_cublaslt_details.csv.log")]).dispatches
    assert dispatch.duration_ns == 406_240 and dispatch.geometry.grid == (9, 32, 1)
    assert dispatch.name.startswith("cutlass3x_sm100") and len(dispatch.notes) == 8


# Checkers, and programs of others


def test_errors_of_a_checker():
    result = read([golden("h200/oob.log"), golden("h200/oob.xml")]).checker
    assert (result.verdict, result.errors, result.not_printed) == ("fail", 514, 509)
    record = result.records[0]
    assert (record.kernel, record.offset, record.line, record.bytes) == ("oob", 0x160, 5, 16)
    assert (record.thread, record.block, record.file) == ((96, 0, 0), (0, 0, 0), "bad.py")
    alone = read([golden("h200/oob.xml")]).checker
    assert alone.verdict == "fail" and alone.counts_text == "5 errors printed, no summary line"
    assert len(alone.records) == len(result.records) == 5
    assert alone.records[0].offset == 0x160 and alone.records[0].thread == (96, 0, 0)


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_a_clean_log_passes_and_an_empty_xml_says_nothing(tool):
    assert read([golden(f"h200/{tool}.log")]).checker.verdict == "pass"
    assert read([golden(f"h200/{tool}.xml")]).checker.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("name", "tool", "verdict", "errors", "records"),
    [
        ("cmake_pseudo_initcheck_cuda-memcheck.log", "initcheck", "fail", 2, 3),
        ("cmake_pseudo_memcheck_leak.log", "memcheck", "fail", 3, 3),
        ("cmake_pseudo_racecheck_all.log", "racecheck", "fail", 0, 2),
        ("racecheck_mojo_p10.log", "racecheck", "fail", 1, 1),
        ("memcheck_oob_flashattn_a100.log", "memcheck", "fail", None, 1),
        ("tool_failed_no_process.log", "", "inconclusive", None, 0),
    ],
)
def test_logs_of_other_checkers(name, tool, verdict, errors, records):
    result = read([golden(f"compute_sanitizer/{name}")]).checker
    assert (result.tool, result.verdict, result.errors) == (tool, verdict, errors)
    assert len(result.records) == records


def test_places_of_old_and_new_logs():
    (first, _) = read([golden("compute_sanitizer/cmake_pseudo_racecheck_all.log")]).checker.records
    assert (first.kernel, first.file, first.line) == ("test(int*, int*)", "./race.cu", 4)
    assert (first.offset, first.level) == (0x170, "warning")


def test_estimates_of_criterion():
    totals = read([golden("criterion/metal_candle_inference_run1.txt")]).totals
    first = totals[0]
    assert first.name == "kv_cache_update/single_layer_update"
    assert (first.low_ns, first.total_ns, first.high_ns) == (11.586, 11.602, 11.620)
    assert len(totals) == 31 and totals[-1].total_ns == pytest.approx(625_300)


def test_histograms_of_cutracer():
    (dispatch,) = read([golden("cutracer/kernel_cutlass_gemm_s8_def67890_hist.csv")]).dispatches
    assert dispatch.name == "cutlass_gemm_s8"
    assert dispatch.counters["instructions.IMMA"].value == 2 * 16384
    assert dispatch.counters["cycles.BAR"].value == 2 * 12800


def test_events_of_metallic():
    trace = read([golden("metallic/synthetic_metrics.jsonl")])
    partials = next(t for t in trace.totals if t.name == "sample_topk_partials")
    assert partials.kind == ActivityKind.KERNEL and partials.count >= 2
    assert any("events left out" in note for note in trace.notes)
    assert any("0 µs" in note for note in trace.notes)


def test_spills_of_ptxas():
    (dispatch,) = read([golden("ptxas/mmspill_cuda_90.ptxas_v.log")]).dispatches
    values = {name: counter.value for name, counter in dispatch.counters.items()}
    assert values["registers"] == 96 and values["stack_frame"] == 584
    assert (values["spill_stores"], values["spill_loads"]) == (1292, 1036)
    assert dispatch.notes[0].startswith("C7511 Potential Performance Loss")


# Formats that are written here, by their columns


def test_tables_of_rocprof_v1(tmp_path):
    """`grd` is in work-items; ` [clone .kd]` is no part of the name; counters precede the times."""
    path = tmp_path / "results.csv"
    path.write_text(
        '"Index","KernelName","gpu-id","queue-id","queue-index","pid","tid","grd","wgr","lds",'
        '"scr","arch_vgpr","accum_vgpr","sgpr","wave_size","sig","obj","Wavefronts","DispatchNs",'
        '"BeginNs","EndNs","CompleteNs","DurationNs"\n'
        '0,"body(float) [clone .kd]",0,0,0,7,7,65536,256,0,0,20,4,16,64,"0x0","0x7f",2048.0,'
        "100,1000,3500,4000,2500\n"
    )
    (dispatch,) = (trace := read([path])).dispatches
    assert (dispatch.name, dispatch.duration_ns) == ("body(float)", 2500)
    assert dispatch.geometry.grid == (256, 1, 1) and list(dispatch.counters) == ["Wavefronts"]
    assert trace.activities[0].start == 1000


def test_sums_of_rocprof_v1(tmp_path):
    path = tmp_path / "results.stats.csv"
    path.write_text(
        '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n'
        '"body(float) [clone .kd]",10,500,50,99.0\n"hipMemcpy",2,100,50,1.0\n'
    )
    (row,) = kernel_rows(read([path]))
    assert (row.name, row.count, row.total_ns) == ("body(float)", 10, 500)


def test_json_of_rocprof_v1(tmp_path):
    """Values are text, and the first event is empty."""
    events = [
        {},
        {"args": {"name": "0 CPU HIP API"}, "ph": "M", "pid": "2", "name": "process_name"},
        {"args": {"name": "6 GPU0"}, "ph": "M", "pid": "6", "name": "process_name"},
        {"ts": "10", "dur": "5", "pid": "2", "tid": "1", "ph": "X", "name": "hipLaunchKernel"},
        {
            "ts": "20", "dur": "3", "pid": "6", "tid": "0", "ph": "X", "name": "body.kd",
            "args": {"BeginNs": "20123", "EndNs": "23456"},
        },
    ]  # fmt: skip
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = read([path])
    assert trace.tool == "rocprof" and devices(trace) == ["0"]
    (kernel,) = (trace.activities[i] for i in kinds(trace, ActivityKind.KERNEL))
    assert (kernel.name, kernel.start, kernel.end) == ("body", 20123, 23456)


def test_protons_own_traces(tmp_path):
    path = tmp_path / "trace.json"
    kernel = {"name": "k", "cat": "kernel", "ph": "X", "ts": 1.5, "dur": 2.25, "tid": "Stream 7",
              "args": {"call_stack": ["ROOT", "k"]}}  # fmt: skip
    path.write_text(json.dumps({"displayTimeUnit": "us", "traceEvents": [kernel]}))
    trace = read([path])
    assert trace.tool == "proton" and trace.activities[0].duration == 2250
    inside = {"name": "load", "ph": "X", "ts": 1.0, "dur": 0.5, "pid": "mm Core3 CTA7",
              "tid": "warp 2", "cat": "scope"}  # fmt: skip
    path.write_text(json.dumps({"traceEvents": [inside]}))
    trace = read([path])
    assert trace.activities[0].kind == ActivityKind.RANGE
    assert any("1 GHz" in note for note in trace.notes)


def test_tables_of_nsys_stats(tmp_path):
    path = tmp_path / "stats.csv"
    path.write_text(
        "Processing [report.sqlite] with [cuda_gpu_kern_sum.py]...\n\n"
        "Time (%),Total Time (us),Instances,Avg (us),Med (us),Min (us),Max (us),StdDev (us),Name\n"
        '75.0,30.5,2,15.25,15.25,10.0,20.5,1.0,"void k<float>(int, int)"\n\n'
        "Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
        "100.0,4000,2,2000,2000,1000,3000,1.0,cudaStreamSynchronize\n"
    )
    kernel, call = read([path]).totals
    assert (kernel.name, kernel.total_ns, kernel.count) == ("void k<float>(int, int)", 30_500, 2)
    assert (call.kind, call.total_ns) == (ActivityKind.SYNC, 4000)


def test_traces_of_nsys_stats_out_of_order(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,Bytes (MB),Device,"
        "Ctx,Strm,Name\n"
        "500,20,2,8,1,1,128,1,1,32,,GPU (0),1,7,late\n"
        "100,50,1,,,,,,,,1.5,GPU (0),1,7,[CUDA memcpy HtoD]\n"
    )
    trace = read([path])
    times = device_times(trace, "GPU (0)")
    assert (times.window, times.copied_bytes) == (420, 1_500_000)
    assert trace.activities[0].geometry.grid == (8, 1, 1)


def rocpd(path, views=None):
    """Write a database with the tables and views of rocpd."""
    with sqlite3.connect(path) as base:
        base.execute(
            "CREATE TABLE rocpd_kernel_dispatch_0a(id, name, start, end, agent, stream, pid, "
            "stack, gx, gy, gz, wx, wy, wz)"
        )
        row = (1, "add.kd", 100, 180, 4, 1, 77, 9, 1024, 1, 1, 64, 1, 1)
        base.execute(f"INSERT INTO rocpd_kernel_dispatch_0a VALUES {row}")
        base.execute(
            views
            or "CREATE VIEW kernels AS SELECT name, start, end, agent AS agent_abs_index, stream AS"
            " "
            "stream_id, pid, stack AS stack_id, gx AS grid_x, gy AS grid_y, gz AS grid_z, wx AS "
            "workgroup_x, wy AS workgroup_y, wz AS workgroup_z FROM rocpd_kernel_dispatch_0a"
        )
    base.close()


def test_a_rocpd_database_is_read_by_its_views(tmp_path):
    path = tmp_path / "out.db"
    rocpd(path)
    (kernel,) = read([path]).activities
    assert (kernel.name, kernel.duration, kernel.device) == ("add", 80, "4")
    assert kernel.geometry.grid == (16, 1, 1) and kernel.process == "77"


XCTRACE = """<?xml version="1.0"?>
<trace-query-result><node xpath='//trace-toc[1]/run[1]/data[1]/table[1]'>
<schema name="metal-gpu-intervals"><col><mnemonic>start</mnemonic></col>
<col><mnemonic>duration</mnemonic></col><col><mnemonic>channel-name</mnemonic></col>
<col><mnemonic>depth</mnemonic></col><col><mnemonic>state</mnemonic></col>
<col><mnemonic>process</mnemonic></col><col><mnemonic>label</mnemonic></col></schema>
<row><start-time id="1" fmt="00:00.001">1000</start-time><duration id="2" fmt="5 µs">5000</duration>
<name ref="9"/><depth id="3">0</depth><state id="4" fmt="Active">1</state>
<process id="5" fmt="app (77)"/><label id="6" fmt="softmax">x</label></row>
<row><start-time id="7">9000</start-time><duration ref="2"/><name id="9" fmt="Compute">C</name>
<depth ref="3"/><state ref="4"/><process ref="5"/><label ref="6"/></row>
<row><start-time id="8">9100</start-time><duration ref="2"/><name ref="9"/><depth id="11">1</depth>
<state ref="4"/><process ref="5"/><label ref="6"/></row>
</node></trace-query-result>"""


def test_rows_of_xctrace_refer_backward_and_forward(tmp_path):
    path = tmp_path / "export.xml"
    path.write_text(XCTRACE)
    first, second = read([path]).activities
    assert (first.name, first.start, first.duration) == ("softmax", 1000, 5000)
    assert (second.start, second.duration, second.lane) == (9000, 5000, "Compute")
    assert first.lane == "Compute" and first.process == "app (77)"


def test_an_empty_recording_of_xctrace_is_an_error(tmp_path):
    path = tmp_path / "export.xml"
    path.write_text(XCTRACE.split("<row>")[0] + "</node></trace-query-result>")
    with pytest.raises(ReadError, match="no row of metal-gpu-intervals"):
        read([path])


# One body for all readers


def test_readers_of_both_folders_are_found_by_their_names():
    cloned = EXAMPLES / "readers"
    files = {path.stem: path for path in cloned.glob("*.py")}
    own = {path.stem for path in (ROOT / "workbench/traces/readers").glob("[!_]*.py")}
    assert files and not own & set(files) and own | set(files) == set(readers())
    for name, path in files.items():
        module = import_module(f"workbench.traces.readers.{name}")
        assert Path(module.__file__) == path and module.READER is readers()[name]
        with pytest.raises(CatalogError, match=f"There is no kernel '{name}'.* Known: "):
            spec_of(name)


@pytest.mark.parametrize("name", sorted(readers()))
def test_every_reader_has_a_title_of_its_own(name):
    reader = readers()[name]
    assert reader.title and callable(reader.sniff) and callable(reader.read)
    assert sum(other.title == reader.title for other in readers().values()) == 1


def test_files_of_two_tools_are_refused():
    with pytest.raises(ReadError, match="of one tool"):
        read([golden("h200/oob.log"), golden("h200/stall_metrics.csv")])
