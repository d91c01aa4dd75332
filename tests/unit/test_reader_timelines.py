"""Small timelines, drawn, written as each tool writes them, with damage, and read again: every KPI
is that of the drawn truth, and busy and idle time make up the window."""

import csv
import json
import sqlite3
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from databases import database
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.traces.readers import read
from workbench.traces.readers.inputs.source import ReadError
from workbench.traces.trace_summary import summarise

pytestmark = pytest.mark.unit

BASE = 1_720_000_000_000_000_000  # ns: the epoch's, as torch and nsys with --show-host-time write
LAUNCH_NS = 3_000


@dataclass(frozen=True)
class Kernel:
    """A kernel of the truth, with the launch that it has in the file."""

    start: int
    end: int
    stream: int
    id: int
    launch: int  # start of its call

    @property
    def name(self):
        return f"kernel_{self.id % 3}"


@st.composite
def timelines(draw):
    """Kernels on one or two streams, without overlap in a stream, in whole µs."""
    kernels, number = [], 0
    for stream in range(draw(st.integers(1, 2))):
        at = BASE + 1000 * draw(st.integers(20, 400))
        for gap, length in draw(
            st.lists(st.tuples(st.integers(0, 300), st.integers(1, 200)), min_size=8, max_size=14)
        ):
            start = at + 1000 * gap
            number += 1
            early = 1000 * draw(st.integers(4, 20))
            kernels.append(Kernel(start, start + 1000 * length, stream, number, start - early))
            at = start + 1000 * length
    return kernels


def truth(kernels):
    """Window, busy time and gaps in ns, by the edges of the kernels."""
    edges = sorted({t for k in kernels for t in (k.start, k.end)})
    runs = [(a, b, any(k.start <= a and b <= k.end for k in kernels)) for a, b in pairwise(edges)]
    gaps, last = [], True
    for a, b, busy in runs:
        if not busy:
            gaps = [*gaps[:-1], gaps[-1] + b - a] if gaps and not last else [*gaps, b - a]
        last = busy
    return edges[-1] - edges[0], sum(b - a for a, b, busy in runs if busy), gaps


# Damage: what the record of one kernel becomes in the file, and the truth without it


def zero(kernel):
    return replace(kernel, start=0, end=0)


def backward(kernel):
    return replace(kernel, start=kernel.end, end=kernel.start - 1000)


def far(kernel):
    return replace(kernel, start=kernel.start + 10**16, end=kernel.end + 10**16)


def early(kernel):
    return replace(kernel, start=kernel.start - BASE + 1, end=kernel.end - BASE + 1)


def endless(kernel):
    return replace(kernel, end=kernel.end + 10**13)


def unreadable(kernel):
    return replace(kernel, start=None)


DAMAGES = [zero, backward, far, early, endless, unreadable]


# Writers: the files of each tool, of kernels as they are in the file and of all launches


def us(ns):
    return "x" if ns is None else ns / 1000 if ns % 1000 else ns // 1000


def difference(kernel):
    return 0 if kernel.start is None else kernel.end - kernel.start


def kineto(folder, kernels, launches):
    events = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9,
         "ts": us(k.launch), "dur": us(LAUNCH_NS), "args": {"correlation": k.id}}
        for k in launches
    ] + [
        {"ph": "X", "cat": "kernel", "name": k.name, "pid": 0, "tid": k.stream, "ts": us(k.start),
         "dur": us(difference(k)),
         "args": {"device": 0, "stream": k.stream, "correlation": k.id}}
        for k in kernels
    ]  # fmt: skip
    text = json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events})
    return [written(folder / "t.json", text)]


