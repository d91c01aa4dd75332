"""Specs, Impls, knobs and labels: the plain values that everything else is built on."""

import itertools
from contextlib import nullcontext
from dataclasses import FrozenInstanceError, dataclass, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.adapted.kernel import TakenInput
from workbench.spec import (
    ITEMSIZE,
    LONGEST,
    Extent,
    Limits,
    NoKnobs,
    Spec,
    Tensor,
    among,
    label,
    solve_axis,
    stages,
    threads,
    tile,
    values,
)

LIMITS = Limits("sm_90", 32, 232448, 255, 1024, 132)


@dataclass(frozen=True)
class Tiles:
    block_m: int = tile(16, 64, default=32)
    block_n: int = tile(32, 128, default=64)
    num_warps: int = threads(4, 8, default=4)
    num_stages: int = stages(2, 4, default=3)
    group_m: int = among(1, 8, default=8)


def a_spec(**changed):
    text = {
        "name": "scale",
        "inputs": {"x": Tensor("M N"), "s": Tensor("M 1", dtype="fp32")},
        "outputs": {"y": Tensor("M N"), "z": Tensor("N K")},
        "reference": lambda x, s: x * s,
        "flops": lambda M, N, K: M * N,
        "check": [{"M": 1, "N": 1, "K": 1}],
        "bench": [{"M": 64, "N": 64, "K": 64}],
    }
    return Spec(**{**text, **changed})


def an_impl(**text):
    spec = a_spec()
    return spec.impl(Tiles, **text)(lambda x, s, *, config: (x, s, config))


# Sizes and bytes


def test_axes_stand_in_order_of_appearance_and_numbers_are_none():
    assert a_spec().axes == ("M", "N", "K")


@given(st.fixed_dictionaries({axis: st.integers(1, 9999) for axis in "MNK"}))
def test_bytes_count_every_tensor_once_in_its_own_dtype(sizes):
    M, N, K = (sizes[axis] for axis in "MNK")
    for dtype, width in ITEMSIZE.items():
        assert a_spec().bytes(sizes, dtype) == width * (2 * M * N + N * K) + 4 * M


@given(st.integers(1, 9999), st.integers(1, 9999))
def test_bytes_read_and_written_are_apart_and_what_is_both_counts_in_both(M, N):
    both = Spec(
        name="both", inputs={"x": Tensor("M N"), "state": Tensor("N", "fp32")},
        outputs={"y": Tensor("M"), "state": Tensor("N", "fp32")}, reference=lambda *x: x,
        flops=lambda M, N: 0, check=[], bench=[],
    )  # fmt: skip
    at = {"M": M, "N": N}, "bf16"
    assert (both.bytes_read(*at), both.bytes_written(*at)) == (2 * M * N + 4 * N, 2 * M + 4 * N)
    assert both.bytes(*at) == both.bytes_read(*at) + both.bytes_written(*at)
    taken = TakenInput(**{**vars(both), "unread": ("state",)})  # it begins as zeros
    assert (taken.bytes_read(*at), taken.bytes_written(*at)) == (2 * M * N, 2 * M + 4 * N)
    assert taken.bytes(*at) == both.bytes(*at) - 4 * N


@given(*[st.integers(1, 9999)] * 3)
def test_of_a_table_whose_rows_are_looked_up_these_rows_count(V, M, D):
    of_rows = Spec(
        name="of_rows", inputs={"table": Tensor("V D", part="M D"), "at": Tensor("M", "int32")},
        outputs={"y": Tensor("V D", part="M D")}, reference=lambda *x: x,
        flops=lambda V, M, D: 0, check=[], bench=[],
    )  # fmt: skip
    at = {"V": V, "M": M, "D": D}, "bf16"
    rows = 2 * min(V, M) * D
    assert (of_rows.bytes_read(*at), of_rows.bytes_written(*at)) == (rows + 4 * M, rows)
    assert of_rows.held_bytes(*at) == 2 * 2 * V * D + 4 * M >= of_rows.bytes(*at)
    assert of_rows.axes == ("V", "D", "M")


def test_shape_takes_numbers_and_names():
    assert Tensor("M 3 N").shape({"M": 5, "N": 7}) == (5, 3, 7)
    with pytest.raises(KeyError):
        Tensor("M N").shape({"M": 5})


