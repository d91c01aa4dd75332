"""Kernels as people bring them, tuned for an H200 that is not there: what the answer is.

Each row is a fault, a habit or a limit that was met in a kernel of somebody else.
"""

import logging
from dataclasses import dataclass, field

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import workbench as wb
from workbench.spec import Tolerance

pytestmark = [pytest.mark.compile, pytest.mark.nightly]

C = triton.Config


@triton.jit
def totals(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y, tl.load(y) + tl.sum(tl.load(x + i, i < n, other=0.0)))


@triton.jit
def counted(y, n, B: tl.constexpr):
    i = 0
    while tl.condition(i < n):
        i += 1
    tl.store(y + tl.arange(0, B), i)


@triton.jit
def by_second_axis(x, y, B: tl.constexpr):
    i = tl.program_id(1) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i) * 2.0)


@triton.jit
def rounded(a, b, c, BK: tl.constexpr, P: tl.constexpr):
    i = tl.arange(0, 32)
    acc = tl.zeros((32, 32), tl.float32)
    for s in range(0, 256, BK):
        k = s + tl.arange(0, BK)
        left, right = a + i[:, None] * 256 + k[None], b + k[:, None] * 32 + i[None]
        acc += tl.dot(tl.load(left), tl.load(right), input_precision=P)
    tl.store(c + i[:, None] * 32 + i[None], acc)


@triton.jit
def gathered(at, table, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(table + tl.load(at + i, i < n, other=0), i < n), i < n)


@triton.jit
def whole_blocks(x, y, n, B: tl.constexpr):
    row, total = tl.program_id(0), tl.zeros((B,), tl.float32)
    for j in range(0, n // B):  # the rest of a row is left out
        total += tl.load(x + row * n + j * B + tl.arange(0, B))
    tl.store(y + row, tl.sum(total))


@triton.jit
def unmasked(x, y, n, SHIFT: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i + SHIFT) * 2.0, i < n)


