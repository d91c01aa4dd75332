"""What packing into Q4_K promises: no weight further off than its block's steps explain."""

from typing import Any

import torch
from kernel_properties import INF, NAN, Subject, of

from workbench.measurement.inputs import torch_dtype


def _unpacked(w: Any) -> tuple[Any, Any, Any, Any]:
    """Weights [N, blocks, 8, 32], their step and d and dmin, as float64."""
    block = w.cpu().reshape(len(w), -1, 144)
    d, dmin = (block[..., i : i + 2].contiguous().view(torch.float16).double() for i in (0, 2))
    a, b, c = (block[..., i : i + 4].long() for i in (4, 8, 12))
    scale = torch.cat([a & 63, c & 15 | a >> 6 << 4], -1)
    minimum = torch.cat([b & 63, c >> 4 | b >> 6 << 4], -1)
    pairs = block[..., 16:].long().unflatten(-1, (4, 1, 32))
    q = torch.cat([pairs & 15, pairs >> 4], -2).flatten(-3, -2)
    step = (d * scale)[..., None]
    return step * q - (dmin * minimum)[..., None], step, d[..., None], dmin[..., None]


def _parts(x: Any) -> Any:
    return x.cpu().double().reshape(len(x), -1, 8, 32)


@of("q4_k_quantize")
def a_weight_is_off_by_what_the_docstring_says(s: Subject) -> None:
    (x,) = s.inputs()
    y, step, d, dmin = _unpacked(s(x))
    u = 2.0**-11
    bound = step / 2 + 7.5 * d + dmin / 2 + 63 * u * (15 * d + dmin)
    # below fp16's normal numbers d and dmin are off by half of its least step instead
    bound += 2.0**-25 * 63 * 16
    assert bool(((_parts(x) - y).abs() <= bound * (1 + 1e-5)).all())


@of("q4_k_quantize")
def weights_that_fit_come_back(s: Subject) -> None:
    # A range of 15 * 63 gives steps of 63, d = 1 and scales of 63. Of a minimum of 63, dmin is 1.
    q = torch.arange(s.sizes["K"], device=s.device) % 16
    x = q * 63 - 63
    if s.dtype == "bf16":  # 8 bits hold the ends of the range -1 to 944; dmin is rounded
        x = torch.where(q < 8, -1, 944)
    x = x.to(torch_dtype(s.dtype)).expand(2, -1)
    y, *_ = _unpacked(s(x))
    assert float((_parts(x) - y).abs().max()) <= (1e-3 if s.dtype == "bf16" else 0)


@of("q4_k_quantize")
def zeros_stay_zeros(s: Subject) -> None:
    (x,) = s.inputs()
    x[:, 64:128] = 0
    y, *_ = _unpacked(s(x))
    assert bool((y[:, 0, 2:4] == 0).all())
    assert not bool(s(torch.zeros_like(x)).any())


@of("q4_k_quantize")
def one_sign_needs_no_minimum(s: Subject) -> None:
    (x,) = s.inputs()
    w = s(x.abs()).reshape(len(x), -1, 144)
    assert not bool(w[..., 2:4].any())  # dmin
    w = s(-x.abs() - 1).reshape(len(x), -1, 144)
    y, *_ = _unpacked(w.flatten(1))
    assert bool((y <= 0).all())


@of("q4_k_quantize")
def blocks_do_not_see_each_other(s: Subject) -> None:
    (x,) = s.inputs()
    w = s(x).reshape(len(x), -1, 144)
    alone = s(x.reshape(-1, 256))
    assert torch.equal(w.flatten(0, 1), alone)


@of("q4_k_quantize")
def blocks_do_not_see_what_is_no_number_in_others(s: Subject) -> None:
    (x,) = s.inputs()
    x = x.repeat(2, 1)
    w = s(x)
    x[0, :256:9], x[-1, -1] = NAN, INF
    assert torch.equal(s(x).flatten()[144:-144], w.flatten()[144:-144])
