"""Tensors as plain values, which travel between processes as bytes."""

from dataclasses import dataclass
from math import prod

import torch


@dataclass(frozen=True)
class Packed:
    """A tensor on the CPU: `data` holds its elements from the first to the last in memory."""

    dtype: str  # torch's name: "float32"
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    data: bytes


class Unpackable(ValueError):
    """Values do not describe a tensor: their bytes, shape and strides contradict each other."""


def pack_tensor(x: torch.Tensor) -> Packed:
    """Return a strided tensor on the CPU as values."""
    flat = x.detach().as_strided((_span(tuple(x.shape), x.stride()),), (1,))
    data = flat.view(torch.uint8).numpy().tobytes()
    return Packed(str(x.dtype).removeprefix("torch."), tuple(x.shape), tuple(x.stride()), data)


def unpack_tensor(values: Packed) -> torch.Tensor:
    """Return a new tensor with these values, on the CPU. Raises Unpackable: the values may come
    from a process that runs the code under test."""
    dtype = getattr(torch, str(values.dtype), None)
    if not isinstance(dtype, torch.dtype):
        raise Unpackable(f"there is no dtype {str(values.dtype)[:40]!r}")
    shape, strides = tuple(values.shape), tuple(values.strides)
    if len(shape) != len(strides) or not all(type(n) is int and n >= 0 for n in (*shape, *strides)):
        raise Unpackable("its shape or strides are not extents")
    span = _span(shape, strides)
    if not isinstance(values.data, bytes) or len(values.data) != span * dtype.itemsize:
        raise Unpackable(f"{span} elements were expected in its bytes")
    flat = torch.empty(span, dtype=dtype)
    if span:  # `frombuffer` takes no empty buffer
        flat.view(torch.uint8).copy_(torch.frombuffer(bytearray(values.data), dtype=torch.uint8))
    return flat.as_strided(shape, strides)


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the number of elements from the first of a tensor to its last in memory."""
    if not prod(shape):
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
