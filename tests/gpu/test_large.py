"""Every kernel's default config on tensors of more than 2^31 elements, along each axis that can be
so long: the start, the neighbourhood of element 2^31 and the end of the outputs are right."""

import gc

import pytest
import torch
from kernel_cases import dtypes_of, triton_impls, turn
from large_tensors import Large, enlarged, long_axes, verify_windows

from workbench.device import hardware
from workbench.spec import ITEMSIZE

DEVICE = hardware.live()
if DEVICE is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)
LIMITS = DEVICE.limits


def cases():
    """Every Impl along the first axis of its output, and along each other axis one of a kernel."""
    impls = [impl for impl in triton_impls() if dtypes_of(impl, LIMITS)]
    for impl in impls:
        axes = long_axes(impl.spec)
        of = [i for i in impls if i.spec is impl.spec]
        for step, axis in enumerate(axes):
            if not step or impl is turn(impl.spec, of, step):
                yield pytest.param(impl, axis, id=f"{impl.title}-{axis}")


@pytest.mark.parametrize(("impl", "axis"), list(cases()))
def test_right_beyond_2_31_elements(impl, axis, needs_memory):
    dtypes = dtypes_of(impl, LIMITS)
    dtype = "bf16" if "bf16" in dtypes else min(dtypes, key=ITEMSIZE.__getitem__)
    large = enlarged(impl, axis, dtype, LIMITS)
    if not isinstance(large, Large):
        pytest.skip(large)
    needs_memory(large.bytes)
    try:
        verify_windows(large, "cuda")
    finally:
        gc.collect()
        torch.cuda.empty_cache()
