"""Small files of profilers with two of everything: rows, devices, units, damage beside what is
whole. `drawn_traces` holds what readers take from them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from databases import database

HANDLE = {"handle": 1}


def table(*rows: Sequence[object]) -> str:
    """Return rows as CSV, each field quoted."""
    return "".join(",".join(f'"{field}"' for field in row) + "\n" for row in rows)


def text(content: str) -> Callable[[Path], object]:
    """Return what writes a text."""
    return lambda path: path.write_text(content, encoding="utf-8")


def events(*given: dict[str, Any], **head: Any) -> Callable[[Path], object]:
    """Return what writes events of Chrome's format."""
    return text(json.dumps({**head, "traceEvents": given}))


def event(
    name: str, cat: str, ts: float, dur: float, pid: Any = 1, tid: Any = 2, **args: Any
) -> Any:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "pid": pid, "tid": tid,
            "args": args}  # fmt: skip


def named(pid: Any, process: str, tid: Any = None, thread: str = "") -> list[dict[str, Any]]:
    """Return the events that name a process, and one of its threads."""
    both = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process}}]
    if thread:
        both.append(
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": thread}}
        )
    return both


GPU = {"device": 0, "stream": 7, "correlation": 5}
KINETO = (
    event("add", "kernel", 10.001, 2.5, 0, 7, grid=[1, 2, 3], block=[32, 1, 1],
          **{"registers per thread": 40, "shared memory": 512}, **GPU),
    event("add", "kernel", 14, 2, 1, 8, grid=[1, 2], block=[32, "4", 1.0], device=1, stream=8,
          correlation="6"),
    event("Memcpy HtoD", "gpu_memcpy", 20, 1, 0, 7, bytes=4096, **GPU),
    event("Memset", "gpu_memset", 22, 1, 0, 7, bytes="64", **GPU),
    event("cudaLaunchKernel", "cuda_runtime", 8, 1, 100, 100, correlation=5),
    event("cudaLaunchKernel", "cuda_runtime", 9, 1, 100, 100, correlation=6),
    event("cudaDeviceSynchronize", "cuda_runtime", 30, 9, 100, 100, correlation=9),
    event("aten::add", "cpu_op", 7, 3, 100, 100, correlation=3),
    event("step", "user_annotation", 6, 40, 100, 100),
    event("frame", "python_function", 6, 40, 100, 100),
    event("odd", "odd_category", 6, 40, 100, 100),
    event("odd", "odd_category", 6, 40, 100, 100, device=1),
    event("odd", "gpu_odd", 6, 40, 100, 100),
    event("bad", "kernel", 50, 1, 0, 7, device=0, stream=7, correlation="x"),
    event("bad", "cuda_runtime", 50, 1, 100, 100, correlation=1.5),
    {"ph": "X", "name": 5, "cat": "kernel", "ts": 1, "pid": 0, "tid": 7, "args": {"device": 0}},
    {"ph": "X", "name": "late", "cat": "kernel", "ts": "60.5", "pid": 0, "tid": 7, "args": GPU},
    {"ph": "i", "name": "mark", "cat": "kernel", "ts": 1},
    event("add", "Kernel", 70, 1, 0, 7, **GPU),
)  # fmt: skip
MERGED = [
    event("add", "kernel", 10 * n, 2, offset + device, 7, device=device, stream=7, correlation=4)
    for n, (offset, device) in enumerate(((0, 0), (5000, 1), (9000, 0), (0, 1)))
] + [event("cudaLaunchKernel", "cuda_runtime", 1, 1, offset, 3, correlation=4)
     for offset in (0, 5000, 9000)]  # fmt: skip
