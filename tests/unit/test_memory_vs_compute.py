"""Verdicts of `memory_vs_compute` on times whose truth is known, and what it refuses."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workbench import catalog
from workbench.catalog.source import code_hash
from workbench.code.loops import Code, Counts
from workbench.compile import Compiled
from workbench.compile.proof import dishonest, same_loads
from workbench.data.environment import fingerprint
from workbench.data.record import Case, Failure, Measured, Predicted, Record, Resources
from workbench.data.tuned_cache import Entry, Tuned
from workbench.device.hardware import DEVICES
from workbench.experiments import Context, ExperimentError, Variant, VariantResult
from workbench.experiments import memory_vs_compute as mvc
from workbench.experiments.analysis.times import Span
from workbench.experiments.memory_vs_compute import Times, overlap, shares_of, words_of
from workbench.spec import values

H200 = DEVICES["h200"]
NOISE = 0.005  # half the width of an interval, and by how much a middle may be off
SWAPPED = {"memory-bound": "compute-bound", "compute-bound": "memory-bound"}


def span(middle, noise=0.0):
    return Span(middle, middle * (1 - noise), middle * (1 + noise))


def times(a, b, whole=1e-4, launch=0.0, grid=None, noise=0.0):
    """Times of shares `a` and `b` of the whole; launch and grid are shares of it, too."""
    started = launch * whole
    parts = [span(started + share * (whole - started), noise) for share in (a, b)]
    grid = span(grid * whole, noise) if grid is not None else None
    return Times(*parts, span(whole, noise), span(started, noise), grid)


def words(*args, **kwargs):
    return words_of(shares_of(times(*args, **kwargs)))


# Truths that are planted: where a kernel of this kind lies, at least 0.04 from where words change

PLANTED = {
    "memory-bound": ((0.85, 1.0), (0.0, 0.75)),
    "compute-bound": ((0.0, 0.75), (0.85, 1.0)),
    "balanced": ((0.85, 1.0), (0.85, 1.0)),
    "serialised": ((0.45, 0.75), (0.45, 0.75)),
    "latency-bound": ((0.0, 0.37), (0.0, 0.37)),
}
shares = st.floats(0.0, 1.0)
seconds = st.floats(1e-6, 1.0)
small = st.floats(0.0, 0.2)


@st.composite
def planted(draw):
    word = draw(st.sampled_from(list(PLANTED)))
    a, b = (draw(st.floats(*ends)) for ends in PLANTED[word])
    off = [draw(st.floats(1 - NOISE, 1 + NOISE)) for _ in range(4)]
    result = times(a, b, draw(seconds), draw(small), noise=NOISE)
    parts = (result.traffic, result.arithmetic, result.whole, result.launch)
    moved = (each.times(by) for each, by in zip(parts, off, strict=True))
    return word, Times(*moved)


@given(planted())
def test_planted_truths_are_found_in_noise(case):
    word, result = case
    assert words_of(shares_of(result)) == [word]
    assert mvc.impossible(result) == []


@given(shares, shares, seconds, small, st.none() | shares, st.floats(1e-3, 1e3))
def test_the_scale_of_the_times_does_not_matter(a, b, whole, launch, grid, by):
    one, other = (shares_of(times(a, b, w, launch, grid, NOISE)) for w in (whole, whole * by))
    for name in ("traffic", "arithmetic", "overlap", "launch", "grid"):
        assert getattr(one, name).value == pytest.approx(getattr(other, name).value, abs=1e-9)
    assume(_clear(a, b, launch, grid))
    assert words_of(one) == words_of(other)


@given(shares, shares, seconds, small, st.floats(0, 0.05))
def test_traffic_and_arithmetic_swap_with_their_verdicts(a, b, whole, launch, noise):
    one, other = words(a, b, whole, launch, None, noise), words(b, a, whole, launch, None, noise)
    assert {SWAPPED.get(word, word) for word in one} == set(other)
    assert SWAPPED.get(one[0], one[0]) == other[0]


@given(shares, shares, shares, seconds, small)
def test_more_traffic_never_makes_it_less_of_the_cause(a, more, b, whole, launch):
    """On the way from none to all, traffic comes into the verdict once and stays there."""
    less, more = sorted((a, more))
    before, after = words(less, b, whole, launch)[0], words(more, b, whole, launch)[0]
    named = ("memory-bound", "balanced")
    assert before not in named or after in named
    assert not (before == "serialised" and after == "latency-bound")


@given(shares, shares, seconds, small, st.floats(0, 0.1), st.floats(0, 0.1))
def test_wider_intervals_never_know_more(a, b, whole, launch, noise, more):
    narrow, wide = (words(a, b, whole, launch, None, n) for n in sorted((noise, noise + more)))
    assert narrow[0] == wide[0] and set(narrow) <= set(wide)


@given(shares, shares, seconds, small, st.floats(0, 0.3), shares, shares)
def test_whatever_lies_inside_the_intervals_is_allowed(a, b, whole, launch, noise, at, to):
    known = shares_of(times(a, b, whole, launch, None, noise))
    inside = [
        each.low + by * (min(each.high, 10.0) - each.low)
        for each, by in ((known.traffic, at), (known.arithmetic, to))
    ]
    assume(min(abs(x - mvc.NEAR) for x in (*inside, sum(inside))) > 1e-9)
    word = mvc.word_at(*inside, known.launch.value, known.grid.value)
    assert word in words_of(known)


def _clear(a, b, launch, grid):
    """Whether no share is so near a threshold that rounding decides."""
    near = [abs(x - mvc.NEAR) for x in (a, b, a + b, grid or 0.0)] + [abs(launch - mvc.LAUNCH)]
    ends = [abs(x * f - t) for x in (a, b, a + b, grid or 0.0) for f in (0.985, 0.99, 1.01, 1.015)
            for t in (mvc.NEAR,)]  # fmt: skip
    return min(near) > 1e-6 and min(ends) > 1e-3


@given(shares, shares)
def test_overlap_is_a_share_and_grows_with_either_part(a, b):
    result = overlap(a, b)
    assert 0 <= result <= 1 and result == overlap(b, a)
    assert overlap(min(1.0, a + 0.1), b) >= result - 1e-12


@given(st.floats(0.01, 0.99))
def test_the_ends_of_overlap(shorter):
    assert overlap(1.0, shorter) == pytest.approx(1.0)  # C = max(A, B)
    assert overlap(1 - shorter, shorter) == pytest.approx(0.0, abs=1e-9)  # C = A + B


@given(st.floats(0.55, 1.0), shares, shares, seconds)
def test_a_call_that_is_mostly_launch_is_latency_bound(launch, a, b, whole):
    assert words(a, b, whole, launch) == ["latency-bound"]


def test_a_whole_that_is_nothing_but_its_launch():
    launch = span(2e-6, NOISE)
    assert words_of(shares_of(Times(launch, launch, launch, launch))) == ["latency-bound"]


def test_a_grid_that_takes_as_long_as_the_whole_is_latency_bound():
    assert words(0.95, 0.9, grid=0.9) == ["latency-bound"]
    assert words(0.95, 0.3, grid=0.3) == ["memory-bound"]


@given(st.floats(1.03, 3.0), st.sampled_from(["traffic", "arithmetic"]))
def test_a_part_that_is_slower_than_the_whole_is_none(by, name):
    result = replace(times(0.9, 0.5, noise=NOISE), **{name: span(1e-4 * by * 1.01, NOISE)})
    (text,) = mvc.impossible(result)
    assert name in text and "longer than the whole" in text


# The proof by machine code


def code(loops=1, readable=True, **counts):
    inside = Counts(**counts) if loops else Counts()
    return Code("sm_90", loops, Counts(**counts), inside, () if readable else ("why",), readable)


WHOLE = code(loads={"async 128": 12}, stores=16, matrix=4, vector=100, special=2)
TRAFFIC = code(loads={"async 128": 12}, stores=16, vector=96)
ARITHMETIC = code(stores=1, matrix=4, vector=100, special=2)


def test_honest_arms_are_believed():
    assert dishonest([WHOLE], [TRAFFIC], [ARITHMETIC]) == []


@pytest.mark.parametrize(
    ("name", "variant", "text"),
    [
        (1, code(loads={"async 128": 12}, stores=16, matrix=4), "has 4 matrix instructions"),
        (1, code(loads={"async 128": 8}, stores=16), "8 of async 128 bits against 12"),
        (1, code(loads={"128": 12}, stores=16), "12 of 128 bits against 12 of async 128"),
        (1, code(loads={}, stores=16), "none against 12"),
        (1, code(loads={"async 128": 12}), "stores nothing"),
        (2, code(loads={"32": 1}, matrix=4, vector=100, special=2), "1 global loads inside"),
        (2, code(matrix=2, vector=100, special=2), "2 matrix instructions inside its loop"),
        (2, code(matrix=4, vector=100, special=1), "1 special instructions"),
        (2, code(matrix=4, vector=80, special=2), "80 vector instructions"),
        (0, code(readable=False), "whole is not known: why"),
        (2, code(readable=False), "arithmetic is not known: why"),
    ],
)
def test_what_an_arm_must_not_be(name, variant, text):
    codes = [[WHOLE], [TRAFFIC], [ARITHMETIC]]
    codes[name] = [variant]
    (reason,) = dishonest(*codes)
    assert text in reason


def test_code_that_was_not_read_proves_nothing():
    assert dishonest([WHOLE], [], [ARITHMETIC]) == ["The machine code of the traffic was not read"]


def test_launches_count_together():
    empty = Code("sm_90", 0, Counts(), Counts())
    assert dishonest([WHOLE, empty], [TRAFFIC, empty], [ARITHMETIC]) == []


def test_without_a_loop_all_of_the_code_is_compared():
    whole = code(0, loads={"128": 2}, stores=2, vector=107, special=17)
    traffic = code(0, loads={"128": 2}, stores=2)
    arithmetic = code(0, loads={"16": 1}, stores=3, vector=113, special=18)
    assert dishonest([whole], [traffic], [arithmetic]) == []
    assert len(dishonest([whole], [code(0, loads={"128": 1}, stores=2)], [arithmetic])) == 1


@given(
    st.dictionaries(st.sampled_from(["32", "128", "async 128"]), st.integers(1, 9), min_size=1),
    st.integers(1, 5),
)
def test_an_unrolled_loop_has_a_multiple_of_each_load(loads, times_):
    many = {kind: times_ * n for kind, n in loads.items()}
    assert same_loads(loads, many)
    assert times_ == 1 or not same_loads(many, loads), "fewer loads are not the kernel's"
    one = next(iter(loads))
    assert not same_loads(loads, {**many, one: many[one] + 1}) or len(loads) == 1


# Arms


def context(kernel, sizes=None, dtype="bf16", **more):
    return Context(kernel, sizes, dtype, H200, predicts=True, **more)


@pytest.mark.parametrize(
    "kernel", [*mvc.EXPERIMENT.kernels, "copy", "compute_only", "empty", "matmul_one_stage"]
)
def test_all_arms_have_one_impl_one_config_and_one_size(kernel):
    results = {variant.name: variant for variant in mvc.variants(context(kernel))}
    whole = results["whole"]
    assert {"whole", "traffic", "arithmetic", "launch"} <= results.keys()
    for part in mvc.PARTS:
        variant = results[part]
        assert variant.kernel == f"{kernel}_{part}"
        assert (variant.impl, variant.config, variant.sizes) == (
            whole.impl,
            whole.config,
            whole.sizes,
        )
        impl = catalog.impl_of(catalog.spec_of(variant.kernel), variant.impl)
        assert values(impl.config(**variant.config)) == whole.config


def test_where_a_config_was_tuned_all_arms_have_it(monkeypatch):
    impl = catalog.impl_of(catalog.spec_of("copy"), "blocks")
    config, sizes = {"block_n": 4096, "num_warps": 8}, dict(impl.spec.bench[0])
    versions = fingerprint(None, None).versions
    entry = Entry(
        "copy", "blocks", config, sizes, "bf16", "h200", versions["torch"], versions["triton"],
        code_hash(impl), False, 1e-4, None, None, "cold", "p3", "run",
        "2026-11-21T09:30:00+00:00", 9,
    )  # fmt: skip
    known = Tuned({entry.key: entry})
    monkeypatch.setattr(Tuned, "load", lambda path: known)
    live = replace(context("copy"), predicts=False)
    results = {variant.name: variant for variant in mvc.variants(live)}
    assert [results[name].config for name in ("whole", *mvc.PARTS)] == [config] * 3
    assert results["grid"].config == {"num_warps": 8}
    assert results["grid"].sizes == {"P": sizes["N"] // 4096}
    assert mvc.variants(context("copy"))[0].config != config, "a prediction takes the default"


def test_a_kernel_without_arms_is_told_how_to_write_them():
    with pytest.raises(ExperimentError, match=r"has no variant layer_norm_traffic\.py; wr"):
        mvc.variants(context("layer_norm"))


def test_the_arms_of_a_file_lie_beside_it(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(PLAIN.format(name="mine"))
    with pytest.raises(ExperimentError, match=r"has no variant .*mine_traffic\.py"):
        mvc.variants(context(str(mine)))
    for part in mvc.PARTS:
        (tmp_path / f"mine_{part}.py").write_text(PLAIN.format(name=f"mine_{part}"))
    result = mvc.variants(context(str(mine), {"N": 64}))
    assert [variant.kernel for variant in result[1:3]] == [
        str(tmp_path / "mine_traffic.py"), str(tmp_path / "mine_arithmetic.py")
    ]  # fmt: skip


def test_an_arm_with_other_axes_is_refused(tmp_path):
    for name in ("odd", "odd_traffic", "odd_arithmetic"):
        text = PLAIN.format(name=name)
        text = text.replace("N", "M") if name == "odd_arithmetic" else text
        (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(ExperimentError, match="has the axes M and"):
        mvc.variants(context(str(tmp_path / "odd.py")))


PLAIN = '''"""Nothing."""
from workbench.spec import Spec, Tensor

{name} = Spec(
    name="{name}", inputs={{"x": Tensor("N")}}, outputs={{"y": Tensor("N")}},
    reference=lambda x: x, flops=lambda N: 0, check=[{{"N": 1}}], bench=[{{"N": 64}}],
)


@{name}.impl()
def blocks(x):
    return x
'''


# The judge


FLOPS, BYTES = 20_000_000_000, 100_000_000
RESOURCES = Resources("hash", 64, 0, 0, 256, 2, 0.5, "registers", 512, 4.0, 0.0, 128, "wgmma", 1.0)


def measured(middle, noise=NOISE):
    low, high = middle * (1 - noise), middle * (1 + noise)
    return Measured(middle, low, high, (middle,), "cold", "graph", "p3-000000")


def results_of(shares_, **timing):
    """What became of the arms of `matmul`, from shares of a whole of 200 us."""
    known = times(*shares_, whole=2e-4, launch=0.005)
    spans = {"whole": known.whole, "traffic": known.traffic, "arithmetic": known.arithmetic,
             "launch": known.launch}  # fmt: skip
    codes = {"whole": WHOLE, "traffic": TRAFFIC, "arithmetic": ARITHMETIC}
    return {
        name: one(name, timing.get(name, measured(each.value)), codes.get(name))
        for name, each in spans.items()
    }


def one(name, timing, its=None):
    case = Case("matmul", "tiles", "triton", {}, {"M": 4096}, "bf16", "h200")
    if isinstance(timing, str):
        outcome = Failure(case, "key", "run", "at", "check", timing)
    else:
        outcome = Record(case, "key", "run", "at", "final", timing, FLOPS, BYTES, "gpu", 0.1)
    compiled = Compiled(RESOURCES, "_tiles", (512,), 1, code=(its,)) if its else None
    return VariantResult(Variant(name, "matmul", "tiles", {"M": 4096}, "bf16"), outcome, compiled)


def analysed(result, **more):
    (analysis,) = mvc.analyse(context("matmul", **more), result)
    assert "optimize both" in analysis.caveats[-1]  # the rule's own words stand beside
    return analysis


def rows(analysis):
    return {row.name: row for row in analysis.evidence}


@pytest.mark.parametrize(
    ("shares_", "word"),
    [((0.95, 0.5), "memory-bound"), ((0.5, 0.95), "compute-bound"), ((0.9, 0.9), "balanced"),
     ((0.55, 0.45), "serialised"), ((0.2, 0.3), "latency-bound")],
)  # fmt: skip
def test_measured_arms_give_a_word_with_its_numbers(shares_, word):
    result = analysed(results_of(shares_))
    known = rows(result)
    assert result.word == word and f"{100 * shares_[0]:.0f} %" in result.sentence
    assert known["a = A / C, launch taken off"].low < known["a = A / C, launch taken off"].value
    assert known["C, the whole"].kind == "measured" and known["C, the whole"].unit == "s"
    assert known["matrix instructions of the traffic variant"].met


@pytest.mark.parametrize(("grid_s", "text"), [(6e-5, True), (1e-5, False)])
def test_the_start_of_many_programs_is_told_from_the_work_of_the_parts(grid_s, text):
    with_grid = results_of((0.95, 0.5))
    grid = Variant("grid", "empty_grid", "programs", {"P": RESOURCES.programs}, "bf16")
    with_grid["grid"] = replace(one("grid", measured(grid_s)), variant=grid)
    result = analysed(with_grid)
    assert result.word == "memory-bound"
    assert any("programs that do nothing takes 30 %" in c for c in result.caveats) is text


def test_intervals_that_allow_two_words_leave_it_undecided():
    result = analysed(results_of((0.8, 0.5)))
    assert result.word == "undecided"
    assert "memory-bound" in result.sentence and "serialised" in result.sentence


def test_an_arm_without_a_time_is_named():
    result = analysed(results_of((0.9, 0.5), traffic="y is wrong in 3 % of its elements"))
    assert (
        result.word == "refused" and "No time of the traffic: y is wrong in 3 %" in result.sentence
    )
    assert "C, the whole" in rows(result)


def test_arms_that_prove_nothing_are_refused():
    dishonest_ = results_of((0.9, 0.5))
    dishonest_["traffic"] = one("traffic", measured(1.8e-4), WHOLE)
    result = analysed(dishonest_)
    assert result.word == "refused" and "4 matrix instructions" in result.sentence


def test_spills_of_an_arm_alone_are_refused():
    spilled = results_of((0.9, 0.5))
    compiled = replace(
        spilled["arithmetic"].compilation, resources=replace(RESOURCES, spill_bytes=64)
    )
    spilled["arithmetic"] = replace(spilled["arithmetic"], compilation=compiled)
    result = analysed(spilled)
    assert result.word == "refused" and "spills 64 bytes" in result.sentence


@pytest.mark.parametrize(
    ("part", "time_s", "text"),
    [("traffic", 1.5e-5, "least bytes over A"), ("arithmetic", 1.5e-5, "FLOPs over B"),
     ("traffic", 3e-4, "longer than the whole")],
)  # fmt: skip
def test_times_that_cannot_be_are_refused(part, time_s, text):
    result = analysed(results_of((0.9, 0.9), **{part: measured(time_s)}))
    assert result.word == "refused" and text in result.sentence


def test_the_measured_ceilings_decide_where_there_are_several():
    # 100 MB in 23 us are 4.35 TB/s: within the 4.8 of the datasheet, beyond 102 % of 4.2 measured
    fast = results_of((0.9, 0.9), traffic=measured(2.4e-5))
    ceilings = {
        f"dram_{mix}_measured": {"value": v, "unit": "B/s", "source": "here", "kind": "measured"}
        for mix, v in (("read", 4.2e12), ("copy", 4.1e12))
    }
    assert analysed(fast).word == "compute-bound"
    assert "least bytes over A" in analysed(fast, ceilings=ceilings).sentence


def test_a_prediction_says_that_nothing_was_measured():
    model = Predicted(2.2e-4, "analytic-1", 1.5e-4, 3e-5, 6e-5, 9e-5, 8e-7, "compute")
    result = analysed({name: replace(each, outcome=replace(each.outcome, timing=model))
                    for name, each in results_of((0.9, 0.9)).items()})  # fmt: skip
    assert result.word == "predicted: compute-bound" and "nothing was measured" in result.sentence
    assert {row.kind for row in result.evidence} == {"predicted", "computed"}
    assert "~" in result.sentence
