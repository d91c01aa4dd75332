"""The model `apple-2`: a roofline of counted bytes, for GPUs of Apple's.

    interval = launches + max(bytes / (share B), FLOPs / (share P), waves x latency)

B is the memory bandwidth and P the peak of the dtype that the device's file states. The lower end
takes the operation's least bytes and the largest share of B and P that published times reach, the
upper end the bytes that the emulator counted and the smallest share. `SHARES` are of 18 published
times on 13 chips, by class of chip (`benchmarks/data/apple_published.csv`), widened by `MARGIN`.
What is read again costs nothing at the lower end. At the upper one it comes from the last-level
cache, at twice the memory's bandwidth, where all of the operation's bytes are within the cache
size that microbenchmarks report, and from memory otherwise. No Apple GPU was used for any of it.
Predictions whose intervals overlap must not be ranked.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from workbench.data.record import Predicted
from workbench.device.hardware import Device

MODEL = "apple-2"
EMULATED = "emulated on a CPU and predicted; Apple's compiler and GPU took no part"
LAUNCH_S = 5e-6  # of one dispatch on the GPU
LATENCY_S = 1e-6  # of one wave of threads
BOUNDS = ("memory", "compute", "waves")  # what may bound a time
RESIDENT_THREADS = 1024  # of one core at once: one threadgroup of the largest size
LOW, HIGH = 0.7, 2.0  # ends of what is assumed: launches and waves
CACHE_SPEEDUP = 2.0  # of the last-level cache over memory, as microbenchmarks report it
MARGIN = 1.15  # by which shares are widened: there are few, and of other kernels than ours

# Smallest and largest share of the stated figure that published times reach, by class of chip.
SHARES: Mapping[str, tuple[float, float]] = {
    "base": (0.81, 0.83),
    "Pro and Max": (0.77, 0.93),
    "Ultra": (0.64, 0.76),
    "arithmetic": (0.66, 0.78),
}

# FLOPs for each of its least bytes above which arithmetic may limit a kernel. Peaks and bandwidths
# of M1, M2 and M5 meet at 26 to 38 FLOP a byte; this is half of the smallest.
RIDGE = 13.0


def chip_class(title: str) -> str:
    """Return the class of a chip, by its title."""
    words = title.split()
    return "Ultra" if "Ultra" in words else "Pro and Max" if {"Pro", "Max"} & {*words} else "base"


def band(shares: Iterable[float]) -> tuple[float, float]:
    """Return the shares of a stated figure that the ends of an interval take, after those that
    published times reach; no time is shorter than the stated figure allows."""
    known = sorted(shares)
    return known[0] / MARGIN, min(1.0, known[-1] * MARGIN)


def _percent(shares: tuple[float, float]) -> str:
    low, high = band(shares)
    return f"{100 * low:.0f} to {100 * high:.0f} %"


ASSUMPTIONS = (
    (
        "Bandwidth",
        "of what the device's file states "
        + ", ".join(f"{_percent(SHARES[name])} on {name} chips" for name in list(SHARES)[:3])
        + ": what 13 published times reach, and 15 % on either side",
    ),
    ("Arithmetic", f"{_percent(SHARES['arithmetic'])} of the stated peak, after 5 published times"),
    ("Dispatch", f"{LAUNCH_S * 1e6:g} µs each, x{LOW} to x{HIGH:g}"),
    ("Waves", f"{LATENCY_S * 1e6:g} µs for each {RESIDENT_THREADS} threads of a core"),
    (
        "Caches",
        "what is read again costs nothing at the lower end of an interval; at the upper one half "
        "as much as from memory if all bytes of the operation are within the reported cache, and "
        "as much where they are not, or where no cache size is reported",
    ),
    ("Interval", "what overlaps is not ranked"),
)

INTERVALS = (
    "An interval runs from the time for the operation's least bytes at the best share of bandwidth "
    "and peak that published times of such chips reach to that for the sectors that the emulator "
    "counted at the worst."
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
    low, high = band(SHARES[chip_class(device.title)])
    dram_s, compute_s = timing.dram_s, timing.compute_s
    least_s = least_bytes / (high * device.dram.value)
    middle = _middle((low, high))
    parts = {"memory traffic": (dram_s, min(least_s, dram_s), dram_s * middle / low)}
    if compute_s is not None:
        least, most = band(SHARES["arithmetic"])
        middle = _middle((least, most))
        parts["arithmetic"] = (compute_s, compute_s * middle / most, compute_s * middle / least)
    fixed_s = timing.launch_s + timing.latency_s
    return {**parts, "launch and waves": (fixed_s, LOW * fixed_s, HIGH * fixed_s)}


def _middle(ends: tuple[float, float]) -> float:
    return math.sqrt(ends[0] * ends[1])


def unsaid(device: Device, dtype: str, flops: int, least_bytes: int) -> str:
    """Return what no sweep for the device will say, to be read before its first config."""
    if not lacks_peak(device, dtype, flops, least_bytes):
        return (
            "No config will be called the fastest: registers, occupancy and caches need a Mac. "
            "Configs are compared by what the emulator counts, and times are intervals."
        )
    return (
        f"No times: the {dtype} peak of {device.title} is unknown, and arithmetic may limit this "
        "kernel. Configs are compared by what the emulator counts; none will be called the fastest."
    )


def lacks_peak(device: Device, dtype: str, flops: int, least_bytes: int) -> bool:
    """Return whether arithmetic may limit a call, and the device's peak for it is unknown."""
    return dtype not in device.peaks and flops > RIDGE * least_bytes


def predict(device: Device, work: MetalWork, dtype: str) -> Predicted:
    """Return the predicted time of one call, with its terms in seconds.

    Raises ValueError where the device's bandwidth is unknown, or its peak while arithmetic may
    limit the kernel.
    """
    if device.dram is None:
        raise ValueError(f"the memory bandwidth of {device.title} is unknown")
    peak = device.peaks.get(dtype)
    if lacks_peak(device, dtype, work.flops, work.least_bytes):
        raise ValueError(
            f"the {dtype} peak of {device.title} is unknown, and arithmetic may limit this kernel"
        )
    least_bytes = min(work.bytes, work.least_bytes)
    again = work.bytes - least_bytes
    if work.least_bytes <= device.cache.value:
        again /= CACHE_SPEEDUP
    low, high = band(SHARES[chip_class(device.title)])
    slow, fast = band(SHARES["arithmetic"])
    waves = math.ceil(work.threads / (device.limits.cores * RESIDENT_THREADS))
    launch_s, latency_s = work.dispatches * LAUNCH_S, waves * LATENCY_S

    def terms(bytes_: float, share: float, of_peak: float, factor: float) -> dict[str, float]:
        compute_s = work.flops / (of_peak * peak.value) if peak else 0.0
        memory_s = bytes_ / (share * device.dram.value) if device.dram else 0.0
        return dict(zip(BOUNDS, (memory_s, compute_s, factor * latency_s), strict=True))

    middle = terms(least_bytes + again, _middle((low, high)), _middle((slow, fast)), 1.0)
    bound = max(middle, key=lambda name: middle[name])
    return Predicted(
        predicted_s=launch_s + middle[bound],
        model=MODEL,
        compute_s=middle["compute"] if peak else None,
        dram_s=middle["memory"],
        cache_s=None,
        latency_s=latency_s,
        launch_s=launch_s,
        bound=bound,
        shortest_s=LOW * launch_s + max(terms(least_bytes, high, fast, LOW).values()),
        longest_s=HIGH * launch_s + max(terms(least_bytes + again, low, slow, HIGH).values()),
    )
