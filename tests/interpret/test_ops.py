"""Operations in Triton's interpreter: values, torch's own checks of an operator, gradients, and
graphs of torch.compile."""

import importlib.util
import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, product
from math import prod
from pathlib import Path

import pytest
import torch
from kernel_cases import turn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from workbench import ops
from workbench.catalog import kernel_names, spec_of
from workbench.data.tuned_cache import LOOKED_UP
from workbench.measurement.correctness import PreparedProblem, check_outputs
from workbench.measurement.inputs import make
from workbench.ops.derivatives import DERIVATIVES
from workbench.ops.operation import operation_of
from workbench.ops.text import dtypes_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "ops"
# By day on the older Triton, too: those whose choice, shapes and gradients differ most.
FEW = ("softmax", "fused_add_rms_norm", "cross_entropy", "rope")
KERNELS = [pytest.param(n, marks=pytest.mark.smoke if n in FEW else ()) for n in kernel_names()]
DIFFERENTIABLE = [name for name in DERIVATIVES if name in kernel_names()]


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
    problem = PreparedProblem.make(spec, sizes, dtype, "cpu")
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


class Watched(TorchFunctionMode):
    """Names of the functions that a mode sees."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


class TwoImpls:
    """The operation rms_norm of two Impls that compute by its reference and are noted by name. The
    first takes dense rows at multiples of 16 bytes, and nothing while it is `closed`."""

    def __init__(self):
        spec = spec_of("rms_norm")
        self.ran, self.closed = [], False
        impls = [replace(impl, launch=self._launch(impl.name)) for impl in spec.impls[:2]]
        self.names = [impl.name for impl in impls]
        self.reference = spec.reference
        self.call = operation_of(replace(spec, name="rms_norm_of_two", impls=impls))

    def _launch(self, name):
        def launched(*inputs, config):
            if name == self.names[0] and not self.taken(*inputs):
                raise ValueError("x must have dense rows at multiples of 16 bytes")
            self.ran.append(name)
            return self.reference(*(x.resolve_neg().float() for x in inputs)).to(inputs[0].dtype)

        return launched

    def forget(self, *, closed):
        """Clear what was looked up, as a tuned cache that is written does."""
        self.closed = closed
        for choices in LOOKED_UP:
            choices.clear()

    def check(self, x, w):
        """One call: right, and by the first Impl that takes the inputs."""
        self.ran.clear()
        torch.testing.assert_close(self.call(x, w), self.reference(x, w), rtol=2e-2, atol=1e-3)
        x, w = x.resolve_neg(), w.resolve_neg()  # as the dispatcher does
        assert self.ran == [self.names[0 if self.taken(x, w) else 1]]

    def taken(self, *inputs):
        """Whether the first takes these inputs."""
        lie = (x.data_ptr() % 16 == 0 and x.is_contiguous() for x in inputs)
        return not self.closed and all(lie)


@pytest.fixture(scope="module")
def of_two():
    return TwoImpls()


def moved(x):
    return torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x)


LAID = {
    "dense": lambda x: x,
    "moved": moved,
    "transposed": lambda x: x.t().contiguous().t(),
    "fewer": lambda x: x[:3],
    "bf16": lambda x: x.bfloat16(),
    "negated": lambda x: torch._neg_view(x),
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "trained": lambda x: torch.nn.Parameter(x),
}
OF_W = ("dense", "moved", "parameter", "trained")
MODES = ("plain", "no_grad", "inference", "dispatch", "function", "profiler", "tuned")


def placed(of_x, of_w="dense"):
    """Inputs in layouts, of one dtype."""
    x, w = torch.randn(4, 8), torch.randn(8)
    return LAID[of_x](x), LAID[of_w](w.bfloat16() if of_x == "bf16" else w)


@pytest.mark.parametrize("second", LAID)
@pytest.mark.parametrize("first", LAID)
def test_a_warm_call_of_other_inputs_goes_the_way_of_a_first_one(of_two, first, second):
    of_two.forget(closed=False)
    with torch.no_grad():
        for how in (first, first, second, second, first):
            of_two.check(*placed(how))
            of_two.check(*placed("dense", how if how in OF_W else "dense"))


@pytest.mark.parametrize(
    "layouts",
    [("dense",), ("moved",), ("negated",), ("trained",), ("dense", "moved"), ("dense", "trained")],
)
def test_a_warm_call_goes_the_way_of_a_first_one(of_two, layouts):
    """After a call in any other mode: gradients, who watches, and what is tuned."""
    inputs = placed(*layouts)
    seen = {"dispatch": Seen(), "function": Watched()}
    of_two.forget(closed=False)
    for mode in chain.from_iterable(product(MODES, MODES)):
        if mode == "tuned":
            of_two.forget(closed=not of_two.closed)
        graded = mode not in ("no_grad", "inference") and any(t.requires_grad for t in inputs)
        with entered(mode, seen) as watcher:
            if graded:
                with pytest.raises(ops.OperationError, match="has no backward"):
                    of_two.call(*inputs)
            else:
                of_two.check(*inputs)
        if isinstance(watcher, torch.profiler.profile) and not graded:
            assert "workbench::rms_norm_of_two" in {e.key for e in watcher.key_averages()}
        elif mode in seen and not graded:
            assert "workbench.rms_norm_of_two.default" in seen[mode].names
            seen[mode].names.clear()


def test_a_warm_call_of_plain_tensors_builds_no_key(of_two, monkeypatch):
    x, w = torch.randn(4, 8), torch.randn(8)
    of_two.forget(closed=False)
    of_two.check(x, w)
    monkeypatch.setattr("workbench.ops.operation._key", lambda inputs: pytest.fail("a key"))
    of_two.check(x + 1, w)


def entered(mode, seen):
    """Return the context of a mode."""
    contexts = {"no_grad": torch.no_grad, "inference": torch.inference_mode}
    contexts |= {"profiler": torch.profiler.profile}
    return seen[mode] if mode in seen else contexts.get(mode, nullcontext)()


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
    # torch's own gradient of causal attention in bf16 is up to 0.025 away over 40 seeds
    spec, least = spec_of(name), {"fp32": 1e-5, "bf16": 5e-2}[dtype]
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
@pytest.mark.nightly
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
