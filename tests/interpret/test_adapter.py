"""A user's function as a Spec: what its Impl gives is what the function itself would have given."""

import math

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.adapted.call import ARGS, EXPECTED, MOVED_ARGS
from workbench.adapted.discover import byte_tensor, discover, same_bits
from workbench.adapted.kernel import spec_of
from workbench.adapted.moved import shuffle_memory
from workbench.adapted.referenced import expected_again, expected_of
from workbench.adapted.traced import LaunchFault
from workbench.adapted.travel import AdaptedError, pack, unpack
from workbench.adapted.write import call_of, layout_of, memory_of
from workbench.commands.tune_function import _complete_call
from workbench.measurement.correctness import PreparedProblem, check

pytestmark = pytest.mark.interpret

CONFIGS = [triton.Config({"BLOCK": b}, num_warps=w) for b in (16, 64) for w in (1, 4)]
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def cover(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


@triton.jit
def scale(x_ptr, out_ptr, n, stride, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i * stride, i < n)
    tl.store(out_ptr + i * stride, (x * FACTOR).to(out_ptr.dtype.element_ty), i < n)


@triton.jit
def accumulate(x_ptr, sum_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old = tl.load(sum_ptr + i, i < n)
    tl.store(sum_ptr + i, old + tl.load(x_ptr + i, i < n), i < n)


@triton.jit
def gather(x_ptr, at_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(at_ptr + i, i < n, 0)
    tl.store(out_ptr + i, tl.load(x_ptr + at, i < n), i < n)


@triton.jit
def careless(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = (i < n) & ((i < 16) | (BLOCK == 16))  # right for blocks of 16 alone
    tl.store(out_ptr + i, tl.load(x_ptr + i, i < n), keep)


@triton.jit
def beyond(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, i < n), i < n + (BLOCK > 16))


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def guessed(x_ptr, out_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i) if EVEN else tl.load(x_ptr + i, i < n)
    tl.store(out_ptr + i, x * 2, i < n)


@triton.jit
def idle(x_ptr, n, BLOCK: tl.constexpr):
    pass


def taken(folder, kernel, args, grid=cover, configs=CONFIGS, outputs=(), inputs=(), **kwargs):
    """The Spec of a launch, by the way that `tune` takes, in this process."""
    call, memory = call_of(kernel, (args, kwargs), grid, configs, 0)
    torch.save(memory, folder / ARGS)
    call.write(folder)
    result = discover(folder, outputs, "cpu", False, inputs)
    return spec_of(_complete_call(call, result, None), folder, "nowhere"), result


@triton.jit
def largest(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    if BLOCK < 64:  # right for sorted values alone
        tl.store(out_ptr, tl.load(x_ptr + n - 1))
    else:
        i = tl.arange(0, BLOCK)
        tl.store(out_ptr, tl.max(tl.load(x_ptr + i, i < n, float("-inf"))))


def verdicts(spec, seed=0):
    problem = PreparedProblem.make(spec, spec.check[0], spec.bench[0] and "fp32", "cpu", seed)
    impl = spec.impls[0]
    return [verdict(impl, c, problem) for c in impl.space(impl.config())]


def verdict(impl, config, problem):
    try:
        return check(impl, config, problem).wrong
    except LaunchFault as fault:  # of its addresses, before any value is compared
        return str(fault)


@settings(max_examples=20)
@given(
    n=st.integers(1, 200), stride=st.integers(1, 3), lead=st.integers(0, 9),
    dtype=st.sampled_from(FLOATS[:2]), fresh=st.booleans(),
)  # fmt: skip
def test_an_adapted_launch_is_the_launch(tmp_path_factory, n, stride, lead, dtype, fresh):
    x = torch.randn(lead + n * stride).to(dtype)[lead::stride][:n]
    out = torch.full_like(torch.empty(n * stride), 7.0).to(dtype)[::stride]
    wanted = out.clone()
    direct = torch.empty(n * stride, dtype=dtype)[::stride]
    scale[(triton.cdiv(n, 16),)](x, direct, n, stride, FACTOR=3, BLOCK=16)
    if not fresh:  # the user has launched before: the output holds the answer already
        out.copy_(direct)
        wanted.copy_(direct)
    kept = x.clone()
    spec, result = taken(tmp_path_factory.mktemp("scale"), scale, (x, out, n, stride), FACTOR=3)
    assert result.outputs == ("out_ptr",) and result.initial == {"out_ptr": "nothing"}
    assert torch.equal(x, kept) and torch.equal(out, wanted), "the user's tensors are left alone"
    impl = spec.impls[0]
    given_ = PreparedProblem.make(spec, spec.check[0], "fp32", "cpu").inputs
    for config in impl.space(impl.config()):
        assert torch.equal(impl(*given_, config=config), direct)
    assert verdicts(spec) == [None] * len(CONFIGS)


@pytest.mark.parametrize(("start", "initial"), [(0.0, "zeros"), (5.0, "values")])
def test_what_is_added_to_starts_anew_each_time(tmp_path, start, initial):
    x, total = torch.randn(50), torch.full((50,), start)
    spec, result = taken(tmp_path, accumulate, (x, total, 50), inputs=("sum_ptr",))
    assert result.initial == {"sum_ptr": initial}
    assert verdicts(spec) == [None] * len(CONFIGS)
    (impl,) = spec.impls
    assert impl.mutates == ("sum_ptr",)
    inputs = PreparedProblem.make(spec, spec.check[0], "fp32", "cpu").inputs
    result = impl(*inputs, config=impl.config())
    assert result.data_ptr() == inputs[1].data_ptr(), "in its place: whoever times it restores it"
    assert torch.equal(result, x + start)


def test_what_is_only_written_is_fresh_and_not_restored(tmp_path):
    spec, _ = taken(tmp_path, scale, (torch.randn(50), torch.empty(50), 50, 1), FACTOR=2)
    assert spec.impls[0].mutates == () and list(spec.inputs) == ["x_ptr"]


def test_bytes_count_what_is_known_to_be_read_and_written(tmp_path):
    at, n = torch.randint(0, 90, (50,)), 50
    whole = (torch.arange(90), at, torch.full((n,), 7), n)
    for inputs, initial, mutates in (((), "nothing", ()), (("out_ptr",), "values", ("out_ptr",))):
        spec, result = taken(tmp_path, gather, whole, inputs=inputs)
        assert result.initial == {"out_ptr": initial} and spec.impls[0].mutates == mutates
    assert spec.bytes(spec.bench[0], "int64") == 8 * (90 + n + n)
    for start, tensors in ((1.0, 3), (0.0, 2)):  # x, and the sum once or twice
        args = torch.randn(n), torch.full((n,), start), n
        spec, _ = taken(tmp_path, accumulate, args, inputs=("sum_ptr",))
        assert spec.bytes(spec.bench[0], "fp32") == 4 * n * tensors


@pytest.mark.parametrize("start", [0.0, 5.0])
def test_the_second_check_is_on_other_values_and_configs_pass_it(tmp_path, start):
    x, total = torch.randn(50), torch.full((50,), start)
    x[3], x[5] = float("inf"), float("nan")
    spec, result = taken(tmp_path, accumulate, (x, total, 50), inputs=("sum_ptr",))
    assert result.repeat_reason is None
    first, second = (PreparedProblem.make(spec, spec.check[0], "fp32", "cpu", s) for s in (0, 1))
    assert torch.equal(first.inputs[0].nan_to_num(9.0), x.nan_to_num(9.0))
    moved = second.inputs[0]
    assert torch.equal(moved.sort().values.nan_to_num(9.0), x.sort().values.nan_to_num(9.0))
    assert not torch.equal(moved.nan_to_num(9.0), x.nan_to_num(9.0))
    assert verdicts(spec, seed=1) == [None] * len(CONFIGS)
    other = (moved.clone().fill_(1.0), *second.inputs[1:])
    with pytest.raises(AdaptedError, match="unknown for these x_ptr"):
        PreparedProblem.wrap(spec, "fp32", other)


def test_a_config_that_is_right_for_the_given_values_alone_fails_the_second_check(tmp_path):
    x = torch.arange(50.0)
    spec, _ = taken(tmp_path, largest, (x, torch.empty(1), 50), configs=CONFIGS[::-1])
    assert verdicts(spec) == [None] * len(CONFIGS)
    result = verdicts(spec, seed=1)
    assert [bool(w) for w in result] == [False, False, True, True]


def tripled(x, out, n, stride, FACTOR):
    return 3 * x


def tripled_once(x, out, n, stride, FACTOR):
    assert x[0] == 7, "it knows the user's values alone"
    return 3 * x


@pytest.mark.parametrize("reference", [tripled, tripled_once])
def test_a_reference_answers_for_the_other_values_too(tmp_path, reference):
    x, out = torch.randn(100)[::2], torch.empty(100)[::2]
    x[0] = 7
    given_ = ((x, out, 50, 2), {"FACTOR": 3})
    call, memory = call_of(scale, given_, cover, CONFIGS, 0)
    torch.save(memory, tmp_path / ARGS)
    call.write(tmp_path)
    result = discover(tmp_path, (), "cpu", True)
    call = _complete_call(call, result, None)
    torch.save(expected_of(reference, given_, call), tmp_path / EXPECTED)
    result = expected_again(tmp_path, reference, given_, call, result)
    spec = spec_of(call, tmp_path, "nowhere")
    first, second = (
        PreparedProblem.make(spec, spec.check[0], "fp32", "cpu", s).inputs for s in (0, 1)
    )
    assert verdicts(spec) == verdicts(spec, seed=1) == [None] * len(CONFIGS)
    known = reference is tripled
    assert torch.equal(first[0], second[0]) != known == (tmp_path / MOVED_ARGS).is_file()
    assert result.repeat_reason is None if known else "The reference fails" in result.repeat_reason


def test_indices_stay_and_so_do_values_that_have_no_answer_elsewhere(tmp_path):
    at = torch.randint(0, 90, (50,))
    whole = (torch.arange(90), at, torch.empty(50, dtype=torch.int64), 50)
    spec, result = taken(tmp_path, gather, whole)
    assert "floats" in result.repeat_reason and verdicts(spec, seed=1) == [None] * len(CONFIGS)
    second = PreparedProblem.make(spec, spec.check[0], "int64", "cpu", 1)
    assert torch.equal(second.inputs[1], at)
    x = torch.full((90,), float("nan"))
    x[:10] = torch.arange(10.0)
    spec, result = taken(tmp_path, gather, (x, at % 10, torch.empty(50), 50))
    assert "NaN or infinities" in result.repeat_reason
    assert verdicts(spec, seed=1) == [None] * len(CONFIGS)


@settings(max_examples=50)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3), lead=st.integers(0, 9),
    dtype=st.sampled_from([*FLOATS, torch.float8_e4m3fn, torch.int64, torch.bool]),
)  # fmt: skip
def test_shuffled_memory_keeps_every_bit_and_what_lies_between(shape, lead, dtype):
    twice = [2 * n for n in shape]
    x = (torch.randn(lead + math.prod(twice)) * 3).to(dtype)[lead:].view(twice)
    x = x[tuple(slice(None, None, 2) for _ in shape)]
    layout = layout_of("x", x)
    memory = memory_of(x, layout)
    other = shuffle_memory(memory, layout)
    ours, theirs = byte_tensor(layout.view(other)), byte_tensor(layout.view(memory))
    rows = (b.view(-1, x.element_size()).tolist() for b in (ours, theirs))
    assert sorted(next(rows)) == sorted(next(rows))
    layout.view(other).copy_(layout.view(memory))
    assert same_bits(other, memory), "gaps and lead as they were"
    if not x.is_floating_point():
        assert same_bits(shuffle_memory(memory, layout), memory)


def test_one_tensor_in_two_places_stays_one(tmp_path):
    x = torch.randn(40)
    spec, result = taken(tmp_path, scale, (x, x, 40, 1), FACTOR=2)
    assert list(spec.inputs) == ["x_ptr"] == list(spec.outputs)
    assert result.initial == {"x_ptr": "values"} and verdicts(spec) == [None] * len(CONFIGS)


@pytest.mark.parametrize(
    ("kernel", "text"),
    [(careless, "written in 32 %"), (beyond, "writes out of bounds: element 50")],
)
def test_configs_that_disagree_with_the_first_are_refused(tmp_path, kernel, text):
    x, out = torch.randn(50), torch.empty(50)
    if kernel is beyond:  # aligned room behind the output, as any allocator leaves
        out = torch.empty(64)[:50]
    spec, _ = taken(tmp_path, kernel, (x, out, 50))
    result = verdicts(spec)
    assert [bool(w) for w in result] == [False, False, True, True]
    assert text in result[2]


def test_whole_numbers_must_be_equal(tmp_path):
    at = torch.randint(0, 90, (50,))
    spec, result = taken(
        tmp_path, gather, (torch.arange(90), at, torch.zeros(50, dtype=torch.int64), 50)
    )
    assert result.outputs == ("out_ptr",) and verdicts(spec) == [None] * len(CONFIGS)
    problem = PreparedProblem.make(spec, spec.check[0], "int64", "cpu")
    off = PreparedProblem(
        spec, "int64", problem.inputs, tuple(e + 1 for e in problem.expected_outputs)
    )
    impl = spec.impls[0]
    assert "out_ptr is wrong" in check(impl, impl.config(), off).wrong


def test_heuristics_see_each_config(tmp_path):
    spec, _ = taken(tmp_path, guessed, (torch.randn(48), torch.empty(48), 48))
    assert verdicts(spec) == [None] * len(CONFIGS)


def test_a_tensor_that_is_not_written_is_no_output(tmp_path):
    x, out = torch.randn(20), torch.empty(20)
    with pytest.raises(AdaptedError, match="does not write x_ptr"):
        taken(tmp_path, scale, (x, out, 20, 1), FACTOR=2, outputs=("x_ptr",))
    with pytest.raises(AdaptedError, match="changed none of its tensors"):
        taken(tmp_path, idle, (x, 20))


def test_scratch_memory_is_fresh_and_not_compared(tmp_path):
    x, total = torch.randn(20), torch.zeros(20)
    spec, result = taken(tmp_path, scale, (x, total, 20, 1), FACTOR=2, outputs=("out_ptr",))
    assert list(spec.outputs) == ["out_ptr"] and result.outputs == ("out_ptr",)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 4), max_size=3), st.randoms(use_true_random=False), st.data())
