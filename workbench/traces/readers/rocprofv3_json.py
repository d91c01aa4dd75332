"""JSON of rocprofv3: the name of a kernel is its symbol's, by the id of the dispatch."""

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.data.record_tally import DEVICE, HOST
from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.numbers import Three, integer, work_groups
from workbench.traces.readers.inputs.source import Source
from workbench.traces.readers.inputs.stream import load_json
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
    """Return whether a file has the tool's key."""
    text = source.head_text
    return text.lstrip()[:1] == "{" and '"rocprofiler-sdk-tool"' in text


def read(source: Source) -> Trace:
    """Return the trace of a file. Raises ValueError and KeyError where it is damaged."""
    trace = Trace("rocprofv3")
    for number, part in enumerate(load_json(source)["rocprofiler-sdk-tool"], 1):
        source.place = f"process {number}"
        _Process(part, trace, source).add()
    trace.list_devices()
    return trace


class _Process:
    """The records of one process."""

    def __init__(self, part: Mapping[str, Any], trace: Trace, source: Source) -> None:
        self.part, self.trace, self.source = part, trace, source
        self.process = str((part.get("metadata") or {}).get("pid", ""))
        symbols = _kernel_items(part.get("kernel_symbols"))
        self.names = {s["kernel_id"]: _symbol(s) for s in symbols}
        self.symbols = {s["kernel_id"]: s for s in symbols}
        self.agents = {}
        self.hosts: set[Any] = set()  # handles of the agents that are CPUs
        for agent in part.get("agents") or []:
            name = str(agent.get("node_id", agent["id"]["handle"]))
            self.agents[agent["id"]["handle"]] = name
            if agent.get("type") in CPU_TYPES:
                self.hosts.add(agent["id"]["handle"])
            facts = {k: agent.get(k) for k in ("name", "product_name", "cu_count", "simd_count")}
            trace.devices[name] = facts
        strings = part.get("strings") or {}
        self.kinds: Sequence[Any] = strings.get("buffer_records") or []
        messages = strings.get("marker_api") or []  # of rocTX, by correlation id
        self.messages = {m["key"]: m["value"] for m in messages if {"key", "value"} <= m.keys()}

    def add(self) -> None:
        """Add all records to the trace."""
        records = self.part.get("buffer_records") or {}
        counters = self._counters()
        tally = self.trace.tally
        for record in records.get("kernel_dispatch") or []:
            correlation = record.get("correlation_id") if isinstance(record, dict) else None
            number = correlation.get("internal") if isinstance(correlation, dict) else correlation
            with tally.record(DEVICE, (self.process, number)):
                self._kernel(record, counters)
        for record in records.get("memory_copy") or []:
            with tally.record(DEVICE):
                self._copy(record)
        for kind in ("hip_api", "marker_api"):
            for record in records.get(kind) or []:
                with tally.record(HOST):
                    self._call(record, kind == "marker_api")

    def _times(self, record: Mapping[str, Any]) -> tuple[int, int]:
        self.source.count()
        self.source.place = f"record {self.source._events:,}"
        return integer(record["start_timestamp"]), integer(record["end_timestamp"])

    def _kernel(self, record: Mapping[str, Any], all_counters: Mapping[int, Any]) -> None:
        start, end = self._times(record)
        info = record["dispatch_info"]
        number = info["kernel_id"]
        symbol = self.symbols.get(number, {})
        block, items = _three(info["workgroup_size"]), _three(info["grid_size"])
        resources = symbol.get("arch_vgpr_count"), info.get("group_segment_size")
        geometry = Geometry(work_groups(items, block), block, *resources)
        device = self._agent(info["agent_id"])
        stream = (record.get("stream_id") or {}).get("handle", "")
        self.trace.has_streams |= stream != ""
        name = self.names.get(number, f"kernel {number}")
        where = device, str(stream), self.process, _correlation(record)
        self.trace.activities.add(ActivityKind.KERNEL, name, start, end, *where, geometry)
        if counters := all_counters.get(info.get("dispatch_id")):
            one = Dispatch(name, str(info["dispatch_id"]), device, str(stream), geometry)
            one.duration_ns, one.counters = end - start, counters
            self.trace.dispatches.append(one)

    def _agent(self, reference: Any) -> str:
        handle = reference["handle"] if isinstance(reference, dict) else reference
        return self.agents.get(handle, str(handle))

    def _copy(self, record: Mapping[str, Any]) -> None:
        start, end = self._times(record)
        moved = record.get("bytes")
        name = self._operation(record, "copy")
        ends = [_handle(record.get(key)) for key in ("dst_agent_id", "src_agent_id")]
        gpus = [end for end in ends if end is not None and end not in self.hosts]
        if not gpus:  # from host to host, which is not work of a GPU
            kind, device = ActivityKind.CALL, ""
        else:
            to_host = "DEVICE_TO_HOST" in name and not self.hosts
            kind, device = ActivityKind.COPY, self._agent(gpus[-1 if to_host else 0])
        where = device, "", self.process, _correlation(record)
        number = -1 if moved is None else integer(moved)
        self.trace.activities.add(kind, name, start, end, *where, moved=number)

    def _call(self, record: Mapping[str, Any], marker: bool) -> None:
        start, end = self._times(record)
        name = self._operation(record, "call")
        if marker:
            name = plain(str(self.messages.get(_correlation(record), name)))
        kind = ActivityKind.RANGE if marker else kind_of_call(name)
        where = "", str(record.get("thread_id", "")), self.process, _correlation(record)
        self.trace.activities.add(kind, name, start, end, *where)

    def _operation(self, record: Mapping[str, Any], default: str) -> str:
        """Return the name of a record's operation, by the table of its kind."""
        try:
            return plain(str(self.kinds[record["kind"]]["operations"][record["operation"]]))
        except (LookupError, TypeError):
            return default

    def _counters(self) -> dict[int, dict[str, CounterValue]]:
        """Return the counters of each dispatch, summed over the instances of each."""
        names = {_handle(c["id"]): plain(str(c["name"])) for c in self.part.get("counters") or []}
        result: dict[int, dict[str, CounterValue]] = {}
        callbacks = (self.part.get("callback_records") or {}).get("counter_collection") or []
        for record in callbacks:
            data = record.get("dispatch_data") or {}
            number = integer(str((data.get("dispatch_info") or {}).get("dispatch_id")))
            sums: dict[str, float] = {}
            for item in record.get("records") or []:
                name = names.get(_handle(item["counter_id"]), "counter")
                sums[name] = sums.get(name, 0.0) + float(item["value"])
            counters = {n: CounterValue(n, v, "", f"{v:g}") for n, v in sums.items()}
            result.setdefault(number, {}).update(counters)
        return result


CPU_TYPES = (1, "CPU", "ROCPROFILER_AGENT_TYPE_CPU")  # of rocprofiler_agent_type_t


def _handle(value: Any) -> Any:
    return value.get("handle") if isinstance(value, dict) else value


def _kernel_items(value: Any) -> list[Mapping[str, Any]]:
    if isinstance(value, dict):
        value = list(value.values())
    return [item for item in value or [] if isinstance(item, dict) and "kernel_id" in item]


def _symbol(symbol: Mapping[str, Any]) -> str:
    for key in ("formatted_kernel_name", "demangled_kernel_name", "kernel_name"):
        if symbol.get(key):
            return plain(str(symbol[key])).removesuffix(" [clone .kd]").removesuffix(".kd")
    return f"kernel {symbol['kernel_id']}"


def _three(value: Mapping[str, Any]) -> Three:
    return integer(value["x"]), integer(value["y"]), integer(value["z"])


def _correlation(record: Mapping[str, Any]) -> int:
    value = record.get("correlation_id")
    number = value.get("internal") if isinstance(value, dict) else value
    return -1 if number is None else integer(number)


READER = TraceReader("JSON of rocprofv3", sniff, read, is_whole=True)
