"""The kernel that reads the SM clock, compiled for GPUs that are not here."""

import re

import pytest
import torch

from workbench.compile import capture_launches
from workbench.device.hardware import DEVICES
from workbench.measurement.probe import MOST_TURNS, SPAN_NS, TICK_NS, read_clock

READS = {
    "cuda": (r"mov\.u64 +%rd\d+, %globaltimer", r"mov\.u64 +%rd\d+, %clock64"),
    "hip": (r"s_memrealtime s\[", r"s_memtime s\["),
}


@pytest.mark.parametrize("name", ["a100", "h200", "b200", "mi250x", "mi300x", "mi355x"])
def test_the_probe_reads_both_counters_twice_in_their_order(name):
    device = DEVICES[name]
    slot = torch.empty(8, dtype=torch.int64, device="meta")
    hip = device.backend == "hip"
    span = SPAN_NS // TICK_NS[device.backend]
    with capture_launches(device) as launches:
        read_clock[(1,)](slot, SPAN=span, MOST=MOST_TURNS, HIP=hip, num_warps=1)
    (launch,) = launches
    assert launch.programs == 1 and launch.kernel.metadata.num_warps == 1
    text = launch.kernel.asm["amdgcn" if hip else "ptx"]
    timer, counter = READS[device.backend]
    order = re.findall(f"({timer})|({counter})", text)
    kinds = ["cycles" if cycles else "time" for _, cycles in order]
    # the timer is awaited, cycles are read; the timer is awaited, cycles are read
    assert kinds == ["time", "time", "cycles", "time", "cycles"]
    stores = re.findall(r"st\.global|global_store_dword", text)
    assert len(stores) >= (3 if hip else 5)  # AMD's compiler joins neighbours
