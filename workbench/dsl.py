"""`triton` and `tl`, or a stand-in where Triton has no wheel (macOS).

With the stand-in every kernel file still imports, so its Spec, its reference and its Metal
version work; only launching the Triton kernel raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from workbench.spec import Limits

try:
    import triton
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

    # Triton's interpreter computes on the raw bits of bf16 (seen in 3.6.0 and 3.9.0), so a kernel
    # that multiplies bf16 tiles must widen them there and only there.
    INTERPRETED = bool(triton.knobs.runtime.interpret)
except ModuleNotFoundError:

    class _Missing:
        def __getattr__(self, name: str) -> _Missing:
            return self

        def __call__(self, *args: Any, **kwargs: Any) -> _Missing:  # @triton.jit, @triton.jit(...)
            return self

        def __getitem__(self, grid: Any) -> Any:  # kernel[grid](...): the launch
            raise RuntimeError("Triton is not installed here; it has wheels for Linux only")

    triton = tl = TensorDescriptor = _Missing()
    INTERPRETED = False


def _mend_interpreter() -> None:
    """The interpreter of Triton 3.6 makes an index of a tensor by int(array), which numpy 2.4
    allows only for an array without axes; without this, no loop over a tensor's extent runs."""
    from triton.runtime import interpreter

    real = interpreter._patch_lang_tensor

    def patched(tensor: Any, *scope: Any) -> None:
        real(tensor, *scope)  # enters `__index__` among what is restored after the launch
        tensor.__index__ = lambda self: int(self.handle.data.squeeze())

    interpreter._patch_lang_tensor = patched


if INTERPRETED:
    _mend_interpreter()

# 3, so that in the interpreter programs still meet several tiles each and the last round is ragged
CORES_OF_A_CPU = 3
_pretended: ContextVar[Limits | None] = ContextVar("pretended", default=None)


def cores(tensor: Any) -> int:
    """Streaming multiprocessors or compute units of the device that holds `tensor`: how many
    programs a persistent launcher starts. On a CPU (the interpreter) it is CORES_OF_A_CPU.
    """
    limits = _pretended.get()
    if limits is not None:
        return limits.cores
    if tensor.device.type != "cuda":
        return CORES_OF_A_CPU
    import torch

    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)


def pretended() -> Limits | None:
    """Return the limits of the device that launchers are made to see, or None."""
    return _pretended.get()


@contextmanager
def pretend(limits: Limits) -> Iterator[None]:
    """Launchers inside see a device with these limits: for compiling without one."""
    token = _pretended.set(limits)
    try:
        yield
    finally:
        _pretended.reset(token)


__all__ = ["INTERPRETED", "TensorDescriptor", "cores", "pretend", "pretended", "tl", "triton"]
