"""Each Spec's tolerance against outputs that no right kernel gives, and inputs with hard values."""

import math
from dataclasses import replace

import pytest
import torch

from workbench import catalog
from workbench.measurement import inputs
from workbench.measurement.correctness import PreparedProblem, check_outputs, compare_values
from workbench.measurement.hard_inputs import hard_problem, is_well_conditioned
from workbench.spec import Spec, Tensor, Tolerance

pytestmark = pytest.mark.unit


def int8(y):
    """All outputs as whole multiples of one step, of which there are 127."""
    step = y.abs().max() / 127
    return (y / step).round() * step


def without_the_smallest(y):
    least = y.abs().flatten().kthvalue(max(1, y.numel() // 10)).values
    return torch.where(y.abs() <= least, 0.0, y)


DISTURBANCES = {
    "int8": int8,
    "a factor": lambda y: 1.01 * y,
    "zeros": without_the_smallest,
    "bf16": lambda y: y.bfloat16().double(),  # where fp32 was computed
}
CASES = [
    (name, dtype)
    for name in catalog.kernel_names()
    for dtype in catalog.spec_of(name).tolerance
    if not (name.startswith("fp8_") and dtype == "bf16")  # of the output only
]
EXACT = ("empty", "sample_top_p", "sample_topk_topp", "q4_k_quantize")  # or nothing to disturb


def disturbed(problem):
    """Yield each disturbance that changes an output of a problem, with the outputs."""
    spec = problem.spec
    kinds = [inputs.torch_dtype(t.dtype or problem.dtype) for t in spec.outputs.values()]
    right = [e.to(kind) for e, kind in zip(problem.expected_outputs, kinds, strict=True)]
    assert not check_outputs(right, problem).wrong
    for n, (name, kind) in enumerate(zip(spec.outputs, kinds, strict=True)):
        for word, disturb in DISTURBANCES.items() if kind.is_floating_point else ():
            # the state of 16-bit calls is fp32, and its own arithmetic loses more than bf16 does
            if word == "bf16" and (kind != torch.float32 or problem.dtype in spec.fp32_outputs):
                continue
            outputs = list(right)
            outputs[n] = disturb(problem.expected_outputs[n]).to(kind)
            if not torch.equal(outputs[n], right[n]):
                yield f"{name}: {word}", outputs


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_tolerance_rejects_what_no_rounding_gives(name, dtype):
    spec = catalog.spec_of(name)
    sizes = max(spec.check, key=lambda s: sum(math.prod(t.shape(s)) for t in spec.outputs.values()))
    problem = PreparedProblem.make(spec, sizes, dtype, "cpu", seed=1)
    every = list(disturbed(problem))
    accepted = [words for words, outputs in every if not check_outputs(outputs, problem).wrong]
    assert not accepted
    assert every or name in EXACT


# All errors together


def test_the_errors_of_an_output_together_have_a_bound_by_hand():
    """Of 10,000 values about 1, of which each is off by 0.01: allowed are 0.01 times the root of
    1 + 9 / 100, which is 0.01044."""
    expected, sign = torch.linspace(0.999, 1.001, 10_000), torch.ones(10_000)
    sign[::2] = -1
    tolerance = {"fp32": Tolerance(relative=0.1, rms=0.01)}
    right = compare_values("y", expected + 0.01 * sign, expected.double(), tolerance, "fp32")
    assert right.wrong is None and right.error == pytest.approx(0.01 / 0.010440, rel=1e-3)
    wrong = compare_values("y", expected + 0.0106 * sign, expected.double(), tolerance, "fp32")
    assert "the errors of y are 0.011 of it" in wrong.wrong
    one = compare_values("y", expected[:1] + 0.03, expected[:1].double(), tolerance, "fp32")
    assert one.wrong is None, "of one rounding nothing but its largest error is known"


def test_equal_values_are_one_rounding():
    """Of lora with equal rows everywhere: all of y is one value, and u, too, is rounded once."""
    spec = catalog.spec_of("lora")
    generator = torch.Generator().manual_seed(7)
    shapes = [(136, 136), (136, 136), (16, 136), (136, 16)]
    rows = [torch.randn(1, s[1], generator=generator).bfloat16().expand(s).clone() for s in shapes]
    x, w, a, b = (r.float() for r in rows)
    u = (x @ a.T).bfloat16().float()
    y = (x @ w.T + 2 * u @ b.T).bfloat16()
    problem = PreparedProblem.wrap(spec, "bf16", tuple(rows))
    assert not check_outputs((y,), problem).wrong
    worse = check_outputs(((1.02 * y.float()).bfloat16(),), problem)
    assert worse.wrong


def test_a_bound_may_depend_on_the_sizes():
    tolerance = Tolerance(0.1, rms=lambda K, **_: K / 1000)
    assert tolerance.rms_at({"K": 3, "M": 1}) == 0.003 and tolerance.rms_at(None) is None
    assert Tolerance(0.1, rms=0.5).rms_at(None) == 0.5 and Tolerance(0.1).rms_at({}) is None


def test_a_state_of_fp32_is_judged_by_the_arithmetic_of_its_call():
    spec = catalog.spec_of("wkv6")
    assert spec.tolerance_of("last", "fp32").rms_share == 1e-3
    assert spec.tolerance_of("last", "bf16") == spec.tolerance_of("y", "bf16")
    assert spec.tolerance_of("last", "bf16").rms_share == 4e-2


# Hard values


def spec_of(reference, tolerance=None, **more):
    tensors = {"x": Tensor("N"), "w": Tensor("N", make=lambda s, d, v, g: torch.ones(s).to(d))}
    return Spec("hard", tensors, {"y": Tensor("N")}, reference, lambda N: N, [{"N": 4096}], [],
                tolerance or {"fp32": Tolerance(1e-5, 1e-6)}, **more)  # fmt: skip


def test_few_elements_hold_outliers_whose_exponentials_overflow_too():
    """By chance half of the seeds had none, and a softmax without its maximum was right."""
    for seed in range(8):
        x, _ = hard_problem(spec_of(lambda x, w: x * w), {"N": 64}, "fp32", "cpu", seed).inputs
        assert x.max() >= 128 and x.min() <= -128


def test_hard_inputs_hold_outliers_zeros_and_subnormals_and_what_makers_made():
    x, w = hard_problem(spec_of(lambda x, w: x * w), {"N": 4096}, "fp32", "cpu", 5).inputs
    least = torch.finfo(torch.float32).smallest_normal
    assert 80 < x.abs().max() < 300 and 40 < (x.abs() > 8).sum() < 120
    assert 40 < (x == 0).sum() < 130 and 40 < ((x != 0) & (x.abs() < least)).sum() < 130
    assert torch.equal(w, torch.ones(4096)) and x.isfinite().all()


def test_nan_and_infinities_are_where_a_spec_says_what_becomes_of_them():
    spec = spec_of(lambda x, w: x * w, nonfinite=("x",))
    problem = hard_problem(spec, {"N": 4096}, "fp32", "cpu", 5)
    x, y = problem.inputs[0], problem.expected_outputs[0]
    assert (x.isnan().sum(), x.isposinf().sum(), x.isneginf().sum()) == (1, 1, 1)
    assert torch.equal(y.isnan(), x.isnan()) and y.isinf().sum() == 2
    assert not check_outputs((y.float(),), problem).wrong
    dropped = torch.nan_to_num(y).float()
    assert "NaN or infinity out of place" in check_outputs((dropped,), problem).wrong


@pytest.mark.parametrize(
    ("reference", "largest"),
    [
        (lambda x, w: torch.softmax(x, 0) * w, 300),  # which takes the maximum first
        (lambda x, w: x.exp() * w, 70),  # beyond 88 fp32 overflows
        (lambda x, w: (x + 1e6) - 1e6 + 0 * w, 5),  # fp32 is no good for it at all
    ],
)
def test_outliers_are_as_large_as_the_problem_bears(reference, largest):
    problem = hard_problem(spec_of(reference), {"N": 4096}, "fp32", "cpu", 5)
    assert largest / 6 < problem.inputs[0].abs().max() < largest


def test_a_problem_that_needs_subnormals_is_not_well_conditioned():
    x = torch.tensor([1e-40, 1.0])
    spec = spec_of(lambda x, w: 1 / (x * 1e10), tolerance={"fp32": Tolerance(1e-5)})
    problem = PreparedProblem.wrap(spec, "fp32", (x, torch.ones(2)), {"N": 2})
    assert not is_well_conditioned(problem)
    scaled = replace(spec, reference=lambda x, w: x * w)
    assert is_well_conditioned(PreparedProblem.wrap(scaled, "fp32", (x, torch.ones(2)), {"N": 2}))


def test_where_outputs_are_whole_numbers_the_inputs_are_the_usual_ones():
    spec = catalog.spec_of("sample_top_p")
    sizes = dict(spec.check[0])
    hard = hard_problem(spec, sizes, "fp32", "cpu", 3)
    usual = inputs.make(spec, sizes, "fp32", "cpu", 3)
    assert all(torch.equal(a, b) for a, b in zip(hard.inputs, usual, strict=True))
