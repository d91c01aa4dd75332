"""SQLite export of Nsight Systems. A table exists only where it holds something, and its columns
differ by version, so that each is asked for first. Correlation ids are those of one process."""

from typing import Any

from workbench.data.record_tally import DEVICE, HOST, RecordTally
from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.database import Tables, choices, has_table, tables
from workbench.traces.readers.inputs.numbers import three
from workbench.traces.readers.inputs.source import Source
from workbench.traces.trace import NOWHERE, ActivityKind, Geometry, Trace, kind_of_call, plain

# globalTid, from its lowest bit: 24 bits of the thread, 24 of the process, 16 of machine and host
PID_BITS, PID_MASK, HOST_BITS = 24, 0xFFFFFF, 48
WORK_COLUMNS = "start end deviceId streamId correlationId globalPid"


def sniff(source: Source) -> bool:
    """Return whether a file is SQLite's with the tables of nsys."""
    return has_table(source, "StringIds", "CUPTI_ACTIVITY_KIND")


def read(source: Source) -> Trace:
    """Return the trace of an export. Raises ReadError where it is damaged."""
    trace = Trace("nsys", has_streams=True)
    with tables(source) as database:
        if "StringTable" in database.kinds and "StringIds" not in database.kinds:
            source.fail("a profile of nvprof is not read", NVPROF)
        texts = dict(database.rows("StringIds", ("id",), ("value",)))
        facts = dict(database.rows("META_DATA_EXPORT", ("name",), ("value",)))
        trace.version = _version(facts)
        _devices(database, trace)
        reader = _NsysTables(database, trace, texts)
        reader.kernels()
        reader.graphs()
        reader.copies()
        reader.calls()
        reader.ranges()
        reader.others()
    trace.list_devices()
    trace.part_devices_by_process()
    if not trace.activities:
        trace.notes.append("it has no kernel, copy, call or range; record with --trace=cuda,nvtx")
    return trace


def _version(facts: dict[Any, Any]) -> str:
    parts = [facts.get(f"EXPORT_SCHEMA_VERSION_{part}") for part in ("MAJOR", "MINOR", "MICRO")]
    whole = facts.get("EXPORT_SCHEMA_VERSION")
    if whole is None and all(part is not None for part in parts):
        whole = ".".join(map(str, parts))
    return f"schema {plain(str(whole))}" if whole else ""


def _devices(database: Tables, trace: Trace) -> None:
    columns = database.columns("TARGET_INFO_GPU")
    for row in database.rows("TARGET_INFO_GPU", *((column,) for column in columns)):
        facts = {k: v for k, v in zip(columns, row, strict=True) if isinstance(v, int | str)}
        trace.devices[str(facts.get("id", len(trace.devices)))] = facts


