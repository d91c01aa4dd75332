"""The tests of all Metal kernels: the same functions run in the emulator (`emulated/`) and on a
Metal device (`metal/`). The fixture `contexts` gives the contexts in which each case is launched.

It knows no kernel by name: a new file in `metal_shim/kernels/` is tested by all of it, also with
the properties that its Triton Impls have.
"""

from __future__ import annotations

import importlib
from functools import cache

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from kernel_cases import (
    LAYOUTS,
    ONLY,
    Case,
    applicable,
    combined,
    dtypes_of,
    filled,
    first_applicable,
    is_by_day,
    laid,
    middling,
    named,
    prepared,
    sizes_of,
    spread,
    taken,
    turn,
    well_posed,
)
from kernel_properties import Subject, is_promised_by_day, promises, size_by_day
from nightly import at_night

from metal_shim.check import DEVICE
from metal_shim.kernel import MetalKernel
from workbench import catalog
from workbench.device.hardware import UNCOMPILED
from workbench.measurement.correctness import PreparedProblem, check
from workbench.spec import values

LIMITS = UNCOMPILED[DEVICE].limits
NAMES = [name for name in catalog.names_in(catalog.METAL) if not ONLY or name in ONLY]
IMPLS = {
    impl.title: impl
    for name in NAMES
    for impl in catalog.spec_of(name).impls
    if impl.backend == "metal"
}
CASES = [
    Case(impl, sizes, dtype)
    for impl in IMPLS.values()
    for sizes in impl.spec.check
    for dtype in dtypes_of(impl, LIMITS)
    if first_applicable(impl, sizes, dtype, LIMITS) is not None
]
each_impl = pytest.mark.parametrize("impl", IMPLS.values(), ids=IMPLS)


@cache
def configs_of(title):
    """Configs that have every pair of choices of two knobs at least once, each with sizes and a
    dtype that it takes."""
    impl = IMPLS[title]
    ordered = sorted(impl.spec.check, key=lambda sizes: impl.spec.bytes(sizes, "fp32"))
    dtypes = dtypes_of(impl, LIMITS)
    at = [(s, turn(impl, dtypes, i)) for i, s in enumerate(ordered)]
    at += [(s, d) for s, d in ((s, d) for s in ordered for d in dtypes) if (s, d) not in at]
    return over_sizes(impl, spread(impl, at, LIMITS, together=2), ordered)


def over_sizes(impl, chosen, every):
    """The same configs and dtypes, each at those of the sizes that it takes at which most of its
    choices were not tried before, or that were tried least: `spread` takes the smallest sizes for
    nearly all."""
    names, met, result = list(impl.choices()), set(), []
    for config, _, dtype in chosen:
        takes = [s for s in every if not applicable(impl, config, s, dtype, LIMITS)]
        new = [choices_at(config, names, sizes) - met for sizes in takes]
        used = [sum(sizes == s for _, s, _ in result) for sizes in takes]
        at = max(range(len(takes)), key=lambda i: (len(new[i]), -used[i]))
        met |= new[at]
        result.append((config, takes[at], dtype))
    return result


def choices_at(config, names, sizes):
    """Each choice of a config with the sizes, as (sizes, name, value)."""
    return {(tuple(sizes.items()), *choice) for (choice,) in combined(config, names, 1)}


def right(impl, config, problem, contexts):
    """Assert that the config gives the right result in each context."""
    for context in contexts():
        with context:
            wrong = check(impl, config, problem).wrong
        assert wrong is None, f"{impl.title} {values(config)} {problem.dtype}: {wrong}"


BY_DAY = [case for case in CASES if is_by_day(case, CASES)]


@pytest.mark.parametrize("case", BY_DAY, ids=str)
def test_right_in_a_schedule(case, contexts):
    """The schedules in turn: an Impl has four cases or more."""
    right_at(case, lambda: [turn(case.impl, list(contexts()), BY_DAY.index(case))])


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES, ids=str)
def test_right_at_every_size_and_dtype(case, contexts):
    right_at(case, contexts)


def right_at(case, contexts):
    config = first_applicable(case.impl, case.sizes, case.dtype, LIMITS)
    problem = PreparedProblem.make(case.impl.spec, case.sizes, case.dtype, "cpu")
    right(case.impl, config, problem, contexts)


# Two knobs. All pairs of sample_topk_topp alone take 10 s.
SOME = at_night(IMPLS.values(), lambda impl: impl.title == "compute_only.scalar_chains")


@pytest.mark.parametrize("impl", SOME, ids=IMPLS)
def test_right_with_every_pair_of_choices(impl, contexts):
    chosen, names = configs_of(impl.title), list(impl.choices())
    tried = set().union(*(combined(config, names, 2) for config, _, _ in chosen))
    every = list(impl.space(impl.config()))
    missing = set().union(*(combined(config, names, 2) for config in every)) - tried
    assert all(_is_refused(impl, c) for c in every if missing & combined(c, names, 2))
    sizes_tried = {tuple(sizes.items()) for _, sizes, _ in chosen}
    taken_by_some = [
        s
        for s in impl.spec.check
        if any(not applicable(impl, c, s, dtype, LIMITS) for c, _, dtype in chosen)
    ]
    assert len(sizes_tried) >= min(len(chosen), len(taken_by_some)), "sizes are left out"
    for i, (config, sizes, dtype) in enumerate(chosen):
        problem = PreparedProblem.make(impl.spec, sizes, dtype, "cpu", seed=i)
        right(impl, config, problem, lambda i=i: [turn(impl, list(contexts()), i)])


def _is_refused(impl, config):
    """Whether the config is refused with a sentence, wherever it is tried."""
    sizes = [*impl.spec.check, *impl.spec.bench]
    return all(applicable(impl, config, at, "fp16", LIMITS) for at in sizes)


