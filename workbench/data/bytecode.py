"""Keep the bytecode of imported files where Python keeps none.

Many container images set PYTHONDONTWRITEBYTECODE, and packages may lie where a user cannot write.
Each process then compiles the sources of torch and Triton again, thousands of files, and a sweep
has twenty processes.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.util import cache_from_source, find_spec
from pathlib import Path


def keep_bytecode() -> None:
    """Keep bytecode in the user's cache folder from now on, if Python keeps none of torch's files.

    Changes this process alone: no variable that a user's program would inherit.
    """
    spec = None
    with suppress(ImportError):
        spec = find_spec("torch")
    if spec is None or spec.origin is None or Path(cache_from_source(spec.origin)).exists():
        return
    if sys.dont_write_bytecode or not os.access(Path(spec.origin).parent, os.W_OK):
        from platformdirs import user_cache_path

        folder = user_cache_path("kernel-workbench", appauthor=False) / "bytecode"
        sys.pycache_prefix, sys.dont_write_bytecode = str(folder), False


def bytecode_variables() -> dict[str, str]:
    """Return the variables by which a program of the workbench's own keeps bytecode where this
    process does; empty where Python keeps it."""
    if not sys.pycache_prefix:
        return {}
    return {"PYTHONPYCACHEPREFIX": sys.pycache_prefix, "PYTHONDONTWRITEBYTECODE": ""}
