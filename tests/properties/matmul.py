"""What matmul promises: small whole numbers have products that sum exactly in fp32."""

import torch
from kernel_properties import INF, NAN, Subject, of, refuses
from pytest import raises

from workbench.measurement.inputs import torch_dtype

# Dense columns will do as well as dense rows.
DESCRIBED = "matmul.persistent matmul.stream_k matmul.warp_groups"
refuses(DESCRIBED, "a b", "offset every_second expanded")


@of("matmul")
def whole_numbers_are_exact(s: Subject) -> None:
    large = 1 if s.dtype == "bf16" else 3  # sums of up to 256 and 2048 are exact in bf16 and fp16
    assert s.sizes["K"] <= 200
    a, b = s.integers(-large, large, "M", "K"), s.integers(-large, large, "K", "N")
    exact = a.long().cpu() @ b.long().cpu()
    assert torch.equal(s(a, b).cpu().long(), exact)


@of("matmul")
def the_identity_changes_nothing(s: Subject) -> None:
    K = s.sizes["K"]
    fine = torch.randn(s.sizes["M"], K, generator=torch.Generator().manual_seed(s.seed))
    a = fine.to(s.device, torch_dtype(s.dtype))
    c = s(a, torch.eye(K, device=s.device, dtype=a.dtype))
    assert torch.equal(c, a)


@of("matmul")
def infinities_and_nan_reach_their_rows_and_columns(s: Subject) -> None:
    a, b = s.integers(1, 4, "M", "K"), s.integers(1, 3, "K", "N")
    b[:, ::2] *= -1
    a[0, -1] = INF
    a[-1, 0] = NAN
    s.verify(a, b)
    b[-1, -1] = -INF
    s.verify(a, b)


@of("matmul", impls="persistent warp_groups")
def a_descriptor_is_refused_where_the_output_has_ragged_rows(s: Subject) -> None:
    ones = torch.ones(8, 16, device=s.device, dtype=torch_dtype(s.dtype))
    a, b = ones[:, :8].contiguous(), ones
    s.verify(a, b[:, :8])
    with raises(ValueError, match="16 bytes"):  # b's own rows are well placed
        s(a, b[:, :13])


@of("matmul")
def transposing_both_transposes_the_product(s: Subject) -> None:
    large = 1 if s.dtype == "bf16" else 3
    rows = max(8, s.sizes["M"] // 8 * 8)  # which become columns: a descriptor wants whole eights
    a = s.integers(-large, large, "M", "K").repeat(8, 1)[:rows].contiguous()
    b = s.integers(-large, large, "K", "N")
    assert torch.equal(s(b.T, a.T), s(a, b).T)


@of("matmul", impls="warp_groups", own_sizes=True)
def tiles_follow_one_another_through_the_ring(s: Subject) -> None:
    """Several tiles a program, ragged at each end; a last round whole or of halves; blocks of rows
    or of columns. A block read in the wrong phase of its barrier changes a sum of whole numbers."""
    some = (
        dict(),
        dict(num_stages=3, lag=2),
        dict(block_m=256, block_n=128, lag=1),
        dict(block_m=128, block_n=192, lag=1),
        dict(block_m=128, block_n=144),
        dict(block_m=128, block_n=160, lag=1),
        dict(block_m=128, block_n=128, halves=0, group_m=1),
    )
    # Tiles of 128x256 on 132 cores: two rounds and 8 more (halves) or 74 more, of 1 or 4 steps; 6
    # in all. Sums seldom exceed 100, and bf16 has all whole numbers up to 256.
    extents = ((2168, 4088, 200), (3320, 3320, 248), (2168, 4088, 56))
    for M, N, K in (*extents, (136, 520, 136)):
        large = Subject(s.impl, s.config, {"M": M, "N": N, "K": K}, s.dtype, s.device, s.seed)
        a, b = large.integers(-1, 1, "M", "K"), large.integers(-1, 1, "K", "N")
        exact = a.float() @ b.float()
        for at in some:
            config = s.impl.config(**at)
            for x, y in ((a, b), (a.T.contiguous().T, b.T.contiguous().T)):
                c = s.impl(x, y, config=config)
                assert torch.equal(c.float(), exact), (at, (M, N, K), x.stride(), y.stride())
