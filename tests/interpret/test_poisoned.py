"""A partly written output never passes: outputs are poisoned before each check."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.adapted.call import ARGS, EXPECTED
from workbench.adapted.discover import discover
from workbench.adapted.kernel import spec_of
from workbench.adapted.referenced import expected_of, keep_read_outputs
from workbench.adapted.travel import AdaptedError
from workbench.adapted.write import call_of
from workbench.commands.tune_function import _complete_call
from workbench.measurement.correctness import PreparedProblem, check

pytestmark = pytest.mark.interpret

CONFIGS = [triton.Config({"BLOCK": b}) for b in (16, 64)]


@triton.jit
def doubled(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, i < n) * 2, i < n)


@triton.jit
def added(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(y + i, i < n) + tl.load(x + i, i < n) * 2, i < n)


@triton.jit
def loaded(x, y, n, BLOCK: tl.constexpr):
    """Loads what it never uses but where it stores it back."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.where(i < n // 2, tl.load(x + i, i < n) * 2, tl.load(y + i, i < n)), i < n)


def verdicts(folder, kernel, args, grid, reference=None, inputs=(), outputs=()):
    """What `tune` finds of each config, by the way that it takes, in this process."""
    given_ = (args, {})
    call, memory = call_of(kernel, given_, grid, CONFIGS, 0)
    torch.save(memory, folder / ARGS)
    call.write(folder)
    result = discover(folder, outputs, "cpu", reference is not None, inputs)
    call = _complete_call(call, result, None)
    if reference is not None:
        result = keep_read_outputs(reference, given_, call, memory, result)
        call = _complete_call(call, result, None)
        torch.save(expected_of(reference, given_, call), folder / EXPECTED)
    spec = spec_of(call, folder, "nowhere")
    problem = PreparedProblem.make(spec, spec.check[0], call.dtype, "cpu", 0)
    impl = spec.impls[0]
    return [check(impl, c, problem).wrong for c in impl.space(impl.config())]


def cover(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def twice(x, y, n):
    return x * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("held", ["result", "zeros", "nan"])
def test_a_part_of_the_grid_is_refused_whatever_the_output_holds(tmp_path, dtype, held):
    if dtype == torch.int32 and held != "zeros":
        return  # integers that hold the result are found by name alone, see below
    x = torch.arange(1, 257).to(dtype)
    y = {"result": x * 2, "zeros": x * 0, "nan": x * 0 + (0 if dtype == torch.int32 else torch.nan)}
    args = x, y[held].clone(), 256
    wrong = verdicts(tmp_path, doubled, args, lambda meta: (1,), twice)
    assert "y is written in 6.25 % of its elements; the first that is not is [16]" in wrong[0]
    assert "y is written in 25 % of its elements" in wrong[1]
    wrong = verdicts(tmp_path, doubled, args, (4,), twice)  # right for blocks of 64 alone
    assert "y is written in 25 % of its elements" in wrong[0] and wrong[1] is None
    assert verdicts(tmp_path, doubled, args, cover, twice) == [None, None]
    with pytest.raises(AdaptedError, match=r"writes y in 6.25 % of its elements.*inputs=\('y',\)"):
        verdicts(tmp_path, doubled, args, lambda meta: (1,))
    assert verdicts(tmp_path, doubled, args, cover) == [None, None]


@settings(max_examples=15)
@given(n=st.integers(1, 200), programs=st.integers(1, 13), held=st.booleans())
def test_what_passes_was_written_in_every_element(tmp_path_factory, n, programs, held):
    x = torch.arange(1.0, n + 1)
    args = x, x * 2 if held else torch.zeros(n), n
    wrong = verdicts(tmp_path_factory.mktemp("a"), doubled, args, (programs,), twice)
    assert [w is None for w in wrong] == [programs * b >= n for b in (16, 64)]


def test_integers_that_hold_the_result_are_found_by_name(tmp_path):
    x = torch.arange(256)
    wrong = verdicts(tmp_path, doubled, (x, x * 2, 256), (1,), twice, outputs=("y",))
    assert "y is written in 6.25 % of its elements" in wrong[0]


@pytest.mark.parametrize("kernel", [added, loaded])
def test_what_a_launch_loads_is_poisoned_unless_it_is_declared(tmp_path, kernel):
    x, y = torch.rand(100) + 1, torch.zeros(100)
    with pytest.raises(AdaptedError, match=r"inputs=\('y',\)"):
        verdicts(tmp_path, kernel, (x, y, 100), cover)
    assert all(verdicts(tmp_path, kernel, (x, y, 100), cover, twice))
    assert verdicts(tmp_path, kernel, (x, y, 100), cover, inputs=("y",)) == [None, None]


def test_an_output_that_the_reference_reads_is_an_input(tmp_path):
    args = torch.rand(100), torch.rand(100), 100
    assert verdicts(tmp_path, added, args, cover, lambda x, y, n: y + x * 2) == [None, None]
    wrong = verdicts(tmp_path, added, args, lambda meta: (1,), lambda x, y, n: y + x * 2)
    assert all("y is wrong in" in each for each in wrong)


@triton.jit
def counted(y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, i.to(tl.float32), i < n)


def test_a_launch_without_inputs_is_poisoned_too(tmp_path):
    def numbers(y, n):
        return torch.arange(n)

    wrong = verdicts(tmp_path, counted, (torch.arange(64.0), 64), (1,), numbers)
    assert wrong[0] is not None and "y is written in 25 %" in wrong[0] and wrong[1] is None
    assert verdicts(tmp_path, counted, (torch.arange(64.0), 64), cover, numbers) == [None, None]


def test_a_float_reference_of_an_integer_output_is_refused(tmp_path):
    x = torch.arange(64)
    with pytest.raises(AdaptedError, match=r"returns y as torch.float\d+.*return whole numbers"):
        verdicts(tmp_path, doubled, (x, x * 0, 64), cover, lambda x, y, n: x * 2.0)
