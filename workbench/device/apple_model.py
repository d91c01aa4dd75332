"""The model `apple-1`: a roofline of counted bytes, for GPUs of Apple's.

    t = launch + max(bytes / (0.85 B), FLOPs / (0.80 P), waves x latency)

B is the memory bandwidth and P the peak of the dtype that the device's file states. Bytes are the
32-byte sectors that an emulated run counted. Apple publishes no clock, cache size or register file,
so the model has none of them: what a cache would serve again counts as memory traffic. The shares
and times below are assumptions of ours, not figures of Apple's, and no Apple GPU was used for any
of them. Hence the interval of 0.7 to 2 times the prediction; predictions whose intervals overlap
must not be ranked.
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
RESIDENT_THREADS = 1024  # of one core at once: one threadgroup of the largest size
LOW, HIGH = 0.7, 2.0  # ends of the interval, over the prediction

# FLOPs for each of its least bytes above which arithmetic may limit a kernel. Peaks and bandwidths
# of M1, M2 and M5 meet at 26 to 38 FLOP a byte; this is half of the smallest.
RIDGE = 13.0

ASSUMPTIONS = (
    ("Bandwidth", f"{100 * BANDWIDTH_SHARE:.0f} % of what the device's file states"),
    ("Arithmetic", f"{100 * PEAK_SHARE:.0f} % of the peak that the device's file states"),
    ("Dispatch", f"{LAUNCH_S * 1e6:g} µs each"),
    ("Waves", f"{LATENCY_S * 1e6:g} µs for each {RESIDENT_THREADS} threads of a core"),
    ("Caches", "none: a sector that is read again counts again"),
    ("Interval", f"x{LOW} to x{HIGH:g}; configs whose intervals overlap are not ranked"),
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


def predict(device: Device, work: MetalWork, dtype: str) -> Predicted:
    """Return the predicted time of one call, with its terms in seconds.

    Raises ValueError where the device's bandwidth is unknown, or its peak while arithmetic may
    limit the kernel.
    """
    if device.dram is None:
        raise ValueError(f"the memory bandwidth of {device.title} is unknown: no prediction")
    peak = device.peaks.get(dtype)
    if peak is None and work.flops > RIDGE * work.least_bytes:
        raise ValueError(
            f"the {dtype} peak of {device.title} is unknown, and arithmetic may limit this kernel: "
            "no prediction"
        )
    memory_s = work.bytes / (BANDWIDTH_SHARE * device.dram.value)
    compute_s = work.flops / (PEAK_SHARE * peak.value) if peak else None
    waves = math.ceil(work.threads / (device.limits.cores * RESIDENT_THREADS))
    terms = {"memory": memory_s, "compute": compute_s or 0.0, "waves": waves * LATENCY_S}
    bound = max(terms, key=lambda name: terms[name])
    launch_s = work.dispatches * LAUNCH_S
    time_s = launch_s + terms[bound]
    return Predicted(
        predicted_s=time_s,
        model=MODEL,
        compute_s=compute_s,
        dram_s=memory_s,
        cache_s=None,
        latency_s=terms["waves"],
        launch_s=launch_s,
        bound=bound,
        shortest_s=LOW * time_s,
        longest_s=HIGH * time_s,
    )
