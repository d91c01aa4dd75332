"""Work that is derived from code: what walks find, and times held against those of an H100."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from workbench.code.code_work import distinct_bytes, launch_work
from workbench.code.program_slices import every_op, needed_values
from workbench.code.ttgir import NotModelled, read_ttgir
from workbench.compile.launches import capture_launches
from workbench.compile.program_writes import NOBODY, footprint_of
from workbench.data.record import Resources
from workbench.device.code_model import MODEL, predict_each, predict_launch
from workbench.device.hardware import device_named

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

pytestmark = pytest.mark.compile

H200 = device_named("h200")
# Of each kind one kernel with its problems: products, rows, elements, indices. The rest is nightly.
DAILY = ("mm", "rms", "rope")
SOME = Resources("", 64, 0, 0, 128, 8, 0.5, "registers", 1, 1.0, 0.0, 128, None, 0.0)


@triton.jit
def rows(x, y, M, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * N + i, i < N, other=0.0)
    tl.store(y + row, tl.sum(total))


@triton.jit
def rows_after(x, y, M, N, BLOCK: tl.constexpr):
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * N + i, i < N, other=0.0)
    tl.store(y + row, tl.sum(total))
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def centred(x, y, N, BLOCK: tl.constexpr):
    row = tl.program_id(0) * N
    shift = tl.load(x + row)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        total += tl.load(x + row + start + tl.arange(0, BLOCK)) - shift
    mean = tl.sum(total) / N
    for start in range(0, N, BLOCK):
        i = row + start + tl.arange(0, BLOCK)
        tl.store(y + i, tl.load(x + i) - mean)


@triton.jit
def triangle(x, y, N, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, p + 1):
        total += tl.load(x + k * BLOCK + tl.arange(0, BLOCK))
    tl.store(y + p * BLOCK + tl.arange(0, BLOCK), total)


@triton.jit
def scattered(x, at, y, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + tl.load(at + i, i < N, other=0), tl.load(x + i, i < N), i < N)


@triton.jit
def stepped(x, y, N, STEP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * STEP + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, i < N), i < N)


@triton.jit
def until(x, y, N, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    k = 0
    while tl.load(x + k) > 0:
        k += 1
    tl.store(y + i, k, i < N)


@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for s in range(0, K, BK):
        k = s + tl.arange(0, BK)
        acc += tl.dot(tl.load(a + m[:, None] * K + k[None]), tl.load(b + k[:, None] * N + n[None]))
    tl.store(c + m[:, None] * N + n[None], acc)


@triton.jit
def tallied(x, y, N, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    tl.atomic_add(y + p // 32, tl.sum(tl.load(x + p * BLOCK + tl.arange(0, BLOCK))))


@triton.jit
def causal(x, y, N, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    row = N // BLOCK - 1 - tl.program_id(0) // GROUP % (N // BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, row):
        total += tl.load(x + k * BLOCK + tl.arange(0, BLOCK))
    tl.store(y + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), total)


@triton.jit
def in_one_row(x, M, K, STEP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    of_x = tl.make_tensor_descriptor(x, [M, K], [K, 1], [BM, BK])
    k, m, total = 0, tl.program_id(0) * BM, tl.zeros((BM, BK), tl.float32)
    for _ in range(0, tl.cdiv(M, STEP * BM) * (K // BK)):
        total += of_x.load([m, k]).to(tl.float32)
        k += BK
        if k == K:
            of_x.store([m, 0], total.to(x.dtype.element_ty))
            k, m = 0, m + STEP * BM


@triton.jit
def blocks(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    of_a = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    of_b = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    of_c = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(of_a.load([m, k]), of_b.load([k, n]), acc)
    of_c.store([m, n], acc.to(c.dtype.element_ty))


@triton.jit
def host_blocks(of_a, of_b, of_c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(of_a.load([m, k]), of_b.load([k, n]), acc)
    of_c.store([m, n], acc.to(of_c.dtype))


@triton.jit
def one_row_of_tiles(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PROGRAMS: tl.constexpr
):
    across, k = tl.cdiv(N, BN), tl.arange(0, BK)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * across, PROGRAMS, flatten=True):
        m = tile // across * BM + tl.arange(0, BM)
        n = tile % across * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), tl.float32)
        for s in range(0, K, BK):
            left = tl.load(a + m[:, None] * K + s + k[None])
            acc = tl.dot(left, tl.load(b + (s + k[:, None]) * N + n[None]), acc)
        tl.store(c + m[:, None] * N + n[None], acc.to(tl.bfloat16))


def launched(kernel, grid, *args, contents=None, device=H200, **more):
    """The TTGIR of a launch, with what is known of its arguments."""
    with capture_launches(device) as launches:
        kernel[grid](*args, **more)
    (launch,) = launches
    given = replace(launch.launch_arguments, contents=contents or {})
    return launch.kernel.asm["ttgir"], launch.grid, given


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def work_of(*launch, stages=3):
    return launch_work(*launch, H200, SOME, stages)


def amount(work, kind):
    return work.programs * sum(r.get(kind) * r.executions for r in work.regions)


# 1792 and 2048: in seven and eight trips the middle one was one of the last four
@pytest.mark.parametrize("columns", [4096, 4000, 128, 1536, 1792, 2048, 2304])
def test_bytes_and_trips_of_rows_are_those_of_the_sizes(columns):
    work = work_of(*launched(rows, (64,), empty(64, columns), empty(64), 64, columns, BLOCK=256))
    moved = 4 * 64 * columns
    assert work.least_bytes == pytest.approx(moved + 64 * 4, rel=0.05)
    loaded = amount(work, "load_bytes") + amount(work, "copy_bytes")
    assert loaded == pytest.approx(moved, rel=0.05)
    (trips,) = {r.executions for r in work.regions if r.is_loop}
    assert trips == pytest.approx(math.ceil(columns / 256))


def test_flops_of_a_product_and_the_peak_of_its_operands():
    """The dtype of a product is that of its operands, whatever is stored."""
    for kind, peak in ((torch.float16, "fp16"), (torch.bfloat16, "bf16"), (torch.float32, "tf32")):
        tensors = [empty(256, 512, dtype=kind), empty(512, 128, dtype=kind), empty(256, 128)]
        config = {"BM": 64, "BN": 64, "BK": 32, "num_warps": 4}
        work = work_of(*launched(product, (4, 2), *tensors, 256, 128, 512, **config))
        assert work.flops == 2 * 256 * 128 * 512
        assert {r.peak for r in work.regions if r.peak} == {peak}


@pytest.mark.parametrize("name", ["mi250x", "mi300x", "mi355x", "rx7900xtx"])
def test_an_amd_gpu_moves_through_buffers_what_others_move_through_pointers(name):
    """A base and 32-bit offsets, where a tensor is known to have less than 2 GB; also straight into
    shared memory, on an mi355x, and products in matrix layouts of RDNA."""
    device, (M, N, K) = device_named(name), (256, 128, 512)
    half = [empty(M, K, dtype=torch.float16), empty(K, N, dtype=torch.float16), empty(M, N)]
    tiles = {"BM": 64, "BN": 64, "BK": 32, "num_warps": 4, "num_stages": 2}
    for kernel, grid, args, config in (
        (rows, (64,), (empty(64, 4000), empty(64), 64, 4000), {"BLOCK": 256}),
        (stepped, (64,), (empty(8192), empty(8192), 8000), {"STEP": 128, "BLOCK": 128}),
        (tallied, (64,), (empty(64 * 256), empty(2), 64), {"BLOCK": 256}),
        (product, (4, 2), (*half, M, N, K), tiles),
    ):
        ttgir, *launch = launched(kernel, grid, *args, device=device, **config)
        assert "amdg.buffer_load" in ttgir
        ours = launch_work(ttgir, *launch, device, SOME, 2)
        others = work_of(*launched(kernel, grid, *args, **config))
        assert (ours.flops, ours.least_bytes) == (others.flops, others.least_bytes)


@triton.jit
def doubled(x, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, 2 * tl.load(x + i, i < N), i < N)


@triton.jit
def added_rows(x, at, y, N, BLOCK: tl.constexpr):
    p, i = tl.program_id(0), tl.arange(0, BLOCK)
    tl.atomic_add(y + tl.load(at + p) * N + i, tl.load(x + p * N + i, i < N), i < N)


def test_bytes_that_a_launch_reads_and_that_it_writes_count_both():
    """A tensor that is changed in place counted once; of rows that are added to a table they count,
    not the table."""
    assert distinct_bytes(*launched(doubled, (256,), empty(1 << 16), 1 << 16, BLOCK=256)) == (
        4 << 16, 4 << 16,
    )  # fmt: skip
    at = np.array([7, 900, 7, 31])
    args = empty(4, 256), empty(4, dtype=torch.int64), empty(1000, 256), 256
    read, written = distinct_bytes(
        *launched(added_rows, (4,), *args, contents={"at": at}, BLOCK=256)
    )
    assert (read, written) == (4 * 4 * 256 + 32 + 3 * 4 * 256, 3 * 4 * 256)


def described(block, *shape):
    return TensorDescriptor(empty(*shape, dtype=torch.bfloat16), [*shape], [shape[1], 1], block)


SIZES, TILE = (
    (250, 136, 520),
    {"BM": 64, "BN": 64, "BK": 64, "num_warps": 4},
)  # no tile divides them


def described_launches(device):
    """One product through descriptors that its programs make, and through the caller's."""
    (M, N, K), grid = SIZES, (4, 3)
    kinds = [empty(*shape, dtype=torch.bfloat16) for shape in ((M, K), (K, N), (M, N))]
    yield launched(blocks, grid, *kinds, M, N, K, device=device, **TILE)
    given = [described([64, 64], *x.shape) for x in kinds]
    yield launched(host_blocks, grid, *given, K, device=device, **TILE)