def jax(folder, kernels, launches):
    names = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "pid": 7, "name": "process_name", "args": {"name": "/host:CPU"}},
    ] + [
        {"ph": "M", "pid": 1, "tid": s, "name": "thread_name",
         "args": {"name": f"Stream #{s}(Compute)"}}
        for s in (0, 1)
    ]  # fmt: skip
    events = [
        {"ph": "X", "pid": 7, "tid": 5, "ts": us(k.launch), "dur": us(LAUNCH_NS),
         "name": "cuLaunchKernel", "args": {"correlation_id": str(k.id)}}
        for k in launches
    ] + [
        {"ph": "X", "pid": 1, "tid": k.stream, "ts": us(k.start), "dur": us(difference(k)),
         "name": k.name, "args": {"correlation_id": str(k.id)}}
        for k in kernels
    ]  # fmt: skip
    return [written(folder / "t.json", json.dumps({"traceEvents": [*events, *names]}))]


def written(path, text):
    path.write_text(text)
    return path


def table(path, heads, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([heads, *rows])
    return path


def nsys(folder, kernels, launches):
    process = 77 << 24
    kernel = ["start", "end", "deviceId", "streamId", "correlationId", "globalPid", "shortName"]
    call = ["start", "end", "globalTid", "correlationId", "nameId"]
    names = sorted({k.name for k in launches})
    return [database(folder / "t.sqlite", **{
        "StringIds": (["id", "value"], [*enumerate(names), (99, "cudaLaunchKernel_v7000")]),
        "CUPTI_ACTIVITY_KIND_KERNEL": (kernel, [
            (k.start, k.end, 0, k.stream, k.id, process, names.index(k.name)) for k in kernels]),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (call, [
            (k.launch, k.launch + LAUNCH_NS, process + 77, k.id, 99) for k in launches]),
    })]  # fmt: skip


def nsys_stats(folder, kernels, launches):
    gpu = ["Start (ns)", "Duration (ns)", "CorrId", "Bytes (MB)", "Device", "Strm", "Name"]
    api = ["Start (ns)", "Duration (ns)", "Name", "Result", "CorrID", "Pid", "Tid"]
    return [
        table(folder / "r_cuda_gpu_trace.csv", gpu, [
            (k.start, difference(k), k.id, "", "H100 (0)", k.stream, k.name) for k in kernels]),
        table(folder / "r_cuda_api_trace.csv", api, [
            (k.launch, LAUNCH_NS, "cudaLaunchKernel", 0, k.id, 1, 1) for k in launches]),
    ]  # fmt: skip


def rocprofv3(folder, kernels, launches, first=()):
    heads = [*first, "Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Kernel_Name", "Correlation_Id",
             "Start_Timestamp", "End_Timestamp"]  # fmt: skip
    api = [*first, "Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id",
           "Start_Timestamp", "End_Timestamp"]  # fmt: skip
    guid = ["0000-1"] * len(first)
    return [
        table(folder / "1_kernel_trace.csv", heads, [
            (*guid, "KERNEL_DISPATCH", "Agent 4", 1, k.stream, k.name, k.id, k.start, k.end)
            for k in kernels]),
        table(folder / "1_hip_api_trace.csv", api, [
            (*guid, "HIP_RUNTIME_API", "hipLaunchKernel", 1, 1, k.id, k.launch,
             k.launch + LAUNCH_NS) for k in launches]),
    ]  # fmt: skip


def rocpd2csv(folder, kernels, launches):
    return rocprofv3(folder, kernels, launches, ["Guid"])


def rocprofv3_json(folder, kernels, launches):
    def record(k, kind, start, end):
        return {"kind": kind, "operation": 0, "thread_id": 1, "correlation_id": {"internal": k.id},
                "start_timestamp": start, "end_timestamp": end}  # fmt: skip

    size = {"x": 64, "y": 1, "z": 1}
    dispatches = [
        record(k, 1, k.start, k.end) | {"stream_id": {"handle": k.stream}, "dispatch_info": {
            "agent_id": {"handle": 5}, "kernel_id": k.id % 3, "dispatch_id": k.id,
            "workgroup_size": size, "grid_size": size}}
        for k in kernels
    ]  # fmt: skip
    calls = [record(k, 0, k.launch, k.launch + LAUNCH_NS) for k in launches]
    part = {
        "metadata": {"pid": 1},
        "agents": [{"id": {"handle": 5}, "node_id": 2, "type": 2, "name": "gfx942"}],
        "strings": {"buffer_records": [{"kind": "HIP", "operations": ["hipLaunchKernel"]}]},
        "kernel_symbols": [
            {"kernel_id": n, "formatted_kernel_name": f"kernel_{n}"} for n in range(3)
        ],
        "buffer_records": {"kernel_dispatch": dispatches, "hip_api": calls},
    }
    return [written(folder / "t.json", json.dumps({"rocprofiler-sdk-tool": [part]}))]


def rocpd(folder, kernels, launches):
    """The views as tables: a tool may write them so."""
    kernel = ["name", "start", "end", "agent_abs_index", "stream_id", "pid", "stack_id"]
    region = ["name", "start", "end", "category", "tid", "pid", "stack_id"]
    path = database(folder / "raw.db", **{
        "rocpd_kernels": (kernel, [
            (k.name, k.start, k.end, 4, k.stream, 1, k.id) for k in kernels]),
        "rocpd_regions": (region, [
            ("hipLaunchKernel", k.launch, k.launch + LAUNCH_NS, "HIP_RUNTIME_API", 1, 1, k.id)
            for k in launches]),
    })  # fmt: skip
    with sqlite3.connect(path) as connection:
        for view in ("kernels", "regions"):
            connection.execute(f"CREATE VIEW {view} AS SELECT * FROM rocpd_{view}")
    connection.close()
    return [path]


def rocprof(folder, kernels, _):
    heads = ["Index", "KernelName", "gpu-id", "queue-id", "BeginNs", "EndNs"]
    return [table(folder / "t.csv", heads, [
        (k.id, k.name, 0, k.stream, k.start, k.end) for k in kernels])]  # fmt: skip


def xctrace(folder, kernels, _):
    columns = ("start", "duration", "channel-name", "state", "depth", "label", "process")
    heads = "".join(f"<col><mnemonic>{c}</mnemonic></col>" for c in columns)
    rows = "".join(
        f"<row><s>{'' if k.start is None else k.start}</s><d>{difference(k)}</d><c>{k.stream}</c>"
        f'<t fmt="Active">A</t><p>0</p><l fmt="{k.name}">n</l><q fmt="app (4)">4</q></row>'
        for k in kernels
    )
    return [written(folder / "t.xml", "<?xml version='1.0'?><trace-query-result><node><schema "
                    f'name="metal-gpu-intervals">{heads}</schema>{rows}</node>'
                    "</trace-query-result>")]  # fmt: skip


WRITERS = [kineto, jax, nsys, nsys_stats, rocprofv3, rocpd2csv, rocprofv3_json, rocpd, rocprof,
           xctrace]  # fmt: skip
WITHOUT_CALLS = (rocprof, xctrace)
WITHOUT_STREAMS = (rocprof, xctrace)  # whose lanes are queues, which may overlap


def summary(tmp_path_factory, writer, kernels, launches):
    return summarise(read(writer(tmp_path_factory.mktemp(writer.__name__), kernels, launches)))


def check(of, kernels):
    """Hold the KPIs against the truth."""
    window, busy, gaps = truth(kernels)
    (device,) = of.devices
    known = {kpi.name: kpi.value for kpi in device.kpis}
    idle = sum(device.times.idle().values())
    assert device.times.busy.length + idle == device.times.window
    assert (device.times.window, device.times.busy.length, idle) == (window, busy, sum(gaps))
    assert known["total time"] == window / 1e9 and known["kernel count"] == len(kernels)
    assert known["mean kernel time"] == pytest.approx(
        sum(k.end - k.start for k in kernels) / len(kernels) / 1e9
    )
    assert known["GPU utilisation"] == known["launch efficiency"] == busy / window
    assert known["mean gap"] == (pytest.approx(sum(gaps) / len(gaps) / 1e9) if gaps else None)


@pytest.mark.parametrize("writer", WRITERS)
@given(timelines())
@settings(max_examples=15, deadline=None)
def test_every_kpi_is_that_of_the_truth(tmp_path_factory, writer, kernels):
    of = summary(tmp_path_factory, writer, kernels, kernels)
    check(of, kernels)
    assert not of.lacks and not of.trace.tally.bad
    if writer not in WITHOUT_CALLS:
        (device,) = of.devices
        assert device.times.launches == len(kernels)
        delays = {kpi.name: kpi.value for kpi in device.kpis}["launch delay, median"]
        middle = sorted(k.start - k.launch - LAUNCH_NS for k in kernels)
        assert middle[(len(middle) - 1) // 2] <= delays * 1e9 + 1
        assert delays * 1e9 - 1 <= middle[len(middle) // 2]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("writer", WRITERS)
@given(timelines(), st.data())
@settings(max_examples=6, deadline=None)
def test_a_bad_record_is_left_out_counted_and_not_rated(
    tmp_path_factory, writer, damage, kernels, data
):
    last = {max((k for k in kernels if k.stream == s), key=lambda k: k.start).id for s in (0, 1)
            if any(k.stream == s for k in kernels)}  # fmt: skip
    chosen = data.draw(st.sampled_from([k for k in kernels if k.id not in last]))
    at = kernels.index(chosen)
    of = summary(
        tmp_path_factory, writer, [*kernels[:at], damage(chosen), *kernels[at + 1 :]], kernels
    )
    rest = [k for k in kernels if k is not chosen]
    if damage is endless and writer not in WITHOUT_STREAMS:
        following = min(
            k.start for k in rest if k.stream == chosen.stream and k.start > chosen.start
        )
        rest.append(replace(chosen, end=following))
    check(of, rest)
    assert sum(of.trace.tally.bad.values()) == 1 and of.lacks
    assert not any(lack.hides_work for lack in of.lacks)
    assert not any(kpi.met for kpi in of.devices[0].kpis)


@pytest.mark.parametrize("writer", [w for w in WRITERS if w not in WITHOUT_STREAMS])
@given(timelines(), st.data())
@settings(max_examples=10, deadline=None)
def test_a_kernel_that_runs_over_the_next_is_cut_at_its_start(
    tmp_path_factory, writer, kernels, data
):
    pairs = [(a, b) for a, b in pairwise(kernels) if a.stream == b.stream]
    one, following = data.draw(st.sampled_from(pairs))
    long = replace(one, end=following.end + data.draw(st.integers(21_000, 900_000)))
    made = [long if k is one else k for k in kernels]
    of = summary(tmp_path_factory, writer, made, kernels)
    check(of, [replace(k, end=following.start) if k is one else k for k in kernels])
    ((_, reason),) = of.trace.tally.bad
    assert "cut at the start of the next kernel" in reason and of.lacks


@pytest.mark.parametrize("writer", [w for w in WRITERS if w not in WITHOUT_CALLS])
@given(timelines(), st.data())
@settings(max_examples=8, deadline=None)
def test_a_launch_without_its_kernel_leaves_no_utilisation(tmp_path_factory, writer, kernels, data):
    gone = set(data.draw(st.lists(st.sampled_from(kernels), min_size=1, max_size=4)))
    of = summary(tmp_path_factory, writer, [k for k in kernels if k not in gone], kernels)
    known = {kpi.name: kpi for kpi in of.devices[0].kpis}
    assert known["GPU utilisation"].value is None and known["kernel count"].value is not None
    assert f"{len(gone)} of {len(kernels)} launches have no work" in of.lacks[0].reason


@pytest.mark.parametrize("writer", WRITERS)
@given(timelines())
@settings(max_examples=4, deadline=None)
def test_over_a_quarter_of_bad_records_is_refused(tmp_path_factory, writer, kernels):
    bad = [backward(k) if n % 3 == 0 else k for n, k in enumerate(kernels)]
    with pytest.raises(ReadError, match=r"device activities left out.*record again") as error:
        summary(tmp_path_factory, writer, bad, kernels)
    assert "damaged" not in str(error.value)
