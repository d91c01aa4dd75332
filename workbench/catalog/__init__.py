"""Find kernels by listing directories; there is no hand-kept table of them."""

import difflib
import hashlib
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import workbench.spec
from workbench.catalog.declared import misfit
from workbench.data.bytecode import user_bytecode
from workbench.data.contributed import EXAMPLE_MODULES, EXAMPLES, contributed_modules
from workbench.data.parts import missing_part
from workbench.data.user_code import UserCodeExit, user_code
from workbench.spec import Impl, Spec, WorkbenchError

workbench.spec.watched = user_code  # also around the functions of kernels that are found elsewhere

KERNELS = "workbench.kernels"
VARIANTS = "workbench.variants"  # kernels that exist for experiments
METAL = "metal_shim.kernels"  # the same file names; each adds an Impl to the same Spec


class CatalogError(WorkbenchError, ValueError):
    """A kernel or Impl cannot be found or loaded. The message is one sentence: what was requested,
    what is missing or nearest, and what to do."""


def kernel_names() -> list[str]:
    """Return the names of the built-in kernels, without importing them."""
    return names_in(KERNELS)


def names_in(package: str) -> list[str]:
    """Return the sorted names of a package's modules, not imported; empty if it is missing."""
    try:
        result = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # its parent is not there either
        return []
    folders = list(result.submodule_search_locations or []) if result else []
    files = {file for folder in folders for file in os.listdir(folder) if file.endswith(".py")}
    return sorted(file.removesuffix(".py") for file in files - {"__init__.py"})


def spec_of(kernel: str, metal: bool = True, bare: bool = False) -> Spec:
    """Return the Spec of a kernel given by its name, dotted module or file path, without the Impl
    that its `metal` version adds if that is False. A `bare` one, which only judges kernels of other
    files, needs no Impl.

    Raises CatalogError where there is none, or where the file does not fit the format.
    """
    return _spec_in(module_of(kernel, metal), kernel, bare)


def module_of(kernel: str, metal: bool = True) -> ModuleType:
    """Return the module of a kernel: `matmul`, `package.module` or `path/to/mine.py`.

    Raises CatalogError where there is none, or where it cannot be imported.
    """
    with _one_thread:
        return _module_of(kernel, metal)


def _contributed_module(kernel: str) -> str | None:
    """Return the module of a kernel of an installed package; None for any other name."""
    return contributed_modules("workbench.kernels").get(kernel)


def known_kernels() -> list[str]:
    """Return the names of all kernels: built-in, and of installed packages."""
    return sorted({*kernel_names(), *contributed_modules("workbench.kernels")})


def file_of(kernel: str) -> Path:
    """Return the file of a kernel, without importing it or the packages that it is in. Raises
    CatalogError where there is none."""
    if is_path(kernel):
        if Path(kernel).is_file():
            return Path(kernel)
        raise _no_file(Path(kernel))
    if "." not in kernel:
        folder = KERNELS if kernel in kernel_names() else VARIANTS
        own = f"{folder}.{kernel}" if kernel in names_in(folder) else None
        kernel = own or _contributed_module(kernel) or kernel
    within = Path(*kernel.split(".")).with_suffix(".py")
    for entry in (*sys.path, "") if "." in kernel else ():
        if (file := Path(entry or ".") / within).is_file():
            return file.absolute()
    raise _no_kernel(kernel)


def _no_kernel(kernel: str) -> WorkbenchError:
    """Return the error on a name that is no kernel's: the nearest names, or the part that ours are
    in where it is not installed."""
    hint = example("kernel", kernel, "--kernel ")
    error = CatalogError(hint or name_hint("kernel", kernel, known_kernels()))
    return missing_part("kernels") or error


_one_thread = threading.RLock()  # threads of a command on several GPUs import kernels


def _module_of(kernel: str, metal: bool) -> ModuleType:
    if is_path(kernel):
        return _file_module(Path(kernel))
    if "." in kernel:
        return _import(kernel, kernel)
    folder = KERNELS if _has(KERNELS, kernel) else VARIANTS
    if folder == VARIANTS and not _has(VARIANTS, kernel):
        if (module_name := _contributed_module(kernel)) is not None:
            return _import(module_name, kernel)
        raise _no_kernel(kernel)
    module = _import(f"{folder}.{kernel}", kernel)
    if metal and _has(METAL, kernel):
        _import(f"{METAL}.{kernel}", kernel)
    return module


