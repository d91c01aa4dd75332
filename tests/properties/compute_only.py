"""What the chains promise: one is a fixed point, and they do not see each other."""

import torch
from kernel_properties import INF, NAN, Subject, bits, of


@of("compute_only")
def one_stays_one(s: Subject) -> None:
    x = torch.ones_like(s.integers(0, 1, "N"))
    assert torch.equal(s(x), x)  # a and b are exact and sum to one


@of("compute_only")
def chains_do_not_see_each_other(s: Subject) -> None:
    x = s.integers(-9, 9, "N")
    assert torch.equal(bits(s(x.flip(0))), bits(s(x).flip(0)))


@of("compute_only")
def infinities_and_nan_stay_in_their_chains(s: Subject) -> None:
    x = s.integers(-9, 9, "N")
    x[0], x[-1] = INF, NAN
    s.verify(x)
