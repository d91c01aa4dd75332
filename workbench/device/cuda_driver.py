"""Ask NVIDIA's driver which GPUs it shows, as torch's runtime would, in 0.2 s: importing torch
takes 1 to 4 s. Nothing starts on a GPU."""

import ctypes
from dataclasses import dataclass

LIBRARY = "libcuda.so.1"
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE, also where CUDA_VISIBLE_DEVICES hides all
NAME_BYTES = 256


class DriverFailed(Exception):
    """The driver answers a call with an error; the message is its name."""


@dataclass(frozen=True)
class CudaGpu:
    """A GPU that the driver shows."""

    name: str
    memory_bytes: int


@dataclass(frozen=True)
class CudaDriver:
    """What the driver shows to this process, in the order of torch's own indices."""

    version: tuple[int, int] = (0, 0)  # of CUDA, the newest that it runs; zeros without a driver
    gpus: tuple[CudaGpu, ...] = ()

    def can_run(self, built_for: str) -> bool:
        """Return whether it runs a torch that was built for this version of CUDA: since CUDA 11 a
        driver runs all versions with its own first number, and older ones."""
        return self.version[0] >= int(built_for.partition(".")[0])


def cuda_driver() -> CudaDriver:
    """Return what NVIDIA's driver shows. Raises DriverFailed where it cannot be asked."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:  # no driver is installed
        return CudaDriver()
    version, count = ctypes.c_int(), ctypes.c_int()
    _check(library, library.cuDriverGetVersion(ctypes.byref(version)))
    newest = divmod(version.value // 10, 100)  # 12080 is 12.8
    if (code := library.cuInit(0)) == NO_DEVICE:
        return CudaDriver(newest)
    _check(library, code)
    _check(library, library.cuDeviceGetCount(ctypes.byref(count)))
    return CudaDriver(newest, tuple(_gpu(library, index) for index in range(count.value)))


def _gpu(library: ctypes.CDLL, index: int) -> CudaGpu:
    device, size = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(NAME_BYTES)
    _check(library, library.cuDeviceGet(ctypes.byref(device), index))
    _check(library, library.cuDeviceGetName(name, NAME_BYTES, device))
    _check(library, library.cuDeviceTotalMem_v2(ctypes.byref(size), device))
    return CudaGpu(name.value.decode(errors="replace"), size.value)


def _check(library: ctypes.CDLL, code: int) -> None:
    """Raise DriverFailed for a code that is an error."""
    if code:
        name = ctypes.c_char_p()
        library.cuGetErrorName(code, ctypes.byref(name))
        raise DriverFailed((name.value or b"error %d" % code).decode())
