"""Operations in Triton's interpreter: values, torch's own checks of an operator, gradients, and
graphs of torch.compile."""

import importlib.util
import re
import sys
from math import prod
from pathlib import Path

import pytest
import torch
from kernel_cases import BRIEF, turn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from workbench import ops
from workbench.catalog import kernel_names, spec_of
from workbench.measurement.correctness import PreparedProblem, check_outputs
from workbench.measurement.inputs import make
from workbench.ops.derivatives import DERIVATIVES
from workbench.ops.text import dtypes_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "ops"
# those whose choice, shapes and gradients differ most; the others on the newest Triton alone
FEW = ("softmax", "fused_add_rms_norm", "cross_entropy", "rope")
KERNELS = FEW if BRIEF else kernel_names()
DIFFERENTIABLE = [name for name in DERIVATIVES if name in KERNELS]


def tuple_of(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def middle(spec):
    """The smallest of the sizes to check that is not the least of all."""
    return sorted(spec.check, key=lambda s: prod(s.values()))[min(1, len(spec.check) - 1)]


def seeded(name, sizes, dtype, width=None):
    """Inputs of an operation that require gradients where it has some."""
    spec, constant = spec_of(name), DERIVATIVES[name].constant
    results = []
    for input_, x in zip(spec.inputs, make(spec, sizes, dtype, "cpu"), strict=True):
        if x.is_floating_point():
            x = x.to(width or x.dtype).requires_grad_(input_ not in constant)
        results.append(x)
    return results


@pytest.mark.parametrize("name", KERNELS)
def test_an_operation_is_right_at_what_it_chooses(name):
    spec = spec_of(name)
    sizes, dtype = middle(spec), turn(spec, dtypes_of(spec))
    problem = PreparedProblem.of(spec, sizes, dtype, "cpu")
    outputs = tuple_of(getattr(ops, name)(*problem.inputs))
    checked = check_outputs(outputs, problem)
    assert checked.wrong is None, f"{name} at {dict(sizes)} in {dtype}: {checked.wrong}"


class Seen(TorchDispatchMode):
    """Names of the operators that a mode sees."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.names.append(str(op))
        return op(*args, **(kwargs or {}))


def test_who_watches_operators_sees_one():
    x = torch.randn(4, 40)
    expected = ops.softmax(x)
    with Seen() as seen:
        assert torch.equal(ops.softmax(x), expected)
    assert seen.names[0] == "workbench.softmax.default"
    with torch.profiler.profile() as profile:
        ops.softmax(x)
    assert "workbench::softmax" in {event.key for event in profile.key_averages()}
    with FakeTensorMode() as mode:
        assert isinstance(ops.softmax(mode.from_tensor(x)), FakeTensor)
    assert ops.softmax(x.to("meta")).is_meta
    assert torch.equal(torch.vmap(ops.softmax)(x.expand(2, 4, 40)), expected.expand(2, 4, 40))


def test_numbers_that_torch_has_yet_to_negate_are_negated():
    x = torch.randn(4, 40, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    assert torch.equal(ops.softmax(x), ops.softmax(x.resolve_neg().contiguous()))


@pytest.mark.parametrize("name", [*DIFFERENTIABLE, "transpose", "wkv7"])
def test_torch_finds_no_fault_with_an_operator(name):
    spec = spec_of(name)
    sizes = min(spec.check, key=lambda s: prod(s.values()))
    inputs = (
        seeded(name, sizes, "fp32") if name in DERIVATIVES else make(spec, sizes, "fp32", "cpu")
    )
    torch.library.opcheck(getattr(torch.ops.workbench, name).default, inputs)


# Gradients


def gradients(function, inputs, upstream, kept):
    """Gradients of some outputs, zeros for inputs that these do not depend on."""
    outputs = [y for i, y in enumerate(tuple_of(function(*inputs))) if i in kept]
    wanted = [x for x in inputs if x.requires_grad]
    upstream = [g.to(y.dtype) for g, y in zip(upstream, outputs, strict=True)]
    return torch.autograd.grad(outputs, wanted, upstream, materialize_grads=True)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_those_of_the_reference(name, dtype):
    """Of each output alone and of all together, against autograd of the reference in float64."""
    spec, least = spec_of(name), {"fp32": 1e-5, "bf16": 2e-2}[dtype]
    shapes = [t.shape(middle(spec)) for t in spec.outputs.values()]
    each = [(i,) for i in range(len(shapes))]
    for kept in {*each, tuple(range(len(shapes)))}:
        upstream = [torch.randn(shapes[i]).bfloat16() for i in kept]
        ours, theirs = (
            gradients(f, seeded(name, middle(spec), dtype, width), upstream, kept)
            for f, width in ((getattr(ops, name), None), (spec.reference, torch.float64))
        )
        for actual, expected in zip(ours, theirs, strict=True):
            near = least * (expected.square().mean().sqrt() + expected.abs())
            assert ((actual.double() - expected).abs() <= near).all(), (name, kept)


def test_a_gradient_of_rows_that_our_kernel_refuses_is_torchs():
    x, w = torch.randn(3, 7, requires_grad=True), torch.randn(7, requires_grad=True)
    ops.layer_norm(x, w, w).sum().backward()
    y = torch.nn.functional.layer_norm(x, (7,), w, w, 1e-5)
    dx, dw = torch.autograd.grad(y.sum(), (x, w))
    torch.testing.assert_close(x.grad, dx)
    torch.testing.assert_close(w.grad, dw)


def test_no_gradient_is_prepared_for_a_gradient():
    x = torch.randn(3, 8, requires_grad=True)
    y = ops.rms_norm(x, torch.ones(8))
    with pytest.raises(ops.OperationError, match="rms_norm_backward has no backward"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_a_frozen_weight_gets_no_gradient():
    x, w, a, b = make(spec_of("lora"), {"M": 5, "N": 8, "K": 16, "r": 2}, "fp32", "cpu")
    ops.lora(x, w, a.requires_grad_(), b.requires_grad_()).sum().backward()
    assert w.grad is None and x.grad is None and a.grad is not None and b.grad is not None


# Graphs


@pytest.mark.newest
def test_a_block_compiles_whole_with_any_number_of_rows_and_trains():
    def block(x, r, w, up, target):
        y, h = ops.fused_add_rms_norm(x, r, w)
        return ops.cross_entropy(ops.swiglu(y @ up) + h, target)[0].mean()

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (6, 11):
        inputs = [torch.randn(s) for s in ((rows, 8), (rows, 8), (8,), (8, 16))]
        target, leaves = torch.randint(8, (rows,)), [x.requires_grad_() for x in inputs]
        with torch.compiler.set_stance("default" if rows == 6 else "fail_on_recompile"):
            loss = compiled(*inputs, target)
        wanted = block(*inputs, target)
        torch.testing.assert_close(loss, wanted)
        ours, theirs = (torch.autograd.grad(y, leaves) for y in (loss, wanted))
        torch.testing.assert_close(ours, theirs)


def example(name):
    described = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


@pytest.mark.newest
def test_the_example_of_lora_learns():
    losses = example("lora").losses(20, 32, 32, 2, "cpu", "aot_eager")
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])


@pytest.mark.newest
def test_the_example_of_a_sampler_is_repeatable():
    tokens_of = example("sampler").tokens_of
    first = tokens_of(2, 128, 2, "cpu")
    assert tokens_of(2, 128, 2, "cpu") == first and len(first) == 2


@pytest.mark.newest
def test_the_example_of_rwkv_is_the_layer():
    far = example("rwkv7").distance({"B": 1, "T": 2, "H": 1, "P": 1}, "fp32", "cpu", "aot_eager")
    assert far < 1e-5


@pytest.mark.newest
def test_the_code_of_the_page_runs(capsys):
    page = (Path(__file__).parents[2] / "docs" / "ops.md").read_text(encoding="utf-8")
    names = {"__name__": "__main__"}  # a dataclass looks up its module
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.S):
        exec(block, names)
    assert names["y"].shape == (64, 512) and names["logits"].grad is not None
    assert "# " + capsys.readouterr().out.strip() in page
