"""Every kernel, interpreted on the CPU, against the float64 reference of its inputs.

By day values, strides and sizes take turns among the Impls; every night each Impl has them all.
"""

import importlib
from functools import cache
from zlib import crc32

import pytest
import torch
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from kernel_blocks import met_again
from kernel_cases import (
    H200,
    LAYOUTS,
    REFUSED,
    VALUES,
    applicable,
    cases,
    dtypes_of,
    far,
    far_axes,
    filled,
    first_applicable,
    is_by_day,
    is_one_of_each,
    kernels,
    laid,
    middling,
    named,
    prepared,
    right_in_any_layout,
    right_or_refused,
    sizes_of,
    spread,
    square,
    taken,
    triton_impls,
    turn,
    verify,
    well_posed,
)
from kernel_properties import PROPERTIES, Subject, is_promised_by_day, load, promises, size_by_day
from nightly import at_night, nightly

from workbench import catalog, dsl
from workbench.device.hardware import DEVICES
from workbench.measurement import inputs
from workbench.measurement.correctness import PreparedProblem
from workbench.spec import ITEMSIZE, stages, threads, values

IMPLS = {impl.title: impl for impl in triton_impls()}
CASES = cases(H200, lambda spec: spec.check)
ANY = [kind for kind in VALUES if kind not in ("made", "ordinary")]  # these have tests of their own
# Kinds of values to which fp32 may have no answer: exp(512) is infinite, and some gradients are 0.
ILL_POSED = {"cross_entropy_backward": ("large",)}
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # to shrink a failure takes minutes
EXTENT = 9  # of every axis, where strides are what matters
SHARE = 0.4  # of the elements that the sizes to check have, for cases that are many
each_impl = pytest.mark.parametrize("impl", IMPLS.values(), ids=IMPLS)
one_of_each = pytest.mark.parametrize("impl", at_night(IMPLS.values(), is_one_of_each), ids=IMPLS)


@cache
def configs_of(title):
    """The default of each dtype, then configs with every choice of every knob that the interpreter
    knows, each with sizes and a dtype that it takes; the least sizes first."""
    impl = IMPLS[title]
    spec, dtypes = impl.spec, dtypes_of(impl, H200)
    at = [(s, d) for s in sorted(spec.check, key=spec_bytes(spec)) for d in dtypes if many(s)]
    defaults = [
        (default, s, d)
        for s, d in at
        if not applicable(impl, default := impl.default(H200, d, s), s, d, H200)
    ]
    return list({c[0]: c for c in defaults}.values()) + spread(impl, at, H200, interpreted=True)


def spec_bytes(spec):
    return lambda sizes: spec.bytes(sizes, "fp32")


def many(sizes):
    """Larger than one element: a tile's edges are seen."""
    return max(sizes.values(), default=2) > 1


# The cases themselves


def test_the_interpreter_is_on():
    assert dsl.INTERPRETED


@pytest.mark.parametrize("name", kernels())
def test_every_file_fits_the_format(name):
    catalog.spec_of(name)


@each_impl
def test_every_impl_is_checked_in_its_dtypes(impl):
    """Others have tolerances for the sake of an output of that dtype."""
    checked = {case.dtype for case in CASES if case.impl is impl}
    assert checked and checked == set(dtypes_of(impl, H200))
    own = {t.dtype for t in impl.spec.outputs.values()}
    assert set(impl.spec.tolerance) - checked <= own


@each_impl
def test_the_spread_has_every_choice_of_every_knob_the_interpreter_knows(impl):
    """Of those that some device can run at sizes to check; and no choice is there in vain."""
    knobs, configs = impl.knobs(), [c for c, _, _ in configs_of(impl.title)]
    for name, choices in impl.choices().items():
        if knobs[name] not in (threads.__name__, stages.__name__):
            seen = {getattr(c, name) for c in configs}
            vain = set(choices) - seen
            assert not vain or vain <= legal_elsewhere(impl, name, vain), name


def legal_elsewhere(impl, name, wanted):
    """Which of these choices some device takes at sizes to time, or another one at any."""
    result = set()
    sizes = [*impl.spec.bench, *impl.spec.check]
    for config in impl.space(impl.config()):
        value = getattr(config, name)
        if (
            value in wanted
            and value not in result
            and any(
                not applicable(impl, config, at, dtype, DEVICES[device].limits)
                for device in ("h200", "b200", "mi300x", "rx7900xtx")
                for at in sizes
                for dtype in impl.spec.tolerance
            )
        ):
            result.add(value)
    return result


@pytest.mark.parametrize("name", kernels())
def test_every_kernel_says_what_becomes_of_nan(name):
    words = str(importlib.import_module(f"workbench.kernels.{name}").__doc__)
    assert "NaN" in words, (
        f"the docstring of workbench/kernels/{name}.py must say what becomes of a NaN and of an "
        "infinity in the inputs, with the word NaN"
    )


