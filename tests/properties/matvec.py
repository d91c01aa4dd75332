"""What a product with a few rows promises: small whole numbers sum exactly."""

import torch
from kernel_properties import INF, NAN, Subject, bits, of


@of("matvec")
def whole_numbers_are_exact(s: Subject) -> None:
    large = 1 if s.dtype == "bf16" else 3  # sums of up to 256 and 2048 are exact in 16 bits
    x, w = s.integers(-large, large, "M", "K"), s.integers(-large, large, "N", "K")
    x, w = x[:, :200], w[:, :200]
    exact = x.long().cpu() @ w.long().cpu().T
    assert torch.equal(s(x, w).cpu().long(), exact)


@of("matvec")
def rows_do_not_see_each_other(s: Subject) -> None:
    x, w = s.inputs()
    y = s(x, w)
    assert torch.equal(bits(s(x.flip(0), w.flip(0))), bits(y.flip(0, 1)))


@of("matvec")
def columns_behind_that_meet_zeros_change_nothing(s: Subject) -> None:
    x, w = (z[:, : -(-z.shape[1] // 2)] for z in s.inputs())
    more = [torch.cat([z, torch.zeros_like(z)], 1) for z in (x, w)]
    more[1][:, x.shape[1] :] = 1
    assert torch.equal(s(*more), s(x, w))


@of("matvec")
def infinities_and_nan_reach_their_rows_and_columns(s: Subject) -> None:
    x, w = s.integers(1, 4, "M", "K"), s.integers(1, 3, "N", "K")
    x[0, -1], x[-1, 0] = INF, NAN
    s.verify(x, w)
    w[-1, -1] = -INF
    s.verify(x, w)
