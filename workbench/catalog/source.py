"""Hash the code that decides an Impl's outcome: its parsed device code, launcher and helpers.

Comments, docstrings, formatting, the file's name and the sizes to time change nothing.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench import catalog
from workbench.spec import Impl, Spec, WorkbenchError

# Of the workbench these alone are code that a kernel runs; the rest is the tool.
_OURS = ("workbench.dsl", "workbench.kernels", "workbench.variants")
_LIBRARIES = ("site-packages", "dist-packages")
# Of a Spec: they choose sizes and inputs.
_NO_CODE = ("bench", "name", "nonfinite", "mutates", "refusable")
# Libraries whose version is part of every key; they may lie elsewhere, as a second Triton does.
_VERSIONED = ("torch", "triton")


def code_hash(impl: Impl) -> str:
    """Return a hash of 16 hex digits of the code that decides the Impl's outcome.

    It covers the launcher, all of its file that the launcher and the Spec's inputs, outputs,
    reference and FLOPs name, and the helper modules that these import. Empty where the launcher has
    no file.
    """
    file = _file_of(impl)
    return _hash_of(file, getattr(impl.launch, "__name__", ""), _modified_ns(file)) if file else ""


class SourceChanged(WorkbenchError):
    """A kernel's code is not the one that the command planned with."""


@dataclass(frozen=True)
class Loaded:
    """A kernel as this process imported it, with the hash of each Impl's code at that time."""

    spec: Spec
    hashes: Mapping[str, str]

    def load(self) -> None:
        """Import all that launches need, so that it is not part of a config's time."""
        for impl in self.spec.impls:
            impl.load()

    def impl(self, name: str, code: str) -> Impl:
        """Return the Impl of this name. Raises SourceChanged where its code is not that of the hash
        `code`, which may be empty if it is unknown."""
        impl = catalog.impl_of(self.spec, name)
        if code and self.hashes.get(name) not in ("", code):
            raise SourceChanged(
                f"The code of {impl.title} changed during the run; the results so far are "
                "stored, so run the command again for the new code."
            )
        return impl


@cache
def code_of_file(file: Path) -> str:
    """Return the code of a Python file without comments and docstrings; the text of any other."""
    if file.suffix == ".py":
        return ast.unparse(_parse(file))
    return file.read_text(encoding="utf-8", errors="backslashreplace")


@cache
def load_kernel(kernel: str, version: str | None = None, bare: bool = False) -> Loaded:
    """Import a kernel, or its file at another version, and return it; once in each process. Modules
    that it imports are those of its own checkout, whichever version was imported before it. A
    `bare` one may be a Spec without an Impl."""
    file = version or (kernel if catalog.is_path(kernel) and Path(kernel).is_file() else None)
    spec = catalog.version_of(Path(file), bare) if file else catalog.spec_of(kernel, bare=bare)
    return Loaded(spec, {impl.name: code_hash(impl) for impl in spec.impls})


def files_of(file: Path) -> list[Path]:
    """Return a file and the helper modules that it imports, directly and in turn. What cannot be
    parsed is returned, and followed no further."""
    seen: dict[Path, None] = {}
    todo = [file]
    while todo:
        if (path := todo.pop(0)) not in seen:
            seen[path] = None
            try:
                todo += _helper_files(ast.parse(path.read_bytes()), path.parent)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
    return list(seen)


def file_hash(impl: Impl) -> str:
    """Return the hash of the file's text: the source of keys in schema 1."""
    file = _file_of(impl)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""


def _file_of(impl: Impl) -> str:
    """The file of the module that declares the launcher, which is not where its code lies for a
    function that was taken over: `workbench.adapted` names the generated file."""
    module = sys.modules.get(getattr(impl.launch, "__module__", None) or "")
    known: Mapping[str, Any] = getattr(impl.launch, "__globals__", {})  # builtins have none
    file = getattr(module, "__file__", None) or known.get("__file__")
    return str(file) if file and Path(file).is_file() else ""


def _modified_ns(file: str) -> int:
    return Path(file).stat().st_mtime_ns


@cache
def _hash_of(file: str, launcher: str, modified: int) -> str:
    parsed = _parse_file(file, modified)
    digest = hashlib.sha256()
    for part in parsed.reached_code(launcher):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


@cache
def _parse_file(file: str, modified: int) -> _Parsed:
    """Return a file parsed, once for all its Impls while it stays as it is."""
    return _Parsed(file)


