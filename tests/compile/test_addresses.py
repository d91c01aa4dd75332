"""No kernel computes an address in 32 bits that needs more: read in the compiler's IR, for tensors
of more than 2^31 elements and for views whose elements lie so far apart."""

from collections.abc import Callable
from contextlib import suppress
from itertools import product
from math import prod
from typing import Any, ClassVar

import pytest
import torch
from addresses import UNBOUNDED, Reader, scalars_of
from kernel_cases import (
    dtypes_of,
    far_strides,
    first_applicable,
    middling,
    named,
    spread,
    triton_impls,
)
from nightly import at_night

from workbench.compile.dedup import Dedup, Stop
from workbench.compile.launches import capture_launches
from workbench.device.hardware import DEVICES
from workbench.dsl.gluon import UNCHECKED
from workbench.measurement import inputs
from workbench.spec import Extent

DEVICE = DEVICES["h200"]
BEYOND = (1 << 31) + (1 << 20)  # elements
MOST = 1 << 39  # bytes of all tensors: no GPU has more memory
LAUNCHES = 8  # of one call: softmax in batches makes thousands, all alike


class Enough(Exception):
    """Ends a launcher whose launches go on and on."""


class Watch(Dedup):
    """Ends each compilation at its TTIR, which is kept with the launch's arguments and grid.

    Launches that differ in their numbers alone have one TTIR: it is made once, and found by
    Triton's own key of its source in `texts`. More than a third of all launches find it there."""

    texts: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, tuple[int, ...]]] = []
        self._begun: tuple[str, tuple[int, ...]] = ("", ())
        self._source = ""

    def begin(self, arguments: str, grid: tuple[int, ...]) -> None:
        if len(self.seen) >= LAUNCHES:
            raise Enough
        self._begun = arguments, grid

    def parsed(self, make_ir: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that makes a source's first module, or ends its compilation."""

        def parsed(source: Any, target: Any, options: Any, *more: Any) -> Any:
            self._source = f"{source.hash()} {target} {options}"
            if (text := self.texts.get(self._source)) is not None:
                self.seen.append((text, *self._begun))
                raise Stop
            return make_ir(source, target, options, *more)

        return parsed

    def stop(self, module: Any, *_: Any, **__: Any) -> None:
        self.texts[self._source] = str(module)
        self.seen.append((self.texts[self._source], *self._begun))
        raise Stop

    def end(self, kernel: Any) -> None:
        """It was compiled before and comes from a cache."""
        self.seen.append((kernel.asm["ttir"], *self._begun))


def watched(monkeypatch, impl, config, tensors):
    """The TTIR of each launch on these tensors, its arguments and its grid."""
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.compiler.compiler import ASTSource

    dedup = Watch()
    with monkeypatch.context() as patch:
        patch.setattr(CUDABackend, "make_ttgir", staticmethod(dedup.stop))
        patch.setattr(ASTSource, "make_ir", dedup.parsed(ASTSource.make_ir))
        with capture_launches(DEVICE, dedup), suppress(Enough):
            impl(*tensors, config=config)
    return dedup.seen


def fault(monkeypatch, impl, config, tensors):
    """The first fault of the launches on these tensors; an empty text where there is none."""
    seen = watched(monkeypatch, impl, config, tensors)
    assert seen, f"{impl.title} launched nothing"
    for text, arguments, grid in seen:
        assert max(grid) < 1 << 31 and max((0, *grid[1:])) < 1 << 16, f"no GPU launches {grid}"
        for found in Reader(scalars_of(arguments), grid).read(text):
            if not (impl.title in OPAQUE and found.startswith(UNBOUNDED)):
                return found
    return ""


# Sizes


def of_any_length(spec):
    return [axis for axis in spec.axes if not spec.extents.get(axis, Extent()).choices]


def unit(spec, axis):
    return spec.extents.get(axis, Extent()).multiple


def tensors(spec):
    return (*spec.inputs.values(), *spec.outputs.values())


def row(spec, sizes, axis):
    """Elements of the largest tensor for each index of an axis."""
    one = {**sizes, axis: unit(spec, axis)}
    two = {**sizes, axis: 2 * unit(spec, axis)}
    each = [prod(t.shape(two)) - prod(t.shape(one)) for t in tensors(spec)]
    return max(1, max(each) // unit(spec, axis))


def enlarged(spec, timed):
    """For each axis of any length: each of these sizes to time with that axis so long that a
    tensor has over 2^31 elements, as they are and with every free axis one longer, where no row
    suits a descriptor; and the longest axis that is accepted, with one index of every other."""
    for axis in of_any_length(spec):
        for real, more in product(timed, (0, 1)):
            sizes = {a: n + more * (a not in spec.extents) for a, n in real.items()}
            extent = -(-BEYOND // row(spec, sizes, axis)) + more
            yield spec.nearest_sizes({**sizes, axis: max(extent, sizes[axis])})
        longest = min(spec.longest, BEYOND)
        least = {a: 1 if a in of_any_length(spec) else n for a, n in spec.bench[0].items()}
        yield spec.nearest_sizes({**least, axis: longest - longest % unit(spec, axis)})


def fits_a_gpu(spec, sizes, dtype):
    return spec.bytes(sizes, dtype) < MOST


def stretched(tensors):
    """The tensors, one of them with over 2^31 elements between its first and last index of an axis:
    each of them along each axis."""
    for which, x in enumerate(tensors):
        for axis in (axis for axis in range(x.dim()) if x.shape[axis] > 1):
            strides = far_strides(x.shape, axis)
            view = torch.empty_strided(x.shape, strides, dtype=x.dtype, device="meta")
            yield [*tensors[:which], view, *tensors[which + 1 :]]


# Kernels in Gluon make no TTIR. All but softmax.clusters name blocks by coordinates, and the copy
# engine computes their addresses.
IMPLS = [
    i for i in triton_impls() if dtypes_of(i, DEVICE.limits) and i.unchecked_reason != UNCHECKED
]

# What nothing in the text bounds, by Impl: numbers out of memory, or that a loop carries.
OPAQUE = {
    "grouped_matmul.tiles": "rows where groups end, T at most, and tiles of T rows",
    "grouped_matmul.persistent": "rows where groups end, T at most, and tiles of T rows",
    "decode_attention.splits": "keys of a sequence, T at most",
    "matmul.stream_k": "columns of a tile, among the tiles of the output",
    "sample_top_p.bracketed": "numbers of a row that were counted, V at most",
    "sample_topk_topp.group_maxima": "numbers and groups of a row, V at most",
}
FIRSTS = list({impl.spec.name: impl for impl in reversed(IMPLS)}.values())
LASTS = list({impl.spec.name: impl for impl in IMPLS}.values())
each_impl = pytest.mark.parametrize("impl", IMPLS, ids=named)


@pytest.mark.parametrize("impl", at_night(IMPLS, lambda impl: impl in FIRSTS), ids=named)
def test_addresses_in_large_tensors_have_the_bits_that_they_need(impl, monkeypatch):
    """From the first sizes to time on."""
    large_tensors_have_the_bits(impl.spec.bench[:1], impl, monkeypatch)


@pytest.mark.nightly
@pytest.mark.newest
@each_impl
def test_addresses_in_larger_tensors_have_the_bits_that_they_need(impl, monkeypatch):
    """From the last sizes to time on."""
    large_tensors_have_the_bits(impl.spec.bench[1:][-1:], impl, monkeypatch)


def large_tensors_have_the_bits(timed, impl, monkeypatch):
    """Verify the launches at these sizes to time, enlarged."""
    dtype = dtypes_of(impl, DEVICE.limits)[-1]
    for sizes in enlarged(impl.spec, timed):
        config = first_applicable(impl, sizes, dtype, DEVICE.limits)
        if config is not None and fits_a_gpu(impl.spec, sizes, dtype):
            tensors = inputs.shapes(impl.spec, sizes, dtype)
            result = fault(monkeypatch, impl, config, tensors)
            assert not result, f"{impl.title} at {sizes}: {result}"


@pytest.mark.parametrize("impl", at_night(IMPLS, lambda impl: impl in LASTS[::2]), ids=named)
def test_addresses_in_views_have_the_bits_that_they_need(impl, monkeypatch):
    """All views with one config, or refused in a sentence."""
    views_have_the_bits(slice(0, 1), impl, monkeypatch)


@pytest.mark.nightly
@pytest.mark.newest
@each_impl
def test_addresses_in_views_have_the_bits_with_every_choice_of_a_knob(impl, monkeypatch):
    """One view for each."""
    views_have_the_bits(slice(1, None), impl, monkeypatch)


def views_have_the_bits(places, impl, monkeypatch):
    """Verify the configs of these places among those that have every choice."""
    spec, limits = impl.spec, DEVICE.limits
    at = [(sizes, dtypes_of(impl, limits)[-1]) for sizes in (middling(spec), spec.check[-1])]
    for i, (config, sizes, dtype) in list(enumerate(spread(impl, at, limits)))[places]:
        views = list(stretched(inputs.shapes(spec, sizes, dtype)))
        for tensors in [views[i % len(views)]] if i and views else views:
            with suppress(ValueError):
                result = fault(monkeypatch, impl, config, tensors)
                strides = [x.stride() for x in tensors]
                assert not result, f"{impl.title} at {sizes} with strides {strides}: {result}"


@each_impl
def test_a_longer_axis_is_refused(impl):
    """One index more: rounded up to tiles, it might not fit 32 bits."""
    spec, dtype = impl.spec, dtypes_of(impl, DEVICE.limits)[-1]
    config = impl.default(DEVICE.limits, dtype, spec.bench[0])
    for axis in of_any_length(spec):
        extent = spec.longest - spec.longest % unit(spec, axis) + unit(spec, axis)
        sizes = spec.nearest_sizes({**spec.bench[0], axis: extent})
        assert f"not {extent}" in impl.rejection_reason(config, DEVICE.limits, dtype, sizes)
        with pytest.raises(ValueError, match=f"at most {spec.longest} indices, not {extent}"):
            impl(*inputs.shapes(spec, sizes, dtype), config=config)


def test_a_product_that_does_not_fit_is_found():
    text = """
    tt.func public @f(%x_ptr: !tt.ptr<f32>, %N: i32) attributes {noinline = false} {
      %0 = tt.get_program_id x : i32
      %1 = arith.muli %0, %N : i32
      %2 = arith.extsi %1 : i32 to i64
      %3 = tt.addptr %x_ptr, %2 : !tt.ptr<f32>, i64
      tt.store %3, %cst : !tt.ptr<f32>
    """
    scalars = scalars_of("[('x_ptr', ('torch.float32',)), ('N', '4096')]")
    assert not Reader(scalars, (1 << 19,)).read(text)
    (fault,) = Reader(scalars, (1 << 20,)).read(text)
    assert "%1 = arith.muli %0, %N" in fault and "tt.store %3" in fault


def test_a_sum_that_a_loop_carries_is_found():
    text = """
    tt.func public @f(%x_ptr: !tt.ptr<f32>, %N: i32) attributes {noinline = false} {
      %0 = scf.for %i = %c0_i32 to %N step %c1_i32 iter_args(%at = %c0_i32) -> (i32)  : i32 {
        %1 = tt.addptr %x_ptr, %at : !tt.ptr<f32>, i32
        tt.store %1, %cst : !tt.ptr<f32>
        %2 = arith.addi %at, %N : i32
        %3 = tt.addptr %x_ptr, %2 : !tt.ptr<f32>, i32
        tt.store %3, %cst : !tt.ptr<f32>
        scf.yield %2 : i32
      }
    """
    (fault,) = Reader({"N": 4}, (1,)).read(text)
    assert fault.startswith(f"{UNBOUNDED} %2 = arith.addi %at, %N")
