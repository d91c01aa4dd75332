"""The elements that a reference reads: as many as a count by hand gives, never more."""

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.backend.checking import import_trusted
from workbench.evaluation.problem import reference_bytes
from workbench.measurement.inputs import TORCH_NAMES
from workbench.measurement.reads import Reads
from workbench.measurement.reference import output_tuple
from workbench.measurement.worker import observe_problems
from workbench.spec import Spec, Tensor

NAMES = {getattr(torch, TORCH_NAMES.get(n, n)): n for n in ("fp32", "fp16", "int64", "bool")}


def spec_with(reference, tensors, outputs=(), mutates=()):
    def declared(some):
        return {n: Tensor(" ".join(map(str, x.shape)) or "1", NAMES[x.dtype]) for n, x in some}

    named = [(f"y{i}", y) for i, y in enumerate(outputs)]
    return Spec(
        "read", declared(tensors.items()), declared(named), reference, flops=lambda **at: 1,
        check=[{}], bench=[{}], mutates=mutates,
    )  # fmt: skip


def observed(reference, tensors, mutates=(), without_floats=False):
    """Return the elements that are read of each input, None if unknown, and those written of each
    output, None if all."""
    spec = spec_with(reference, tensors, (), mutates)
    xs = [x.to("meta") if without_floats and x.is_floating_point() else x for x in tensors.values()]
    reads = Reads(without_floats)
    with reads.watch(spec, xs):
        outputs = output_tuple(reference(*xs))
    reads.end(spec, outputs)
    counts = {}
    for (name, x), seen in zip(tensors.items(), reads._inputs.values(), strict=True):
        part = 0 if seen.mask is None else int(seen.mask.count_nonzero())
        counts[name] = None if seen.is_unknown else x.numel() if seen.is_whole else part
    return counts, reads._written


@st.composite
def steps(draw, with_masks=True):
    """A chain of views, copies and lookups of a tensor, as a function of it."""
    chain, seed = [], draw(st.integers(0, 1 << 20))
    kinds = KINDS + MASKS if with_masks else KINDS
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=5)):
        seed += 1
        chain.append((kind, seed))

    def run(x):
        for kind, number in chain:
            if x.numel():
                x = kind(x, torch.Generator().manual_seed(number))
        return x

    run.__name__ = " ".join(f"{kind.__name__}:{number}" for kind, number in chain)
    return run


def number(most, chance):
    return int(torch.randint(0, most, (), generator=chance))


def some(extent, chance):
    return torch.randint(0, extent, (1 + number(6, chance),), generator=chance)


def sliced(x, chance):
    axis = number(x.dim(), chance)
    first = number(x.shape[axis], chance)
    return x.narrow(axis, first, 1 + number(x.shape[axis] - first, chance))


def stepped(x, chance):
    return x[:: 1 + number(3, chance)]


def selected(x, chance):
    return x[number(len(x), chance)] if x.dim() > 1 else x


def turned(x, chance):
    return x.transpose(0, -1)


def flattened(x, chance):
    return x.reshape(-1, x.shape[-1])


def widened(x, chance):
    return x.unsqueeze(0).expand(2, *x.shape)


def windowed(x, chance):
    return x.unfold(0, min(2, len(x)), 1)


def dense(x, chance):
    return x.contiguous()


def cast(x, chance):
    return x.float() if x.dtype == torch.float64 else x.double()


def copied(x, chance):
    return x.clone()


def rows(x, chance):
    return x[some(len(x), chance)]


def last(x, chance):
    return x[..., some(x.shape[-1], chance)]


def pairs(x, chance):
    if x.dim() < 2:
        return x
    return x[some(len(x), chance)[:, None], some(x.shape[1], chance)]


def chosen(x, chance):
    axis = number(x.dim(), chance)
    return x.index_select(axis, some(x.shape[axis], chance))


def gathered(x, chance):
    shape = [max(1, n - 1) for n in x.shape]
    return x.gather(0, torch.randint(0, len(x), shape, generator=chance))


