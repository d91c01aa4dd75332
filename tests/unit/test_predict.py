"""The analytic model against measured tables, and against plain physics."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bands import GOALS, bands, launch_sized, pairs_of
from workbench.backend.offline import predicted_time
from workbench.compile import Compiled
from workbench.data import stats
from workbench.data.record import Case, Predicted, Record
from workbench.device.code_model import LaunchWork, predict_each
from workbench.device.cost_model import CONSTANTS, LAUNCH_S, MODEL, guess, predict, predict_call
from workbench.device.error_band import (
    NEVER,
    band_of,
    device_words,
    expected_s,
    expected_words,
    factor_words,
)
from workbench.device.hardware import DEVICES, UNCOMPILED, device_named
from workbench.evaluation.times import predicted_times
from workbench.spec import Work

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


def predictions(kernel, sizes):
    """Predicted and measured seconds of each config in the table, and its binary."""
    for pair in pairs_of("h200_bf16_2026-11-21.csv.gz", "h200"):
        if (pair.kernel, pair.sizes) == (kernel, sizes):
            yield pair.predicted_s, pair.measured_s, pair.binary


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


def test_launch_sized_kernels_are_predicted_within_30_percent():
    pairs = list(launch_sized("h200"))
    assert len(pairs) == 7
    for pair in pairs:
        assert abs(1 / pair.ratio - 1) <= 0.3, pair.kernel


CODE = ("code", "code product", "issued code")


@pytest.mark.parametrize("device", GOALS)
def test_the_error_bands_are_those_of_the_stored_measurements(device):
    """That of kernels timed from their code is held by tests/compile/test_code_model.py."""
    stated = {band.title: band for band in device_named(device).bands if band.kind not in CODE}
    computed = bands(device)
    assert stated.keys() == {band.title for band in computed}
    for band in computed:
        low, high = band.ends
        known = stated[band.title]
        assert (known.kind, known.kernels) == (band.kind, band.kernels)
        assert (known.low, known.high, known.times) == (low, high, len(band.ratios))


@pytest.mark.parametrize("device", GOALS)
def test_half_of_the_defaults_are_predicted_within_15_percent(device):
    errors = [abs(1 / pair.ratio - 1) for pair in pairs_of(GOALS[device], device)]
    assert stats.median(errors) <= 0.15


def test_a_kernel_has_the_band_of_its_own_class_first():
    kernels = {k for band in H200.bands if band.kind is None for k in band.kernels}
    for kernel in (*kernels, "mine"):
        own = [b for b in H200.bands if b.kind is None and kernel in b.kernels]
        for unit, time_s in ((None, 1e-3), ("wgmma", 1e-3), (None, 1e-6)):
            kind = "launch" if time_s < 4e-6 else "product" if unit else "stream"
            (of_kind,) = [b for b in H200.bands if b.kind == kind]
            assert band_of(predicted_record(kernel, unit, time_s)) == (own or [of_kind])[0]


def predicted_record(kernel, unit, time_s):
    """A predicted record of a kernel on the H200."""
    work = Work(1024, 1, 8192, 8192)
    created = replace(guess(H200, work, "bf16", warps=4, stages=1), matrix_unit=unit)
    timing = predict(H200, work, created, dtype="bf16", flops=1, bytes_=1 << 20)
    return Record(
        case=Case(kernel, "rows", "triton", {}, {"M": 1}, "bf16", "h200"), key="k", run="r",
        at="2026-11-25T00:00:00Z", phase="predict", timing=replace(timing, predicted_s=time_s),
        flops=1, bytes=2, bytes_read=1, bytes_written=1, checked="interpreter", error=0.1,
        resources=created, default=True,
    )  # fmt: skip


def test_a_device_without_measurements_says_so():
    assert "0.66 to 1.4 for matrix products (8,921 times)" in device_words("h200")
    for name in (*DEVICES, *UNCOMPILED):
        known = {**DEVICES, **UNCOMPILED}[name].bands
        assert ("never validated" in device_words(name)) == (not known)


def copy_record(device, time_s, interval_s=(), kernel="copy"):
    case = Case(kernel, "blocks", "triton", {}, {"N": 1}, "bf16", device)
    timing = Predicted(time_s, "analytic-2", 0.0, 0.0, 0.0, 0.0, 0.0, "memory", *interval_s)
    return Record(case, "k", "r", "2026-11-25", "predict", timing, 0, 1, "interpreter", 0.0)


@given(st.floats(1e-7, 1.0), LEGAL)
def test_a_measurement_is_expected_within_the_band(time_s, device):
    record = copy_record(device, time_s)
    ends, band = expected_s(record), band_of(record)
    assert (ends is None) == (band is None)
    assert (expected_words(record) == NEVER) == (factor_words([record]) == NEVER) == (band is None)
    if band is not None:
        assert ends == (band.low * time_s, band.high * time_s)
        assert f"{band.low:.2g} to {band.high:.2g} times the predicted" in factor_words(
            [record, record]
        )


def test_kinds_of_kernels_with_different_bands_are_named():
    known, other = copy_record("h200", 1e-3), copy_record("h200", 1e-3, (), "unheard_of")
    words = factor_words([known, other])
    assert band_of(known) != band_of(other)
    assert all(band_of(record).title in words for record in (known, other))
    assert f"others {NEVER}" in factor_words([known, copy_record("mi300x", 1e-3)])
    assert expected_s(copy_record("h200", 1e-3, (9e-4, 2e-3))) is None
    assert factor_words([]) == ""


def test_a_page_of_one_kernel_names_the_bands_that_concern_it():
    def of(*kernels):
        return device_words("h200", ", ".join(kernels))

    assert of("matmul").count(" for ") == 1 and "matrix products (8,921" in of("matmul")
    assert of("matmul", "wkv7").count(" for ") == 2
    assert of("mine").count(" for ") == 6 and "for other kernels (" in of("mine")
    assert "for kernels timed from their machine code (836 times)" in of("mine")
    assert of("matmul", "mine").count(" for ") == 7
    is_by_code = device_words("h200", "mine", "code-1")
    assert is_by_code.count(" for ") == 2 and "products timed from their code" in is_by_code
    issued = device_words("h200", "mine", "code-2")
    assert (
        issued.count(" for ") == 1 and "0.6 to 1.4 for kernels timed from their machine" in issued
    )
    assert device_words("h200", "mine", "code-1 and code-2").count(" for ") == 3
    assert "timed from" not in device_words("h200", "mine", "analytic-4")
    assert device_words("a100", "mine", "code-2") == "The model was never validated on this device."


OPS = st.integers(0, 1 << 22)


@given(OPS, OPS, OPS, st.booleans(), EDGE, st.integers(1, 5))
def test_operations_beside_the_product_take_time_and_overlap_saves_some(
    vector, special, more, overlapped, edge, stages
):
    """More of them never take less time; other warps that do them never cost any."""

    def time(**ops):
        work = Work(2048, 16, 4 * edge * 64, 2 * edge * edge, (edge, edge, 64), **ops)
        created = guess(H200, work, "bf16", warps=8, stages=stages)
        return predict(
            H200, work, created, dtype="bf16", flops=1 << 36, bytes_=1 << 26, stages=stages
        ).predicted_s

    both = dict(vector_ops=vector, special_ops=special, overlapped=overlapped)
    assert time(**both) <= time(**{**both, "vector_ops": vector + more}) * (1 + 1e-12)
    assert time(**both) <= time(**{**both, "special_ops": special + more}) * (1 + 1e-12)
    assert time(**{**both, "overlapped": True}) <= time(**{**both, "overlapped": False}) + 1e-15
    per_core = 2048 * 16 / 132
    least = max(
        vector * 264 / H200.peaks["fp32"].value, special * 264 * 8 / H200.peaks["fp32"].value
    )
    assert time(**both) >= per_core * least


@given(EDGE, st.integers(2, 5), st.integers(1, 5))
def test_stages_that_the_launch_declares_outweigh_those_of_the_config(edge, declared, stages):
    work = Work(264, 64, 4 * edge * 64, 2 * edge * edge, (edge, edge, 64))
    created = guess(H200, work, "bf16", warps=8, stages=3)
    rest = dict(dtype="bf16", flops=1 << 34, bytes_=1 << 24)
    told = predict(H200, replace(work, stages=declared), created, **rest, stages=stages)
    assert told == predict(H200, work, created, **rest, stages=declared)


PLAIN = dict(dtype="bf16", flops=1 << 30, bytes_=1 << 24)


@st.composite
def works(draw):
    """A launch of a call: a product, or vector operations alone."""
    edge, ops = draw(EDGE), draw(OPS)
    dot = draw(st.sampled_from([None, (edge, edge, 64)]))
    return Work(
        draw(st.integers(1, 4096)), draw(st.integers(1, 32)), 4 * edge * 64, 2 * edge * edge, dot,
        vector_ops=ops, products=draw(st.integers(1, 9)) if dot else 1,
        barriers=draw(st.integers(0, 60)), waits=draw(st.integers(0, 3)),
        hits=draw(st.integers(0, 3)), passed_bytes=draw(st.integers(0, 1 << 28)),
        memory_bytes=draw(st.integers(0, 1 << 22)),
    )  # fmt: skip


def call(launches, device=H200, **changed):
    """The prediction of a call of these launches, at guessed resources."""
    each = [guess(device, work, "bf16", warps=4, stages=2) for work in launches]
    return predict_call(device, launches, each, **{**PLAIN, **changed})


@given(LEGAL, st.lists(works(), min_size=2, max_size=4), works())
def test_launches_that_wait_for_one_another_take_the_sum_of_their_times(device, launches, last):
    known = device_named(device)
    whole = call(launches, known)
    assert whole.launch_s == pytest.approx(len(launches) * LAUNCH_S)
    assert whole.predicted_s >= whole.launch_s and whole.model == MODEL
    for work in launches[1:]:  # each at its own bytes; the first has the rest of the Spec's
        made = guess(known, work, "bf16", warps=4, stages=2)
        own = predict(known, work, made, dtype="bf16", flops=0, bytes_=work.memory_bytes)
        assert whole.predicted_s >= own.predicted_s
    more = call([*launches, replace(last, memory_bytes=0)], known)
    assert more.predicted_s >= whole.predicted_s + LAUNCH_S - 1e-15
    backwards = call([launches[0], *launches[:0:-1]], known)
    assert backwards.predicted_s == pytest.approx(whole.predicted_s)


@given(works())
def test_a_call_of_one_launch_is_predicted_as_ever(work):
    made = guess(H200, work, "bf16", warps=4, stages=2)
    assert call([work]) == predict(H200, work, made, **PLAIN)


@given(works(), st.integers(1, 9))
def test_what_a_block_waits_for_takes_time(work, more):
    """A barrier, a load that hits and a load from memory, in this order, take longer and longer;
    all of a tile's barriers are passed one after the other."""
    base = replace(work, products=1, stages=1)
    times = [
        call([replace(base, **{name: getattr(base, name) + more})] * 2).predicted_s
        for name in ("barriers", "hits", "waits")
    ]
    assert call([base] * 2).predicted_s <= times[0] <= times[1] <= times[2]
    cycles = work.steps * (base.barriers + more) * (CONSTANTS.step_cycles + CONSTANTS.shared_cycles)
    waited = (cycles - CONSTANTS.tile_cycles) / H200.clock_hz.value - CONSTANTS.latency_s
    assert times[0] >= 2 * (LAUNCH_S + waited)


