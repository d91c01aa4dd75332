"""Pass objects from the user's process to the workers: functions by their place in a file, plain
values as JSON. Also a description of code that does not change when lines move."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from workbench.compile.stand_in import NO_GPU, HiddenTarget, answering_for_gpu
from workbench.data.bytecode import user_bytecode
from workbench.data.environment import gpu_shown
from workbench.device.hardware import device_named
from workbench.spec import WorkbenchError

PLAIN = (bool, int, float, str, type(None))
_log = logging.getLogger("workbench")
LIBRARIES = ("triton", "torch", "numpy", "builtins")  # their versions are part of every key


class AdaptedError(WorkbenchError, ValueError):
    """A user's kernel cannot be adapted; one sentence: what, where, and what to do."""


class Importing:
    """The user's file that this process is importing, if any: a `tune` that runs then was called by
    the file's top level."""

    file: str | None = None


@dataclass(frozen=True)
class Place:
    """Where another process finds a function: its file, its module, its name in there."""

    file: str
    module: str
    name: str
    config: int | None = None  # the hook of this config of the named autotuner is meant

    @staticmethod
    def locate(function: Any) -> Place:
        """Return the place of a function. Raises AdaptedError where no import gives this object."""
        plain = base(function)
        named = f"{plain.__module__}.{plain.__qualname__}"
        file = inspect.getsourcefile(plain)
        if file is None or not Path(file).is_file():
            raise AdaptedError(f"{named} is in no file; workers import it, so write it into one.")
        module = sys.modules.get(plain.__module__)
        held = [n for n, v in vars(module).items() if v is function] if module else []
        name = held[0] if held else plain.__qualname__
        try:
            there = reduce(getattr, name.split("."), module)
        except AttributeError:
            there = None
        if there is None or base(there) is not plain or _layers(there) != _layers(function):
            raise AdaptedError(
                f"{named} is not found at the top level of {file} as it was given; workers import "
                "it from there, so define it outside functions and give that very object."
            )
        return Place(str(Path(file).resolve()), plain.__module__, name)

    def find(self) -> Any:
        """Return the function, importing its file once. Raises AdaptedError."""
        match = reduce(getattr, self.name.split("."), self._module())
        if self.config is None:
            return match
        while not hasattr(match, "configs"):  # below `heuristics`
            match = match.fn
        return match.configs[self.config].pre_hook

    @staticmethod
    def find_hook(hook: Any, kernel: Any) -> Place:
        """Return the place of a config's hook. One that a function returned, and that no name
        finds, is found by its place among the configs of the kernel's own autotuner. Raises
        AdaptedError where neither finds it."""
        try:
            return Place.locate(hook)
        except AdaptedError:
            layer = kernel
            while layer is not None:
                for i, config in enumerate(getattr(layer, "configs", None) or ()):
                    if config.pre_hook is hook:
                        return replace(Place.locate(kernel), config=i)
                layer = getattr(layer, "fn", None)
            raise

    def _module(self) -> ModuleType:
        name = f"_adapted_{hashlib.sha256(self.file.encode()).hexdigest()[:8]}"
        # a process that found the function of a script knows the script by our name for it
        main = self.module in ("__main__", "__mp_main__", name)
        name = name if main else self.module
        if name in sys.modules:
            return sys.modules[name]
        root = Path(self.file).parents[0 if main else self._depth()]
        if str(root) not in sys.path:  # a script's folder, or the one that holds its package
            sys.path.append(str(root))
        Importing.file = self.file
        try:
            return self._import_file(name, main)
        except Exception as error:
            reason = (
                str(error)
                if isinstance(error, AdaptedError)
                else f"{type(error).__name__}: {error}"
            )
            advice = (
                "install what it imports."
                if isinstance(error, ImportError)
                else 'put what it runs at its top level under `if __name__ == "__main__":`.'
            )
            raise AdaptedError(
                f"{self.file} cannot be imported in a worker ({reason}); {advice}"
            ) from error
        finally:
            Importing.file = None

    def _import_file(self, name: str, main: bool) -> ModuleType:
        """Import the file. Where no GPU is, the device that is compiled for, or else an H200,
        answers for one: for a script that asks for it, and for packages, of which some turn Triton
        off without one. Where a package above the file cannot be imported, the file is imported
        without what the `__init__.py` of these packages run."""

        def load() -> ModuleType:
            return module_from(name, self.file) if main else import_module(name)

        def load_with_gpu() -> ModuleType:
            if main or gpu_shown():
                try:
                    return load()
                except Exception as error:
                    if NO_GPU.search(str(error)) is None or gpu_shown():
                        raise
            with answering_for_gpu(HiddenTarget.device or device_named("h200")):
                return load()

        try:
            return load_with_gpu()
        except Exception as error:
            if main or not name.count("."):
                raise
            try:
                with bare_packages(name, Path(self.file)):
                    module = load_with_gpu()
            except Exception:
                raise error from None
            _log.warning(
                "%s is imported without the __init__.py of its packages, which fail (%s: %s)",
                *(self.file, type(error).__name__, error),
            )
            return module

    def _depth(self) -> int:
        return self.module.count(".") + (Path(self.file).name == "__init__.py")


def module_in_package(file: Path) -> str | None:
    """Return the dotted name of a file in a package, by the `__init__.py` in the folders above it;
    None where it is in none."""
    parts = [file.stem]
    while (file.parent / "__init__.py").is_file():
        file = file.parent
        parts.insert(0, file.name)
    return ".".join(parts) if len(parts) > 1 else None