def taken(x, chance):
    return x.take(torch.randint(0, x.numel(), (3, 2), generator=chance))


def masked(x, chance):
    return x[torch.rand(x.shape[0], generator=chance) < 0.5]


def masked_pairs(x, chance):
    return x[torch.rand(x.shape[:2], generator=chance) < 0.5]


def embedded(x, chance):
    flat = x.reshape(-1, x.shape[-1])
    return torch.nn.functional.embedding(some(len(flat), chance), flat)


KINDS = (
    sliced, stepped, selected, turned, flattened, widened, windowed, dense, cast, copied, rows,
    last, pairs, chosen, gathered, taken, embedded,
)  # fmt: skip
MASKS = (masked, masked_pairs)  # the shape of what they return depends on values
SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(SHAPES, steps(), steps())
def test_what_a_chain_reads_is_what_its_result_is_made_of(shape, first, second):
    """The chain of a tensor that numbers its elements says which they are."""
    x = torch.arange(float(torch.Size(shape).numel())).view(shape)
    expected = len(torch.cat([first(x).flatten().double(), second(x).flatten().double()]).unique())

    def reference(x):
        return first(x) * 2, second(x) + 1

    assert observed(reference, {"x": x}) == ({"x": expected}, [None, None])


@settings(max_examples=100, deadline=None)
@given(SHAPES, steps(with_masks=False))
def test_shapes_say_the_same_as_values(shape, chain):
    x = torch.randn(shape)
    assert observed(chain, {"x": x}, without_floats=True) == observed(chain, {"x": x})


@pytest.mark.parametrize("kind", MASKS)
def test_a_result_of_unknown_shape_needs_values(kind):
    """So `reference_bytes` calls the reference once more, with values."""
    with pytest.raises(NotImplementedError):
        observed(
            lambda x: kind(x, torch.Generator()), {"x": torch.randn(4, 4)}, without_floats=True
        )


@settings(max_examples=100, deadline=None)
@given(SHAPES, steps(), st.booleans())
def test_what_is_written_is_read_no_more(shape, chain, adds):
    """In place, of an input that a kernel may change, no other element counts."""
    x = torch.randn(shape)
    named = chain(torch.arange(float(x.numel())).view(shape)).unique().long()
    values = torch.ones(len(named))

    def reference(x, named, values):
        x = x.clone()
        x.view(-1).index_put_((named,), values, accumulate=adds)
        return x

    tensors = {"x": x, "named": named, "values": values}
    counts, written = observed(reference, tensors, mutates=("x",))
    assert (counts["x"], written) == (len(named) if adds else 0, [len(named)])
    counts, written = observed(reference, tensors)  # an output of its own is all of it
    assert (counts["x"], written) == (x.numel() if adds else x.numel() - len(named), [None])


TABLE, AT = torch.randn(64, 8), torch.tensor([3, 5, 3, 60])
IN_PLACE = {
    "copy": lambda x, at: x[4:6].copy_(x[8:10]), "fill": lambda x, at: x[at[0]].fill_(0),
    "set": lambda x, at: x.__setitem__(at, 0.0),
    "index_fill": lambda x, at: x.index_fill_(0, at, 0.0),
    "index_copy": lambda x, at: x.index_copy_(0, at[:2], torch.ones(2, 8)),
    "scatter": lambda x, at: x.scatter_(0, at[:, None], 0.0),
    "index_add": lambda x, at: x.index_add_(0, at, torch.ones(4, 8)),
    "scatter_add": lambda x, at: x.scatter_add_(0, at[:, None], torch.ones(4, 1)),
    "masked_fill": lambda x, at: x.masked_fill_((torch.arange(64) < 5)[:, None], 0.0),
    "other": lambda x, at: x[:3].mul_(2), "all": lambda x, at: x.add_(1),
}  # fmt: skip