@given(st.integers(1, 64), EDGE, st.integers(1, 16))
def test_products_in_a_row_take_at_least_the_time_of_their_flops(tiles, edge, products):
    work = Work(tiles * 132, 1, 4 * edge * 64, 2 * edge * edge, (edge, edge, 64))
    several = call([replace(work, products=products)] * 2)
    assert several.predicted_s >= call([work] * 2).predicted_s
    least = 2 * 2 * tiles * 132 * edge * edge * 64 * products / H200.peaks["bf16"].value
    assert several.predicted_s > least


@given(st.floats(0.1, 4.0))
def test_what_launches_pass_on_costs_what_the_cache_lost(share):
    """What exceeds the cache is written to memory by one launch and read from there by the next."""
    passed = round(share * H200.cache.value)
    first, second = Work(132, 1, 4096, 4096), Work(132, 1, 4096, 4096)
    kept = call([first, second]).dram_s
    lost = call([replace(w, passed_bytes=passed) for w in (first, second)]).dram_s
    moved = 2 * max(0.0, passed - H200.cache.value)
    assert lost - kept == pytest.approx(moved / (H200.dram.value * CONSTANTS.dram), abs=1e-12)


def test_the_first_launch_moves_the_bytes_that_no_other_claims():
    first, second = Work(132, 1, 4096, 4096), Work(132, 1, 4096, 4096, memory_bytes=1 << 20)
    rate = H200.dram.value * CONSTANTS.dram
    assert call([first, second]).dram_s == pytest.approx(PLAIN["bytes_"] / rate)
    assert call([first, second], bytes_=1).dram_s == pytest.approx((1 << 20) / rate)


