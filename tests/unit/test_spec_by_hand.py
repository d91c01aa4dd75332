"""What a Spec refuses, solves and names, and what launchers are given,
at limits and beside them."""

import ast
import math
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from workbench import catalog, dsl
from workbench.catalog import source
from workbench.catalog.declared import flops_fault, misfit, size_fault
from workbench.device.hardware import find_device
from workbench.dsl.block_clusters import blocks_apart
from workbench.dsl.interpreter import _TRUTHS, _allow_truths, _meanings, _rounded_to_tf32
from workbench.spec import (
    AUTO,
    Extent,
    Impl,
    Spec,
    Tensor,
    Tolerance,
    Work,
    among,
    is_number,
    label,
    short,
    solve_axis,
    stages,
    threads,
    tile,
)

pytestmark = pytest.mark.unit
H200 = find_device("h200").limits


def spec_of(**more):
    plain = {"name": "k", "inputs": {"x": Tensor("M N")}, "outputs": {"y": Tensor("M N")},
             "reference": abs, "flops": lambda M, N: M * N, "check": [{"M": 1, "N": 2}],
             "bench": [{"M": 1, "N": 2}]}  # fmt: skip
    return Spec(**plain | more)


# Axes


@pytest.mark.parametrize(
    ("axis", "sizes", "shape"),
    [
        ("N K/256*144", {"N": 3, "K": 512}, (3, 288)),
        ("2*N N*2 7", {"N": 3}, (6, 6, 7)),
        ("K/3*2", {"K": 9}, (6,)),
        ("K/2/2", {"K": 12}, (3,)),
    ],
)
def test_an_axis_is_computed_from_left_to_right(axis, sizes, shape):
    assert Tensor(axis).shape(sizes) == shape


@pytest.mark.parametrize(
    ("axis", "sizes", "words"),
    [
        ("K/256", {"K": 128}, "K/256 is not a whole number at K=128"),
        ("K/G", {"K": 4, "G": 0}, "K/G divides by zero at K=4,G=0"),
    ],
)
def test_an_axis_that_is_no_whole_number_is_refused(axis, sizes, words):
    with pytest.raises(ValueError) as error:
        Tensor(axis).shape(sizes)
    assert str(error.value) == words


@pytest.mark.parametrize(
    ("axis", "extent", "sizes", "found"),
    [
        ("N", 7, {}, {"N": 7}),
        ("N", 7, {"N": 7}, {}),
        ("N", 7, {"N": 8}, None),
        ("K/256*144", 288, {}, {"K": 512}),
        ("K/256*144", 100, {}, None),
        ("K/256*144", 144, {"K": 100}, None),
        ("2*N", 7, {}, None),
        ("2*N", 8, {}, {"N": 4}),
        ("A*B", 8, {}, {}),
        ("A*B", 8, {"A": 2}, {"B": 4}),
        ("A*B/C", 8, {"A": 2, "C": 3}, {"B": 12}),
        ("A/B", 8, {"A": 16}, {}),  # several divisors may give one quotient
        ("A/B", 8, {"B": 2}, {"A": 16}),
        ("7", 7, {}, {}),
        ("7", 8, {}, None),
    ],
)
def test_an_extent_determines_the_one_size_that_is_unknown(axis, extent, sizes, found):
    assert solve_axis(axis, extent, sizes) == found


def test_extents_are_refused_and_the_nearest_is_chosen():
    few, many = Extent(choices=(16, 64, 128)), Extent(multiple=16)
    assert few.refuse("D", 64) is None and many.refuse("D", 48) is None
    assert few.refuse("D", 32) == "D is one of 16, 64, 128, not 32"
    assert many.refuse("D", 50) == "D is a multiple of 16, which 50 is not"
    assert [few.nearest(n) for n in (1, 16, 17, 64, 128, 999)] == [16, 16, 64, 64, 128, 128]
    assert [many.nearest(n) for n in (1, 16, 17)] == [16, 16, 32]
    both = Extent(choices=(16, 24, 64), multiple=16)
    assert [both.nearest(n) for n in (17, 65)] == [64, 64] and Extent(multiple=1).nearest(5) == 5


