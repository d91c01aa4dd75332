"""Scalars and libdevice in the interpreter: as a compiled launch has them."""

import importlib.util
import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench import dsl  # noqa: F401  # mends the interpreter
from workbench.dsl.interpreter import _meanings

pytestmark = pytest.mark.interpret


@triton.jit
def scalars(out, n, eps, flag, kinds, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, eps.to(tl.float64))
    tl.store(kinds, eps.dtype == tl.float32)
    tl.store(kinds + 1, n.dtype == (tl.int64 if B == 2 else tl.int32))
    if flag:
        tl.store(kinds + 2, 1)


@settings(max_examples=20)
@given(eps=st.floats(allow_nan=False), flag=st.booleans(), large=st.booleans())
def test_python_scalars_are_those_of_a_compiled_launch(eps, flag, large):
    block, out = 2 if large else 1, torch.zeros(2, dtype=torch.float64)
    kinds = torch.zeros(3, dtype=torch.int32)
    with np.errstate(over="ignore"):
        scalars[(1,)](out, 2**40 if large else 7, eps, flag, kinds, B=block)
        assert float(out[0]) == float(np.float32(eps))
    assert kinds.tolist() == [1, 1, int(flag)]


def test_shapes_that_are_shared_are_still_checked():
    """The second type of a shape is made of the first one's; an odd extent is refused as before."""
    first, second = (tl.block_type(kind, [8, tl.constexpr(4)]) for kind in (tl.int32, tl.float16))
    assert first.shape is second.shape and second.numel == 32
    assert first.name != second.name == str(second) and second.scalar == tl.float16
    assert second.name.endswith("fp16>") and first == tl.block_type(tl.int32, second.shape)
    assert first != tl.block_type(tl.int32, [4, 8])
    for shape, error in (([8, 4.0], TypeError), ([8, 3], ValueError), ([], TypeError)):
        with pytest.raises(error):
            tl.block_type(tl.int32, shape)
    with pytest.raises(AssertionError):
        tl.block_type(tl.int32, 8)


@triton.jit
def half(x, out, scale, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + i) * scale)


def test_a_product_with_a_float_is_rounded_once():
    """fp16 times an fp32 scalar is fp32, as in a compiled launch; a Python float would be fp16."""
    x, out = torch.tensor([1.0, 3.0], dtype=torch.float16), torch.empty(2)
    half[(1,)](x, out, 0.1, B=2)
    assert torch.equal(out, x.float() * torch.tensor(0.1))


@triton.jit
def gelu(x, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + i, i < n, 0.0)
    inner = tl.extra.libdevice.tanh(0.7978845608 * (v + 0.044715 * v * v * v))
    tl.store(out + i, 0.5 * v * (1 + inner), i < n)


def test_tanh_of_libdevice_gives_gelu():
    x, out = torch.randn(100), torch.empty(100)
    gelu[(1,)](x, out, 100, B=128)
    wanted = torch.nn.functional.gelu(x, approximate="tanh")
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-6)


@triton.jit
def one_of(f: tl.constexpr, x, y, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, f(tl.load(x + i), tl.load(y + i)))


@pytest.mark.parametrize("module", ["libdevice", "cuda.libdevice"])
@pytest.mark.parametrize("name", ["pow", "atan2", "fmod", "hypot", "copysign"])
def test_functions_of_two_operands(module, name):
    place = tl.extra
    for part in module.split("."):
        place = getattr(place, part)
    x, y, out = torch.rand(8) + 0.1, torch.rand(8) + 0.1, torch.empty(8)
    one_of[(1,)](getattr(place, name), x, y, out, B=8)
    wanted = [getattr(math, name)(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert out.tolist() == pytest.approx(wanted, rel=1e-6)


def test_every_function_is_one_of_libdevice_and_has_its_meaning():
    from triton.language.extra import cuda, libdevice

    known = {*vars(libdevice), *vars(cuda.libdevice)}
    assert not {name for name in _meanings() if name not in known}
    for name in ("exp", "log", "sin", "erf", "erfc", "lgamma", "expm1", "tanh", "floor"):
        assert float(_meanings()[name](np.float64(0.7))) == pytest.approx(getattr(math, name)(0.7))
    assert [float(_meanings()["round"](np.float64(v))) for v in (0.5, -0.5, 2.5)] == [1, -1, 3]


@triton.jit
def counted(out, n, first: tl.constexpr):
    for i in range(0, n):
        tl.store(out + i, i.to(tl.int64) * first)
    for i in tl.range(0, n, 2):
        tl.store(out + i, -tl.cast(i, tl.int64))


def test_the_index_of_a_loop_is_a_tensor():
    out = torch.empty(6, dtype=torch.int64)
    counted[(1,)](out, 6, 10)
    assert out.tolist() == [0, 10, -2, 30, -4, 50]


stored = tl.store  # as `from triton.language import store` would name it


@triton.jit
def by_its_own_name(out, n):
    stored(out, 7.0, (n > 3) & tl.full((), 1, tl.int1))


def test_functions_of_triton_may_be_imported_by_name():
    for n in (3, 4):
        out = torch.zeros(2)
        by_its_own_name[(1,)](out, n)
        assert out.tolist() == [7 * (n > 3), 0]


@triton.jit
def doubly_masked(x, out, T, D, B: tl.constexpr):
    d = tl.arange(0, B)
    for i in range(0, 2):
        mask = (d < D) & ((tl.program_id(0) * 2 + i) < T)
        tl.store(out + i * B + d, tl.load(x + d, mask, 0.0) + 1, mask)


def test_a_mask_may_be_joined_with_a_condition_of_the_loop():
    out = torch.zeros(2, 4)
    doubly_masked[(1,)](torch.ones(4), out, 1, 3, B=4)
    assert out.tolist() == [[2, 2, 2, 0], [0, 0, 0, 0]]


@triton.jit
def angles(y_ptr, x_ptr, out):
    y, x = tl.load(y_ptr + tl.arange(0, 2)), tl.load(x_ptr + tl.arange(0, 4))
    each = tl.extra.libdevice.atan2(y[:, None], x[None, :])
    tl.store(out + tl.arange(0, 2), tl.sum(each, axis=1) + tl.extra.libdevice.atan2(0.0, 1.0))


def test_operands_of_libdevice_are_broadcast():
    y, x, out = torch.tensor([1.0, -2.0]), torch.tensor([1.0, 2.0, -3.0, 4.0]), torch.empty(2)
    angles[(1,)](y, x, out)
    torch.testing.assert_close(out, torch.atan2(y[:, None], x[None, :]).sum(1))


def _loaded_again():
    """Return rsqrt as a package has it that loads its own copy of libdevice."""
    spec = importlib.util.find_spec("triton.language.extra.libdevice")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.rsqrt


own_rsqrt = _loaded_again()


@triton.jit
def by_own_name(x, y, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(y + at, own_rsqrt(tl.load(x + at)))


def test_a_function_of_libdevice_that_a_file_got_its_own_way_computes():
    x, y = torch.tensor([4.0, 0.25]), torch.empty(2)
    by_own_name[(1,)](x, y, B=2)
    assert y.tolist() == [0.5, 2.0]
