"""Files in the shape of public bug reports: the value that each report calls right, or a refusal.

The values were worked out apart from the readers, as unions of intervals and sums; see
`tests/golden/traces/cases`.
"""

import gzip
import json
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.data.host_work import range_rows
from workbench.data.trace import ActivityKind
from workbench.data.trace_summary import summarise
from workbench.readers import read
from workbench.readers.inputs.source import ReadError

pytestmark = pytest.mark.unit

CASES = Path(__file__).parents[1] / "golden" / "traces" / "cases"


def case(name):
    packed = CASES / f"{name}.gz"
    return packed if packed.exists() else CASES / name


def summary(*names):
    return summarise(read([case(name) for name in names]))


def kpis(of, device=0):
    return {kpi.name: kpi for kpi in of.devices[device].kpis}


def said(capsys, *words):
    capsys.readouterr()
    code = main([str(word) for word in words])
    return code, capsys.readouterr().out


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


# Device, KPI and value of each file whose timeline is whole
WHOLE = [
    ("xpu5284_runtime_category.json", 1, {"idle: host wait": 450e-6, "GPU utilisation": 0.526}),
    ("tracelens167_fused_ranks.json", 4, {"GPU utilisation": 0.270, "idle: host wait": 675e-6}),
    ("hta107_ranks_no_info", 2, {"GPU utilisation": 0.426, "idle: host wait": 540e-6}),
    ("nsys_graph_trace_default.sqlite", 1,
     {"GPU utilisation": 0.917, "synchronisation, exposed": 0.018, "kernel count": 20}),
    ("nsys_two_processes_same_ordinal.sqlite", 2, {"GPU utilisation": 0.426}),
    ("nsys_cuda_gpu_trace.csv", 1,
     {"kernel count": 10, "copies": 1, "copies, exposed": 0.0018, "mean kernel time": 50e-6}),
    ("rocprofv3_json_copy_to_host.json", 1, {"kernel count": 10, "copies": 1}),
    ("rocpd2csv_kernel_trace.csv", 1, {"kernel count": 10, "GPU utilisation": 0.526}),
    ("jax_gpu_perfetto6251.trace.json.gz", 1, {"mean kernel time": 50e-6, "copies": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "devices", "values"), WHOLE)
def test_the_right_values_are_told(name, devices, values):
    of = summary(name)
    assert len(of.devices) == devices and not of.lacks
    for number in range(devices):
        known = kpis(of, number)
        for kpi, value in values.items():
            assert known[kpi].value == pytest.approx(value, rel=2e-2, abs=5e-4 * (value < 1e-1))


# Files from which records were left out: their values are told, and none is rated
LEFT_OUT = [
    ("kineto109_zero_timestamps.json", "3 of 13 device activities left out, as their times are z"),
    ("pytorch124080_unfinished_op_overflow.json", "1 of 11 host events left out"),
    ("rocprofv3_end_before_start.csv", "1 of 11 device activities left out, as they end before"),
    ("nsys_kernel_null_end.sqlite", "1 of 11 device activities left out, as a value in them is m"),
]


@pytest.mark.parametrize(("name", "note"), LEFT_OUT)
def test_bad_records_are_left_out_and_nothing_is_rated(name, note):
    of = summary(name)
    known = kpis(of)
    assert known["total time"].value == pytest.approx(950e-6)
    assert known["GPU utilisation"].value == pytest.approx(0.526, abs=1e-3)
    assert any(note in each for each in of.trace.notes) and of.lacks
    assert not any(kpi.met for kpi in known.values())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hyperloom1047_graph_replays_without_kernels.json",
         ["50 of 54 launches have no work in the file", "hipGraphLaunch 50", "kernel of a graph"]),
        ("tracelens972_steps_without_kernels.json",
         ["30 of 41 launches have no work", "30 of 32 ranges ProfilerStep# launched none of it",
          "one launch of Cijk_decode holds 99.7 %"]),
    ],
)  # fmt: skip
def test_launches_without_work_are_told_and_no_cause_of_idle_time_is(capsys, name, words):
    code, out = said(capsys, "read", case(name))
    assert code == 0 and all(word in out for word in words)
    assert "synchronisation, at most" not in out and "hold the time" not in out
    assert "incomplete. Not rated" in out and out.strip().splitlines()[-1].startswith("Not rated")
    known = kpis(summary(name))
    assert known["GPU utilisation"].value is None and known["idle: host wait"].value is None
    code, out = said(capsys, "diagnose", case(name))
    assert code == 2 and "incomplete" in out and "nothing found" not in out


