"""Kernels in Gluon: which they are, and what their devices must be."""

import csv
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import catalog
from workbench.device.hardware import DEVICES
from workbench.dsl.gluon import UNCHECKED
from workbench.kernels import lora, lora_delta, matmul, q4_k_matmul, softmax
from workbench.kernels.matmul import WarpGroups, rounds_of
from workbench.spec import AUTO

IN_GLUON = {
    "attention.ping_pong",
    "attention_backward.warp_groups",
    "causal_attention.ping_pong",
    "causal_attention_backward.warp_groups",
    "fp8_matmul.warp_groups",
    "lora.warp_groups",
    "lora_delta.clusters",
    "matmul.warp_groups",
    "patch_embed.warp_groups",
    "q4_k_matmul.warp_groups",
    "softmax.clusters",
}

TILES = ((128, 128), (128, 144), (128, 160), (128, 192), (128, 256), (256, 128))


def impls():
    return [i for name in catalog.kernel_names() for i in catalog.spec_of(name).impls]


def test_the_interpreter_leaves_out_no_other_impl():
    assert {impl.title for impl in impls() if impl.unchecked_reason} == IN_GLUON
    assert {impl.title for impl in impls() if impl.unchecked_reason == UNCHECKED} == IN_GLUON


@pytest.mark.parametrize("name", sorted(set(DEVICES) - {"m2max"}))
def test_each_runs_on_hopper_alone_and_says_so(name):
    limits = DEVICES[name].limits
    for impl in (i for i in impls() if i.title in IN_GLUON):
        sizes, dtype = impl.spec.bench[0], "fp8" if "fp8" in impl.spec.tolerance else "bf16"
        reason = impl.rejection_reason(impl.default(limits, dtype, sizes), limits, dtype, sizes)
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


@pytest.mark.parametrize("block_n", sorted({n for _, n in TILES}))
def test_columns_of_a_tile_lie_in_blocks_of_powers_of_two(block_n):
    further = matmul.columns_beyond(block_n)
    blocks = [128, further] if further else [block_n]
    assert sum(blocks) == block_n and all(n & (n - 1) == 0 for n in blocks)


