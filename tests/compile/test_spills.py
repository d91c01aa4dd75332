"""No default spills registers on an H200 at sizes to time, nor at any width that an axis may have,
in any dtype; what cannot be helped is listed with its bytes.

By day one Impl of every sixteenth kernel in one dtype, not fp16 beside bf16: of one Impl of each
kernel, at all sizes, the two spilled the same but for 16 bytes of lora.persistent, which are no
more than SLOTS. On the newest Triton: 3.6 spills elsewhere (8 bytes of wkv7.chunked in fp16).
"""

import pytest
from kernel_cases import SLOTS, SPILLS, dtypes_of, triton_impls, turn
from nightly import nightly

from workbench.compile import read_resources
from workbench.compile.launches import captured
from workbench.device.hardware import DEVICES
from workbench.measurement import inputs

DEVICE = DEVICES["h200"]


def impls_and_dtypes():
    """Every Impl in every dtype, nightly but for one of every sixteenth kernel."""
    every = [(i, d) for i in triton_impls() for d in dtypes_of(i, DEVICE.limits)]
    names = list(dict.fromkeys(impl.spec.name for impl, _ in every))
    for impl, dtype in every:
        ours = [pair for pair in every if pair[0].spec is impl.spec and pair[1] != "fp16"]
        seen = names.index(impl.spec.name) % 16 == 8 and (impl, dtype) == turn(impl.spec, ours)
        yield pytest.param(impl, dtype, id=f"{impl.title}-{dtype}", marks=() if seen else nightly)


def sizes_of(impl):
    """Return the sizes to time, and the first of them at each width that an axis may have."""
    spec = impl.spec
    among = {axis: extent.among for axis, extent in spec.extents.items() if extent.among}
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
    with captured(DEVICE) as launches:
        impl(*inputs.shapes(impl.spec, sizes, dtype), config=config)
    return max(read_resources(one, [one], DEVICE, 0.0).spill_bytes for one in launches)
