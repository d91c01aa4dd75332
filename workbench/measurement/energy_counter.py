"""Open the driver's counter of the energy that a board has taken, in millijoules.

NVIDIA: `nvmlDeviceGetTotalEnergyConsumption`, since the driver was loaded, on Volta and newer.
"""

from typing import Any

from workbench.measurement.clocks import uuid_of
from workbench.measurement.energy import EnergyError

NOT_INSTALLED = (
    "the driver's energy counter cannot be read, as nvidia-ml-py is not installed: "
    "pip install nvidia-ml-py"
)
AMD = (
    "the energy counter of AMD GPUs is not read yet; compare times, or measure energy on an NVIDIA "
    "GPU"
)
SLICE = (
    "the GPU is a MIG slice, and the driver counts only the energy of the whole board; measure on "
    "a GPU without MIG"
)
UNSUPPORTED = (
    "this GPU or its driver has no energy counter; it needs Volta or newer, and not a virtual GPU"
)


class NvmlCounter:
    """The counter of one NVIDIA GPU."""

    source = "nvml"

    def __init__(self, library: Any, uuid: str) -> None:
        """Open the counter of the GPU with this UUID through `library`, which is pynvml.

        Raises EnergyError where there is none.
        """
        self._library = library
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            raise EnergyError(
                f"the driver's library does not open ({error}); see `workbench doctor`"
            ) from None
        try:
            self._gpu = library.nvmlDeviceGetHandleByUUID(uuid)
        except library.NVMLError:  # a slice has a UUID of its own, which is not that of a board
            raise EnergyError(SLICE) from None
        if self._is_sliced():
            raise EnergyError(SLICE)
        self.millijoules()

    def _is_sliced(self) -> bool:
        try:
            now, _ = self._library.nvmlDeviceGetMigMode(self._gpu)
        except self._library.NVMLError:  # GPUs without MIG
            return False
        return bool(now)

    def millijoules(self) -> int:
        """Return the counter's present value. Raises EnergyError where it cannot be read."""
        try:
            return int(self._library.nvmlDeviceGetTotalEnergyConsumption(self._gpu))
        except self._library.NVMLError_NotSupported:
            raise EnergyError(UNSUPPORTED) from None
        except self._library.NVMLError as error:
            raise EnergyError(
                f"the driver's energy counter cannot be read ({error}); see `workbench doctor`"
            ) from None


def open_counter(index: int) -> NvmlCounter:
    """Return the energy counter of torch's GPU `index`. Raises EnergyError where there is none."""
    import torch

    if torch.version.hip is not None:
        raise EnergyError(AMD)
    try:
        import pynvml
    except ImportError:
        raise EnergyError(NOT_INSTALLED) from None
    return NvmlCounter(pynvml, uuid_of(index))