# Limits


@pytest.mark.parametrize(
    ("call", "allowed", "refused", "words"),
    [
        (lambda n: H200.refuse_held(n, 64), 64, 65,
         "each thread would hold 65 elements in registers; 64"),
        (H200.refuse_sums, 128, 129, "128 is the most without spills"),
        (H200.refuse_shared, H200.shared_bytes, H200.shared_bytes + 1,
         "bytes of shared memory; a block has"),
        (H200.refuse_grid, 65_535, 65_536, "programs along its second axis, not 65536"),
        (lambda n: H200.refuse_program(256, n, 32), 32, 33, "each of 256 threads would hold 33"),
        (lambda n: H200.refuse_program(256, 1, 32, n), H200.shared_bytes - 1024,
         H200.shared_bytes - 1023, "bytes of shared memory; "),
        (lambda n: H200.refuse_rows(2, M=n), 8, 9, "M = 9 gives 18"),
    ],
)  # fmt: skip
def test_a_limit_is_the_last_that_is_allowed(call, allowed, refused, words):
    assert call(allowed) is None and words in call(refused)


def test_limits_differ_between_makers_and_generations():
    amd, names = find_device("mi300x").limits, ("h200", "b200", "a100", "rtx4090", "mi300x")
    every = [find_device(name).limits for name in names]
    assert [limits.nvidia for limits in every] == [True, True, True, True, False]
    assert [limits.fp32_in_parts for limits in every] == [True, False, False, False, False]
    assert [limits.refuse_pdl() is None for limits in every] == [True, True, False, False, False]
    assert [limits.refuse_fp8() is None for limits in every] == [True, True, False, True, False]
    assert "e4m3fnuz" in amd.refuse_fp8() and amd.refuse_grid(1 << 30) is None
    assert amd.refuse_program(256, 1, 32, 1 << 30) is None
    config = SimpleNamespace(block_m=64, block_n=128, block_k=32, num_stages=3)
    assert H200.stages_bytes(config, 2) == 3 * (64 + 128) * 32 * 2
    assert amd.stages_bytes(config, 2) == 2 * (64 + 128) * 32 * 2


# Work


def test_the_work_of_a_product_is_counted_in_whole_tiles():
    config = SimpleNamespace(block_m=64, block_n=128, block_k=32)
    work = Work.product(config, 2, M=65, N=256, K=33, band=3)
    assert (work.tiles, work.steps, work.band, work.dot) == (4, 2, 3, (64, 128, 32))
    assert (work.load_bytes, work.store_bytes) == ((64 + 128) * 32 * 2, 64 * 128 * 2)


@pytest.mark.parametrize(
    ("change", "odd"),
    [
        ({}, None), ({"steps": 0, "load_bytes": 0, "store_bytes": 0}, None),
        ({"tiles": 0}, "tiles = 0"), ({"steps": -1}, "steps = -1"), ({"band": 0}, "band = 0"),
        ({"products": 0}, "products = 0"), ({"stages": 0}, "stages = 0"), ({"stages": 1}, None),
        ({"waits": -1}, "waits = -1"), ({"waits": 0}, None), ({"barriers": -1}, "barriers = -1"),
        ({"memory_bytes": -1}, "memory_bytes = -1"), ({"passed_bytes": math.inf},
         "passed_bytes = inf"),
        ({"tiles": True}, "tiles = True"), ({"dot": (1, 1, 1)}, None),
        ({"dot": (1, 0, 1)}, "dot = (1, 0, 1)"), ({"dot": (1, 1)}, "dot = (1, 1)"),
        ({"dot": [1, 1, 1]}, "dot = [1, 1, 1]"),
    ],
)  # fmt: skip
def test_a_work_that_describes_no_launch_is_named(change, odd):
    assert replace(Work(tiles=1, steps=1, load_bytes=8, store_bytes=8), **change).odd_field() == odd


