"""Every kernel's default, compiled for GPUs that are not here: it fits, uses the matrix unit, loads
as wide as it can, and spills nothing, or in fp32 on Hopper no more than is listed.

By day one Impl of each kernel is compiled: for Hopper, and every third for another target in turn,
every second of these for CDNA 3, the nearest of the other vendor. One of each kernel has the least
sizes, one of every fourth ragged extents.
"""

import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import triton
from kernel_cases import (
    SLOTS,
    SPILLS,
    Case,
    applicable,
    dtypes_of,
    first_applicable,
    middling,
    named,
    triton_impls,
    turn,
)
from nightly import at_night, nightly
from stopped import ttgir_of

from workbench import catalog
from workbench.compile import (
    CompileError,
    compile_config,
    compile_launches,
    launch_shapes,
    read_resources,
)
from workbench.compile.launches import capture_launches
from workbench.device.hardware import DEVICES
from workbench.measurement import inputs
from workbench.spec import ITEMSIZE

UNITS = {"a100": "mma", "h200": "wgmma", "b200": "tcgen05", "mi300x": "mfma", "rx7900xtx": "wmma"}
MEMORY_BOUND = 10  # FLOP a byte: every GPU of the table reaches more
MUCH = 1 << 20  # bytes: with fewer, it does not matter how wide they are loaded
# Bytes that a thread of a default spills on Triton 3.6 and on no later one.
OLDEST = triton.__version__.startswith("3.6.")
OLDEST_SPILLS = {
    ("lora.persistent", "rx7900xtx"): 156,
    ("patch_embed.described", "rx7900xtx"): 492,
    ("patch_embed.recurring", "rx7900xtx"): 348,
    ("patch_embed.recurring", "a100"): 32,
    ("q4_k_matmul.tiles", "b200"): 8,
}
# Bytes that a thread of a default spills in 16 bits, which is the fastest all the same, measured
# on an H200; 32 rows a trip spill nothing in 1.15 times the time and more.
FASTEST_SPILLS = {
    ("attention_backward.two_passes", "h200"): 56,
    ("attention_backward.copied", "h200"): 40,
    ("attention_backward.warp_groups", "h200"): 40,  # the pass for dk and dv, which is the same
    ("causal_attention_backward.two_passes", "h200"): 200,
    ("causal_attention_backward.copied", "h200"): 80,
    ("causal_attention_backward.warp_groups", "h200"): 80,
    ("wkv6.chunked", "h200"): 160,  # two warps; four took 1.06 to 1.15 of the time at seven sizes
}


@cache
def one_of_each_kernel():
    return [
        impl
        for impl in triton_impls()
        if impl is turn(impl.spec, [i for i in impl.spec.impls if i.backend == "triton"])
    ]


@dataclass(frozen=True)
class Fit:
    """An Impl's default on a target, at the first size to time that it accepts."""

    device: str
    case: Case
    config: Any

    def __str__(self) -> str:
        return f"{self.device}-{self.case.impl.title}-{self.case.dtype}"


def usual_dtype(name, impl):
    """Return bf16 or the dtype of the fewest bytes, of those that an Impl takes on a target."""
    dtypes = dtypes_of(impl, DEVICES[name].limits)
    # refused in a sentence whatever the config: fp8 where there is none
    assert dtypes or name != "h200", f"{impl.title} takes no dtype on an H200"
    return "bf16" if "bf16" in dtypes else min(dtypes, key=ITEMSIZE.__getitem__, default=None)


def by_day(impl):
    """Return the fit of an Impl that is compiled first, and in every run if it is one of each
    kernel."""
    targets = ["h200"]
    if impl in one_of_each_kernel()[1::3]:
        others = [t for t in UNITS if t not in ("h200", "mi300x")]
        others += ["mi300x"] * len(others)
        targets = [turn(impl, others, step) for step in range(len(others))] + targets
    name = next(target for target in targets if usual_dtype(target, impl))
    return chosen(name, impl, usual_dtype(name, impl))


def by_night(name, impl):
    """Yield the other fits on a target: the usual dtype, and on the H200 each dtype."""
    usual, others = usual_dtype(name, impl), []
    if name == "h200":  # fp16 differs from bf16 in the names of instructions
        others = [d for d in dtypes_of(impl, DEVICES[name].limits) if d not in (usual, "fp16")]
    today = by_day(impl)
    for fit in (chosen(name, impl, dtype) for dtype in (usual, *others) if dtype):
        if str(fit) != str(today):
            yield fit


def chosen(name, impl, dtype):
    limits = DEVICES[name].limits
    for sizes in impl.spec.bench:
        default = impl.default(limits, dtype, sizes)
        if applicable(impl, default, sizes, dtype, limits) is None:
            return Fit(name, Case(impl, sizes, dtype), default)
    return Fit(name, Case(impl, impl.spec.bench[0], dtype), None)


