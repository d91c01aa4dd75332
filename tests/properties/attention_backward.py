"""What the gradients of attention promise: linear in do, and keys have no order."""

import torch
from kernel_properties import NAN, ROUNDING, Subject, bits, of, refuses

refuses("attention_backward.copied", "q k v do", "offset transposed every_second")


def _consistent(s: Subject):
    """Inputs whose o and lse are those of q, k and v."""
    q, k, v, _, _, do = s.inputs()
    G = s.sizes["G"]
    wide = [x.double().transpose(1, 2) for x in (q, k, v)]
    wide[1:] = [x.repeat_interleave(G, 1) for x in wide[1:]]
    scores = wide[0] @ wide[1].mT * q.shape[-1] ** -0.5
    lse = torch.logsumexp(scores, -1)
    o = (torch.exp(scores - lse[..., None]) @ wide[2]).transpose(1, 2)
    return q, k, v, o.to(q.dtype), lse.float(), do


def _near(actual, expected, dtype) -> bool:
    scale = float(expected.double().square().mean().sqrt()) + 2.0**-20
    return float((actual.double() - expected.double()).abs().max()) <= 16 * scale * (
        ROUNDING[dtype] + 2.0**-20
    )


@of("attention_backward")
def doubling_do_doubles_all(s: Subject) -> None:
    """Bit for bit where fp16 does not run out of small numbers."""
    q, k, v, o, lse, do = _consistent(s)
    if s.dtype != "fp16":
        for one, two in zip(s(q, k, v, o, lse, do), s(q, k, v, o, lse, 2 * do), strict=True):
            assert torch.equal(2 * one, two)


@of("attention_backward")
def turning_do_turns_all(s: Subject) -> None:
    q, k, v, o, lse, do = _consistent(s)
    for one, other in zip(s(q, k, v, o, lse, do), s(q, k, v, o, lse, -do), strict=True):
        assert torch.equal(-one, other)


@of("attention_backward")
def nothing_comes_of_no_do(s: Subject) -> None:
    q, k, v, o, lse, do = _consistent(s)
    assert all(bool((d == 0).all()) for d in s(q, k, v, o, lse, torch.zeros_like(do)))


@of("attention_backward")
def dv_sums_to_the_sum_of_do(s: Subject) -> None:
    """The weights of a query sum to 1, so over keys and heads nothing of do is lost."""
    q, k, v, o, lse, do = _consistent(s)
    _, _, dv = s(q, k, v, o, lse, do)
    got = dv.double().sum(1)
    wanted = do.double().sum(1).unflatten(1, (-1, s.sizes["G"])).sum(2)
    most = do.double().abs().sum(1).unflatten(1, (-1, s.sizes["G"])).sum(2)
    assert bool(((got - wanted).abs() <= most * (4 * ROUNDING[s.dtype] + 2.0**-16)).all())


@of("attention_backward")
def a_second_call_gives_the_same_bits(s: Subject) -> None:
    inputs = s.inputs()
    for one, other in zip(s(*inputs), s(*inputs), strict=True):
        assert torch.equal(bits(one), bits(other))


@of("attention_backward")
def sequences_do_not_meet(s: Subject) -> None:
    inputs = s.inputs()
    flipped = s(*(x.flip(0) for x in inputs))
    for one, other in zip(s(*inputs), flipped, strict=True):
        assert torch.equal(bits(one), bits(other.flip(0)))


@of("attention_backward")
def the_order_of_keys_does_not_matter(s: Subject) -> None:
    q, k, v, o, lse, do = _consistent(s)
    order = torch.randperm(s.sizes["T"], generator=torch.Generator().manual_seed(s.seed))
    order = order.to(s.device)
    dq, dk, dv = s(q, k, v, o, lse, do)
    moved = s(q, k[:, order].contiguous(), v[:, order].contiguous(), o, lse, do)
    for one, other in zip((dq, dk[:, order], dv[:, order]), moved, strict=True):
        assert _near(one, other, s.dtype)


@of("attention_backward")
def nan_stays_in_its_head(s: Subject) -> None:
    """Of a key in its own dk and in dq of its heads; of a query in its own dq and dk of its
    heads."""
    q, k, v, o, lse, do = s.inputs()
    G, T, S = (s.sizes[axis] for axis in "GTS")
    key, query = s.seed % T, s.seed % S
    for at, of_key in ((k, True), (q, False)):
        old = at[0].clone()
        at[0, key if of_key else query, 0, -1] = NAN
        dq, dk, _ = s(q, k, v, o, lse, do)
        seen, reached = (
            torch.zeros_like(dq, dtype=torch.bool),
            torch.zeros_like(dk, dtype=torch.bool),
        )
        if of_key:
            seen[0, :, :G], reached[0, key, 0] = True, True
        else:
            seen[0, query, 0], reached[0, :, 0] = True, True
        assert bool(dq[seen].isnan().all()) and bool(dk[reached].isnan().all())
        assert bool(dq[~seen].isfinite().all()) and bool(dk[~reached].isfinite().all())
        at[0] = old
