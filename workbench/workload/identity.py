"""Where a device function is, and a hash of its text and of all that it calls.

Triton's own `cache_key` holds the line number, so that an edit above a function changes it. Here
comments, docstrings, formatting and place do not count; the values of global constants that the
code names do.
"""

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from workbench.workload.signature import KernelFunction

LIBRARIES = ("triton", "torch", "builtins")  # their versions are recorded
VALUES = (bool, int, float, str, type(None))


def function_of(jit: Any, file: str | None = None) -> KernelFunction:
    """Return the identity of a JIT function. `file` replaces its own: Inductor's functions are
    made from a text whose file has another name."""
    plain = plain_function(jit)
    constexprs = constexprs_of(jit)
    return KernelFunction(
        plain.__name__,
        plain.__module__ or "",
        file or plain.__code__.co_filename,
        text_hash(jit),
        tuple(jit.arg_names),
        tuple(name for name in jit.arg_names if name in constexprs),
    )


def plain_function(jit: Any) -> Any:
    """Return the Python function below decorators."""
    while not inspect.isfunction(jit):
        jit = jit.fn
    return jit


def constexprs_of(jit: Any) -> frozenset[str]:
    """Return the names of the arguments that are constants of the machine code."""
    if (params := getattr(jit, "params", None)) is not None:
        return frozenset(p.name for p in params if p.is_constexpr)
    notes = inspect.get_annotations(plain_function(jit))  # the interpreter's functions
    return frozenset(name for name, note in notes.items() if "constexpr" in str(note))


def text_hash(jit: Any) -> str:
    """Return 16 hex digits that change with the code of a function or of one that it calls."""
    digest = hashlib.sha256()
    for part in _parts(jit, set()):
        digest.update(part.encode("utf-8", "backslashreplace") + b"\0")
    return digest.hexdigest()[:16]


def _parts(jit: Any, seen: set[int]) -> Iterator[str]:
    plain = plain_function(jit)
    if id(plain) in seen:
        return
    seen.add(id(plain))
    tree = _tree(jit)
    yield plain.__name__ if tree is None else ast.unparse(tree)
    if tree is None:
        return
    known = _namespace(plain)
    own = {*plain.__code__.co_varnames, *plain.__code__.co_cellvars}  # a script's `n` is none of it
    for name in sorted(n for n in _read_names(tree) if n.partition(".")[0] not in own):
        value = _resolve(name, known)
        if _is_jit(value):
            yield name
            yield from _parts(value, seen)
        elif isinstance(inner := getattr(value, "value", value), VALUES):  # a tl.constexpr's value
            yield f"{name}={inner!r}"


def _tree(jit: Any) -> ast.AST | None:
    """Return the parsed function without decorators and docstring; None where it has no text."""
    try:
        text = getattr(jit, "src", None) or inspect.getsource(plain_function(jit))
        node = ast.parse(textwrap.dedent(text)).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    if isinstance(node, ast.FunctionDef):
        node.decorator_list = []
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return node


def _namespace(plain: Any) -> Mapping[str, Any]:
    cells = zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=False)
    free = {}
    for name, cell in cells:
        try:
            free[name] = cell.cell_contents
        except ValueError:  # not yet assigned
            continue
    return {**plain.__globals__, **free}


def _read_names(tree: ast.AST) -> set[str]:
    """Return the names that the code reads, `a.b` as one."""
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names.add(f"{node.value.id}.{node.attr}")
    return names


def _resolve(name: str, known: Mapping[str, Any]) -> Any:
    """Return the value of a name; the function itself stands for nothing where it is a library's
    or a module."""
    first, _, rest = name.partition(".")
    value = known.get(first, known)
    if rest and isinstance(value, ModuleType) and not _is_library(value.__name__):
        value = getattr(value, rest, known)
    elif rest:
        return known
    return known if isinstance(value, ModuleType) else value


def _is_jit(value: Any) -> bool:
    inner = getattr(value, "fn", None)
    module = str(getattr(value, "__module__", "") or "")
    is_wrapped = inspect.isfunction(inner) or hasattr(inner, "fn")
    return hasattr(value, "arg_names") and is_wrapped and not _is_library(module)


def _is_library(module: str) -> bool:
    return module.split(".")[0] in LIBRARIES
