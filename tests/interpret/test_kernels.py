"""Every kernel, interpreted on the CPU, against the float64 reference of its inputs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    DTYPES,
    H200,
    LAYOUTS,
    VALUES,
    applicable,
    cases,
    far,
    filled,
    first_applicable,
    right_or_refused,
    spread,
    triton_impls,
    verify,
)
from kernel_properties import PROPERTIES, Subject, promises

from workbench import catalog, dsl
from workbench.check import Posed
from workbench.spec import stages, threads

IMPLS = {impl.title: impl for impl in triton_impls()}
CASES = cases(H200, lambda spec: spec.check)
POINTERS = [title for title in IMPLS if title != "matmul.persistent"]
PRIMES = [2, 3, 5, 7, 13, 31, 61, 127, 131, 257, 509, 1021]


def sizes_of(spec):
    """Extents of 1, primes, multiples of 8 and any others, so small that the interpreter, which
    takes about a millisecond a program, is done with them in half a second."""
    most = {1: 40_000, 2: 1021}.get(len(spec.axes), 140)

    def fits(sizes):
        tensors = [*spec.inputs.values(), *spec.outputs.values()]
        return all(math.prod(t.shape(sizes)) <= 40_000 for t in tensors)

    def extent(axis):
        high = 40 if len(spec.axes) == 2 and axis == spec.axes[0] else most  # rows: programs
        some = st.integers(1, min(high, 300))
        eights = some.map(lambda n: max(8, n - n % 8))
        primes = [p for p in PRIMES if p <= high]
        return st.one_of(st.just(1), st.sampled_from(primes), some, eights)

    return st.fixed_dictionaries({axis: extent(axis) for axis in spec.axes}).filter(fits)


def descriptors_fit(impl, config, sizes, dtype):
    """These sizes, or rounded up to multiples of 8 where the Impl refuses them."""
    if applicable(impl, config, sizes, dtype, H200):
        return {axis: extent + -extent % 8 for axis, extent in sizes.items()}
    return sizes


def configs_of(impl):
    """Some configs with every choice of every knob among them, at sizes that refuse none, in the
    dtype that needs the most shared memory."""
    sizes = dict.fromkeys(impl.spec.axes, 136)
    return spread(impl, sizes, "fp32", H200, interpreted=True)


CONFIGS = {title: configs_of(impl) for title, impl in IMPLS.items()}

# The cases themselves


def test_the_interpreter_is_on():
    assert dsl.INTERPRETED


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_impl_is_checked_in_every_dtype(dtype):
    assert {case.impl.title for case in CASES if case.dtype == dtype} == set(IMPLS)


@pytest.mark.parametrize("impl", IMPLS.values(), ids=IMPLS)
def test_the_spread_has_every_choice_of_every_knob_the_interpreter_knows(impl):
    knobs, configs = impl.knobs(), CONFIGS[impl.title]
    for name, choices in impl.choices().items():
        if knobs[name] not in (threads.__name__, stages.__name__):
            assert {getattr(c, name) for c in configs} == set(choices), name


def test_properties_belong_to_kernels_that_exist():
    assert set(PROPERTIES) <= set(catalog.kernel_names())


# The one body


@pytest.mark.parametrize("case", CASES, ids=str)
def test_right_at_check_sizes(case):
    problem = Posed.of(case.impl.spec, case.sizes, case.dtype, "cpu")
    configs = spread(case.impl, case.sizes, case.dtype, H200, interpreted=True)
    verify(case.impl, configs, problem)


@pytest.mark.parametrize("impl", IMPLS.values(), ids=IMPLS)
@settings(max_examples=40)
@given(data=st.data())
def test_right_at_any_sizes_strides_and_values(impl, data):
    spec = impl.spec
    sizes = data.draw(sizes_of(spec), label="sizes")
    dtype = data.draw(st.sampled_from(DTYPES), label="dtype")
    kind = data.draw(st.sampled_from(list(VALUES)), label="values")
    config = data.draw(st.sampled_from(CONFIGS[impl.title]), label="config")
    layouts = data.draw(st.tuples(*[st.sampled_from(list(LAYOUTS))] * len(spec.inputs)))
    made = filled(spec, sizes, dtype, kind, "cpu", data.draw(st.integers(0, 999), label="seed"))
    placed = tuple(LAYOUTS[how](x) for how, x in zip(layouts, made, strict=True))
    refusal = right_or_refused(impl, config, Posed.given(spec, dtype, placed))
    if impl.title in POINTERS:
        assert refusal is None, "kernels that compute their own addresses take any strides"
    elif set(layouts) == {"dense"}:
        assert (refusal is None) == (applicable(impl, config, sizes, dtype, H200) is None)


@pytest.mark.parametrize("impl", IMPLS.values(), ids=IMPLS)
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "dense"])
@pytest.mark.parametrize("which", [0, 1])
def test_strides_are_right_or_refused(impl, layout, which):
    spec = impl.spec
    if which >= len(spec.inputs):
        which = 0
    made = filled(spec, dict.fromkeys(spec.axes, 40), "fp16", "ordinary", "cpu", seed=1)
    made = [LAYOUTS[layout if i == which else "dense"](x) for i, x in enumerate(made)]
    refusal = right_or_refused(impl, CONFIGS[impl.title][0], Posed.given(spec, "fp16", made))
    takes = impl.title in POINTERS or layout == "padded"
    assert (refusal is None) == takes


@pytest.mark.parametrize("columns", [8, 13])
def test_a_descriptor_is_refused_where_the_output_has_ragged_rows(columns):
    impl = IMPLS["matmul.persistent"]
    a, b = torch.ones(8, 8), torch.ones(8, 16)[:, :columns]  # b's own rows are well placed
    problem = Posed.given(impl.spec, "fp32", (a, b))
    refusal = right_or_refused(impl, CONFIGS[impl.title][0], problem)
    assert (refusal is None) == (columns == 8)


# What single operations promise


@pytest.mark.parametrize(
    ("promise", "impl"), promises(), ids=lambda p: getattr(p, "title", None) or p.__name__
)
@settings(max_examples=10)
@given(data=st.data())
def test_promise(promise, impl, data):
    config = data.draw(st.sampled_from(CONFIGS[impl.title]), label="config")
    dtype = data.draw(st.sampled_from(DTYPES), label="dtype")
    sizes = descriptors_fit(impl, config, data.draw(sizes_of(impl.spec), label="sizes"), dtype)
    promise(Subject(impl, config, sizes, dtype, "cpu", data.draw(st.integers(0, 999))))


# Addresses


FAR = [
    (impl, which, axis)
    for impl in IMPLS.values()
    for which, tensor in enumerate(impl.spec.inputs.values())
    for axis in range(len(tensor.axes.split()))
    if impl.title in POINTERS or axis == 0
]


@pytest.mark.parametrize(
    ("impl", "which", "axis"), FAR, ids=lambda p: getattr(p, "title", None) or str(p)
)
def test_addresses_beyond_2_31_elements(impl, which, axis, monkeypatch):
    from triton.runtime import interpreter

    # On a CPU the interpreter works on the tensors themselves. Copying them back onto themselves
    # would touch 4 GB that nothing else does.
    monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *a, **k: None)
    spec = impl.spec
    made = filled(spec, dict.fromkeys(spec.axes, 24), "fp16", "ordinary", "cpu", seed=2)
    made[which] = far(made[which], axis)
    config = first_applicable(impl, dict.fromkeys(spec.axes, 24), "fp16", H200)
    verify(impl, [config], Posed.given(spec, "fp16", tuple(made)))
