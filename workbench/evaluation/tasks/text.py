"""Texts of a task: the Spec that judges, and the submission as a kernel's file."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from workbench.evaluation.launcher_text import DEVICE
from workbench.spec import WorkbenchError

SPEC_FILE = "workbench_task.py"
REFERENCE = "workbench_reference"  # module of the judge's reference
_ON_GPU = ("cuda", "cuda:0")
# What stands in an assertion about where tensors lie, and has no effect.
_CHECKS = (ast.Assert, ast.BoolOp, ast.And, ast.Name, ast.Attribute, ast.Load, ast.Compare, ast.Eq)


class TaskError(WorkbenchError):
    """A task or a submission is not in its format; one sentence says why."""


@dataclass(frozen=True)
class TaskFiles:
    """A task and a submission as they were read."""

    format: str  # module of this package
    trusted_files: Mapping[str, bytes]  # by name: the Spec's file and those that it imports
    submission: bytes
    entry: str  # function or class of the submission that is called
    dtype: str = "fp32"  # by which the ceilings of a device are chosen
    helpers: Mapping[str, bytes] = field(default_factory=dict)  # of the submission


def read(path: Path) -> bytes:
    """Return the content of a file. Raises TaskError."""
    try:
        return path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TaskError(f"{path} cannot be read ({reason}); name another file.") from None


def parse_file(data: bytes, name: str) -> ast.Module:
    """Return the syntax tree of a file. Raises TaskError."""
    try:
        return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TaskError(f"{name} is not Python ({error}); correct it.") from None


def defines(tree: ast.Module, name: str) -> bool:
    """Return whether a file defines a function, a class or a value of this name at its top."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return True
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            return True
        if isinstance(node, ast.ImportFrom) and any(
            (alias.asname or alias.name) == name for alias in node.names
        ):
            return True
    return False


def spec_text(format: str, name: str) -> bytes:
    """Return the file of a task's Spec, with the task's name."""
    plain = re.sub(r"\W", "_", name)
    title = plain if plain[:1].isalpha() else f"task_{plain}"
    return (
        '"""The Spec of a task, whose reference lies beside this file."""\n\n'
        f"import {REFERENCE}\n\n"
        f"from workbench.evaluation.tasks.{format} import spec_of\n\n"
        f'task = spec_of({REFERENCE}, "{title}")\n'
    ).encode()


def kernel_text(files: TaskFiles) -> bytes:
    """Return a submission as a kernel's file: its own lines, and an Impl that calls it with the
    arguments of its format."""
    text = portable(files.submission)
    tail = (
        f"\n\nfrom {SPEC_FILE.removesuffix('.py')} import task as workbench_task\n"
        f"{DEVICE} = None\n\n\n"
        f'@workbench_task.impl(name="{files.entry}", mutates=workbench_task.mutates)\n'
        "def workbench_launch(*inputs):\n"
        f"    global {DEVICE}\n"
        f"    {DEVICE} = inputs[0].device\n"
        f"    return workbench_task.call_submission({files.entry}, inputs)\n"
    )
    return text + tail.encode()


def portable(data: bytes) -> bytes:
    """Return the text of a submission without what only a GPU fulfils, each line in its place:
    assertions that tensors lie on one, and `device="cuda"` of an allocation."""
    tree = parse_file(data, "the submission")
    lines = data.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    places = sorted(_replacements(tree), key=lambda pair: (pair[0].lineno, pair[0].col_offset))
    for node, text in reversed(places):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        gone = data[begin:end].count(b"\n")
        new = f"({text}{chr(10) * gone})" if gone else text
        data = data[:begin] + new.encode() + data[end:]
    return data


def _replacements(tree: ast.Module) -> Iterator[tuple[ast.expr, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and _is_about_gpu(node.test):
            yield node.test, "True"
        if isinstance(node, ast.Call):
            for word in node.keywords:
                if word.arg == "device" and _is_gpu(word.value):
                    yield word.value, DEVICE


def _is_gpu(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in _ON_GPU


def _is_about_gpu(test: ast.expr) -> bool:
    """Return whether a test asks where tensors lie, and nothing else."""
    nodes = list(ast.walk(test))
    asks = any(isinstance(n, ast.Attribute) and n.attr == "is_cuda" for n in nodes) or any(
        map(_is_gpu, nodes)
    )
    return asks and all(isinstance(n, _CHECKS) or _is_gpu(n) for n in nodes)
