"""What a sum promises: exact on whole numbers, whatever the order."""

import torch
from kernel_properties import INF, NAN, Subject, of, rows


@of("reduce")
def whole_numbers_are_exact(s: Subject) -> None:
    x = s.integers(-99, 99, "M", "N")
    assert torch.equal(s(x).double(), x.double().sum(-1))


@of("reduce")
def the_order_does_not_matter_where_sums_are_exact(s: Subject) -> None:
    x = s.integers(-99, 99, "M", "N") / 4
    assert torch.equal(s(x.flip(1)), s(x))


@of("reduce")
def infinities_and_nan_stay_in_their_rows(s: Subject) -> None:
    x = s.integers(-9, 9, "M", "N")
    x = rows(x, 3)
    x[0, -1], x[1, 0] = NAN, -INF
    y = s(x)
    assert bool(y[0].isnan()) and float(y[1]) == -INF and bool(y[2].isfinite())
