"""Files in the shape of public bug reports: the value that each report calls right, or a refusal.

The values were worked out apart from the readers, as unions of intervals and sums; see
`tests/golden/traces/cases`.
"""

import gzip
import json
import zipfile
from pathlib import Path

import pytest
from databases import database

from workbench.cli import main
from workbench.reports.figures.trace import lanes
from workbench.traces.host_work import range_rows
from workbench.traces.readers import read
from workbench.traces.readers.inputs.source import ReadError
from workbench.traces.trace import ActivityKind
from workbench.traces.trace_summary import summarise

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
    assert "synchronisation, at most" not in out and "the time is in the kernels" not in out
    assert "incomplete. Not rated" in out and out.strip().splitlines()[-1].startswith("Not rated")
    known = kpis(summary(name))
    assert known["GPU utilisation"].value is None and known["idle: host wait"].value is None
    code, out = said(capsys, "diagnose", case(name))
    assert code == 2 and "incomplete" in out and "nothing found" not in out


def test_calls_and_kernels_of_two_tables_are_joined():
    of = summary("nsys_cuda_gpu_trace.csv", "nsys_cuda_api_trace.csv")
    assert of.devices[0].times.launches == 10
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
    assert "1 of 5 frames left out" in note and "flops16 is not a finite number" in note


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


# Work that is not known, and formats that are refused by name


STRINGS = ["id", "value"], [(1, "k"), (2, "cudaLaunchKernel")]
WORK_COLUMNS = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid", "shortName"]


def kernels_of(pid, count=10, shift=0):
    return [(10**6 * n + shift, 10**6 * n + shift + 4 * 10**5, 0, 7, n, pid << 24, 1)
            for n in range(1, count + 1)]  # fmt: skip


def test_a_table_of_a_device_that_is_not_known_is_named(tmp_path, capsys):
    path = database(
        tmp_path / "t.sqlite", StringIds=STRINGS,
        CUPTI_ACTIVITY_KIND_KERNEL=(WORK_COLUMNS, kernels_of(7)),
        CUPTI_ACTIVITY_KIND_NEW_WORK=(["start", "end", "deviceId"], [(1, 2, 0)] * 3),
        CUPTI_ACTIVITY_KIND_SYNCHRONIZATION=(["start", "end", "deviceId"], [(1, 2, 0)]),
    )  # fmt: skip
    out = said(capsys, "read", path)[1]
    last = out.strip().splitlines()[-1]
    assert "3 records of the table CUPTI_ACTIVITY_KIND_NEW_WORK may be work of a device" in last
    assert "SYNCHRONIZATION" not in last and "nothing found" not in out


def test_processes_without_a_table_of_gpus_have_a_device_each(tmp_path):
    path = database(
        tmp_path / "t.sqlite", StringIds=STRINGS,
        CUPTI_ACTIVITY_KIND_KERNEL=(WORK_COLUMNS, kernels_of(7) + kernels_of(8, shift=500_000)),
    )  # fmt: skip
    of = summarise(read([path]))
    assert [each.device for each in of.devices] == ["process 7, 0", "process 8, 0"]
    assert {round(each.times.utilisation, 3) for each in of.devices} == {0.426}
    assert any("does not say which GPU" in note for note in of.trace.notes)


@pytest.mark.parametrize(
    ("names", "words"),
    [(["rocpd_op", "rocpd_api", "rocpd_string"], "rocmProfileData"),
     (["CUPTI_ACTIVITY_KIND_KERNEL", "StringTable"], "nvprof")],
)  # fmt: skip
def test_databases_of_older_tools_are_refused_by_name(tmp_path, names, words):
    path = database(tmp_path / "t.db", **{name: (["id"], [(1,)]) for name in names})
    with pytest.raises(ReadError, match=words) as error:
        read([path])
    assert str(error.value).count(". ") == 0 and str(error.value).endswith(".")


@pytest.mark.parametrize(
    ("event", "words"),
    [({"cat": "gpu_op", "args": {}}, "category gpu_op"),
     ({"cat": "npu_work", "args": {"device": 0}}, "category npu_work")],
)  # fmt: skip
def test_a_category_of_a_device_that_is_not_known_is_named(tmp_path, event, words):
    base = {"ph": "X", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 2}
    known = {**base, "cat": "kernel", "args": {"device": 0, "stream": 7}}
    text = json.dumps({"schemaVersion": 1, "traceEvents": [known, {**base, **event}]})
    (tmp_path / "t.json").write_text(text)
    of = summarise(read([tmp_path / "t.json"]))
    assert f"1 record of {words} may be work of a device" in of.lacks[0].reason


