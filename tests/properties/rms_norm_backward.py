"""What rms_norm_backward promises: linear in dy and nothing from nothing."""

import torch
from kernel_properties import NAN, Subject, of


def _inputs(s: Subject):
    x, dy = s.integers(-9, 9, "M", "N")[:16], s.integers(-7, 7, "M", "N")[:16]
    return x, s.integers(-4, 4, "N"), dy


def _alike(one, other) -> bool:
    # below 2^-13 steps of fp16 no longer shrink with the number
    pairs = [(a, b, b.abs() > 2.0**-13) for a, b in zip(one, other, strict=True)]
    return all(torch.equal(a[large], b[large]) for a, b, large in pairs)


@of("rms_norm_backward")
def doubling_dy_doubles_both(s: Subject) -> None:
    x, w, dy = _inputs(s)
    assert _alike(s(x, w, 2 * dy), [2 * g for g in s(x, w, dy)])


@of("rms_norm_backward")
def signs_pass_through(s: Subject) -> None:
    x, w, dy = _inputs(s)
    dx, dw = s(x, w, dy)
    for turned, signs in (((-x, w, dy), (1, -1)), ((x, -w, dy), (-1, 1)), ((x, w, -dy), (-1, -1))):
        for actual, expected, sign in zip(s(*turned), (dx, dw), signs, strict=True):
            assert torch.equal(actual, sign * expected)


@of("rms_norm_backward")
def nothing_comes_from_rows_without_dy(s: Subject) -> None:
    x, w, dy = _inputs(s)
    dy[::2] = 0
    dx, dw = s(x, w, dy)
    assert bool((dx[::2] == 0).all())
    other = torch.where((dy == 0).all(-1, keepdim=True), 2 * x + 1, x)
    assert torch.equal(s(other, w, dy)[1], dw)


@of("rms_norm_backward")
def nan_stays_in_its_row_and_column(s: Subject) -> None:
    x, w, dy = _inputs(s)
    x[0, 0] = 1
    dy[-1, -1] = NAN
    dx, dw = s(x, w, dy)
    assert bool(dx[-1].isnan().all()) and not bool(dx[:-1].isnan().any())
    assert bool(dw[-1].isnan()) and not bool(dw[:-1].isnan().any())


@of("rms_norm_backward")
def small_rows_are_held_by_eps(s: Subject) -> None:
    """Their mean square is about 2^-20, which is as large as eps."""
    x, w, dy = s.inputs()
    s.verify(x * 2.0**-10, w, dy * 2.0**-10)