def _has(package: str, name: str) -> bool:
    """Return whether a package has a module, without importing it. Its folder is read only where
    the module was not imported yet."""
    return f"{package}.{name}" in sys.modules or name in names_in(package)


def absolute(kernel: str) -> str:
    """Return the name of a kernel as another process finds it: a path becomes absolute."""
    return str(Path(kernel).resolve()) if is_path(kernel) else kernel


def is_kernel(name: str) -> bool:
    """Return whether a word names a kernel: one that is here, or any dotted module or path."""
    own = is_path(name) or "." in name or name in (*kernel_names(), *names_in(VARIANTS))
    return own or _contributed_module(name) is not None


def is_path(name: str) -> bool:
    """Return whether the name of a kernel or an experiment is the path of a file."""
    return name.endswith(".py") or "/" in name


def example(what: str, name: str, words: str) -> str:
    """Return a sentence that gives the path of the example with that name.

    It is empty if there is none; the folder of examples exists only in a clone. Experiments and
    readers in it are found by their names, and are no kernels.
    """
    for path in sorted(EXAMPLES.rglob("*.py")):
        if path.stem == name and path.parent.name not in EXAMPLE_MODULES:
            near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            return f"There is no {what} {name!r}, but an example; name its path: {words}{near}."
    return ""


def version_of(path: Path, bare: bool = False) -> Spec:
    """Return the Spec of a kernel's file as it is in one checkout of a repository, beside the same
    file of other checkouts in this process.

    Imports of the file from its repository use the same checkout: entries of `sys.path` inside a
    sibling checkout are moved to this one during the import, and modules of siblings in
    `sys.modules` are dropped first (modules that imported them keep them). An import that a
    launcher makes only when it is called finds the version loaded last. Raises CatalogError where
    the file cannot be loaded.
    """
    path = path.resolve()
    root = _checkout(path)
    if root is None or _name_of(path) in sys.modules:
        return spec_of(str(path), bare=bare)
    before = list(sys.path)
    _drop_siblings(root)
    sys.path[:] = [str(_move_entry(Path(entry or "."), root)) for entry in before]
    importlib.invalidate_caches()
    try:
        with _bind_files(_shared_files(path)):
            return spec_of(str(path), bare=bare)
    finally:
        sys.path[:] = before


def impl_of(spec: Spec, name: str) -> Impl:
    """Return the Impl of that name. Raises CatalogError, which lists the nearest names."""
    for impl in spec.impls:
        if impl.name == name:
            return impl
    raise CatalogError(name_hint(f"impl of {spec.name}", name, [i.name for i in spec.impls]))


