"""What grouped_matmul promises: each group is a product of its own, however the rows are dealt
out. Small whole numbers have products that sum exactly."""

import torch
from kernel_properties import NAN, NOT_DENSE_ROWS, Subject, of, refuses

refuses("grouped_matmul.persistent", "a b", NOT_DENSE_ROWS)


def _whole(s: Subject) -> list:
    large = 1 if s.dtype == "bf16" else 3
    _, _, ends = s.inputs()
    return [s.integers(-large, large, "T", "K"), s.integers(-large, large, "G", "K", "N"), ends]


def _exact(a, b, ends):
    c = torch.empty(a.shape[0], b.shape[2], dtype=torch.long)
    begin = 0
    for g, end in enumerate(ends.tolist()):
        c[begin:end] = a[begin:end].long().cpu() @ b[g].long().cpu()
        begin = end
    return c


@of("grouped_matmul")
def each_group_is_a_product_of_its_own(s: Subject) -> None:
    a, b, ends = _whole(s)
    assert torch.equal(s(a, b, ends).cpu().long(), _exact(a, b, ends))


@of("grouped_matmul")
def groups_may_be_empty_or_have_all_rows(s: Subject) -> None:
    a, b, ends = _whole(s)
    T = s.sizes["T"]
    for first in (0, T // 2, T):  # the last group has the rest
        ends = torch.full_like(ends, first)
        ends[-1] = T
        assert torch.equal(s(a, b, ends).cpu().long(), _exact(a, b, ends))


@of("grouped_matmul")
def groups_end_at_and_beside_the_edges_of_tiles(s: Subject) -> None:
    a, b, ends = _whole(s)
    T, G = s.sizes["T"], s.sizes["G"]
    edges = sorted(min(T, e) for e in (16, 17, 64, 127, 128))[: G - 1]
    ends = torch.tensor([*edges, *[T] * (G - len(edges))], dtype=ends.dtype, device=ends.device)
    assert torch.equal(s(a, b, ends).cpu().long(), _exact(a, b, ends))


@of("grouped_matmul")
def nan_stays_in_its_group(s: Subject) -> None:
    a, b, ends = _whole(s)
    begin = int(ends[-2]) if len(ends) > 1 else 0
    b[-1, -1, -1] = NAN  # of the last group, in the last column
    c = s(a, b, ends)
    assert bool(c[begin:, -1].isnan().all())
    c[begin:, -1] = 0
    assert not bool(c.isnan().any())
