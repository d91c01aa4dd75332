"""Keep the bytecode of imported files where Python keeps none.

Many container images set PYTHONDONTWRITEBYTECODE, and packages may lie where a user cannot write.
Each process then compiles the sources of torch and Triton again, thousands of files, and a sweep
has twenty processes.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import cache_from_source, find_spec
from pathlib import Path

PREWARMED = ("torch", "triton", "sympy", "numpy", "networkx")  # 2,500 of their files are imported
UNUSED = r"/(tests?|testing/_internal)/"
LEAST_CPUS = 8  # it takes 15 s of CPU; a command alone compiles for some 9 s


def keep_bytecode() -> None:
    """Keep bytecode from now on, if Python is told to keep none: in the user's cache folder where
    torch has none, else beside what is imported, but for files of the user, see `user_bytecode`.

    Changes this process alone: no variable that a user's program would inherit.
    """
    spec = _torch()
    if spec is None:
        return
    if Path(cache_from_source(spec)).exists():
        # A checkout, or what was installed without: 0.4 s of a process for the database alone
        sys.dont_write_bytecode = False
        return
    if sys.dont_write_bytecode or not os.access(Path(spec).parent, os.W_OK):
        from platformdirs import user_cache_path

        folder = user_cache_path("kernel-workbench", appauthor=False) / "bytecode"
        sys.pycache_prefix, sys.dont_write_bytecode = str(folder), False


@contextmanager
def user_bytecode() -> Iterator[None]:
    """Return a context manager for imports of the user's files: none of them gets bytecode beside
    it where Python is told to keep none."""
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = before or bool(
        sys.flags.dont_write_bytecode and not sys.pycache_prefix
    )
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def bytecode_variables() -> dict[str, str]:
    """Return the variables by which a program of the workbench's own keeps bytecode where this
    process does; empty where Python keeps it."""
    if not sys.pycache_prefix:
        return {}
    return {"PYTHONPYCACHEPREFIX": sys.pycache_prefix, "PYTHONDONTWRITEBYTECODE": ""}


@contextmanager
def prewarm_bytecode() -> Iterator[None]:
    """Return a context manager that compiles the files of PREWARMED, where their bytecode is kept
    but not there yet: in processes of their own, on half of the CPUs, if there are LEAST_CPUS or
    more. What is unfinished at its end stays undone."""
    spec, cpus = _torch(), os.cpu_count() or 1
    is_useful = sys.pycache_prefix and cpus >= LEAST_CPUS
    if spec is None or not is_useful or Path(cache_from_source(spec)).exists():
        yield
        return
    python = sys.executable, "-I", "-S", "-X", f"pycache_prefix={sys.pycache_prefix}"
    compiling = subprocess.Popen(
        [*python, "-m", "compileall", "-q", "-j", str(cpus // 2), "-x", UNUSED, *_folders()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # its workers would outlive it
    )
    try:
        yield
    finally:
        if compiling.poll() is None:
            os.killpg(compiling.pid, signal.SIGKILL)
            compiling.wait()


def _torch() -> str | None:
    """Return the path of torch's first file, which is not imported; None where there is none."""
    with suppress(ImportError):
        spec = find_spec("torch")
        return spec.origin if spec else None
    return None


def _folders() -> Iterator[str]:
    """Yield the folders of the packages of PREWARMED that are installed."""
    for name in PREWARMED:
        with suppress(ImportError):
            spec = find_spec(name)
            yield from (spec.submodule_search_locations or ()) if spec else ()