def test_calls_and_kernels_of_two_tables_are_joined():
    of = summary("nsys_cuda_gpu_trace.csv", "nsys_cuda_api_trace.csv")
    assert of.devices[0].times.launched == 10
    assert kpis(of)["idle: host wait"].value == pytest.approx(450e-6)


def test_kernels_and_copies_of_rocpd2csv_are_joined():
    of = summary("rocpd2csv_kernel_trace.csv", "rocpd2csv_memory_copy_trace.csv")
    assert list(of.trace.devices) == ["2"] and kpis(of)["copies"].value == 1


@pytest.mark.parametrize(
    ("name", "counts"),
    [("nsys_nvtx_events_v3.sqlite", {"decode": 10}),
     ("rocprofv3_roctx_messages.json", {"decode": 5, "prefill": 5})],
)  # fmt: skip
def test_ranges_have_the_names_of_the_program(capsys, name, counts):
    of = summary(name)
    rows = range_rows(of.trace, of.devices[0].times, of.launches)
    assert {row.name: row.count for row in rows} == counts
    assert said(capsys, "read", case(name), "--range", "decode")[0] == 0


def test_sums_are_of_the_kind_that_the_file_names():
    totals = {t.kind: t.total_ns for t in read([case("nsys_cuda_api_gpu_sum.csv")]).totals}
    assert totals == {
        ActivityKind.KERNEL: 600_000, ActivityKind.CALL: 300_000, ActivityKind.COPY: 100_000,
    }  # fmt: skip
    totals = read([case("rocprof_stats_kernel_named_hip.csv")]).totals
    assert {t.kind for t in totals} == {ActivityKind.KERNEL}
    assert (sum(t.count for t in totals), sum(t.total_ns for t in totals)) == (20, 800_000)


def test_each_process_of_a_mac_has_its_own_window():
    of = summary("xctrace_gpu_intervals_two_processes.xml")
    shares = {each.device: each.times.utilisation for each in of.devices}
    assert shares["app (42), gpu"] == pytest.approx(0.323, abs=1e-3)
    with pytest.raises(ReadError, match=r"life-cycle-period \(10 rows\)"):
        read([case("xctrace_life_cycle_only.xml")])


def test_numbers_of_ncu_in_other_spellings():
    counters = read([case("ncu_metrics_de.csv")]).dispatches[0].counters
    assert counters["gpu__time_duration.sum"].value == pytest.approx(44_544.0)
    assert counters["dram__throughput.avg.pct_of_peak_sustained_elapsed"].value == 84.41464
    counters = read([case("ncu_raw_instances.csv")]).dispatches[0].counters
    assert counters["smsp__inst_executed.sum"].value == 1_048_576


def test_a_warning_of_racecheck_is_no_pass(capsys):
    code, out = said(capsys, "read", case("racecheck_warning_only.log"))
    assert code == 1 and "racecheck: fail (0 errors, 1 warning)" in out


def test_frames_of_proton():
    def total(name):
        return sum(t.total_ns for t in read([case(name)]).totals if t.kind == ActivityKind.KERNEL)

    assert total("proton10131_launch_metadata_named.hatchet") == 750_000
    assert total("proton_nan_metric.hatchet") == 250_000
    note = read([case("proton_nan_metric.hatchet")]).notes[0]
    assert "1 of 5 frames left out" in note and "flops16 is no finite number" in note


