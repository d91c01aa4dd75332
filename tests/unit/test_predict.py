"""The analytic model against measured tables of one H200, and against plain physics."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import catalog
from workbench.data import stats
from workbench.data.record import Case, Predicted, Record, Resources
from workbench.device.cost_model import CONSTANTS, guess, predict
from workbench.device.error_band import (
    NEVER,
    band_of,
    device_words,
    expected_s,
    expected_words,
    factor_words,
)
from workbench.device.hardware import DEVICES, UNCOMPILED, device_named
from workbench.spec import Work, values

TABLE = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_bf16_2026-11-21.csv.gz"
H200 = device_named("h200")

# Sizes that no constant was fitted to, then those that were: (least Spearman, most regret of the
# best among the five predicted best).
MATMUL = {
    "M=3584 N=3584 K=3584": (0.90, 0.05),
    "M=16 N=8192 K=2048": (0.85, 0.05),
    "M=16384 N=512 K=2048": (0.90, 0.05),
    "M=4096 N=4096 K=4096": (0.90, 0.05),
    "M=8192 N=1024 K=4096": (0.90, 0.05),
    "M=1000 N=3000 K=1500": (0.90, 0.05),
    "M=16 N=4096 K=4096": (0.85, 0.05),
}


def numbers(text):
    return {k: int(v) for k, v in (part.split("=") for part in text.split())}


@cache
def tables():
    result = defaultdict(list)
    with gzip.open(TABLE, "rt") as file:
        for row in csv.DictReader(file):
            result[row["kernel"], row["sizes"]].append(row)
    return result


def resources(row):
    warps = int(row["threads"]) // 32
    return Resources(
        binary=row["binary"], registers=int(row["registers"]), spill_bytes=int(row["spill_bytes"]),
        shared_bytes=int(row["shared_bytes"]), threads=int(row["threads"]),
        blocks_per_core=int(row["blocks_per_core"]), occupancy=warps / 64, limiter="registers",
        programs=int(row["programs"]), waves=1.0, tail=0.0, load_bits=int(row["load_bits"]),
        matrix_unit=row["matrix_unit"] or None, compile_s=0.0,
        copy_engine=row["copy_engine"] == "1",
    )  # fmt: skip


def predictions(kernel, sizes):
    spec, at = catalog.spec_of(kernel), numbers(sizes)
    for row in tables()[kernel, sizes]:
        impl = catalog.impl_of(spec, row["impl"])
        config = numbers(row["config"])
        work = impl.work(impl.config(**config), H200.limits, itemsize=2, **at)
        created = predict(
            H200, work, resources(row), dtype="bf16", flops=spec.flops(**at),
            bytes_=spec.bytes(at, "bf16"), stages=config.get("num_stages", 1),
        )  # fmt: skip
        yield created.predicted_s, float(row["median_us"]) * 1e-6, row["binary"]


def agreement(kernel, sizes):
    """Spearman; the regret of the best among the five binaries that are predicted best, and of
    the very first."""
    rows = list(predictions(kernel, sizes))
    rho = stats.spearman([p for p, _, _ in rows], [m for _, m, _ in rows])
    distinct = {b: m for _, m, b in sorted(rows, reverse=True)}
    first = list(dict.fromkeys(b for _, _, b in sorted(rows)))[:5]
    best = min(m for _, m, _ in rows)
    return rho, min(distinct[b] for b in first) / best - 1, distinct[first[0]] / best - 1


@pytest.mark.parametrize("sizes", MATMUL)
def test_matmul_is_ranked_as_an_h200_ranks_it(sizes):
    least, most = MATMUL[sizes]
    rho, regret, first = agreement("matmul", sizes)
    assert rho >= least
    assert regret <= most
    assert first <= 0.05  # the one predicted best: what an offline page recommends


@pytest.mark.parametrize(
    ("kernel", "sizes", "least"),
    [("softmax", "M=8192 N=4096", 0.85), ("rms_norm", "M=8192 N=8192", 0.5)],
)
def test_rows_are_ranked_as_an_h200_ranks_them(kernel, sizes, least):
    rho, regret, _ = agreement(kernel, sizes)
    assert rho >= least
    assert regret <= 0.05


@pytest.mark.parametrize("sizes", MATMUL)
def test_times_are_of_the_right_size(sizes):
    ratios = [p / m for p, m, _ in predictions("matmul", sizes)]
    assert 0.7 < stats.median(ratios) < 1.4


LEGAL = st.sampled_from(sorted(DEVICES))
EDGE = st.sampled_from([16, 32, 64, 128, 256])


@given(LEGAL, EDGE, EDGE, EDGE, st.sampled_from([1, 2, 4, 8]), st.integers(1, 5), st.integers(1, 9))
def test_no_prediction_beats_the_datasheet(name, m, n, k, warps, stages, scale):
    device = device_named(name)
    M = N = K = 512 * scale
    tiles = -(-M // m) * -(-N // n)
    work = Work(tiles, -(-K // k), (m + n) * k * 2, m * n * 2, (m, n, k))
    flops, bytes_ = 2 * M * N * K, 6 * M * N
    created = predict(
        device, work, guess(device, work, "bf16", warps=warps, stages=stages), dtype="bf16",
        flops=flops, bytes_=bytes_, stages=stages,
    )  # fmt: skip
    assert isinstance(created, Predicted)
    assert created.predicted_s > flops / device.peaks["bf16"].value
    assert created.predicted_s > bytes_ / device.dram.value


@given(EDGE, EDGE, st.integers(1, 6))
def test_more_work_takes_longer(m, n, scale):
    def time(K):
        work = Work(4096, K // 64, (m + n) * 64 * 2, m * n * 2, (m, n, 64))
        result = guess(H200, work, "bf16", warps=4, stages=3)
        return predict(
            H200, work, result, dtype="bf16", flops=2 * 4096 * m * n * K, bytes_=1 << 26, stages=3
        ).predicted_s  # fmt: skip

    assert time(512 * scale) < time(512 * (scale + 1))


def dram_s(work, least, programs=None, **more):
    """Seconds of the model's memory term, and what they would be at the least bytes."""
    result = guess(H200, work, "bf16", warps=4, stages=3)
    result = replace(result, blocks_per_core=1, programs=programs or work.tiles)
    created = predict(
        H200, work, result, dtype="bf16", flops=1 << 40, bytes_=least, stages=3, **more
    )
    return created.dram_s, least / (H200.dram.value * CONSTANTS.dram)