CHROME = (
    *named(1, "GPU 3", 5, "Stream of three"), *named(2, "COPY"), *named(3, "CPU HIP API"),
    *named(4, "mine"), *named("k Core0 CTA1", "k Core0 CTA1"), *named(9, "some GPU things"),
    event("first.kd", "", 1, 2, 1, 5, correlation="7"), event("second [clone .kd]", "", 4, 2, 1, 6),
    event("to host", "", 5, 3, 2, 1), event("hipMalloc", "", 1, 1, 3, 1, corrId=4),
    event("hipDeviceSynchronize", "", 2, 7, 3, 1), event("work", "KERNEL", 3, 4, 4, 1, device=2,
                                                         stream="s"),
    event("work", "KERNEL", 8, 4, 4, 1), event("call", "hip", 8, 4, 4, 1),
    event("hipLaunchKernel", "other", 8, 4, 4, 1), event("range", "mine", 9, 1, 4, 1),
    event("inside", "", 1, 1, "k Core0 CTA1", 0), event("odd", "device things", 1, 1, 4, 1),
    event("odd", "", 1, 1, 9, 1),
    {"ph": "B", "name": "outer", "ts": 1, "pid": 4, "tid": 1, "cat": "mine"},
    {"ph": "B", "name": "inner", "ts": 2, "pid": 4, "tid": 1, "cat": "mine"},
    {"ph": "E", "ts": 3, "pid": 4, "tid": 1}, {"ph": "E", "ts": 5, "pid": 4, "tid": 1},
    {"ph": "E", "ts": 6, "pid": 4, "tid": 1}, {"ph": "E", "ts": 6, "pid": 5, "tid": 1},
    {"ph": "B", "name": "open", "ts": 9, "pid": 4, "tid": 1},
    {"ph": "X", "name": "bad", "ts": True, "pid": 1, "tid": 5}, {"ph": "X", "name": "bad",
     "pid": 1},
    {"ph": "X", "name": "exact", "ts": 1, "dur": 1, "pid": 1, "tid": 5,
     "args": {"BeginNs": "100", "EndNs": "250"}},
    {"ph": "X", "name": "half", "ts": 1, "dur": 1, "pid": 1, "tid": 5, "args": {"BeginNs": "100"}},
)  # fmt: skip
JAX = (
    *named(1, "/device:GPU:0", 1, "Stream #1(compute)"), *named(2, "/device:GPU:1", 2, "XLA Ops"),
    *named(3, "/device:TPU:2", 3, "XLA Ops"), *named(3, "/device:TPU:2", 4, "Steps"),
    *named(4, "/host:CPU"),
    event("fusion", "", 1, 2, 1, 1), event("MemcpyD2H", "", 4, 2, 1, 1),
    event("Memset", "", 7, 2, 1, 1), event("fusion", "", 1, 2, 2, 2), event("dot", "", 1, 5, 3, 3),
    event("step", "", 1, 5, 3, 4), event("host", "", 1, 5, 4, 1),
)  # fmt: skip
PROTON = (
    event("one", "x", 1, 2, 0, "Thread A", call_stack=["a"], device=1, stream="s"),
    event("two", "x", 4, 2, 0, "Thread A", call_stack=[], device_id=2),
    event("range", "x", 4, 2, 0, "Thread A"),
)  # fmt: skip
NOTHING = (*named(1, "a"), event("x", "c", 1, 2), event("y", "c", 3, 2), event("z", "", 3, 2, 5))