def test_memory_keeps_values_and_alignment(shape, random, data):
    dtype = data.draw(st.sampled_from([*FLOATS, torch.int64, torch.uint8, torch.bool]))
    x = (torch.randn([2 * n for n in shape] + [3]) > 0).to(dtype)
    x = x[tuple(slice(random.randint(0, 1), None, 2) for _ in shape)][..., random.randint(0, 2)]
    x = x.permute(random.sample(range(x.dim()), x.dim()))
    layout = layout_of("x", x)
    view = layout.view(memory_of(x, layout))
    assert torch.equal(view, x) and view.data_ptr() % 16 == x.data_ptr() % 16
    assert layout.plain or view.stride() == x.stride()


PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
)


@given(PLAIN)
def test_plain_values_travel(value):
    assert unpack(pack(value, "it")) == value


def test_dtypes_and_functions_travel_and_other_things_are_refused():
    assert unpack(pack(tl.float16, "it")) == tl.float16
    assert unpack(pack(tl.constexpr(3), "it")).value == 3
    assert unpack(pack(scale, "it")) is scale
    with pytest.raises(AdaptedError, match="The argument f is set"):
        pack({1}, "The argument f")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"grid": lambda meta: (meta["NO"],)}, "The grid fails"),
        ({"grid": (0,)}, "numbers > 0"),
        ({"configs": [triton.Config({"BLOCK": 16, "FACTOR": 3})]}, "FACTOR is given both"),
        ({"OTHER": 1}, "it got OTHER"),
        ({"FACTOR": object()}, "does not travel"),
    ],
)
def test_what_cannot_be_taken_over_is_said_in_a_sentence(tmp_path, change, text):
    with pytest.raises(AdaptedError, match=text) as caught:
        taken(tmp_path, scale, (torch.randn(9), torch.empty(9), 9, 1), **{"FACTOR": 2, **change})
    assert str(caught.value).endswith((".", ")"))
