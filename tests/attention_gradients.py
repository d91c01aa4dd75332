"""What the gradients of attention promise with the mask and without it: linear in do."""

import torch
from kernel_properties import ROUNDING, Subject, bits


def consistent(s: Subject):
    """Inputs whose o and lse are those of q, k and v, with the mask where there is no axis T."""
    q, k, v, _, _, do = s.inputs()
    G = s.sizes["G"]
    wide = [x.double().transpose(1, 2) for x in (q, k, v)]
    wide[1:] = [x.repeat_interleave(G, 1) for x in wide[1:]]
    scores = wide[0] @ wide[1].mT * q.shape[-1] ** -0.5
    if "T" not in s.sizes:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), -float("inf"))
    lse = torch.logsumexp(scores, -1)
    o = (torch.exp(scores - lse[..., None]) @ wide[2]).transpose(1, 2)
    return q, k, v, o.to(q.dtype), lse.float(), do


def doubling_do_doubles_all(s: Subject) -> None:
    """Bit for bit where fp16 does not run out of small numbers."""
    q, k, v, o, lse, do = consistent(s)
    if s.dtype != "fp16":
        for one, two in zip(s(q, k, v, o, lse, do), s(q, k, v, o, lse, 2 * do), strict=True):
            assert torch.equal(2 * one, two)


def turning_do_turns_all(s: Subject) -> None:
    q, k, v, o, lse, do = consistent(s)
    for one, other in zip(s(q, k, v, o, lse, do), s(q, k, v, o, lse, -do), strict=True):
        assert torch.equal(-one, other)


def nothing_comes_of_no_do(s: Subject) -> None:
    q, k, v, o, lse, do = consistent(s)
    assert all(bool((d == 0).all()) for d in s(q, k, v, o, lse, torch.zeros_like(do)))


def dv_sums_to_the_sum_of_do(s: Subject) -> None:
    """The weights of a query sum to 1, so over keys and heads nothing of do is lost."""
    q, k, v, o, lse, do = consistent(s)
    _, _, dv = s(q, k, v, o, lse, do)
    got = dv.double().sum(1)
    wanted = do.double().sum(1).unflatten(1, (-1, s.sizes["G"])).sum(2)
    most = do.double().abs().sum(1).unflatten(1, (-1, s.sizes["G"])).sum(2)
    assert bool(((got - wanted).abs() <= most * (4 * ROUNDING[s.dtype] + 2.0**-16)).all())


def a_second_call_gives_the_same_bits(s: Subject) -> None:
    inputs = s.inputs()
    for one, other in zip(s(*inputs), s(*inputs), strict=True):
        assert torch.equal(bits(one), bits(other))


def sequences_do_not_meet(s: Subject) -> None:
    inputs = s.inputs()
    flipped = s(*(x.flip(0) for x in inputs))
    for one, other in zip(s(*inputs), flipped, strict=True):
        assert torch.equal(bits(one), bits(other.flip(0)))


PROMISES = (
    doubling_do_doubles_all,
    turning_do_turns_all,
    nothing_comes_of_no_do,
    dv_sums_to_the_sum_of_do,
    a_second_call_gives_the_same_bits,
    sequences_do_not_meet,
)
