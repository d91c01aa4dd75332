"""What rms_norm promises: scale and sign pass through, rows stay apart."""

import torch
from kernel_properties import INF, NAN, Subject, bits, of, rows


@of("rms_norm")
def powers_of_two_cancel(s: Subject) -> None:
    # The mean square is at least 2^22, so EPS is 2^-19 of a step of fp32: it cannot even tip the
    # rounding of a fused multiply-add, which at a mean square of 64 it did on an H200.
    x, w = s.integers(8, 16, "M", "N")[:16] * 256, s.integers(-4, 4, "N")
    y = s(x, w)
    for power in (2, 8):
        assert torch.equal(bits(s(x * power, w)), bits(y))


@of("rms_norm")
def signs_pass_through(s: Subject) -> None:
    x, w = s.integers(-8, 8, "M", "N")[:16], s.integers(1, 4, "N")
    assert torch.equal(s(-x, w), -s(x, w))
    assert torch.equal(s(x, -w), -s(x, w))


@of("rms_norm")
def zero_rows_stay_zero(s: Subject) -> None:
    x, w = s.integers(-8, 8, "M", "N")[:16], s.integers(-4, 4, "N")
    x[::2] = 0
    s.verify(x, w)
    assert bool((s(x, w)[::2] == 0).all())


@of("rms_norm")
def infinities_and_nan_stay_in_place(s: Subject) -> None:
    x, w = s.integers(1, 8, "M", "N"), s.integers(1, 4, "N")
    x = rows(x, 4)
    x[0, -1], x[1, 0], x[2, 0] = NAN, INF, -INF
    s.verify(x, w)
    assert not bool(s(x, w)[3].isnan().any())
    w[-1] = NAN
    s.verify(x, w)