ROCPROF = table(
    ["Index", "KernelName", "gpu-id", "queue-id", "grd", "wgr", "lds", "arch_vgpr", "sgpr",
     "SQ_WAVES",
     "SQ_WAVES_2", "Note", "BeginNs", "EndNs"],
    [0, "one.kd", 4, 1, 1000, 256, 512, 24, 16, 10, "", "n/a", 100, 350],
    [1, "two [clone .kd]", 5, 2, 512, 256, "", "", 16, "1,024", 3, "7", 400, 900],
    [2, "three", 4, 1, 512, 0, 0, 8, 16, 1, 1, "", "", ""],
    [3, "four", 4, 1, 512, 256, 0, 8, 16, 1, 1, "", 5, ""],
    [4, "five", 4, 1, "x", 256, 0, 8, 16, 1, 1, "", 5, 6],
    [5, "six", 4, 1, 512, 256, 0, 8, 16, "text", 1, "", 5, 6],
    [6, "seven", 4, 1, "", 256, 0, 8, 16, 1, 1, "", 950, 960],
    *([n, "more", 4, 1, 512, 256, 0, 8, 16, n, n, "", 1000 * n, 1001 * n] for n in range(7, 13)),
)  # fmt: skip
STATS = table(
    ["Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage", "MinNs", "MaxNs"],
    ["one.kd", 3, 900, 300, 60, 200, 400], ["hipLaunchKernel", 2, 100, 50, 10, "", ""],
    ["hipDeviceSynchronize", 1, 80, 80, 8, 80, 80], ["MEMORY_COPY_HOST_TO_DEVICE", 1, 5, 5, 1, 5,
     5],
    ["CopyDeviceToHost", 1, 5, 5, 1, 5, 5], ["hip_vector_add(float*)", 4, 8, 2, 1, 1, 3],
    ["HIP_API_EXT", 4, 8, 2, 1, 1, 3], ["hsa_queue_create", 1, 8, 8, 1, 8, 8],
    ["bad", "x", 1, 1, 1, 1, 1], ["", 1, 1, 1, 1, 1, 1], ["void", 1, "", 1, 1, 1, 1],
    *([f"more{n}", 1, n, n, 1, n, n] for n in range(4)),
)  # fmt: skip
SIZES = [f"{name}_{axis}" for name in ("Workgroup_Size", "Grid_Size") for axis in "XYZ"]
KERNELS = table(
    ["Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Dispatch_Id", "Kernel_Name", "Correlation_Id",
     "Start_Timestamp", "End_Timestamp", "VGPR_Count", "LDS_Block_Size", *SIZES],
    ["K", "Agent 4", 1, 3, 1, "one.kd", 11, 100, 350, 24, 512, 64, 2, 1, 130, 3, 1],
    ["K", "5", 2, "", 2, "two", "", 400, 900, "", "", 64, 0, 1, 130, 3, 1],
    ["K", "5", 2, "", 3, "three", 12, 400, 900, 8, 0, 64, "", 1, 130, 3, 1],
    ["K", "", 2, "", 4, "four", 13, 400, 900, 8, 0, 64, 1, 1, 64, 1, 1],
    ["K", "5", 2, "", 5, "five", 14, "x", 900, 8, 0, 64, 1, 1, 64, 1, 1],
    *(["K", "5", 2, "", n, "more", n, 1000 * n, 1001 * n, 8, 0, 64, 1, 1, 65, 1, 1]
      for n in range(6, 10)),
)  # fmt: skip
COPIES = table(
    ["Kind", "Direction", "Stream_Id", "Source_Agent_Id", "Destination_Agent_Id", "Correlation_Id",
     "Start_Timestamp", "End_Timestamp"],
    ["M", "MEMORY_COPY_HOST_TO_DEVICE", 1, "Agent 0", "Agent 4", 1, 10, 20],
    ["M", "MEMORY_COPY_DEVICE_TO_HOST", 1, "Agent 5", "Agent 0", 2, 30, 50],
    ["M", "HOST_TO_HOST", 1, "Agent 0", "Agent 0", 3, 60, 61],
    ["M", "MEMORY_COPY_DEVICE_TO_DEVICE", 1, "Agent 4", "Agent 5", "", 70, 75],
    ["M", "MEMORY_COPY_DEVICE_TO_HOST", 1, "", "Agent 0", 2, 30, 50],
)  # fmt: skip
CALLS = table(
    ["Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp",
     "End_Timestamp"],
    ["HIP_RUNTIME_API", "hipLaunchKernel", 1, 2, 11, 90, 95],
    ["HIP_RUNTIME_API", "hipStreamSynchronize", 1, 2, 12, 96, 99],
    ["MARKER_CORE_API", "step one", 1, 3, 13, 80, 120], ["MARKER_CORE_API", "", 1, 3, 13, 80, 120],
    ["HIP_RUNTIME_API", "hipMalloc", 1, 2, "", 100, 101],
)  # fmt: skip
ALLOCATIONS = table(
    ["Kind", "Operation", "Agent_Id", "Allocation_Size", "Correlation_Id", "Start_Timestamp",
     "End_Timestamp"],
    ["A", "MEMORY_ALLOCATION", 4, 4096, 1, 10, 12], ["A", "MEMORY_FREE", 4, "", 2, 20, 22],
    ["A", "MEMORY_ALLOCATION", 4, 0, 3, 30, 32],
)  # fmt: skip
COUNTERS = table(
    ["Correlation_Id", "Dispatch_Id", "Agent_Id", "Queue_Id", "Kernel_Name", "Grid_Size",
     "Workgroup_Size", "VGPR_Count", "LDS_Block_Size", "Counter_Name", "Counter_Value",
     "Start_Timestamp", "End_Timestamp"],
    [1, 1, "Agent 4", 1, "one.kd", 1000, 256, 24, 512, "SQ_WAVES", 10, 100, 350],
    [1, 1, "Agent 4", 1, "one.kd", 1000, 256, 24, 512, "GRBM_COUNT", "n/a", 100, 350],
    [2, 2, 5, 1, "two", "", 256, "", "", "SQ_WAVES", "1,024", "", 350],
    [3, 3, 5, 1, "three", 512, "", "", "", "SQ_WAVES", 7, 100, ""],
    [4, 4, 5, 1, "four", 512, "", "", "", "", 7, 100, ""],
    [4, "", 5, 1, "four", 512, "", "", "", "SQ_WAVES", 7, 100, ""],
    *([n, n, 5, 1, "more", 513, 256, "", "", "SQ_WAVES", n, 100, 100 + n] for n in range(5, 8)),
)  # fmt: skip
REASON = "ROCPROFILER_PC_SAMPLING_INSTRUCTION_NOT_ISSUED_REASON_"
SAMPLES = table(
    ["Sample_Timestamp", "Dispatch_Id", "Instruction", "Instruction_Comment",
     "Wave_Issued_Instruction", "Stall_Reason"],
    [10, 1, "v_add", "a.py:3", 1, f"{REASON}WAITCNT"], [11, 1, "v_add", "a.py:3", 0,
     f"{REASON}WAITCNT"],
    [12, 1, "v_add", "a.py:3", 0, f"{REASON}ALU"], [13, 1, "v_mul", "a.py:4", 0, f"{REASON}ALU"],
    [14, 2, "v_add", "a.py:3", 1, ""],
    *([n, 2, "v_add", "a.py:4", 0, f"{REASON}ALU"] for n in range(20, 24)),
 ["x", 2, "v_add", "a.py:3", 1, ""], [15, "", "v_add", "", 1, ""],
)  # fmt: skip
CODE = table(
    ["CodeObj", "Vaddr", "Instruction", "Hitcount", "Latency", "Stall", "Idle", "Source"],
    [1, 16, "v_add", 3, 40, 5, 6, "a.py:3"], [1, 20, "v_mul", 7, "", 8, "n/a", ""],
    [1, "x", "v_sub", 7, 1, 8, 1, ""],
    *([1, 24 + n, "v_more", n, n, n, n, "a.py:5"] for n in range(3)),
)  # fmt: skip