def name_hint(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message for an unknown name: `There is no kernel 'matmull'; did you mean matmul?
    Known: copy, matmul, softmax.`"""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    return f"There is no {what} {name!r}{hint} Known: {', '.join(known)}."


_SHARED = re.compile(rf"^from {re.escape(KERNELS)} import (\w+)", re.MULTILINE)


def _shared_files(path: Path) -> dict[str, Path]:
    """Return the files beside a kernel's that it takes device code from, by dotted name: those of
    `from workbench.kernels import attention`."""
    try:
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CatalogError(f"{path} cannot be read ({reason}); correct it first.") from None
    beside = {name: path.parent / f"{name}.py" for name in _SHARED.findall(text)}
    return {f"{KERNELS}.{name}": file for name, file in beside.items() if file.is_file()}


@contextmanager
def _bind_files(files: Mapping[str, Path]) -> Iterator[None]:
    """Let imports of these dotted names find these files, each as a module of its own."""
    known = kernel_names()
    real = {name: import_module(name) for name in files if name.rpartition(".")[2] in known}
    try:
        for dotted, file in files.items():
            _bind(dotted, _file_module(file))
        yield
    finally:
        for dotted, module in real.items():
            _bind(dotted, module)


def _bind(dotted: str, module: ModuleType) -> None:
    home, _, name = dotted.rpartition(".")
    sys.modules[dotted] = module
    setattr(import_module(home), name, module)


def _file_module(path: Path) -> ModuleType:
    if not path.is_file():
        raise _no_file(path)
    return module_at(path)


def _no_file(path: Path) -> CatalogError:
    return CatalogError(
        f"There is no kernel file {path}; `workbench new-kernel NAME` writes one to start from."
    )


def module_at(path: Path) -> ModuleType:
    """Return the module of a file, which may import the files beside it by their names.

    Raises CatalogError where it cannot be imported.
    """
    name = _name_of(path)
    if name in sys.modules:
        return sys.modules[name]
    result = importlib.util.spec_from_file_location(name, path.resolve())
    if result is None or result.loader is None:
        raise CatalogError(f"{path} is not a Python file; name one that ends in .py.")
    module = importlib.util.module_from_spec(result)
    sys.modules[name] = module  # dataclasses and Triton look their module up
    try:
        with _search_folder(path.resolve().parent), _importing(str(path)), user_bytecode():
            result.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise CatalogError(_import_failure(str(path), error)) from error
    return module


@contextmanager
def _search_folder(folder: Path) -> Iterator[None]:
    """Let imports find the files of a folder, after all others, like those beside a script.

    They are removed from `sys.modules` afterwards, so that a file of the same name in another
    folder is not mistaken for one of them; modules that imported them keep them.
    """
    if str(folder) in sys.path:
        yield
        return
    known = set(sys.modules)
    sys.path.append(str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        new = set(sys.modules) - known
        theirs = {name for name in new if "." not in name and _lies_in(folder, sys.modules[name])}
        for name in new:
            if name.partition(".")[0] in theirs:
                del sys.modules[name]


def _lies_in(folder: Path, module: ModuleType) -> bool:
    """Return whether this module is a file or a package of a folder, not a kernel by its path."""
    file = Path(getattr(module, "__file__", None) or ".")
    path = file.parent if file.name == "__init__.py" else file
    return path.parent == folder and not module.__name__.startswith("_kernel_")


def _name_of(path: Path) -> str:
    """Return the name of a file's module in `sys.modules`, another for each file of one name."""
    return f"_kernel_{path.stem}_{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:8]}"


_OURS = ("workbench", "metal_shim", "__main__", "__mp_main__")  # never two versions of these


_INSTALLED = f"{os.sep}site-packages{os.sep}"


def _drop_siblings(root: Path) -> None:
    """Forget modules that lie in another checkout of the repository whose checkout is `root`."""
    for name, module in list(sys.modules.items()):
        file = _place_of(module)
        if not file or name.partition(".")[0] in _OURS or name.startswith("_kernel_"):
            continue
        if _INSTALLED in file:  # most of thousands: no path is made of them
            continue
        theirs = _checkout(Path(file))
        if theirs is not None and theirs != root and _store(theirs) == _store(root):
            del sys.modules[name]


def _place_of(module: ModuleType) -> str:
    """Return the file of a module, or the first folder of a namespace package, which has folders
    alone and holds its submodules as attributes; empty if it has neither."""
    if file := getattr(module, "__file__", None):
        return str(file)
    try:
        return str(next(iter(getattr(module, "__path__", ())), ""))
    except KeyError:  # its parent package was dropped from `sys.modules`
        return ""


def _move_entry(entry: Path, root: Path) -> Path:
    """Return an entry of `sys.path`, moved to the checkout `root` if it lies in a sibling checkout
    and the same folder exists in `root`."""
    entry = entry.absolute()
    theirs = _checkout(entry)
    if theirs is None or theirs == root or _store(theirs) != _store(root):
        return entry
    there = root / entry.resolve().relative_to(theirs)
    return there if there.is_dir() else entry


def _checkout(path: Path) -> Path | None:
    """Return the root of the git checkout that holds a file; None outside of any."""
    if "site-packages" in path.parts or "dist-packages" in path.parts:
        return None
    return _root(path if path.is_dir() else path.parent)


@cache
def _root(folder: Path) -> Path | None:
    folder = folder.resolve()
    return next((p for p in (folder, *folder.parents) if (p / ".git").exists()), None)


@cache
def _store(root: Path) -> Path:
    """Return the folder of the repository's objects: the same for all its worktrees, whose `.git`
    is a file, `gitdir: REPOSITORY/.git/worktrees/NAME`."""
    mark = root / ".git"
    if mark.is_dir():
        return mark
    named = Path(mark.read_text().partition(":")[2].strip())
    inside = named if named.is_absolute() else (root / named).resolve()
    return inside.parents[1] if inside.parent.name == "worktrees" else inside


def _importing(kernel: str) -> AbstractContextManager[None]:
    """Return a context manager for an import of the user's code. What such a file usually imports
    is there before its time counts: torch can take a minute from a cold disk."""
    import torch  # noqa: F401

    return user_code(f"the import of {kernel}")


def _import(dotted: str, kernel: str) -> ModuleType:
    try:
        users = dotted.partition(".")[0] not in _OURS
        with _importing(kernel), user_bytecode() if users else nullcontext():
            return import_module(dotted)
    except Exception as error:
        raise CatalogError(_import_failure(kernel, error)) from error


def _import_failure(kernel: str, error: BaseException) -> str:
    trace, line = error.__traceback__, ""
    file = Path(kernel).name if kernel.endswith(".py") else kernel.rpartition(".")[2] + ".py"
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).name == file:
            line = f", line {trace.tb_lineno}"
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.lineno:
        line = f", line {error.lineno}"
    kind = "" if isinstance(error, UserCodeExit) else f"{type(error).__name__}{line}: "
    text = " ".join(str(error).split())[:300]
    return f"{kernel} cannot be imported ({kind}{text}); correct it first."


