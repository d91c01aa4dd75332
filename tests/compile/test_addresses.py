"""No kernel computes an address in 32 bits that needs more: read in the compiler's IR, at sizes
whose outputs have more than 2^31 elements."""

from contextlib import suppress
from math import prod
from typing import Any

import pytest
from addresses import Reader, scalars_of
from kernel_cases import BRIEF, dtypes_of, first_applicable, triton_impls, turn

from workbench.compile.dedup import Dedup, Stop
from workbench.compile.launches import captured
from workbench.device.hardware import DEVICES
from workbench.gluon import UNCHECKED
from workbench.measurement import inputs
from workbench.spec import Extent

DEVICE = DEVICES["h200"]
BEYOND = (1 << 31) + (1 << 20)  # elements
ROWS = 1 << 24  # at most: a grid has fewer than 2^31 programs, and some rows have a hundred
LAUNCHES = 8  # of one call: softmax in batches makes thousands, all alike


class Enough(Exception):
    """Ends a launcher whose launches go on and on."""


class Watch(Dedup):
    """Ends each compilation at its TTIR, which is kept with the launch's arguments and grid."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, tuple[int, ...]]] = []
        self._begun: tuple[str, tuple[int, ...]] = ("", ())

    def begin(self, arguments: str, grid: tuple[int, ...]) -> None:
        if len(self.seen) >= LAUNCHES:
            raise Enough
        self._begun = arguments, grid

    def stop(self, module: Any, *_: Any, **__: Any) -> None:
        self.seen.append((str(module), *self._begun))
        raise Stop

    def end(self, kernel: Any) -> None:
        """It was compiled before and comes from a cache."""
        self.seen.append((kernel.asm["ttir"], *self._begun))


def watched(monkeypatch, impl, config, sizes, dtype):
    """The TTIR of each launch, its arguments and its grid."""
    from triton.backends.nvidia.compiler import CUDABackend

    dedup = Watch()
    monkeypatch.setattr(CUDABackend, "make_ttgir", staticmethod(dedup.stop))
    with captured(DEVICE, dedup), suppress(Enough):
        impl(*inputs.shapes(impl.spec, sizes, dtype), config=config)
    return dedup.seen


def enlarged(impl, dtype):
    """For the axis that leads each tensor a config and sizes to time, that axis so long that the
    tensor has over 2^31 elements; and the same with every free axis one longer, where no row suits
    a descriptor. Nothing for an Impl that refuses such sizes."""
    spec = impl.spec
    for axis, row in sorted(leading(spec).items()):
        for more in (0, 1):
            for real in spec.bench:
                sizes = {a: n + more * (a not in spec.extents) for a, n in real.items()}
                most = ROWS if len(spec.axes) > 1 else BEYOND
                extent = min(most, -(-BEYOND // row(sizes))) + more
                large = spec.near({**sizes, axis: max(extent, sizes[axis])})
                config = first_applicable(impl, large, dtype, DEVICE.limits)
                if config is not None:
                    yield config, large
                    break


def leading(spec):
    """Axes of any length that lead an output, or an input where they lead no output, with the
    elements of a row there at these sizes."""
    results = {}
    for tensor in (*spec.outputs.values(), *spec.inputs.values()):
        first = tensor.axes.split()[0]
        if first in spec.axes and not spec.extents.get(first, Extent()).among:
            unit = spec.extents.get(first, Extent()).multiple

            def row(sizes, tensor=tensor, first=first, unit=unit):
                return max(1, prod(tensor.shape({**sizes, first: unit})) // unit)

            results.setdefault(first, row)
    return results


# Kernels in Gluon name blocks by coordinates, and the copy engine computes their addresses.
IMPLS = [i for i in triton_impls() if dtypes_of(i, DEVICE.limits) and i.unchecked != UNCHECKED]
if BRIEF:
    IMPLS = [i for i in IMPLS if i is turn(i.spec, [j for j in IMPLS if j.spec is i.spec])]


@pytest.mark.parametrize("impl", IMPLS, ids=lambda impl: impl.title)
def test_addresses_have_the_bits_that_they_need(impl, monkeypatch):
    dtype = dtypes_of(impl, DEVICE.limits)[-1]
    for config, sizes in enlarged(impl, dtype):
        seen = watched(monkeypatch, impl, config, sizes, dtype)
        assert seen, f"{impl.title} launched nothing"
        for text, arguments, grid in seen:
            if max(grid) >= 1 << 31:  # no launch has so many programs
                continue
            faults = Reader(scalars_of(arguments), grid).read(text)
            assert not faults, f"{impl.title} at {sizes}: {faults[0]}"


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
