"""An answer is right or it is not: every way to be wrong is found, and nothing else."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.measurement.correctness import PreparedProblem, _poison, check, check_outputs
from workbench.spec import Spec, Tensor, Tolerance

N = 37
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
EXACT = Tolerance(relative=0.01, rms_share=0.0)


def whole(shape, dtype, device, generator):
    return torch.arange(math.prod(shape), device=device).reshape(shape).to(dtype)


def spec_of(**more):
    """Twice the input, its sum with another, and a count."""
    return Spec(
        "toy", {"x": Tensor("N"), "n": Tensor("N", dtype="int32", make=whole)},
        {"y": Tensor("N"), "z": Tensor("N"), "count": Tensor("N", dtype="int32")},
        lambda x, n: (2 * x, x + n, n + 1), lambda N: N, [{"N": N}], [{"N": N}],
        tolerance={**dict.fromkeys(DTYPES, EXACT), **more},
    )  # fmt: skip


def right(x, n):
    created = tuple(torch.empty_like(t) for t in (x, x, n))
    for out, value in zip(created, (2 * x, x + n, n + 1), strict=True):
        out.copy_(value)
    return created


def result(launch, dtype="fp32", mutates=(), spec=None):
    """What the check says of a launcher, and the inputs before and after it."""
    spec = spec or spec_of()
    spec.impl(backend="torch", name="it", mutates=mutates)(launch)
    problem = PreparedProblem.make(spec, {"N": N}, dtype, "cpu")
    before = [x.clone() for x in problem.inputs]
    text = check(spec.impls[-1], None, problem)
    same = all(map(torch.equal, before, problem.inputs))
    assert same, "the next config is checked on the same inputs"
    return text


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_answer_is_right(dtype):
    text = result(right, dtype)
    assert text.wrong is None and text.error <= 1


def changed(place, value, output):
    def launch(x, n):
        created = right(x, n)
        created[output].view(-1)[place] = value(created[output].view(-1)[place])
        return created

    return launch


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, N // 2, N - 1])
@pytest.mark.parametrize("output", [0, 1, 2], ids=["first", "second", "whole"])
@pytest.mark.parametrize(
    "value", [lambda v: v + 100, lambda v: v * 0 + math.nan, lambda v: v * 0 - math.inf],
    ids=["off", "nan", "inf"],
)  # fmt: skip
def test_one_wrong_element_of_any_output_is_found(dtype, place, output, value):
    if output == 2:  # whole numbers know neither
        value = lambda v: v + 1  # noqa: E731
    text = result(changed(place, value, output), dtype)
    assert text.error > 1
    assert text.wrong.startswith(f"{('y', 'z', 'count')[output]} is wrong in 2.7 % of its elements")
    assert f"the first is [{place}]" in text.wrong


@pytest.mark.parametrize("place", [0, N - 1])
@pytest.mark.parametrize("output", [0, 2])
def test_an_element_that_nobody_writes_is_found(place, output):
    """Also where zeros, which fresh memory often holds, would be right."""

    def launch(x, n):
        created = list(right(x, n))
        created[output] = torch.empty_like(created[output])
        created[output][:place].fill_(0)
        created[output][place + 1 :].fill_(0)
        return tuple(created)

    spec = Spec(
        "zeros", spec_of().inputs, spec_of().outputs,
        lambda x, n: (0 * x, x + n, 0 * n), lambda N: N, [{"N": N}], [{"N": N}],
        tolerance=dict.fromkeys(DTYPES, EXACT),
    )  # fmt: skip

    def zeros(x, n):
        created = list(launch(x, n))
        created[2 - output].fill_(0)
        return tuple(created)

    text = result(zeros, spec=spec)
    assert text.error > 1 and f"[{place}]" in text.wrong


@pytest.mark.parametrize(("at", "operand"), [(-1, "before"), (N, "behind")])
def test_a_write_beside_an_output_is_found(at, operand):
    def launch(x, n):
        created = right(x, n)
        y = created[0]
        y.as_strided((1,), (1,), y.storage_offset() + at).fill_(3.0)
        return created

    text = result(launch)
    assert text.error == math.inf and text.wrong == (
        f"the launch wrote {operand} the memory of its output"
    )


def test_a_change_of_an_input_is_found_and_undone():
    def launch(x, n):
        created = right(x, n)
        n[3] += 1
        return created

    text = result(launch)
    assert text.error == math.inf and text.wrong.startswith("the launch changed its input n;")


def test_a_declared_change_is_made_on_a_copy():
    def launch(x, n):
        created = right(x, n)
        x.zero_()
        return created

    assert result(launch, mutates=("x",)).wrong is None


@pytest.mark.parametrize(
    ("compiled", "words"),
    [
        (lambda y, z, count: (y, z), "2 outputs where 3 were expected"),
        (lambda y, z, count: (y, z, count, y), "4 outputs where 3 were expected"),
        (lambda y, z, count: (y, z[:-1], count), r"z has shape (36,) where (37,) was expected"),
        (lambda y, z, count: (y.double(), z, count), "y has dtype torch.float64 where"),
        (lambda y, z, count: (y, z, count.long()), "count has dtype torch.int64 where"),
    ],
)  # fmt: skip
def test_outputs_of_another_kind_are_told(compiled, words):
    text = result(lambda x, n: compiled(*right(x, n)))
    assert text.error == math.inf and words in text.wrong


@given(
    share=st.floats(0.0, 3.0), relative=st.floats(1e-4, 0.1), of_rms=st.floats(0.0, 0.1),
    place=st.integers(0, N - 1),
)  # fmt: skip
def test_the_error_is_in_units_of_the_tolerance(share, relative, of_rms, place):
    """relative x |expected| + of_rms x the root mean square of all that is expected."""
    spec = spec_of(fp32=Tolerance(relative=relative, rms_share=of_rms))
    problem = PreparedProblem.make(spec, {"N": N}, "fp32", "cpu", seed=3)
    outputs = [right(*problem.inputs)[0], *right(*problem.inputs)[1:]]
    y = problem.expected_outputs[0]
    allowed = relative * abs(float(y[place])) + of_rms * float(y.square().mean().sqrt())
    outputs[0][place] = y[place] + share * allowed
    text = check_outputs(outputs, problem)
    assert text.error == pytest.approx(share, rel=0.02, abs=0.02)
    if abs(share - 1) > 0.02:
        assert (text.wrong is None) == (share < 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_expected_to_be_no_number_must_be_that_one(value):
    spec = spec_of()
    x = torch.ones(N)
    x[5] = value
    problem = PreparedProblem.wrap(spec, "fp32", (x, torch.arange(N, dtype=torch.int32)))
    assert check_outputs(right(*problem.inputs), problem).wrong is None
    for other in (math.nan, math.inf, -math.inf, 2.0):
        y, z, count = right(*problem.inputs)
        y[5] = other
        same = y.isnan()[5] if math.isnan(value) else float(y[5]) == value
        assert (check_outputs((y, z, count), problem).wrong is None) == bool(same)


def test_what_overflows_the_dtype_is_expected_to():
    problem = PreparedProblem.wrap(
        spec_of(), "fp16", (torch.full((N,), 4e4, dtype=torch.float16), torch.zeros(N).int())
    )
    y, z, count = right(*problem.inputs)
    assert bool(y.isinf().all()) and check_outputs((y, z, count), problem).wrong is None
    assert check_outputs((torch.full_like(y, 65504.0), z, count), problem).wrong is not None


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16])
def test_fresh_memory_holds_nan(dtype):
    _poison(flat := torch.zeros(5, dtype=dtype))
    assert torch.isnan(flat.float()).all()
