"""What the gradients of causal attention promise: linear in do, and no query moves later keys."""

import torch
from attention_gradients import PROMISES
from kernel_properties import NAN, Subject, bits, of, refuses

COPIED = "causal_attention_backward.copied causal_attention_backward.warp_groups"
refuses(COPIED, "q k v do", "offset transposed every_second")


for promise in PROMISES:
    of("causal_attention_backward")(promise)


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