def compiled(impl, config, sizes, dtype, device):
    """The resources of every launch."""
    with capture_launches(device) as launches:
        impl(*inputs.shapes(impl.spec, sizes, dtype), config=config)
    assert launches, f"{impl.title} launched no Triton kernel"
    # Triton 3.6's launcher counts the descriptors of a call, and does not look inside of tuples
    tuples = [t for x in launches for t in x.kernel.src.signature.values() if isinstance(t, tuple)]
    assert "tensordesc" not in repr(tuples), f"{impl.title} passes a descriptor in a tuple"
    return [read_resources(launch, [launch], device, 0.0) for launch in launches]


def units_of(impl, config, device, sizes, dtype):
    """The matrix units of which a call should use one, where it has a product of 16 bits and
    fewer: a warpgroup's instruction takes 64 rows or none. The launch that multiplies most
    counts."""
    works = impl.work_of(config, device.limits, dtype, sizes) or ()
    products = [work for work in works if work.dot is not None]
    if not products or dtype == "fp32":
        return set()
    most = max(products, key=lambda w: w.tiles * w.steps * w.products * math.prod(w.dot))
    return {UNITS[device.name], "mma"} if most.dot[0] < 64 else {UNITS[device.name]}


def test_a_matrix_unit_that_any_launch_uses_is_told():
    impl, device = catalog.impl_of(catalog.spec_of("matmul"), "padded"), DEVICES["h200"]
    sizes = {"M": 1000, "N": 3000, "K": 1500}
    default = impl.default(device.limits, "bf16", sizes)
    with capture_launches(device) as launches:
        impl(*inputs.shapes(impl.spec, sizes, "bf16"), config=default)
    alone = [read_resources(launch, [launch], device, 0.0).matrix_unit for launch in launches]
    assert None in alone and "wgmma" in alone, "one copies, one multiplies"
    measure_interleaved = {
        read_resources(launch, launches, device, 0.0).matrix_unit for launch in launches
    }
    assert measure_interleaved == {"wgmma"}
    shapes = list(launch_shapes([*launches, launches[0]], device))
    assert [s.function for s in shapes] == list(dict.fromkeys(x.kernel.name for x in launches))
    assert [s.grid for s in shapes] == [x.grid for x in launches] and len(shapes) > 1
    assert [s.launches for s in shapes] == [2] + [1] * (len(shapes) - 1)
    assert all(s.threads > 0 and s.registers > 0 and 0 < s.occupancy <= 1 for s in shapes)


SEVERAL = (
    *("wkv6.chunked", "wkv7.chunked", "sample_topk_topp.group_maxima", "sample_top_p.bracketed"),
    *("lora_delta.split_k", "lora.tiles", "lora.split_k", "decode_attention.splits"),
    *("q4_k_matmul.tiles", "q4_k_matmul.ordered", "q4_k_matmul.unpack_first"),
)
STRAIGHT = {"_expand", "_maxima", "_group_maxima", "_counted"}  # without a loop or a branch


@pytest.mark.parametrize("title", at_night(SEVERAL, lambda title: title in SEVERAL[4::3]))
def test_a_work_for_each_launch_has_the_barriers_of_its_code(title):
    """At sizes to time and to check. The barriers of code that has neither loops nor branches are
    those of its PTX, within a third, as Triton's versions differ."""
    kernel, name = title.split(".")
    impl, device = catalog.impl_of(catalog.spec_of(kernel), name), DEVICES["h200"]
    dtype = "fp32" if kernel == "lora_delta" else "bf16"
    straight = STRAIGHT | ({"_chunks"} if kernel == "wkv6" else set())
    for sizes in (impl.spec.bench[0], impl.spec.check[0]):
        config = impl.default(device.limits, dtype, sizes)
        if applicable(impl, config, sizes, dtype, device.limits):
            continue
        works = impl.work_of(config, device.limits, dtype, sizes)
        if sizes != impl.spec.bench[0]:
            tensors = inputs.shapes(impl.spec, sizes, dtype)
            assert len(works) == len(ttgir_of(impl, config, tensors, device))
            continue
        launches, _ = compile_launches(impl, config, sizes, dtype, device)
        assert len(works) == len(launches)
        for work, launch in zip(works, launches, strict=True):
            if launch.function in straight:
                counted = launch.kernel.asm["ptx"].count("bar.sync")
                assert work.barriers == pytest.approx(counted, rel=1 / 3, abs=1), launch.function


SMOKE = one_of_each_kernel()[::6]


def marked():
    """Yield every Impl, nightly but for one of each kernel, of which every sixth is `smoke`."""
    for impl in triton_impls():
        marks = pytest.mark.smoke if impl in SMOKE else ()
        yield pytest.param(impl, marks=marks if impl in one_of_each_kernel() else nightly)


@pytest.mark.parametrize("impl", list(marked()), ids=named)
def test_the_default_suits_a_target(impl):
    suits(by_day(impl))


@pytest.mark.nightly
@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("impl", triton_impls(), ids=named)
def test_the_default_suits_every_target(impl, name):
    for fit in by_night(name, impl):
        suits(fit)


