"""Which programs of a large launch are run: those that numbers of the device code name, too."""

import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.evaluation.sampled import NAMED, named_places

pytestmark = pytest.mark.unit
SPOT = SimpleNamespace(value=6001)  # as a tl.constexpr


def helper(m):
    return m == 4242


CALLED = SimpleNamespace(fn=helper)  # as a function of Triton's interpreter


def kernel(m):
    if m == 71 * 73:
        return SPOT
    return CALLED(m % 97)


def indices(fn, arguments, grid):
    return {place[0] for place in named_places(fn, arguments, grid, random.Random(0))}


def test_numbers_of_the_code_its_names_and_what_it_calls_are_run():
    seen = indices(kernel, (), (8192, 1, 1))
    assert {5183, 6001, 4242, 97} <= seen and {5182, 5184, 4241, 4243} <= seen
    assert 97 in indices(kernel, (), (98, 1, 1)) and 97 not in indices(kernel, (), (97, 1, 1))


def test_numbers_of_the_arguments_and_their_blocks_are_run():
    def at_element(m):
        return m == 5_000_000

    assert 4882 in indices(at_element, (1024, None, 1.5, True), (8192, 1, 1))
    assert 1024 in indices(at_element, (1024,), (8192, 1, 1))


@given(
    grid=st.tuples(*[st.integers(1, 40)] * 3), number=st.integers(-3, 60), seed=st.integers(0, 9)
)
def test_places_are_in_the_grid_and_each_axis_has_the_number(grid, number, seed):
    places = named_places(lambda m: m, (number,), grid, random.Random(seed))
    assert len(places) <= NAMED
    assert all(0 <= i < most for place in places for i, most in zip(place, grid, strict=True))
    for axis, most in enumerate(grid):
        if 1 < number < most:
            assert any(place[axis] == number for place in places)