@pytest.mark.parametrize(("name", "read", "written"), [
    ("copy", 16, 16), ("fill", 0, 8), ("set", 0, 24), ("index_fill", 0, 24), ("index_copy", 0, 16),
    ("scatter", 0, 3), ("index_add", 24, 24), ("scatter_add", 3, 3), ("masked_fill", 0, 40),
    ("other", 24, 24), ("all", 512, 512),
])  # fmt: skip
def test_each_operator_in_place_writes_what_it_names(name, read, written):
    def reference(x, at):
        IN_PLACE[name](x, at)
        return x

    counts, parts = observed(reference, {"x": TABLE.clone(), "at": AT}, mutates=("x",))
    assert (counts["x"], parts) == (read, [written])


@pytest.mark.parametrize(("reference", "expected"), [
    (lambda x, at: x @ x.T, 512), (lambda x, at: torch.softmax(x, 1), 512),
    (lambda x, at: x.t().contiguous() @ x, 512), (lambda x, at: torch.zeros_like(x[:2]), 0),
    (lambda x, at: x[:3].sum() + x[2:5].sum(), 40), (lambda x, at: x.view(torch.int32).sum(), 512),
    (lambda x, at: torch.nn.functional.embedding_bag(at[None], x), 24),
    (lambda x, at: torch.where(x > 0, x, 0.0), 512),
    (lambda x, at: x[x[:, 0].argsort()[:2]], 80 - 2), (lambda x, at: x[int(x[3, 2]) % 1], 9),
    (lambda x, at: torch.stack([x[i] for i in at.tolist()]), 24), (lambda x, at: x, 512),
    (lambda x, at: x.masked_select(x > 9.0), 512),
    (lambda x, at: x.view(torch.int16)[:2] + 1, None),
])  # fmt: skip
def test_operators_that_are_no_lookup_read_all_that_they_get(reference, expected):
    assert observed(reference, {"x": TABLE, "at": AT})[0]["x"] == expected


def test_a_large_lookup_is_followed_by_its_rows(monkeypatch):
    """Of 2^14 elements that are read 2^8 rows are held; more places than MOST are unknown."""
    table, at = torch.randn(1 << 10, 64), torch.arange(256)
    monkeypatch.setattr("workbench.measurement.reads.MOST", 256)
    rows_of = {"x": table, "at": at}
    assert observed(lambda x, at: x[at] * 2, rows_of)[0] == {"x": 1 << 14, "at": 256}
    assert observed(lambda x, at: x[at].double() * 2, rows_of)[0]["x"] == 1 << 14
    assert observed(lambda x, at: x[:, at % 64] * 2, rows_of)[0]["x"] is None


def test_only_a_part_of_the_bytes_is_certain_where_one_input_is_unknown():
    tensors = {"x": TABLE, "y": TABLE}
    spec = spec_with(lambda x, y: x[:2] + 1, tensors, (TABLE[:2],))
    reads = Reads()
    with reads.watch(spec, tensors.values()):
        outputs = (TABLE[:2] + 1 + TABLE.view(torch.int16)[0, 0],)
    reads.end(spec, outputs)
    assert reads.bytes(spec, {}, "fp32") == (2048 + 64, 64), "y is used by nobody"


def lookup_spec(V=1000, N=16, **more):
    def at(shape, dtype, device, generator):
        return torch.randint(0, V, shape, dtype=dtype, device=device, generator=generator)

    return Spec(
        "lookup", {"table": Tensor("V D"), "at": Tensor("N", "int64", at)}, {"y": Tensor("N D")},
        flops=lambda **sizes: 1, check=[{"V": V, "D": 8, "N": N}],
        bench=[{"V": V, "D": 8, "N": N}], **{"reference": lambda table, at: table[at], **more},
    )  # fmt: skip


def test_the_bytes_of_a_lookup_are_those_of_its_rows_and_do_not_need_the_table():
    spec = lookup_spec(V=1 << 26)  # 1 GiB in bf16, 4 GiB in float64
    (sizes,) = spec.bench
    assert reference_bytes(spec, sizes, "bf16", 1) == 16 * 8 + 2 * 16 * 8 * 2
    assert spec.bytes(sizes, "bf16") == (1 << 26) * 8 * 2 + 16 * 8 + 16 * 8 * 2


