"""What rotary embedding promises: rotations, by the token's position and by nothing else."""

import torch
from kernel_properties import INF, NAN, Subject, bits, of


def _whole(s: Subject) -> tuple:
    _, _, cos, sin, position = s.inputs()
    q, k = s.integers(-8, 8, "S", "Hq", "D"), s.integers(-8, 8, "S", "Hkv", "D")
    return q, k, cos, sin, position


@of("rope")
def no_angle_changes_nothing(s: Subject) -> None:
    q, k, cos, sin, position = _whole(s)
    turned = s(q, k, torch.ones_like(cos), torch.zeros_like(sin), position)
    assert torch.equal(turned[0], q) and torch.equal(turned[1], k)


@of("rope")
def quarter_turns_swap_halves_exactly(s: Subject) -> None:
    q, k, cos, sin, position = _whole(s)
    turned = s(q, k, torch.zeros_like(cos), torch.ones_like(sin), position)
    for x, y in zip((q, k), turned, strict=True):
        a, b = x.chunk(2, dim=-1)
        assert torch.equal(y, torch.cat((-b, a), dim=-1))
    back = s(*turned, torch.zeros_like(cos), -torch.ones_like(sin), position)
    assert torch.equal(back[0], q) and torch.equal(back[1], k)


@of("rope")
def permuting_tokens_or_heads_permutes_the_answer(s: Subject) -> None:
    q, k, cos, sin, position = _whole(s)
    y, _ = s(q, k, cos, sin, position)
    token, head = (torch.arange(n - 1, -1, -1, device=q.device) for n in q.shape[:2])
    moved, _ = s(q[token][:, head], k, cos, sin, position[token])
    assert torch.equal(bits(moved), bits(y[token][:, head]))


@of("rope")
def queries_and_keys_are_treated_alike(s: Subject) -> None:
    q, _, cos, sin, position = _whole(s)
    y, z = s(q, q, cos, sin, position)
    assert torch.equal(bits(y), bits(z))


@of("rope")
def rows_of_the_table_are_the_positions(s: Subject) -> None:
    q, k, cos, sin, position = _whole(s)
    y, z = s(q, k, cos, sin, position)
    last = torch.zeros_like(position) + (s.sizes["S"] - 1)
    order = last - position  # the table upside down
    upside = s(q, k, cos.flip(0), sin.flip(0), order.to(position.dtype))
    assert torch.equal(bits(upside[0]), bits(y)) and torch.equal(bits(upside[1]), bits(z))


@of("rope")
def infinities_and_nan_reach_their_pair_alone(s: Subject) -> None:
    q, k, cos, sin, position = _whole(s)
    half = s.sizes["D"] // 2
    q[0, 0, 0], k[-1, -1, -1] = INF, NAN
    cos, sin = torch.full_like(cos, 0.5), torch.full_like(sin, 0.5)
    s.verify(q, k, cos, sin, position)
    y, z = s(q, k, cos, sin, position)
    assert int((~y.isfinite()).sum()) == 2 and int((~z.isfinite()).sum()) == 2
    assert bool(y[0, 0, half].isinf()) and bool(z[-1, -1, half - 1].isnan())