def test_a_product_of_few_rows_is_none_of_a_warp_group():
    """The unit that is read is that of any product of the kernel; wgmma multiplies 64 rows."""
    made = {
        unit: replace(
            guess(H200, Work(1, 1, 1, 1), "bf16", warps=4, stages=1),
            matrix_unit=unit,
            programs=9999,
        )
        for unit in ("wgmma", "mma")
    }
    for edge, alike in ((32, True), (64, False)):
        work = Work(9999, 64, 4 * edge * 64, 2 * edge * edge, (edge, edge, 64), products=40)
        wide, narrow = (predict(H200, work, one, **PLAIN).compute_s for one in made.values())
        assert (wide == narrow) == alike


def test_a_call_has_a_work_for_each_launch_or_that_of_the_largest():
    work = Work(132, 1, 4096, 4096)
    made = guess(H200, work, "bf16", warps=4, stages=1)
    rest = "bf16", 1 << 20, 1 << 20, 1
    three = Compiled(made, "", (132,), 3, each=(made,) * 3)
    one = predicted_time(H200, three, (work,), *rest)
    assert one.predicted_s == pytest.approx(
        predict(H200, work, made, dtype="bf16", flops=1 << 20, bytes_=1 << 20).predicted_s
        + 2 * LAUNCH_S
    )
    assert predicted_time(H200, three, (work,) * 3, *rest).launch_s == pytest.approx(3 * LAUNCH_S)
    for number, compiled in ((2, three), (3, replace(three, each=()))):
        with pytest.raises(ValueError, match=f"describes {number} launches and the call has 3"):
            predicted_time(H200, compiled, (work,) * number, *rest)


def test_evaluate_takes_the_time_of_the_code_where_no_work_is_declared():
    """It took the least bytes: 8 us of an int8 product, for which a sweep derives 34 us."""
    made = guess(H200, Work(132, 1, 4096, 4096), "bf16", warps=4, stages=1)
    launch = LaunchWork(132, 4, 1, (), float(1 << 28), float(1 << 28))
    facts, work = SimpleNamespace(flops=1 << 20, bytes=1 << 20), Work(132, 1, 4096, 4096)
    declared = predicted_time(
        H200, Compiled(made, "", (132,), 1), (work,), "bf16", 1 << 20, 1 << 20, 1
    )
    for works, given_works, seconds in (
        ((launch,), None, predict_each(H200, (launch,), (made,)).predicted_s),
        ((), None, None),
        ((launch,), (work,), declared.predicted_s),
    ):
        compiled = Compiled(
            made, "", (132,), 1, each=(made,), works=works, not_modelled="" if works else "a loop"
        )
        submission = SimpleNamespace(config={}, works=given_works)
        times = predicted_times(H200, submission, facts, compiled, "bf16")
        assert (times.seconds if times else None) == seconds