@contextmanager
def bare_packages(name: str, file: Path) -> Iterator[None]:
    """Return a context manager in which the packages above a module are empty, and other modules
    are found in their folders as usual. Where its block fails, nothing of them is left."""
    parents = [".".join(name.split(".")[: i + 1]) for i in range(name.count("."))]
    forget(parents[0])
    for parent, folder in zip(reversed(parents), file.parents, strict=False):
        module = ModuleType(parent)
        module.__path__ = [str(folder)]
        sys.modules[parent] = module
    try:
        yield
    except BaseException:
        forget(parents[0])
        raise


def forget(package: str) -> None:
    """Remove a package and all of its modules from those that are imported."""
    for name in [n for n in sys.modules if n == package or n.startswith(f"{package}.")]:
        del sys.modules[name]


def module_from(name: str, file: str) -> ModuleType:
    """Return the module of a file, imported under this name. Raises the errors of its code."""
    result = importlib.util.spec_from_file_location(name, file)
    if result is None or result.loader is None:
        raise AdaptedError("it is not a Python file")
    module = importlib.util.module_from_spec(result)
    sys.modules[name] = module  # dataclasses and Triton look their module up
    try:
        with user_bytecode():
            result.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def base(function: Any) -> Any:
    """Return the Python function below `jit`, `heuristics` and `autotune`. Raises AdaptedError
    where there is none."""
    plain = function
    while not inspect.isfunction(plain):
        if (plain := getattr(plain, "fn", None)) is None:
            raise AdaptedError(f"{function!r} is not a function; give a @triton.jit function.")
    return plain


def _layers(function: Any) -> int:
    """Return the number of `heuristics` around a function, which a launch needs, too."""
    count = 0
    while not inspect.isfunction(function):
        count += isinstance(getattr(function, "values", None), Mapping)
        function = function.fn
    return count


def pack(value: Any, what: str) -> Any:
    """Return a plain value as JSON. Raises AdaptedError, which names its owner `what`."""
    import triton
    import triton.language as tl

    if isinstance(value, PLAIN):
        return value
    if isinstance(value, (tuple, list)):
        return {"tuple": [pack(v, what) for v in value]}
    if isinstance(value, tl.constexpr):
        return {"constexpr": pack(value.value, what)}
    if isinstance(value, tl.dtype) and not value.is_ptr() and not value.is_block():
        return {"dtype": value.name}
    if isinstance(value, triton.runtime.KernelInterface):
        return {"function": asdict(Place.locate(value))}
    raise AdaptedError(
        f"{what} is {type(value).__name__}, which does not travel to the workers; give a number, a "
        "string, None, a tuple of these, a tl dtype, a tensor or a @triton.jit function."
    )


def unpack(packed: Any) -> Any:
    """Return the value that `pack` packed."""
    if not isinstance(packed, Mapping):
        return packed
    import triton.language as tl

    ((kind, inner),) = packed.items()
    makers: Mapping[str, Callable[[Any], Any]] = {
        "tuple": lambda items: tuple(unpack(i) for i in items),
        "constexpr": lambda value: tl.constexpr(unpack(value)),
        "dtype": tl.dtype,
        "function": lambda place: Place(**place).find(),
    }
    return makers[kind](inner)


def describe(value: Any, names: tuple[str, ...] = (), seen: frozenset[int] = frozenset()) -> Any:
    """Return what a function does as nested tuples of text: its code and all that the code names,
    but no line numbers, so that an edit elsewhere in the file changes nothing. A value that cannot
    be described is given by its `repr`, which differs in every process so it never is the same."""
    if id(value) in seen:
        return "itself"
    seen = seen | {id(value)}
    if inspect.isfunction(value) or hasattr(value, "fn"):
        return _function(value, seen)
    if isinstance(value, (tuple, list)):
        return tuple(describe(v, names, seen) for v in value)
    if isinstance(value, Mapping):
        return tuple((str(k), describe(v, names, seen)) for k, v in value.items())
    if isinstance(value, ModuleType):
        if value.__name__.split(".")[0] in LIBRARIES:
            return value.__name__
        inner = {n: getattr(value, n) for n in names if hasattr(value, n)}
        return value.__name__, describe(inner, names, seen)
    if isinstance(value, type):  # as an annotation: `x: torch.Tensor`
        return f"{value.__module__}.{value.__qualname__}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{tuple(value.shape)}"
    return repr(value)


def _function(function: Any, seen: frozenset[int]) -> Any:
    """Return a Python function, alone or below `jit`, `heuristics`, `autotune`, as nested
    tuples."""
    plain = base(function)
    if plain.__module__.split(".")[0] in LIBRARIES:
        return f"{plain.__module__}.{plain.__qualname__}"
    values, fn = getattr(function, "values", None), getattr(function, "fn", None)
    above = (describe(values, (), seen), getattr(function, "do_not_specialize", None))
    if fn is not None and fn is not plain:
        return above, describe(fn, (), seen)
    names = tuple(_names(plain.__code__))
    cells = (c.cell_contents for c in plain.__closure__ or ())
    free = dict(zip(plain.__code__.co_freevars, cells, strict=True))
    known = {n: v for n, v in {**plain.__globals__, **free}.items() if n in names}
    also = (plain.__defaults__, plain.__kwdefaults__, plain.__annotations__)
    return above, _code(plain.__code__), describe(known, names, seen), describe(also, (), seen)


def _names(code: CodeType) -> list[str]:
    inner = [n for c in code.co_consts if isinstance(c, CodeType) for n in _names(c)]
    return list(dict.fromkeys((*code.co_names, *code.co_freevars, *inner)))


def _code(code: CodeType) -> tuple[Any, ...]:
    consts = (_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts)
    return (code.co_code.hex(), code.co_names, code.co_varnames, *consts)
