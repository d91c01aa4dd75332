"""What fp8_matmul promises: whole numbers sum exactly, also in the 13 bits of Hopper's matrix
unit, and scales of powers of two pass through every rounding."""

import torch
from kernel_properties import NAN, NOT_DENSE_ROWS, Subject, of, refuses

from workbench.dsl import INTERPRETED
from workbench.measurement.inputs import torch_dtype

refuses("fp8_matmul.persistent fp8_matmul.warp_groups", "a b", NOT_DENSE_ROWS)


def _whole(s: Subject) -> list:
    a, b, scale_a, scale_b = s.inputs()
    a, b = s.integers(-1, 1, "M", "K"), s.integers(-1, 1, "N", "K")  # sums are exact in bf16, too
    return [a, b, torch.ones_like(scale_a), torch.ones_like(scale_b)]


@of("fp8_matmul")
def whole_numbers_are_exact(s: Subject) -> None:
    a, b, scale_a, scale_b = _whole(s)
    exact = a.float().long().cpu() @ b.float().long().cpu().T
    kept = exact.abs() <= 256
    assert torch.equal(s(a, b, scale_a, scale_b).cpu().long()[kept], exact[kept])


@of("fp8_matmul")
def powers_of_two_scale_rows_and_columns(s: Subject) -> None:
    a, b, scale_a, scale_b = _whole(s)
    plain = s(a, b, scale_a, scale_b)
    power = torch.arange(s.sizes["M"], device=a.device) % 7 - 3
    down = torch.exp2(power.float())
    across = torch.exp2(-(torch.arange(s.sizes["N"], device=a.device) % 5).float())
    scaled = s(a, b, scale_a * down, scale_b * across)
    expected = plain.double() * down.double()[:, None] * across.double()
    assert torch.equal(scaled.double(), expected)


@of("fp8_matmul")
def the_largest_numbers_do_not_overflow(s: Subject) -> None:
    a, b, scale_a, scale_b = _whole(s)
    most = torch.finfo(torch_dtype(s.dtype)).max
    a, b = torch.full_like(a, most), torch.full_like(b, most)
    c = s(a, b, scale_a, scale_b).double()
    expected = most * most * s.sizes["K"]
    assert bool(((c - expected).abs() <= 2.0**-6 * expected).all())


@of("fp8_matmul")
def nan_reaches_its_row_and_column(s: Subject) -> None:
    a, b, scale_a, scale_b = s.inputs()
    if not INTERPRETED:  # Triton's interpreter (3.6.0, 3.9.0) widens NaN of e4m3fn to a number
        a.view(torch.uint8)[0, -1] = 0x7F
        b.view(torch.uint8)[-1, 0] = 0xFF
    scale_a[-1, ...] = NAN
    s.verify(a, b, scale_a, scale_b)
    scale_b[0, ...] = NAN
    s.verify(a, b, scale_a, scale_b)


@of("fp8_matmul", impls="warp_groups", own_sizes=True)
def tiles_follow_one_another_through_the_ring(s: Subject) -> None:
    """Several tiles a program, ragged at each end; a last round whole or of halves; sums scaled by
    powers of two. A block read in the wrong phase of its barrier, or the scales of another tile,
    change a whole number."""
    some = (
        dict(),
        dict(block_m=128, block_n=256, num_stages=3, lag=2),
        dict(block_m=256, block_n=128, lag=1),
        dict(block_m=128, block_n=144),
        dict(block_m=128, block_n=160, lag=1),
        dict(block_m=128, block_n=192, lag=1),
        dict(block_m=128, block_n=128, halves=0, group_m=1),
        dict(promote=1),
    )
    # Tiles of 128x256 on 132 cores: two rounds and 8 more (halves) or 74 more, of 1 or 4 steps; 6
    # in all. Sums are whole numbers that the unit holds, rounded once.
    extents = ((2168, 4088, 400), (3320, 3320, 496), (2168, 4088, 112))
    for M, N, K in (*extents, (136, 520, 272)):
        large = Subject(s.impl, s.config, {"M": M, "N": N, "K": K}, s.dtype, s.device, s.seed)
        a, b, scale_a, scale_b = _whole(large)
        scale_a *= torch.exp2((torch.arange(M, device=a.device) % 11 - 5).float())
        scale_b *= torch.exp2((torch.arange(N, device=a.device) % 7 - 3).float())
        exact = (a.float() @ b.float().T) * scale_a[:, None] * scale_b
        for at in some:
            c = s.impl(a, b, scale_a, scale_b, config=s.impl.config(**at))
            assert torch.equal(c, exact.to(c.dtype)), (at, (M, N, K))
