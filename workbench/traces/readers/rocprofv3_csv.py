"""CSV files of rocprofv3 in the forms of 2024 to 2026: kernels, counters, calls, copies, samples.

An agent is a number or `Agent 4`; the grid is in work-items; counters have one row each; copies do
not tell their bytes.
"""

from collections import Counter

from workbench.data.record_tally import DEVICE, HOST
from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.numbers import integer, number, three, whole, work_groups
from workbench.traces.readers.inputs.source import Source
from workbench.traces.readers.inputs.tables import Row, first_row, need, pick, pick_integer, table
from workbench.traces.readers.rocprof import STATS, kernel_name, total_of
from workbench.traces.trace import (
    ActivityKind,
    CounterValue,
    Dispatch,
    Geometry,
    InstructionTable,
    Trace,
    kind_of_call,
    plain,
)

REASON = "ROCPROFILER_PC_SAMPLING_INSTRUCTION_NOT_ISSUED_REASON_"


def sniff(source: Source) -> bool:
    """Return whether the first row is a head of rocprofv3."""
    heads = first_row(source.head_text)
    heads = heads[1:] if heads[:1] == ["Guid"] else heads  # as rocpd2csv writes
    have = set(heads)
    if heads[:2] in (["Kind", "Agent_Id"], ["Kind", "Direction"], ["Kind", "Operation"]):
        return True
    if heads[:1] == ["Sample_Timestamp"] or heads[:2] == ["CodeObj", "Vaddr"]:
        return True
    if {"Counter_Name", "Counter_Value"} <= have or {"Domain", "Function"} <= have:
        return True
    return heads[:5] == STATS and "MinNs" in have


def read(source: Source) -> Trace:
    """Return what a file holds. Raises ValueError where a value is damaged."""
    trace = Trace("rocprofv3")
    heads = set(first_row(source.head_text))
    rows = table(source)
    trace.has_streams = "Stream_Id" in heads
    if "Sample_Timestamp" in heads:
        _samples(rows, trace)
    elif "CodeObj" in heads:
        _code(rows, trace)
    elif "Counter_Name" in heads:
        _counters(rows, trace)
    else:
        for row in rows:
            _add(row, trace)
    used = {d for d in trace.activities.devices.entries if d}
    trace.devices = {name: {} for name in sorted(used | {d.device for d in trace.dispatches})}
    trace.devices.pop("", None)
    return trace


def _add(row: Row, trace: Trace) -> None:
    """Add a row of sums, a kernel, or another interval; a bad one is left out."""
    if "TotalDurationNs" in row:
        with trace.tally.record("rows"):
            trace.totals.append(total_of(row))
    elif "Kernel_Name" in row:
        with trace.tally.record(DEVICE, (_process(row), whole(row.get("Correlation_Id")))):
            _kernel(row, trace)
    else:
        with trace.tally.record(DEVICE if "Direction" in row else HOST):
            _interval(row, trace)


def agent(text: str) -> str:
    """Return the number of an agent: of `Agent 4` it is 4."""
    return plain(text).removeprefix("Agent ").strip()


def _kernel(row: Row, trace: Trace) -> None:
    name = kernel_name(row)
    start, end = integer(need(row, "Start_Timestamp")), integer(need(row, "End_Timestamp"))
    items, block = _three(row, "Grid_Size"), _three(row, "Workgroup_Size")
    geometry = Geometry(
        work_groups(items, block),
        block,
        pick_integer(row, "VGPR_Count", "Vgpr_Count"),
        pick_integer(row, "LDS_Block_Size", "Lds_Block_Size", "Group_Segment_Size"),
    )
    lane = plain(pick(row, "Stream_Id", "Queue_Id") or "")
    device = agent(need(row, "Agent_Id"))
    correlation = integer(pick(row, "Correlation_Id") or "-1")
    trace.activities.add(
        ActivityKind.KERNEL, name, start, end, device, lane, _process(row), correlation, geometry
    )
    trace.dispatches.append(
        Dispatch(name, pick(row, "Dispatch_Id") or "", device, lane, geometry, end - start)
    )


def _process(row: Row) -> str:
    """Return the recording of a row of rocpd2csv, which may hold several; else empty."""
    return plain(row.get("Guid", ""))


def _three(row: Row, name: str) -> tuple[int, int, int] | None:
    return three(row.get(f"{name}_{axis}") for axis in "XYZ")