@pytest.mark.parametrize(
    ("value", "least", "is_one"),
    [(0, 0, True), (1, 1, True), (0.99, 1, False), (math.inf, 0, False), (math.nan, 0, False),
     (True, 0, False), ("1", 0, False), (-0.5, -1, True)],
)  # fmt: skip
def test_a_number_is_finite_and_no_truth_value(value, least, is_one):
    assert is_number(value, least) is is_one


# Texts


def test_texts_are_cut_at_eighty_characters():
    assert short("a" * 78) == f"'{'a' * 78}'" and short("a" * 79) == f"'{'a' * 76}..."
    assert short("a\nb  c") == "'a\\nb c'"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"block_m": 128, "block_n": 64, "num_warps": 8, "num_stages": 3, "group_m": 8},
         "128x64, 8 warps, 3 stages, group_m 8"),
        ({"block_n": 1024, "num_warps": 1, "num_stages": 1}, "block_n 1024, 1 warp, 1 stage"),
        ({"block_m": 0, "block_n": 64, "num_warps": 0, "hints": 0},
         "autox64, auto warps, hints 0"),
        ({}, "as the library chooses"),
    ],
)  # fmt: skip
def test_configs_are_named_by_their_blocks(config, text):
    assert label(config) == text


# Impls


@dataclass(frozen=True)
class Tiled:
    block_m: int = tile(16, 128, default=AUTO)