def test_a_copy_to_the_host_is_of_the_gpu_in_rocpd(tmp_path):
    """Columns as data_views.sql of rocprofiler-sdk has them; the message of a range is JSON."""
    copy = ["name", "start", "end", "dst_agent_abs_index", "dst_agent_type",
            "src_agent_abs_index", "src_agent_type", "pid", "stack_id", "size"]  # fmt: skip
    path = database(
        tmp_path / "t.db", rocpd_kernels=(["x"], []),
        kernels=(["name", "start", "end", "agent_abs_index", "stream_id", "pid", "stack_id"],
                 [("k", 1000 * n, 1000 * n + 500, 4, 0, 1, n) for n in range(1, 11)]),
        memory_copies=(copy, [("MEMORY_COPY_DEVICE_TO_HOST", 20_000, 21_000, 0, "CPU", 4, "GPU",
                               1, 50, 64),
                              ("MEMORY_COPY_HOST_TO_HOST", 22_000, 23_000, 0, "CPU", 0, "CPU",
                               1, 51, 64)]),
        regions=(["name", "start", "end", "category", "tid", "pid", "stack_id", "extdata"],
                 [("roctxThreadRangeA", 900, 12_000, "MARKER_CORE_RANGE_API", 1, 1, 60,
                   '{"message": "decode"}')]),
    )  # fmt: skip
    of = summarise(read([path]))
    assert [each.device for each in of.devices] == ["4"] and kpis(of)["copies"].value == 1
    assert [row.name for row in range_rows(of.trace, None, of.launches)] == ["decode"]


def test_two_runs_of_rocprofv3_in_one_folder_stay_two(tmp_path):
    heads = "Kind,Agent_Id,Stream_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp\n"
    calls = "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp\n"
    for pid, shift in ((4711, 0), (4712, 50_000)):
        starts = [(n, 10**5 * n + shift) for n in range(1, 11)]
        kernels = [f"KERNEL_DISPATCH,Agent 4,0,k,{n},{at},{at + 40000}" for n, at in starts]
        api = [f"HIP_RUNTIME_API,hipLaunchKernel,{pid},1,{n},{at - 9000},{at - 6000}"
               for n, at in starts]  # fmt: skip
        (tmp_path / f"{pid}_kernel_trace.csv").write_text(heads + "\n".join(kernels))
        (tmp_path / f"{pid}_hip_api_trace.csv").write_text(calls + "\n".join(api))
    of = summarise(read([tmp_path]))
    assert [each.device for each in of.devices] == ["4711, 4", "4712, 4"]
    for number in range(2):
        assert kpis(of, number)["GPU utilisation"].value == pytest.approx(400 / 940)
        assert kpis(of, number)["launch delay, median"].value == pytest.approx(6e-6)


