"""`triton` and `tl`, or a stand-in where Triton has no wheel (macOS).

With the stand-in every kernel file still imports, so its Spec, its reference and its Metal
version work; only launching the Triton kernel raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

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

_cores: ContextVar[int | None] = ContextVar("cores", default=None)


def cores(tensor: Any) -> int:
    """Streaming multiprocessors or compute units of the device that holds `tensor`: how many
    programs a persistent launcher starts. On a CPU (the interpreter) it is 3, so that programs
    still meet several tiles each and the last round stays ragged.
    """
    pretended = _cores.get()
    if pretended is not None:
        return pretended
    if tensor.device.type != "cuda":
        return 3
    import torch

    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)


@contextmanager
def pretend_cores(count: int) -> Iterator[None]:
    """Launchers inside see a device with this many cores: for compiling without one."""
    token = _cores.set(count)
    try:
        yield
    finally:
        _cores.reset(token)


__all__ = ["INTERPRETED", "TensorDescriptor", "cores", "pretend_cores", "tl", "triton"]
