"""What causal attention promises: no query knows of later keys."""

import torch
from kernel_properties import INF, NAN, NOT_DENSE_ROWS, ROUNDING, Subject, bits, of, refuses

refuses("causal_attention.overlapped causal_attention.ping_pong", "q k v", NOT_DENSE_ROWS)


def _dealt(s: Subject):
    q = s.integers(-2, 2, "B", "S", "Hkv*G", "D")
    return q, s.integers(-2, 2, "B", "S", "Hkv", "D"), s.integers(-4, 4, "B", "S", "Hkv", "D")


@of("causal_attention")
def the_first_query_sees_one_key(s: Subject) -> None:
    q, k, v = s.inputs()
    assert torch.equal(s(q, k, v)[:, :1], v[:, :1].repeat_interleave(s.sizes["G"], 2))


@of("causal_attention")
def equal_scores_are_a_running_mean(s: Subject) -> None:
    q, k, v = _dealt(s)
    count = torch.arange(1, s.sizes["S"] + 1, device=s.device, dtype=torch.float64)
    mean = v.double().cumsum(1) / count[:, None, None]
    o = s(torch.zeros_like(q), k, v).double()
    off = (o - mean.repeat_interleave(s.sizes["G"], 2)).abs().max()
    assert float(off) <= 4 * (2 * ROUNDING[s.dtype] + 2.0**-20)


@of("causal_attention")
def what_comes_later_changes_no_bit(s: Subject) -> None:
    """Neither other values there, nor NaN, nor that there is nothing."""
    q, k, v = s.inputs()
    n = 1 + s.seed % s.sizes["S"]
    o = bits(s(q, k, v)[:, :n])
    k[:, n:], v[:, n:] = INF, -3
    k[:, n:, :, 0] = 7
    assert torch.equal(bits(s(q, k, v)[:, :n]), o)
    short = s(*[x[:, :n].contiguous() for x in (q, k, v)])
    assert torch.equal(bits(short), o)


@of("causal_attention")
def a_key_far_ahead_takes_all_later_queries(s: Subject) -> None:
    """One key scores 128 and more above all others: from its own query on, its values come out
    bit for bit; before it, nothing of it."""
    q, k, v = _dealt(s)
    at = s.seed % s.sizes["S"]
    q[..., 0], k[..., 0] = 64, 0
    q[..., 1:] = 0
    plain = s(q, k, v)
    k[:, at, :, 0] = 32
    o = s(q, k, v)
    expected = v[:, at : at + 1].repeat_interleave(s.sizes["G"], 2)
    assert torch.equal(o[:, at:], expected.expand(o[:, at:].shape))
    assert torch.equal(bits(o[:, :at]), bits(plain[:, :at]))


@of("causal_attention")
def sequences_and_heads_do_not_meet(s: Subject) -> None:
    q, k, v = s.inputs()
    o, G = s(q, k, v), s.sizes["G"]
    flipped = s(q.flip(0), k.flip(0), v.flip(0))
    assert torch.equal(bits(flipped.flip(0)), bits(o))
    v[:, :, -1] = -v[:, :, -1]
    changed = s(q, k, v)
    assert torch.equal(bits(changed[:, :, :-G]), bits(o[:, :, :-G]))
    assert torch.equal(changed[:, :, -G:], -o[:, :, -G:])


@of("causal_attention")
def nan_stays_in_later_queries_of_its_head(s: Subject) -> None:
    q, k, v = s.inputs()
    at, G = s.seed % s.sizes["S"], s.sizes["G"]
    k[0, at, 0, -1] = NAN
    o = s(q, k, v)
    assert bool(o[0, at:, :G].isnan().all())
    finite = torch.ones_like(o, dtype=torch.bool)
    finite[0, at:, :G] = False
    assert bool(o[finite].isfinite().all())
