"""What a sweep on a live GPU will need, started before anything else is imported: the process that
measures and those that compile import for seconds, and so does the kernel's file here."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from glob import glob

from workbench.backend.measuring import Measuring
from workbench.backend.processes import prepare
from workbench.backend.workers import Workers, cpu_count
from workbench.data.environment import torch_build

# What the drivers show; `/dev/dxg` is that of Windows' subsystem for Linux.
SHOWN = {"cuda": ("/dev/nvidia[0-9]*", "/dev/dxg"), "hip": ("/dev/kfd",)}


class Prewarm:
    """Processes that are getting ready. To start one, its server must have imported torch: that is
    waited for in a thread, and by whoever asks for them."""

    def __init__(self, kernel: str) -> None:
        starting = ThreadPoolExecutor(1)
        self._gpu = starting.submit(Measuring)
        self._compilers = starting.submit(compilers, kernel)
        starting.shutdown(wait=False)

    @property
    def gpu(self) -> Measuring:
        """The process that measures."""
        return self._gpu.result()

    @property
    def compilers(self) -> Workers:
        """The processes that compile."""
        return self._compilers.result()

    def close(self) -> None:
        """End all of them."""
        self.compilers.close()
        self.gpu.close()


def begin_prewarm(kernel: str) -> Prewarm | None:
    """Start them where a GPU will be measured; None where there is none to be seen."""
    return Prewarm(kernel) if gpu_shown() else None


def compilers(kernel: str) -> Workers:
    """Processes that compile, with the compiler and the kernel's file imported."""
    pool = Workers(max(1, cpu_count() - 1))  # one CPU is left to launch
    pool.everywhere(prepare, kernel)
    return pool


def gpu_shown() -> bool:
    """Whether a driver shows a GPU of the kind that torch was built for; imports nothing."""
    build = torch_build()
    shown = [kind for kind, files in SHOWN.items() if any(glob(file) for file in files)]
    return any(build.get(kind) for kind in shown)