@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        ("cmp_async_fast.json", "cmp_async_slow.json", ["Suspected SLOW", "400.00 µs after 200"]),
        ("cmp_async_slow.json", "cmp_async_fast.json", ["Suspected FAST"]),
        ("cmp_async_fast.json", "cmp_async_fast.json", ["SAME"]),
        ("cmp_10_iterations_no_steps.json", "cmp_5_iterations_no_steps.json",
         ["INCONCLUSIVE", "50 launches before and 25 after"]),
        ("cmp_5_iterations_no_steps.json", "cmp_10_iterations_no_steps.json", ["INCONCLUSIVE"]),
        ("kineto109_zero_timestamps.json", "hta107_ranks_no_info/rank0/trace.json",
         ["INCONCLUSIVE", "3 of 13"]),
        ("cmp_async_fast.json", "nsys_graph_trace_default.sqlite",
         ["INCONCLUSIVE", "no kernel and no numbered range in common"]),
    ],
)  # fmt: skip
def test_verdicts_of_compare_are_of_the_device_and_of_the_same_work(capsys, left, right, words):
    code, out = said(capsys, "compare", case(left), case(right))
    assert all(word in out for word in words)
    assert code == (0 if "FAST" in words[0] or words[0] == "SAME" else 3)


# Merged files of several ranks


def merged(pid_of, **more):
    """Events of four ranks with the same correlation ids, whose kernels take a quarter each."""
    events = []
    for rank in range(4):
        for n in range(10):
            begin = 1_720_000_000_000_000 + 100 * n + 25 * rank
            args = {"correlation": n + 1} | {k: f(rank) for k, f in more.items()}
            events += [
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1,
                 "pid": pid_of(rank, 100), "ts": begin, "dur": 4, "args": args},
                {"ph": "X", "cat": "kernel", "name": "k", "pid": pid_of(rank, 0), "tid": 7,
                 "ts": begin + 10, "dur": 25, "args": args | {"device": 0, "stream": 7}},
            ]  # fmt: skip
    return json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events})


@pytest.mark.parametrize(
    "text",
    [merged(lambda rank, pid: f"[TP{rank:02}] {pid}"),
     merged(lambda rank, pid: pid + rank * 10**6),
     merged(lambda rank, pid: pid + rank * 10**4, rank=lambda rank: rank)],
)  # fmt: skip
def test_merged_ranks_are_split(tmp_path, text):
    (tmp_path / "merged.json").write_text(text)
    of = summarise(read([tmp_path / "merged.json"]))
    assert [round(each.times.utilisation, 3) for each in of.devices] == [0.270] * 4
    assert {each.times.idle()["host wait"] for each in of.devices} == {675_000}


def test_merged_ranks_that_cannot_be_told_apart_are_refused(tmp_path):
    text = merged(lambda rank, pid: pid + rank if pid else 0)
    (tmp_path / "merged.json").write_text(text)
    with pytest.raises(ReadError, match="no kernel tells its process"):
        read([tmp_path / "merged.json"])


def test_ranks_in_files_of_one_name_have_their_own_launches(tmp_path):
    for rank in range(2):
        packed = case(f"hta107_ranks_no_info/rank{rank}/trace.json").read_bytes()
        data = json.loads(gzip.decompress(packed))
        data["distributedInfo"] = {"rank": rank}
        (tmp_path / f"rank{rank}").mkdir()
        (tmp_path / f"rank{rank}" / "trace.json").write_text(json.dumps(data))
    of = summarise(read([tmp_path]))
    assert [each.device for each in of.devices] == ["rank 0, 0", "rank 1, 0"]
    for number in range(2):
        assert kpis(of, number)["idle: host wait"].value == pytest.approx(540e-6)
        assert kpis(of, number)["launch delay, median"].value == pytest.approx(6e-6)
