"""What the gradients of causal attention promise: linear in do, and no query moves later keys."""

import torch
from kernel_properties import NAN, ROUNDING, Subject, bits, of, refuses

refuses("causal_attention_backward.copied", "q k v do", "offset transposed every_second")


def _consistent(s: Subject):
    """Inputs whose o and lse are those of q, k and v."""
    q, k, v, _, _, do = s.inputs()
    G = s.sizes["G"]
    wide = [x.double().transpose(1, 2) for x in (q, k, v)]
    wide[1:] = [x.repeat_interleave(G, 1) for x in wide[1:]]
    scores = wide[0] @ wide[1].mT * q.shape[-1] ** -0.5
    scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), -float("inf"))
    lse = torch.logsumexp(scores, -1)
    o = (torch.exp(scores - lse[..., None]) @ wide[2]).transpose(1, 2)
    return q, k, v, o.to(q.dtype), lse.float(), do


@of("causal_attention_backward")
def doubling_do_doubles_all(s: Subject) -> None:
    """Bit for bit where fp16 does not run out of small numbers."""
    q, k, v, o, lse, do = _consistent(s)
    if s.dtype != "fp16":
        for one, two in zip(s(q, k, v, o, lse, do), s(q, k, v, o, lse, 2 * do), strict=True):
            assert torch.equal(2 * one, two)


@of("causal_attention_backward")
def turning_do_turns_all(s: Subject) -> None:
    q, k, v, o, lse, do = _consistent(s)
    for one, other in zip(s(q, k, v, o, lse, do), s(q, k, v, o, lse, -do), strict=True):
        assert torch.equal(-one, other)


@of("causal_attention_backward")
def nothing_comes_of_no_do(s: Subject) -> None:
    q, k, v, o, lse, do = _consistent(s)
    assert all(bool((d == 0).all()) for d in s(q, k, v, o, lse, torch.zeros_like(do)))


@of("causal_attention_backward")
def dv_sums_to_the_sum_of_do(s: Subject) -> None:
    """The weights of a query sum to 1, so over keys and heads nothing of do is lost."""
    q, k, v, o, lse, do = _consistent(s)
    _, _, dv = s(q, k, v, o, lse, do)
    got = dv.double().sum(1)
    wanted = do.double().sum(1).unflatten(1, (-1, s.sizes["G"])).sum(2)
    most = do.double().abs().sum(1).unflatten(1, (-1, s.sizes["G"])).sum(2)
    assert bool(((got - wanted).abs() <= most * (4 * ROUNDING[s.dtype] + 2.0**-16)).all())


@of("causal_attention_backward")
def a_second_call_gives_the_same_bits(s: Subject) -> None:
    inputs = s.inputs()
    for one, other in zip(s(*inputs), s(*inputs), strict=True):
        assert torch.equal(bits(one), bits(other))


@of("causal_attention_backward")
def sequences_do_not_meet(s: Subject) -> None:
    inputs = s.inputs()
    flipped = s(*(x.flip(0) for x in inputs))
    for one, other in zip(s(*inputs), flipped, strict=True):
        assert torch.equal(bits(one), bits(other.flip(0)))


@of("causal_attention_backward")
def what_comes_later_changes_no_bit_of_dq(s: Subject) -> None:
    """Neither other numbers in later keys, nor in what belongs to later queries."""
    q, k, v, o, lse, do = s.inputs()
    n = 1 + s.seed % s.sizes["S"]
    dq = bits(s(q, k, v, o, lse, do)[0][:, :n])
    for x in (q, k, v, o, do):
        x[:, n:] = 2 * x[:, n:] - 1
    assert torch.equal(bits(s(q, k, v, o, lse, do)[0][:, :n]), dq)


@of("causal_attention_backward")
def the_last_key_is_moved_by_the_last_query_alone(s: Subject) -> None:
    q, k, v, o, lse, do = s.inputs()
    _, dk, dv = s(q, k, v, o, lse, do)
    for x in (q, o, do):
        x[:, :-1] = 2 * x[:, :-1] - 1
    _, other_dk, other_dv = s(q, k, v, o, lse, do)
    assert torch.equal(bits(dk[:, -1]), bits(other_dk[:, -1]))
    assert torch.equal(bits(dv[:, -1]), bits(other_dv[:, -1]))


@of("causal_attention_backward")
def nan_stays_where_the_mask_lets_it(s: Subject) -> None:
    """Of a key in its own dk and in dq from its position on; of a query in its own dq and in dk up
    to its position; and no further than the blocks of at most 128 that the diagonal crosses."""
    q, k, v, o, lse, do = s.inputs()
    G, at = s.sizes["G"], s.seed % s.sizes["S"]
    low, high = at // 128 * 128, at // 128 * 128 + 128
    for x, of_key in ((k, True), (q, False)):
        old = x[0].clone()
        x[0, at, 0, -1] = NAN
        dq, dk, _ = s(q, k, v, o, lse, do)
        if of_key:
            touched = (dq[0, at:, :G], dk[0, at, 0])
            free = (dq[0, :low], dq[:, :, G:], dk[0, :at], dk[0, at + 1 :])
        else:
            touched = (dq[0, at, 0], dk[0, : at + 1, 0])
            free = (dq[0, :at], dq[0, at + 1 :], dq[:, :, 1:], dk[0, high:])
        assert all(bool(d.isnan().all()) for d in touched)
        assert all(bool(d.isfinite().all()) for d in (*free, dq[1:], dk[1:], dk[:, :, 1:]))
        x[0] = old
