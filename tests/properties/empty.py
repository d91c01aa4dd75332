"""What the empty kernel promises: its zero, whatever it is given."""

import torch
from kernel_properties import NAN, Subject, bits, of


@of("empty")
def writes_a_zero(s: Subject) -> None:
    x = torch.full((1,), NAN, device=s.device, dtype=s.integers(0, 1).dtype)
    assert torch.equal(bits(s(x)), torch.zeros_like(bits(x)))
