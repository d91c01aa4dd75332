"""What attention promises: weights that sum to 1 and belong to keys, not to places."""

import torch
from kernel_properties import INF, NAN, NOT_DENSE_ROWS, ROUNDING, Subject, bits, of, refuses

refuses("attention.overlapped attention.ping_pong", "q k v", NOT_DENSE_ROWS)


def _dealt(s: Subject):
    """Values of few bits, each key the same score from each query: zero."""
    q, k = s.integers(-2, 2, "B", "S", "Hkv*G", "D"), s.integers(-2, 2, "B", "T", "Hkv", "D")
    return q, k, s.integers(-4, 4, "B", "T", "Hkv", "D")


@of("attention")
def equal_scores_are_a_mean(s: Subject) -> None:
    q, k, v = _dealt(s)
    for zero in (q, k):
        inputs = [torch.zeros_like(x) if x is zero else x for x in (q, k)]
        o = s(*inputs, v).double()
        mean = v.double().mean(1).repeat_interleave(s.sizes["G"], 1)[:, None]
        assert float((o - mean).abs().max()) <= 4 * (ROUNDING[s.dtype] + 2.0**-20)


@of("attention")
def constant_values_pass_through(s: Subject) -> None:
    q, k, _ = _dealt(s)
    row = s.integers(-8, 8, "D")
    o = s(q, k, row.expand(k.shape).contiguous()).double()
    # the weights are rounded before the product, their sum is not; both sums have T terms
    summed = (s.sizes["T"] + 8) * 2.0**-24
    assert float((o - row.double()).abs().max()) <= 8 * (2 * ROUNDING[s.dtype] + summed)


@of("attention")
def a_key_far_ahead_takes_all(s: Subject) -> None:
    """One key scores 128 and more above all others, whose weights vanish: its values come out bit
    for bit, wherever among the blocks of keys it lies."""
    q, k, v = _dealt(s)
    at = s.seed % s.sizes["T"]
    q[..., 0], k[..., 0] = 64, 0
    q[..., 1:] = 0
    k[:, at, :, 0] = 32
    expected = v[:, at : at + 1].repeat_interleave(s.sizes["G"], 2).expand(q.shape)
    assert torch.equal(s(q, k, v), expected)


@of("attention")
def the_order_of_keys_does_not_matter(s: Subject) -> None:
    q, k, v = s.inputs()
    order = torch.randperm(s.sizes["T"], generator=torch.Generator().manual_seed(s.seed))
    order = order.to(s.device)
    off = (s(q, k[:, order].contiguous(), v[:, order].contiguous()) - s(q, k, v)).abs().max()
    assert float(off) <= 4 * float(v.abs().max()) * (ROUNDING[s.dtype] + 2.0**-20)


@of("attention")
def queries_and_heads_do_not_meet(s: Subject) -> None:
    """A query's answer is the same bits beside others, and only its own head's keys move it."""
    q, k, v = s.inputs()
    o = s(q, k, v)
    flipped = s(q.flip(0), k.flip(0), v.flip(0))
    assert torch.equal(bits(flipped.flip(0)), bits(o))
    other = v.clone()
    other[:, :, -1] = -other[:, :, -1]
    changed = s(q, k, other)
    G = s.sizes["G"]
    assert torch.equal(bits(changed[:, :, :-G]), bits(o[:, :, :-G]))
    assert torch.equal(changed[:, :, -G:], -o[:, :, -G:])


@of("attention")
def nan_stays_in_its_head(s: Subject) -> None:
    q, k, v = s.inputs()
    k[0, -1, 0, -1] = NAN
    v[-1, 0, -1, 0] = INF
    o = s(q, k, v)
    G = s.sizes["G"]
    assert bool(o[0, :, :G].isnan().all())
    finite = torch.ones_like(o, dtype=torch.bool)
    finite[0, :, :G] = False
    finite[-1, :, -G:, 0] = False
    assert not bool(o[-1, :, -G:, 0].isfinite().any())
    assert bool(o[finite].isfinite().all())