def test_an_axis_may_be_worked_out_from_left_to_right():
    q = Tensor("B Hkv*G K/256*144")
    assert q.shape({"B": 2, "Hkv": 8, "G": 4, "K": 512}) == (2, 32, 288)
    with pytest.raises(
        ValueError, match=r"K/256\*144 is not a whole number at B=2,Hkv=8,G=4,K=500"
    ):
        q.shape({"B": 2, "Hkv": 8, "G": 4, "K": 500})


@given(st.integers(1, 99), st.integers(1, 99))
def test_an_axis_tells_the_one_size_it_names(Hkv, G):
    sizes = {"Hkv": Hkv, "G": G}
    (extent,) = Tensor("Hkv*G").shape(sizes)
    assert solve_axis("Hkv*G", extent, {}) == {}
    assert solve_axis("Hkv*G", extent, {"Hkv": Hkv}) == {"G": G}
    assert solve_axis("Hkv*G", extent, sizes) == {}
    assert solve_axis("Hkv*G", extent + 1, sizes) is None
    assert solve_axis("G/256*144", 144 * G, {}) == {"G": 256 * G}


@given(st.integers(1, 999), st.sampled_from([Extent(), Extent(multiple=64), Extent((64, 72))]))
def test_the_nearest_extent_is_one_that_can_be(extent, rule):
    near = rule.nearest(extent)
    assert rule.refuse("D", near) is None
    assert near >= extent or near == max(rule.choices)
    assert (rule.refuse("D", extent) is None) == (near == extent)


def test_sizes_that_cannot_be_are_refused_in_a_sentence():
    spec = replace(a_spec(), extents={"K": Extent(multiple=256)})
    assert spec.refuse({"M": 1, "N": 1, "K": 512}) is None
    assert "K is a multiple of 256, which 300 is not" in spec.refuse({"M": 1, "N": 1, "K": 300})
    assert spec.nearest_sizes({"M": 3, "N": 1, "K": 300}) == {"M": 3, "N": 1, "K": 512}


def test_every_spec_has_its_own_impls():
    first, second = a_spec(), a_spec()
    first.impl(Tiles)(lambda x, s, *, config: x)
    assert (len(first.impls), second.impls) == (1, [])


# Knobs


@given(st.integers(0, 12), st.integers(0, 6), st.data())
def test_tile_and_threads_are_all_powers_of_two_between(low, more, data):
    powers = tuple(2**e for e in range(low, low + more + 1))
    default = data.draw(st.sampled_from(powers))
    for word in (tile, threads):
        field = word(powers[0], powers[-1], default)
        assert field.metadata["choices"] == powers
        assert (field.metadata["knob"], field.default) == (word, default)


@given(st.integers(1, 8), st.integers(0, 8))
def test_stages_are_every_number_between(low, more):
    assert stages(low, low + more, low).metadata["choices"] == tuple(range(low, low + more + 1))


@pytest.mark.parametrize(
    "declared", [lambda: tile(16, 64, 48), lambda: stages(2, 4, 5), lambda: among(1, 8, default=2)]
)
def test_a_default_outside_the_choices_is_refused(declared):
    with pytest.raises(ValueError, match="not among the choices"):
        declared()


def test_configs_are_frozen_and_compare_by_value():
    assert Tiles() == Tiles(block_m=32) and hash(Tiles()) == hash(Tiles())
    with pytest.raises(FrozenInstanceError):
        Tiles().block_m = 64


# Space

CHOICES = {
    "block_m": (16, 32, 64), "block_n": (32, 64, 128), "num_warps": (4, 8),
    "num_stages": (2, 3, 4), "group_m": (1, 8),
}  # fmt: skip
WORDS = {"tile": tile, "threads": threads, "stages": stages, "among": among}


def test_knobs_and_choices_are_told_by_field():
    impl = an_impl()
    assert impl.choices() == CHOICES
    assert list(impl.knobs().values()) == ["tile", "tile", "threads", "stages", "among"]


@given(st.sets(st.sampled_from(list(WORDS))), st.data())
def test_space_varies_what_was_asked_and_keeps_the_rest(words, data):
    impl = an_impl()
    default = Tiles(**{k: data.draw(st.sampled_from(v)) for k, v in CHOICES.items()})
    vary = [WORDS[word] for word in words]
    results = [tuple(values(c).values()) for c in impl.space(default, vary)]
    expected = itertools.product(*(
        CHOICES[name] if not vary or impl.knobs()[name] in words else (getattr(default, name),)
        for name in CHOICES
    ))  # fmt: skip
    assert results == list(expected)
    assert tuple(values(default).values()) in results


