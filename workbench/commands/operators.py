"""The table of a program's operators, as torch.profiler sums them."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.commands.trace_tables import kpi_text, short
from workbench.data.files import write_file
from workbench.data.units import percent, quantity
from workbench.reports.tables import text_table
from workbench.traces.trace import plain
from workbench.traces.trace_export import cell

TOP = 20  # rows of the table
NUMBERS = (
    "calls", "cpu_s", "self_cpu_s", "device_s", "self_device_s", "self_cpu_bytes",
    "self_device_bytes",
)  # fmt: skip

Row = Mapping[str, Any]


def read_operators(path: Path) -> list[Row]:
    """Return the rows that the recorder wrote; none where the file is damaged, as the trace holds
    the same."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [
            {
                "name": plain(str(row["name"])),
                "device": plain(str(row["device"])),
                "is_range": bool(row.get("is_range")),
                **{name: float(row[name]) for name in NUMBERS},
                **({"shapes": plain(str(row["shapes"]))} if "shapes" in row else {}),
            }
            for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def write_operators(path: Path, rows: Sequence[Row]) -> Path:
    """Write the rows as CSV beside the recorder's file, and return its path."""
    heads = ["name", "device", *NUMBERS, *(["shapes"] if any("shapes" in r for r in rows) else [])]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    for row in rows:
        values = (row.get(head, "") for head in heads)
        writer.writerow([cell(v) if isinstance(v, str) else f"{v:.9g}" for v in values])
    target = path.with_suffix(".csv")
    write_file(target, out.getvalue())
    return target


def operator_table(rows: Sequence[Row]) -> Any:
    """Return the operators with the most time of their own: on the GPU where one was used, else on
    the CPU. Rows of kernels and ranges are left out, as their time is also an operator's."""
    own = [row for row in rows if row["device"] == "cpu" and not row["is_range"]]
    on_gpu = any(row["self_device_s"] > 0 for row in own)
    by = "self_device_s" if on_gpu else "self_cpu_s"
    places = ["device", "cpu"] if on_gpu else ["cpu"]
    has_memory = any(row["self_cpu_bytes"] or row["self_device_bytes"] for row in own)
    has_shapes = any("shapes" in row for row in own)
    heads = ["operator", "calls"]
    for place in places:
        name = "GPU" if place == "device" else "CPU"
        heads += [f"{name} itself", "share", f"{name} total"]
    heads += ["memory itself"] * has_memory + ["shapes"] * has_shapes
    table = text_table(heads, right=[head for head in heads[1:] if head != "shapes"])
    whole = {place: sum(row[f"self_{place}_s"] for row in own) or 1.0 for place in places}
    ordered = sorted(own, key=lambda row: (-row[by], row["name"]))
    for row in ordered[:TOP]:
        cells = [short(row["name"]), f"{row['calls']:,.0f}"]
        for place in places:
            spent = row[f"self_{place}_s"]
            cells += [kpi_text(spent, "s"), percent(spent / whole[place]),
                      kpi_text(row[f"{place}_s"], "s")]  # fmt: skip
        if has_memory:
            moved = row["self_device_bytes"] or row["self_cpu_bytes"]
            cells.append(_bytes(moved))
        if has_shapes:
            cells.append(short(row.get("shapes", "")))
        table.add_row(*cells)
    if len(ordered) > TOP:
        rest = ordered[TOP:]
        spent = sum(row[by] for row in rest)
        cells = [f"{len(rest)} more", f"{sum(r['calls'] for r in rest):,.0f}", kpi_text(spent, "s"),
                 percent(spent / whole[places[0]])]  # fmt: skip
        table.add_row(*cells, *[""] * (len(heads) - len(cells)))
    return table


def _bytes(moved: float) -> str:
    sign = "-" if moved < 0 else ""
    return f"{sign}{quantity(abs(moved), 'B')}"
