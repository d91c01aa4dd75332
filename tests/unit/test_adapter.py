"""What of an adapted kernel needs no Triton: layouts, calls as data, numbers, fingerprints."""

import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.adapted.autotuned import configs_of, remember
from workbench.adapted.call import Argument, Call, ConfigEntry, Knobs, Layout
from workbench.adapted.kernel import config_type, extent_names, kept_axes, sizes_of, spec_of
from workbench.adapted.travel import AdaptedError, Place, describe
from workbench.adapted.write import fingerprint, folder_name, meanings, number_values, numbers_of
from workbench.device.hardware import device_named
from workbench.spec import stages, threads, values

H200 = device_named("h200")

pytestmark = pytest.mark.unit

NUMBERS = st.integers(0, 3)


@st.composite
def calls(draw):
    """A call with some tensors, some of which it writes, and distinct configs."""
    shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3)
    tensors = {}
    for name in "xyz"[: draw(st.integers(2, 3))]:
        shape = tuple(draw(shapes))
        stride = tuple(2 * s for s in _dense(shape))
        tensors[name] = Layout(shape, stride, "fp32", draw(NUMBERS), draw(st.booleans()))
    points = draw(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, unique=True))
    entries = tuple(
        ConfigEntry(config, config, (config["BLOCK"] + 1,))
        for config in (
            dict(zip(("BLOCK", "num_warps", "num_stages"), p, strict=True)) for p in points
        )
    )
    knobs = tuple(
        Knobs(name, tuple(sorted({e.values[name] for e in entries})))
        for name in ("BLOCK", "num_warps", "num_stages")
    )
    initial = {"z" if "z" in tensors else "y": draw(st.sampled_from(["values", "nothing"]))}
    return Call(
        "add", Place("/tmp/add.py", "add", "add"), (Argument("x", True, None, "x"),), tensors,
        entries, knobs, draw(NUMBERS), "fp32", {"fp32": (0.1, 0.2)}, tuple(initial), initial,
    )  # fmt: skip


def _dense(shape):
    stride = [1]
    for extent in shape[:0:-1]:
        stride.insert(0, stride[0] * extent)
    return stride


@given(calls())
def test_a_call_comes_back_as_it_was_written(tmp_path_factory, call):
    folder = tmp_path_factory.mktemp("call")
    call.write(folder)
    assert Call.read(folder) == call


@given(calls())
def test_the_space_is_the_list_and_nothing_else_is_taken(call):
    impl = spec_of(call, Path("nowhere"), "nowhere").impls[0]
    results = [values(c) for c in impl.space(impl.config())]
    assert results == [dict(e.values) for e in call.entries]
    every = [config_type(call)(**v) for v in results]
    at = sizes_of(call)
    assert all(impl.refuse(c, H200.limits, itemsize=4, **at) is None for c in every)
    assert "list of configs" in impl.refuse(
        impl.config(BLOCK=9, num_warps=9, num_stages=9), H200.limits, itemsize=4, **at
    )
    assert "grids" in impl.refuse(
        every[0], H200.limits, itemsize=4, **{k: v + 1 for k, v in at.items()}
    )


@given(calls())
def test_configs_that_differ_in_held_knobs_are_left_out(call):
    impl = spec_of(call, Path("nowhere"), "nowhere").impls[0]
    first = impl.config()
    for config in impl.space(first, [threads, stages]):
        assert config.BLOCK == first.BLOCK
    assert first in list(impl.space(first, [stages]))


@given(calls())
def test_axes_name_every_extent_once(call):
    spec = spec_of(call, Path("nowhere"), "nowhere")
    at = sizes_of(call)
    assert set(spec.axes) == set(at)
    for name in call.inputs:
        layout = call.tensors[name]
        assert spec.inputs[name].shape(at) == layout.extents
        assert len(kept_axes(name, layout, extent_names(call))) == len(layout.extents)
    for name in call.outputs:
        assert spec.outputs[name].shape(at) == call.tensors[name].shape


@given(st.lists(st.one_of(st.integers(), st.booleans(), st.text(), st.none(), st.floats())))
def test_numbers_tell_values_apart(column):
    numbers = number_values(column)
    for value, number in zip(column, numbers, strict=True):
        for other, its in zip(column, numbers, strict=True):
            assert (number == its) == (type(value) is type(other) and repr(value) == repr(other))


@given(st.lists(st.integers()))
def test_whole_numbers_stay_themselves(column):
    assert number_values(column) == column


# Fingerprints

TEXT = """
    LIMIT = 4

    def inner(x):
        return x + {added}

    def outer(x, y=2):
        return inner(x) * y + LIMIT
"""


def compiled(added=1, above="", limit=4):
    text = textwrap.dedent(TEXT).format(added=added).replace("LIMIT = 4", f"LIMIT = {limit}")
    scope = {"__name__": "mine"}
    exec(compile(above + text, "mine.py", "exec"), scope)
    return scope["outer"]


def test_a_fingerprint_sees_what_is_done_and_not_where_it_stands():
    assert describe(compiled()) == describe(compiled(above="# a line\n\n"))
    assert describe(compiled()) != describe(compiled(added=2)), "a function that is called"
    assert describe(compiled()) != describe(compiled(limit=5)), "a global that is read"


