"""What SwiGLU promises: linear in up, gated by gate."""

import torch
from kernel_properties import INF, NAN, Subject, bits, of, rows


@of("swiglu")
def powers_of_two_in_up_pass_through(s: Subject) -> None:
    gate, up = s.integers(-8, 8, "M", "N"), s.integers(-16, 16, "M", "N")
    y = s(torch.cat((gate, up), dim=-1))
    # y is at least 8 * sigmoid(-8) = 0.0027 or 0: 8 times it rounds alike in every dtype
    assert torch.equal(bits(s(torch.cat((gate, up * 8), dim=-1))), bits(y * 8))
    assert torch.equal(s(torch.cat((gate, -up), dim=-1)), -y)


@of("swiglu")
def gates_are_shut_or_open_exactly(s: Subject) -> None:
    up = s.integers(-16, 16, "M", "N")
    gate = torch.zeros_like(up)
    assert bool((s(torch.cat((gate, up), dim=-1)) == 0).all())
    gate[:, ::2], gate[:, 1::2] = 128.0, -128.0  # exp(-128) is below half a unit, exp(128) inf
    y = s(torch.cat((gate, up), dim=-1))
    assert torch.equal(y[:, ::2], up[:, ::2] * 128)
    assert bool((y[:, 1::2] == 0).all())


@of("swiglu")
def infinities_and_nan_stay_in_place(s: Subject) -> None:
    x = s.integers(1, 8, "M", "2*N")
    x = rows(x, 4)
    N = s.sizes["N"]
    x[0, 0], x[1, N], x[2, N - 1] = INF, -INF, NAN
    s.verify(x)
    assert not bool(s(x)[3].isnan().any())
