"""CSV files of rocprof v1 and v2: one row per dispatch, or sums by name. `grd` is in work-items;
counters stand between `obj` and the times."""

import re

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.numbers import integer, number, work_groups
from workbench.traces.readers.inputs.source import Source
from workbench.traces.readers.inputs.tables import Row, first_row, need, pick, pick_integer, table
from workbench.traces.trace import (
    ActivityKind,
    CounterValue,
    Dispatch,
    Geometry,
    Total,
    Trace,
    kind_of_call,
    plain,
)

STATS = ["Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage"]
LAUNCH_HEADS = """
    accum_vgpr accum_vgpr_count arch_vgpr beginns completens correlation_id dispatch_id
    dispatchns durationns end_timestamp endns gpu-id gpu_id grd grid_size index kernel_id
    kernel_name kernelname lds lds_block_size lds_per_workgroup name node_id obj pid
    process_id queue-id queue-index queue_id queue_index scr scratch_per_workitem
    scratch_size sgpr sgpr_count sig start_timestamp thread_id tid vgpr vgpr_count wave_size
    wgr workgroup_size xcc_index
"""
LAUNCH = frozenset(LAUNCH_HEADS.split())

# An API call is `hip` and a capital, without brackets: a kernel may be `hip_vector_add(float*)`
API_CALL = re.compile(r"(?:hip[A-Z]\w*|hsa_\w+|__hip[A-Z]\w*|roctx\w*|[A-Z_]+_API(?:_EXT)?)\Z")
COPY = re.compile(r"MEMORY_COPY\w*\Z|Copy(?:Device|Host)To(?:Device|Host)\Z")
REPEATED = re.compile(r"_\d+\Z")  # columns of several passes that were joined


def sniff(source: Source) -> bool:
    """Return whether the first row is a head of rocprof v1 or v2."""
    heads = first_row(source.head_text)
    if heads[:2] == ["Index", "KernelName"] or heads == STATS:
        return True
    return heads[:2] == ["Dispatch_ID", "GPU_ID"] and "LDS_Per_Workgroup" not in heads


def read(source: Source) -> Trace:
    """Return the dispatches or sums of a file. Raises ValueError where a value is damaged."""
    trace = Trace("rocprof")
    for row in table(source):
        with trace.tally.record("rows"):
            if "TotalDurationNs" in row:
                trace.totals.append(total_of(row))
            else:
                add_dispatch(row, trace)
    trace.devices = {name: {} for name in sorted({d.device for d in trace.dispatches})}
    return trace


def kernel_name(row: Row) -> str:
    """Return the name of a row's kernel: Name, KernelName and Kernel_Name are one."""
    name = need(row, "Kernel_Name", "KernelName", "Name")
    return plain(name).removesuffix(" [clone .kd]").removesuffix(" (.kd)").removesuffix(".kd")


def total_of(row: Row) -> Total:
    """Return a row of a file of sums."""
    name = kernel_name(row)
    kind = ActivityKind.KERNEL
    if API_CALL.match(name):
        kind = kind_of_call(name)
    elif COPY.match(name):
        kind = ActivityKind.COPY
    spent = number(need(row, "TotalDurationNs"))
    low, high = number(row.get("MinNs", "")), number(row.get("MaxNs", ""))
    return Total(kind, name, integer(need(row, "Calls")), spent or 0.0, "", low, high)


def add_dispatch(row: Row, trace: Trace) -> None:
    """Add a dispatch, and its interval where the row has times. Raises KeyError where it has one of
    both times."""
    name = kernel_name(row)
    threads = pick_integer(row, "wgr", "WGR", "Workgroup_Size") or 0
    block = (threads, 1, 1) if threads > 0 else None
    items = pick_integer(row, "grd", "GRD", "Grid_Size") if block else None
    geometry = Geometry(
        work_groups(None if items is None else (items, 1, 1), block),
        block,
        pick_integer(row, "arch_vgpr", "Arch_VGPR", "vgpr", "VGPR_Count"),
        pick_integer(row, "lds", "LDS", "LDS_Per_Workgroup", "LDS_Block_Size"),
    )
    dispatch = Dispatch(
        name,
        pick(row, "Index", "Dispatch_ID") or "",
        plain(pick(row, "gpu-id", "GPU_ID") or ""),
        plain(pick(row, "queue-id", "Queue_ID") or ""),
        geometry,
    )
    for head, text in row.items():
        if REPEATED.sub("", head.lower()) not in LAUNCH:
            value = number(text)
            dispatch.counters[head] = CounterValue.read(head, value, text)
    start, end = pick(row, "BeginNs", "Start_Timestamp"), pick(row, "EndNs", "End_Timestamp")
    if bool(start) != bool(end):
        raise KeyError("there is no value in one of the columns of times")
    if start and end:
        first, last = integer(start), integer(end)
        dispatch.duration_ns = last - first
        trace.activities.add(
            ActivityKind.KERNEL, name, first, last, dispatch.device, dispatch.lane, "", -1, geometry
        )
    trace.dispatches.append(dispatch)


READER = TraceReader("CSV of rocprof", sniff, read)
