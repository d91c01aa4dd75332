"""What the gradient of cross entropy promises: probabilities less the target, scaled by g."""

import torch
from kernel_properties import INF, NAN, Subject, bits, of


def _whole(s: Subject) -> tuple:
    _, target, _, _ = s.inputs()
    x = s.integers(-8, 8, "M", "V")
    return x, target, torch.logsumexp(x.float(), dim=-1), torch.ones(len(x), device=x.device)


@of("cross_entropy_backward")
def rows_sum_to_zero(s: Subject) -> None:
    x, target, lse, g = _whole(s)
    d = s(x, target, lse, g).double()
    step = {"fp32": 1e-6, "fp16": 1e-3, "bf16": 2.0**-7}[s.dtype]
    lost = s.sizes["V"] * 2.0**-25 if s.dtype == "fp16" else 0.0  # half of fp16's least step each
    assert float(d.sum(-1).abs().max()) <= 2 * step + lost + 2e-5


@of("cross_entropy_backward")
def powers_of_two_in_g_pass_through(s: Subject) -> None:
    x, target, lse, g = _whole(s)
    x = x.clamp(0, 4)  # p is far from fp16's denormals, where scaling rounds anew
    lse = torch.full_like(lse, 6.0)
    d = s(x, target, lse, g)
    assert torch.equal(bits(s(x, target, lse, g * 4)), bits(d * 4))
    assert torch.equal(s(x, target, lse, -g), -d)


@of("cross_entropy_backward")
def ignored_rows_have_no_gradient_whatever_they_hold(s: Subject) -> None:
    x, target, lse, g = _whole(s)
    x[::2] = NAN
    lse[::2] = INF
    target[::2] = -100
    if len(x) > 2:
        target[2] = s.sizes["V"]
    assert bool((s(x, target, lse, g)[::2] == 0).all())


@of("cross_entropy_backward")
def only_the_target_is_lowered(s: Subject) -> None:
    x, target, lse, g = _whole(s)
    V = s.sizes["V"]
    target = torch.arange(len(x), device=x.device) * 5 % V
    lse = torch.full_like(lse, 16.0)
    d = s(x, target, lse, g)
    at = torch.zeros(d.shape, dtype=torch.bool, device=x.device).scatter(1, target[:, None], True)
    assert bool((d[at] < 0).all()) and bool((d[~at] >= 0).all())


@of("cross_entropy_backward")
def infinities_and_nan_stay_in_place(s: Subject) -> None:
    x, target, lse, g = _whole(s)
    x[0, 0], x[-1, -1] = -INF, NAN
    target = torch.zeros_like(target)
    s.verify(x, target, lse, g)
