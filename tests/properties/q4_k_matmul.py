"""What a product with Q4_K weights promises: that of its unpacked weights, exact where it can be.

Weights of d = 1, scale 1 and minimum 8 are the whole numbers -8 to 7, with which products of
small whole numbers sum exactly, however weights are rounded and sums are split.
"""

from typing import Any

import torch
from kernel_properties import INF, NAN, Subject, bits, of, refuses

IMPLS = " ".join(
    f"q4_k_matmul.{name}"
    for name in ("rows", "slices", "tiles", "ordered", "unpack_first", "warp_groups")
)
refuses(IMPLS, "w", "offset transposed every_second")  # blocks are read as whole words


def _whole(s: Subject) -> tuple[Any, Any]:
    """Blocks of the weights -8 to 7, and those weights [N, K]."""
    N, K = s.sizes["N"], s.sizes["K"]
    q = s._draw(0, 15, ("N", "K")).reshape(N, K // 256, 4, 2, 32)
    w = torch.zeros(N, K // 256, 144, dtype=torch.uint8, device=s.device)
    w[..., :4] = torch.tensor([1.0, 1.0]).half().view(torch.uint8).to(s.device)
    w[..., 4:8], w[..., 8:12], w[..., 12:16] = 1, 8, 0x81
    w[..., 16:] = (q[..., 0, :] | q[..., 1, :] << 4).flatten(-2).to(torch.uint8)
    return w.flatten(1), q.flatten(1) - 8


@of("q4_k_matmul")
def whole_numbers_are_exact(s: Subject) -> None:
    w, weights = _whole(s)
    x = s.integers(-1, 1, "M", "K")
    K, terms = x.shape[1], 32 if s.dtype == "bf16" else 256  # 16 bits hold 256 and 2048 exactly
    x[:, torch.arange(K, device=x.device) % (K // min(K, terms)) != 0] = 0
    exact = x.long().cpu() @ weights.cpu().T
    assert torch.equal(s(x, w).cpu().long(), exact)


@of("q4_k_matmul")
def a_column_of_the_identity_reads_one_weight(s: Subject) -> None:
    w, weights = _whole(s)
    K = s.sizes["K"]
    x = s.integers(0, 0, "M", "K")
    at = (torch.arange(len(x)) * 37 + s.seed) % K
    x[torch.arange(len(x)), at.to(x.device)] = 1
    assert torch.equal(s(x, w).long().cpu(), weights.cpu()[:, at].T)


@of("q4_k_matmul")
def rows_do_not_see_each_other(s: Subject) -> None:
    x, w = s.inputs()
    y = s(x, w)
    assert torch.equal(bits(s(x.flip(0), w.flip(0))), bits(y.flip(0, 1)))


@of("q4_k_matmul")
def doubling_doubles(s: Subject) -> None:
    x, w = s.inputs()
    x = x.clamp(-4, 4)
    y = s(x, w)
    normal = y.abs() > 2.0**-12  # below, fp16 has fewer bits
    assert torch.equal(s(x * 4, w)[normal], y[normal] * 4)


@of("q4_k_matmul")
def infinities_and_nan_reach_their_rows_and_columns(s: Subject) -> None:
    x, w = s.inputs()
    x[0, -1] = NAN
    y = s(x, w)
    assert bool(y[0].isnan().all())
    assert bool(y[1:].isfinite().all())
    x[0, -1] = 0
    w[-1, :2] = torch.tensor([INF]).half().view(torch.uint8).to(w.device)
    y = s(x, w)
    assert not bool(y[:, -1].isfinite().any())
    assert bool(y[:, :-1].isfinite().all())


@of("q4_k_matmul", impls="warp_groups", own_sizes=True)
def tiles_follow_one_another_through_the_rings(s: Subject) -> None:
    """Several tiles a program, ragged at each end, and parts of K of unlike lengths. A block or a
    step that is read in the wrong phase of its barrier changes a sum of whole numbers."""
    some = (
        dict(),
        dict(block_m=16, splits=2, num_stages=2, blocks=2),
        dict(block_m=32, quarters=2, num_stages=3, splits=4),
        dict(block_m=64, quarters=1, blocks=3),
        dict(block_m=128, splits=2),
        dict(block_m=256, num_stages=3, blocks=2),
    )
    # 38 by 20 tiles of 128 rows of w and 16 of x on 132 cores, 38 by 2 of 128 and 256; one; 5
    for M, N, K in ((305, 4808, 768), (1, 8, 256), (5, 520, 1280), (64, 4096, 2048)):
        large = Subject(s.impl, s.config, {"M": M, "N": N, "K": K}, s.dtype, s.device, s.seed)
        w, weights = _whole(large)
        x = large.integers(-1, 1, "M", "K")
        x[:, torch.arange(K, device=x.device) % (K // 32) != 0] = 0  # 16 bits hold sums up to 256
        exact = (x.float() @ weights.float().T).to(x.dtype)
        for at in some:
            config = s.impl.config(**at)
            assert torch.equal(s.impl(x, w, config=config), exact), (at, (M, N, K))
            assert torch.equal(s.impl(-x, w, config=config), -exact), (at, (M, N, K))


@of("q4_k_matmul", impls="slices", dtypes="fp16 bf16", own_sizes=True)
def x_put_in_order_changes_no_bit(s: Subject) -> None:
    """One row of x more than eight, ragged blocks and rows, and one block alone. Where a launch
    begins before x is in order, the second one would read the first one's."""
    early = s.device == "cuda" and torch.cuda.get_device_capability()[0] == 9
    for M, N, K in ((5, 40, 768), (9, 17, 256), (16, 33, 1024), (33, 40, 512)):
        large = Subject(s.impl, s.config, {"M": M, "N": N, "K": K}, s.dtype, s.device, s.seed)
        x, w = large.inputs()
        for tiles, slices in ((1, 1), (1, 4), (1 if M > 16 else 2, 2)):
            at = dict(tiles=tiles, slices=slices, num_warps=4)
            in_place = s.impl(x, w, config=s.impl.config(**at, order=0))
            for order in (1, 2) if early else (1,):
                config = s.impl.config(**at, order=order)
                assert torch.equal(bits(s.impl(x, w, config=config)), bits(in_place)), config
                assert torch.equal(bits(s.impl(-x, w, config=config)), bits(-in_place)), config
