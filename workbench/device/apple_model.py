"""The model `apple-1`: a roofline of counted bytes, for GPUs of Apple's.

    t(bytes) = launch + max(bytes / (0.85 B), FLOPs / (0.80 P), waves x latency)
    interval = max(0.7 t(least bytes), least bytes / B, FLOPs / P) to 2 t(counted bytes)

B is the memory bandwidth and P the peak of the dtype that the device's file states. Counted bytes
are the 32-byte sectors of an emulated run, as if there were no cache; least bytes are the Spec's,
as if a cache served every byte that is read again. Apple publishes no cache size, so the interval
runs from the one to the other. The shares and times below are assumptions of ours, not figures of
Apple's, and no Apple GPU was used for any of them; hence the factors 0.7 and 2.
Predictions whose intervals overlap must not be ranked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workbench.data.record import Predicted
from workbench.device.hardware import Device

MODEL = "apple-1"
EMULATED = "emulated on a CPU and predicted; Apple's compiler and GPU took no part"
BANDWIDTH_SHARE = 0.85  # of the stated bandwidth that a stream reaches
PEAK_SHARE = 0.80  # of the peak that arithmetic reaches
LAUNCH_S = 5e-6  # of one dispatch on the GPU
LATENCY_S = 1e-6  # of one wave of threads
BOUNDS = ("memory", "compute", "waves")  # what may bound a time
RESIDENT_THREADS = 1024  # of one core at once: one threadgroup of the largest size
LOW, HIGH = 0.7, 2.0  # ends of the interval, over the times for the least and counted bytes

# FLOPs for each of its least bytes above which arithmetic may limit a kernel. Peaks and bandwidths
# of M1, M2 and M5 meet at 26 to 38 FLOP a byte; this is half of the smallest.
RIDGE = 13.0

ASSUMPTIONS = (
    ("Bandwidth", f"{100 * BANDWIDTH_SHARE:.0f} % of what the device's file states"),
    ("Arithmetic", f"{100 * PEAK_SHARE:.0f} % of the peak that the device's file states"),
    ("Dispatch", f"{LAUNCH_S * 1e6:g} µs each"),
    ("Waves", f"{LATENCY_S * 1e6:g} µs for each {RESIDENT_THREADS} threads of a core"),
    (
        "Caches",
        "unknown: what is read again costs nothing at the lower end of an interval and counts "
        "again at the upper one",
    ),
    (
        "Interval",
        f"x{LOW} of the time for the least bytes to x{HIGH:g} of that for the counted ones; what "
        "overlaps is not ranked",
    ),
)

INTERVALS = (
    f"An interval runs from {LOW:g} of the time for the operation's least bytes, as if a cache "
    "served all that is read again, though not below what the stated bandwidth and peak allow, to "
    f"{HIGH:g} times the time for the sectors that the emulator counted, as if there were no cache."
)


@dataclass(frozen=True)
class MetalWork:
    """What one call does on an Apple GPU: bytes of device memory in sectors, the least bytes that
    the Spec declares, FLOPs, the threads of all its threadgroups, and its dispatches."""

    bytes: float
    least_bytes: int
    flops: int
    threads: int
    dispatches: int = 1


def term_intervals(
    device: Device, timing: Predicted, least_bytes: int
) -> dict[str, tuple[float, float, float]]:
    """Return the seconds that each part of a predicted call would take alone, and the ends of its
    interval by the factors of the whole. The memory's begins with the least bytes; arithmetic is
    left out where the peak is unknown."""
    assert device.dram is not None  # there is a prediction
    dram_s, compute_s = timing.dram_s, timing.compute_s
    least_s = min(least_bytes / device.dram.value, dram_s)
    parts = {"memory traffic": (dram_s, least_s, HIGH * dram_s)}
    if compute_s is not None:
        parts["arithmetic"] = (compute_s, PEAK_SHARE * compute_s, HIGH * compute_s)
    fixed_s = timing.launch_s + timing.latency_s
    return {**parts, "launch and waves": (fixed_s, LOW * fixed_s, HIGH * fixed_s)}


def lacks_peak(device: Device, dtype: str, flops: int, least_bytes: int) -> bool:
    """Return whether arithmetic may limit a call, and the device's peak for it is unknown."""
    return dtype not in device.peaks and flops > RIDGE * least_bytes


def predict(device: Device, work: MetalWork, dtype: str) -> Predicted:
    """Return the predicted time of one call, with its terms in seconds.

    Raises ValueError where the device's bandwidth is unknown, or its peak while arithmetic may
    limit the kernel.
    """
    if device.dram is None:
        raise ValueError(f"the memory bandwidth of {device.title} is unknown: no prediction")
    peak = device.peaks.get(dtype)
    if lacks_peak(device, dtype, work.flops, work.least_bytes):
        raise ValueError(
            f"the {dtype} peak of {device.title} is unknown, and arithmetic may limit this kernel: "
            "no prediction"
        )
    least_bytes = min(work.bytes, work.least_bytes)
    compute_s = work.flops / (PEAK_SHARE * peak.value) if peak else None
    waves = math.ceil(work.threads / (device.limits.cores * RESIDENT_THREADS))
    others = {"compute": compute_s or 0.0, "waves": waves * LATENCY_S}
    memory_s = work.bytes / (BANDWIDTH_SHARE * device.dram.value)
    cached_s = least_bytes / (BANDWIDTH_SHARE * device.dram.value)
    ceiling_s = max(least_bytes / device.dram.value, work.flops / peak.value if peak else 0.0)
    terms = dict(zip(BOUNDS, (memory_s, *others.values()), strict=True))
    bound = max(terms, key=lambda name: terms[name])
    launch_s = work.dispatches * LAUNCH_S
    time_s = launch_s + terms[bound]
    return Predicted(
        predicted_s=time_s,
        model=MODEL,
        compute_s=compute_s,
        dram_s=memory_s,
        cache_s=None,
        latency_s=others["waves"],
        launch_s=launch_s,
        bound=bound,
        shortest_s=max(LOW * (launch_s + max(cached_s, *others.values())), ceiling_s),
        longest_s=HIGH * time_s,
    )
