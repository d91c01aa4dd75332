"""What running sums promise: each is the one before and the next element."""

import torch
from kernel_properties import INF, NAN, Subject, of, rows


def _small(s: Subject):
    """So small that every sum is exact in the dtype: up to 2^8 in bf16, 2^11 in fp16."""
    x = torch.zeros_like(s.integers(0, 1, "M", "N"))
    x[:, :200] = s.integers(-1, 1, "M", "N")[:, :200]
    return x


@of("cumsum")
def whole_numbers_are_exact(s: Subject) -> None:
    x = _small(s)
    assert torch.equal(s(x).double(), x.double().cumsum(-1))


@of("cumsum")
def what_comes_later_changes_nothing_before(s: Subject) -> None:
    x = _small(s)
    half = x.shape[1] // 2
    y = s(x)
    x[:, half:] = 7
    assert torch.equal(s(x)[:, :half], y[:, :half])


@of("cumsum")
def the_last_is_the_sum(s: Subject) -> None:
    x = _small(s)
    assert torch.equal(s(x)[:, -1].double(), x.double().sum(-1))


@of("cumsum")
def infinities_and_nan_reach_what_follows_in_their_rows(s: Subject) -> None:
    x = s.integers(-1, 1, "M", "N")
    x = rows(x, 3)
    half = x.shape[1] // 2
    x[0, half], x[1, half] = NAN, -INF
    y = s(x)
    assert bool(y[0, half:].isnan().all()) and bool((y[1, half:] == -INF).all())
    assert bool(y[:2, :half].isfinite().all()) and bool(y[2].isfinite().all())
