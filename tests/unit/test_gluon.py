"""Kernels in Gluon: which they are, and what their devices must be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import catalog
from workbench.device.hardware import DEVICES
from workbench.gluon import UNCHECKED
from workbench.kernels.matmul import WarpGroups, rounds_of

IN_GLUON = {
    "attention.ping_pong",
    "causal_attention.ping_pong",
    "matmul.warp_groups",
    "patch_embed.warp_groups",
}


def impls():
    return [i for name in catalog.kernel_names() for i in catalog.spec_of(name).impls]


def test_the_interpreter_leaves_out_no_other_impl():
    assert {impl.title for impl in impls() if impl.unchecked} == IN_GLUON
    assert {impl.title for impl in impls() if impl.unchecked == UNCHECKED} == IN_GLUON


@pytest.mark.parametrize("name", sorted(set(DEVICES) - {"m2max"}))
def test_each_runs_on_hopper_alone_and_says_so(name):
    limits = DEVICES[name].limits
    for impl in (i for i in impls() if i.title in IN_GLUON):
        sizes = impl.spec.bench[0]
        reason = impl.rejection_reason(impl.default(limits, "bf16", sizes), limits, "bf16", sizes)
        assert (reason is None) == (limits.arch == "sm_90"), reason
        if reason:
            assert "Hopper" in reason and limits.arch in reason


@given(cores=st.integers(1, 160), tiles=st.integers(1, 1000), halves=st.integers(0, 1))
def test_a_last_round_of_a_matrix_product_has_all_of_its_tiles(cores, tiles, halves):
    config = WarpGroups(block_m=128, block_n=256, num_stages=4, halves=halves)
    programs, whole, count = rounds_of(config, cores, tiles)
    rest = tiles - whole
    assert 0 < programs <= cores and (not rest or whole % cores == 0)
    assert count - whole == 2 * rest <= programs and (halves or not rest)
