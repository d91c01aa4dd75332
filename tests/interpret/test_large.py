"""The windows of `tests/gpu/test_large.py`, at sizes that the interpreter is soon done with."""

import pytest
from kernel_cases import H200, dtypes_of, is_one_of_each, named, triton_impls, turn
from large_tensors import Large, enlarged, long_axes, parted, verify_windows
from nightly import at_night

BEYOND = 1 << 11  # elements


@pytest.mark.parametrize("impl", at_night(triton_impls(), is_one_of_each), ids=named)
def test_windows_of_a_lengthened_axis_are_right(impl):
    axes = [axis for axis in long_axes(impl.spec) if parted(impl.spec.name, axis)]
    if not axes:
        assert not impl.spec.axes, f"no axis parts {impl.spec.name}: no size of it is checked large"
        return
    dtype, bases = dtypes_of(impl, H200)[0], impl.spec.check[1:]
    axis = turn(impl, axes)
    large = enlarged(impl, axis, dtype, H200, beyond=BEYOND, bases=bases)
    assert isinstance(large, Large), large
    verify_windows(large, "cpu")