@pytest.mark.parametrize("name", ["h200", "a100"])
def test_a_product_by_descriptors_moves_what_lies_inside_of_their_tensors(name):
    """An A100 has no copy engine: its compiler makes pointers and masks of a descriptor."""
    device, (M, N, K) = device_named(name), SIZES
    for launch in described_launches(device):
        work = launch_work(*launch, device, SOME, 3)
        assert work.flops == 2 * 256 * 192 * 576, "whole tiles are multiplied"
        assert work.least_bytes == pytest.approx(2 * (M * K + K * N + M * N), rel=0.02)
        written = footprint_of(*launch, lambda *_: np.array([0, M * N - 1]))
        (c,) = written.tensors
        assert (c.elements, c.excess, c.shared_element) == (M * N, 0, None)
        assert list(written.writers.values()) == [(0, 11)]


def test_a_block_that_no_loop_prefetches_is_waited_for_and_occupies_no_load_unit():
    staged, plain = (
        work_of(*launched(blocks, (4, 3), *[empty(256, 256, dtype=torch.bfloat16)] * 3,
                          256, 192, 256, **TILE, num_stages=stages))
        for stages in (3, 1)
    )  # fmt: skip
    each = 4 * 2 * 2 * 64 * 64  # bytes of a program: four tiles of both operands
    assert amount(staged, "copy_bytes") == amount(plain, "load_bytes") == 12 * each
    (loop,) = (r for r in staged.regions if r.is_loop)
    assert loop.get("copy_bytes") and not loop.get("load_bytes") and loop.waits == 0
    (loop,) = (r for r in plain.regions if r.is_loop)
    assert loop.get("load_bytes") == 2 * 2 * 64 * 64 and loop.waits == 2 and loop.executions == 4
    assert not any(r.get(f"{kind}_lines") for r in plain.regions for kind in ("load", "store"))


