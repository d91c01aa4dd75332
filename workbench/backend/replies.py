"""Send the results of a worker's tasks as bytes, and read them without running what they name.

A worker runs the user's code, so its bytes are not trusted: an ordinary unpickler would call any
function that they name, in the process that reads them. Only values are read here: builtin types
and exceptions, and the frozen dataclasses and exceptions of the workbench's own modules.
"""

from __future__ import annotations

import io
import pickle
import sys
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any

from workbench.data.errors import first_sentence

_KERNELS = ("workbench.kernels", "workbench.variants")
_BUILTINS = ("bytearray", "complex", "frozenset", "range", "set", "slice")
_STANDARD = {
    ("collections", "Counter"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("pathlib", "WindowsPath"),
    ("pathlib._local", "PosixPath"),
}


class Unreadable(Exception):
    """Bytes of a worker are not a result: its code wrote to the pipe, or sent other values."""


def written(right: bool, result: Any) -> bytes:
    """Return the bytes of a result, or of an error where `right` is False.

    An error of a class that the reader does not know, such as the user's own, is sent as a
    RuntimeError that names it. A result that cannot be sent becomes a RuntimeError, too.
    """
    if not right and not _is_known(type(result)):
        right, result = False, RuntimeError(first_sentence(result))
    try:
        return _pickled((right, result))
    except Exception as error:
        reason = f"an answer that cannot travel: {first_sentence(error)}"
        return _pickled((False, RuntimeError(reason)))


def _pickled(value: Any) -> bytes:
    data = io.BytesIO()
    _Writer(data, protocol=5).dump(value)
    return data.getvalue()


class _Writer(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        """Return how an exception pickles itself. A library may have registered another way for all
        of them, as Dask does with tblib, and the reader takes no function of a library."""
        return obj.__reduce__() if isinstance(obj, BaseException) else NotImplemented


def read(data: bytes) -> tuple[bool, Any]:
    """Return whether a task succeeded, and its result or error. Raises Unreadable where the bytes
    hold something else."""
    try:
        right, result = _Reader(io.BytesIO(data)).load()
    except Exception as error:
        raise Unreadable(first_sentence(error)) from None
    if not isinstance(right, bool) or not (right or isinstance(result, Exception)):
        raise Unreadable("it is no result")
    return right, result


def _is_known(kind: type) -> bool:
    """Return whether a reader takes values of this class."""
    if kind.__module__ == "builtins":
        return kind.__name__ in _BUILTINS or issubclass(kind, Exception)
    if (kind.__module__, kind.__name__) in _STANDARD:
        return True
    if kind.__module__.partition(".")[0] != "workbench":
        return False
    return issubclass(kind, Exception) or _is_value(kind)


def _is_value(kind: type) -> bool:
    """Return whether a class is a frozen dataclass: making one does nothing but hold its fields."""
    return is_dataclass(kind) and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a class that is a value. Raises UnpicklingError for all others."""
        # of other packages only what this process has imported: an import runs code
        ours = module.startswith("workbench.") and not module.startswith(_KERNELS)
        kind = getattr(import_module(module) if ours else sys.modules.get(module), name, None)
        if isinstance(kind, type) and kind.__module__ == module and _is_known(kind):
            return kind
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is no value")
