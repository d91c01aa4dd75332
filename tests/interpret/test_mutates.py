"""Kernels that change their inputs: declared, they are checked on copies; undeclared, refused."""

from dataclasses import dataclass

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from workbench.measurement.correctness import PreparedProblem, check
from workbench.spec import Spec, Tensor, tile

pytestmark = pytest.mark.interpret


@triton.jit
def _add(x_ptr, total_ptr, n, extent, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total_ptr + i % extent, tl.load(x_ptr + i, i < n), i < n)


@triton.jit
def _double(x_ptr, n, beyond, stride, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i * stride, tl.load(x_ptr + i * stride, i < n) * 2, i < n + beyond)


@dataclass(frozen=True)
class Blocks:
    block: int = tile(16, 64, default=16)


def positive(shape, dtype, device, generator):
    """So that no sum comes out near zero, where every error is large."""
    return torch.rand(shape, generator=generator, device=device).to(dtype)


def histogram(mutates=("total",)):
    """total[i % M] += x[i], by atomics."""
    spec = Spec(
        "histogram",
        {"x": Tensor("N", make=positive), "total": Tensor("M", make=positive)},
        {"total": Tensor("M")},
        lambda x, total: total.index_add(0, torch.arange(len(x)) % len(total), x),
        lambda N, M: N,
        [{"N": 100, "M": 16}],
        [{"N": 100, "M": 16}],
    )

    @spec.impl(Blocks, mutates=mutates)
    def added(x, total, *, config):
        grid = (triton.cdiv(len(x), config.block),)
        _add[grid](x, total, len(x), len(total), BLOCK=config.block)
        return total

    return spec.impls[0]


def doubling(mutates=("x",), beyond=0, returned=True, also=None):
    """x *= 2 in its place."""
    spec = Spec(
        "double",
        {"x": Tensor("N"), "y": Tensor("N")},
        {"x": Tensor("N")},
        lambda x, y: 2 * x,
        lambda N: N,
        [{"N": 37}],
        [{"N": 37}],
    )

    @spec.impl(Blocks, mutates=mutates)
    def doubled(x, y, *, config):
        grid = (triton.cdiv(len(x) + 1, config.block),)
        _double[grid](x, len(x), beyond, x.stride(0), BLOCK=config.block)
        if also is not None:
            also(x, y)
        return x if returned else 2 * y

    return spec.impls[0]


def kept(problem):
    return [x.clone() for x in problem.inputs]


def same(problem, before):
    return all(torch.equal(a, b) for a, b in zip(problem.inputs, before, strict=True))


@given(n=st.integers(1, 200), m=st.integers(1, 40), block=st.sampled_from([16, 32, 64]))
def test_what_is_added_to_begins_anew_in_every_check(n, m, block):
    impl = histogram()
    problem = PreparedProblem.make(impl.spec, {"N": n, "M": m}, "fp32", "cpu")
    before = kept(problem)
    for _ in range(3):
        assert check(impl, Blocks(block), problem).wrong is None
        assert same(problem, before)


@given(n=st.integers(1, 90), stride=st.integers(1, 3), lead=st.integers(0, 5))
def test_a_kernel_that_works_in_place_is_checked_wherever_its_input_lies(n, stride, lead):
    x = torch.randn(lead + n * stride)[lead::stride][:n]
    seen = []
    impl = doubling(also=lambda x, y: seen.append((x.stride(), x.data_ptr() % 16)))
    problem = PreparedProblem.wrap(impl.spec, "fp32", (x, torch.randn(n)))
    before = kept(problem)
    assert check(impl, Blocks(), problem).wrong is None
    assert same(problem, before)
    assert seen == [(x.stride(), x.data_ptr() % 16)]


@pytest.mark.parametrize("compiled", [histogram, doubling])
def test_a_change_that_is_not_declared_is_refused_and_undone(compiled):
    impl = compiled(mutates=())
    problem = PreparedProblem.make(impl.spec, impl.spec.check[0], "fp32", "cpu")
    before = kept(problem)
    assert "declare mutates=(" in check(impl, Blocks(), problem).wrong
    assert same(problem, before), "the next config is checked on what this one was"
    declared = compiled()
    assert check(declared, Blocks(), problem).wrong is None


def test_other_inputs_must_stay_as_they_are():
    impl = doubling(also=lambda x, y: y.add_(1))
    problem = PreparedProblem.make(impl.spec, {"N": 37}, "fp32", "cpu")
    before = kept(problem)
    assert "changed its input y" in check(impl, Blocks(), problem).wrong
    assert same(problem, before)


def test_shared_elements_are_put_back_too():
    impl = doubling(also=lambda x, y: y[:1].add_(1))
    problem = PreparedProblem.wrap(impl.spec, "fp32", (torch.randn(9), torch.ones(1).expand(9)))
    assert "changed its input y" in check(impl, Blocks(), problem).wrong
    assert torch.equal(problem.inputs[1], torch.ones(9))


def test_a_write_beside_a_mutated_input_is_found():
    impl = doubling(beyond=1)
    problem = PreparedProblem.make(impl.spec, {"N": 37}, "fp32", "cpu")
    assert "wrote behind the memory of its input x" in check(impl, Blocks(), problem).wrong


def test_a_mutated_input_that_comes_out_wrong_is_wrong():
    impl = doubling(also=lambda x, y: x[3].add_(1))
    problem = PreparedProblem.make(impl.spec, {"N": 37}, "fp32", "cpu")
    assert "x is wrong" in check(impl, Blocks(), problem).wrong


def test_a_mutated_input_that_is_not_returned_is_not_compared():
    impl = doubling(returned=False)
    x = torch.randn(37)
    problem = PreparedProblem.wrap(impl.spec, "fp32", (x, x.clone()))
    assert check(impl, Blocks(), problem).wrong is None
