"""Workload folders of rocprof-compute (once Omniperf): counters, times, system and roofline.

There are thousands of counters, the case of heads varies, and channels carry an index in brackets.
"""

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.numbers import number
from workbench.traces.readers.inputs.source import Source
from workbench.traces.readers.inputs.tables import first_row, table
from workbench.traces.readers.rocprof import add_dispatch
from workbench.traces.trace import Trace, plain

LOG = ("Omniperf version", "rocprofiler-compute version", "ROCm Compute Profiler")


def sniff(source: Source) -> bool:
    """Return whether a file is one of a workload folder."""
    text = source.head_text
    heads = first_row(text)
    if heads[:1] == ["workload_name"] or heads[:2] == ["device", "HBMBw"]:
        return True
    if any(mark in text[:2000] for mark in LOG):
        return True
    return heads[:1] == ["Dispatch_ID"] and (
        "LDS_Per_Workgroup" in heads or set(heads) == {"Dispatch_ID", "Kernel_Name", "GPU_ID"}
    )


def read(source: Source) -> Trace:
    """Return what one file of the folder holds. Raises ValueError where a value is damaged."""
    trace = Trace("rocprof-compute")
    heads = first_row(source.head_text)
    if any(mark in source.head_text[:2000] for mark in LOG):
        trace.tables["log"] = source.head_text.count("\n")
    elif heads[:1] == ["workload_name"]:
        for row in table(source):
            facts = {plain(key): plain(value) for key, value in row.items()}
            trace.tables["system"] = facts
            trace.version = facts.get("rocm_version", "")
    elif heads[:1] == ["device"]:
        trace.tables["roofline"] = [
            {head: number(text) for head, text in row.items()} for row in table(source)
        ]
    else:
        for row in table(source):
            with trace.tally.record("rows"):
                add_dispatch(row, trace)
        for dispatch in trace.dispatches:
            trace.devices.setdefault(dispatch.device, {})
    return trace


READER = TraceReader("file of rocprof-compute", sniff, read)
