"""What layer_norm promises: a row's level is taken out without a trace, rows stay apart."""

import torch
from kernel_properties import INF, NAN, Subject, bits, of, rows

LEVELS = {"fp32": 4096, "fp16": 1024, "bf16": 128}  # whole numbers about them are exact


def _balanced(s: Subject):
    """At most 16 rows of small whole numbers that sum to zero."""
    x = s.integers(-8, 8, "M", "N")[:16]
    return x - x.flip(-1)


@of("layer_norm")
def a_shift_changes_no_bit(s: Subject) -> None:
    # E[x^2] - E[x]^2 would lose all at a level of 4096 in fp32
    x, w, b = _balanced(s), s.integers(-4, 4, "N"), s.integers(-3, 3, "N")
    y = s(x, w, b)
    for level in (LEVELS[s.dtype], -1):
        assert torch.equal(bits(s(x + level, w, b)), bits(y))


@of("layer_norm", dtypes="fp32")
def a_high_level_leaves_no_trace(s: Subject) -> None:
    """Sums of squares about 0 would be 2^40 times those about the mean. `looped` and `welford` take
    the level out before they sum; the others sum it, which is exact up to 2^24."""
    taken_out = s.impl.name in ("looped", "welford")
    high = 20 if taken_out else 23 - s.sizes["N"].bit_length()
    x, w, b = _balanced(s), s.integers(-4, 4, "N"), s.integers(-3, 3, "N")
    assert torch.equal(bits(s(x + 2.0**high, w, b)), bits(s(x, w, b)))


@of("layer_norm")
def constant_rows_become_b(s: Subject) -> None:
    level, b = s.integers(-9, 9, "M")[:16], s.integers(-3, 3, "N")
    y = s(level[:, None].expand(-1, s.sizes["N"]), s.integers(-4, 4, "N"), b)
    assert torch.equal(y, b.expand(y.shape))


@of("layer_norm")
def signs_pass_through(s: Subject) -> None:
    x, w, b = s.integers(-9, 9, "M", "N")[:16], s.integers(-4, 4, "N"), s.integers(-3, 3, "N")
    y = s(x, w, b)
    assert torch.equal(s(-x, w, -b), -y)
    assert torch.equal(s(-x, -w, b), y)


@of("layer_norm")
def rows_may_change_places(s: Subject) -> None:
    x, w, b = s.integers(-9, 9, "M", "N")[:16], s.integers(-4, 4, "N"), s.integers(-3, 3, "N")
    assert torch.equal(bits(s(x.flip(0).contiguous(), w, b)), bits(s(x, w, b).flip(0)))


@of("layer_norm")
def infinities_and_nan_stay_in_their_rows(s: Subject) -> None:
    x, w, b = s.integers(1, 8, "M", "N"), s.integers(1, 4, "N"), s.integers(-3, 3, "N")
    x = rows(x, 4)
    x[0, -1], x[1, 0], x[2, 0] = NAN, INF, -INF
    s.verify(x, w, b)
    y = s(x, w, b)
    assert bool(y[:3].isnan().all()) and not bool(y[3].isnan().any())