@triton.jit
def neighbours(x, y, W, n, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    q = y + row * W
    tl.store(q + i, tl.load(x + row * W + i, i < W, other=0.0), i < W)
    tl.store(q + B // 2 + i, tl.zeros((B,), tl.float32), (row * W + B // 2 + i < n) & (B > W))


@triton.jit
def leaky(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, i < n)
    tl.store(y + i, tl.where(v < 0, v * 0.5, v), i < n)


@triton.jit
def block_sums(x, y, M, K, BM: tl.constexpr, BK: tl.constexpr):
    rows = tl.make_tensor_descriptor(x, [M, K], [K, 1], [BM, BK])
    p, total = tl.program_id(0), tl.zeros((BM,), tl.float32)
    for s in range(0, K, BK):
        total += tl.sum(rows.load([p * BM, s]).to(tl.float32), 1)
    tl.store(y + p * BM + tl.arange(0, BM), total)


@triton.jit
def host_copy(a, b, B: tl.constexpr):
    b.store([tl.program_id(0) * 16, 0], a.load([tl.program_id(0) * 16, 0]))


@triton.jit
def same_border(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, 2 * B)
    tl.store(y + i, tl.load(x + i, i < n), i < n)


@triton.jit
def block_totals(x, y, n, WRONG: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    total = tl.sum(tl.load(x + i, i < n, other=0.0))
    tl.store(y + tl.program_id(0), total * WRONG)


def zeroing(name):
    return lambda arguments: arguments[name].zero_()


@triton.autotune([C({"B": b}, pre_hook=zeroing("y")) for b in (32, 64)], key=["n"])
@triton.jit
def hooked(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(y, tl.sum(tl.load(x + i, i < n, other=0.0)))


def blocks(name):
    return lambda meta: (triton.cdiv(meta[name], meta["B"]),)


N = 256
INTEGERS = torch.zeros(N, dtype=torch.int64)
PAST = INTEGERS.index_fill(0, torch.tensor([17]), 100)
FAR = INTEGERS.index_fill(0, torch.tensor([17]), 10_000_000)
X = torch.randn(1024, generator=torch.Generator().manual_seed(0))
HALF = torch.ones(64, 512, dtype=torch.bfloat16)
TWO = [C({"B": 64}), C({"B": 128})]
FACTORS = torch.linspace(0.1, 1.7, 8192).reshape(32, 256), X.repeat(8).reshape(256, 32)
TF32 = [C({"BK": 32, "P": "tf32"}), C({"BK": 32, "P": "ieee"})]


@dataclass(frozen=True)
class Row:
    """One call of `wb.tune`, and a part of its answer: of the refusal, or of the config and of what
    is printed."""

    kernel: object
    args: tuple
    grid: object
    configs: object
    refused: str = ""
    wins: dict = field(default_factory=dict)
    says: str = ""
    options: dict = field(default_factory=dict)


def product(a, b, c):
    return a @ b


ROWS = {
    "a race without atomics": Row(
        totals, (X, torch.zeros(1), 1024), blocks("n"), TWO, "has a race: program 0 and",
        options={"inputs": ("y",)},
    ),
    "integers only": Row(
        counted, (torch.empty(16, dtype=torch.int32), 0), (1,),
        [C({"B": 16}, num_warps=w) for w in (1, 2)], wins={"B": 16},
    ),
    "too many programs along the second axis": Row(
        by_second_axis, (torch.empty(1 << 18), torch.empty(1 << 18)),
        lambda meta: (1, (1 << 18) // meta["B"]), [C({"B": 2}), C({"B": 4})],
        "at most 65535 programs along its second axis, not 131072",
    ),
    "tf32 against a reference": Row(
        rounded, (*FACTORS, torch.empty(32, 32)), (1,), TF32, wins={"P": "tf32"},
        says="10 bits of mantissa", options={"reference": product},
    ),
    "tf32 against a reference and a tolerance": Row(
        rounded, (*FACTORS, torch.empty(32, 32)), (1,), TF32,
        wins={"P": "ieee"}, says="P ieee",
        options={"reference": product, "tolerance": Tolerance(1e-5, 1e-5)},
    ),
    "an index one past the table": Row(
        gathered, (PAST, X[:100].clone(), torch.empty(N), N), blocks("n"), TWO,
        "element 100 of table, which has 100, in program 0, line",
    ),
    "an index far past the table": Row(
        gathered, (FAR, X[:100].clone(), torch.empty(N), N), blocks("n"), TWO,
        "element 10,000,000 of table, which has 100",
    ),
    "a first config that is wrong alone": Row(
        whole_blocks, (X[:768].reshape(4, 192).clone(), torch.empty(4), 192), (4,),
        [C({"B": b}) for b in (128, 64, 32)], wins={"B": 128},
        says="the first may be the wrong one; pass reference=",
    ),
    "a tail without a mask": Row(
        unmasked, (X[:1000].clone(), torch.empty(1000), 1000), blocks("n"),
        [C({"SHIFT": 0, "B": b}) for b in (64, 128)], "reads out of bounds: element 1,000 of x",
    ),
    "the element before the first": Row(
        unmasked, (X.clone(), torch.empty(1024), 1024), blocks("n"),
        [C({"SHIFT": -1, "B": b}) for b in (64, 128)], "reads out of bounds: element -1 of x",
    ),
    "a config that overwrites its neighbour's row": Row(
        neighbours, (X[:128].reshape(4, 32).clone(), torch.empty(4, 32), 32, 128), (4,),
        [C({"B": b}, num_warps=1) for b in (64, 32)], wins={"B": 32},
        options={"reference": lambda x, y, W, n: x.clone()},
    ),
    "views that overlap": Row(
        leaky, (X[:-1], X[1:], 1023), blocks("n"), TWO, wins={"B": 64},
        says="x and y overlap in memory",
    ),
    "descriptors of rows that are no multiple of 16 bytes": Row(
        block_sums, (HALF[:, :511].contiguous(), torch.empty(64), 64, 511),
        lambda meta: (64 // meta["BM"],), [C({"BM": 16, "BK": 64})],
        "stride must be 16-byte aligned",
    ),
    "descriptors": Row(
        block_sums, (HALF, torch.empty(64), 64, 512), lambda meta: (64 // meta["BM"],),
        [C({"BM": 16, "BK": 64}), C({"BM": 16, "BK": 256})], wins={"BK": 256},
        options={"reference": lambda x, y, M, K: x.sum(1)},
    ),
    "descriptors of the caller": Row(
        host_copy,
        tuple(TensorDescriptor(x, [64, 512], [512, 1], [16, 64]) for x in (HALF, HALF * 0)), (4,),
        [C({"B": 1}, num_warps=w) for w in (1, 4)], wins={"B": 1}, options={"inputs": ("b",)},
    ),
    "equal values that two programs write": Row(
        same_border, (X, torch.empty(1024), 1024), blocks("n"), TWO, wins={},
        says="programs write equal values to one element, such as 0 and 1 to element 64 of y",
    ),
    "a partial sum for each block": Row(
        block_totals, (X, torch.empty(16), 1024), blocks("n"),
        [C({"WRONG": 1, "B": b}) for b in (64, 128, 256)], wins={"WRONG": 1},
        says="checked on all", options={"partial": ("y",)},
    ),
    "a partial sum for each block, wrong in one config": Row(
        block_totals, (X, torch.empty(16), 1024), blocks("n"),
        [C({"WRONG": w, "B": b}) for w, b in ((2, 256), (1, 64))], wins={"WRONG": 1},
        options={"partial": ("y",), "reference": lambda x, y, n, WRONG=1: x.sum().reshape(1)},
    ),
    "a partial sum for each block that nobody named": Row(
        block_totals, (X, torch.empty(16), 1024), blocks("n"), [C({"WRONG": 1, "B": 128})],
        "partial=\\('y',\\), --partial y",
    ),
    "partial results of a tensor that is only read": Row(
        block_totals, (X, torch.empty(16), 1024), blocks("n"), [C({"WRONG": 1, "B": 64})],
        "does not write x, which `partial` names", options={"partial": ("x",)},
    ),
    "a hook that a function returned": Row(
        hooked, (X, torch.empty(1), 1024), blocks("n"), None, wins={},
        options={"reference": lambda x, y, n: x.sum().reshape(1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_the_answer_to_a_kernel_that_somebody_brings(name, tmp_path, caplog):
    row = ROWS[name]
    place = {"out": tmp_path, "database": f"sqlite:///{tmp_path}/db", "device": "h200"}

    def tuned():
        return wb.tune(row.kernel, row.args, grid=row.grid, configs=row.configs, **place,
                       **row.options)  # fmt: skip

    if row.refused:
        with pytest.raises(wb.WorkbenchError, match=row.refused):
            tuned()
        return
    with caplog.at_level(logging.WARNING, "workbench"):
        result = tuned()
    assert result.checked and result.predicted
    assert {n: result.kwargs[n] for n in row.wins} == row.wins
    assert row.says in f"{caplog.text} {result}"


def test_a_shorter_list_of_configs_chooses_among_these(tmp_path):
    place = {"out": tmp_path, "database": f"sqlite:///{tmp_path}/db", "device": "h200"}
    slow, fast = C({"B": 1024}), C({"B": 64}, num_warps=1)
    call = leaky, (X, torch.empty(1024), 1024)
    for configs in ([slow, fast], [slow]):
        result = wb.tune(*call, grid=blocks("n"), configs=configs, **place)
        assert result.config in configs