def test_kernels_before_their_launches_are_not_rated(tmp_path):
    events = []
    for n in range(1, 11):
        args = {"correlation": n}
        events += [
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9,
             "ts": 100 * n, "dur": 4, "args": args},
            {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 100 * n - 11,
             "dur": 25, "args": args | {"device": 0, "stream": 7}},
        ]  # fmt: skip
    (tmp_path / "t.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    of = summarise(read([tmp_path / "t.json"]))
    assert "10 of 10 kernels begin before the call" in of.lacks[0].reason
    assert not any(kpi.met for kpi in kpis(of).values())


def test_a_percentage_far_above_100_is_left_out(tmp_path):
    heads = '"ID","Kernel Name","Block Size","Grid Size","Device","CC",'
    names = '"sm__throughput.avg.pct_of_peak_sustained_elapsed","l1tex__t_sector_hit_rate.pct"'
    rows = [f'"{n}","k","(1, 1, 1)","(1, 1, 1)","0","9.0","{value}","101.2"'
            for n, value in enumerate(["55.5", "84,414,640", "-3", "60"])]  # fmt: skip
    text = "\n".join([heads + names, '"","","","","","","%","%"', *rows])
    (tmp_path / "raw.csv").write_text(text)
    trace = read([tmp_path / "raw.csv"])
    name = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
    assert [d.counters[name].value for d in trace.dispatches] == [55.5, None, None, 60]
    assert any("2 of 8 percentages left out" in note for note in trace.notes)


def test_a_stored_run_of_an_incomplete_trace_is_not_diagnosed(capsys, tmp_path):
    database = ("--database", f"sqlite:///{tmp_path / 'h.db'}")
    name = "hyperloom1047_graph_replays_without_kernels.json"
    said(capsys, "read", case(name), "--out", tmp_path / "r", *database)
    (run,) = [path.name for path in (tmp_path / "r").iterdir() if path.is_dir()]
    code, out = said(capsys, "diagnose", run, *database)
    assert code == 2 and "50 of 54 launches" in out and "nothing found" not in out


def test_ranks_in_a_zip_file_stay_apart_and_a_file_named_twice_is_read_once(tmp_path):
    with zipfile.ZipFile(tmp_path / "ranks.zip", "w") as packed:
        for rank in range(2):
            path = case(f"hta107_ranks_no_info/rank{rank}/trace.json")
            packed.writestr(f"rank{rank}/trace.json", gzip.decompress(path.read_bytes()))
    of = summarise(read([tmp_path / "ranks.zip"]))
    assert [each.device for each in of.devices] == ["rank0/trace.json, 0", "rank1/trace.json, 0"]
    once = case("cmp_async_fast.json")
    twice = read([once, once])
    assert len(twice.activities) == len(read([once]).activities)
    assert any("named twice" in note for note in twice.notes)


def test_a_slower_second_rank_is_slow(capsys, tmp_path):
    """The figures of the first device alone were compared."""
    for side, factor in (("before", 1), ("after", 2)):
        for rank in range(2):
            packed = case(f"hta107_ranks_no_info/rank{rank}/trace.json").read_bytes()
            data = json.loads(gzip.decompress(packed))
            data["distributedInfo"] = {"rank": rank}
            for event in data["traceEvents"]:
                if rank == 1:
                    event["ts"] = (event["ts"] - 1.72e15) * factor + 1.72e15
                    event["dur"] *= factor
            (tmp_path / side / str(rank)).mkdir(parents=True)
            (tmp_path / side / str(rank) / "t.json").write_text(json.dumps(data))
    code, out = said(capsys, "compare", tmp_path / "before", tmp_path / "after")
    assert code == 3 and "Suspected SLOW: device rank 1, 0: the total time is" in out


DAMAGED = {  # lines of a format, and one of them damaged: by format
    "metallic.jsonl": (
        '{"timestamp":1,"event":{"type":"GpuOpCompleted","data":{"op_name":"a","duration_us":4}}}',
        '{"timestamp":1,"event":{"type":"GpuOpCompleted","data":{"op_name":"a","duration_us":-4}}}',
        "",
    ),
    "criterion.txt": (
        "attention               time:   [1.10 ms 1.20 ms 1.30 ms]",
        "attention               time:   [1.40 ms 1.20 ms 1.30 ms]",
        "",
    ),
    "k_hist.csv": (
        "0,0,HMMA,4,40",
        "0,0,HMMA,four,40",
        "warp_id,region_id,instruction,count,cycles",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("bad", [1, 9])
def test_one_policy_holds_for_the_small_formats(tmp_path, name, bad):
    """A damaged record of ten is left out and told; nine of ten are refused in a sentence."""
    good, damaged, head = DAMAGED[name]
    lines = [*([head] if head else []), good, *[damaged] * bad, *[good] * (9 - bad)]
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    if bad == 9:
        with pytest.raises(ReadError, match=r"9 of 10"):
            read([path])
        return
    trace = read([path])
    assert any("1 of 10" in note and "left out" in note for note in trace.notes)


def test_a_gzip_file_without_its_end_is_read_as_far_as_the_format_may_be_cut(tmp_path):
    """As a plain file that is cut; a table is refused, as nothing tells how much it lacks."""
    events = [
        {"ph": "X", "cat": "kernel", "name": f"k{i}", "pid": 0, "tid": 7, "ts": 100 + 10 * i,
         "dur": 5 + i % 3, "args": {"device": 0, "stream": 7, "correlation": i + 1}}
        for i in range(500)
    ]  # fmt: skip
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "H100"}]}
    data = gzip.compress(json.dumps({**head, "traceEvents": events}).encode())
    (path := tmp_path / "cut.json.gz").write_bytes(data[: len(data) // 2])
    trace = read([path])
    assert 0 < len(trace.activities) < 500
    assert any("its end is missing" in note for note in trace.notes)
    rows = "".join(f"{i % 32},0,OP{i},{i * 7919 % 1000 + 1},40\n" for i in range(2000))
    data = gzip.compress(b"warp_id,region_id,instruction,count,cycles\n" + rows.encode())
    (path := tmp_path / "k_hist.csv.gz").write_bytes(data[:-20])
    with pytest.raises(ReadError, match="its packed data ends early"):
        read([path])


def test_the_timeline_has_no_idle_time_where_work_is_missing():
    """A gap may be full of kernels that are not in the file."""
    complete, lacking = (
        summarise(read([case(f"{name}.json")])).devices[0]
        for name in ("xpu5284_runtime_category", "hyperloom1047_graph_replays_without_kernels")
    )
    names = [
        {lane.name for lane in lanes(each, each.times.start, each.times.end)}
        for each in (complete, lacking)
    ]
    assert "idle" in names[0] and "idle" not in names[1]