def rocm_part(pid: int, stream: Any, typed: bool) -> dict[str, Any]:
    """Return the records of one process of rocprofv3."""

    def at(start: int, **more: Any) -> dict[str, Any]:
        return {"start_timestamp": start, "end_timestamp": start + 10 * pid, **more}

    def sized(kernel: Any, group: int, dispatch: int) -> dict[str, Any]:
        return {"kernel_id": kernel, "agent_id": HANDLE, "dispatch_id": dispatch,
                "group_segment_size": 64, "workgroup_size": {"x": 64, "y": group, "z": 1},
                "grid_size": {"x": 130, "y": 3, "z": 1}}  # fmt: skip

    agents = [{"id": {"handle": 0}, "node_id": 0, "name": "cpu", **({"type": 1} if typed else {})},
              {"id": HANDLE, "node_id": 4, "name": "gpu", "cu_count": 60, "type": 2},
              {"id": {"handle": 2}, "name": "gpu", "product_name": "b",
               "simd_count": 4}]  # fmt: skip
    stream_id = {"stream_id": {"handle": stream}} if stream is not None else {}
    ends = [({"handle": 1}, {"handle": 0}), ({"handle": 0}, {"handle": 2}),
            ({"handle": 0}, {"handle": 0}), (2, 1)]  # fmt: skip
    return {
        "metadata": {"pid": pid}, "agents": agents,
        "kernel_symbols": [{"kernel_id": 1, "kernel_name": "one.kd", "arch_vgpr_count": 24},
                           {"kernel_id": 2, "formatted_kernel_name": "two [clone .kd]",
                            "kernel_name": "other"}, {"kernel_id": 3}, {"odd": 1}],
        "strings": {"buffer_records": [{"operations": ["none", "MEMORY_COPY_HOST_TO_DEVICE",
                                                       "MEMORY_COPY_DEVICE_TO_HOST"]},
                                       {"operations": ["hipLaunchKernel", "hipDeviceSynchronize"]}],
                    "marker_api": [{"key": 21, "value": "step"}, {"key": 22}]},
        "counters": [{"id": {"handle": 1}, "name": "SQ_WAVES"}, {"id": 2, "name": "GRBM"}],
        "callback_records": {"counter_collection": [
            {"dispatch_data": {"dispatch_info": {"dispatch_id": number}}, "records": [
                {"counter_id": {"handle": 1}, "value": 2.5}, {"counter_id": {"handle": 1},
                 "value": 4},
                {"counter_id": {"handle": 2}, "value": number}, {"counter_id": {"handle": 9},
                 "value": 1}]}
            for number in (7, 8)]},
        "buffer_records": {
            "kernel_dispatch": [
                at(100, dispatch_info=sized(1, 2, 7), correlation_id={"internal": 31}, **stream_id),
                at(200, dispatch_info=sized(2, 0, 8), correlation_id={"internal": 32}, **stream_id),
                at(300, dispatch_info=sized(3, 2, 9), **stream_id),
                at(400, dispatch_info=sized(9, 2, 10)), {"start_timestamp": 1}],
            "memory_copy": [at(500 + n, kind=0, operation=1 + n % 2, dst_agent_id=to,
             src_agent_id=of,
                               bytes=4096 * n if n else None, correlation_id={"internal": 40 + n})
                            for n, (to, of) in enumerate(ends)],
            "hip_api": [at(90, kind=1, operation=0, thread_id=5, correlation_id={"internal": 31}),
                        at(600, kind=1, operation=1, thread_id=6, correlation_id={"internal": 33})],
            "marker_api": [at(80, kind=1, operation=0, thread_id=5,
             correlation_id={"internal": 21}),
                           at(85, kind=5, operation=0, thread_id=5,
                            correlation_id={"internal": 22})],
        },
    }  # fmt: skip


