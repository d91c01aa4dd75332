"""SQLite export of Nsight Systems. A table exists only where it holds something, and its columns
differ by version, so that each is asked for first. Correlation ids are those of one process."""

from __future__ import annotations

from typing import Any

from workbench.data.trace import NOWHERE, ActivityKind, Geometry, Trace, kind_of_call, plain
from workbench.readers import TraceReader
from workbench.readers.inputs.database import Tables, has_table, tables
from workbench.readers.inputs.source import Source

PROCESS_MASK = ~0xFFFFFF  # of globalTid: the lowest 24 bits are the thread


def sniff(source: Source) -> bool:
    """Return whether a file is SQLite's with the tables of nsys."""
    return has_table(source, "StringIds", "CUPTI_ACTIVITY_KIND")


def read(source: Source) -> Trace:
    """Return the trace of an export. Raises ReadError where it is damaged."""
    trace = Trace("nsys")
    with tables(source) as known:
        texts = dict(known.rows("StringIds", ("id",), ("value",)))
        facts = dict(known.rows("META_DATA_EXPORT", ("name",), ("value",)))
        trace.version = _version(facts)
        _devices(known, trace)
        reader = _NsysTables(known, trace, texts)
        reader.kernels()
        reader.copies()
        reader.calls()
        reader.ranges()
    used = set(trace.activities.devices.known) - {""}
    trace.devices = {name: trace.devices.get(name, {}) for name in sorted(used)}
    if not trace.activities:
        trace.notes.append("it has no kernel, copy, call or range; record with --trace=cuda,nvtx")
    return trace


def _version(facts: dict[Any, Any]) -> str:
    parts = [facts.get(f"EXPORT_SCHEMA_VERSION_{part}") for part in ("MAJOR", "MINOR", "MICRO")]
    whole = facts.get("EXPORT_SCHEMA_VERSION")
    if whole is None and all(part is not None for part in parts):
        whole = ".".join(map(str, parts))
    return f"schema {plain(str(whole))}" if whole else ""


def _devices(known: Tables, trace: Trace) -> None:
    columns = known.columns("TARGET_INFO_GPU")
    for row in known.rows("TARGET_INFO_GPU", *((column,) for column in columns)):
        facts = {k: v for k, v in zip(columns, row, strict=True) if isinstance(v, int | str)}
        trace.devices[str(facts.get("id", len(trace.devices)))] = facts


class _NsysTables:
    """Adds the rows of the tables to a trace."""

    def __init__(self, known: Tables, trace: Trace, texts: dict[Any, Any]) -> None:
        self.known, self.trace, self.texts = known, trace, texts
        kernel_columns = known.columns("CUPTI_ACTIVITY_KIND_KERNEL")
        copy_columns = known.columns("CUPTI_ACTIVITY_KIND_MEMCPY")
        self.by_process = "globalPid" in kernel_columns or "globalPid" in copy_columns

    def name(self, number: Any) -> str:
        """Return the text of a number of StringIds."""
        return plain(str(self.texts.get(number, f"name {number}")))

    def process(self, value: Any) -> str:
        """Return the process of a globalPid or globalTid, as far as the file tells it."""
        if not self.by_process or value is None:
            return ""
        return str(int(value) & PROCESS_MASK)

    def kernels(self) -> None:
        """Add kernels, with grid, block, registers and shared memory."""
        columns = (
            ("start",), ("end",), ("deviceId",), ("streamId",), ("correlationId",),
            ("globalPid",), ("shortName", "demangledName"),
            ("gridX",), ("gridY",), ("gridZ",), ("blockX",), ("blockY",), ("blockZ",),
            ("registersPerThread",), ("staticSharedMemory",), ("dynamicSharedMemory",),
        )  # fmt: skip
        for row in self.known.rows("CUPTI_ACTIVITY_KIND_KERNEL", *columns):
            start, end, device, stream, correlation, process, name = row[:7]
            shared = None if row[14] is None else int(row[14]) + int(row[15] or 0)
            geometry = Geometry(_three(row[7:10]), _three(row[10:13]), row[13], shared)
            self._add_work(
                ActivityKind.KERNEL,
                self.name(name),
                (start, end),
                (device, stream, process, correlation),
                geometry,
            )

    def copies(self) -> None:
        """Add copies and sets."""
        for table, kind, name in (
            ("CUPTI_ACTIVITY_KIND_MEMCPY", ActivityKind.COPY, "copy"),
            ("CUPTI_ACTIVITY_KIND_MEMSET", ActivityKind.SET, "set"),
        ):
            columns = (
                ("start",), ("end",), ("deviceId",), ("streamId",), ("correlationId",),
                ("globalPid",), ("bytes",), ("copyKind",),
            )  # fmt: skip
            for row in self.known.rows(table, *columns):
                start, end, device, stream, correlation, process, moved, way = row
                text = COPY_KINDS.get(way, "")
                self._add_work(
                    kind,
                    f"{name} {text}".strip(),
                    (start, end),
                    (device, stream, process, correlation),
                    NOWHERE,
                    -1 if moved is None else int(moved),
                )

    def _add_work(
        self,
        kind: ActivityKind,
        name: str,
        times: tuple[Any, Any],
        where: tuple[Any, Any, Any, Any],
        geometry: Geometry,
        moved: int = -1,
    ) -> None:
        device, stream, process, correlation = where
        number = -1 if correlation is None else int(correlation)
        self.trace.activities.add(
            kind,
            name,
            int(times[0]),
            int(times[1]),
            str(device if device is not None else 0),
            str(stream),
            self.process(process),
            number,
            geometry,
            moved,
        )

    def calls(self) -> None:
        """Add calls of the runtime and the driver."""
        columns = ("start",), ("end",), ("globalTid",), ("correlationId",), ("nameId",)
        for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
            for start, end, thread, correlation, name in self.known.rows(table, *columns):
                if end is None:
                    continue
                text = self.name(name)
                self.trace.activities.add(
                    kind_of_call(text),
                    text,
                    int(start),
                    int(end),
                    "",
                    str(thread),
                    self.process(thread),
                    -1 if correlation is None else int(correlation),
                )

    def ranges(self) -> None:
        """Add NVTX ranges; marks without an end are left out."""
        columns = ("start",), ("end",), ("text",), ("textId",), ("globalTid",)
        for start, end, text, number, thread in self.known.rows("NVTX_EVENTS", *columns):
            if start is None or end is None or (text is None and number is None):
                continue
            name = plain(str(text)) if text is not None else self.name(number)
            self.trace.activities.add(
                ActivityKind.RANGE,
                name,
                int(start),
                int(end),
                "",
                str(thread),
                self.process(thread),
            )


COPY_KINDS = {
    1: "host to device",
    2: "device to host",
    8: "device to device",
    10: "peer to peer",
}


def _three(values: tuple[Any, ...]) -> tuple[int, int, int] | None:
    if any(value is None for value in values):
        return None
    x, y, z = map(int, values)
    return x, y, z


READER = TraceReader("SQLite export of nsys", sniff, read, is_whole=True)