@given(st.integers(), st.integers())
def test_a_grid_is_told_by_what_it_closes_over(n, m):
    def rule(extent):
        return lambda meta: (extent // meta["BLOCK"],)

    assert (describe(rule(n)) == describe(rule(m))) == (n == m)


def test_what_recurses_is_told():
    def turn(n):
        return turn(n - 1) if n else 0

    assert describe(turn) == describe(turn)


@given(calls())
def test_a_longer_list_of_configs_is_the_same_kernel_in_another_folder(call):
    values_ = {n: SimpleNamespace(is_floating_point=lambda: True) for n in call.tensors}
    more = ConfigEntry(seven := {"BLOCK": 7, "num_warps": 7, "num_stages": 7}, seven, (1,))
    longer = Call(**{**vars(call), "entries": (*call.entries, more)})
    mark, other = (fingerprint(c, compiled(), (), values_, "gpu") for c in (call, longer))
    assert mark == other
    assert folder_name(call, mark) != folder_name(longer, mark)
    assert mark != fingerprint(call, compiled(added=3), (), values_, "gpu")


HOOKS = [None, lambda args: None, textwrap.dedent]
CONFIGS = st.lists(
    st.builds(
        lambda kwargs, maxnreg, hook: SimpleNamespace(
            kwargs=kwargs, num_warps=4, num_stages=3, num_ctas=1, maxnreg=maxnreg, pre_hook=hook
        ),
        st.fixed_dictionaries(
            {"BLOCK": st.integers(0, 1)},
            optional={"ACT": st.sampled_from([0, 1, False, True, None, "relu", "gelu"])},
        ),
        st.sampled_from([None, 64, 128]),
        st.sampled_from(HOOKS),
    ),
    min_size=1,
    max_size=5,
)


def meaning(config):
    """All that Triton gets of a config; True and 1 are two values of an argument."""
    return repr((sorted(config.kwargs.items()), config.maxnreg, HOOKS.index(config.pre_hook)))


def entries(configs):
    """The configs as `call_of` stores them, with the numbers of each."""
    hooks = [None, Place("a.py", "a", "first"), Place("a.py", "a", "second")]
    for config, numbers in zip(configs, numbers_of(configs), strict=True):
        options = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": config.maxnreg}
        known = {k: v for k, v in options.items() if v is not None}
        hook = hooks[HOOKS.index(config.pre_hook)]
        yield ConfigEntry(numbers, config.kwargs | known, (1,), hook)


@given(CONFIGS)
def test_the_numbers_of_a_list_tell_its_configs_apart(configs):
    numbers = [repr(n) for n in numbers_of(configs)]
    assert len(set(numbers)) == len(set(map(meaning, configs)))


@given(CONFIGS, CONFIGS)
def test_equal_numbers_of_two_lists_are_equal_configs_or_the_fingerprint_differs(left, right):
    """An outcome is found again by the fingerprint and the numbers: 0 stands for `relu` in one list
    and for `gelu` in another, and the time of one was once taken for that of the other."""
    lists = [list(entries(configs)) for configs in (left, right)]
    if meanings(lists[0]) != meanings(lists[1]):
        return
    known = {repr(e.values): meaning(c) for c, e in zip(left, lists[0], strict=True)}
    for config, entry in zip(right, lists[1], strict=True):
        assert known.get(repr(entry.values), meaning(config)) == meaning(config)


# Places


def test_a_function_inside_another_is_refused_in_one_sentence():
    def inside():
        pass

    with pytest.raises(AdaptedError, match="not found at the top level"):
        Place.locate(inside)


def test_a_file_whose_top_level_fails_is_named(tmp_path):
    (tmp_path / "loud.py").write_text("raise RuntimeError('no GPU here')\n")
    place = Place(str(tmp_path / "loud.py"), "__main__", "kernel")
    with pytest.raises(AdaptedError, match=r"loud.py cannot be imported .*no GPU here.*__name__"):
        place.find()


# @triton.autotune


def tuner(**text):
    plain = {
        "configs": ["a", "b"], "arg_names": ["x", "n", "BLOCK"], "keys": ["n"], "cache": {},
        "early_config_prune": None, "perf_model": None, "user_defined_pre_hook": False,
        "user_defined_post_hook": False,
    }  # fmt: skip
    return SimpleNamespace(**{**plain, **text})


def test_pruned_configs_are_left_out_and_a_failing_rule_is_told():
    given_ = ((1, 2), {})
    rule = tuner(early_config_prune=lambda configs, named, **kwargs: configs[named["n"] - 1 :])
    assert configs_of(rule, given_) == (["b"], [])
    result, notes = configs_of(tuner(early_config_prune=lambda *_: 1 / 0), given_)
    assert result == ["a", "b"] and "ZeroDivisionError" in notes[0]
    with pytest.raises(AdaptedError, match="at least one"):
        configs_of(tuner(early_config_prune=lambda *_: []), given_)


def test_the_cache_is_keyed_by_values_and_then_dtypes():
    one = tuner()
    tensor = SimpleNamespace(dtype="torch.float32")
    remember(one, ((tensor,), {"n": 5, "extra": tensor}), "best")
    assert one.cache == {(5, "torch.float32"): "best"} and one.best_config == "best"
