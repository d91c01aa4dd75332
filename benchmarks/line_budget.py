"""Print the lines of each entry of `workbench/` beside its budget; exit with 1 above one.

    python benchmarks/line_budget.py [--set]

Lines are counted as ruff formats them, without `# fmt: skip` outside of device code. The budgets
are in `data/line_budget.tsv`. A change that needs more moves lines between entries there, or states
the new capability that they are for; `--set` writes what the entries have now, rounded up to 25.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import structure

FILE = Path(__file__).parent / "data" / "line_budget.tsv"
STEP = 25  # lines to which budgets are rounded up
LONG = 40  # lines of a function, above which it is counted


@dataclass
class EntryCounts:
    """What one entry of `workbench/` holds."""

    lines: int = 0
    long_functions: int = 0
    arrows_in: int = 0  # entries that import from it
    arrows_out: int = 0  # entries that it imports from


def entry_of(path: Path, root: Path) -> str:
    """Return the entry of `workbench/` that a file belongs to."""
    return path.relative_to(root / "workbench").parts[0]


def counts(root: Path) -> dict[str, EntryCounts]:
    """Return the counts of each entry, by its name."""
    result: dict[str, EntryCounts] = defaultdict(EntryCounts)
    arrows: set[tuple[str, str]] = set()
    for path, lines in structure.formatted_lines(root).items():
        entry = entry_of(path, root)
        result[entry].lines += lines
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.end_lineno is not None  # parsed from a file
                result[entry].long_functions += node.end_lineno - node.lineno >= LONG
        below = {entry_of(other, root) for other in structure.imports(path, root)}
        arrows |= {(entry, other) for other in below - {entry}}
    for entry, number in Counter(source for source, _ in arrows).items():
        result[entry].arrows_out = number
    for entry, number in Counter(target for _, target in arrows).items():
        result[entry].arrows_in = number
    return dict(result)


def budgets() -> dict[str, int]:
    """Return the budget of each entry."""
    rows = (line.split("\t") for line in FILE.read_text(encoding="utf-8").splitlines()[1:])
    return {entry: int(lines) for entry, lines in rows}


def excesses(now: dict[str, EntryCounts], allowed: dict[str, int]) -> list[str]:
    """Return a sentence for each entry above its budget, or without one."""
    over = {entry: known.lines - allowed.get(entry, 0) for entry, known in now.items()}
    return [
        f"workbench/{entry} has {lines:,} lines more than its budget in {FILE.name}."
        for entry, lines in sorted(over.items())
        if lines > 0
    ]


def table(now: dict[str, EntryCounts], allowed: dict[str, int]) -> str:
    """Return the counts as text, the largest entry first."""
    heads = f"{'entry':14}{'lines':>8}{'budget':>8}{'over 40':>9}{'in':>4}{'out':>5}"
    rows = sorted(now.items(), key=lambda item: -item[1].lines)
    lines = [
        f"{entry:14}{one.lines:8,}{allowed.get(entry, 0):8,}{one.long_functions:9}"
        f"{one.arrows_in:4}{one.arrows_out:5}"
        for entry, one in rows
    ]
    total = sum(one.lines for one in now.values())
    return "\n".join([heads, *lines, f"{'all':14}{total:8,}{sum(allowed.values()):8,}"])


def main() -> int:
    """Print the table. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", action="store_true", help="write the budgets as they are now")
    now = counts(structure.HERE)
    if parser.parse_args().set:
        rows = [f"{entry}\t{-(-one.lines // STEP) * STEP}" for entry, one in sorted(now.items())]
        FILE.write_text("\n".join(["entry\tlines", *rows, ""]), encoding="utf-8")
    allowed = budgets()
    print(table(now, allowed))
    for sentence in (wrong := excesses(now, allowed)):
        print(f"error: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
