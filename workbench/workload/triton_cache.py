"""Write a tuned table as the files that Triton's `cache_results` reads.

Triton's own `Autotuner.check_disk_cache` writes them, so that each key is right for the Triton, the
compiler and the source files that are here. Tested with Triton 3.6.0 and 3.9.0.
"""

import ast
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from workbench.workload.errors import WorkloadError
from workbench.workload.exported import ExportResult
from workbench.workload.identity import text_hash
from workbench.workload.pinned import config_of
from workbench.workload.tuned_table import PinnedEntry

DTYPE = re.compile(r"[A-Za-z_]\w*\.\w+\Z")  # torch.float32, which stands in no quotes


class ArchDriver:
    """Stands in for Triton's driver: it knows an architecture, and cannot launch."""

    def __init__(self, arch: str) -> None:
        self._arch = arch

    def get_current_target(self) -> Any:
        """Return Triton's target. Raises WorkloadError for an architecture that it has not."""
        from triton.backends.compiler import GPUTarget

        if match := re.fullmatch(r"sm_(\d+)", self._arch):
            return GPUTarget("cuda", int(match[1]), 32)
        if re.fullmatch(r"gfx\w+", self._arch):
            return GPUTarget("hip", self._arch, 64 if self._arch.startswith("gfx9") else 32)
        raise WorkloadError(f"Triton has no target {self._arch!r}; name a table of sm_... ones.")


def export_triton_cache(entries: Sequence[PinnedEntry], folder: Path) -> ExportResult:
    """Write a folder for TRITON_CACHE_DIR. Imports the modules that the entries name. Returns what
    was written, and why entries were left out. Raises WorkloadError where Triton is missing or the
    interpreter runs, and OSError where the folder cannot be written."""
    try:
        from triton import knobs
    except ImportError as error:
        raise WorkloadError(f"Triton cannot be imported ({error}): pip install triton.") from None
    if knobs.runtime.interpret:
        raise WorkloadError("Triton's interpreter has no such cache; unset TRITON_INTERPRET.")
    result = ExportResult()
    with tempfile.TemporaryDirectory(prefix="workbench-export-") as draft:
        for entry in entries:
            reason = _write_entry(entry, draft)
            if reason:
                result.left_out.append((entry, reason))
            else:
                result.exported_entries += 1
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(Path(draft).iterdir()):
            shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
            result.files += [folder / path.name / file.name for file in sorted(path.iterdir())]
    return result


def _write_entry(entry: PinnedEntry, folder: str) -> str:
    """Write one entry. Returns why it could not be, or an empty text."""
    import triton

    if entry.triton != triton.__version__:
        return f"it is of Triton {entry.triton}, and this is {triton.__version__}"
    tuner = _tuner(entry)
    if isinstance(tuner, str):
        return tuner
    if tuner.early_config_prune or tuner.perf_model:
        return "its configs are pruned by the arguments of a launch"
    if any(config.pre_hook for config in tuner.configs):
        return "its configs have hooks, and Triton reads no cache of such configs"
    if not entry.key:
        return "its autotuner has no key, without which Triton reads no cache"
    config, key = config_of(entry, tuner), key_of(entry.key)
    if config is None or key is None:
        return "its config or its key is none that the function can have"
    _write(tuner, key, config, entry, folder)
    return ""


def _write(tuner: Any, key: tuple[Any, ...], config: Any, entry: PinnedEntry, folder: str) -> None:
    from triton import knobs

    times = entry.after_s
    # do_bench returns milliseconds at the quantiles 0.5, 0.2 and 0.8
    timing = [1e3 * each for each in (times.median, times.low, times.high)]
    before = getattr(tuner, "configs_timings", None)

    def benchmark() -> None:
        tuner.configs_timings = {config: timing}

    with _driver(entry.arch), knobs.cache.scope():
        knobs.cache.dir = folder
        tuner.check_disk_cache(key, tuner.configs, benchmark)
    tuner.configs_timings = before


@contextmanager
def _driver(arch: str) -> Iterator[None]:
    from triton.runtime.driver import driver

    before = driver._active
    driver.set_active(ArchDriver(arch))
    try:
        yield
    finally:
        driver._active = before


def _tuner(entry: PinnedEntry) -> Any | str:
    """Return the autotuner of an entry, or why there is none."""
    from triton.runtime.autotuner import Autotuner

    if entry.module == "__main__":
        return "it is in the program's own script, which cannot be imported"
    try:
        module = import_module(entry.module)
    except Exception as error:  # of code that is not ours
        return f"{entry.module} cannot be imported ({type(error).__name__})"
    for value in vars(module).values():
        while value is not None and not isinstance(value, Autotuner) and hasattr(value, "fn"):
            value = value.fn
        if isinstance(value, Autotuner) and value.base_fn.__name__ == entry.function:
            same = text_hash(value) == entry.text_hash
            return value if same else "the function has changed since"
    return f"{entry.module} has no autotuned function of this name"


def key_of(texts: Sequence[str]) -> tuple[Any, ...] | None:
    """Return an autotuner's key of a table's; None where a value is not a literal."""
    try:
        return tuple(text if DTYPE.match(text) else ast.literal_eval(text) for text in texts)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
