"""What a squared ReLU promises: exact squares, nothing below zero, and NaN stays."""

import torch
from kernel_properties import INF, NAN, Subject, of, rows


@of("channel_mix")
def whole_numbers_are_exact(s: Subject) -> None:
    k = s.integers(-15, 15, "M", "F")
    assert torch.equal(s(k).double(), k.double().clamp(min=0).square())


@of("channel_mix")
def infinities_and_nan_stay_in_place(s: Subject) -> None:
    k = s.integers(-3, 3, "M", "F")
    k = rows(k, 3)
    k[0, 0], k[1, -1], k[2, 0] = NAN, INF, -INF
    s.verify(k)