def test_a_config_is_made_under_watch(monkeypatch):
    """Its class is code of the user, which may not end."""
    marks = []
    monkeypatch.setattr("workbench.spec.watched", lambda what: marks.append(what) or nullcontext())
    impl = an_impl()
    assert list(impl.space(Tiles())) and impl.config_of({}) == Tiles()
    assert set(marks) == {f"a config of {impl.title}"}


def test_a_library_has_one_config():
    spec = a_spec()
    impl = spec.library("torch", lambda x, s: x + s)
    assert list(impl.space(impl.config())) == [NoKnobs()]
    assert (impl.title, impl.backend, impl.knobs(), impl(1, 2)) == ("scale.torch", "torch", {}, 3)
    assert spec.impls == [impl] and impl.rejection_reason(NoKnobs(), LIMITS, "bf16", {}) is None
    picky = spec.library("picky", lambda x, s: x, refuse=lambda config, limits, *, itemsize: "no")
    assert picky.rejection_reason(NoKnobs(), LIMITS, "bf16", {}) == "no"


# Impls


def test_an_impl_is_named_after_its_launcher_unless_told():
    def split_k(x, s, *, config):
        return x

    assert a_spec().impl(Tiles)(split_k).title == "scale.split_k"
    assert a_spec().impl(Tiles, name="wide")(split_k).title == "scale.wide"


def test_a_call_without_a_config_takes_the_default():
    impl = an_impl()
    assert impl(1, 2) == (1, 2, Tiles())
    assert impl(1, 2, config=Tiles(block_m=16))[2].block_m == 16


def test_the_default_is_that_of_the_architecture():
    impl = an_impl(defaults={"gfx942": Tiles(num_stages=2)})
    assert impl.default(LIMITS, "bf16", {}) == Tiles()
    cdna = Limits("gfx942", 64, 65536, 512, 1024, 304)
    assert impl.default(cdna, "bf16", {}) == Tiles(num_stages=2)


def test_refuse_says_nothing_unless_told():
    assert an_impl().refuse(Tiles(), LIMITS, itemsize=2, M=1, N=1, K=1) is None


def test_more_warps_than_a_block_may_have_are_rejected_before_refuse_is_asked():
    impl = an_impl(refuse=lambda config, limits, **at: 1 // 0)
    wide = Limits("gfx942", 64, 65536, 512, 512, 304)
    config, sizes = Tiles(num_warps=16), {"M": 1, "N": 1, "K": 1}
    text = "16 warps are more than one block may have here"
    assert impl.rejection_reason(config, wide, "bf16", sizes) == text
    assert "ZeroDivisionError" in impl.rejection_reason(Tiles(num_warps=8), wide, "bf16", sizes)


def test_an_axis_beyond_what_the_spec_counts_is_rejected():
    impl, sizes = an_impl(), {"M": LONGEST, "N": 1, "K": 1}
    assert impl.rejection_reason(Tiles(), LIMITS, "bf16", sizes) is None
    longer = {**sizes, "M": LONGEST + 1}
    text = f"an axis has at most {LONGEST} indices, not {LONGEST + 1}; split the tensors"
    assert impl.rejection_reason(Tiles(), LIMITS, "bf16", longer) == text


def test_a_grid_ends_at_65535_programs_along_its_second_axis_on_nvidia():
    assert LIMITS.nvidia and LIMITS.refuse_grid(65_535) is None
    assert "65535 programs along its second axis, not 65536" in LIMITS.refuse_grid(65_536)
    assert Limits("gfx942", 64, 65536, 512, 1024, 304).refuse_grid(65_536) is None


# Labels


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (values(Tiles()), "32x64, 4 warps, 3 stages, group_m 8"),
        ({"block_n": 1024, "num_warps": 4}, "block_n 1024, 4 warps"),
        ({"num_warps": 1}, "1 warp"),
        ({"split": 2}, "split 2"),
        ({}, "as the library chooses"),
        ({"block_m": 0, "num_warps": 0, "hints": 0}, "block_m auto, auto warps, hints 0"),
    ],
)
def test_label(config, expected):
    assert label(config) == expected


@given(*[st.builds(Tiles, **{k: st.sampled_from(v) for k, v in CHOICES.items()})] * 2)
def test_labels_tell_configs_apart(one, other):
    assert (label(values(one)) == label(values(other))) == (one == other)


def test_values_are_plain_and_in_order():
    assert list(values(Tiles())) == [f.name for f in fields(Tiles)]