class _NsysTables:
    """Adds the rows of the tables to a trace."""

    def __init__(self, database: Tables, trace: Trace, texts: dict[Any, Any]) -> None:
        self.database, self.trace, self.texts = database, trace, texts
        work = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "GRAPH_TRACE"))
        self.by_process = any("globalPid" in database.columns(table) for table in work)
        # each process counts the GPUs that it may see from 0: by pid and that number
        columns = ("pid",), ("cudaId",), ("gpuId",)
        rows = database.rows("TARGET_INFO_CUDA_DEVICE", *columns)
        self.gpus = {(pid, ordinal): str(gpu) for pid, ordinal, gpu in rows if gpu is not None}

    def name(self, number: Any) -> str:
        """Return the text of a number of StringIds."""
        return plain(str(self.texts.get(number, f"name {number}")))

    def process(self, value: Any) -> str:
        """Return the process of a globalPid or globalTid, as far as the file tells it."""
        if not self.by_process or value is None:
            return ""
        host, pid = int(value) >> HOST_BITS, int(value) >> PID_BITS & PID_MASK
        return f"process {pid}" if not host else f"process {pid} of host {host}"

    def device(self, ordinal: Any, process: Any) -> str:
        """Return the GPU of an ordinal in a process, by its id in the file where that tells it."""
        ordinal = 0 if ordinal is None else ordinal
        if process is None:
            return str(ordinal)
        return self.gpus.get((int(process) >> PID_BITS & PID_MASK, ordinal), str(ordinal))

    def kernels(self) -> None:
        """Add kernels, with grid, block, registers and shared memory."""
        columns = choices(
            f"{WORK_COLUMNS} shortName|demangledName gridX gridY gridZ blockX blockY blockZ "
            "registersPerThread staticSharedMemory dynamicSharedMemory"
        )
        for row in self.database.rows("CUPTI_ACTIVITY_KIND_KERNEL", *columns):
            with self._record(row):
                shared = None if row[14] is None else int(row[14]) + int(row[15] or 0)
                geometry = Geometry(three(row[7:10]), three(row[10:13]), row[13], shared)
                self._add_work(ActivityKind.KERNEL, self.name(row[6]), row[:6], geometry)

    def graphs(self) -> None:
        """Add replays of graphs, each as one kernel: nsys records so without
        --cuda-graph-trace=node (CUPTI's CUpti_ActivityGraphTrace)."""
        count = 0
        columns = choices(f"{WORK_COLUMNS} graphId")
        for row in self.database.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", *columns):
            with self._record(row):
                self._add_work(ActivityKind.KERNEL, f"graph {row[6]}", row[:6])
                count += 1
        if count:
            self.trace.notes.append(
                f"{count:,} replays of graphs count as one kernel each; record with "
                "--cuda-graph-trace=node to see the kernels in them"
            )

    def copies(self) -> None:
        """Add copies and sets."""
        for table, kind, name in (
            ("CUPTI_ACTIVITY_KIND_MEMCPY", ActivityKind.COPY, "copy"),
            ("CUPTI_ACTIVITY_KIND_MEMSET", ActivityKind.SET, "set"),
        ):
            columns = choices(f"{WORK_COLUMNS} bytes copyKind")
            for row in self.database.rows(table, *columns):
                with self._record(row):
                    text = f"{name} {COPY_KINDS.get(row[7], '')}".strip()
                    moved = -1 if row[6] is None else int(row[6])
                    self._add_work(kind, text, row[:6], moved=moved)

    def _record(self, row: tuple[Any, ...]) -> RecordTally:
        """Count a row of WORK_COLUMNS and more, see `RecordTally.record`."""
        return self.trace.tally.record(DEVICE, (self.process(row[5]), row[4]))

    def _add_work(
        self,
        kind: ActivityKind,
        name: str,
        row: tuple[Any, ...],
        geometry: Geometry = NOWHERE,
        moved: int = -1,
    ) -> None:
        """Add work of a device; `row` has the values of WORK_COLUMNS."""
        start, end, ordinal, stream, correlation, owner = row
        where = self.device(ordinal, owner), str(stream), self.process(owner), _id(correlation)
        self.trace.activities.add(kind, name, int(start), int(end), *where, geometry, moved)

    def calls(self) -> None:
        """Add calls of the runtime and the driver; those without an end had not returned."""
        columns = choices("start end globalTid correlationId nameId")
        for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
            for start, end, thread, correlation, name in self.database.rows(table, *columns):
                if end is None:
                    continue
                with self.trace.tally.record(HOST):
                    text = self.name(name)
                    where = "", str(thread), self.process(thread), _id(correlation)
                    kind = kind_of_call(text)
                    self.trace.activities.add(kind, text, int(start), int(end), *where)

    def ranges(self) -> None:
        """Add NVTX ranges, of NVTX_EVENTS and of its later versions; marks without an end are left
        out."""
        columns = choices("start end text textId globalTid")
        for table in self.database.kinds:
            if not table.startswith("NVTX_EVENTS"):
                continue
            for start, end, text, number, thread in self.database.rows(table, *columns):
                if start is None or end is None or (text is None and number is None):
                    continue
                with self.trace.tally.record(HOST):
                    name = plain(str(text)) if text is not None else self.name(number)
                    kind, where = ActivityKind.RANGE, ("", str(thread), self.process(thread))
                    self.trace.activities.add(kind, name, int(start), int(end), *where)

    def others(self) -> None:
        """Count the rows of tables that are not read and may hold work of a device: they have a
        start, an end and a device."""
        for table in self.database.kinds:
            columns = set(self.database.columns(table))
            if table in READ or not {"start", "end"} <= columns or not columns & DEVICE_COLUMNS:
                continue
            if table.removeprefix("CUPTI_ACTIVITY_KIND_") in NO_WORK:
                continue
            if count := sum(1 for _ in self.database.rows(table, ("start",))):
                self.trace.tally.add_unread(f"the table {plain(table)}", count, EXPORT)


READ = frozenset(
    f"CUPTI_ACTIVITY_KIND_{name}"
    for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME", "DRIVER")
)
DEVICE_COLUMNS = frozenset(["deviceId", "gpuId", "gpu", "gpuIndex"])
NO_WORK = frozenset(["SYNCHRONIZATION", "CUDA_EVENT", "OVERHEAD", "GPU_MEMORY_USAGE"])
EXPORT = "record with `nsys profile --trace=cuda,nvtx --cuda-graph-trace=node`"
NVPROF = "record with `nsys profile`, and run `nsys export --type sqlite` on its report"

COPY_KINDS = {1: "host to device", 2: "device to host", 8: "device to device", 10: "peer to peer"}


def _id(correlation: Any) -> int:
    return -1 if correlation is None else int(correlation)


READER = TraceReader("SQLite export of nsys", sniff, read, is_whole=True)
