"""See whether a kernel's code replaced functions that checking and timing rely on.

The code under test shares a process with its inputs and with the clock. What it replaces there is
found by identity, against a snapshot taken before the kernel's file was imported.
"""

import builtins
import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

# Ours are listed by name, as they import torch, which this module must see unchanged.
_OURS = ("correctness", "inputs", "bench", "rotation", "rounds", "stream", "worker", "tamper")
# Others are left out: torch.compile replaces torch.manual_seed, for one.
_TORCH = (
    *("arange", "empty", "empty_like", "empty_strided", "equal", "finfo", "full", "isfinite"),
    *("isnan", "ones", "rand", "randn", "sum", "tensor", "where", "zeros"),
)
_CUDA = ("_sleep", "current_stream", "mem_get_info", "stream", "synchronize")
_BUILTINS = ("abs", "all", "any", "float", "getattr", "isinstance", "max", "min", "sorted", "zip")


@dataclass(frozen=True)
class Snapshot:
    """The functions of some modules and classes, by `owner.name`."""

    functions: Mapping[str, tuple[Any, str, Any]]  # owner, attribute, value

    def replaced_function(self) -> str | None:
        """Return the name of the first function that was replaced, or None."""
        for title, (owner, name, value) in self.functions.items():
            if owner.__dict__.get(name) is not value:
                return title
        shadows = _INHERITED & vars(torch.Tensor).keys()
        return f"torch.Tensor.{min(shadows)}" if shadows else None


# Methods that torch.Tensor has from its base: one that is set on it hides that of the base.
_INHERITED = frozenset(dir(torch._C.TensorBase)) - set(vars(torch.Tensor))


def snapshot() -> Snapshot:
    """Return the functions of torch, Python and the workbench that checks and times rely on, as
    they are now."""
    ours = [import_module(f"workbench.measurement.{name}") for name in _OURS]
    owners: list[tuple[str, Any]] = [
        ("torch.Tensor", torch.Tensor),
        ("torch.cuda.Event", torch.cuda.Event),
        ("torch.cuda.Stream", torch.cuda.Stream),
        ("time", time),
        ("gc", gc),
        *((module.__name__, module) for module in ours),
        *(
            (f"{module.__name__}.{name}", value)
            for module in ours
            for name, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ),
    ]
    functions = {
        f"{title}.{name}": (owner, name, value)
        for title, owner in owners
        for name, value in list(vars(owner).items())
        if _is_function(owner, name, value)
    }
    functions |= {f"torch.{n}": (torch, n, getattr(torch, n)) for n in _TORCH}
    functions |= {f"torch.cuda.{n}": (torch.cuda, n, getattr(torch.cuda, n)) for n in _CUDA}
    functions |= {f"builtins.{n}": (builtins, n, getattr(builtins, n)) for n in _BUILTINS}
    return Snapshot(functions)


def _is_function(owner: Any, name: str, value: Any) -> bool:
    """Return whether a replacement of this attribute would be a trick: a function or a class, but
    no private one of torch, which torch replaces itself as it loads."""
    if isinstance(value, ModuleType) or not (callable(value) or isinstance(value, property)):
        return False
    ours = getattr(owner, "__module__", getattr(owner, "__name__", "")).startswith("workbench")
    return ours or not name.startswith("_")