def test_properties_belong_to_kernels_that_exist():
    names = set(catalog.kernel_names())
    assert set(load()) <= names, "a file of properties/ is named after its kernel"
    assert set(PROPERTIES) <= names


# The one body


def marked():
    """Yield every case, those that `is_by_day` leaves to the night as nightly; one of every second
    kernel is `smoke`."""
    by_day = [case for case in CASES if is_by_day(case, CASES)]
    by_kernel = {}
    for case in by_day:
        by_kernel.setdefault(case.impl.spec.name, []).append(case)
    smoke = [turn(some[0].impl.spec, some) for some in by_kernel.values()][::2]
    for case in CASES:
        marks = [pytest.mark.smoke] if case in smoke else []
        yield pytest.param(case, marks=marks if case in by_day else pytest.mark.nightly)


@pytest.mark.parametrize("case", list(marked()), ids=str)
def test_right_at_check_sizes(case):
    problem = PreparedProblem.make(case.impl.spec, case.sizes, case.dtype, "cpu")
    verify(case.impl, [first_applicable(case.impl, case.sizes, case.dtype, H200)], problem)


@pytest.mark.newest
@each_impl
def test_right_with_every_choice_of_every_knob(impl):
    dtypes = dtypes_of(impl, H200)
    for i, (config, sizes, dtype) in enumerate(configs_of(impl.title)):
        other = dtypes[i % len(dtypes)]
        dtype = dtype if applicable(impl, config, sizes, other, H200) else other
        verify(impl, [config], PreparedProblem.make(impl.spec, sizes, dtype, "cpu", seed=i))


def meets_by_day(impl):
    """Return whether every run tries an Impl: not the first where a kernel has others, which loop
    over what the first does at once, nor those of sample_topk_topp, which take 6 s."""
    ours = [other for other in IMPLS.values() if other.spec.name == impl.spec.name]
    first = len(ours) > 1 and impl is ours[0]
    return not first and impl.spec.name != "sample_topk_topp"


@pytest.mark.newest
@pytest.mark.parametrize("impl", at_night(IMPLS.values(), meets_by_day), ids=IMPLS)
def test_right_where_a_block_is_met_again(impl):
    """With each length of each block, at a size of two or three of them and a part; inputs dense
    and in layouts of their own by turns."""
    result = list(met_again(impl, dtypes_of(impl, H200), H200))
    for i, (config, sizes, dtype) in enumerate(result):
        created = inputs.make(impl.spec, sizes, dtype, "cpu", seed=i)
        placed = laid(impl.spec, created, mixed(impl, i)) if i % 2 else created
        verify(impl, [config], prepared(impl.spec, dtype, placed))


@pytest.mark.newest
@each_impl
def test_right_for_any_values(impl):
    right_for_values(impl, kinds_by_day(impl))


@pytest.mark.nightly
@pytest.mark.newest
@each_impl
def test_right_for_all_other_values(impl):
    right_for_values(impl, set(ANY) - kinds_by_day(impl))


def right_for_values(impl, kinds):
    """Verify these kinds of value at a middling size, dtypes and configs in turn."""
    spec, (sizes, dtypes) = impl.spec, middling_of(impl)
    for i, kind in enumerate(ANY):
        if kind not in kinds:
            continue
        dtype = turn(impl, dtypes, i)
        problem = PreparedProblem.wrap(
            spec, dtype, tuple(filled(spec, sizes, dtype, kind, "cpu", i))
        )
        if kind not in ILL_POSED.get(spec.name, ()) or well_posed(problem):
            verify(impl, [turn(impl, configs_at(impl, sizes, dtype), i)], problem)


def kinds_by_day(impl):
    """Zeros and constants take turns, and Impls of one kernel have every second kind of the rest,
    the first Impl the first."""
    dull = turn(impl, ("zero", "constant"))
    every = [kind for kind in ANY if kind != dull]
    ours = [i for i in IMPLS.values() if i.spec is impl.spec]
    step = 2 if len(ours) > 1 else 1
    return set(every[ours.index(impl) % step :: step])


def mixed(impl, step):
    """For each input another layout that it must take: strides that are mistaken for each other
    show where they differ, and where a second block lies behind the first."""
    kinds = [how for how in LAYOUTS if how not in ("dense", "expanded", "heads_first")]
    every = []
    for i, name in enumerate(impl.spec.inputs):
        may = [how for how in kinds if how not in REFUSED.get((impl.title, name), ())]
        every.append(turn(impl, may, step + i) if may else "dense")
    return every


