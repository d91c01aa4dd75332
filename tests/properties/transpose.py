"""What transposing promises: every bit, and back again."""

import torch
from kernel_properties import Subject, bits, of


@of("transpose")
def twice_is_the_same_again(s: Subject) -> None:
    x = s.integers(-99, 99, "M", "N") / 4
    assert torch.equal(s(s(x)), x)


@of("transpose")
def moves_every_bit(s: Subject) -> None:
    x = s.integers(-99, 99, "M", "N")
    x[0, 0], x[-1, -1] = float("nan"), -0.0
    assert torch.equal(bits(s(x)), bits(x.t()))
