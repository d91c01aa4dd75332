"""Single changes of the tree's functions, drawn by a seed: an operator, then a place where it fits.

Device code, annotations and texts are left alone, and what would only be a TypeError, as a minus
between strings, is not drawn.
"""

from __future__ import annotations

import ast
import hashlib
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDERS = ("workbench", "metal_shim", "examples/experiments", "examples/readers")
LEAST = 8  # of each subsystem
# Entries of `workbench/` and `examples/` by subsystem; what none names is of the foundation.
SUBSYSTEMS = {
    "kernels": ("kernels", "variants", "sweeps"),
    "data": ("data", "revisions"),
    "device": ("device", "devices"),
    "traces": ("traces", "readers"),
    "measurement": ("measurement",),
    "compile": ("compile", "code"),
    "backend": ("backend",),
    "tuner": ("tuner", "evaluation"),
    "ops": ("adapted", "ops"),
    "workload": ("workload",),
    "reports": ("reports",),
    "experiments": ("experiments",),
    "commands": ("commands", "api", "cli", "sweep"),
}
SWAPPED = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.And: ("and", "or"), ast.Or: ("or", "and"), ast.Add: ("+", "-"), ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"),
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
TEXTS = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)


@dataclass(frozen=True)
class Change:
    """A part of one line of a function that becomes another text."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str
    operator: str
    function: tuple[str, int]  # its name, and the line of its first statement
    text: str  # the whole line

    @property
    def name(self) -> str:
        """Return the place and the two texts."""
        return f"{self.file}:{self.line} {self.old!r} to {self.new!r}"

    def rank(self, seed: int) -> str:
        """Return the place of the change in a seed's order."""
        return digest(seed, self.file, self.function[0], self.text.strip(), self.start, self.new)

    def planted(self, tree: Path) -> None:
        """Write the change into a copy of the tree."""
        path = tree / self.file
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        line = lines[self.line - 1]
        assert line[self.start : self.end] == self.old, self.name
        lines[self.line - 1] = line[: self.start] + self.new + line[self.end :]
        path.write_text("".join(lines), encoding="utf-8")


def subsystem_of(file: str) -> str:
    """Return the subsystem of a path below the root."""
    top, entry, *_ = Path(file).with_suffix("").parts
    if top == "metal_shim":
        return "metal"
    names = [name for name, entries in SUBSYSTEMS.items() if entry in entries]
    return names[0] if names else "foundation"


def drawn(seed: int, count: int) -> list[Change]:
    """Return so many changes: LEAST of each subsystem, the rest by its number of places. Each place
    has its rank by the seed and its own text, so that a change elsewhere in the tree leaves a draw
    nearly as it was."""
    places = by_subsystem()
    numbers = shares({name: len(some) for name, some in places.items()}, count)
    result = []
    for name, number in numbers.items():
        by_operator = defaultdict(list)
        for change in sorted(places[name], key=lambda c: c.rank(seed), reverse=True):
            by_operator[change.operator].append(change)
        order = sorted(by_operator, key=lambda operator: digest(seed, name, operator))
        for operator in cycle(order):
            if number == 0 or not any(by_operator.values()):
                break
            if some := by_operator[operator]:
                result.append(some.pop())
                number -= 1
    return result


def digest(*parts: object) -> str:
    """Return a text that follows from these and looks drawn."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def shares(sizes: dict[str, int], count: int) -> dict[str, int]:
    """Return how many of each name make `count`: LEAST, and of the rest a part by size."""
    least = {name: min(LEAST, count // len(sizes)) for name in sizes}
    rest, whole = count - sum(least.values()), sum(sizes.values())
    result = {name: least[name] + rest * size // whole for name, size in sizes.items()}
    for name in sorted(sizes, key=lambda n: -sizes[n])[: count - sum(result.values())]:
        result[name] += 1
    return result


@cache  # parses the whole tree, 3 s
def by_subsystem() -> dict[str, list[Change]]:
    """Return every change that may be drawn, but for the equivalent ones, by subsystem."""
    known = tomllib.loads((HERE / "equivalent.toml").read_text(encoding="utf-8"))
    equivalent = {(m["file"], m["line"], m["new"]) for m in known.get("mutant", [])}
    result = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            file, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            for change in changes_of(file, text):
                if (file, change.text.strip(), change.new) not in equivalent:
                    result[subsystem_of(file)].append(change)
    return dict(sorted(result.items()))


def changes_of(file: str, text: str) -> Iterator[Change]:
    """Yield each change of the functions of a file."""
    lines = text.splitlines()
    for function in functions(ast.parse(text)):
        body = [n for n in function.body if not is_docstring(n)]
        if not body or "jit" in " ".join(map(ast.unparse, function.decorator_list)):
            continue
        key = function.name, first_line(body[0])
        for node in (node for statement in body for node in own_nodes(statement)):
            for operator, line, start, end, new in edits(node, lines):
                old = lines[line - 1][start:end]
                if lines[line - 1].isascii():  # columns of a syntax tree are bytes
                    yield Change(file, line, start, end, old, new, operator, key, lines[line - 1])


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """Yield the functions of a module."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement's nodes without those of functions in it, of errors and of annotations."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Raise, ast.Assert, ast.JoinedStr)):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name != "annotation":
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from own_nodes(child)