def middling_of(impl):
    """The middling size to check, or the next that the Impl takes in all its dtypes."""
    spec, dtypes = impl.spec, dtypes_of(impl, H200)
    for sizes in (middling(spec), *reversed(spec.check)):
        if all(first_applicable(impl, sizes, d, H200) is not None for d in dtypes):
            return sizes, dtypes
    raise AssertionError(f"{impl.title} takes no size to check in all its dtypes")


def every_config(impl):
    """Of the spread of all choices."""
    return [config for config, _, _ in configs_of(impl.title)]


def configs_at(impl, sizes, dtype):
    """Those of the spread that these sizes take."""
    fit = [c for c in every_config(impl) if not applicable(impl, c, sizes, dtype, H200)]
    return fit or [first_applicable(impl, sizes, dtype, H200)]


@each_impl
def test_right_at_any_sizes_strides_and_values(impl):
    """One example, another for each Impl, the same in every run."""
    seed(crc32(impl.title.encode()))(drawn(impl, 1))()


@pytest.mark.nightly
@each_impl
def test_right_at_more_sizes_strides_and_values(impl):
    drawn(impl, 8)()


def drawn(impl, examples):
    """Return a test of so many drawn examples."""

    @settings(max_examples=examples, phases=PHASES)
    @given(data=st.data())
    def test(data):
        right_as_drawn(impl, data)

    return test


def right_as_drawn(impl, data):
    spec = impl.spec
    dtype = data.draw(st.sampled_from(dtypes_of(impl, H200)), label="dtype")
    config, _, _ = data.draw(st.sampled_from(configs_of(impl.title)), label="config")
    drawn = data.draw(sizes_of(spec, SHARE), label="sizes")
    config, sizes = taken(impl, config, drawn, dtype, H200)
    seed = data.draw(st.integers(0, 999), label="seed")
    kind = data.draw(st.sampled_from(list(VALUES)), label="values")
    layouts = data.draw(st.tuples(*[st.sampled_from(list(LAYOUTS))] * len(spec.inputs)))

    def problem_of(kind):
        return prepared(
            spec, dtype, laid(spec, filled(spec, sizes, dtype, kind, "cpu", seed), layouts)
        )

    problem = problem_of(kind)
    if kind != "made" and not well_posed(problem):
        problem = problem_of("made")
    refusal = right_or_refused(impl, config, problem)
    odd = {n for n, how in zip(spec.inputs, layouts, strict=True) if how != "dense"}
    may = refusal is None or any((impl.title, name) in REFUSED for name in odd)
    assert may, f"{values(config)} {sizes}: {refusal}"


@pytest.mark.newest
@each_impl
def test_a_config_that_is_timed_can_be_checked(impl):
    spec, dtype = impl.spec, narrow(impl)

    def takes(config, some):
        return any(impl.rejection_reason(config, H200, dtype, at) is None for at in some)

    timed = (c for c in impl.space(impl.config()) if takes(c, spec.bench))
    lost = [values(c) for c in timed if not takes(c, spec.check)]
    assert not lost, f"no size to check takes {lost[0]} and {len(lost) - 1} others"


# heads first is another layout only where there are heads
def layouts_of(impl):
    heads = any(len(t.axes.split()) > 3 for t in impl.spec.inputs.values())
    return [how for how in list(LAYOUTS)[1:] if how != "heads_first" or heads]


def is_laid_by_day(impl, layout):
    """One Impl of each kernel in every layout, the others in one in turn."""
    return is_one_of_each(impl) or layout == turn(impl, layouts_of(impl))


LAID = [
    pytest.param(
        impl,
        layout,
        id=f"{impl.title}-{layout}",
        marks=() if is_laid_by_day(impl, layout) else pytest.mark.nightly,
    )
    for impl in IMPLS.values()
    for layout in layouts_of(impl)
]


@pytest.mark.parametrize(("impl", "layout"), LAID)
def test_strides_are_right_or_refused(impl, layout):
    dtype = narrow(impl)
    config, sizes = square(impl, EXTENT, dtype, H200, least=True)
    created = filled(impl.spec, sizes, dtype, "ordinary", "cpu", seed=1)
    refused = right_in_any_layout(impl, config, created, layout, dtype)
    assert refused == {n for n in impl.spec.inputs if layout in REFUSED.get((impl.title, n), ())}


@one_of_each
def test_no_input_is_read_by_the_strides_of_another(impl):
    """Every input in another layout, so that no two of them have the same strides."""
    dtype = narrow(impl)
    config, sizes = square(impl, EXTENT, dtype, H200, least=True)
    created = filled(impl.spec, sizes, dtype, "ordinary", "cpu", seed=3)
    for step in range(3):
        placed = laid(impl.spec, created, mixed(impl, step))
        verify(impl, [config], prepared(impl.spec, dtype, placed))


