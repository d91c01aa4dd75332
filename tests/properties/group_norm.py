"""What the norm over heads promises: exact shifts and constants, and heads that are apart."""

import torch
from kernel_properties import INF, NAN, Subject, bits, of


def _whole(s: Subject):
    """Whole numbers, of which means over a head are exact."""
    axes = "M", "H", "N"
    x, r, k, v, g = (s.integers(-4 - i, 4 + i, *axes) for i in range(5))
    weight, bias, bonus = (s.integers(-2 - i, 2 + i, "H", "N") for i in range(3))
    return x, r, k, v, g, weight, bias, bonus


@of("group_norm")
def a_shift_changes_no_bit(s: Subject) -> None:
    x, *others = _whole(s)
    y = s(x, *others)
    for shift in (-16, 64):
        assert torch.equal(bits(s(x + shift, *others)), bits(y))


@of("group_norm")
def what_is_constant_leaves_the_rest(s: Subject) -> None:
    x, r, k, v, g, weight, bias, bonus = _whole(s)
    x = x[..., :1].expand(x.shape)
    exact = g.double() * bias.double()
    assert torch.equal(s(x, r * 0, k, v, g, weight, bias, bonus).double(), exact)
    kept = (r.double() * k.double() * bonus.double()).sum(-1, keepdim=True) * v.double()
    y = s(x, r, k, v, g, weight, bias, bonus)
    assert torch.allclose(y.double(), (bias.double() + kept) * g.double(), rtol=8e-3)


@of("group_norm")
def heads_are_apart(s: Subject) -> None:
    made = s.inputs()
    turned = [x.flip(-2) for x in made]
    assert torch.equal(bits(s(*turned).flip(-2)), bits(s(*made)))


@of("group_norm")
def nan_and_infinities_stay_in_their_heads(s: Subject) -> None:
    x, *others = _whole(s)
    x[0, 0, 0], x[-1, -1, -1] = NAN, INF
    s.verify(x, *others)
    y = s(x, *others)
    assert bool(y[0, 0].isnan().all()) and bool(y[-1, -1].isnan().all())
    y[0, 0] = y[-1, -1] = 0
    assert bool(y.isfinite().all())
