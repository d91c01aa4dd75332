"""What softmax promises: distributions, whatever is added to a row.

Inputs are multiples of 1/4 up to 16, which stay exact in bf16 when they are shifted.
"""

from typing import Any

import torch
from kernel_properties import INF, NAN, ROUNDING, Subject, bits, of, rows


def _quarters(s: Subject) -> Any:
    """At most 8 rows: more would only be more of the same to the interpreter."""
    return s.integers(-64, 64, "M", "N")[:8] / 4


@of("softmax")
def rows_are_distributions(s: Subject) -> None:
    y = s(_quarters(s)).double()
    assert bool((y >= 0).all()) and bool((y <= 1 + 2.0**-22).all())
    lost = s.sizes["N"] * 2.0**-25 if s.dtype == "fp16" else 0.0  # half of fp16's least step each
    off = (y.sum(-1) - 1).abs().max()
    assert float(off) <= ROUNDING[s.dtype] + lost + 2e-5


@of("softmax")
def a_shift_changes_no_bit(s: Subject) -> None:
    x = _quarters(s)
    y = s(x)
    for shift in (-16.0, 0.25, 16.0):
        assert torch.equal(bits(s(x + shift)), bits(y))


@of("softmax")
def order_is_kept(s: Subject) -> None:
    x = _quarters(s)
    order = x.double().argsort(-1)
    ranked = s(x).double().gather(-1, order)
    assert bool((ranked.diff(dim=-1) >= 0).all())


@of("softmax")
def a_constant_row_is_uniform(s: Subject) -> None:
    x = s.integers(-9, 9, "M")[:8, None].expand(-1, s.sizes["N"])
    s.verify(x)
    y = s(x)
    assert bool((y == y[:, :1]).all())


@of("softmax")
def infinities_and_nan_stay_in_their_rows(s: Subject) -> None:
    x = _quarters(s)
    N = s.sizes["N"]
    x = rows(x, 6)
    x[0, : N // 2] = -INF  # masked: the rest sums to 1
    x[1] = -INF  # nothing is left: NaN
    x[2, N - 1] = NAN
    x[3, 0] = INF
    x[4, N // 2 :] = -INF
    s.verify(x)
    y = s(x)
    assert bool(y[1:4].isnan().all())
    assert not bool(y[5].isnan().any())


@of("softmax")
def columns_may_change_places(s: Subject) -> None:
    x = _quarters(s)
    y, turned = s(x).double(), s(x.flip(-1).contiguous()).double().flip(-1)
    # A sum in another order: 2^-24 for each halving of a row, and one step of the dtype. Where the
    # sum's logarithm stands in the exponent, that exponent of up to 2^7 is rounded twice, each time
    # by up to 2^-18.
    least = 2.0**-24 if s.dtype == "fp16" else 0.0
    assert bool(((y - turned).abs() <= y * (2 * ROUNDING[s.dtype] + 2.0**-17) + least).all())
