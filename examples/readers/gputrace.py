"""The JSON file beside a Metal capture: commit, GPU, macOS, dispatches, and the figures that a
person read in Xcode and entered by hand. The capture itself is read by Xcode alone."""

from __future__ import annotations

import math

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.source import Source
from workbench.traces.readers.inputs.stream import load_json
from workbench.traces.trace import Trace, plain

FACTS = ("taken", "commit", "dirty", "gpu", "gpu_cores", "os", "kernel", "impl", "dtype")


def sniff(source: Source) -> bool:
    """Return whether a file is what lies beside a capture."""
    text = source.head_text
    return text.lstrip()[:1] == "{" and '"entered_by_hand"' in text and '"dispatches"' in text


def read(source: Source) -> Trace:
    """Return the facts as tables, those of Xcode apart. Raises ValueError where a figure is no
    finite number, TypeError where the file has another form."""
    trace = Trace("Xcode")
    document = load_json(source)
    by_hand = document["entered_by_hand"]
    for name, value in by_hand.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and math.isfinite(value) and value >= 0):
            raise ValueError(f"{plain(name)} is {str(value)[:40]!r}, not a number")
    trace.tables["capture"] = {name: plain(str(document[name])) for name in FACTS}
    trace.tables["entered by hand"] = {
        plain(name): "not entered" if value is None else value for name, value in by_hand.items()
    }
    for number, dispatch in enumerate(document["dispatches"], 1):
        trace.tables[f"dispatch {number}"] = {k: plain(str(v)) for k, v in dispatch.items()}
    trace.notes.append("a person read these figures in Xcode; no program measured them")
    return trace


READER = TraceReader("notes next to a Metal capture", sniff, read)
