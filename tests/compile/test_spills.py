"""No default spills registers on an H200 at sizes to time, nor at any width that an axis may have,
in any dtype; what cannot be helped is listed with its bytes.

By day those of BY_DAY: attention alone takes ten seconds. On the newest Triton: 3.6 spills
elsewhere (8 bytes of wkv7.chunked in fp16).
"""

import pytest
from kernel_cases import SLOTS, SPILLS, dtypes_of, triton_impls
from nightly import nightly

from workbench.compile import read_resources
from workbench.compile.launches import capture_launches
from workbench.device.hardware import DEVICES
from workbench.measurement import inputs

DEVICE = DEVICES["h200"]
BY_DAY = {"softmax.rows-fp32", "q4_k_quantize.blocks-fp32"}


def impls_and_dtypes():
    """Yield every Impl in every dtype, nightly but for those of BY_DAY."""
    for impl in triton_impls():
        for dtype in dtypes_of(impl, DEVICE.limits):
            title = f"{impl.title}-{dtype}"
            yield pytest.param(impl, dtype, id=title, marks=() if title in BY_DAY else nightly)


def sizes_of(impl):
    """Return the sizes to time, and the first of them at each width that an axis may have."""
    spec = impl.spec
    among = {axis: extent.choices for axis, extent in spec.extents.items() if extent.choices}
    return [
        *spec.bench,
        *({**spec.bench[0], a: n} for a, every in among.items() for n in sorted(every)),
    ]


@pytest.mark.newest
@pytest.mark.parametrize(("impl", "dtype"), list(impls_and_dtypes()))
def test_no_default_spills(impl, dtype):
    most = max(spilt(impl, sizes, dtype) for sizes in sizes_of(impl))
    allowed, _ = SPILLS.get((impl.title, dtype), (SLOTS, ""))
    assert most <= allowed, f"{impl.title} spills {most} bytes a thread in {dtype}"
    assert allowed == SLOTS or most > SLOTS, f"{impl.title} no longer spills in {dtype}"


def spilt(impl, sizes, dtype):
    """The most bytes a thread of a launch of the default; 0 where it is refused."""
    config = impl.default(DEVICE.limits, dtype, sizes)
    if impl.rejection_reason(config, DEVICE.limits, dtype, sizes) is not None:
        return 0
    with capture_launches(DEVICE) as launches:
        impl(*inputs.shapes(impl.spec, sizes, dtype), config=config)
    return max(read_resources(one, [one], DEVICE, 0.0).spill_bytes for one in launches)