def is_docstring(node: ast.stmt) -> bool:
    """Return whether a statement is a text alone."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def first_line(statement: ast.stmt) -> int:
    """Return the line that a statement begins at, with its decorators."""
    above = [n.lineno for n in getattr(statement, "decorator_list", ())]
    return min([statement.lineno, *above])


def edits(node: ast.AST, lines: list[str]) -> Iterator[tuple[str, int, int, int, str]]:
    """Yield operator, line, first and last column and the new text of each change of a node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from between(node.left, node.comparators[0], SWAPPED.get(type(node.ops[0])), lines)
    elif isinstance(node, ast.BoolOp):
        yield from between(node.values[0], node.values[1], SWAPPED[type(node.op)], lines)
    elif isinstance(node, ast.BinOp) and not any(map(is_text, (node.left, node.right))):
        yield from between(node.left, node.right, SWAPPED.get(type(node.op)), lines)
    elif isinstance(node, ast.AugAssign) and not is_text(node.value):
        yield from between(node.target, node.value, ("+=", "="), lines)
    elif isinstance(node, (ast.Continue, ast.Break)):
        old, new = sorted(("continue", "break"), key=lambda w: w != type(node).__name__.lower())
        yield "continue", node.lineno, node.col_offset, node.col_offset + len(old), new
    elif isinstance(node, ast.If) and one_line(node.test):
        yield inverted(node.test, lines)
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield "min and any", *place(node), NAMES[node.id]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and one_line(node):
        yield "call removed", *place(node), "pass"
    elif isinstance(node, ast.IfExp) and one_line(node):
        parts = [ast.get_source_segment(lines[node.lineno - 1], at_line_one(p)) for p in
                 (node.orelse, node.test, node.body)]  # fmt: skip
        yield "branches swapped", *place(node), f"{parts[0]} if {parts[1]} else {parts[2]}"
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        yield "number", *place(node), repr(other(node.value))


def other(value: bool | float) -> bool | float:
    """Return another value of the same kind."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value * 2 or 1.0


def inverted(test: ast.expr, lines: list[str]) -> tuple[str, int, int, int, str]:
    """Return the change of a condition to its opposite."""
    line, start, end = place(test)
    return "condition inverted", line, start, end, f"not ({lines[line - 1][start:end]})"


def between(
    left: ast.expr, right: ast.expr, swap: tuple[str, str] | None, lines: list[str]
) -> Iterator[tuple[str, int, int, int, str]]:
    """Yield the change of the operator that stands on one line between two operands."""
    if swap is None or left.end_lineno != right.lineno or right.lineno is None:
        return
    line, start, end = right.lineno, left.end_col_offset or 0, right.col_offset
    found = re.search(rf"(?<![\w<>=!*/]){re.escape(swap[0])}(?![\w=])", lines[line - 1][start:end])
    if found:
        yield swap[0], line, start + found.start(), start + found.end(), swap[1]


def is_text(node: ast.expr) -> bool:
    """Return whether an operand is a text or a list, of which a difference is a TypeError."""
    return isinstance(node, TEXTS) or (
        isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    )


def one_line(node: ast.expr | ast.stmt) -> bool:
    """Return whether a node stands on one line."""
    return node.lineno == node.end_lineno


def place(node: ast.expr | ast.stmt) -> tuple[int, int, int]:
    """Return the line of a node and its columns."""
    return node.lineno, node.col_offset, node.end_col_offset or 0


def at_line_one(node: ast.expr) -> ast.expr:
    """Return a node whose place is that in its line alone."""
    copy = ast.copy_location(ast.Constant(None), node)
    copy.lineno = copy.end_lineno = 1
    return copy
