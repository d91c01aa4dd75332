"""What programs of a launch do to memory: out of bounds, races, and which of them run."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from workbench.adapted.call import Argument, Call, ConfigEntry, Layout
from workbench.adapted.kernel import INTERPRETED, Launcher  # mends the interpreter
from workbench.adapted.traced import (
    LaunchFault,
    Memory,
    ProgramPlan,
    ProgramTrace,
    trace_programs,
    watch_interpreter,
)
from workbench.adapted.travel import Place
from workbench.dsl.interpreter import RoundedProducts

pytestmark = pytest.mark.interpret

N = 256


@triton.jit
def gather(table, at, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    j = tl.load(at + i, i < n, other=0)
    tl.store(y + i, tl.load(table + j, i < n), i < n)


@triton.jit
def shifted(x, y, n, SHIFT: tl.constexpr, MASK: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    value = (
        tl.load(x + i + SHIFT, (i + SHIFT < n) & (i + SHIFT >= 0))
        if MASK
        else tl.load(x + i + SHIFT)
    )
    tl.store(y + i, value, i < n)


@triton.jit
def added(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y, tl.load(y) + tl.sum(tl.load(x + i, i < n, other=0.0)))


@triton.jit
def overwrites(x, y, n, SAME: tl.constexpr, B: tl.constexpr):
    p = tl.program_id(0)
    i = p * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i))
    after = i + B
    tl.store(y + after, tl.load(x + after, after < n) if SAME else i * 0.0, after < n)


@triton.jit
def reads_its_neighbour(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    left = tl.load(y + i - 1, i > 0, other=0.0)
    tl.store(y + i, tl.load(x + i) + left)


@triton.jit
def summed(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(y, tl.sum(tl.load(x + i, i < n, other=0.0)))


@triton.jit
def in_place(x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i, tl.load(x + i, i < n) * 2, i < n)


def run(kernel, *args, B=64, programs=N // 64, plan=None, **constants):
    watch_interpreter()
    names = list(kernel.arg_names)
    tensors = {n: x for n, x in zip(names, args, strict=False) if isinstance(x, torch.Tensor)}
    trace = ProgramTrace(kernel.fn.__name__, [Memory.locate(n, x) for n, x in tensors.items()])
    with trace_programs(trace, plan):
        kernel[(programs,)](*args, B=B, **constants)
    return trace


def test_an_index_past_the_table_is_named_with_tensor_element_program_and_line():
    at = torch.zeros(N, dtype=torch.int64)
    run(gather, torch.randn(100), at, torch.empty(N), N)
    at[3 * 64 + 5] = 100
    with pytest.raises(LaunchFault, match=r"element 100 of table, which has 100, in program 3, li"):
        run(gather, torch.randn(100), at, torch.empty(N), N)
    at[5] = 1 << 40
    with pytest.raises(LaunchFault, match="far from all of its tensors"):
        run(gather, torch.randn(100), at, torch.empty(N), N)


@pytest.mark.parametrize(("shift", "element"), [(-1, "-1"), (1, "256")])
def test_reads_past_both_ends_count_and_masks_are_honoured(shift, element):
    x, y = torch.randn(N + 64)[32 : 32 + N], torch.empty(N)
    run(shifted, x, y, N, SHIFT=shift, MASK=True)
    with pytest.raises(LaunchFault, match=f"reads out of bounds: element {element} of x"):
        run(shifted, x, y, N, SHIFT=shift, MASK=False)


def test_programs_that_write_different_values_to_one_element_race():
    with pytest.raises(LaunchFault, match="program 0 and 1 write different values to element 0 of"):
        run(added, torch.randn(N), torch.zeros(1), N)
    with pytest.raises(LaunchFault, match="program 0 and 1 write different values to element 64"):
        run(overwrites, torch.randn(N), torch.empty(N), N, SAME=False)


def test_equal_values_written_twice_are_no_race():
    trace = run(overwrites, torch.randn(N), torch.empty(N), N, SAME=True)
    assert len(trace.accesses["y"].elements()) == N
    assert trace.twice == [
        "programs write equal values to one element, such as 0 and 1 to element 64 of y"
    ]


def test_a_program_that_reads_what_another_one_writes_races_with_it():
    with pytest.raises(LaunchFault, match="program 1 reads and 0 writes element 63 of y"):
        run(reads_its_neighbour, torch.randn(N), torch.zeros(N), N)


def test_atomic_operations_are_no_race():
    x, y = torch.randn(N), torch.zeros(1)
    trace = run(summed, x, y, N)
    assert trace.has_atomics and y.item() == pytest.approx(x.sum().item(), abs=1e-4)


def test_an_element_that_a_program_reads_and_then_writes_is_read_first():
    trace = run(in_place, torch.randn(N), N)
    assert trace.accesses["x"].read_first
    assert (
        not run(overwrites, torch.randn(N), torch.empty(N), N, SAME=True).accesses["y"].read_first
    )


@pytest.mark.parametrize("backwards", [False, True])
def test_only_planned_programs_run_in_their_order(backwards):
    x, y = torch.randn(N), torch.full((N,), 7.0)
    plan = ProgramPlan([0, 3], is_reversed=backwards)
    trace = run(shifted, x, y, N, SHIFT=0, MASK=True, plan=plan)
    assert trace.ran == ([3, 0] if backwards else [0, 3])
    ran = np.r_[0:64, 192:256]
    assert torch.equal(y[ran], x[ran]) and bool((y[64:192] == 7).all())
    assert np.array_equal(trace.accesses["y"].elements(), ran)
    spent = run(shifted, x, y, N, SHIFT=0, MASK=True, plan=ProgramPlan(budget_s=0.0))
    assert spent.ran == [0] and len(spent.seconds) == 1


@triton.jit
def product(a, b, c, P: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, 32)
    at = i[:, None] * 32 + i[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at), input_precision=P))


def test_operands_of_tf32_have_ten_bits_of_mantissa(monkeypatch):
    monkeypatch.setattr(RoundedProducts, "bits", None)
    a, b, c = torch.randn(32, 32), torch.eye(32), torch.empty(32, 32)
    run(product, a, b, c, P="ieee", B=1, programs=1)
    assert INTERPRETED and torch.equal(c, a) and RoundedProducts.bits is None
    run(product, a, b, c, P="tf32", B=1, programs=1)
    assert RoundedProducts.bits == 10 and not torch.equal(c, a)
    assert bool(((c - a).abs() <= a.abs() * 2.0**-11).all()), "to the nearest"
    assert not bool((c.view(torch.int32) & 0x1FFF).any())


@triton.jit
def weighted(a, b, c, HOW: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, 32)
    at = i[:, None] * 32 + i[None, :]
    weights = tl.load(a + at)
    if HOW == "computed":
        weights = tl.exp(weights.to(tl.float32)).to(weights.dtype)
    product = tl.dot(weights, tl.load(b + at))
    tl.store(c + at, product.to(c.dtype.element_ty))


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float16, 10), (torch.bfloat16, 7)])
def test_operands_that_a_program_rounds_itself_have_the_bits_of_their_dtype(
    monkeypatch, dtype, bits
):
    """As the probabilities of attention; operands as they were loaded are no reason for a wider
    tolerance, and neither is the result that the program before rounded."""
    monkeypatch.setattr(RoundedProducts, "bits", None)
    a, b = torch.randn(32, 32, dtype=dtype), torch.randn(32, 32, dtype=dtype)
    run(weighted, a, b, torch.empty_like(a), HOW="loaded", B=1, programs=2)
    assert RoundedProducts.bits is None
    run(weighted, a, b, torch.empty_like(a), HOW="computed", B=1, programs=1)
    assert RoundedProducts.bits == bits


@triton.jit
def ticket(x, y, count, B: tl.constexpr):
    at = tl.atomic_add(count, 1)
    tl.store(y + at, tl.load(x + tl.program_id(0)))


@triton.jit
def last_wins(x, y, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(y + 1, 1.0)
    tl.store(y, tl.sum(tl.load(x + i)))


@triton.jit
def in_turn(x, y, turn, B: tl.constexpr):
    p = tl.program_id(0)
    while tl.atomic_add(turn, 0) != p:
        pass
    tl.store(y, tl.load(y) * 2 + tl.load(x + p))
    tl.atomic_add(turn, 1)


def both_ways(kernel, x, *others, programs=4, outputs=()):
    """The tensors after a launch, which is repeated with its programs in reversed order."""
    names = list(kernel.arg_names)
    memory = dict(zip(names, (x, *others), strict=False))
    arguments = tuple(Argument(n, True, tensor=n) for n in memory)
    if "n" in names:
        arguments += (Argument("n", True, N),)
    words = {torch.float32: "fp32", torch.int32: "int32"}
    layouts = {n: Layout(tuple(t.shape), t.stride(), words[t.dtype]) for n, t in memory.items()}
    entry = ConfigEntry({}, {"B": 64}, (programs,))
    place = Place(__file__, __name__, kernel.fn.__name__)
    call = Call(kernel.fn.__name__, place, arguments, layouts, (entry,), (), outputs=outputs)
    launcher = Launcher(call)
    launcher.__dict__["kernel"] = kernel
    return launcher.fire_both_ways(memory, entry)


def test_sums_by_atomic_additions_agree_in_both_orders_of_programs():
    x = torch.randn(N)
    views = both_ways(summed, x, torch.zeros(1))
    assert views["y"].item() == pytest.approx(x.sum().item(), abs=1e-4)


@pytest.mark.parametrize(
    ("kernel", "others", "element"),
    [
        (ticket, (torch.zeros(4), torch.zeros(1, dtype=torch.int32)), "y, such as element 0"),
        (last_wins, (torch.zeros(2),), "y, such as element 0"),
    ],
)
def test_a_result_that_the_order_of_programs_decides_is_refused(kernel, others, element):
    with pytest.raises(LaunchFault, match=f"gives other values of {element}, when its programs"):
        both_ways(kernel, torch.arange(1.0, N + 1), *others)


def test_outputs_that_the_order_is_not_meant_to_decide_can_be_named():
    """Places that a counter gives, as of tokens that are sorted: the counter itself is compared."""

    def given():
        return torch.arange(1.0, N + 1), torch.zeros(4), torch.zeros(1, dtype=torch.int32)

    with pytest.raises(LaunchFault, match=r"name the others: outputs=\('count',\)\.$"):
        both_ways(ticket, *given(), outputs=("y", "count"))
    assert both_ways(ticket, *given(), outputs=("count",))["count"].item() == 4


def test_programs_that_wait_for_one_another_run_in_their_order_alone():
    x = torch.tensor([1.0, 2.0, 4.0, 8.0])
    views = both_ways(in_turn, x, torch.zeros(1), torch.zeros(1, dtype=torch.int32))
    assert views["y"].item() == ((1 * 2 + 2) * 2 + 4) * 2 + 8