def test_entries_of_layouts_are_of_inputs_that_exist():
    specs = {impl.spec.name: impl.spec for impl in IMPLS.values()}
    for title, name in REFUSED:
        spec = specs[title.partition(".")[0]]
        assert title in {impl.title for impl in spec.impls} and name in spec.inputs


def test_torch_itself_refuses_negative_strides():
    """So no launcher ever sees one."""
    with pytest.raises(RuntimeError, match="egative strides"):
        torch.ones(4).as_strided((4,), (-1,), 3)


def narrow(impl):
    """bf16, which is multiplied as fp32 here: numpy has no fast product of fp16. Else the dtype of
    the fewest bytes."""
    return min(dtypes_of(impl, H200), key=lambda dtype: (dtype != "bf16", ITEMSIZE[dtype]))


# What single operations promise


each_promise = pytest.mark.parametrize(("promise", "impl"), promises(), ids=named)


@pytest.mark.parametrize(
    ("promise", "impl"),
    [pytest.param(*p, marks=() if is_promised_by_day(*p) else nightly) for p in promises()],
    ids=named,
)
def test_promise(promise, impl):
    """At one of the sizes to check."""
    promised_at({size_by_day(promise, impl)}, promise, impl)


@pytest.mark.nightly
@each_promise
def test_promise_at_all_other_sizes(promise, impl):
    others = set(range(len(impl.spec.check))) - {size_by_day(promise, impl)}
    promised_at(set() if promise.own_sizes else others, promise, impl)


def promised_at(places, promise, impl):
    """Verify a promise at the sizes to check that have these places, dtypes and configs in turn."""
    for i in sorted(places):
        sizes = impl.spec.check[i]
        dtype = turn(impl, promise.dtypes_of(dtypes_of(impl, H200)), i + promise.place)
        config, sizes = taken(impl, turn(impl, every_config(impl), i), sizes, dtype, H200)
        promise(Subject(impl, config, dict(sizes), dtype, "cpu", seed=7 * i + promise.place))


@pytest.mark.nightly
@pytest.mark.newest
@each_promise
@settings(max_examples=3, phases=PHASES)
@given(data=st.data())
def test_promise_at_any_sizes(promise, impl, data):
    config, _, _ = data.draw(st.sampled_from(configs_of(impl.title)), label="config")
    dtypes = promise.dtypes_of(dtypes_of(impl, H200))
    dtype = data.draw(st.sampled_from(dtypes), label="dtype")
    drawn = data.draw(sizes_of(impl.spec, SHARE), label="sizes")
    config, sizes = taken(impl, config, drawn, dtype, H200)
    promise(Subject(impl, config, dict(sizes), dtype, "cpu", data.draw(st.integers(0, 999))))


# Addresses


@one_of_each
def test_addresses_beyond_2_31_elements(impl, monkeypatch):
    """Along one axis of each input."""
    right_beyond(one_axis_of_each(impl), impl, monkeypatch)


@pytest.mark.nightly
@each_impl
def test_addresses_beyond_2_31_elements_along_all_other_axes(impl, monkeypatch):
    created = filled(impl.spec, *small(impl)[1:], "ordinary", "cpu", seed=2)
    by_day = one_axis_of_each(impl)
    right_beyond([a for a in far_axes(impl, created) if a not in by_day], impl, monkeypatch)


def small(impl):
    """Return a config, sizes and a dtype where strides are what matters."""
    dtype = narrow(impl)
    return *square(impl, EXTENT, dtype, H200, least=True), dtype


def one_axis_of_each(impl):
    """Return pairs of an input and an axis of it, one pair for each input."""
    every = far_axes(impl, filled(impl.spec, *small(impl)[1:], "ordinary", "cpu", seed=2))
    return list(
        {w: turn(impl, [pair for pair in every if pair[0] == w], w) for w, _ in every}.values()
    )


def right_beyond(axes, impl, monkeypatch):
    """Verify that each input may be stretched along its axis, or is refused."""
    from triton.runtime import interpreter

    # On a CPU the interpreter works on the tensors themselves. Copying them back onto themselves
    # would touch 4 GB that nothing else does.
    monkeypatch.setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *a, **k: None)
    spec, (config, sizes, dtype) = impl.spec, small(impl)
    created = filled(spec, sizes, dtype, "ordinary", "cpu", seed=2)
    for which, axis in axes:
        placed = [far(x, axis) if i == which else x for i, x in enumerate(created)]
        refusal = right_or_refused(impl, config, prepared(spec, dtype, placed))
        name = list(spec.inputs)[which]  # descriptors count up to 2^31, or want dense rows
        may = refusal is None or (impl.title, name) in REFUSED
        assert may, f"{impl.title} must take {name} stretched along axis {axis}: {refusal}"
