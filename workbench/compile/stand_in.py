"""Stand in for a GPU that is not there: a driver of Triton, and what torch says of a device.

Programs ask for these at the top of their files, to choose configs, grids or where tensors lie.
Tensors lie on the CPU, and nothing is launched.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

from workbench.device.hardware import Device

# In errors of code that asks for a GPU, by whatever way: libraries look for one on their own.
NO_GPU = re.compile(r"active drivers|cuda|nvidia|\bgpu\b|\bno device|device.*not found", re.I)


class HiddenTarget:
    """The device that is compiled for in this process, while its driver is hidden from an
    import."""

    device: Device | None = None


class AbsentDriver:
    """A Triton driver for an absent GPU: it knows its target and can launch nothing."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def get_current_target(self) -> Any:
        """Return the target that kernels are compiled for."""
        from triton.backends.compiler import GPUTarget

        arch = self.device.limits.arch
        number = int(arch.removeprefix("sm_")) if arch.startswith("sm_") else arch
        return GPUTarget(self.device.backend, number, self.device.limits.warp_size)

    def get_current_device(self) -> int:
        """Return a number for each architecture: Triton keeps compiled kernels by it."""
        return int(hashlib.sha256(self.device.limits.arch.encode()).hexdigest()[:6], 16)

    def get_current_stream(self, device: int) -> int:
        """Return the number of the usual stream."""
        return 0


class StandInDriver(AbsentDriver):
    """An absent GPU's driver that also answers what programs ask."""

    stands_in = True  # launches are recorded and not run

    @property
    def utils(self) -> Any:
        """The part of a driver that tells properties."""
        return SimpleNamespace(get_device_properties=lambda number=0: self._properties())

    def _properties(self) -> dict[str, int]:
        limits = self.device.limits
        return {
            "max_shared_mem": limits.shared_bytes,
            "max_num_regs": self.device.registers_per_core,
            "multiprocessor_count": limits.cores,
            "warpSize": limits.warp_size,
        }

    def get_active_torch_device(self) -> Any:
        """Return where tensors lie."""
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        """Return the module of torch that answers for the device."""
        import torch

        return torch.cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        """Return Triton's own function that times calls; no call of it is made."""
        from triton.testing import do_bench

        benchmarker: Callable[..., Any] = do_bench
        return benchmarker


@contextmanager
def answering_for_gpu(device: Device) -> Iterator[None]:
    """Return a context manager in which this device answers for the GPU of this process."""
    undo = stand_in(device)
    try:
        yield
    finally:
        undo()


def stand_in(device: Device) -> Callable[[], None]:
    """Let a device answer for the GPU of this process. Returns a function that ends it."""
    import torch
    from triton.runtime.driver import driver

    before = driver._active
    driver.set_active(StandInDriver(device))
    real = {name: getattr(torch.cuda, name) for name in TORCH}
    for name, answer in TORCH.items():
        setattr(torch.cuda, name, lambda *args, answer=answer, **more: answer(device))
    here = tensors_here()
    here.__enter__()
    own = _driver_class(device)
    was_active: Any = getattr(own, "is_active", None)
    if own is not None:  # packages count the active drivers, and turn Triton off without one
        own.is_active = staticmethod(lambda: True)

    def undo() -> None:
        here.__exit__(None, None, None)
        driver.set_active(before)
        if own is not None:
            own.is_active = staticmethod(was_active)
        for name, function in real.items():
            setattr(torch.cuda, name, function)

    return undo


def tensors_here() -> Any:
    """Return a context manager in which tensors that are made for a GPU, or moved to one, lie on
    the CPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    def moved(value: Any) -> Any:
        if isinstance(value, str) and re.fullmatch(r"cuda(:\d+)?", value):
            return "cpu"
        is_gpu = isinstance(value, torch.device) and value.type == "cuda"
        return torch.device("cpu") if is_gpu else value

    class OnCpu(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.Tensor.cuda:
                return args[0]
            named = {name: moved(value) for name, value in (kwargs or {}).items()}
            return func(*map(moved, args), **named)

    return OnCpu()


def _driver_class(device: Device) -> Any:
    """Return Triton's class of drivers of this device's backend; None where it has none."""
    from triton.backends import backends

    name = {"cuda": "nvidia", "hip": "amd"}.get(device.backend)
    return backends[name].driver if name in backends else None


def _torch_properties(device: Device) -> Any:
    limits, (major, minor) = device.limits, _capability(device)
    return SimpleNamespace(
        name=device.title,
        major=major,
        minor=minor,
        multi_processor_count=limits.cores,
        warp_size=limits.warp_size,
        shared_memory_per_block=48 << 10,
        shared_memory_per_block_optin=limits.shared_bytes,
        shared_memory_per_multiprocessor=device.shared_per_core,
        regs_per_multiprocessor=device.registers_per_core,
        max_threads_per_multi_processor=device.warps_per_core * limits.warp_size,
        L2_cache_size=round(device.cache.value),
        total_memory=round(device.memory.value) if device.memory else None,
        gcnArchName=limits.arch,
    )


def _capability(device: Device) -> tuple[int, int]:
    """Return the compute capability; of an AMD GPU, as torch has it: (9, 4) of gfx942."""
    digits = "".join(c for c in device.limits.arch if c.isdigit())  # 90 of sm_90, 942 of gfx942
    minor = -1 if device.limits.nvidia else -2
    return int(digits[:minor]), int(digits[minor])


# What torch.cuda says; each function gets the device. `is_available` stays as it is: where it says
# no, a program puts its tensors on the CPU.
TORCH: dict[str, Callable[[Device], Any]] = {
    "get_device_properties": _torch_properties,
    "get_device_capability": _capability,
    "get_device_name": lambda device: device.title,
    "current_device": lambda device: 0,
    "device_count": lambda device: 1,
    "synchronize": lambda device: None,
    "current_stream": lambda device: SimpleNamespace(cuda_stream=0),
    "device": lambda device: nullcontext(),
    "device_of": lambda device: nullcontext(),
}