def rocpd(path: Path) -> None:
    """Write a database whose kernels, copies and the rest are views, as rocprofv3 writes them."""
    kernels = ["name", "start", "end", "agent_abs_index", "stream_id", "pid", "stack_id",
               *(f"{part}_{axis}" for part in ("grid", "workgroup") for axis in "xyz"),
               "vgpr_count", "lds_size"]  # fmt: skip
    copies = ["name", "start", "end", "dst_agent_abs_index", "dst_agent_type",
     "src_agent_abs_index",
              "src_agent_type", "pid", "stack_id", "size", "stream_id"]  # fmt: skip
    regions = ["name", "start", "end", "category", "tid", "pid", "stack_id", "extdata"]
    counters = ["dispatch_id", "kernel_name", "counter_name", "value", "agent_abs_index", "start",
                "end"]  # fmt: skip
    quoted = {"kernels": kernels, "memory_copies": copies, "regions": regions,
              "counters_collection": counters}  # fmt: skip
    rows = {
        "kernels": [("one.kd", 100, 350, 4, 1, 9, 11, 130, 3, 1, 64, 2, 1, 24, 512),
                    ("two", 400, 900, 5, None, 9, None, 130, 3, 1, 64, 0, 1, None, None),
                    ("three", 950, 960, 5, 2, 9, 12, None, 3, 1, 64, 1, 1, 8, 0),
                    ("bad", None, 960, 5, 2, 9, 13, 1, 3, 1, 64, 1, 1, 8, 0)],
        "memory_copies": [("MEMORY_COPY_HOST_TO_DEVICE", 10, 20, 4, "GPU", 0, "CPU", 9, 1, 4096, 1),
                          ("MEMORY_COPY_DEVICE_TO_HOST", 30, 50, 0, "CPU", 5, "GPU", 9, 2, None, 1),
                          ("MEMORY_COPY_DEVICE_TO_HOST", 60, 70, 0, None, 4, None, 9, 3, 8, 1),
                          ("MEMORY_COPY_HOST_TO_HOST", 80, 81, 0, "CPU", 0, "CPU", 9, 4, 8, 1)],
        "regions": [("hipLaunchKernel", 90, 95, "HIP_API", 2, 9, 11, None),
                    ("hipDeviceSynchronize", 96, 99, "HIP_API", 3, 9, 12, "[]"),
                    ("roctx", 80, 120, "MARKER_CORE_API", 2, 9, 13, '{"message": "step"}'),
                    ("roctx", 81, 121, "MARKER_CORE_API", 2, 9, 14, "not JSON")],
        "counters_collection": [(7, "one", "SQ_WAVES", 2.5, 4, 100, 350),
                                (7, "one", "GRBM", None, 4, 100, 350),
                                (8, "two", "SQ_WAVES", 3, 5, None, 900)],
    }  # fmt: skip
    tables = {f"rocpd_{name}": ([f'"{c}"' for c in columns], rows[name])
              for name, columns in quoted.items()}  # fmt: skip
    database(path, **tables)
    with sqlite3.connect(path) as connection:
        for name in quoted:
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM rocpd_{name}")
    connection.close()


