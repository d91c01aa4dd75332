"""Stand in for a GPU that is not there: a driver of Triton, and what torch says of a device.

Programs ask for these at the top of their files, to choose configs, grids or where tensors lie.
Tensors lie on the CPU, and nothing is launched.
"""

import hashlib
import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

from workbench.device.hardware import Device

# In errors of code that asks for a GPU, by whatever way: libraries look for one on their own.
NO_GPU = re.compile(r"active drivers|cuda|nvidia|\bgpu\b|\bno device|device.*not found", re.I)


class HiddenTarget:
    """The device compiled for in this process, while its driver is hidden from an import."""

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


def stand_in(device: Device, for_program: bool = False) -> Callable[[], None]:
    """Let a device answer for the GPU of this process. Returns a function that ends it.

    `for_program`: to a program and its libraries a GPU is available, and tensors lie on it; torch
    and Triton are told the truth.
    """
    import torch
    from triton.runtime.driver import driver

    before = driver._active
    driver.set_active(StandInDriver(device))
    real = {(torch.cuda, name): getattr(torch.cuda, name) for name in TORCH}
    for name, answer in TORCH.items():
        setattr(torch.cuda, name, lambda *args, answer=answer, **more: answer(device))
    if for_program:
        real |= {(torch.cuda, "is_available"): torch.cuda.is_available}
        torch.cuda.is_available = is_program_asking
    real |= {(torch, "Generator"): torch.Generator, (torch, "autocast"): torch.autocast}
    real |= {(torch.amp, "autocast"): torch.amp.autocast}
    torch.Generator = _generators_here()
    torch.autocast = torch.amp.autocast = _autocast_here()
    here = tensors_here(for_program)
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
        for (module, name), function in real.items():
            setattr(module, name, function)

    return undo


def is_program_asking() -> bool:
    """Return whether the code that asks is not of torch, Triton or the workbench: these must not
    use a GPU that is not there."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    package = str(frame.f_globals.get("__name__")).split(".")[0]
    return package not in ("torch", "triton", "workbench")


def moved_here(value: Any, of_device: bool = False) -> Any:
    """Return the CPU in place of a GPU, and any other value as it is. A number is a GPU's where it
    is the value of a device (`of_device`)."""
    import torch

    if isinstance(value, str) and re.fullmatch(r"cuda(:\d+)?", value):
        return "cpu"
    is_gpu = isinstance(value, torch.device) and value.type == "cuda"
    is_gpu = is_gpu or (of_device and type(value) is int)
    return torch.device("cpu") if is_gpu else value


def tensors_here(for_program: bool = False) -> Any:
    """Return a context manager in which tensors that are made for a GPU, or moved to one, lie on
    the CPU. With `for_program`, a program that asks where they lie is told the GPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    claims = {
        torch.Tensor.is_cuda.__get__: True,
        torch.Tensor.is_cpu.__get__: False,
        torch.Tensor.device.__get__: torch.device("cuda", 0),
    }

    class OnCpu(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.Tensor.cuda:
                return args[0]
            if for_program and func in claims and is_program_asking():
                return claims[func]
            named = {n: moved_here(value, n == "device") for n, value in (kwargs or {}).items()}
            return func(*map(moved_here, args), **named)

    return OnCpu()


def _generators_here() -> Any:
    """Return a class of generators of random numbers, those for a GPU on the CPU."""
    import torch

    class Generator(torch.Generator):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            return super().__new__(cls, moved_here(device, of_device=True))

    return Generator


def _autocast_here() -> Any:
    """Return torch's class for automatic dtypes, with those of a GPU on the CPU."""
    import torch

    class Autocast(torch.autocast):  # type: ignore[misc]
        def __init__(self, device_type: str, dtype: Any = None, *args: Any, **more: Any) -> None:
            here = moved_here(device_type)
            if here != device_type and dtype is None:
                dtype = torch.float16  # what torch takes on a GPU
            super().__init__(here, dtype, *args, **more)

    return Autocast


class StandInEvent:
    """A CUDA event of an absent GPU: nothing is timed."""

    def record(self, stream: Any = None) -> None:
        """Do nothing."""

    wait = record

    def synchronize(self) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Return True: nothing is waited for."""
        return True

    def elapsed_time(self, end: Any) -> float:
        """Return NaN: no time was taken."""
        return math.nan


class StandInStream:
    """A stream of an absent GPU."""

    cuda_stream = 0

    def wait_stream(self, stream: Any) -> None:
        """Do nothing."""

    wait_event = wait_stream

    def synchronize(self) -> None:
        """Do nothing."""

    def record_event(self, event: Any = None) -> Any:
        """Return an event."""
        return event or StandInEvent()


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
        total_memory=_bytes_of(device) or None,
        gcnArchName=limits.arch,
    )


def _bytes_of(device: Device) -> int:
    """Return the bytes of a device's memory, 0 where that is unknown."""
    return round(device.memory.value) if device.memory else 0


def _capability(device: Device) -> tuple[int, int]:
    """Return the compute capability; of an AMD GPU, as torch has it: (9, 4) of gfx942."""
    digits = "".join(c for c in device.limits.arch if c.isdigit())  # 90 of sm_90, 942 of gfx942
    minor = -1 if device.limits.nvidia else -2
    return int(digits[:minor]), int(digits[minor])


# What torch.cuda says; each function gets the device. While a file is imported, `is_available`
# stays as it is: where it says no, a file puts its tensors on the CPU.
TORCH: dict[str, Callable[[Device], Any]] = {
    "get_device_properties": _torch_properties,
    "get_device_capability": _capability,
    "get_device_name": lambda device: device.title,
    "current_device": lambda device: 0,
    "device_count": lambda device: 1,
    "synchronize": lambda device: None,
    "set_device": lambda device: None,
    "mem_get_info": lambda device: (_bytes_of(device), _bytes_of(device)),
    "reset_peak_memory_stats": lambda device: None,
    "current_stream": lambda device: StandInStream(),
    "default_stream": lambda device: StandInStream(),
    "Stream": lambda device: StandInStream(),
    "Event": lambda device: StandInEvent(),
    "stream": lambda device: nullcontext(),
    "device": lambda device: nullcontext(),
    "device_of": lambda device: nullcontext(),
}