@given(M=st.integers(1, 20_000), N=st.integers(1, 2500), K=st.integers(1, 2500))
def test_the_tile_that_is_chosen_fits_and_no_other_takes_fewer_rounds_at_its_pace(M, N, K):
    limits, at = DEVICES["h200"].limits, dict(itemsize=2, M=M, N=8 * N, K=8 * K)
    config = matmul.size_warp_groups(WarpGroups(), limits, **at)
    assert set(TILES) == set(matmul.PACES)
    assert matmul.refuse_warp_groups(config, limits, **at) is None
    for shape in TILES:
        other = matmul.size_warp_groups(WarpGroups(*shape, halves=0), limits, **at)
        assert (other.block_m, other.block_n) == shape and other.num_stages >= 3
        rounds = -(-(-(-M // shape[0]) * -(-8 * N // shape[1])) // limits.cores)
        mine = (config.block_m, config.block_n)
        tiles = -(-M // mine[0]) * -(-8 * N // mine[1])
        least = tiles // limits.cores * mine[0] * mine[1] * matmul.PACES[mine]
        assert least <= rounds * shape[0] * shape[1] * matmul.PACES[shape] + 1e-6


def test_the_tile_is_the_fastest_of_those_measured():
    impl = catalog.impl_of(catalog.spec_of("matmul"), "warp_groups")
    # on an H200, all six tiles in turns
    fastest = {
        (1536, 1536, 1536): (128, 144), (2560, 2560, 2560): (128, 128),
        (3072, 3072, 3072): (128, 192), (512, 4096, 4096): (128, 128),
        (2560, 10_240, 2560): (128, 128), (2048, 4096, 4096): (128, 256),
    }  # fmt: skip
    for sizes, shape in fastest.items():
        config = impl.default(DEVICES["h200"].limits, "bf16", dict(zip("MNK", sizes, strict=True)))
        assert (config.block_m, config.block_n) == shape, sizes


@given(
    cores=st.integers(1, 160),
    shape=st.sampled_from(TILES),
    M=st.integers(1, 20_000),
    N=st.integers(1, 20_000),
    r=st.sampled_from((8, 16, 64)),
)
def test_an_update_delays_no_tile_where_cores_without_one_suffice_for_it(cores, shape, M, N, r):
    config = WarpGroups(*shape, num_stages=4)
    programs, rows = lora.shrink_beside(config, cores, M, N, r)
    tiles = -(-M // shape[0]) * -(-N // shape[1])
    _, whole, count = rounds_of(config, cores, tiles)
    idle = cores - (count - 1) % cores - 1
    each = -(-M // (128 * idle)) if idle else math.inf  # blocks of 128 rows of u
    assert 16 <= rows <= 128
    if each * (128 + max(16, r)) <= sum(shape) - (count > whole) * shape[1] // 2:
        assert programs == idle and -(-M // (rows * idle)) <= each
    else:
        assert programs == max(idle, cores // 4, 1)


@pytest.mark.parametrize("name", ["h100", "h200"])
@pytest.mark.parametrize("r", [8, 16, 64])
def test_512_rows_give_each_core_a_tile_and_leave_four_for_the_update(name, r):
    limits, sizes = DEVICES[name].limits, {"M": 512, "N": 4096, "K": 4096, "r": r}
    impl = catalog.impl_of(catalog.spec_of("lora"), "warp_groups")
    config = impl.default(limits, "bf16", sizes)
    assert (config.block_m, config.block_n, config.num_stages) == (128, 128, 5)
    assert lora.shrink_beside(config, limits.cores, 512, 4096, r) == (4, 128)


@given(
    M=st.integers(1, 40_000),
    N=st.integers(1, 600_000),
    itemsize=st.sampled_from((2, 4)),
    ctas=st.sampled_from((AUTO, 2, 4, 8)),
)
def test_a_cluster_has_place_for_a_row_of_up_to_a_megabyte(M, N, itemsize, ctas):
    limits, at = DEVICES["h100"].limits, dict(itemsize=itemsize, M=M, N=N)
    config = softmax.size_clusters(softmax.Clusters(ctas=ctas), limits, **at)
    block = softmax.slice_block(config, itemsize, N)
    assert config.ctas * block >= N
    assert block * itemsize % (32 * config.num_warps * 16) == 0, "a widest load for each thread"
    reason = softmax.refuse_clusters(config, limits, **at)
    assert (reason is None) == (block * itemsize <= 1 << 17), reason
    if reason:
        assert "bytes of a row" in reason and N * itemsize > config.ctas << 16


@given(
    K=st.integers(1, 2048),
    N=st.integers(1, 2048),
    r=st.integers(1, 64),
    itemsize=st.sampled_from((2, 4)),
    block_m=st.sampled_from((AUTO, 4, 8, 16)),
    ctas=st.sampled_from((4, 8)),
    num_warps=st.sampled_from((AUTO, 4, 8)),
)
def test_no_two_warps_send_the_same_sums(K, N, r, itemsize, block_m, ctas, num_warps):
    limits, at = DEVICES["h100"].limits, dict(itemsize=itemsize, M=64, N=N, K=K, r=r)
    asked = lora_delta.Clusters(block_m=block_m, ctas=ctas, num_warps=num_warps)
    config = lora_delta.size_clusters(asked, limits, **at)
    reason = lora_delta.refuse_clusters(config, limits, **at)
    ranks = lora_delta.columns_of_clusters(r)
    if config.num_warps > ranks:
        assert reason and "send the same sums" in reason
    elif reason is None:
        layout = lora_delta._along_k.fn(config.ctas, ranks, config.num_warps)
        lanes = layout.threads_per_warp[1]
        assert lanes * config.num_warps <= ranks, "a receiver counts what it is sent"
        assert layout.threads_per_warp[2] >= config.ctas, "a lane for each block"
        assert ctas * lora_delta.slice_block(config, K) >= K
    if asked == lora_delta.Clusters():
        assert reason is None
        assert lora_delta.refuse_clusters(config, limits, **at | {"M": 1 << 29}) is None
        assert "2^31 blocks" in lora_delta.refuse_clusters(config, limits, **at | {"M": 1 << 31})


@given(M=st.integers(1, 64), N=st.integers(1, 60_000), blocks=st.integers(1, 64))
def test_warps_that_share_rows_are_a_power_of_two_and_no_more_than_blocks(M, N, blocks):
    warps = q4_k_matmul.shared_by(DEVICES["h200"].limits, M, -(-N // 16), blocks)
    assert warps in (1, 2, 4, 8) and warps <= blocks


def test_launches_begin_early_at_the_sizes_where_that_was_faster():
    limits, impl = DEVICES["h100"].limits, catalog.impl_of(catalog.spec_of("q4_k_matmul"), "slices")
    data = Path(__file__).parents[2] / "benchmarks" / "data"
    with (data / "h100_early_launches.csv").open() as table:
        rows = list(csv.DictReader(table))
    early = []
    for row in rows:
        config = impl.default(limits, "fp16", {axis: int(row[axis]) for axis in "MNK"})
        assert config.pdl == (float(row["early_over_us"]) < 1), row
        early.append(config.pdl)
    assert 0 < sum(early) < len(early)


def test_warps_share_rows_as_many_as_run_in_one_round():
    limits = DEVICES["h200"].limits
    # one row of x: 256, 896, 1024 and 1792 groups of 16 rows
    shared = [q4_k_matmul.shared_by(limits, 1, g, b) for g, b in ((256, 16), (896, 16), (1024, 18))]
    assert shared == [8, 4, 2] and q4_k_matmul.shared_by(limits, 1, 1792, 32) == 4


def test_warps_of_q4_k_follow_the_rows_and_the_blocks_of_each():
    at = [(16, 99), (17, 99), (32, 99), (33, 16), (33, 17), (64, 16)]
    assert [q4_k_matmul.warps_of_rows(*each) for each in at] == [16, 12, 12, 12, 16, 12]
    assert [q4_k_matmul.warps_at_once(rows) for rows in (1, 2, 3)] == [28, 28, 16]
