"""What a linear layer with LoRA promises: the layer where B or A is 0, and one layer of merged
weights elsewhere.

Small whole numbers have products that sum exactly in fp32, and u is exact in any dtype.
"""

import torch
from kernel_properties import INF, NAN, NOT_DENSE_ROWS, Subject, bits, of, refuses

SCALE = 2  # alpha / r, in numbers of our own

refuses("lora.persistent", "x w", NOT_DENSE_ROWS)
refuses("lora.warp_groups", "x w b", NOT_DENSE_ROWS)


def _whole(s: Subject) -> list:
    """Ones and zeros so few that y stays below 256, where bf16 is exact."""
    x, w = s.integers(-1, 1, "M", "K"), s.integers(0, 1, "N", "K")
    a, b = s.integers(-1, 1, "r", "K"), s.integers(0, 1, "N", "r")
    x[:, 12:] = 0
    a[:, 4:] = 0
    b[:, 8:] = 0
    return [x, w, a, b]


def _exact(x, w, a, b):
    x, w, a, b = (t.long().cpu() for t in (x, w, a, b))
    return x @ w.T + SCALE * (x @ a.T) @ b.T


@of("lora")
def whole_numbers_are_exact(s: Subject) -> None:
    given = _whole(s)
    assert torch.equal(s(*given).cpu().long(), _exact(*given))


@of("lora")
def merged_weights_are_the_same_layer(s: Subject) -> None:
    x, w, a, b = _whole(s)
    merged = (w.double() + SCALE * b.double() @ a.double()).to(w.dtype)
    y = s(x, w, a, b)
    assert torch.equal(bits(s(x, merged, a, torch.zeros_like(b))), bits(y))


@of("lora")
def without_an_update_it_is_the_layer_alone(s: Subject) -> None:
    x, w, a, b = s.inputs()
    plain = s(x, w, torch.zeros_like(a), b)
    assert torch.equal(s(x, w, a, torch.zeros_like(b)), plain)


@of("lora")
def ranks_add_up(s: Subject) -> None:
    x, w, a, b = _whole(s)
    both = s(x, w, torch.cat((a, a)), torch.cat((b, torch.zeros_like(b)), dim=1))
    assert torch.equal(both, s(x, w, a, b))
    turned = torch.arange(len(a) - 1, -1, -1, device=a.device)
    assert torch.equal(s(x, w, a[turned], b[:, turned]), s(x, w, a, b))


@of("lora", dtypes="fp16")
def the_update_between_may_exceed_fp16(s: Subject) -> None:
    x, w, a, b = (torch.ones_like(t) for t in _whole(s))
    s.verify(x * 256, w, a * 256, b * 2.0**-14)
    s.verify(x * 256, w, a * 256, torch.zeros_like(b))


@of("lora")
def infinities_and_nan_reach_their_rows_and_columns(s: Subject) -> None:
    x, w, a, b = _whole(s)
    x, w, a, b = x.abs() + 1, w + 1, a.abs() + 1, b + 1
    x[0, -1] = INF
    x[-1, 0] = NAN
    s.verify(x, w, a, b)
    b[-1, -1] = -INF
    s.verify(x, w, a, b)


@of("lora", impls="warp_groups", own_sizes=True)
def the_update_is_a_last_step_of_every_tile(s: Subject) -> None:
    """Several tiles a program, and half tiles; u computed by cores without a tile, or by others. A
    step in the wrong slot, or u read before it is there, changes a sum of whole numbers."""
    # Tiles of 128x256 on 132 cores: two rounds and 16 halves, of 5 steps or 2; two and 74; one; 6
    extents = (
        *((2168, 4088, 200, 64), (2168, 4088, 56, 8), (3320, 3320, 248, 24)),
        *((1528, 2808, 72, 8), (136, 520, 136, 16)),
    )
    some = (
        dict(),
        dict(num_stages=3, lag=2),
        dict(block_m=256, block_n=128, lag=1),
        dict(block_m=128, block_n=192, lag=1),
        dict(block_m=128, block_n=256),
        dict(block_m=128, block_n=128, halves=0, group_m=1),
    )
    for M, N, K, r in extents:
        sizes = {"M": M, "N": N, "K": K, "r": r}
        large = Subject(s.impl, s.config, sizes, s.dtype, s.device, s.seed)
        x, w = large.integers(-1, 1, "M", "K"), large.integers(-1, 1, "N", "K")
        a, b = large.integers(-1, 1, "r", "K"), large.integers(-1, 1, "N", "r")
        a[:, 64:] = 0  # u stays below 256, where bf16 is exact
        f = torch.float32
        exact = (x.to(f) @ w.to(f).T + SCALE * (x.to(f) @ a.to(f).T) @ b.to(f).T).to(x.dtype)
        for at in some:
            for sign in (1, -1):  # u's memory may hold what the call before left, which is wrong
                y = s.impl(sign * x, w, a, b, config=s.impl.config(**at))
                assert torch.equal(y, sign * exact), (at, sizes, sign)