class _Parsed:
    """One file by the names that it defines at its top level."""

    def __init__(self, file: str) -> None:
        self.folder = Path(file).parent
        self.defined: dict[str, list[ast.stmt]] = {}
        self.specs: list[str] = []
        # Calls such as `spec.library(...)`, and definitions under `if` or `try`: nobody names them.
        self.unnamed: list[ast.stmt] = []
        for node in _parse(Path(file)).body:
            self._enter(_bare(node))

    def _enter(self, node: ast.stmt) -> None:
        bound = list(_bound_names(node))
        for name in bound:
            self.defined.setdefault(name, []).append(node)
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "Spec":
            self.specs += bound
            value.keywords = [k for k in value.keywords if k.arg not in _NO_CODE]
        elif not bound:
            self.unnamed.append(node)

    def reached_code(self, launcher: str) -> Iterator[str]:
        """Yield all code that the launcher and the Specs reach, in a fixed order: of this file
        statement by statement, of helper modules as a whole."""
        named = launcher in self.defined
        unnamed = [n for n in self.unnamed if not (named and isinstance(n, ast.Expr))]
        names, todo = set[str](), [*([launcher] if named else self.defined), *self.specs]
        todo += [name for node in unnamed for name in _names(node)]
        while todo:
            if (name := todo.pop()) not in names:
                names.add(name)
                todo += [n for node in self.defined.get(name, []) for n in _names(node)]
        nodes = [*unnamed, *(node for name in sorted(names) for node in self.defined.get(name, []))]
        yield from (ast.dump(node) for node in nodes)
        yield from _helper_code(nodes, self.folder)


def _helper_code(nodes: Sequence[ast.stmt], folder: Path) -> Iterator[str]:
    """Yield the code of each helper module that these statements import, and of those that it
    imports in turn; each once."""
    seen = dict[Path, str]()
    todo = [file for node in nodes for file in _helper_files(node, folder)]
    while todo:
        if (file := todo.pop()) not in seen:
            seen[file], imported = _helper(file, _modified_ns(str(file)))
            todo += imported
    yield from (seen[file] for file in sorted(seen))


@cache
def _helper(file: Path, modified: int) -> tuple[str, list[Path]]:
    """Return the code of a helper module and the helper modules that it imports. The Impls of a
    kernel share it: softmax, with five, is hashed in a fifth of the time."""
    tree = _parse(file)
    return ast.dump(tree), list(_helper_files(tree, file.parent))


def _helper_files(tree: ast.AST, folder: Path) -> Iterator[Path]:
    """Yield the files of helpers that a statement or a module imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            files = [_file_of_module(alias.name, folder) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module or ''}.{a.name}" for a in node.names)]
            modules = [name.strip(".") for name in names if name.strip(".")]
            if node.level:
                home = folder.joinpath(*[".."] * (node.level - 1))
                files = [_sibling_module(module, home) for module in modules]
            else:
                files = [_file_of_module(module, folder) for module in modules]
        else:
            continue
        yield from (file for file in files if file is not None)


def _file_of_module(module: str, folder: Path) -> Path | None:
    """Return the file of a helper module, or None for libraries, Python's own modules and the
    workbench itself. A file beside the importing one comes before an installed one, as when a
    kernel is loaded by its path."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in _VERSIONED:
        return None
    if top == "workbench" and not module.startswith(_OURS):
        return None
    if beside := _sibling_module(module.removeprefix("workbench.kernels."), folder):
        return beside
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        try:
            spec = find_spec(module)
        except (ImportError, ValueError):
            return None
        file = spec.origin if spec else None
    if not file or not str(file).endswith(".py") or any(part in file for part in _LIBRARIES):
        return None
    return Path(file).resolve()


def _sibling_module(module: str, folder: Path) -> Path | None:
    path = folder.joinpath(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file.resolve() for file in files if file.is_file()), None)


def _names(node: ast.stmt) -> Iterator[str]:
    return (n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def _bare(node: ast.stmt) -> ast.stmt:
    """Return a launcher whose registering decorator holds `mutates` alone: rejections, work and
    defaults choose configs, and change the outcome of none."""
    for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith(".impl"):
            decorator.args = []
            decorator.keywords = [k for k in decorator.keywords if k.arg == "mutates"]
    return node


def _bound_names(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement at the top of a file binds."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((a.asname or a.name).partition(".")[0] for a in node.names if a.name != "*")
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))


def _parse(file: Path) -> ast.Module:
    """Parse a file and drop its docstrings."""
    return parse_without_docstrings(file.read_bytes())


def parse_without_docstrings(text: bytes) -> ast.Module:
    """Return the syntax tree of a file without docstrings, by its bytes: their encoding is what
    Python takes it for."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
    return tree
