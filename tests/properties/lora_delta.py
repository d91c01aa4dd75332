"""What the update of LoRA promises: bilinear in A and B, additive in the rank.

Small whole numbers have products that sum exactly in fp32, and u is exact in any dtype.
"""

import torch
from kernel_properties import INF, NAN, Subject, bits, of

SCALE = 2  # alpha / r, in numbers of our own


def _whole(s: Subject) -> list:
    """Ones and zeros so few that y stays below 256, where bf16 is exact."""
    x, a, b = s.integers(-1, 1, "M", "K"), s.integers(-1, 1, "r", "K"), s.integers(0, 1, "N", "r")
    x[:, :-12] = 0
    b[:, 8:] = 0
    return [x, a, b]


@of("lora_delta")
def whole_numbers_are_exact(s: Subject) -> None:
    x, a, b = _whole(s)
    exact = SCALE * (x.long().cpu() @ a.long().cpu().T) @ b.long().cpu().T
    assert torch.equal(s(x, a, b).cpu().long(), exact)


@of("lora_delta")
def powers_of_two_pass_through(s: Subject) -> None:
    x, a, b = s.inputs()
    y = s(x, a, b)
    for scaled in ((x * 2, a, b), (x, a * 2, b), (x, a, b * 2)):
        assert torch.equal(s(*scaled), y * 2)


@of("lora_delta")
def ranks_add_up(s: Subject) -> None:
    x, a, b = _whole(s)
    y = s(x, a, b)
    assert torch.equal(s(x, torch.cat((a, a)), torch.cat((b, torch.zeros_like(b)), dim=1)), y)
    turned = torch.arange(len(a) - 1, -1, -1, device=a.device)
    assert torch.equal(s(x, a[turned], b[:, turned]), y)


@of("lora_delta")
def rows_do_not_meet(s: Subject) -> None:
    x, a, b = s.inputs()
    y = s(x, a, b)
    order = torch.arange(len(x) - 1, -1, -1, device=x.device)
    assert torch.equal(bits(s(x[order], a, b)), bits(y[order]))


@of("lora_delta")
def infinities_and_nan_reach_their_rows_and_columns(s: Subject) -> None:
    x, a, b = (t.abs() + 1 for t in _whole(s))
    x[0, -1] = INF
    x[-1, 0] = NAN
    s.verify(x, a, b)
    s.verify(x, a[:3], b[:, :3])  # a rank that is padded, with what must not reach y
    b[-1, -1] = -INF
    s.verify(x, a, b)