@each_impl
@pytest.mark.parametrize("kind", ["large", "tiny", "zero", "constant"])
def test_right_for_any_values(impl, kind, contexts):
    spec, sizes = impl.spec, middling(impl.spec)
    dtype = turn(impl, dtypes_of(impl, LIMITS), len(kind))
    problem = PreparedProblem.wrap(spec, dtype, tuple(filled(spec, sizes, dtype, kind, "cpu", 1)))
    config = first_applicable(impl, sizes, dtype, LIMITS)
    right(impl, config, problem, lambda: list(contexts())[:1])


STRIDED = [(impl, name) for impl in IMPLS.values() for name in LAYOUTS if name != "dense"]
HALF_OF_THEM = at_night(STRIDED, lambda pair: sum(divmod(STRIDED.index(pair), 6)) % 2 == 0)


def titled(pair):
    return "-".join(part if isinstance(part, str) else named(part) for part in pair)


@pytest.mark.parametrize("pair", HALF_OF_THEM, ids=titled)
def test_right_in_any_layout(pair, contexts):
    """MLX copies what is not dense, and so does the emulator's side."""
    impl, layout = pair
    spec, sizes = impl.spec, impl.spec.check[min(1, len(impl.spec.check) - 1)]
    dtype = turn(impl, dtypes_of(impl, LIMITS), len(layout))
    created = filled(spec, sizes, dtype, "ordinary", "cpu", 1)
    problem = prepared(spec, dtype, laid(spec, created, [layout] * len(created)))
    config = first_applicable(impl, sizes, dtype, LIMITS)
    right(impl, config, problem, lambda: list(contexts())[:1])


HALF = at_night(IMPLS.values(), lambda impl: list(IMPLS).index(impl.title) % 2 == 1)


@pytest.mark.parametrize("impl", HALF, ids=IMPLS)
def test_right_at_any_sizes_strides_and_values(impl, contexts):
    @settings(max_examples=4, phases=[Phase.explicit, Phase.reuse, Phase.generate])
    @given(data=st.data())
    def drawn(data):
        right_as_drawn(impl, data, contexts)

    drawn()


def right_as_drawn(impl, data, contexts):
    spec = impl.spec
    # each config with its own dtype: every other pair would be a program of its own to compile
    config, _, dtype = data.draw(st.sampled_from(configs_of(impl.title)), label="config")
    config, sizes = taken(impl, config, data.draw(sizes_of(spec), label="sizes"), dtype, LIMITS)
    kind = data.draw(st.sampled_from(["made", "ordinary", "large", "tiny"]), label="values")
    layouts = data.draw(st.tuples(*[st.sampled_from(list(LAYOUTS))] * len(spec.inputs)))
    created = filled(spec, sizes, dtype, kind, "cpu", data.draw(st.integers(0, 999)))
    problem = prepared(spec, dtype, laid(spec, created, layouts))
    if well_posed(problem):
        order = data.draw(st.integers(0, len(contexts()) - 1), label="schedule")
        right(impl, config, problem, lambda: [contexts()[order]])


def tried_at(impl, sizes, dtypes):
    """Configs with dtypes that other tests launch at these sizes: their programs are compiled, and
    at other sizes an input of fewer than 8 elements makes another program."""
    chosen = [(c, d) for c, at, d in configs_of(impl.title) if at == sizes and d in dtypes]
    usual = [(first_applicable(impl, sizes, d, LIMITS), d) for d in dtypes]
    chosen += [(config, dtype) for config, dtype in usual if config is not None]
    return chosen or [(impl.config(), dtype) for dtype in dtypes]


PROMISES = promises(IMPLS.values())
SOME_PROMISES = at_night(PROMISES, lambda pair: is_promised_by_day(*pair, IMPLS.values()))


@pytest.mark.parametrize("pair", SOME_PROMISES, ids=titled)
def test_promise(pair, contexts):
    """Each property of the operation, at one of the sizes to check."""
    promise, impl = pair
    promised_at({size_by_day(promise, impl)}, promise, impl, contexts)


@pytest.mark.nightly
@pytest.mark.parametrize(("promise", "impl"), PROMISES, ids=named)
def test_promise_at_all_other_sizes(promise, impl, contexts):
    others = set(range(len(impl.spec.check))) - {size_by_day(promise, impl)}
    promised_at(others, promise, impl, contexts)


def promised_at(places, promise, impl, contexts):
    """Verify a promise at the sizes to check that have these places, configs in turn."""
    dtypes = promise.dtypes_of(dtypes_of(impl, LIMITS))
    for i in sorted(places):
        sizes = impl.spec.check[i]
        config, dtype = turn(impl, tried_at(impl, sizes, dtypes), i + promise.place)
        config, at = taken(impl, config, sizes, dtype, LIMITS)
        subject = Subject(impl, config, dict(at), dtype, "cpu", seed=7 * i + promise.place)
        with turn(impl, list(contexts()), i):
            promise(subject)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_of_one_kernel_and_needs_no_mlx(name):
    module = importlib.import_module(f"{catalog.METAL}.{name}")
    kernels = [value for value in vars(module).values() if isinstance(value, MetalKernel)]
    assert kernels and all(k.source.name.startswith(f"{name}_") for k in kernels)
    assert len({k.source.name for k in kernels}) == len(kernels)


@each_impl
def test_refusals_are_sentences(impl):
    for config in impl.space(impl.config()):
        for dtype, sizes in (("fp32", impl.spec.check[-1]), ("fp16", impl.spec.bench[0])):
            reason = applicable(impl, config, sizes, dtype, LIMITS)
            assert reason is None or (len(reason) < 150 and "failed" not in reason), reason


__all__ = [name for name in globals() if name.startswith("test_")]
