"""What a warp issues, read from cubins: held against nvdisasm, and against loops of TTGIR."""

import re
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl

from workbench.adapted.predicted import PredictedCall
from workbench.code.flow import flow_graph
from workbench.code.issued_code import issued_code
from workbench.code.listing import disassemble, read_sass
from workbench.code.warp_code import read_warp_code
from workbench.compile.launches import capture_launches
from workbench.device.hardware import device_named
from workbench.device.warp_timeline import LOAD, SHUFFLE, STORE

pytestmark = pytest.mark.compile
WORDS = re.compile(r"/\* 0x([0-9a-f]{16}) \*/")


@triton.jit
def twice(x, acc):
    return acc + x * x


@triton.jit
def two_passes(x, y, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        total = twice(tl.load(x + row * N + start + i), total)
    scale = tl.rsqrt(tl.sum(total))
    for start in range(0, N, BLOCK):
        value = tl.load(x + row * N + start + i)
        tl.store(y + row * N + start + i, value * scale)


@triton.jit
def product(a, b, c, K, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in range(0, K, BLOCK):
        left = tl.load(a + i[:, None] * K + k + i[None])
        total = tl.dot(left, tl.load(b + (k + i[:, None]) * BLOCK + i[None]), total)
    tl.store(c + i[:, None] * BLOCK + i[None], total)


def compiled(kernel, device, *arguments, **more):
    with capture_launches(device_named(device)) as launches:
        kernel[(8,)](*arguments, **more)
    return SimpleNamespace(**launches[0].kernel.asm)


def two(device="h100", block=512):
    x = torch.empty(8, 8192)
    return compiled(two_passes, device, x, torch.empty_like(x), 8192, BLOCK=block, num_warps=4)


@pytest.mark.parametrize("device", ["a100", "h100", "b200", "rtx5090"])
def test_instructions_lines_and_loops_are_those_of_nvdisasm(device):
    asm = two(device)
    code = read_warp_code(asm.cubin)
    text = disassemble(asm.cubin, "-g", "-hex")
    listing = read_sass(disassemble(asm.cubin, "-g"))
    high = [int(word, 16) for word in WORDS.findall(text)][1::2]
    assert [one.control for one in code.instructions] == [word >> 41 & 0x1FFFF for word in high]
    pairs = list(zip(code.instructions, listing.instructions, strict=True))
    assert all(one.line[1] == op.source.line for one, op in pairs if op.source)
    kinds = {LOAD: "LDG", STORE: "STG", SHUFFLE: "SHFL"}
    for kind, name in kinds.items():
        assert any(one.kind == kind for one, _ in pairs)
        assert all((one.kind == kind) == op.opcode.startswith(name) for one, op in pairs)
    mine, theirs = (
        [sorted(loop.blocks) for _, loop in graph.all_loops()]
        for graph in (code.graph, flow_graph(listing))
    )
    assert mine == theirs and mine


@pytest.mark.parametrize("block", [128, 512, 4096])
def test_each_loop_of_the_kernel_has_its_accesses(block):
    asm = two(block=block)
    issued = issued_code(asm.ttgir, asm.cubin)
    first, second = issued.loops
    assert first.number < second.number
    assert set(first.trip.kinds) & {LOAD, STORE} == {LOAD}
    assert {LOAD, STORE} <= set(second.trip.kinds)
    assert len(set(first.trip.sites)) == 1 and 0 not in first.trip.sites
    assert len(set(second.trip.sites)) == 2 and 0 not in second.trip.sites
    assert not set(first.trip.sites) & set(second.trip.sites)


@triton.jit
def ratios(x, y, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    for start in range(0, N, BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * N + i, i < N).to(tl.float32)
        tl.store(y + row * N + i, tl.div_rn(1.0 + value, 3.0 - value), i < N)


@pytest.mark.parametrize("device", ["a100", "h100", "b200"])
@pytest.mark.parametrize(("columns", "widths"), [(8192, {8}), (8191, {2}), (8190, {2})])
def test_slow_paths_are_left_out_and_loads_have_the_width_of_their_code(device, columns, widths):
    """A division calls a function where its operands are tiny or huge. Rows that begin anywhere are
    loaded one element at a time: the compiler does not know which N is even."""
    half = torch.empty(8, columns, dtype=torch.bfloat16)
    asm = compiled(ratios, device, half, half, columns, BLOCK=512, num_warps=4)
    code, issued = read_warp_code(asm.cubin), issued_code(asm.ttgir, asm.cubin)
    assert any(one.is_call for one in code.instructions)
    (loop,) = issued.loops
    assert set(loop.trip.widths) == widths
    each = loop.trip.kinds.count(LOAD), loop.trip.kinds.count(STORE)
    assert each[0] == each[1] and sum(loop.trip.widths) % 16 == 0  # bytes of whole trips
    listed = [op.opcode for op in read_sass(disassemble(asm.cubin, "-g")).instructions]
    size = {"U16": 2, "64": 8}[next(op for op in listed if "LDG" in op).split(".")[2]]
    assert widths == {size}


def test_code_of_products_and_what_is_no_cubin_is_not_read():
    half = torch.empty(64, 64, dtype=torch.float16)
    asm = compiled(product, "h100", half, half, torch.empty(64, 64), 64, BLOCK=64, num_warps=4)
    assert issued_code(asm.ttgir, asm.cubin) is None
    good = two()
    for damaged in (b"", good.cubin[:100], b"\x7fELF" + bytes(200)):
        assert issued_code(good.ttgir, damaged) is None


@triton.jit
def steps(x, n):
    for _ in range(n):
        x = x * 0.5 + 1.0
    return x


@triton.jit
def once(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, steps(tl.load(x + i), n))


@triton.jit
def two_calls(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, steps(steps(tl.load(x + i), n), n))


@triton.jit
def straight(x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i)
    for _ in tl.static_range(64):
        value = value * 0.5 + 1.0
    tl.store(y + i, value)


@pytest.mark.parametrize("device", ["a100", "h100", "b200"])
@pytest.mark.parametrize(
    ("kernel", "more", "multiplications"),
    [(once, (900,), 900), (two_calls, (900,), 1800), (straight, (), 64)],
)
def test_no_time_is_below_that_of_the_vector_units_or_far_above(
    device, kernel, more, multiplications
):
    """Loops without accesses, functions that are inlined twice, and code without loops."""
    target = device_named(device)
    x = torch.empty(1 << 22)
    call = PredictedCall(kernel, target, dict(zip("xyn", (x, x, *more), strict=False)), (4096,))
    predicted, _ = call.predict(triton.Config({"BLOCK": 1024}, num_warps=4))
    least = 2 * multiplications * x.numel() / target.peaks["fp32"].value
    memory = 2 * 4 * x.numel() / target.dram.value
    assert max(least, memory) < predicted.predicted_s < 4 * (least + memory)
