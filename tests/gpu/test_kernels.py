"""Every kernel on the GPU that is here: the body of the interpreted tests, then what only a GPU
shows: real sizes, the matrix unit's dtypes, equal bits run after run, offsets beyond 2^31."""

import pytest
import torch
from kernel_cases import (
    DTYPES,
    LAYOUTS,
    VALUES,
    applicable,
    bits,
    cases,
    far,
    filled,
    first_applicable,
    right_or_refused,
    spread,
    triton_impls,
    verify,
    verify_in_parts,
)
from kernel_properties import Subject, promises

from workbench import dsl, hardware, inputs
from workbench.check import Posed

DEVICE = hardware.live()
if DEVICE is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)
LIMITS = DEVICE.limits
IMPLS = {impl.title: impl for impl in triton_impls()}
BEYOND = (1 << 31) + 17  # elements


@pytest.fixture(autouse=True)
def free_memory():
    yield
    torch.cuda.empty_cache()


def needs_memory(gigabytes):
    free = torch.cuda.mem_get_info()[0] / 1e9
    if free < gigabytes:
        pytest.skip(f"takes up to {gigabytes} GB of GPU memory, and {free:.0f} are free")


def named(part):
    return getattr(part, "title", None) or getattr(part, "__name__", None) or str(part)


def test_the_interpreter_is_off():
    assert not dsl.INTERPRETED


# The one body


@pytest.mark.parametrize("case", cases(LIMITS, lambda spec: spec.check), ids=str)
def test_right_at_check_sizes(case):
    problem = Posed.of(case.impl.spec, case.sizes, case.dtype, "cuda")
    config = first_applicable(case.impl, case.sizes, case.dtype, LIMITS)
    verify(case.impl, [config], problem)


@pytest.mark.parametrize("impl", IMPLS.values(), ids=IMPLS)
def test_right_with_every_choice_of_every_knob(impl):
    sizes = impl.spec.check[2]
    if first_applicable(impl, sizes, "fp32", LIMITS) is None:
        sizes = impl.spec.check[-1]
    for i, config in enumerate(spread(impl, sizes, "fp32", LIMITS)):
        dtype = DTYPES[i % len(DTYPES)]
        assert applicable(impl, config, sizes, dtype, LIMITS) is None
        verify(impl, [config], Posed.of(impl.spec, sizes, dtype, "cuda", seed=i))


@pytest.mark.parametrize("impl", IMPLS.values(), ids=IMPLS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_are_right_or_refused(impl, layout):
    spec, sizes = impl.spec, dict.fromkeys(impl.spec.axes, 136)
    config = first_applicable(impl, sizes, "bf16", LIMITS)
    made = filled(spec, sizes, "bf16", "ordinary", "cuda", seed=3)
    placed = tuple(LAYOUTS[layout](x) for x in made)
    refusal = right_or_refused(impl, config, Posed.given(spec, "bf16", placed))
    takes = impl.title != "matmul.persistent" or layout in ("dense", "padded")
    assert (refusal is None) == takes


@pytest.mark.parametrize("impl", IMPLS.values(), ids=IMPLS)
@pytest.mark.parametrize("kind", VALUES)
def test_right_for_any_values(impl, kind):
    spec, sizes = impl.spec, impl.spec.check[-1]
    for dtype in DTYPES:
        config = first_applicable(impl, sizes, dtype, LIMITS)
        made = filled(spec, sizes, dtype, kind, "cuda", seed=4)
        verify(impl, [config], Posed.given(spec, dtype, tuple(made)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("promise", "impl"), promises(), ids=named)
def test_promise(promise, impl, dtype):
    for seed, sizes in enumerate(impl.spec.check):
        config = first_applicable(impl, sizes, dtype, LIMITS)
        if config is not None:  # as above, descriptors refuse ragged rows
            promise(Subject(impl, config, sizes, dtype, "cuda", seed))


# Real sizes


@pytest.mark.parametrize("case", cases(LIMITS, lambda spec: spec.bench), ids=str)
def test_right_at_real_sizes_and_the_same_bits_each_time(case):
    problem = Posed.of(case.impl.spec, case.sizes, case.dtype, "cuda")
    config = first_applicable(case.impl, case.sizes, case.dtype, LIMITS)
    verify(case.impl, [config], problem)
    first, second = (case.impl(*problem.inputs, config=config) for _ in range(2))
    assert torch.equal(bits(first), bits(second))


# Addresses


def beyond(spec):
    """The last check size with its first axis so long that each tensor that has this axis holds
    more than 2^31 elements."""
    axis, sizes = spec.axes[0], dict(spec.check[-1])
    rest = []
    for tensor in (*spec.inputs.values(), *spec.outputs.values()):
        if axis in tensor.axes.split():
            one = torch.Size(tensor.shape({**sizes, axis: 1})).numel()
            rest.append(one)
    return {**sizes, axis: -(-BEYOND // min(rest))}


@pytest.mark.parametrize("impl", IMPLS.values(), ids=IMPLS)
def test_tensors_of_more_than_2_31_elements(impl):
    needs_memory(60)  # matmul's output is 8.3 GB and stands there twice; the rest is in float64
    sizes = beyond(impl.spec)
    config = first_applicable(impl, sizes, "fp16", LIMITS)
    made = [
        torch.randn(t.shape(sizes), dtype=inputs.torch_dtype(t.dtype or "fp16"), device="cuda")
        for t in impl.spec.inputs.values()
    ]
    verify_in_parts(impl, config, impl.spec, made, "fp16")


@pytest.mark.parametrize(
    ("impl", "which", "axis"),
    [
        (impl, which, axis)
        for impl in IMPLS.values()
        for which, tensor in enumerate(impl.spec.inputs.values())
        for axis in range(len(tensor.axes.split()))
        if impl.title != "matmul.persistent" or axis == 0
    ],
    ids=named,
)
def test_strides_beyond_2_31_elements(impl, which, axis):
    needs_memory(10)  # a view over 2^31 elements of fp16 takes 4.3 GB
    sizes = dict.fromkeys(impl.spec.axes, 136)
    config = first_applicable(impl, sizes, "fp16", LIMITS)
    made = filled(impl.spec, sizes, "fp16", "ordinary", "cuda", seed=5)
    made[which] = far(made[which], axis)
    verify(impl, [config], Posed.given(impl.spec, "fp16", tuple(made)))