RAW = (
    "==PROF== Connected\n==WARNING== odd\n==WARNING== odd\n==ERROR== worse\nthe program says\n"
    + table(
        ["ID", "Kernel Name", "Device", "CC", "Stream", "Grid Size", "Block Size",
         "gpu__time_duration.sum", "launch__registers_per_thread",
         "launch__shared_mem_per_block_static", "launch__shared_mem_per_block_dynamic",
         "dram__bytes.sum", "memory_l2_theoretical", "odd"],
        ["", "", "", "", "", "", "", "us", "register/thread", "Kbyte/block", "byte/block", "Mbyte",
         "",
         ""],
        [0, "one", 0, "9.0", 7, "(2, 1, 1)", "(128, 1, 1)", "1.5", 40, 2, 16, "1,024.5", 3, 4],
        [1, "two\nlines", 1, "9.0", 7, "(2, 1, 1)", "(128, 1, 1)", "n/a", "", "", 16, "nan",
         "text", 4],
        [2, "short", 1],
    )
    + "more of the program\n"
    + table(["ID", "Kernel Name", "Device", "Stream", "gpu__time_duration.sum"],
            [3, "three", 0, 8, "7"])
)  # fmt: skip
PAGE = """==PROF== Connected to process 1
  one (2, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    Duration                         us         1.50
    DRAM Frequency                  Ghz         2.60
    a metric of a name that       Mbyte         12.5
    was wrapped
    ----------------------- ----------- ------------

    OPT   Est. Speedup: 10%
          more of it
          and more

    Section: Launch Statistics
    ----------------------- --------------- ------------
    Metric Name                 Metric Unit Metric Value
    ----------------------- --------------- ------------
    Registers Per Thread    register/thread           40
    INF   beside the table
          and its end
    Static Shared Memory Per Block    byte/block    16

  two (1, 2, 3)x(32, 1, 1), Context 1, Stream 8
    Section: Command line profiler metrics
    ------------------------------ ----------- ------------
    Metric Name                    Metric Unit Metric Value
    ------------------------------ ----------- ------------
    dram__bytes.sum                      Kbyte          n/a
    gpu__time_duration.sum                  ns        1,234
    ------------------------------ ----------- ------------
"""
NSYS = (
    "Processing [x.sqlite]\n"
    + table(["Time (%)", "Total Time (us)", "Instances", "Avg (us)", "Min (us)", "Max (us)",
     "Name"],
            [60, "1,500.5", 3, 500, 400, 600, "one"], [40, 1000, 2, 500, "", "", "two"])
    + "\n"
    + table(["Time (%)", "Total Time (ns)", "Count", "Min (ns)", "Max (ns)", "Operation"],
            [60, 1500, 3, 400, 600, "[CUDA memcpy Host-to-Device]"], [4, 10, 1, 10, 10,
             "[CUDA memset]"])
    + table(["Time (%)", "Total Time (ms)", "Num Calls", "Min (ms)", "Max (ms)", "Name"],
            [60, 1.5, 3, 0.1, 0.9, "cudaLaunchKernel"], [4, 2, 1, 2, 2, "cudaDeviceSynchronize"],
            [4, "", 1, 2, 2, "bad"])
    + table(["Time (%)", "Total Time (s)", "Instances", "Range"], [1, 2, 1, "step"])
    + table(["Time (%)", "Total Time (ns)", "Instances", "Min (ns)", "Max (ns)", "Category",
             "Operation"], [1, 2, 1, 2, 2, "CUDA_KERNEL", "three"],
            [1, 2, 1, 2, 2, "CUDA_API", "cudaStreamSynchronize"], [1, 2, 1, 2, 2, "MEMORY_OPER",
             "memset"])
    + table(["Start (ns)", "Duration (ns)", "CorrId", "GrdX", "GrdY", "GrdZ", "BlkX", "BlkY",
     "BlkZ",
             "Reg/Trd", "Bytes (KiB)", "Device", "Strm", "Name"],
            ["1720000000000000123", 250, 5, 2, 3, 1, 128, 1, 1, 40, "", "H200 (0)", 7, "one"],
            ["1720000000000001123", 50, 6, "", 3, 1, 128, "", 1, "", "1.5", "H200 (1)", 8,
             "[CUDA memcpy Host-to-Device]"],
            ["1720000000000002123", 50, 7, "", "", "", "", "", "", "", "2", "H200 (1)", 8,
             "[CUDA memset]"], ["x", 50, 8, "", "", "", "", "", "", "", "", "H200 (0)", 7, "bad"])
    + table(["Start (us)", "Duration (us)", "Name", "CorrID", "Tid"],
            [1.5, 2.5, "cudaLaunchKernel", 5, 3], [5, 2, "cudaDeviceSynchronize", "", 4])
)  # fmt: skip
MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at void one<float>(float *)+0x50 in /home/me/one.cu:34
=========     by thread (3,0,1) in block (5,1,0)
=========     Address 0x7f is out of bounds
=========
=========     Host Frame: main [0x10]
========= Invalid __shared__ write of size 1,024 bytes
=========     at 0x60 in two.cu:7:two(int)
=========     by thread (0,0,0) in block (1,2,3)
========= Leaked 16 bytes at 0x90 in three
========= Warning: odd
========= Error: Target application terminated before first instrumented API call
========= LEAK SUMMARY: 1,040 bytes leaked in 12 allocations
========= ERROR SUMMARY: 1,003 errors
========= ERROR SUMMARY: 3 errors were not printed. Use --print-limit option
"""
RACES = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at one(int)+0x10 in a.cu:3 [5 hazards]
=========     and Read access at one(int)+0x20 in a.cu:4 [3 hazards]
========= Warning: Race reported between Write access at 0x30 in b.cu:9:two
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1,001 warnings)
"""
LEAKS = """========= CUDA-MEMCHECK
========= Leaked 16 bytes at 0x90
========= LEAK SUMMARY: 16 bytes leaked in 2 allocations
"""
UNFINISHED = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at one+0x10
"""
HISTOGRAM = table(
    ["warp_id", "region_id", "instruction", "count", "cycles"],
    [0, 0, "FADD", -1, 4], [0, 0, "FADD", 3, 40], [1, 0, "FADD", 2, 10], [1, 1, "LDG", 5, 0],
    [1, 1, "LDG", 5, -2], [1, 1, "BAD", "x", 2], [2, 1, "", 1, 2], [2, 1, "MUFU", 0, 7],
    *([n, n, "IADD", n, 2 * n] for n in range(3, 15)),
)  # fmt: skip

WRITTEN: dict[str, Callable[[Path], object]] = {
    "kineto.json": events(
        *KINETO, schemaVersion=1, cupti_version=24,
        deviceProperties=[{"id": n, "name": f"H200 {n}"} for n in range(3)] + [5],
        distributedInfo={"rank": 3},
    ),
    "kineto_merged.json": events(*MERGED, schemaVersion=1, deviceProperties=[],
     roctracer_version=4),
    "kineto_mixed.json": events(
        *(event("cudaLaunchKernel", "cuda_runtime", n, 1, n, 3, correlation=4) for n in (1, 2)),
        event("add", "kernel", 5, 1, 0, 7, **GPU), schemaVersion=1, deviceProperties=[],
    ),
    "kineto_host.json": events(*KINETO[4:13], schemaVersion=1, deviceProperties=[],
                               distributedInfo={"rank": "3"}),
    "kineto_empty.json": events(*KINETO[10:13], schemaVersion=1, deviceProperties=[]),
    "kineto_cut.json": lambda path: path.write_text(
        json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": KINETO[:5]})[:-40]
    ),
    "chrome.json": events(*CHROME), "proton.json": events(*PROTON), "chrome_jax.json": events(*JAX),
    "chrome_nothing.json": events(*NOTHING),
    "rocprof.csv": text(ROCPROF), "rocprof_stats.csv": text(STATS), "rocprofv3.csv": text(KERNELS),
    "rocprofv3_copies.csv": text(COPIES), "rocprofv3_calls.csv": text(CALLS),
    "rocprofv3_allocations.csv": text(ALLOCATIONS), "rocprofv3_counters.csv": text(COUNTERS),
    "rocprofv3_samples.csv": text(SAMPLES), "rocprofv3_code.csv": text(CODE),
    "rocprofv3.json": text(json.dumps(
        {"rocprofiler-sdk-tool": [rocm_part(8, 3, True), rocm_part(9, None, False)]})),
    "rocprofv3_streamless.json": text(json.dumps(
        {"rocprofiler-sdk-tool": [rocm_part(9, None, False)]})),
    "rocpd.db": rocpd, "ncu_raw.csv": text(RAW), "ncu_page.txt": text(PAGE),
    "nsys.csv": text(NSYS), "memcheck.log": text(MEMCHECK), "racecheck.log": text(RACES),
    "leaks.log": text(LEAKS), "unfinished.log": text(UNFINISHED),
    "kernel_mine_0123abcd_hist.csv": text(HISTOGRAM),
}  # fmt: skip
