"""What a token shift promises: mixtures of 0 and 1 copy, and a sequence may come in parts."""

import torch
from kernel_properties import INF, NAN, Subject, bits, of


@of("token_shift")
def mixtures_of_nothing_and_all_copy(s: Subject) -> None:
    x, last = s.integers(-9, 9, "B", "T", "D"), s.integers(-9, 9, "B", "D")
    before = torch.cat([last[:, None], x[:, :-1]], dim=1)
    mix = torch.zeros_like(s.inputs()[2])
    assert all(torch.equal(y, x) for y in s(x, last, mix))
    assert all(torch.equal(y, before) for y in s(x, last, mix + 1))


@of("token_shift")
def parts_of_a_sequence_are_its_parts(s: Subject) -> None:
    x, last, mix = s.inputs()
    x = x.repeat(1, 2, 1)
    cut = x.shape[1] // 3 + 1
    whole = s(x, last, mix)
    parts = s(x[:, :cut], last, mix), s(x[:, cut:], x[:, cut - 1], mix)
    assert torch.equal(bits(torch.cat(parts, dim=2)), bits(whole))


@of("token_shift")
def infinities_and_nan_reach_their_token_and_the_next(s: Subject) -> None:
    x, last, mix = s.inputs()
    x, mix = x.repeat(1, 3, 1), mix.abs() + 0.5
    x[0, 0, 0], x[-1, -1, -1], last[-1, 0] = NAN, INF, NAN
    s.verify(x, last, mix)
