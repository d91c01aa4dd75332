"""What the zeros of `rows` stand for, in softmax and the norms: see `sized` there."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import catalog
from workbench.hardware import DEVICES

KERNELS = ("softmax", "rms_norm", "layer_norm", "fused_add_rms_norm")
H200 = DEVICES["h200"].limits
rows, columns = st.integers(1, 1 << 20), st.integers(1, 1 << 15)


@pytest.fixture(scope="module", params=KERNELS)
def kernel(request):
    return catalog.module_of(request.param), catalog.impl_of(catalog.spec_of(request.param), "rows")


def sized(module, config, M, N):
    """What is chosen on an H200; only some kernels ask how wide a warp is."""
    asks = "warp_size" in inspect.signature(module.sized).parameters
    return module.sized(config, M, N, *([H200.warp_size] if asks else []))


@given(M=rows, N=columns, data=st.data())
def test_what_is_named_stays_and_what_is_not_is_chosen(kernel, M, N, data):
    module, impl = kernel
    drawn = {name: data.draw(st.sampled_from(some)) for name, some in impl.choices().items()}
    found = sized(module, impl.config(**drawn), M, N)
    assert found.block_m and found.num_warps
    assert all(getattr(found, name) == value for name, value in drawn.items() if value)


@given(M=rows, N=columns)
def test_a_thread_is_given_enough_and_not_too_much(kernel, M, N):
    module, impl = kernel
    found = sized(module, impl.config(), M, N)
    each = found.block_m * module.padded(N) / (32 * found.num_warps)
    assert each >= 16 or found.num_warps == 1, "fewer are too few for two wide loads"
    assert found.num_warps >= 4 or N < 2048
    why = impl.refuse(impl.config(), H200, itemsize=2, M=M, N=N)
    assert (why is None) == (each <= 32), "longer rows are for the other versions"


@given(N=columns)
def test_few_rows_have_a_program_each(kernel, N):
    module, impl = kernel
    assert sized(module, impl.config(), 1000, N).block_m == 1
    assert sized(module, impl.config(), 1 << 15, N).block_m * module.padded(N) >= min(
        2048, 16 * module.padded(N)
    )


def test_rows_of_4096_and_8192_run_as_they_were_measured(kernel):
    module, impl = kernel
    for N in (4096, 8192):
        found = sized(module, impl.config(), 8192, N)
        assert (found.block_m, found.num_warps) == (1, 8)