def test_indices_that_follow_from_floats_need_their_values():
    spec = lookup_spec(reference=lambda table, at: table[table[:, 0].argsort()[: len(at)]])
    (sizes,) = spec.bench
    assert reference_bytes(spec, sizes, "fp32", 1) == 4 * (1000 + 16 * 7 + 16 * 8)
    large = lookup_spec(V=1 << 24, reference=spec.reference)  # no values: all of it
    (sizes,) = large.bench
    assert reference_bytes(large, sizes, "fp32", 1) == large.bytes(sizes, "fp32")


def test_a_reference_that_fails_has_all_bytes():
    spec = lookup_spec(reference=lambda table, at: exec("raise SystemExit"))
    assert reference_bytes(spec, spec.bench[0], "fp32", 1) == spec.bytes(spec.bench[0], "fp32")


def test_a_measured_call_has_the_least_bytes_of_both_values():
    spec = lookup_spec()
    (sizes,), tables = spec.bench, [torch.randn(1000, 8) for _ in range(2)]
    pair = [(tables[0], torch.arange(16)), (tables[1], torch.arange(16) // 4)]
    problems, moved, certain = observe_problems(spec, sizes, "fp32", pair)
    assert moved == certain == 4 * 4 * 8 + 16 * 8 + 16 * 8 * 4
    assert [len(p.expected_outputs[0]) for p in problems.values()] == [16, 16]


def test_a_measured_call_that_reads_all_observes_one_value():
    spec = lookup_spec(reference=lambda table, at: table.cumsum(0)[at])
    (sizes,) = spec.bench
    pair = [(torch.randn(1000, 8), torch.arange(16))] * 2
    problems, moved, certain = observe_problems(spec, sizes, "fp32", pair)
    assert list(problems) == [0] and moved == certain == spec.bytes(sizes, "fp32")


def test_an_answer_that_was_stored_says_nothing_of_the_bytes():
    class Stored(Spec):
        has_stored_outputs = True

    spec = lookup_spec(reference=lambda table, at: torch.zeros(16, 8, dtype=torch.float64) + at[0])
    spec = Stored(**{f.name: getattr(spec, f.name) for f in fields(Spec)})
    (sizes,) = spec.bench
    pair = [(torch.randn(1000, 8), torch.arange(16))] * 2
    assert observe_problems(spec, sizes, "fp32", pair)[1:] == (spec.bytes(sizes, "fp32"),) * 2


def test_a_reference_that_cannot_be_observed_leaves_the_outputs_certain():
    seen = []

    def reference(table, at):
        seen.append(1)
        if len(seen) == 1:
            raise MemoryError
        return table[at]

    spec = lookup_spec(reference=reference)
    (sizes,) = spec.bench
    pair = [(torch.randn(1000, 8), torch.arange(16))] * 2
    bytes_ = observe_problems(spec, sizes, "fp32", pair)[1:]
    assert bytes_ == (spec.bytes(sizes, "fp32"), 16 * 8 * 4)


@pytest.mark.parametrize("kernel", [
    "matmul", "softmax", "attention", "cross_entropy", "rms_norm", "fp8_matmul",
    "lora", "transpose", "swiglu", "decode_attention", "layer_norm_backward",
])  # fmt: skip
def test_an_ordinary_kernel_has_the_bytes_of_all_tensors(kernel):
    spec = import_trusted(kernel)
    sizes = max(spec.check, key=lambda at: spec.bytes(at, "bf16"))
    whole = spec.bytes(sizes, "bf16")
    if kernel == "decode_attention":  # its small sizes have shorter sequences
        sizes, whole = spec.bench[0], spec.bytes(spec.bench[0], "bf16")
    assert reference_bytes(spec, sizes, "bf16", 1) == whole