def suits(fit):
    """Compile a default for its target, and hold it to what every default promises."""
    impl, sizes, dtype = fit.case.impl, fit.case.sizes, fit.case.dtype
    device, spec = DEVICES[fit.device], impl.spec
    assert fit.config is not None, f"{fit} refuses its own default at every size to time"
    result = compiled(impl, fit.config, sizes, dtype, device)
    parts = dtype == "fp32" and fit.device == "h200"  # three of each number leave few registers
    most, *_ = SPILLS.get((impl.title, dtype), (SLOTS,)) if parts else (0,)
    at = impl.title, fit.device
    most = max(most, FASTEST_SPILLS.get(at, 0))
    most += OLDEST_SPILLS.get(at, 0) if OLDEST else 0
    for launch in result:
        assert launch.spill_bytes <= most
        assert 0 < launch.registers <= device.limits.registers_per_thread
        assert launch.shared_bytes <= device.limits.shared_bytes
        assert launch.blocks_per_core >= 1
    units = units_of(impl, fit.config, device, sizes, dtype)
    assert not units or units & {launch.matrix_unit for launch in result}
    moved = spec.bytes(sizes, dtype)
    if moved > MUCH and spec.flops(**sizes) < MEMORY_BOUND * moved:
        assert any(r.load_bits >= 128 or r.copy_engine for r in result)


@pytest.mark.parametrize("name", at_night(UNITS, lambda name: name == "h200"))
def test_q4_k_rows_spill_at_no_number_of_rows_that_their_default_accepts(name):
    """Each row of x takes more registers, so the most that it accepts says it: 3 is compiled as
    4."""
    device, impl = DEVICES[name], catalog.impl_of(catalog.spec_of("q4_k_matmul"), "rows")
    dtype = "fp32" if name == "b200" else "fp16"  # which spilled, there and on the H200
    every = [{"M": M, "N": 14336, "K": 4096} for M in (4, 2, 1)]
    default = impl.default(device.limits, dtype, every[0])
    assert not any(applicable(impl, default, at, dtype, device.limits) for at in every)
    for launch in compiled(impl, default, every[0], dtype, device):
        assert launch.spill_bytes == 0


def test_q4_k_rows_round_the_same_products_for_each_row_of_x():
    """A value that one row's sum rounds as a product and another's takes into an fma would give a
    row other bits at another place: none is in both."""
    impl = catalog.impl_of(catalog.spec_of("q4_k_matmul"), "rows")
    kinds = {"mul": set(), "fma": set()}
    sizes = {"M": 2, "N": 40, "K": 768}
    (launch,), _ = compile_launches(impl, impl.config(), sizes, "fp32", DEVICES["h200"])
    ptx = launch.kernel.asm["ptx"]
    for kind, factors in re.findall(r"(mul|fma)[.\w]*f32\s+%\w+, (%\w+, %\w+)", ptx):
        kinds[kind].update(factors.split(", "))
    assert min(map(len, kinds.values())) >= 16 and not kinds["mul"] & kinds["fma"]


def test_what_does_not_fit_is_refused_in_a_sentence():
    impl = catalog.impl_of(catalog.spec_of("matmul"), "tiles")
    config = impl.config(block_m=256, block_n=256, block_k=128, num_warps=16, num_stages=4)
    sizes = impl.spec.bench[0]
    assert first_applicable(impl, sizes, "bf16", DEVICES["a100"].limits) != config
    with pytest.raises(CompileError, match="shared memory"):
        compile_config(impl, config, sizes, "bf16", DEVICES["a100"])


RAGGED = at_night(one_of_each_kernel(), lambda impl: impl in one_of_each_kernel()[::4])


@pytest.mark.newest
@pytest.mark.parametrize("impl", RAGGED, ids=named)
def test_ragged_extents_and_shapes_alone_compile_too(impl):
    name = turn(impl, ["h200", "mi300x"])
    device, sizes = DEVICES[name], middling(impl.spec)
    for dtype in dtypes_of(impl, device.limits)[-1:]:
        config = first_applicable(impl, sizes, dtype, device.limits)
        if config is not None:  # descriptors refuse ragged rows
            assert all(r.registers > 0 for r in compiled(impl, config, sizes, dtype, device))


LEAST = at_night(triton_impls(), lambda impl: impl in one_of_each_kernel())


@pytest.mark.newest
@pytest.mark.parametrize("impl", LEAST, ids=named)
def test_the_least_sizes_compile(impl):
    """Triton makes a constant of an argument that is 1, and a constant has no `.to`."""
    device, sizes = DEVICES["h200"], impl.spec.check[0]
    for dtype in dtypes_of(impl, device.limits)[-1:]:
        config = first_applicable(impl, sizes, dtype, device.limits)
        if config is not None:  # which the front end meets
            assert ttgir_of(impl, config, inputs.shapes(impl.spec, sizes, dtype), device)
