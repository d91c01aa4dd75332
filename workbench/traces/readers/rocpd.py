"""rocpd: the SQLite file of rocprofv3. Its tables carry a GUID in their names, so its own views are
asked: `kernels`, `memory_copies`, `regions`, `counters_collection`. Their SQL is the file's, and
runs under limits. No sample is at hand; the tests write one by the documented columns."""

import json
from typing import Any

from workbench.data.record_tally import DEVICE, HOST
from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.database import Tables, choices, has_table, tables
from workbench.traces.readers.inputs.numbers import three, work_groups
from workbench.traces.readers.inputs.source import Source
from workbench.traces.trace import (
    ActivityKind,
    CounterValue,
    Dispatch,
    Geometry,
    Trace,
    kind_of_call,
    plain,
)


def sniff(source: Source) -> bool:
    """Return whether a file is SQLite's with tables of rocpd."""
    return has_table(source, "rocpd_")


def read(source: Source) -> Trace:
    """Return the trace of a file. Raises ReadError where its SQL asks for more than it may."""
    trace = Trace("rocprofv3")
    with tables(source) as database:
        if {"rocpd_op", "rocpd_api"} <= database.kinds.keys():
            source.fail(
                "this is a file of rocmProfileData (RPD), which is not read",
                "convert it with its `rpd2tracing.py FILE out.json` and read that, or record with "
                "`rocprofv3 --output-format rocpd`",
            )
        trace.has_streams = "stream_id" in database.columns("kernels")
        _kernels(database, trace)
        _copies(database, trace)
        _regions(database, trace)
        _counters(database, trace)
    trace.list_devices()
    return trace


def _kernels(database: Tables, trace: Trace) -> None:
    columns = choices(
        "name|kernel_name start end agent_abs_index|agent_id|device_id stream_id|queue_id "
        "pid|process_id stack_id|correlation_id grid_x|grid_size_x grid_y|grid_size_y "
        "grid_z|grid_size_z workgroup_x|workgroup_size_x workgroup_y|workgroup_size_y "
        "workgroup_z|workgroup_size_z vgpr_count lds_size|group_segment_size"
    )
    for row in database.rows("kernels", *columns, views=True):
        name, start, end, device, stream, process, correlation = row[:7]
        with trace.tally.record(DEVICE, (_text(process), correlation)):
            items, block = three(row[7:10]), three(row[10:13])
            geometry = Geometry(work_groups(items, block), block, row[13], row[14])
            where = _text(device), _text(stream), _text(process), _number(correlation)
            name = plain(str(name)).removesuffix(".kd")
            trace.activities.add(ActivityKind.KERNEL, name, int(start), int(end), *where, geometry)


def _copies(database: Tables, trace: Trace) -> None:
    """Add copies, each to the agent of its two that is a GPU."""
    columns = choices(
        "name start end dst_agent_abs_index|dst_agent_id|dst_device dst_agent_type "
        "src_agent_abs_index|src_agent_id|src_device src_agent_type pid|process_id "
        "stack_id|correlation_id size|bytes stream_id|queue_id"
    )
    for row in database.rows("memory_copies", *columns, views=True):
        name, start, end, to, to_type, of, of_type, process, correlation, moved, stream = row
        with trace.tally.record(DEVICE, (_text(process), correlation)):
            to_host = to_type == "CPU" or (to_type is None and "DEVICE_TO_HOST" in str(name))
            kind, device = ActivityKind.COPY, _text(of if to_host else to)
            if to_host and of_type == "CPU":  # which is not work of a GPU
                kind, device = ActivityKind.CALL, ""
            where = device, _text(stream), _text(process), _number(correlation)
            name, number = plain(str(name)), _number(moved)
            trace.activities.add(kind, name, int(start), int(end), *where, moved=number)


def _regions(database: Tables, trace: Trace) -> None:
    columns = choices(
        "name start end category tid|thread_id pid|process_id stack_id|correlation_id extdata"
    )
    for row in database.rows("regions", *columns, views=True):
        name, start, end, category, thread, process, correlation, more = row
        with trace.tally.record(HOST):
            marker = "MARKER" in str(category)
            text = plain(str((_message(more) if marker else "") or name))
            kind = ActivityKind.RANGE if marker else kind_of_call(text)
            where = "", _text(thread), _text(process), _number(correlation)
            trace.activities.add(kind, text, int(start), int(end), *where)


def _message(more: Any) -> str:
    """Return the message of a range of rocTX, which stands in the JSON of its event."""
    try:
        return str(json.loads(more).get("message") or "")
    except (TypeError, ValueError, AttributeError):
        return ""


def _counters(database: Tables, trace: Trace) -> None:
    columns = choices(
        "dispatch_id kernel_name|name counter_name value|counter_value agent_abs_index|agent_id "
        "start end"
    )
    dispatches: dict[Any, Dispatch] = {}
    for row in database.rows("counters_collection", *columns, views=True):
        number, kernel, name, value, device, start, end = row
        with trace.tally.record("rows"):
            exact = None if value is None else float(value)
            if (dispatch := dispatches.get(number)) is None:
                spent = int(end) - int(start) if start is not None and end is not None else None
                where = plain(str(kernel)), _text(number), _text(device)
                dispatch = dispatches[number] = Dispatch(*where, duration_ns=spent)
            text = plain(str(name))
            dispatch.counters[text] = CounterValue.read(text, exact, str(value))
    trace.dispatches += dispatches.values()


def _text(value: Any) -> str:
    return "" if value is None else plain(str(value))


def _number(value: Any) -> int:
    return -1 if value is None else int(value)


READER = TraceReader("rocpd database", sniff, read, is_whole=True)
