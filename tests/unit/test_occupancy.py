"""Occupancy agrees with CUDA's own rules and with LLVM's tables, and its limiter truly binds."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workbench.device.hardware import DEVICES
from workbench.device.occupancy import occupancy, waves

devices = st.sampled_from(list(DEVICES.values()))
block_threads = st.integers(min_value=1, max_value=1024)
thread_registers = st.integers(min_value=1, max_value=255)
block_bytes = st.integers(min_value=0, max_value=64 * 1024)
shapes = st.fixed_dictionaries(
    {"threads": block_threads, "registers": thread_registers, "shared_bytes": block_bytes}
)


def blocks(name, threads, registers, shared_bytes=0):
    result = occupancy(
        DEVICES[name], threads=threads, registers=registers, shared_bytes=shared_bytes
    )
    return result.blocks_per_core, result.limiter


# Known values


@pytest.mark.parametrize(
    ("name", "threads", "registers", "shared_kib", "expected", "limiter"),
    [
        # 168 x 32 = 5376 registers a warp; 16384 of a scheduler hold 3; 4 x 3 warps are 3 blocks
        ("h200", 128, 168, 0, 3, "registers"),
        ("h200", 128, 32, 0, 16, "threads"),  # 64 warps
        ("h200", 32, 32, 0, 32, "blocks"),
        ("h200", 256, 64, 100, 2, "shared memory"),  # 101 KiB each with the system's, of 228
        ("h200", 128, 32, 113, 2, "shared memory"),  # 114 KiB each, exactly
        ("h200", 128, 32, 114, 1, "shared memory"),  # 115 KiB each: two of 114 would fit
        ("h200", 128, 32, 56.125, 3, "shared memory"),  # 57.125 KiB each, of 228
        ("h200", 128, 32, 227, 1, "shared memory"),  # the most that may be asked for
        ("h200", 1024, 64, 0, 1, "registers"),  # 65536, to the last one
        ("h200", 128, 255, 0, 2, "registers"),  # 8160 round up to 8192: 2 warps a scheduler
        ("h200", 96, 168, 0, 4, "registers"),  # 12 warps in threes
        ("a100", 128, 32, 163, 1, "shared memory"),
        ("a100", 256, 32, 40, 4, "shared memory"),  # 41 KiB of 164, exactly
        ("rtx4090", 32, 32, 0, 24, "blocks"),
        ("rtx4090", 1024, 32, 0, 1, "threads"),  # 48 warps hold one of 32
        ("rtx5090", 128, 32, 49, 2, "shared memory"),  # 50 KiB of 100
        ("mi300x", 256, 64, 0, 8, "threads"),  # 4 waves a block, 8 waves a SIMD
        ("mi300x", 256, 128, 0, 4, "registers"),
        ("mi300x", 256, 129, 0, 3, "registers"),  # 136 of 512
        ("mi300x", 256, 64, 24, 2, "shared memory"),
        ("mi300x", 128, 16, 0, 16, "threads"),
        ("mi300x", 64, 16, 0, 32, "threads"),  # one wave needs no barrier, so 16 is no limit
        ("mi355x", 256, 64, 80, 2, "shared memory"),  # 160 KiB
        ("rx7900xtx", 128, 96, 0, 16, "threads"),  # 4 waves a block, 64 a WGP
        ("rx7900xtx", 128, 97, 0, 12, "registers"),  # 120 of 1536
        ("rx7900xtx", 128, 32, 48, 2, "shared memory"),  # 128 KiB a WGP; 64 of a CU would hold one
    ],
)
def test_known_values(name, threads, registers, shared_kib, expected, limiter):
    assert blocks(name, threads, registers, int(shared_kib * 1024)) == (expected, limiter)


def test_warps_and_fraction_of_the_known_block():
    result = occupancy(DEVICES["h200"], threads=128, registers=168, shared_bytes=0)
    assert (result.warps_per_core, result.fraction) == (12, 12 / 64)


# Waves a SIMD by registers, as LLVM's own test of its occupancy (occupancy-levels.ll) expects.
LLVM = {
    "mi355x": {64: 8, 72: 7, 80: 6, 84: 5, 100: 4, 128: 4, 144: 3, 168: 3, 200: 2, 256: 2},
    "rx7900xtx": {96: 16, 100: 12, 112: 12, 128: 10, 144: 10, 168: 9, 200: 7, 256: 5},
}


@pytest.mark.parametrize(
    ("name", "registers", "expected"),
    [(name, r, waves_) for name, table in LLVM.items() for r, waves_ in table.items()],
)
def test_waves_a_simd_are_those_of_llvm(name, registers, expected):
    device = DEVICES[name]
    result = occupancy(device, threads=device.limits.warp_size, registers=registers, shared_bytes=0)
    assert result.warps_per_core == 4 * expected


# Blocks that cannot run


@pytest.mark.parametrize(
    ("name", "threads", "registers", "shared_bytes", "limiter"),
    [
        ("h200", 128, 32, 227 * 1024 + 1, "shared memory"),
        ("h200", 2048, 32, 0, "threads"),
        ("h200", 128, 256, 0, "registers"),
        ("h200", 1024, 65, 0, "registers"),  # 2304 a warp x 32 is over 65536
        ("h200", 288, 200, 0, "registers"),  # 9 warps are checked as 12 x 6400, and 76800 is over
        ("mi300x", 256, 513, 0, "registers"),
        ("mi300x", 1024, 256, 0, "registers"),  # 2 waves a SIMD are 8, and the block has 16
        ("mi300x", 256, 64, 64 * 1024 + 1, "shared memory"),
        ("rx7900xtx", 256, 64, 96 * 1024, "shared memory"),  # over one block's 64 of the 128
    ],
)
def test_what_cannot_run_names_what_forbids_it(name, threads, registers, shared_bytes, limiter):
    result = occupancy(
        DEVICES[name], threads=threads, registers=registers, shared_bytes=shared_bytes
    )
    assert (result.blocks_per_core, result.warps_per_core, result.fraction) == (0, 0, 0.0)
    assert result.limiter == limiter


@pytest.mark.parametrize(
    "wrong", [{"threads": 0}, {"threads": -1}, {"registers": -1}, {"shared_bytes": -1}]
)
def test_nonsense_is_refused(wrong):
    wanted = {"threads": 128, "registers": 32, "shared_bytes": 0, **wrong}
    with pytest.raises(ValueError, match="at least 1 thread"):
        occupancy(DEVICES["h200"], **wanted)


# Properties


@given(devices, shapes)
def test_resident_blocks_fit_the_core(device, shape):
    result = occupancy(device, **shape)
    n = result.blocks_per_core
    warps = -(-shape["threads"] // device.limits.warp_size)
    assert result.warps_per_core == n * warps <= device.warps_per_core
    assert 0 <= result.fraction <= 1
    assert n * shape["threads"] * shape["registers"] <= device.registers_per_core
    assert n * (shape["shared_bytes"] + device.shared_reserved) <= device.shared_per_core
    assert n <= device.blocks_per_core or (device.backend == "hip" and warps == 1)


@given(devices, shapes, st.integers(0, 255), st.integers(0, 64 * 1024))
def test_asking_for_more_never_fits_more(device, shape, registers, shared_bytes):
    less = occupancy(device, **shape)
    more = occupancy(
        device,
        threads=shape["threads"],
        registers=shape["registers"] + registers,
        shared_bytes=shape["shared_bytes"] + shared_bytes,
    )
    assert more.blocks_per_core <= less.blocks_per_core
    assert more.fraction <= less.fraction


@given(devices, shapes, st.integers(1, 8))
def test_larger_blocks_are_never_more(device, shape, times):
    larger = {**shape, "threads": min(1024, shape["threads"] * times)}
    one_wave = shape["threads"] <= device.limits.warp_size
    assert occupancy(device, **larger).blocks_per_core <= (
        occupancy(device, **shape).blocks_per_core
        if not (device.backend == "hip" and one_wave)
        else device.warps_per_core
    )


RELAXED = {
    "registers": lambda d: replace(
        d,
        registers_per_core=64 * d.registers_per_core,
        limits=replace(d.limits, registers_per_thread=1024),
    ),
    "shared memory": lambda d: replace(
        d,
        shared_per_core=64 * d.shared_per_core,
        limits=replace(d.limits, shared_bytes=d.shared_per_core),
    ),
    "threads": lambda d: replace(d, warps_per_core=64 * d.warps_per_core),
    "blocks": lambda d: replace(d, blocks_per_core=64 * d.blocks_per_core),
}


@given(devices, shapes)
def test_the_limiter_binds(device, shape):
    """More of anything else changes nothing; more of the limiter helps, unless another one runs
    out at the very same number of blocks."""
    result = occupancy(device, **shape)
    for resource, relax in RELAXED.items():
        if resource != result.limiter:
            assert occupancy(relax(device), **shape).blocks_per_core == result.blocks_per_core
    roomy = RELAXED[result.limiter](device)
    freed = occupancy(roomy, **shape)
    tied = freed.blocks_per_core == result.blocks_per_core
    assert freed.blocks_per_core > result.blocks_per_core or (
        tied and freed.limiter != result.limiter
    )


@given(devices, shapes)
def test_the_limiter_is_one_of_four_words(device, shape):
    assert occupancy(device, **shape).limiter in RELAXED


# Waves


def test_waves_of_a_known_launch():
    h200 = DEVICES["h200"]
    assert waves(h200, 132 * 3, 3) == (1.0, 0.0)
    assert waves(h200, 132 * 3 + 1, 3) == (397 / 396, 395 / 396)
    assert waves(h200, 66, 1) == (0.5, 0.5)


def test_no_wave_where_no_block_fits():
    assert waves(DEVICES["h200"], 1000, 0) == (0.0, 0.0)


@given(devices, st.integers(1, 10**7), st.integers(1, 64))
def test_waves_and_their_tail_count_every_place(device, programs, resident):
    count, tail = waves(device, programs, resident)
    places = resident * device.limits.cores
    assert 0 <= tail < 1
    full = -(-programs // places)
    assert full - tail == pytest.approx(count)
    assert (tail == 0) == (programs % places == 0)


@given(devices, st.integers(1, 64), st.integers(1, 1000))
def test_whole_waves_have_no_tail(device, resident, whole):
    assume(whole * resident * device.limits.cores < 2**53)
    assert waves(device, whole * resident * device.limits.cores, resident) == (whole, 0.0)
