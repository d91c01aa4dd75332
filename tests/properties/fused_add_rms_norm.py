"""What fused_add_rms_norm promises: its sum is exact, and only the sum counts for the norm."""

import torch
from kernel_properties import INF, NAN, Subject, bits, of, rows


def _inputs(s: Subject):
    """At most 16 rows of whole numbers whose sums are exact in every dtype."""
    x, r = s.integers(-60, 60, "M", "N")[:16], s.integers(-50, 50, "M", "N")[:16]
    return x, r, s.integers(-4, 4, "N")


@of("fused_add_rms_norm")
def whole_numbers_add_exactly(s: Subject) -> None:
    x, r, w = _inputs(s)
    _, h = s(x, r, w)
    assert torch.equal(h.double(), x.double() + r.double())


@of("fused_add_rms_norm")
def only_the_sum_counts(s: Subject) -> None:
    x, r, w = _inputs(s)
    y, h = s(x, r, w)
    for a, b in ((r, x), (h, torch.zeros_like(h)), (x + 4, r - 4)):
        again, sum_ = s(a.contiguous(), b.contiguous(), w)
        assert torch.equal(bits(again), bits(y)) and torch.equal(bits(sum_ + 0.0), bits(h + 0.0))


@of("fused_add_rms_norm")
def powers_of_two_cancel(s: Subject) -> None:
    # The mean square is at least 2^22, which leaves nothing of EPS: see rms_norm
    x, r = s.integers(8, 16, "M", "N")[:16] * 128, s.integers(8, 15, "M", "N")[:16] * 128
    w = s.integers(-4, 4, "N")
    y, h = s(x, r, w)
    for power in (2, 8):
        larger, sum_ = s(x * power, r * power, w)
        assert torch.equal(bits(larger), bits(y)) and torch.equal(bits(sum_), bits(h * power))


@of("fused_add_rms_norm")
def rows_that_cancel_are_zero(s: Subject) -> None:
    x, r, w = _inputs(s)
    r[::2] = -x[::2]
    s.verify(x, r, w)
    y, h = s(x, r, w)
    assert bool((y[::2] == 0).all()) and bool((h[::2] == 0).all())


@of("fused_add_rms_norm")
def infinities_and_nan_stay_in_place(s: Subject) -> None:
    x, r, w = s.integers(1, 8, "M", "N"), s.integers(1, 7, "M", "N"), s.integers(1, 4, "N")
    x, r = (rows(t, 4) for t in (x, r))
    x[0, -1], x[1, 0], r[1, 0], r[2, 0] = NAN, INF, -INF, INF
    s.verify(x, r, w)
    assert not bool(s(x, r, w)[0][3].isnan().any())


@of("fused_add_rms_norm")
def small_rows_are_held_by_eps(s: Subject) -> None:
    """Their mean square is about 2^-20, which is as large as eps."""
    x, r, w = s.inputs()
    s.verify(x * 2.0**-10, r * 2.0**-10, w)
