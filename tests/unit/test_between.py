"""The launch between two sizes of a family: its numbers, strides, key and grid."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workbench.workload.between import NoMiddle, middle
from workbench.workload.signature import (
    ConfigGrids,
    KernelFunction,
    LaunchSignature,
    PlainArgument,
    TensorArgument,
)

FUNCTION = KernelFunction("f", "m", "/nowhere/m.py", "0" * 16, ("x", "y", "m", "n"))
TILES = (16, 32, 64, 128)


def launch(m, n, grid=lambda m, n, b: (-(-m // b), n)):
    """A launch over `m` rows of `n` elements, with its grid for each tile."""
    x = TensorArgument("float32", (m, n), (n, 1), 16, 0)
    return LaunchSignature(
        FUNCTION,
        {
            "x": x,
            "y": replace(x, storage=1),
            "m": PlainArgument("int", m),
            "n": PlainArgument("int", n),
            "eps": PlainArgument("float", "1e-06"),
        },
        grid(m, n, 64),
        origin="autotune",
        config={"BLOCK": PlainArgument("int", 64), "num_warps": PlainArgument("int", 4)},
        key=(str(m), "torch.float32"),
        grids=ConfigGrids(("BLOCK",), {(b,): grid(m, n, b) for b in TILES}),
    )


@given(
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.integers(1, 3000),
    st.sampled_from(
        [
            lambda m, n, b: (-(-m // b), n),
            lambda m, n, b: (-(-m // b) * -(-n // b),),
            lambda m, n, b: (m, 1, -(-n // b)),
            lambda m, n, b: (-(-(m * n) // b),),
        ]
    ),
)
def test_a_middle_is_the_launch_of_its_size(a, b, n, grid):
    assume(a != b)
    try:
        result = middle(launch(a, n, grid), launch(b, n, grid))
    except NoMiddle as error:
        known = ("no size lies between", "several ways")
        assert any(words in str(error) for words in known)
        return
    size = result.arguments["m"].value
    assert min(a, b) < size < max(a, b)
    assert result == launch(size, n, grid)


@given(st.integers(2, 400), st.integers(2, 400))
def test_a_middle_is_near_the_geometric_mean_and_as_aligned_as_the_sizes(a, b):
    assume(abs(a - b) > 1)
    first, second = 16 * a, 16 * b
    size = middle(launch(first, 8), launch(second, 8)).arguments["m"].value
    assert size % 16 == 0
    assert abs(size - math.sqrt(first * second)) <= 16


def test_numbers_that_grow_together_stay_in_proportion():
    result = middle(launch(64, 128), launch(256, 512))
    assert result.arguments["x"].shape == (128, 256) and result.arguments["x"].stride == (256, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grids": None}, "grids of its configs were not recorded"),
        ({"key": ("2048", "torch.float16")}, "its key differs in more than sizes"),
        ({"arguments": {**launch(2048, 64).arguments, "eps": PlainArgument("float", "2.0")}},
         "its arguments differ in more than sizes"),
        ({"arguments": {**launch(2048, 64).arguments, "n": PlainArgument("int", 65)}},
         "do not grow in one ratio"),
    ],
)  # fmt: skip
def test_what_has_no_middle_says_why(change, words):
    with pytest.raises(NoMiddle, match=words):
        middle(launch(512, 64), replace(launch(2048, 64), **change))


def test_integers_whose_values_were_kept_have_no_middle():
    kept = {
        n: replace(
            launch(n, 1), arguments={"x": TensorArgument("int32", (n,), (1,), 16, 0, (0,) * n)}
        )
        for n in (4, 16)
    }
    with pytest.raises(NoMiddle, match="integer tensor"):
        middle(kept[4], kept[16])


def test_a_grid_that_is_no_formula_has_no_middle():
    odd = launch(512, 64, lambda m, n, b: (m * b + 7,))
    with pytest.raises(NoMiddle, match="not a formula"):
        middle(odd, launch(2048, 64, lambda m, n, b: (m * b + 9,)))