def test_each_wave_of_a_product_reads_its_rows_and_columns_again():
    """One block a core: 132 tiles of 128 x 128 in a wave, all in one row of tiles, read 128 rows
    of one matrix and 132 x 128 columns of the other, over all of K."""
    K, waves = 4096, 64
    tiles = waves * H200.limits.cores
    work = Work(tiles, K // 64, (128 + 128) * 64 * 2, 128 * 128 * 2, (128, 128, 64))
    took, least_s = dram_s(work, 1 << 30)
    read = waves * (1 + H200.limits.cores) * 128 * K * 2
    written = tiles * 128 * 128 * 2
    assert took == pytest.approx((read + written) / (H200.dram.value * CONSTANTS.dram))
    assert took > 1.5 * least_s


@given(EDGE, EDGE, st.integers(1, 12))
def test_memory_takes_no_less_than_the_least_and_no_more_where_the_cache_holds_all(m, n, waves):
    tiles = waves * H200.limits.cores
    work = Work(tiles, 64, (m + n) * 64 * 2, m * n * 2, (m, n, 64))
    small = int(H200.cache.value)
    took, least_s = dram_s(work, small)
    assert took == pytest.approx(least_s)
    took, least_s = dram_s(work, small + (1 << 24))
    assert took >= least_s * (1 - 1e-12)


@given(st.integers(2, 4))
def test_a_second_walk_over_rows_costs_what_the_cache_lost(walks):
    """Rows of which those in work fill twice the cache: half of what is read again comes from
    memory. Rows that the cache holds are read once."""
    cores = H200.limits.cores
    for share, lost in ((0.5, 0.0), (2.0, 0.5)):
        row = int(share * H200.cache.value / cores / walks)
        work = Work(4 * cores, walks, row, 0)
        least = 4 * cores * row
        took, least_s = dram_s(work, least)
        again = (walks - 1) * 4 * cores * row
        assert took == pytest.approx(least_s * (1 + lost * again / least), rel=1e-3)


def product(tiles, **changed):
    """A product in tiles of 128 x 128 over K = 4096, one block a core."""
    work = Work(tiles, 64, (128 + 128) * 64 * 2, 128 * 128 * 2, (128, 128, 64))
    result = guess(H200, work, "bf16", warps=8, stages=3)
    result = replace(result, **{"blocks_per_core": 1, **changed})
    flops = 2 * tiles * 128 * 128 * 4096
    return predict(H200, work, result, dtype="bf16", flops=flops, bytes_=1 << 20, stages=3)


@given(LEGAL, st.integers(1, 2**34), st.integers(1, 4096))
def test_no_copy_beats_the_datasheets_bandwidth(name, bytes_, tiles):
    device = device_named(name)
    row = -(-bytes_ // (2 * tiles))
    work = Work(tiles, 1, row, row)
    result = guess(device, work, "fp32", warps=4, stages=1)
    created = predict(device, work, result, dtype="fp32", flops=0, bytes_=2 * tiles * row)
    assert created.predicted_s > created.dram_s > 2 * tiles * row / device.dram.value


@given(waves=st.integers(1, 9), more=st.integers(1, 131))
def test_the_last_wave_takes_as_long_as_a_full_one(waves, more):
    cores = H200.limits.cores
    full, begun, next_ = (product(n).predicted_s for n in (
        waves * cores, waves * cores + more, (waves + 1) * cores))  # fmt: skip
    assert begun == pytest.approx(next_, rel=0.02)
    assert begun - full == pytest.approx(full / waves, rel=0.2)


@given(spilled=st.integers(1, 64), more=st.integers(1, 64))
def test_what_is_spilled_takes_time(spilled, more):
    times = [product(264, spill_bytes=4 * n).predicted_s for n in (0, spilled, spilled + more)]
    assert times[0] < times[1] < times[2]


@given(EDGE, EDGE, EDGE, st.sampled_from([1, 2, 4, 8]), st.integers(1, 4), st.integers(1, 2**34))
def test_the_bound_that_is_named_is_the_largest_term(m, n, k, warps, stages, bytes_):
    work = Work(1024, 16, (m + n) * k * 2, m * n * 2, (m, n, k))
    result = guess(H200, work, "bf16", warps=warps, stages=stages)
    created = predict(
        H200, work, result, dtype="bf16", flops=2 * 1024 * 16 * m * n * k, bytes_=bytes_,
        stages=stages,
    )  # fmt: skip
    terms = {"compute": created.compute_s, "memory": created.dram_s, "latency": created.latency_s}
    named = terms.get(created.bound, created.cache_s)  # else what loads wait for on their way
    assert named == max(*terms.values(), created.cache_s)


def test_unknown_figures_are_not_guessed():
    work = Work(1024, 1, 8192, 8192)
    result = guess(H200, work, "bf16", warps=4, stages=1)
    nameless = replace(H200, dram=None)
    with pytest.raises(ValueError, match="memory bandwidth"):
        predict(nameless, work, result, dtype="bf16", flops=0, bytes_=1 << 20)


def launch_sized():
    """Measured and predicted seconds of launch-sized kernels at their defaults, by kernel."""
    with (TABLE.parent / "h200_launch_sized.csv").open() as file:
        for row in csv.DictReader(file):
            spec, at, dtype = catalog.spec_of(row["kernel"]), numbers(row["sizes"]), row["dtype"]
            impl = spec.impls[0]
            config = impl.default(H200.limits, dtype, at)
            work = impl.work_of(config, H200.limits, dtype, at)
            stages = values(config).get("num_stages", 1)
            created = guess(H200, work, dtype, warps=values(config)["num_warps"], stages=stages)
            predicted = predict(
                H200, work, created, dtype=dtype, flops=spec.flops(**at),
                bytes_=spec.bytes(at, dtype), stages=stages,
            )  # fmt: skip
            yield row["kernel"], float(row["median_us"]) * 1e-6, predicted.predicted_s


def test_launch_sized_kernels_are_predicted_within_30_percent():
    rows = list(launch_sized())
    assert len(rows) == 7
    for kernel, measured_s, predicted_s in rows:
        assert abs(predicted_s / measured_s - 1) <= 0.3, kernel


def test_the_error_bands_are_those_of_the_stored_measurements():
    ratios = {"product": [], "stream": [], "launch": [m / p for _, m, p in launch_sized()]}
    for kernel, sizes in tables():
        kind = {"matmul": "product"}.get(kernel, "stream")
        ratios[kind] += [m / p for p, m, _ in predictions(kernel, sizes)]
    assert {band.kind for band in H200.bands} == ratios.keys()
    for band in H200.bands:
        low, high = (stats.quantile(ratios[band.kind], share) for share in (0.05, 0.95))
        assert band.times == len(ratios[band.kind])
        assert (band.low, band.high) == pytest.approx((low, high), abs=0.006)


def test_a_device_without_measurements_says_so():
    assert "0.66 to 1.4 for matrix products (8,873 times of matmul)" in device_words("h200")
    for name in (*DEVICES, *UNCOMPILED):
        known = {**DEVICES, **UNCOMPILED}[name].bands
        assert ("never validated" in device_words(name)) == (not known)


def predicted_record(device, time_s, interval_s=()):
    case = Case("copy", "blocks", "triton", {}, {"N": 1}, "bf16", device)
    timing = Predicted(time_s, "analytic-2", 0.0, 0.0, 0.0, 0.0, 0.0, "memory", *interval_s)
    return Record(case, "k", "r", "2026-11-25", "predict", timing, 0, 1, "interpreter", 0.0)


@given(st.floats(1e-7, 1.0), LEGAL)
def test_a_measurement_is_expected_within_the_band(time_s, device):
    record = predicted_record(device, time_s)
    ends, band = expected_s(record), band_of(record)
    assert (ends is None) == (band is None)
    assert (expected_words(record) == NEVER) == (factor_words([record]) == NEVER) == (band is None)
    if band is not None:
        assert ends == (band.low * time_s, band.high * time_s)
        assert f"{band.low:.2g} to {band.high:.2g} times the predicted" in factor_words(
            [record, record]
        )


def test_kinds_of_kernels_with_different_bands_are_named():
    launch, stream = predicted_record("h200", 2e-6), predicted_record("h200", 1e-3)
    words = factor_words([stream, launch])
    assert "other kernels" in words and "launch-sized kernels" in words
    assert expected_s(predicted_record("h200", 1e-3, (9e-4, 2e-3))) is None
    assert factor_words([]) == ""
