"""Hash the code that decides an Impl's outcome: its parsed device code, launcher and helpers.

Comments, docstrings, formatting, the file's name and the sizes to time change nothing.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from workbench.spec import Impl

_NOT_HELPERS = ("workbench.spec", "torch", "triton", "numpy")  # the key itself holds versions
_PACKAGES = ("workbench.kernels", "workbench.variants")  # each name in them is a module
_LIBRARIES = ("site-packages", "dist-packages")


def code_hash(impl: Impl) -> str:
    """Return a hash of 16 hex digits of the code that decides the Impl's outcome.

    It covers the launcher, all of its file that the launcher and the Spec's inputs, outputs,
    reference and FLOPs name, and the helper modules that these import. Empty where the launcher has
    no file.
    """
    file = _file_of(impl)
    return _hash_of(file, impl.launch.__name__, _modified(file)) if file else ""


def file_hash(impl: Impl) -> str:
    """Return the hash of the file's text: the source of keys in schema 1."""
    file = _file_of(impl)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""


def _file_of(impl: Impl) -> str:
    """The file of the module that declares the launcher, which is not where its code lies for a
    function that was taken over: `workbench.adapted` names the generated file."""
    module = sys.modules.get(impl.launch.__module__)
    file = getattr(module, "__file__", None) or impl.launch.__globals__.get("__file__")
    return str(file) if file and Path(file).is_file() else ""


def _modified(file: str) -> int:
    return Path(file).stat().st_mtime_ns


@cache
def _hash_of(file: str, launcher: str, modified: int) -> str:
    parsed = _Parsed(file)
    digest = hashlib.sha256()
    for part in parsed.reached(launcher):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


class _Parsed:
    """One file by the names that it defines at its top level."""

    def __init__(self, file: str) -> None:
        self.folder = Path(file).parent
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
        self.defined: dict[str, list[ast.stmt]] = {}
        self.imported: dict[str, str] = {}  # the module of each imported name
        self.specs: list[str] = []
        self.registered: list[ast.stmt] = []  # statements that call a method of a Spec
        for node in _without_docstrings(tree).body:
            self._enter(node)

    def _enter(self, node: ast.stmt) -> None:
        node = _bare(node)
        for name in _bound(node):
            self.defined.setdefault(name, []).append(node)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                module = submodule if node.module in _PACKAGES else node.module
                self.imported[alias.asname or alias.name] = module
        elif isinstance(node, ast.Import):
            self.imported |= {a.asname or a.name: a.name for a in node.names}
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "Spec":
            self.specs += list(_bound(node))
            value.keywords = [k for k in value.keywords if k.arg not in ("bench", "name")]
        elif isinstance(value, ast.Call):
            self.registered.append(node)

    def reached(self, launcher: str) -> Iterator[str]:
        """Yield all code that the launcher and the Specs reach, in a fixed order: of this file
        statement by statement, of helper modules as a whole."""
        start = [launcher] if launcher in self.defined else list(self.defined)
        names, todo = set[str](), [*start, *self.specs]
        while todo:
            if (name := todo.pop()) in names:
                continue
            names.add(name)
            for node in self.defined.get(name, []):
                todo += [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
        if launcher not in self.defined:
            yield from (ast.dump(node) for node in self.registered)
        for name in sorted(names & self.defined.keys()):
            yield from (ast.dump(node) for node in self.defined[name])
        helpers = {self.imported[n] for n in names & self.imported.keys()}
        yield from (_module_code(module, self.folder) for module in sorted(helpers))


def _bare(node: ast.stmt) -> ast.stmt:
    """Return a launcher whose registering decorator holds `mutates` alone: rejections, work and
    defaults choose configs, and change the outcome of none."""
    for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith(".impl"):
            decorator.args = []
            decorator.keywords = [k for k in decorator.keywords if k.arg == "mutates"]
    return node


def _bound(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            yield from (n.id for n in ast.walk(target) if isinstance(n, ast.Name))


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
    return tree


def _module_code(module: str, folder: Path) -> str:
    """Return a helper module's parsed code, or nothing for libraries and Python's own modules. A
    file beside the kernel's replaces it where there is one, as when a kernel is loaded by path."""
    if module.split(".")[0] in sys.stdlib_module_names or module.startswith(_NOT_HELPERS):
        return ""
    beside = folder.joinpath(*module.removeprefix("workbench.kernels.").split("."))
    if beside.with_suffix(".py").is_file():
        return _code(beside.with_suffix(".py"))
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if file is None:
        try:
            spec = find_spec(module)
        except (ImportError, ValueError):
            return ""
        file = spec.origin if spec else None
    if not file or not str(file).endswith(".py") or any(p in file for p in _LIBRARIES):
        return ""
    return _code(Path(file))


def _code(file: Path) -> str:
    return ast.dump(_without_docstrings(ast.parse(file.read_text(encoding="utf-8"))))
