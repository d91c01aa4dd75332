"""Least times of a call on a device, from its datasheet."""

from workbench.device.hardware import Device


def cache_bytes(device: Device) -> int:
    """Return the bytes of the last-level cache; 64 MiB where they are unknown."""
    return int(device.cache.value) if device.cache else 64 << 20


CACHE_MARGIN = 2.0  # a cache's figure is of one working set; at twice that no data was moved


def bound_s(device: Device, bytes_: int, flops: int, dtype: str) -> float:
    """Return the roofline bound of a cold call in seconds: the larger of least bytes over the peak
    bandwidth and FLOPs over the peak."""
    dram = bytes_ / device.dram.value if device.dram else 0.0
    return max(dram, arithmetic_s(device, flops, dtype))


def hot_bound_s(device: Device, bytes_: int, flops: int, dtype: str) -> float:
    """Return the least seconds of a call whose data is in the last-level cache: each launch reads
    its inputs from there, as nearer caches are emptied between launches."""
    cache = device.cache_bandwidth
    moved = bytes_ / (CACHE_MARGIN * cache.value) if cache else 0.0
    return max(moved, arithmetic_s(device, flops, dtype))


def arithmetic_s(device: Device, flops: int, dtype: str) -> float:
    """Return the least seconds of so many FLOPs; 0 where the peak is unknown. fp32 may run on the
    matrix unit where a library chooses tf32, so fp32's own peak is not a bound."""
    named = ("tf32", "fp32_matrix") if dtype == "fp32" else (dtype,)
    peaks = [device.peaks[name].value for name in named if name in device.peaks]
    if dtype == "fp32" and peaks and "fp32" in device.peaks:
        peaks.append(device.peaks["fp32"].value)
    return flops / max(peaks) if peaks else 0.0
