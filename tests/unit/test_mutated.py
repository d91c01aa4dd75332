"""Copies of what a launch changes: alike, apart, aligned, and restored."""

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.measurement import mutated
from workbench.measurement.mutated import ALIGNED, Copies, Working
from workbench.measurement.stream import FirstCall
from workbench.spec import Spec, Tensor

pytestmark = pytest.mark.unit

DTYPES = (torch.float32, torch.float16, torch.int64, torch.uint8)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(mutated, "first_call", lambda step: FirstCall(1e-6, 2e-6, False))
    monkeypatch.setattr(mutated, "free_bytes", lambda: 1 << 40)


@st.composite
def tensors(draw):
    """Dense tensors whose axes lie in any order, of values that differ."""
    shape = draw(st.lists(st.integers(1, 7), max_size=3))
    order = draw(st.permutations(range(len(shape))))
    x = (100 * torch.rand(shape)).to(draw(st.sampled_from(DTYPES)))
    return x.permute(order)


def memory_of(x):
    extent = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return range(x.data_ptr(), x.data_ptr() + extent * x.element_size())


@given(x=tensors(), count=st.integers(1, 9), turns=st.lists(st.integers(0, 99), max_size=9))
def test_copies_are_alike_apart_aligned_and_restored(x, count, turns):
    kept, other = x.clone(), torch.ones(3)
    copies = Copies.create({1: x}, count)
    assert copies.count == count
    created = [copies.call_inputs((other, x), turn) for turn in range(count)]
    for same, copy in created:
        assert same is other and torch.equal(copy, x) and copy.stride() == x.clone().stride()
        assert copy.data_ptr() % ALIGNED == created[0][1].data_ptr() % ALIGNED
    whole = sorted((memory_of(copy) for _, copy in created), key=lambda m: m.start)
    assert all(a.stop <= b.start for a, b in pairwise(whole))
    for turn in turns:
        copies.call_inputs((other, x), turn)[1].zero_()
    assert torch.equal(x, kept), "what they are copies of is only read"
    copies.restore()
    assert all(torch.equal(copy, kept) for _, copy in created)


@given(
    wanted=st.lists(st.integers(1, 300), min_size=1, max_size=8),
    free=st.integers(0, 1 << 20),
)
def test_copies_are_as_many_as_wanted_or_as_fit_and_are_made_once(wanted, free):
    with pytest.MonkeyPatch.context() as patch:
        taken = []
        patch.setattr(mutated, "free_bytes", lambda: free)
        real = mutated.stack_copies
        patch.setattr(mutated, "stack_copies", lambda x, n: taken.append(n) or real(x, n))
        working = Working({"w": torch.ones(4), "x": torch.rand(100)})
        fitting = max(1, free // 2 // ALIGNED)  # 400 bytes, aligned
        for n in wanted:
            copies = working.copies(("x",), n)
            assert copies.count == min(n, fitting)
            assert working.copies(("x",), n) is copies
        assert taken == sorted(set(taken)), "new memory only for more than ever before"
        assert len(taken) <= 10, "in powers of two"
        assert taken[-1] <= fitting or taken == [1]


def test_copies_of_the_same_inputs_share_their_memory():
    working = Working({"x": torch.rand(8), "y": torch.rand(8)})
    many = working.copies(("x", "y"), 8)
    few = working.copies(("y", "x"), random.randint(2, 7))
    assert few.call_inputs((0, 0), 1)[0].data_ptr() == many.call_inputs((0, 0), 1)[0].data_ptr()
    alone = working.copies(("y",), 1)
    assert alone.call_inputs((0, 0), 0)[0] == 0 and torch.is_tensor(alone.call_inputs((0, 0), 0)[1])


def test_only_an_input_can_be_declared_to_change():
    spec = Spec("f", {"x": Tensor("N")}, {"y": Tensor("N")}, None, lambda N: N, [], [])
    with pytest.raises(ValueError, match=r"mutates names 'y'.*not an input of f.*inputs are x"):
        spec.impl(mutates=("y",))
    assert spec.impl(mutates=["x"])(lambda x: x).mutates == ("x",)
    assert spec.impl()(lambda x: x).mutates == ()
