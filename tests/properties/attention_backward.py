"""What the gradients of attention promise: linear in do, and keys have no order."""

import torch
from attention_gradients import PROMISES, consistent
from kernel_properties import NAN, ROUNDING, Subject, of, refuses

COPIED = "attention_backward.copied attention_backward.warp_groups"
refuses(COPIED, "q k v do", "offset transposed every_second")


def _near(actual, expected, dtype) -> bool:
    scale = float(expected.double().square().mean().sqrt()) + 2.0**-20
    return float((actual.double() - expected.double()).abs().max()) <= 16 * scale * (
        ROUNDING[dtype] + 2.0**-20
    )


for promise in PROMISES:
    of("attention_backward")(promise)


@of("attention_backward")
def the_order_of_keys_does_not_matter(s: Subject) -> None:
    q, k, v, o, lse, do = consistent(s)
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
