"""CSV of ncu's details page, and of `--metrics`: one row per metric or a rule, with labels in place
of names. Metric rows have fewer fields than the head; old versions have 12 or 15 columns."""

import re

from workbench.traces.metric import refusals
from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs import ncu
from workbench.traces.readers.inputs.source import Source, head_matches
from workbench.traces.readers.inputs.tables import Row, table
from workbench.traces.trace import Dispatch, Trace, plain

HEAD = re.compile(r'^"ID",.*"Section Name","Metric Name"', re.M)
MARKUP = re.compile(r"@(?:section|url|source|metric):([^@:]*):([^@]*)@")


sniff = head_matches(HEAD)


def read(source: Source) -> Trace:
    """Return the dispatches with their counters. Raises ValueError where a row is damaged."""
    trace = Trace("ncu", ncu.version_of(source))
    comma = ncu.has_decimal_comma(source)
    dispatches: dict[tuple[str, str], Dispatch] = {}
    lines = ncu.table_lines(source, trace.notes)
    for row in table(source, lambda heads: "Metric Name" in heads, lines):
        if not row.get("ID", "").isdigit():
            continue
        key = row.get("Process ID", ""), row["ID"]
        with trace.tally.record("rows"):
            if (dispatch := dispatches.get(key)) is None:
                dispatch = dispatches[key] = ncu.launch_of(row)
                trace.devices.setdefault(dispatch.device, {}).update(ncu.properties(dispatch, row))
            _add(row, dispatch, comma)
    trace.dispatches += dispatches.values()
    ncu.settle(trace.dispatches)
    if names := sorted({c.name for each in trace.dispatches for c in refusals(each)}):
        text = ", ".join(names)
        trace.notes.append(f"ncu knows no such metric on this chip, or refused it: {text}")
    return trace


def _add(row: Row, dispatch: Dispatch, comma: bool) -> None:
    if label := row.get("Metric Name"):
        name = ncu.metric_of(row.get("Section Name", ""), plain(label))
        if name not in dispatch.counters:
            dispatch.counters[name] = ncu.counter(
                name, row.get("Metric Unit", ""), row.get("Metric Value", ""), comma
            )
    elif text := row.get("Rule Description"):
        bare = MARKUP.sub(lambda match: match[2] or match[1], plain(text))
        dispatch.notes.append(f"{row.get('Rule Type', '')} {row.get('Rule Name', '')}: {bare}")


READER = TraceReader("details page of ncu (CSV)", sniff, read)
