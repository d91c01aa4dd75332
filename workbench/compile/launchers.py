"""Compile what launches a kernel on the GPU of this machine, beside the kernel itself.

Triton up to 3.6 writes a launcher in C for each signature and calls the C compiler at the first
launch: 0.3 s each on the host of an H100, in the one process that measures, while compilers idle.
"""

from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any

_CLASSES = {"cuda": ("nvidia", "CudaLauncher"), "hip": ("amd", "HIPLauncher")}
_built: set[str] = set()  # signatures in this process


def build_launchers(kernels: Iterable[Any], backend: str) -> None:
    """Store the launcher of each compiled kernel (`triton.compiler.CompiledKernel`) in Triton's
    cache, where a real launch finds it. One that fails is left to that launch, which says why."""
    package, name = _CLASSES[backend]
    driver = import_module(f"triton.backends.{package}.driver")
    if not hasattr(driver, "make_launcher"):  # later versions compile none
        return
    for kernel in kernels:
        signature = repr((kernel.src.signature, getattr(kernel.metadata, "tensordesc_meta", None)))
        if signature not in _built:
            _built.add(signature)
            with suppress(Exception):
                getattr(driver, name)(kernel.src, kernel.metadata)
