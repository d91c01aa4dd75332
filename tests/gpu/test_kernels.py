"""Every kernel on the GPU that is here: the body of the interpreted tests, then what only a GPU
shows: real sizes, the matrix unit's dtypes, equal bits run after run, offsets beyond 2^31.

Most of the time goes into compiling: `pytest -n 8 tests/gpu` shares it out, and what must have the
GPU or much of its memory to itself waits for that. KERNELS=softmax,copy tests these alone.
"""

from math import prod

import pytest
import torch
from kernel_cases import (
    LAYOUTS,
    VALUES,
    bits,
    cases,
    dtypes_of,
    elements,
    far,
    far_axes,
    filled,
    first_applicable,
    leads,
    middling,
    named,
    parting_axis,
    prepared,
    refusal_of,
    right_in_any_layout,
    right_or_refused,
    spread,
    square,
    triton_impls,
    verify,
    verify_repeated,
    well_posed,
)
from kernel_properties import Subject, promises

from workbench import dsl
from workbench.device import hardware
from workbench.measurement import inputs
from workbench.measurement.correctness import Poisoned, PreparedProblem
from workbench.measurement.reference import output_tuple
from workbench.spec import ITEMSIZE, Impl, values

DEVICE = hardware.live()
if DEVICE is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)
LIMITS = DEVICE.limits
IMPLS = {impl.title: impl for impl in triton_impls() if dtypes_of(impl, LIMITS)}
BEYOND = (1 << 31) + 17  # elements
MOST = 40 << 30  # bytes of all tensors of an enlarged problem
# Under stress: launches of an Impl and elements of its tensors. A launch with fresh memory takes
# a millisecond or so, and all Impls together a minute.
LAUNCHES, MOST_STRESSED = 100, 1 << 27
each_impl = pytest.mark.parametrize("impl", IMPLS.values(), ids=IMPLS)


@pytest.fixture(autouse=True)
def free_memory():
    yield
    torch.cuda.empty_cache()


def narrow(impl: Impl) -> str:
    """bf16 where the Impl takes it, or the dtype of the fewest bytes."""
    dtypes = dtypes_of(impl, LIMITS)
    return "bf16" if "bf16" in dtypes else min(dtypes, key=ITEMSIZE.__getitem__)


def test_the_interpreter_is_off():
    assert not dsl.INTERPRETED


# The one body


@pytest.mark.parametrize("case", cases(LIMITS, lambda spec: spec.check), ids=str)
def test_right_at_check_sizes(case):
    problem = PreparedProblem.make(case.impl.spec, case.sizes, case.dtype, "cuda")
    config = first_applicable(case.impl, case.sizes, case.dtype, LIMITS)
    verify(case.impl, [config], problem)


@each_impl
def test_right_with_every_choice_of_every_knob(impl):
    spec, dtypes = impl.spec, dtypes_of(impl, LIMITS)
    sizes = [middling(spec), *spec.check, *spec.bench[:1]]
    every = spread(impl, [(s, d) for s in sizes for d in dtypes], LIMITS)
    for i, (config, at, dtype) in enumerate(every):
        verify(impl, [config], PreparedProblem.make(spec, at, dtype, "cuda", seed=i))


@each_impl
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_are_right_or_refused(impl, layout):
    dtype = narrow(impl)
    config, sizes = square(impl, 136, dtype, LIMITS)
    created = filled(impl.spec, sizes, dtype, "ordinary", "cuda", seed=3)
    right_in_any_layout(impl, config, created, layout, dtype)


@each_impl
@pytest.mark.parametrize("kind", VALUES)
def test_right_for_any_values(impl, kind):
    spec = impl.spec
    for dtype in dtypes_of(impl, LIMITS):
        for sizes in (spec.check[-1], middling(spec)):
            config = first_applicable(impl, sizes, dtype, LIMITS)
            if config is None:
                continue
            created = filled(spec, sizes, dtype, kind, "cuda", seed=4)
            problem = PreparedProblem.wrap(spec, dtype, tuple(created))
            if well_posed(problem):
                verify(impl, [config], problem)
            break


@pytest.mark.parametrize(("promise", "impl"), promises(), ids=named)
def test_promise(promise, impl):
    for dtype in promise.dtypes_of(dtypes_of(impl, LIMITS)):
        for seed, sizes in enumerate(impl.spec.check):
            config = first_applicable(impl, sizes, dtype, LIMITS)
            if config is not None:  # as above, descriptors refuse ragged rows
                promise(Subject(impl, config, dict(sizes), dtype, "cuda", seed))


# Real sizes


def real(case):
    """In the dtype of most use at every real size, in the others at the first."""
    return case.dtype == narrow(case.impl) or case.sizes == case.impl.spec.bench[0]


