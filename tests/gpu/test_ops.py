"""Operations on a GPU: whole graphs of Inductor, CUDA graphs, and another current device."""

import pytest
import torch

from workbench import ops
from workbench.catalog import kernel_names, spec_of
from workbench.measurement.correctness import PreparedProblem, check_outputs
from workbench.measurement.inputs import make
from workbench.ops.derivatives import DERIVATIVES
from workbench.ops.text import dtypes_of

if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU here", allow_module_level=True)


def of(name, sizes=None, dtype=None):
    spec = spec_of(name)
    return make(spec, sizes or spec.check[-1], dtype or dtypes_of(spec)[-1], "cuda")


def tuple_of(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize("name", kernel_names())
def test_an_operation_is_right_at_what_it_chooses(name):
    spec = spec_of(name)
    for sizes in (spec.check[0], spec.check[-1]):
        problem = PreparedProblem.make(spec, sizes, dtypes_of(spec)[-1], "cuda")
        for _ in range(2):  # the first launch, and a warm one
            outputs = tuple_of(getattr(ops, name)(*problem.inputs))
            checked = check_outputs(outputs, problem)
            assert checked.wrong is None, f"{name} at {dict(sizes)}: {checked.wrong}"


@pytest.mark.parametrize("name", kernel_names())
def test_torch_finds_no_fault_with_an_operator(name):
    inputs = list(of(name))
    if (derivative := DERIVATIVES.get(name)) is not None:
        for i, input_ in enumerate(spec_of(name).inputs):
            if inputs[i].is_floating_point() and input_ not in derivative.constant:
                inputs[i].requires_grad_()
    tests = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if not any(x.dtype == torch.float8_e4m3fn for x in inputs):
        tests.append("test_schema")  # it multiplies its inputs, which torch cannot in 8 bits
    torch.library.opcheck(getattr(torch.ops.workbench, name).default, inputs, test_utils=tests)


def block(x, r, w, up, target):
    y, h = ops.fused_add_rms_norm(x, r, w)
    return ops.cross_entropy(ops.swiglu(y @ up) + h, target)[0].mean()


def inputs_of_block(rows, dtype=torch.float32):
    shapes = ((rows, 256), (rows, 256), (256,), (256, 512))
    tensors = [torch.randn(s, device="cuda", dtype=dtype, requires_grad=True) for s in shapes]
    return [*tensors, torch.randint(256, (rows,), device="cuda")]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_block_compiles_whole_under_inductor_and_trains(mode):
    compiled = torch.compile(block, fullgraph=True, mode=mode)
    for rows in (64, 96):
        inputs = inputs_of_block(rows)
        ours, theirs = compiled(*inputs), block(*inputs)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        ours, theirs = (torch.autograd.grad(loss, inputs[:4]) for loss in (ours, theirs))
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", kernel_names())
def test_an_operation_in_a_cuda_graph_sees_new_inputs(name):
    inputs, others = of(name), of(name)
    call = getattr(ops, name)
    for x in others:
        if x.is_floating_point() and x.dtype != torch.float8_e4m3fn:
            x.mul_(0.5)
    expected = [y.clone() for y in tuple_of(call(*others))]
    call(*inputs)  # chooses and compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = tuple_of(call(*inputs))
    for x, other in zip(inputs, others, strict=True):
        x.copy_(other)
    graph.replay()
    torch.cuda.synchronize()
    for y, wanted in zip(outputs, expected, strict=True):
        torch.testing.assert_close(y, wanted, equal_nan=True)


def test_strides_that_a_descriptor_cannot_take_have_an_impl():
    a = torch.randn(512, 513, device="cuda", dtype=torch.bfloat16)[:, 1:]
    b = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    torch.testing.assert_close(ops.matmul(a, b), a @ b, rtol=2e-2, atol=0.5)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_inputs_on_a_gpu_that_is_not_the_current_one():
    x = torch.randn(64, 256, device="cuda:1")
    torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1))


def test_the_benchmark_of_overhead_runs():
    import importlib.util
    from pathlib import Path

    path = Path(__file__).parents[2] / "benchmarks" / "ops_overhead.py"
    described = importlib.util.spec_from_file_location("ops_overhead", path)
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    name, count, bare, *_ = module.row("softmax", stub=False, rounds=3)
    assert (name, count) == ("softmax", 1) and float(bare) > 0