def test_knobs_are_whole_numbers_from_the_smaller_to_the_larger():
    assert tile(3, 17, default=8).metadata["choices"] == (2, 4, 8, 16)
    assert threads(1, 4, default=AUTO).metadata["choices"] == (1, 2, 4)
    assert stages(2, 4, default=3).metadata["choices"] == (2, 3, 4)
    assert [one.metadata["knob"] for one in (tile(1, 1, 1), threads(1, 1, 1), stages(1, 1, 1))] == [
        tile, threads, stages]  # fmt: skip
    for make in (tile, threads, stages):
        for low, high in ((0, 4), (4, 2), (1.0, 4), (1, "4")):
            with pytest.raises(ValueError, match="the ends are whole numbers above 0"):
                make(low, high, default=2)
    for choices, default, words in (((1, 2.0), 1, "2.0 is not a whole"), ((1, 2), 3, "not among"),
                                    ((1, True), 1, "True is not a whole")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            among(*choices, default=default)
    assert among(1, 2, default=AUTO).default == AUTO


def test_an_axis_that_is_too_long_for_indices_is_refused():
    spec = spec_of(longest=100)
    ours = spec.impl(name="ours")(lambda x: x)
    library = spec.impl(name="library", backend="torch")(lambda x: x)
    for extent, fits in ((100, True), (101, False)):
        assert (ours._refuse_axis(extent) is None) is fits
        assert library._refuse_axis(extent) is None
    assert ours._refuse_axis(101) == "an axis has at most 100 indices, not 101; split the tensors"
    assert ours.rejection_reason(ours.config(), H200, "fp32", {"M": 101, "N": 1}) is not None
    metal = spec.impl(name="metal", backend="metal")(lambda x: x)
    assert "needs an Apple GPU" in metal.rejection_reason(metal.config(), H200, "fp32", {})
    mac = find_device("m2max").limits
    assert metal.rejection_reason(metal.config(), mac, "fp32", {"M": 1, "N": 1}) is None
    warps = SimpleNamespace(num_warps=32)
    assert ours.rejection_reason(warps, H200, "fp32", {"M": 1, "N": 1}) is None
    warps.num_warps = 33
    assert "33 warps" in ours.rejection_reason(warps, H200, "fp32", {"M": 1, "N": 1})


def test_a_config_that_was_chosen_before_is_used_again():
    spec, launched = spec_of(), []
    impl = spec.impl(name="ours", config=Tiled, resolve=lambda c, limits, **at: c)(
        lambda x, *, config: launched.append(config)
    )
    x = torch.ones(2, 3)
    impl.launch_configs[x.device, (x.shape, x.dtype)] = Tiled(64)
    impl(x)
    assert launched == [Tiled(64)] and impl._choose_config(("text",)) == Tiled()
    assert impl.is_open(Tiled()) and not impl.is_open(Tiled(16)) and impl.auto == ("block_m",)


def test_a_default_is_that_of_dtype_and_device_before_either():
    spec = spec_of()
    defaults = {"fp16": Tiled(16), "sm_90": Tiled(32), "fp16:sm_90": Tiled(64)}
    impl = spec.impl(name="a", config=Tiled, defaults=defaults,
                     resolve=lambda c, limits, **at: replace(c,
                      block_m=128))(lambda x: x)  # fmt: skip
    amd = find_device("mi300x").limits
    found = [impl.declared_default(limits, dtype).block_m for limits in (H200, amd)
             for dtype in ("fp16", "fp32")]  # fmt: skip
    assert found == [64, 32, 16, AUTO]
    assert impl.default(amd, "fp32", {"M": 1, "N": 1}) == Tiled(128)
    assert [c.block_m for c in impl.space(Tiled(), ())] == [16, 32, 64, 128]


# What contradicts itself


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"M": 1, "N": 1}, None),
        ({"M": 0, "N": 1}, "give M = 0; an extent is a whole number above 0"),
        ({"M": 1.0, "N": 1}, "give M = 1.0;"),
        ({"M": 1}, "lack N"),
        ({"M": 1, "N": 1, "K": 1}, "name K, which no tensor has"),
        # two tensors of 4 bytes three times: 24 bytes an element, of 2^42
        ({"M": 1 << 20, "N": (1 << 42) // 24 >> 20}, None),
        ({"M": 1 << 20, "N": ((1 << 42) // 24 >> 20) + 1}, "need terabytes"),
    ],
)
def test_sizes_are_a_problem_or_the_end_of_a_sentence_says_why_not(sizes, words):
    fault = size_fault(spec_of(), sizes)
    assert fault is None if words is None else fault.startswith(words)


@pytest.mark.parametrize(
    ("flops", "words"),
    [
        (lambda M, N: 0, None), (lambda M, N: 1 << 100, None),
        (lambda M, N: (1 << 100) + 1, "more than 2^100 at M=1,N=2"),
        (lambda M, N: -1, "gives -1 at M=1,N=2; it must give a whole number"),
        (lambda M, N: 1.0, "gives 1.0"), (lambda M: 1, "it must take the axes M, N as keywords"),
        (lambda M, N: 1 // 0, "fails at M=1,N=2 (ZeroDivisionError"),
    ],
)  # fmt: skip
def test_flops_are_a_whole_number_from_0_to_2_to_the_100(flops, words):
    fault = flops_fault(spec_of(flops=flops), {"M": 1, "N": 2})
    assert fault is None if words is None else words in fault


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None), ({"name": "a" * 64}, None), ({"name": "a" * 65}, "the Spec is called"),
        ({"name": "1a"}, "begins with no digit"), ({"name": 3}, "the Spec is called 3"),
        ({"inputs": {}}, "`inputs` is {}"), ({"inputs": {"x": "M N"}}, "x is 'M N', not a Tensor"),
        ({"inputs": {"x": Tensor("M N+1")}}, "x has the axis 'N+1'"),
        ({"inputs": {"x": Tensor("M N*0")}}, "an axis holds no 0"),
        ({"inputs": {"x": Tensor("M N*10")}}, None),
        ({"inputs": {"x": Tensor("M N", dtype="odd")}}, "x has the unknown dtype 'odd'"),
        ({"inputs": {"x": Tensor("M N", make=3)}}, "`make` of x is 3, not a function"),
        ({"inputs": {"x": Tensor("M limits")}}, "limits"),
        ({"inputs": {"x": Tensor("M N", part="N")}}, None),
        ({"inputs": {"x": Tensor("M N", part=3)}}, "`part` of x is 3; it is axes"),
        ({"inputs": {"x": Tensor("M N", part="K")}}, "`part` of x names K, which no tensor has"),
        ({"inputs": {"x": Tensor("M N", part="M+1")}}, "x has the axis 'M+1'"),
        ({"outputs": {"y": Tensor("M", part="M/7")}}, "do not fit"),
        ({"reference": 3}, "`reference` is 3"), ({"extents": {"K": Extent()}}, "extents names K"),
        ({"extents": {"M": Extent(multiple=0)}}, "extents gives M"),
        ({"extents": {"M": Extent(choices=(1, 0))}}, "extents gives M"),
        ({"extents": {"M": Extent(choices=(1,))}}, None), ({"extents": [1]}, "`extents` is [1]"),
        ({"check": []}, "it names no sizes to check"), ({"bench": "N=1"}, "`bench` is 'N=1'"),
        ({"check": [3]}, "the check sizes 3 are not a mapping"),
        ({"bench": [{"M": 1, "N": 1}, {"M": 1}]}, "the bench sizes {'M': 1} lack N"),
        ({"tolerance": {"fp32": Tolerance(-1.0, 0.0)}}, "tolerance"),
    ],
)  # fmt: skip
def test_a_spec_that_contradicts_itself_is_one_sentence(change, words):
    fault = misfit(spec_of(**change))
    assert fault is None if words is None else words in fault, fault


def test_names_of_libraries_may_have_points():
    spec = spec_of()
    spec.impls.extend(
        [
            Impl(spec, "torch.compile", abs, "torch", Tiled, None, None, None, {}),
            Impl(spec, "1st", abs, "torch", Tiled, None, None, None, {}),
        ]
    )
    assert "and of a library's version also . + and -" in misfit(spec)
    spec = spec_of()
    spec.impls.append(Impl(spec, "a.b", abs, "triton", Tiled, None, None, None, {}))
    assert "an impl is called 'a.b'" in misfit(spec) and "library" not in misfit(spec)


# What launchers hand on


@pytest.mark.parametrize(
    ("shape", "stride", "can"),
    [
        ((4, 8), (8, 1), True), ((4, 8), (16, 1), True), ((4, 8), (12, 1), True),
        ((4, 8), (10, 1), False),  # of 4 bytes each: 40 are no multiple of 16
        ((4, 8), (4, 1), False), ((4, 8), (8, 2), False), ((2, 4, 8), (32, 8, 1), True),
        ((2, 4, 8), (28, 8, 1), False), ((8,), (1,), True),
    ],
)  # fmt: skip
def test_a_descriptor_takes_dense_rows_that_are_apart(shape, stride, can):
    memory = torch.zeros(512)
    assert memory.data_ptr() % 16 == 0
    assert dsl.describable(memory.as_strided(shape, stride)) is can
    assert not dsl.describable(memory[1:].as_strided(shape, stride))


@pytest.mark.parametrize(
    ("shape", "stride", "found"),
    [
        ((4, 8), (8, 1), [8, 1]), ((4, 8), (12, 1), [12, 1]), ((1, 8), (3, 1), [8, 1]),
        ((2, 1, 8), (16, 5, 1), [16, 8, 1]), ((2, 1, 8), (5, 16, 1), None), ((4, 8), (4, 1), None),
        ((4, 8), (10, 1), None), ((4, 8), (8, 2), None), ((2, 4, 8), (8, 8, 1), [8, 8, 1]),
    ],
)  # fmt: skip
def test_strides_of_axes_of_one_are_replaced(shape, stride, found):
    tensor = torch.zeros(512).as_strided(shape, stride)
    if found is None:
        with pytest.raises(ValueError, match="x must have dense rows"):
            dsl.block_strides("x", tensor)
    else:
        assert dsl.block_strides("x", tensor) == found
        with pytest.raises(ValueError, match="x must have dense rows"):
            dsl.block_strides("x", torch.zeros(512)[1:].as_strided(shape, stride))


def test_numbers_that_launchers_pass_on():
    assert dsl.divisors(A=64, B=48, C=6, D=7, E=0) == {
        "DIV_A": 16, "DIV_B": 16, "DIV_C": 2, "DIV_D": 1, "DIV_E": 16}  # fmt: skip
    assert [dsl.pad_up(n) for n in (1, 2, 3, 4, 5, 1024, 1025)] == [1, 2, 4, 4, 8, 1024, 2048]
    config = SimpleNamespace(block_m=64, block_n=32)
    assert dsl.tile_count(config, M=65, N=64) == 4 and dsl.tile_count(config, M=64) == 1
    assert dsl.strides(torch.zeros(2, 3), torch.zeros(4)) == (3, 1, 1)
    few = replace(H200, cores=4)  # three of four need a tile
    assert [dsl.widest_block(few, 1, N, (128, 64)) for N in (384, 257, 256)] == [128, 128, 64]
    assert (
        dsl.widest_block(few, 3, 1, (128, 64)) == 128 and dsl.widest_block(few, 1, 1, (9, 5)) == 5
    )
    assert dsl.cores(torch.zeros(1)) == dsl.CORES_OF_A_CPU
    with dsl.pretend(few):
        assert dsl.cores(torch.zeros(1)) == 4 and dsl.pretended_limits() is few
    assert dsl.pretended_limits() is None


def test_a_baseline_is_added_as_written_and_compiled():
    spec = spec_of()
    call = dsl.baseline(spec)(abs)
    assert call is abs and [i.name for i in spec.impls] == ["torch", "torch.compile"]
    assert spec.impls[0].launch is abs and isinstance(spec.impls[1].launch, dsl.CompiledCall)


@pytest.mark.parametrize(("length", "refused"), [(100, False), (101, True)])
def test_another_project_s_rows_have_a_limit(monkeypatch, length, refused):
    package = dsl.ThirdParty("some-kernels", "some")
    refuse = package.refuse_rows(N=100)
    monkeypatch.setattr(dsl, "find_spec", lambda name: name)
    reason = refuse(None, H200, M=1, N=length)
    assert reason == ("some-kernels takes rows of at most 100 elements" if refused else None)
    assert refuse.imports == ("some",)
    monkeypatch.setattr(dsl, "find_spec", lambda name: None)
    assert refuse(None, H200, M=1, N=1) == package.missing


# Interpreted programs

HALF = 0.5
MEANINGS = {
    "exp10": math.sqrt(10), "fast_exp10f": math.sqrt(10), "rsqrt": math.sqrt(2),
    "rsqrt_rn": math.sqrt(2), "rcp_rn": 2.0, "rcbrt": 2 ** (1 / 3), "round": 1.0,
    "normcdf": 0.6914624612740131, "erf": math.erf(HALF), "erfc": math.erfc(HALF),
    "lgamma": math.lgamma(HALF), "asin": math.pi / 6, "acos": math.pi / 3,
    "atan": math.atan(HALF), "sqrt_rn": math.sqrt(HALF), "fast_expf": math.exp(HALF),
    "fast_log2f": -1.0, "ceil": 1.0, "floor": 0.0, "exp2": math.sqrt(2), "expm1": math.expm1(HALF),
}  # fmt: skip
OF_TWO = {"fdim": (2.5, 1.0, 1.5), "add_rn": (2.5, 1.0, 3.5), "sub_rn": (2.5, 1.0, 1.5),
          "mul_rn": (2.5, 2.0, 5.0), "div_rn": (5.0, 2.0, 2.5), "pow": (2.0, 3.0, 8.0),
          "fast_powf": (2.0, 3.0, 8.0), "fast_dividef": (5.0, 2.0, 2.5), "hypot": (3.0, 4.0, 5.0),
          "atan2": (1.0, 1.0, math.pi / 4), "copysign": (2.0, -1.0, -2.0), "fmod": (5.0, 3.0,
           2.0)}  # fmt: skip


def test_functions_of_libdevice_compute_what_their_names_say():
    known = _meanings()
    for name, value in MEANINGS.items():
        assert float(known[name](np.float64(HALF))) == pytest.approx(value), name
    for name, (x, y, value) in OF_TWO.items():
        assert float(known[name](np.float64(x), np.float64(y))) == pytest.approx(value), name
    assert float(known["fdim"](np.float64(1.0), np.float64(2.5))) == 0.0
    assert math.isnan(known["fdim"](np.float64(math.nan), np.float64(2.5)))
    for name in ("fma", "fma_rn"):
        assert float(known[name](*map(np.float64, (2.0, 3.0, 4.0)))) == 10.0
    assert [float(known["round"](np.float64(x))) for x in (-0.5, -0.49, 2.5)] == [-1.0, 0.0, 3.0]
    assert {getattr(np, name).__name__ for name in _TRUTHS.values()} == {
        "isnan", "isinf", "isfinite"}  # fmt: skip


def test_a_mask_of_integers_becomes_one_of_truths():
    class Handle:
        def __init__(self, data, dtype):
            self.data, self.dtype = data, dtype

    given = []
    access = _allow_truths(lambda self, *operands, **named: given.append(operands), 1)
    for mask, kind in ((np.array([0, 2, -1]), bool), (np.array([True, False]), bool)):
        access(None, "pointer", Handle(mask, "i1"), "other")
        pointer, handle, other = given[-1]
        assert (pointer, other, handle.dtype) == ("pointer", "other", "i1")
        assert handle.data.dtype == kind and handle.data.tolist() == [bool(n) for n in mask]
    buffer = memoryview(b"ab")
    access(None, "pointer", Handle(buffer, "i1"), "other")
    assert given[-1][1].data is buffer


def test_operands_are_rounded_to_ten_bits_and_ties_to_even():
    class Handle:
        def __init__(self, data, dtype):
            self.data, self.dtype = data, SimpleNamespace(scalar=dtype)

    bits = 2.0**-10
    given = [1 + bits, 1 + bits / 2, 1 + 1.5 * bits, 1 + bits / 2 + 2.0**-23, 1 + 0.49 * bits,
             -1 - 1.5 * bits, math.inf, math.nan, 0.0]  # fmt: skip
    rounded = [1 + bits, 1.0, 1 + 2 * bits, 1 + bits, 1.0, -1 - 2 * bits, math.inf]
    data = _rounded_to_tf32(Handle(np.array(given, np.float32), "fp32")).data
    assert data[:7].tolist() == rounded and math.isnan(data[7]) and data[8] == 0.0
    wide = Handle(np.array([1 + bits / 2]), "fp64")
    assert _rounded_to_tf32(wide) is wide


def test_rows_of_a_cluster_lie_in_blocks_of_their_own():
    assert blocks_apart(1, 3) == [] and blocks_apart(2, 1) == [[1]]
    assert blocks_apart(8, 3) == [[1, 0, 0], [2, 0, 0], [4, 0, 0]]


# Files of kernels


def test_a_file_is_one_kernel():
    """Specs of other files that a module imports are not its own; one with two names is one."""

    def module(*specs):
        made = ModuleType("mine")
        for n, spec in enumerate(specs):
            setattr(made, f"spec{n}", spec)
            spec.impls[:] = [replace(i, launch=launcher(home)) for i, home in zip(
                spec.impls, ("mine", "theirs"), strict=False)]  # fmt: skip
        return made

    def launcher(home):
        def launch(x):
            return x

        launch.__module__ = home
        return launch

    def one(name, backend="triton"):
        spec = spec_of(name=name)
        spec.impl(name="ours", backend=backend)(lambda x: x)
        return spec

    first, second = one("a"), one("b")
    assert catalog._spec_in(module(first, first), "mine") is first
    with pytest.raises(catalog.CatalogError, match=r"mine holds 2 Specs \(a, b\)"):
        catalog._spec_in(module(first, second), "mine")
    with pytest.raises(catalog.CatalogError, match="has no Triton impl and no Metal impl"):
        catalog._spec_in(module(one("c", "torch")), "mine")
    with pytest.raises(catalog.CatalogError, match="mine lacks a Spec"):
        catalog._spec_in(ModuleType("mine"), "mine")
    with pytest.raises(catalog.CatalogError, match="mine lacks an impl"):
        catalog._spec_in(module(spec_of()), "mine")


def test_modules_of_a_sibling_checkout_are_forgotten(tmp_path, monkeypatch):
    main, sibling = tmp_path / "main", tmp_path / "sibling"
    (main / ".git" / "worktrees" / "s").mkdir(parents=True)
    sibling.mkdir()
    (sibling / ".git").write_text(f"gitdir: {main}/.git/worktrees/s\n", encoding="utf-8")
    other = tmp_path / "other"
    (other / ".git").mkdir(parents=True)
    known = {}
    for name, folder in (("_kernel_mine", sibling), ("installed", tmp_path / "site-packages"),
                         ("ours", main), ("theirs", sibling), ("more", sibling),
                         ("foreign", other), ("workbench.more", sibling)):  # fmt: skip
        known[name] = ModuleType(name)
        folder.mkdir(exist_ok=True)
        known[name].__file__ = str(folder / f"{name}.py")
    known["none"] = ModuleType("none")
    monkeypatch.setattr(catalog, "sys", SimpleNamespace(modules=known))
    catalog._drop_siblings(main)
    assert list(known) == ["_kernel_mine", "installed", "ours", "foreign", "workbench.more", "none"]
    assert catalog._store(sibling) == main / ".git" == catalog._store(main)
    assert catalog._move_entry(sibling, main) == main and catalog._move_entry(other, main) == other


@pytest.mark.parametrize(
    ("mutates", "words"),
    [(("x",), None), (["x"], None), ((), None), ("x", "is a tuple of names"),
     (("x", 3), "is a tuple of names"), (("x", "q"), "mutates names 'q'")],
)  # fmt: skip
def test_what_a_launch_changes_are_inputs(mutates, words):
    if words is None:
        spec_of()._check_mutates(mutates)
    else:
        with pytest.raises(ValueError, match=words):
            spec_of()._check_mutates(mutates)


# Code that counts for a launcher


def test_two_specs_of_a_file_and_helpers_of_helpers_count(tmp_path):
    (tmp_path / "kernel.py").write_text(
        "import json\nfrom . import one\nfrom .two import thing\n"
        "a = Spec(name='a', bench=[1], check=[2])\nb = Spec(name='b', check=[3])\n"
        "if True:\n    EXTRA = 5\n@a.impl(work=w, mutates=('x',))\ndef launch(x):\n"
        "    return one, X\n"
        "X = 1\nY = 2\nprint('unnamed')\n", encoding="utf-8",
    )  # fmt: skip
    (tmp_path / "one.py").write_text(
        "'''Text.'''\nimport os\nfrom .three import z\n", encoding="utf-8"
    )
    (tmp_path / "two.py").write_text("T = 2\n", encoding="utf-8")
    (tmp_path / "three.py").write_text("Z = 3\n", encoding="utf-8")
    parsed = source._Parsed(str(tmp_path / "kernel.py"))
    assert parsed.specs == ["a", "b"] and len(parsed.unnamed) == 2
    code = "\n".join(parsed.reached_code("launch"))
    for part, counts in (("'EXTRA'", True), ("'X'", True), ("'Y'", False), ("'unnamed'", False),
                         ("'mutates'", True), ("'work'", False), ("'bench'", False),
                         ("'check'", True), ("'Z'", True), ("'T'", False), ("'Text.'",
                          False)):  # fmt: skip
        assert (part in code) is counts, part
    whole = "\n".join(parsed.reached_code("a launcher that is made elsewhere"))
    assert "'Y'" in whole and "'unnamed'" in whole and "'T'" in whole
    tree = ast.parse("import os, one\nx = 1\nfrom two import T")
    assert [p.name for p in source._helper_files(tree, tmp_path)] == ["one.py", "two.py"]
