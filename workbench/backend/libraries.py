"""The libraries' own versions of an operation, which are timed beside its kernels."""

from __future__ import annotations

from importlib import import_module

from workbench import catalog
from workbench.device.hardware import METAL, Device
from workbench.spec import Impl, Spec

MLX = "mlx"  # the name of MLX's own version of an operation, and its backend


def library_impls(spec: Spec, device: Device, predicted: bool) -> list[Impl]:
    """Return the libraries' own versions of an operation that can be timed beside its kernels:
    MLX's on a Metal device, torch's on others."""
    if device.backend != METAL or predicted:
        return [impl for impl in spec.impls if impl.backend == "torch"]
    impl = _mlx_impl(spec)
    return [impl] if impl is not None else []


def impl_named(spec: Spec, name: str) -> Impl:
    """Return the Impl of that name: one of the Spec's, or MLX's own version as `mlx`. Raises
    CatalogError."""
    impl = _mlx_impl(spec) if name == MLX else None
    return impl if impl is not None else catalog.impl_of(spec, name)


def _mlx_impl(spec: Spec) -> Impl | None:
    impl: Impl | None = import_module("metal_shim.operations").mlx_impl(spec)
    return impl
