"""What cross entropy promises: a loss that no shift of the logits changes, and targets that are
ignored wherever they lie outside the vocabulary."""

import math

import torch
from kernel_properties import INF, NAN, Subject, bits, of, rows


def _whole(s: Subject) -> tuple:
    _, target = s.inputs()
    return s.integers(-16, 16, "M", "V"), target


def _close(a, b, far: float) -> bool:
    return bool(((a - b).abs() <= far).all())


@of("cross_entropy")
def a_shift_moves_lse_and_not_the_loss(s: Subject) -> None:
    x, target = _whole(s)
    loss, lse = s(x, target)
    for shift in (-64.0, 8.0):
        moved, higher = s(x + shift, target)
        assert _close(moved, loss, 1e-5 * 80) and _close(higher, lse + shift, 1e-5 * 80)


@of("cross_entropy")
def equal_logits_are_the_log_of_their_number(s: Subject) -> None:
    x, target = torch.full_like(_whole(s)[0], 3.0), _whole(s)[1]
    loss, lse = s(x, target)
    exact = math.log(s.sizes["V"])
    valid = (target >= 0) & (target < s.sizes["V"])
    assert _close(lse, torch.full_like(lse, 3 + exact), 1e-5 * (4 + exact))
    assert _close(loss, torch.where(valid, exact, 0.0), 1e-5 * (4 + exact))


@of("cross_entropy")
def a_single_finite_logit_costs_nothing(s: Subject) -> None:
    x, _ = _whole(s)
    x[:] = -INF
    V = s.sizes["V"]
    target = torch.arange(len(x), device=x.device) * 7 % V
    x[torch.arange(len(x), device=x.device), target] = 5.0
    loss, lse = s(x, target)
    assert bool((loss == 0).all()) and bool((lse == 5).all())


@of("cross_entropy")
def targets_outside_are_ignored(s: Subject) -> None:
    x, target = _whole(s)
    _, lse = s(x, target)
    for outside in (-100, -1, s.sizes["V"], 1 << 40):
        loss, same = s(x, torch.full_like(target, outside))
        assert bool((loss == 0).all())
        assert torch.equal(bits(same), bits(lse))


@of("cross_entropy")
def the_target_alone_decides_between_losses(s: Subject) -> None:
    x, target = _whole(s)
    V = s.sizes["V"]
    first, lse = s(x, torch.zeros_like(target))
    last, _ = s(x, torch.full_like(target, V - 1))
    assert torch.equal(first, lse - x[:, 0].float())
    assert torch.equal(last, lse - x[:, V - 1].float())


@of("cross_entropy")
def infinities_and_nan_stay_in_their_rows(s: Subject) -> None:
    x, target = _whole(s)
    V = s.sizes["V"]
    x = rows(x, 5)
    target = torch.zeros(5, dtype=target.dtype, device=x.device)
    x[0, V // 2 :] = -INF
    x[1] = -INF
    x[2, V - 1] = NAN
    x[3, V // 2] = INF
    x[3, : V // 2] = -INF
    s.verify(x, target)
    assert bool(s(x, target)[1][4].isfinite())
