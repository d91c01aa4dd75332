"""Launches that may begin before the one before them has ended: they wait before they read."""

import re

import pytest
from nightly import at_night

from workbench import catalog
from workbench.compile.launches import capture_launches
from workbench.device.hardware import DEVICES
from workbench.measurement import inputs

DEVICE = DEVICES["h200"]
READS = r"\b(ld\.global|cp\.async\.c[ag]\.|cp\.async\.bulk\.tensor\.\dd\.shared|atom\.|red\.)"
SIZES = {"M": 1536, "N": 1536, "K": 1536}
CASES = {
    "matmul.warp_groups": (SIZES, "bf16", 1),
    "fp8_matmul.warp_groups": (SIZES, "fp8", 3),  # both groups read scales
    "lora.warp_groups": (SIZES | {"r": 16}, "bf16", 1),
    "q4_k_matmul.slices": (SIZES | {"M": 1}, "fp16", 1),
}


@pytest.mark.parametrize("title", at_night(CASES, lambda title: title in list(CASES)[:1]))
def test_what_a_launch_reads_it_reads_after_it_has_waited(title):
    sizes, dtype, readers = CASES[title]
    impl = catalog.impl_of(catalog.spec_of(title.split(".")[0]), title.split(".")[1])
    config = impl.default(DEVICE.limits, dtype, sizes)
    with capture_launches(DEVICE) as launches:
        impl(*inputs.shapes(impl.spec, sizes, dtype), config=config)
    launch = launches[0]
    assert launch.options["launch_pdl"]
    ptx = launch.kernel.asm["ptx"]
    waits = [m.start() for m in re.finditer(r"griddepcontrol\.wait", ptx)]
    assert len(waits) == readers
    assert waits[0] < min(m.start() for m in re.finditer(READS, ptx))
    # the next launch finds all that came before this one
    after = [m.start() for m in re.finditer(r"griddepcontrol\.launch_dependents", ptx)]
    assert len(after) == readers and all(w < a for w, a in zip(waits, after, strict=True))


def test_no_launch_begins_early_where_the_device_cannot():
    impl = catalog.impl_of(catalog.spec_of("q4_k_matmul"), "slices")
    sizes, device = CASES["q4_k_matmul.slices"][0], DEVICES["a100"]
    config = impl.default(device.limits, "fp16", sizes)
    with capture_launches(device) as launches:
        impl(*inputs.shapes(impl.spec, sizes, "fp16"), config=config)
    (launch,) = launches
    assert "launch_pdl" not in launch.options and "griddep" not in launch.kernel.asm["ptx"]
