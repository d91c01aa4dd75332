"""What the GPU's own sensors say while it is measured: clock, temperature, power."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench import stats


@dataclass(frozen=True)
class Reading:
    """One look at the sensors; None where a sensor cannot be read."""

    sm_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


class Clocks:
    """The sensors of one GPU, found by its UUID so that no other GPU's are read by mistake."""

    def __init__(self, index: int) -> None:
        self._nvml, self._handle = _open(index)

    def read(self) -> Reading:
        """All sensors, now."""
        if self._handle is None:
            return Reading()
        n, h = self._nvml, self._handle
        try:
            return Reading(
                float(n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)),
                float(n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)),
                n.nvmlDeviceGetPowerUsage(h) / 1000,
            )
        except n.NVMLError:
            return Reading()

    @staticmethod
    def median(readings: Sequence[Reading]) -> dict[str, float | None]:
        """Each sensor's median over the readings."""
        found: dict[str, float | None] = {}
        for name in ("sm_mhz", "temperature_c", "power_w"):
            values = [v for r in readings if (v := getattr(r, name)) is not None]
            found[name] = stats.median(values) if values else None
        return found


def _open(index: int) -> tuple[Any, Any]:
    """NVML and the handle of torch's device `index`, or (None, None) where there is none."""
    import torch

    if torch.version.hip is not None:
        return None, None
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
    except Exception:  # no NVML library, or a driver that will not answer: times stand without
        return None, None