@pytest.mark.parametrize(("M", "K", "block"), [(1024, 256, 32), (4096, 512, 32), (256, 4096, 64)])
def test_a_loop_that_chooses_its_tiles_trip_by_trip_is_walked_in_turn(M, K, block):
    """The last has rows of 64 trips: of 256 trips the first 128 are walked, with two stores."""
    x = empty(M, K, dtype=torch.bfloat16)
    work = work_of(*launched(in_one_row, (4,), x, M, K, STEP=4, BM=block, BK=block))
    assert amount(work, "load_bytes") + amount(work, "copy_bytes") == 2 * M * K
    assert amount(work, "store_bytes") == 2 * M * block
    (loop,) = (r for r in work.regions if r.loop)
    assert loop.is_loop and loop.waits == 1
    assert work.programs * loop.executions == -(-M // block) * (K // block)
    assert work.least_bytes == pytest.approx(2 * M * K, rel=0.01)


def test_a_persistent_product_of_one_loop_moves_what_its_tiles_hold():
    """16 tiles of eight steps a program: walked by a few trips, it would read a tile or two."""
    M = N = 1024
    K, tile, programs = 512, 64, 16
    x = empty(M, M, dtype=torch.bfloat16)
    launch = launched(
        one_row_of_tiles, (programs,), x, x, x, M, N, K, *[tile] * 3, PROGRAMS=programs, num_warps=4
    )
    work = work_of(*launch)
    loaded = amount(work, "load_bytes") + amount(work, "copy_bytes")
    assert work.flops == 2 * M * N * K
    assert loaded == pytest.approx((M // tile) * (N // tile) * (K // tile) * 4 * tile**2, rel=0.02)
    assert amount(work, "store_bytes") == 2 * M * N


def test_sampled_programs_execute_every_loop_that_others_do():
    """Programs 31, 63 and 95 of 128, which are evenly spaced, are all of the first row."""
    x, y = empty(32 * 128), empty(4 * 32 * 128)
    work = work_of(*launched(causal, (128,), x, y, 32 * 128, GROUP=1, BLOCK=128))
    (trips,) = {r.executions for r in work.regions if r.is_loop}
    assert trips == pytest.approx(15.5)
    loaded = amount(work, "load_bytes") + amount(work, "copy_bytes")
    assert loaded == pytest.approx(128 * 15.5 * 128 * 4, rel=0.02)


def test_one_atomic_addition_a_program_counts_by_its_address():
    work = work_of(*launched(tallied, (64,), empty(64 * 128), empty(2), 64 * 128, BLOCK=128))
    assert sum(r.get("hot") * r.executions for r in work.regions) == pytest.approx(2 / 3)


def test_a_descriptor_that_a_branch_chooses_is_not_ranked():
    ttgir, *rest = next(described_launches(H200))
    odd = ttgir.replace("ttng.reinterpret_tensor_descriptor", "arith.index_cast", 1)
    with pytest.raises(NotModelled, match="a descriptor comes from a loop or a branch"):
        work_of(odd, *rest)


def test_unequal_programs_are_scheduled():
    even = work_of(*launched(rows, (64,), empty(64, 512), empty(64), 64, 512, BLOCK=256))
    uneven = work_of(*launched(triangle, (64,), empty(64 * 128), empty(64 * 128), 64, BLOCK=128))
    assert even.rounds is None
    assert uneven.rounds == pytest.approx(64 / 32.5, rel=0.01), "the last one takes the longest"


def test_all_programs_writes_are_counted_and_their_writers_found():
    def requested(name, count):
        return np.array([0, count // 2, count - 1])

    grid, n = (16,), 16 * 128
    match = footprint_of(*launched(stepped, grid, empty(n), empty(n), n, 128, BLOCK=128), requested)
    (y,) = match.tensors
    assert (y.argument, y.elements, y.excess, y.shared_element) == ("y", n, 0, None)
    assert match.writers == {"y": (0, 8, 15)}
    half = footprint_of(*launched(stepped, (8,), empty(n), empty(n), n, 128, BLOCK=128), requested)
    assert half.tensors[0].elements == n // 2 and half.writers == {"y": (0, NOBODY, NOBODY)}
    short = launched(stepped, grid, empty(n), empty(n - 5), n, 128, BLOCK=128)
    assert footprint_of(*short, requested).tensors[0].excess == 5
    twice = launched(stepped, grid, empty(n), empty(n), n, 64, BLOCK=128)
    assert footprint_of(*twice, requested).tensors[0].shared_element == (64, 0, 1)


@triton.jit
def to_either(x, y, z, n, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    out = tl.where(p % 2 == 0, y, z)
    tl.store(out + p // 2 * BLOCK + i, tl.load(x + p * BLOCK + i))


def test_a_program_may_choose_the_tensor_that_it_writes_to():
    """As a product of several matrices in one launch, whose blocks are selected by pointer."""
    launch = launched(to_either, (8,), empty(1024), empty(512), empty(500), 1024, BLOCK=128)
    written = footprint_of(*launch, lambda name, count: np.array([0]))
    assert [(t.argument, t.elements, t.excess) for t in written.tensors] == [
        ("y", 512, 0), ("z", 500, 12)]  # fmt: skip
    assert written.writers == {"y": (0,), "z": (1,)}


def test_indices_that_are_given_decide_where_a_kernel_writes():
    at = np.arange(256)[::-1].copy()
    code = (empty(256), empty(256, dtype=torch.int64), empty(256), 256)
    known = launched(scattered, (2,), *code, contents={"at": at}, BLOCK=128)
    match = footprint_of(*known, lambda name, count: np.array([0, 255]))
    assert match.tensors[0].elements == 256 and match.writers == {"y": (1, 0)}
    unknown = launched(scattered, (2,), *code, BLOCK=128)
    for derived in (work_of, lambda *launch: footprint_of(*launch, lambda *_: np.array([0]))):
        with pytest.raises(NotModelled, match="depends on data that is not given"):
            derived(*unknown)


def test_a_wait_for_the_launch_before_costs_nothing():
    dependent, alone = (
        work_of(*launched(kernel, (64,), empty(64, 512), empty(64), 64, 512, BLOCK=256))
        for kernel in (rows_after, rows)
    )
    assert predict_launch(H200, dependent, SOME) == predict_launch(H200, alone, SOME)


def test_data_that_a_loop_before_has_read_is_waited_for_in_the_cache():
    """A first element of a tensor does not make all of it cached."""
    x, y = empty(64, 4096), empty(64, 4096)
    fresh = work_of(*launched(centred, (64,), x, y, 4096, BLOCK=512)).fresh
    first, loop, again = fresh.values()
    assert (first, again) == (1.0, 0.0) and loop == pytest.approx(1, abs=0.01)


def test_a_loop_whose_end_is_in_the_data_is_not_ranked():
    launch = launched(until, (1,), empty(64), empty(64, dtype=torch.int32), 64, BLOCK=64)
    with pytest.raises(NotModelled, match="data that is not given"):
        work_of(*launch)


def test_an_operation_that_no_list_has_is_not_ranked():
    ttgir, *rest = launched(rows, (64,), empty(64, 512), empty(64), 64, 512, BLOCK=256)
    odd = ttgir.replace("tt.get_program_id x", "ttng.cluster_id x", 1)
    assert odd != ttgir
    with pytest.raises(NotModelled, match=r"no model of ttng\.cluster_id"):
        work_of(odd, *rest)


def test_values_that_no_address_needs_are_not_computed():
    ttgir, *_ = launched(rows, (64,), empty(64, 512), empty(64), 64, 512, BLOCK=256)
    function = read_ttgir(ttgir)
    needed = needed_values(function)
    numbers = [op for op in every_op(function.body) if op.word in ("addf", "load", "reduce")]
    assert {"%x", "%y", "%N"} <= needed and len(numbers) > 2
    assert not needed.intersection(name for op in numbers for name in op.results)


def test_a_prediction_names_its_terms_and_sums_over_launches():
    work = work_of(*launched(rows, (8192,), empty(8192, 4096), empty(8192), 8192, 4096, BLOCK=1024))
    one, two = predict_launch(H200, work, SOME), predict_each(H200, (work, work), (SOME, SOME))
    assert one.model == MODEL and one.bound == "memory"
    assert two.predicted_s == pytest.approx(2 * one.predicted_s)
    least_s = work.least_bytes / H200.dram.value
    assert least_s < one.predicted_s < 2 * least_s


@pytest.mark.newest
def test_some_plain_kernels_are_ranked_as_an_h100_ranks_them():
    import code_model

    held(list(code_model.scores(DAILY)), first=0.02, rank=0.75)


@pytest.mark.newest
@pytest.mark.nightly
def test_plain_kernels_are_ranked_as_an_h100_ranks_them():
    """None of the 41 problems is without a time."""
    import code_model

    some = list(code_model.scores())
    assert len(some) == 41 and sum(len(s.ratios) for s in some) == 907
    held(some, first=0.03, rank=0.82)


@pytest.mark.newest
@pytest.mark.nightly
def test_drawn_rows_and_a_plain_product_are_ranked_as_an_h200_ranks_them():
    import code_model
    import predictors

    some = list(code_model.scores((), code_model.ROWS))
    assert len(some) == 54 and sum(len(s.ratios) for s in some) == 563
    held(some, first=0.055, rank=0.8)
    scores = predictors.scores(predictors.PREDICTORS["ours, compiled, from code alone"]())
    assert code_model.geometric_mean([one.first for one in scores]) <= 0.03


@pytest.mark.newest
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "widest", "known", "unseen"),
    [("code product", 2.2, 0.9, 0.9), ("issued code", 2.5, 0.92, 0.87)],
)
def test_the_bands_of_times_from_code_hold_what_docs_say(kind, widest, known, unseen):
    import code_model

    (band,) = (b for b in device_named("h100").bands if b.kind == kind)
    assert band.high / band.low <= widest
    for file, least in ((code_model.FILE, known), (code_model.SECOND, unseen)):
        some = [s for s in code_model.scores((), file) if s.kernel in band.kernels]
        assert some
        inside = np.mean([band.low <= r <= band.high for s in some for r in s.ratios])
        assert inside >= least, file


def held(some, first, rank):
    """Hold the figures of docs/facts.md, with a margin that any change of a constant can move."""
    import code_model

    assert code_model.geometric_mean([s.first for s in some]) <= first
    assert code_model.geometric_mean([s.best_of_five for s in some]) <= 0.007
    assert np.mean([s.rank for s in some if s.spread > code_model.FLAT]) >= rank
    assert np.median([s.error for s in some]) <= 0.18
