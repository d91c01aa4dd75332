"""Functions that a kernel's code replaces: each is found, and ordinary use changes none."""

import time
from dataclasses import replace

import pytest
import torch

from workbench.measurement import correctness
from workbench.measurement.correctness import PreparedProblem, bits_of, check
from workbench.measurement.tamper import snapshot
from workbench.spec import NoKnobs, Spec, Tensor

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("owner", "name", "title"),
    [
        (torch, "equal", "torch.equal"),
        (torch, "where", "torch.where"),
        (torch.Tensor, "double", "torch.Tensor.double"),
        (torch.Tensor, "clone", "torch.Tensor.clone"),
        (torch.cuda, "synchronize", "torch.cuda.synchronize"),
        (torch.cuda.Event, "elapsed_time", "torch.cuda.Event.elapsed_time"),
        (time, "perf_counter", "time.perf_counter"),
        (correctness, "check_outputs", "workbench.measurement.correctness.check_outputs"),
        (correctness.Poisoned, "trespass", "workbench.measurement.correctness.Poisoned.trespass"),
    ],
)
def test_a_replaced_function_is_named(monkeypatch, owner, name, title):
    before = snapshot()
    assert before.replaced_function() is None
    monkeypatch.setattr(owner, name, lambda *given, **more: True)
    assert before.replaced_function() == title
    monkeypatch.undo()
    assert before.replaced_function() is None


SPEC = Spec(
    name="double",
    inputs={"x": Tensor("N")},
    outputs={"y": Tensor("N")},
    reference=lambda x: 2 * x,
    flops=lambda N: N,
    check=[{"N": 100}],
    bench=[{"N": 100}],
)


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (lambda x: x.mul_(2), "the launch changed its input x"),
        (lambda x: (2 * x).numpy(), "the launch returned"),
        (lambda x: torch.nn.Parameter(2 * x, False), "is a Parameter where"),
        (lambda x: (2 * x).to("meta"), "is on meta where the inputs are"),
        (lambda x: (2 * x)[:-1], "shape"),
        (lambda x: (2 * x).double(), "dtype"),
        (lambda x: 2 * x + 1e-3, "is wrong in"),
        (lambda x: torch.empty_like(x), "is wrong in"),
    ],
)
def test_an_output_that_is_none_is_told(launch, words):
    impl = SPEC.impl(name="other")(launch)
    SPEC.impls.pop()
    checked = check(impl, NoKnobs(), PreparedProblem.make(SPEC, {"N": 100}, "fp32", "cpu"))
    assert checked.wrong is not None and words in checked.wrong


def test_an_output_needs_memory_of_its_own():
    """Right values in the wrong place: the next call would change them."""
    same = replace(SPEC, reference=lambda x: x + 0.0, impls=[])
    problem = PreparedProblem.make(same, {"N": 100}, "fp32", "cpu")
    kernel = same.impl(name="kernel")(lambda x: x)
    assert "shares memory with an input" in check(kernel, NoKnobs(), problem).wrong
    library = same.impl(backend="torch", name="library")(lambda x: x)
    assert check(library, NoKnobs(), problem).wrong is None, "a library may return a view"


def test_equal_bits_pass_and_others_are_compared_with_the_reference():
    problem = PreparedProblem.make(SPEC, {"N": 100}, "fp32", "cpu")
    launches = {"a": lambda x: 2 * x, "b": lambda x: x + x, "c": lambda x: 2 * x * (1 + 1e-7)}
    found = {}
    for name, launch in launches.items():
        impl = SPEC.impl(backend="torch", name=name)(launch)
        SPEC.impls.pop()
        found[name] = check(impl, NoKnobs(), problem)
    assert not any(c.wrong for c in found.values())
    assert found["a"].bits == found["b"].bits != found["c"].bits
    assert len(problem.right) == 2
    bad = SPEC.impl(backend="torch", name="bad")(lambda x: torch.cat([2 * x[:-1], x[-1:]]))
    SPEC.impls.pop()
    assert check(bad, NoKnobs(), problem).wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool])
@pytest.mark.parametrize("count", [0, 1, 7, 4096, 10_000])
def test_bits_are_those_of_values_and_places(dtype, count):
    x = (torch.arange(count) % 3 == 0).to(dtype)
    assert bits_of([x]) == bits_of([x.clone()])
    if count > 1:
        assert bits_of([x]) != bits_of([x.roll(1)])
        assert bits_of([x, x]) != bits_of([x])
