"""Complete words of a command line: kernels, devices, sweeps, runs and what else has names here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_RUNS = 20  # the newest


def _modules(folder: str) -> list[str]:
    """Return the names of a folder's modules. Nothing is imported: a key was just pressed."""
    return sorted(f[:-3] for f in os.listdir(ROOT / folder) if f.endswith(".py") and f[0] != "_")


def kernels() -> list[str]:
    """Return the built-in kernels and the Python files of the current folder."""
    return [*_modules("kernels"), *sorted(f for f in os.listdir() if f.endswith(".py"))]


def sweeps() -> list[str]:
    """Return the sweeps."""
    return _modules("sweeps")


def devices() -> list[str]:
    """Return the devices."""
    return sorted(f[:-5] for f in os.listdir(ROOT / "devices") if f.endswith(".toml"))


def runs() -> list[str]:
    """Return `last` and the newest runs in `results`."""
    names = (path.parent.name for path in Path("results").glob("*/events.jsonl"))
    return ["last", *sorted(names, reverse=True)[:MOST_RUNS]]


def dtypes() -> list[str]:
    """Return the dtypes of kernels."""
    return ["bf16", "fp16", "fp32"]


# By option, or by command and option where a name means something of its own there.
_SOURCES: Mapping[str, tuple[Callable[[], Iterable[str]], ...]] = {
    "kernel": (kernels,),
    "spec": (kernels,),
    "device": (devices,),
    "dtype": (dtypes,),
    "vary": (sweeps,),
    "sweep.name": (kernels, sweeps),
    "report.name": (lambda: _modules("reports"),),
    "report.runs": (runs,),
    "experiment.name": (lambda: _modules("experiments"),),
    "compare.left": (runs,),
    "compare.right": (runs,),
    "code.target": (kernels,),
    "diagnose.targets": (runs, kernels),
    "profile.target": (kernels,),
    "new-kernel.like": (lambda: ["elements", "rows", "tiles", "matmul", "attention"],),
}


def completer(command: str, name: str) -> Callable[[str], list[str]] | None:
    """Return what completes the words of an option of a command; None where nothing does."""
    sources = _SOURCES.get(f"{command}.{name}", _SOURCES.get(name, ()))

    def complete(incomplete: str) -> list[str]:
        words = (word for source in sources for word in source())
        return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]

    return complete if sources else None
