"""What patch embedding promises: a product, the bias and the position of each patch.

Small whole numbers have products that sum exactly in fp32, whatever the order.
"""

import torch
from kernel_properties import INF, NAN, NOT_DENSE_ROWS, Subject, bits, of, refuses

IMPLS = " ".join(
    f"patch_embed.{name}" for name in ("described", "persistent", "recurring", "warp_groups")
)
refuses(IMPLS, "x w", NOT_DENSE_ROWS)


def _whole(s: Subject, large: int = 1) -> list:
    return [
        s.integers(-large, large, *axes) for axes in (("M", "K"), ("N", "K"), ("N",), ("P", "N"))
    ]


def _rows(s: Subject, x):
    return torch.arange(s.sizes["M"], device=x.device) % s.sizes["P"]


@of("patch_embed")
def whole_numbers_are_exact(s: Subject) -> None:
    x, w, bias, position = _whole(s)
    assert s.sizes["K"] <= 200  # sums of up to 256 are exact in bf16
    exact = x.long().cpu() @ w.long().cpu().T + bias.long().cpu()
    exact += position.long().cpu()[_rows(s, x).cpu()]
    assert torch.equal(s(x, w, bias, position).cpu().long(), exact)


@of("patch_embed")
def without_weights_it_is_bias_and_position(s: Subject) -> None:
    x, w, bias, position = _whole(s, large=8)
    y = s(x, torch.zeros_like(w), bias, position)
    assert torch.equal(y, bias + position[_rows(s, x)])


@of("patch_embed")
def equal_images_get_equal_rows(s: Subject) -> None:
    x, w, bias, position = s.inputs()
    M, P = s.sizes["M"], s.sizes["P"]
    x = x[_rows(s, x)].contiguous()
    y = s(x, w, bias, position)
    if M > P:
        assert torch.equal(bits(y[P:]), bits(y[: M - P]))


@of("patch_embed")
def columns_of_zeros_change_nothing(s: Subject) -> None:
    x, w, bias, position = _whole(s)
    y = s(x, w, bias, position)
    wider = [torch.nn.functional.pad(t, (0, 8)) for t in (x, w)]
    assert torch.equal(bits(s(*wider, bias, position)), bits(y))


@of("patch_embed")
def infinities_and_nan_reach_their_rows_and_columns(s: Subject) -> None:
    x, w, bias, position = _whole(s, large=2)
    w = w.abs() + 1
    x[0, -1], x[-1, 0] = INF, NAN
    s.verify(x, w, bias, position)
    bias[-1], position[0, 0] = -INF, NAN
    s.verify(x, w, bias, position)


@of("patch_embed", impls="warp_groups", own_sizes=True)
def positions_change_between_tiles(s: Subject) -> None:
    """Several tiles a program, of one row of positions or of several; ragged at each end. A block
    read in the wrong phase of its barrier, or the positions of another tile, change a sum of whole
    numbers."""
    some = (dict(), dict(num_stages=3, lag=2), dict(block_n=128, num_stages=6, lag=1))
    # Rows of tiles on 132 cores with tiles of 128x256: 89 in 44 groups, positions of which 9, 2, 1
    # or all differ; 301, of which 5 differ, in 66; 4, of which all differ
    extents = ((11_336, 520, 200, 72), (11_336, 520, 56, 256), (11_336, 520, 264, 1))
    extents += ((11_336, 520, 72, 12_000), (38_500, 392, 200, 5), (500, 136, 200, 7))
    for M, N, K, P in extents:
        sizes = {"M": M, "N": N, "K": K, "P": P}
        large = Subject(s.impl, s.config, sizes, s.dtype, s.device, s.seed)
        x, w, bias, position = _whole(large)
        # sums seldom exceed 100, and bf16 has whole numbers up to 256
        exact = x.float() @ w.float().T + bias.float() + position.float()[_rows(large, x)]
        for at in some:
            y = s.impl(x, w, bias, position, config=s.impl.config(**at))
            assert torch.equal(y.float(), exact), (at, sizes)
