"""Read the GPU's sensors during a measurement: clock, temperature, power, throttling.

Sensors are read after each round of windows, not by a thread of their own: a round lasts a tenth of
a second or so, and the SM clock of each window comes from `probe`. No setting of the GPU is
changed.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from workbench.data import stats

Source = Literal["probe", "nvml", "amdsmi", "none"]

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h). Bit 0, an idle GPU, is not throttling.
REASONS: dict[int, str] = {
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal",
    0x040: "hardware thermal",
    0x080: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}


@dataclass(frozen=True)
class Reading:
    """One reading of the sensors; None where a sensor cannot be read. `throttle` names the reasons
    for a lowered clock at this moment."""

    sm_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle: tuple[str, ...] = ()


class SmClock(Protocol):
    """Reads the SM clock of one window of samples. The next window may begin before the clock of
    the last one is requested."""

    source: Source

    def begin(self) -> None:
        """Begin a window; called while the stream is held, before the first sample."""

    def end(self) -> None:
        """End the window; called when the last sample is enqueued and may not have run yet."""

    def mhz(self) -> float | None:
        """Return the clock in MHz of the oldest ended window that was not yet requested."""


class Clocks:
    """The sensors of one GPU, selected by its id, so that no other GPU's are read."""

    def __init__(self, gpu: int | str) -> None:
        """Open the sensors. `gpu` is torch's index, or the UUID of an NVIDIA GPU in NVML's format
        (`GPU-...`), which needs no torch. Without a usable library, nothing is read."""
        self._sensors = _open(gpu)

    @property
    def source(self) -> Source:
        """Return the name of the library that is read, or `none`."""
        return self._sensors.source if self._sensors else "none"

    def read(self) -> Reading:
        """Return a reading of all sensors."""
        return self._sensors.read() if self._sensors else Reading()

    def processes(self) -> list[int] | None:
        """Return the ids of processes that compute on this GPU, as the driver numbers them. In a
        container these may be the host's numbers. None where the driver does not list them."""
        return self._sensors.processes() if self._sensors else None

    @staticmethod
    def summary(readings: Sequence[Reading]) -> dict[str, Any]:
        """Return each sensor's median over the readings, and every throttling reason seen. Keys are
        the fields of `Measured`."""
        results: dict[str, Any] = {}
        for name in ("sm_mhz", "temperature_c", "power_w"):
            values = [v for r in readings if (v := getattr(r, name)) is not None]
            results[name] = stats.median(values) if values else None
        results["throttle"] = tuple(sorted({reason for r in readings for reason in r.throttle}))
        return results


class SensorClock:
    """An SmClock by the driver's sensor, for GPUs on which no probe runs. The driver averages over
    many milliseconds, so windows shorter than that share a reading."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self.source: Source = clocks.source
        self._mhz: deque[float | None] = deque(maxlen=2)

    def begin(self) -> None:
        """Do nothing: the clock is read while the samples run."""

    def end(self) -> None:
        """Read the sensor while the last samples are still running."""
        self._mhz.append(self._clocks.read().sm_mhz)

    def mhz(self) -> float | None:
        """Return the clock in MHz that `end` read, or None."""
        return self._mhz.popleft() if self._mhz else None


class _Nvml:
    """NVIDIA's library. A query that this GPU does not support leaves its field empty."""

    source: Source = "nvml"

    def __init__(self, uuid: str) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._library = pynvml
        self._gpu = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def _ask(self, name: str, *args: int) -> Any:
        query = getattr(self._library, name, None)
        if query is None:
            return None
        try:
            return query(self._gpu, *args)
        except self._library.NVMLError:
            return None

    def read(self) -> Reading:
        mhz = self._ask("nvmlDeviceGetClockInfo", 1)  # NVML_CLOCK_SM
        celsius = self._ask("nvmlDeviceGetTemperature", 0)  # NVML_TEMPERATURE_GPU
        milliwatts = self._ask("nvmlDeviceGetPowerUsage")
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # its name until 2023
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return Reading(
            _number(mhz), _number(celsius), _number(milliwatts, 1e-3), reasons(bits or 0)
        )

    def processes(self) -> list[int] | None:
        result = self._ask("nvmlDeviceGetComputeRunningProcesses")
        return None if result is None else [int(process.pid) for process in result]


class _AmdSmi:
    """AMD's library. One query gives all sensors; a field that the GPU lacks reads "N/A"."""

    source: Source = "amdsmi"

    def __init__(self, bus: str) -> None:
        import amdsmi  # type: ignore[import-not-found,unused-ignore]

        amdsmi.amdsmi_init()
        self._library = amdsmi
        gpus = amdsmi.amdsmi_get_processor_handles()
        self._gpu = next(
            g for g in gpus if amdsmi.amdsmi_get_gpu_device_bdf(g).lower().startswith(bus)
        )

    def read(self) -> Reading:
        try:
            text = self._library.amdsmi_get_gpu_metrics_info(self._gpu)
        except self._library.AmdSmiException:
            return Reading()
        # MI300 reports the clock of each die; MI200 and Radeon one clock
        dies = text.get("current_gfxclks")
        clocks = [v for c in (dies if isinstance(dies, list) else []) if (v := _number(c))]
        mhz = stats.median(clocks) if clocks else _number(text.get("current_gfxclk"))
        power = _number(text.get("current_socket_power"))
        if power is None:
            power = _number(text.get("average_socket_power"))
        is_slow = text.get("throttle_status") is True
        return Reading(
            mhz, _number(text.get("temperature_hotspot")), power, ("throttled",) if is_slow else ()
        )

    def processes(self) -> list[int] | None:
        try:
            result = self._library.amdsmi_get_gpu_process_list(self._gpu)
        except self._library.AmdSmiException:
            return None
        return [int(process["pid"]) for process in result]


def reasons(bits: int) -> tuple[str, ...]:
    """Return the names of NVML's reasons for a lowered clock; unknown bits are shown as hex."""
    named = tuple(name for bit, name in REASONS.items() if bits & bit)
    unknown = bits & ~0x001 & ~sum(REASONS)
    return (*named, hex(unknown)) if unknown else named


def uuid_of(index: int) -> str:
    """Return the UUID of torch's GPU `index` in NVML's format. CUDA_VISIBLE_DEVICES renumbers
    torch's devices and not NVML's."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"


def _open(gpu: int | str) -> _Nvml | _AmdSmi | None:
    try:
        if isinstance(gpu, str):
            return _Nvml(gpu)
        import torch

        if torch.version.hip is None:
            return _Nvml(uuid_of(gpu))
        text = torch.cuda.get_device_properties(gpu)
        bus = f"{text.pci_domain_id:04x}:{text.pci_bus_id:02x}:{text.pci_device_id:02x}"
        return _AmdSmi(bus)
    except Exception:  # no such library, or a driver that fails: times need no sensors
        return None


def _number(value: Any, unit: float = 1.0) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) * unit if usable else None
