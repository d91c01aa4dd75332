"""No default spills registers on an H200 at sizes to time, nor at any width that an axis may have,
in any dtype; what cannot be helped is listed with its bytes.

In continuous integration one Impl of every second kernel in one dtype, not in fp16 beside bf16, not
at the first size to time, at one or two of the others where nothing is listed, and none with
KERNEL_TESTS=brief: Triton 3.6 spills elsewhere (8 bytes of wkv7.chunked in fp16).
"""

import pytest
from kernel_cases import BRIEF, SLOTS, SPILLS, dtypes_of, triton_impls, turn
from turns import CI

from workbench.compile import read_resources
from workbench.compile.launches import captured
from workbench.device.hardware import DEVICES
from workbench.measurement import inputs

DEVICE = DEVICES["h200"]


def impls():
    if not CI:
        return triton_impls()
    every = triton_impls()
    return [i for i in every if i is turn(i.spec, [j for j in every if j.spec is i.spec])][::2]


def impls_and_dtypes():
    """In continuous integration not fp16 beside bf16: of one Impl of each kernel, at all sizes, the
    two spilled the same but for 16 bytes of lora.persistent, which are no more than SLOTS."""
    for impl in impls():
        every = dtypes_of(impl, DEVICE.limits)
        left_out = {"fp16"} if CI and "bf16" in every else set()
        dtypes = [d for d in every if d not in left_out and sizes_of(impl, d)]
        if dtypes and CI:
            dtypes = [turn(impl.spec, dtypes)]
        for dtype in dtypes:
            yield pytest.param(impl, dtype, id=f"{impl.title}-{dtype}")


def sizes_of(impl, dtype):
    """In continuous integration not the first size: tests/compile/test_kernels.py compiles it, and
    there it must not spill either. Of the others the last, which has the greatest width where an
    axis has a few, and in dtypes of two bytes and fewer one in turn: in fp32 it takes seconds."""
    spec = impl.spec
    among = {axis: extent.among for axis, extent in spec.extents.items() if extent.among}
    widths = [{**spec.bench[0], a: n} for a, every in among.items() for n in sorted(every)]
    if not CI:
        return [*spec.bench, *widths]
    others = [sizes for sizes in (*spec.bench[1:], *widths) if sizes != spec.bench[0]]
    if (impl.title, dtype) in SPILLS or len(others) < 3:
        return others
    return [others[-1]] if dtype == "fp32" else [turn(spec, others[:-1]), others[-1]]


if not BRIEF:

    @pytest.mark.parametrize(("impl", "dtype"), list(impls_and_dtypes()))
    def test_no_default_spills(impl, dtype):
        most = max(spilt(impl, sizes, dtype) for sizes in sizes_of(impl, dtype))
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
