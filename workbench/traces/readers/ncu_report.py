"""Reports of ncu (`.ncu-rep`). NVIDIA's package `ncu_report` reads them, in a process of its own,
as it is native code; without it the file is refused with the command that prints it as CSV."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs import ncu
from workbench.traces.readers.inputs.source import Source
from workbench.traces.trace import CounterValue, Dispatch, Geometry, InstructionTable, Trace, plain

MAGIC = b"NVR\0"
WORKER = Path(__file__).parent / "inputs/ncu_worker.py"
SECONDS = 120.0


def sniff(source: Source) -> bool:
    """Return whether a file has the magic of a report."""
    return source.head[:4] == MAGIC


def read(source: Source) -> Trace:
    """Return the dispatches of a report. Raises ReadError without the package, or where its process
    fails."""
    if find_spec("ncu_report") is None:
        source.fail(
            "a report of ncu needs NVIDIA's package",
            "install the extra `ncu` (pip install ncu-report), or print it with "
            f"`ncu --import {source.name} --csv --page raw` (`--page source` "
            "for instructions) and read that",
        )
    trace = Trace("ncu")
    for launch in _launches(source):
        trace.dispatches.append(_dispatch(launch))
        name = launch["metrics"].get("device__attribute_display_name", ["", ""])[0]
        facts = trace.devices.setdefault(trace.dispatches[-1].device, {})
        if isinstance(name, str) and name:
            facts["name"] = plain(name)
    ncu.settle(trace.dispatches)
    return trace


def _launches(source: Source) -> list[dict[str, Any]]:
    """Return what the package says of each launch."""
    with source.file() as path:
        try:
            done = subprocess.run(
                [sys.executable, "-P", str(WORKER), str(path)],  # -P: no `json.py` from here
                capture_output=True,
                timeout=min(SECONDS, source.limits.seconds),
                check=False,
            )
        except subprocess.TimeoutExpired:
            source.fail(f"the package took longer than {SECONDS:g} s", "print it as CSV with ncu")
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        source.fail(
            f"the package ncu_report failed ({lines[-1][:200]})", "print it as CSV with ncu"
        )
    launches: list[dict[str, Any]] = json.loads(done.stdout)
    return launches


def _dispatch(launch: dict[str, Any]) -> Dispatch:
    dispatch = Dispatch(plain(str(launch["name"])), str(launch["id"]), str(launch.get("device", 0)))
    for name, (value, unit) in launch["metrics"].items():
        key = plain(name)
        if isinstance(value, str) or value is None:
            text = plain(str(value or ""))
            dispatch.counters[key] = CounterValue(key, None, unit, text, "ok" if text else "absent")
        else:
            dispatch.counters[key] = ncu.counter(key, unit, repr(value))
    grid, block = launch.get("grid"), launch.get("block")
    dispatch.geometry = Geometry(tuple(grid) if grid else None, tuple(block) if block else None)
    dispatch.opcodes = {plain(name): n for name, n in launch.get("opcodes", {}).items()}
    if rows := launch.get("instructions"):
        stalls = [f"stall_{plain(reason)}" for reason in launch.get("stalls", ())]
        columns = [plain(head) for head in launch.get("columns", ())]
        heads = ("samples", "samples_not_issued", "executed", "lanes", *stalls, *columns)
        sources = {plain(name): text for name, text in launch.get("sources", {}).items()}
        table = InstructionTable(heads, sources=sources)
        for address, text, place, values in rows:
            table.add(address, plain(text), plain(place), values)
        dispatch.instructions = table
    return dispatch


READER = TraceReader("report of ncu", sniff, read)