@pytest.mark.parametrize("case", filter(real, cases(LIMITS, lambda spec: spec.bench)), ids=str)
def test_right_at_real_sizes_and_the_same_bits_each_time(case, needs_memory):
    needs_memory(16 * elements(case.impl.spec, case.sizes))  # float64 beside the tensors
    problem = PreparedProblem.make(case.impl.spec, case.sizes, case.dtype, "cuda")
    config = first_applicable(case.impl, case.sizes, case.dtype, LIMITS)
    verify(case.impl, [config], problem)
    if case.impl.mutates:
        runs = [ran(case.impl, config, [x.clone() for x in problem.inputs]) for _ in range(2)]
    else:
        runs = [ran(case.impl, config, problem.inputs) for _ in range(2)]
    for first, second in zip(*runs, strict=True):
        assert torch.equal(bits(first), bits(second))


def ran(impl, config, compiled):
    return output_tuple(impl(*compiled, config=config))


# Races


@each_impl
def test_the_same_bits_however_often_it_runs(impl, needs_memory):
    """Where a barrier is missing, a sum is not atomic or a launch does not wait for the one before
    it, now and then a program reads what is not there yet: NaN, for outputs and parts lie in memory
    full of it, or numbers that differ."""
    spec, dtype = impl.spec, narrow(impl)
    small = [at for at in spec.bench if elements(spec, at) <= MOST_STRESSED]
    every = [(first_applicable(impl, at, dtype, LIMITS), at) for at in (*small, *spec.check)]
    taken = [(config, at) for config, at in every if config is not None]
    assert taken, f"{impl.title} takes none of its sizes"
    needs_memory(16 * max(elements(spec, at) for _, at in taken))
    for config, sizes in taken:
        created, first = inputs.make(spec, sizes, dtype, "cuda", 6), None
        for _ in range(LAUNCHES):
            result = stressed(impl, config, created)
            first = first or result
            assert all(map(torch.equal, first, result)), f"{impl.title} {values(config)} at {sizes}"


def stressed(impl, config, compiled):
    """The bits of one launch on fresh outputs, which are full of NaN before it."""
    named = zip(impl.spec.inputs, compiled, strict=True)
    given = [x.clone() if name in impl.mutates else x for name, x in named]
    with Poisoned():
        return [bits(y) for y in ran(impl, config, given)]


# Addresses


@each_impl
def test_tensors_of_more_than_2_31_elements(impl, needs_memory):
    """A small problem, repeated along an axis whose indices have nothing to do with each other.
    Its extent is odd, so that no power of two leads from one repetition to the same place of
    another. Right, or refused in a sentence."""
    spec, dtype = impl.spec, narrow(impl)
    config, result = None, None
    for sizes in reversed(spec.check):
        config = first_applicable(impl, sizes, dtype, LIMITS)
        if config is None:
            continue
        result = parting_axis(spec, lambda at: PreparedProblem.make(spec, at, dtype, "cuda"), sizes)
        if result:
            break
    if not result:
        pytest.skip("no axis of its outputs can be lengthened alone")
    axis, of = result
    extent = of * (1021 // of | 1)
    leading = [t for t in (*spec.inputs.values(), *spec.outputs.values()) if leads(t.axes, axis)]
    one = {**sizes, axis: 1}
    rows = sorted(prod(t.shape(one)) for t in leading)
    row_bytes = sum(prod(t.shape(one)) * ITEMSIZE[t.dtype or dtype] for t in leading)
    # so that as many as can be of the tensors are so large: not a few numbers a row
    least = next((row for row in rows if BEYOND // row * row_bytes <= MOST), rows[-1])
    times = -(-BEYOND // (extent * least))
    # beside the tensors and what they are compared with, a split product's parts: four of fp32
    needs_memory(times * extent * (2 * row_bytes + 16 * rows[-1]))
    small = PreparedProblem.make(spec, {**sizes, axis: extent}, dtype, "cuda")
    long = {**sizes, axis: extent * times}
    config = first_applicable(impl, long, dtype, LIMITS) or config
    at_once = max(1, (1 << 26) // (extent * rows[-1]))
    refusal_of(impl, lambda: verify_repeated(impl, config, small, axis, times, at_once))


@each_impl
def test_strides_beyond_2_31_elements(impl, needs_memory):
    needs_memory(20 << 30)  # a view over 2^31 elements of two bytes takes 4.3 GB, of eight 17
    dtype = narrow(impl)
    config, sizes = square(impl, 136, dtype, LIMITS)
    created = filled(impl.spec, sizes, dtype, "ordinary", "cuda", seed=5)
    for which, axis in far_axes(impl, created):
        placed = [far(x, axis) if i == which else x for i, x in enumerate(created)]
        right_or_refused(impl, config, prepared(impl.spec, dtype, placed))
        del placed
        torch.cuda.empty_cache()