def _spec_in(module: ModuleType, kernel: str, bare: bool = False) -> Spec:
    """Return the one Spec of a module. Raises CatalogError, which says what the file lacks."""
    specs = [v for v in vars(module).values() if isinstance(v, Spec)]
    specs = list({id(s): s for s in specs}.values())
    mine = [s for s in specs if _declared_in(s, module)] or (specs if bare else [])
    see = "see docs/kernel_file.md, or `workbench new-kernel NAME` for a working file"
    if not specs and (functions := _plain_functions(module)):
        raise CatalogError(_missing_spec_advice(kernel, functions))
    if not mine:
        lack = "a Spec" if not specs else "an impl: decorate a launcher with @<spec>.impl(Config)"
        raise CatalogError(f"{kernel} lacks {lack}; {see}.")
    if len(mine) > 1:
        names = ", ".join(str(s.name)[:64] for s in mine)
        raise CatalogError(f"{kernel} holds {len(mine)} Specs ({names}); one file is one kernel.")
    spec = mine[0]
    if not bare and not any(i.backend in ("triton", "metal") for i in spec.impls):
        raise CatalogError(
            f"{kernel} has no Triton impl and no Metal impl, so there is nothing to sweep; {see}."
        )
    if _fitting.get(id(spec)) != (spec, len(spec.impls)):
        if reason := misfit(spec):
            raise CatalogError(f"{kernel}: {reason}; {see}.")
        _fitting[id(spec)] = spec, len(spec.impls)
    return spec


def _plain_functions(module: ModuleType) -> dict[str, Any]:
    """Return the functions of a module that Triton compiles, by name, within their autotuners."""
    functions = {}
    for name, value in vars(module).items():
        while not hasattr(value, "params") and hasattr(value, "fn"):
            value = value.fn
        if hasattr(value, "arg_names") and getattr(value, "__module__", "") == module.__name__:
            functions[name] = value
    return functions


def _missing_spec_advice(kernel: str, functions: Mapping[str, Any]) -> str:
    """Return what to run for a file of plain `@triton.jit` functions."""
    name, function = next(iter(functions.items()))
    constants = [p.name for p in function.params if p.is_constexpr]
    words = [f"--arg {p.name}=..." for p in function.params if not p.is_constexpr]
    if constants:
        words.append(f"--config {','.join(f'{c}=64' for c in constants)}")
    return (
        f"{kernel} has no Spec, which this command needs, but @triton.jit functions "
        f"({', '.join(functions)}): run `workbench tune {kernel}:{name} {' '.join(words)} --grid "
        f"'cdiv(..., {(constants or ['...'])[0]})'`, where an --arg is a number or "
        "bf16[8192,4096]; or call wb.tune; `workbench new-kernel NAME` writes a file with a Spec."
    )


# Specs that fit the format and how many Impls they had, by identity. A check takes 0.3 ms, and a
# sweep asks for its kernel thousands of times.
_fitting: dict[int, tuple[Spec, int]] = {}


def _declared_in(spec: Spec, module: ModuleType) -> bool:
    homes = (getattr(impl.launch, "__module__", None) for impl in spec.impls)
    return module.__name__ in homes
