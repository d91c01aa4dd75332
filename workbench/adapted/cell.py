"""Write a function of a notebook's cell into a file, from which workers can import it."""

import hashlib
import inspect
import math
import symtable
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from workbench.adapted.travel import PLAIN, AdaptedError, base, module_from
from workbench.data.files import write_file

FOLDER = "cells"  # in the folder for results


def function_in_file(function: Any, folder: Path) -> Any:
    """Return the function itself if a file holds it, else the same function from a file that is
    written for it, with all that its source names: modules, numbers and other functions of cells.
    Raises AdaptedError where a name is something else."""
    plain = base(function)
    file = inspect.getsourcefile(plain)
    if file is not None and Path(file).is_file():
        return function
    text = "\n".join(_parts(plain, {}))
    stem = f"{plain.__name__}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    path = folder / FOLDER / f"{stem}.py"
    write_file(path, text, make_folder=True)
    return getattr(module_from(stem, str(path.resolve())), plain.__name__)


def _parts(plain: Any, written: dict[str, Any]) -> Iterator[str]:
    """Yield the source of what a function names, each once, and then its own."""
    written[plain.__name__] = plain
    source = _source(plain)
    names = set(_global_names(symtable.symtable(source, "<cell>", "exec")))
    for name in sorted(names & plain.__globals__.keys() - written.keys()):
        yield from _name_source(name, plain.__globals__[name], written)
    yield source


def _global_names(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the names that the source looks up outside of itself. Its parameters and locals are not
    among them: a variable of the notebook may have the name of one."""
    at_module = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (at_module or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _global_names(child)


def _source(plain: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(plain))
    except (OSError, TypeError):
        raise AdaptedError(
            f"{plain.__qualname__} has no source that can be read; write it into a file, from "
            "which workers import it."
        ) from None


def _name_source(name: str, value: Any, written: dict[str, Any]) -> Iterator[str]:
    """Yield the source that gives a name its value. Raises AdaptedError where there is none."""
    import triton.language as tl

    written[name] = value
    if isinstance(value, ModuleType):
        yield f"import {value.__name__} as {name}"
    elif isinstance(value, PLAIN):
        yield f"{name} = {_literal(value)}"
    elif isinstance(value, tl.constexpr) and isinstance(value.value, PLAIN):
        yield f"import triton.language\n{name} = triton.language.constexpr({_literal(value.value)})"
    elif (inspect.isfunction(value) or hasattr(value, "fn")) and not _is_in_file(value):
        yield from _parts(base(value), written)
    elif hasattr(value, "__qualname__") and value.__module__ != "__main__":
        yield f"from {value.__module__} import {value.__qualname__} as {name}"
    else:
        raise AdaptedError(
            f"{name}, which the function's cell names, is {type(value).__name__}; write the "
            "function into a file with all that it needs: %%writefile mine.py."
        )


def _literal(value: Any) -> str:
    """Return source of a plain value: the text `inf` is a name, not a number."""
    is_number = not isinstance(value, float) or math.isfinite(value)
    return repr(value) if is_number else f"float({str(value)!r})"


def _is_in_file(value: Any) -> bool:
    """Return whether a function is from a file."""
    file = inspect.getsourcefile(base(value))
    return file is not None and Path(file).is_file()