def _interval(row: Row, trace: Trace) -> None:
    """Add a call, a marker, a copy, or an allocation."""
    start, end = integer(need(row, "Start_Timestamp")), integer(need(row, "End_Timestamp"))
    correlation = integer(pick(row, "Correlation_Id") or "-1")
    lane = plain(pick(row, "Stream_Id", "Queue_Id", "Thread_Id") or "")
    kind, device, moved = ActivityKind.CALL, "", -1
    if "Direction" in row:
        name = plain(row["Direction"]).removeprefix("MEMORY_COPY_").replace("_", " ").lower()
        if name != "host to host":  # which is not work of a GPU
            name, kind = f"copy {name}", ActivityKind.COPY
            to_host = "device to host" in name
            device = agent(need(row, "Source_Agent_Id" if to_host else "Destination_Agent_Id"))
    elif "Operation" in row:
        name, moved = plain(row["Operation"]), pick_integer(row, "Allocation_Size") or -1
    else:
        name = plain(need(row, "Function"))
        marker = row.get("Domain", "").startswith("MARKER")
        kind = ActivityKind.RANGE if marker else kind_of_call(name)
    where = device, lane, _process(row), correlation
    trace.activities.add(kind, name, start, end, *where, moved=moved)


def _counters(rows: object, trace: Trace) -> None:
    """Join the rows of one dispatch; those of several agents' parts are summed by the tool."""
    dispatches: dict[str, Dispatch] = {}
    for row in rows:  # type: ignore[attr-defined]
        with trace.tally.record("rows"):
            key = need(row, "Dispatch_Id")
            name, text = plain(need(row, "Counter_Name")), row.get("Counter_Value", "")
            value = number(text)
            if (dispatch := dispatches.get(key)) is None:
                dispatch = dispatches[key] = _counted_dispatch(row, key)
            dispatch.counters[name] = CounterValue.read(name, value, text)
    trace.dispatches += dispatches.values()


def _counted_dispatch(row: Row, key: str) -> Dispatch:
    items, group = pick_integer(row, "Grid_Size"), pick_integer(row, "Workgroup_Size")
    geometry = Geometry(
        (-(-items // group), 1, 1) if items and group else None,
        (group, 1, 1) if group else None,
        pick_integer(row, "VGPR_Count"),
        pick_integer(row, "LDS_Block_Size"),
    )
    start, end = pick_integer(row, "Start_Timestamp"), pick_integer(row, "End_Timestamp")
    spent = end - start if start is not None and end is not None else None
    device = agent(row.get("Agent_Id", ""))
    return Dispatch(kernel_name(row), key, device, row.get("Queue_Id", ""), geometry, spent)


def _samples(rows: object, trace: Trace) -> None:
    """Count the samples of each instruction, by dispatch and reason of the stall."""
    by_dispatch: dict[str, dict[tuple[str, str], Counter[str]]] = {}
    for row in rows:  # type: ignore[attr-defined]
        with trace.tally.record("samples"):
            integer(need(row, "Sample_Timestamp"))
            key = need(row, "Dispatch_Id")
            place = plain(row.get("Instruction", "")), plain(row.get("Instruction_Comment", ""))
            counts = by_dispatch.setdefault(key, {}).setdefault(place, Counter())
            counts["samples"] += 1
            if row.get("Wave_Issued_Instruction") == "0":
                counts[row.get("Stall_Reason", "").removeprefix(REASON).lower()] += 1
    for key, places in by_dispatch.items():
        others = {head for counts in places.values() for head in counts} - {"samples"}
        heads = "samples", *sorted(others)
        instructions = InstructionTable(heads)
        for (text, where), counts in places.items():
            instructions.add(-1, text, where, (float(counts[h]) for h in heads))
        trace.dispatches.append(Dispatch(f"dispatch {key}", key, instructions=instructions))


def _code(rows: object, trace: Trace) -> None:
    """Read the table of a thread trace: hits and latency of each instruction."""
    heads = ("Hitcount", "Latency", "Stall", "Idle")
    instructions = InstructionTable(heads)
    for row in rows:  # type: ignore[attr-defined]
        with trace.tally.record("rows"):
            address = integer(need(row, "Vaddr"))
            values = tuple(number(row.get(head, "")) for head in heads)
            text, place = plain(row.get("Instruction", "")), plain(row.get("Source", ""))
            instructions.add(address, text, place, values)
    if instructions.texts:
        trace.dispatches.append(Dispatch("thread trace", instructions=instructions))


READER = TraceReader("CSV of rocprofv3", sniff, read)
