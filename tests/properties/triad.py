"""What the triad promises: linear in both inputs, exact on grids."""

import torch
from kernel_properties import INF, NAN, Subject, of


@of("triad")
def whole_numbers_are_exact(s: Subject) -> None:
    a, b = s.integers(-60, 60, "N"), 2 * s.integers(-30, 30, "N")
    assert torch.equal(s(a, b).double(), a.double() + 0.5 * b.double())


@of("triad")
def zeros_pass_the_other_side_through(s: Subject) -> None:
    a = s.integers(-9, 9, "N")
    assert torch.equal(s(a, torch.zeros_like(a)), a)
    assert torch.equal(s(torch.zeros_like(a), a + a), a)


@of("triad")
def infinities_and_nan_stay_in_their_places(s: Subject) -> None:
    a, b = s.integers(-9, 9, "N"), s.integers(-9, 9, "N")
    a[0], b[-1] = INF, NAN
    s.verify(a, b)
