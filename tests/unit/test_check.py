"""An answer is right or it is not: every way to be wrong is found, and nothing else."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.measurement.correctness import Posed, check, judge
from workbench.spec import Spec, Tensor, Tolerance

N = 37
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
EXACT = Tolerance(relative=0.01, of_rms=0.0)


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
    made = tuple(torch.empty_like(t) for t in (x, x, n))
    for out, value in zip(made, (2 * x, x + n, n + 1), strict=True):
        out.copy_(value)
    return made


def found(launch, dtype="fp32", mutates=(), spec=None):
    """What the check says of a launcher, and the inputs before and after it."""
    spec = spec or spec_of()
    spec.impl(backend="torch", name="it", mutates=mutates)(launch)
    problem = Posed.of(spec, {"N": N}, dtype, "cpu")
    before = [x.clone() for x in problem.inputs]
    said = check(spec.impls[-1], None, problem)
    same = all(map(torch.equal, before, problem.inputs))
    assert same, "the next config is checked on the same inputs"
    return said


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_answer_is_right(dtype):
    said = found(right, dtype)
    assert said.wrong is None and said.error <= 1


def changed(place, value, output):
    def launch(x, n):
        made = right(x, n)
        made[output].view(-1)[place] = value(made[output].view(-1)[place])
        return made

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
    said = found(changed(place, value, output), dtype)
    assert said.error > 1
    assert said.wrong.startswith(f"{('y', 'z', 'count')[output]} is wrong in 2.7 % of its elements")
    assert f"the first is [{place}]" in said.wrong


@pytest.mark.parametrize("place", [0, N - 1])
@pytest.mark.parametrize("output", [0, 2])
def test_an_element_that_nobody_writes_is_found(place, output):
    """Also where zeros, which fresh memory often holds, would be right."""

    def launch(x, n):
        made = list(right(x, n))
        made[output] = torch.empty_like(made[output])
        made[output][:place].fill_(0)
        made[output][place + 1 :].fill_(0)
        return tuple(made)

    spec = Spec(
        "zeros", spec_of().inputs, spec_of().outputs,
        lambda x, n: (0 * x, x + n, 0 * n), lambda N: N, [{"N": N}], [{"N": N}],
        tolerance=dict.fromkeys(DTYPES, EXACT),
    )  # fmt: skip

    def zeros(x, n):
        made = list(launch(x, n))
        made[2 - output].fill_(0)
        return tuple(made)

    said = found(zeros, spec=spec)
    assert said.error > 1 and f"[{place}]" in said.wrong


@pytest.mark.parametrize(("at", "side"), [(-1, "before"), (N, "behind")])
def test_a_write_beside_an_output_is_found(at, side):
    def launch(x, n):
        made = right(x, n)
        y = made[0]
        y.as_strided((1,), (1,), y.storage_offset() + at).fill_(3.0)
        return made

    said = found(launch)
    assert said.error == math.inf and said.wrong == (
        f"the launch wrote {side} the memory of its output"
    )


def test_a_change_of_an_input_is_found_and_undone():
    def launch(x, n):
        made = right(x, n)
        n[3] += 1
        return made

    said = found(launch)
    assert said.error == math.inf and said.wrong.startswith("the launch changed its input n;")


def test_a_declared_change_is_made_on_a_copy():
    def launch(x, n):
        made = right(x, n)
        x.zero_()
        return made

    assert found(launch, mutates=("x",)).wrong is None


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda y, z, count: (y, z), "2 outputs where 3 were expected"),
        (lambda y, z, count: (y, z, count, y), "4 outputs where 3 were expected"),
        (lambda y, z, count: (y, z[:-1], count), r"z has shape (36,) where (37,) was expected"),
        (lambda y, z, count: (y.double(), z, count), "y has dtype torch.float64 where"),
        (lambda y, z, count: (y, z, count.long()), "count has dtype torch.int64 where"),
    ],
)  # fmt: skip
def test_outputs_of_another_kind_are_told(made, words):
    said = found(lambda x, n: made(*right(x, n)))
    assert said.error == math.inf and words in said.wrong


@given(
    share=st.floats(0.0, 3.0), relative=st.floats(1e-4, 0.1), of_rms=st.floats(0.0, 0.1),
    place=st.integers(0, N - 1),
)  # fmt: skip
def test_the_error_is_in_units_of_the_tolerance(share, relative, of_rms, place):
    """relative x |expected| + of_rms x the root mean square of all that is expected."""
    spec = spec_of(fp32=Tolerance(relative=relative, of_rms=of_rms))
    problem = Posed.of(spec, {"N": N}, "fp32", "cpu", seed=3)
    outputs = [right(*problem.inputs)[0], *right(*problem.inputs)[1:]]
    y = problem.expected[0]
    allowed = relative * abs(float(y[place])) + of_rms * float(y.square().mean().sqrt())
    outputs[0][place] = y[place] + share * allowed
    said = judge(outputs, problem)
    assert said.error == pytest.approx(share, rel=0.02, abs=0.02)
    if abs(share - 1) > 0.02:
        assert (said.wrong is None) == (share < 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_expected_to_be_no_number_must_be_that_one(value):
    spec = spec_of()
    x = torch.ones(N)
    x[5] = value
    problem = Posed.given(spec, "fp32", (x, torch.arange(N, dtype=torch.int32)))
    assert judge(right(*problem.inputs), problem).wrong is None
    for other in (math.nan, math.inf, -math.inf, 2.0):
        y, z, count = right(*problem.inputs)
        y[5] = other
        same = y.isnan()[5] if math.isnan(value) else float(y[5]) == value
        assert (judge((y, z, count), problem).wrong is None) == bool(same)


def test_what_overflows_the_dtype_is_expected_to():
    problem = Posed.given(
        spec_of(), "fp16", (torch.full((N,), 4e4, dtype=torch.float16), torch.zeros(N).int())
    )
    y, z, count = right(*problem.inputs)
    assert bool(y.isinf().all()) and judge((y, z, count), problem).wrong is None
    assert judge((torch.full_like(y, 65504.0), z, count), problem).wrong is not None
