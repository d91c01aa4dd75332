"""bf16 in the interpreter is what a GPU computes: each operation rounds once, to the nearest."""

import pytest
import torch
import triton
import triton.language as tl

import workbench.dsl
from workbench.dsl.interpreter import narrow, wide

assert workbench.dsl.INTERPRETED
N = 64
UNARY = {
    "neg": lambda x, y: -x,
    "abs": lambda x, y: x.abs(),
    "to fp32": lambda x, y: x,
    "to int": lambda x, y: x.to(torch.int32).float(),
    "to fp16": lambda x, y: x.half().float(),
    "from fp32": lambda x, y: x * 1.00390625 + 0.001,
    "from int": lambda x, y: torch.arange(N, dtype=torch.float32) * 1025,
    "constant": lambda x, y: x * 1.5,
    "floor": lambda x, y: x.floor(),
}
BINARY = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "max": torch.maximum,
    "min": torch.minimum,
    "clamp": lambda x, y: torch.clamp(x, -0.5, 0.5),
    "less": lambda x, y: (x < y).float(),
    "equal": lambda x, y: (x == y).float(),
    "where": lambda x, y: torch.where(x > y, x, y),
    "fma": lambda x, y: (x.double() * y.double() + x.double()).float(),
    "sum": lambda x, y: x.sum().expand(N),
    "largest": lambda x, y: x.max().expand(N),
    "reduce max": lambda x, y: x.max().expand(N),
    "own reduction": lambda x, y: x.min().expand(N),
    "cumulative max": lambda x, y: x.cummax(0).values,
    "sorted": lambda x, y: x.sort().values,
}


@triton.jit
def _least(a, b):
    return tl.where(a < b, a, b)


@triton.jit
def _most(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def _compute(x_ptr, y_ptr, out_ptr, OP: tl.constexpr, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    if OP == "neg":
        r = -x
    elif OP == "abs":
        r = tl.abs(x)
    elif OP == "to fp32":
        r = x.to(tl.float32)
    elif OP == "to int":
        r = x.to(tl.int32)
    elif OP == "to fp16":
        r = x.to(tl.float16).to(tl.float32)
    elif OP == "from fp32":
        r = (x.to(tl.float32) * 1.00390625 + 0.001).to(tl.bfloat16)
    elif OP == "from int":
        r = (i * 1025).to(tl.bfloat16)
    elif OP == "constant":
        r = x * 1.5
    elif OP == "floor":
        r = tl.floor(x.to(tl.float32))
    elif OP == "add":
        r = x + y
    elif OP == "sub":
        r = x - y
    elif OP == "mul":
        r = x * y
    elif OP == "div":
        r = x / y
    elif OP == "max":
        r = tl.maximum(x, y)
    elif OP == "min":
        r = tl.minimum(x, y)
    elif OP == "clamp":
        r = tl.clamp(x, -0.5, 0.5)
    elif OP == "less":
        r = x < y
    elif OP == "equal":
        r = x == y
    elif OP == "where":
        r = tl.where(x > y, x, y)
    elif OP == "fma":
        r = tl.fma(x, y, x)
    elif OP == "sum":
        r = tl.sum(x, 0) + tl.zeros([COUNT], tl.float32)
    elif OP == "largest":
        r = tl.max(x, 0) + tl.zeros([COUNT], tl.float32)
    elif OP == "reduce max":
        r = tl.reduce(x, 0, tl.standard._elementwise_max) + tl.zeros([COUNT], tl.bfloat16)
    elif OP == "own reduction":
        r = tl.reduce(x, 0, _least) + tl.zeros([COUNT], tl.bfloat16)
    elif OP == "cumulative max":
        r = tl.associative_scan(x, 0, _most)
    elif OP == "sorted":
        r = tl.sort(x)
    tl.store(out_ptr + i, r)


@triton.jit
def _product(a_ptr, b_ptr, out_ptr, SIZE: tl.constexpr):
    m = tl.arange(0, SIZE)[:, None]
    n = tl.arange(0, SIZE)[None, :]
    at = m * SIZE + n
    tl.store(out_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at)))


@triton.jit
def _count(x_ptr, out_ptr, COUNT: tl.constexpr):
    i = tl.arange(0, COUNT)
    tl.atomic_add(out_ptr + i % 3, tl.load(x_ptr + i), i < COUNT - 1)


def drawn(seed):
    return torch.randn(N, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_an_operation_is_rounded_once(name):
    x, y = drawn(1), drawn(2)
    y[::7] = x[::7]
    rounded = (UNARY | BINARY)[name](x.float(), y.float())
    for dtype in (torch.bfloat16, torch.float32):
        if dtype == torch.float32 and name not in ("to fp32", "to fp16", "div", "less", "equal"):
            continue
        got = torch.empty(N, dtype=dtype)
        _compute[(1,)](x, y, got, name, N)
        torch.testing.assert_close(got, rounded.to(dtype), rtol=0, atol=0, equal_nan=True)


def test_a_product_of_tiles():
    a, b = (torch.randn(16, 16, generator=torch.Generator().manual_seed(i)) for i in (1, 2))
    got = torch.empty(16, 16)
    _product[(1,)](a.bfloat16(), b.bfloat16(), got, 16)
    torch.testing.assert_close(got, a.bfloat16().float() @ b.bfloat16().float())


def test_atomic_additions_round_each_sum():
    x, got, expected = drawn(3), torch.zeros(3).bfloat16(), torch.zeros(3).bfloat16()
    _count[(1,)](x, got, N)
    for i in range(N - 1):
        expected[i % 3] += x[i]
    assert got.tolist() == expected.tolist()


def test_every_bf16_survives_and_every_fp32_is_rounded_like_torch():
    from triton.runtime.interpreter import TensorHandle

    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    handle = TensorHandle(every.numpy(), tl.bfloat16)
    again = torch.from_numpy(narrow(wide(handle)).data)
    same = again.view(torch.bfloat16), every.view(torch.bfloat16)
    torch.testing.assert_close(*same, rtol=0, atol=0, equal_nan=True)
    bits = torch.randint(-(1 << 31), 1 << 31, (1 << 16,), generator=torch.Generator())
    given = bits.to(torch.int32).view(torch.float32)
    ours = torch.from_numpy(narrow(TensorHandle(given.numpy(), tl.float32)).data)
    torch.testing.assert_close(
        ours.view(torch.bfloat16), given.bfloat16(), rtol=0, atol=0, equal_nan=True
    )
