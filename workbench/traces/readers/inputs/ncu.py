"""Shared by the readers of ncu's text: its own messages and the program's output are dropped, and
counters are taken in units without prefix."""

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from workbench.traces.readers.inputs.numbers import DECIMAL_COMMA, base_scale, number, triple
from workbench.traces.readers.inputs.source import Source
from workbench.traces.readers.inputs.tables import Row, pick
from workbench.traces.trace import CounterValue, Dispatch, Geometry, Scope, State, plain

MESSAGE = re.compile(r"==(PROF|WARNING|ERROR)== ?(.*)")
DURATION = "gpu__time_duration.sum"
SHARED = [f"launch__shared_mem_per_block_{part}" for part in ("static", "dynamic")]
INSTANCES = re.compile(r"(?<=\d) \([^()]*\)\Z")  # of --print-metric-instances values
QUOTED = re.compile(r'"([\d.]*\d,\d+)"')
COMMAND_LINE = "Command line profiler metrics"


@cache
def labels() -> dict[str, dict[str, str]]:
    """Return the metric of each label of the details page, by section."""
    path = Path(__file__).with_name("ncu_labels.json")
    table: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    return table


def metric_of(section: str, label: str) -> str:
    """Return the name of the metric behind a label, or `section: label` where none is known."""
    if "__" in label or section == COMMAND_LINE:
        return label
    return labels().get(section, {}).get(label) or f"{section}: {label}"


def table_lines(source: Source, messages: list[str]) -> Iterator[str]:
    """Yield the lines of quoted tables. The tool's messages are added to `messages`; other output
    of the program is dropped."""
    is_open = False
    for line in source.lines():
        if not is_open and not line.startswith('"'):
            if match := MESSAGE.match(line):
                note_message(match, messages)
            continue
        yield line
        is_open ^= line.count('"') % 2 == 1


def note_message(match: re.Match[str], messages: list[str]) -> None:
    """Keep a warning or an error of the tool, each once."""
    text = f"ncu {match[1].lower()}: {plain(match[2])[:300]}"
    if match[1] != "PROF" and match[2].strip() and text not in messages:
        messages.append(text)


def has_decimal_comma(source: Source, numbers: re.Pattern[str] = QUOTED) -> bool:
    """Return whether the numbers of a file have a comma as decimal mark."""
    return any(map(DECIMAL_COMMA.match, numbers.findall(source.head_text)))


def counter(
    name: str, unit: str, text: str, comma: bool = False, scope: Scope = "launch"
) -> CounterValue:
    """Return a number of ncu in the unit without a prefix. `n/a` is a metric that ncu refused;
    empty and `nan` are absent, never 0; other text has no value."""
    stripped = INSTANCES.sub("", text.strip())
    try:
        value = number(stripped, comma)
    except ValueError:
        return CounterValue(name, None, unit, plain(stripped), "ok", scope)
    if value is None:
        state: State = "refused" if stripped.lower() == "n/a" else "absent"
        return CounterValue(name, None, unit, text, state, scope)
    scale, base = base_scale(unit)
    return CounterValue(name, value * scale, base, stripped, "ok", scope)


def launch_of(row: Row) -> Dispatch:
    """Return the dispatch of a row, without counters. Raises KeyError where it names no kernel."""
    name = row.get("Kernel Name")
    if not name:
        raise KeyError("the row names no kernel")
    geometry = Geometry(triple(row.get("Grid Size", "")), triple(row.get("Block Size", "")))
    return Dispatch(
        plain(name),
        row.get("ID", ""),
        plain(pick(row, "Device") or ""),
        plain(row.get("Stream", "")),
        geometry,
    )


def settle(dispatches: Iterable[Dispatch]) -> None:
    """Set duration, registers and shared memory of dispatches from their counters."""
    for dispatch in dispatches:
        counters = {name: c.exact for name, c in dispatch.counters.items() if c.exact is not None}
        dispatch.duration_ns = counters.get(DURATION, dispatch.duration_ns)
        registers = counters.get("launch__registers_per_thread")
        shared = [counters[name] for name in SHARED if name in counters]
        dispatch.geometry = dispatch.geometry._replace(
            registers=None if registers is None else int(registers),
            shared_bytes=int(sum(shared)) if shared else None,
        )


def version_of(source: Source) -> str:
    """Return the version of ncu where the file tells it."""
    match = re.search(r"Version (\d{4}\.\d+\.\d+)", source.head_text)
    return match[1] if match else ""


def properties(dispatch: Dispatch, row: Row) -> dict[str, str]:
    """Return what a row tells of its device."""
    return {"compute_capability": row["CC"]} if row.get("CC") and dispatch.device else {}
