"""Metrics of the planted kernels, out of a report of ncu or as they are stored for tests.

`python tests/planted_words.py REPORT LOG` writes the stored file anew: LOG is what
`tests/planted_counters.py` printed under ncu.
"""

from __future__ import annotations

import ast
import gzip
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from workbench.traces.readers import read
from workbench.traces.rule_metrics import rule_metrics

STORED = Path(__file__).parent / "golden" / "planted_h200.json.gz"
SOURCE = Path(__file__).parent / "planted_counters.py"
DIGITS = 7


def expected() -> dict[str, tuple[tuple[str | None, ...], dict[str, float]]]:
    """Return the rules that may give each kernel its word and what its Spec would declare, by its
    name, in the order of the launches. Read from the source, since its import needs a GPU."""
    module = ast.parse(SOURCE.read_text())
    named = {n.targets[0].id: n.value for n in module.body if isinstance(n, ast.Assign)}
    healthy = tuple(ast.literal_eval(named["HEALTHY"]))
    result = {}
    for node in module.body:
        for call in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "planted":
                continue
            rules: tuple[str | None, ...] = ()
            for word in call.args:
                rules += healthy if isinstance(word, ast.Starred) else (word.value,)
            values = [k for k in call.keywords if k.arg != "kernel"]
            result[node.name] = rules, {k.arg: _number(k.value) for k in values}
    return result


def _number(node: ast.expr) -> float:
    return float(eval(compile(ast.Expression(node), str(SOURCE), "eval"), {}))


def launched(log: str) -> list[str]:
    """Return the names of the kernels that a log says were launched, in their order."""
    words = [line.split() for line in log.splitlines() if line.startswith("launched ")]
    return [word[1] for word in words]


def metrics_of(report: Path, names: list[str]) -> dict[str, dict[str, float]]:
    """Return the metrics of rules by the kernel's name. Raises ValueError where the report has
    another number of launches."""
    known = expected()
    pairs = zip(names, read([report]).dispatches, strict=True)
    return {name: rule_metrics(dispatch, "ncu", known[name][1]) for name, dispatch in pairs}


def stored() -> dict[str, dict[str, float]]:
    """Return the metrics that are stored for tests."""
    return json.loads(gzip.decompress(STORED.read_bytes()))


def write(metrics: Mapping[str, Mapping[str, float]]) -> None:
    """Store metrics, rounded to seven digits."""
    rounded = {
        name: {key: float(f"{value:.{DIGITS}g}") for key, value in sorted(values.items())}
        for name, values in metrics.items()
    }
    text = json.dumps(rounded, indent=0)
    STORED.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    write(metrics_of(Path(sys.argv[1]), launched(Path(sys.argv[2]).read_text())))
