"""What layer_norm_backward promises: a row's level does not count, db is a plain sum, linear in
dy."""

import torch
from kernel_properties import NAN, Subject, bits, of

LEVELS = {"fp32": 4096, "fp16": 1024, "bf16": 128}  # whole numbers about them are exact


def _inputs(s: Subject):
    """At most 16 rows; those of x sum to zero."""
    x, dy = s.integers(-8, 8, "M", "N")[:16], s.integers(-7, 7, "M", "N")[:16]
    return x - x.flip(-1), s.integers(-4, 4, "N"), dy


@of("layer_norm_backward")
def a_shift_of_x_changes_no_bit(s: Subject) -> None:
    x, w, dy = _inputs(s)
    for actual, expected in zip(s(x + LEVELS[s.dtype], w, dy), s(x, w, dy), strict=True):
        assert torch.equal(bits(actual), bits(expected))


@of("layer_norm_backward")
def db_sums_exactly(s: Subject) -> None:
    x, w, dy = _inputs(s)
    assert torch.equal(s(x, w, dy)[2].double(), dy.double().sum(0))


@of("layer_norm_backward")
def signs_pass_through(s: Subject) -> None:
    x, w, dy = _inputs(s)
    gradients = s(x, w, dy)
    turns = ((-x, w, dy), (1, -1, 1)), ((x, -w, dy), (-1, 1, 1)), ((x, w, -dy), (-1, -1, -1))
    for turned, signs in turns:
        for actual, expected, sign in zip(s(*turned), gradients, signs, strict=True):
            assert torch.equal(actual, sign * expected)


@of("layer_norm_backward")
def nothing_comes_from_rows_without_dy(s: Subject) -> None:
    x, w, dy = _inputs(s)
    dy[::2] = 0
    dx, _, _ = s(x, w, dy)
    assert bool((dx[::2] == 0).all())


@of("layer_norm_backward")
def nan_stays_in_its_row_and_column(s: Subject) -> None:
    x, w, dy = _inputs(s)
    dy[-1, -1] = NAN
    dx, dw, db = s(x, w, dy)
    assert bool(dx[-1].isnan().all()) and not bool(dx[:-1].isnan().any())
    for total in (dw, db):
        assert bool(total[-1].isnan()) and not bool(total[:-1].isnan().any())


@of("layer_norm_backward")
def small_rows_are_held_by_eps(s: Subject) -> None:
    """Their variance is about 2^-16, which is about as large as eps."""
    x, w, dy = s.inputs()
    s.verify(x * 2.0**-8, w, dy * 2.0**-8)
