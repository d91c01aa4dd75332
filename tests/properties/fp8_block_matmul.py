"""What fp8_block_matmul promises: whole numbers sum exactly, and a scale reaches its own block of
128 along K and no other."""

import torch
from kernel_properties import NAN, NOT_DENSE_ROWS, Subject, of, refuses

from workbench.dsl import INTERPRETED

BLOCK = 128

refuses("fp8_block_matmul.persistent", "a b", NOT_DENSE_ROWS)


def _whole(s: Subject) -> list:
    _, _, scale_a, scale_b = s.inputs()
    a, b = s.integers(-1, 1, "M", "K"), s.integers(-1, 1, "N", "K")
    return [a, b, torch.ones_like(scale_a), torch.ones_like(scale_b)]


@of("fp8_block_matmul")
def whole_numbers_are_exact(s: Subject) -> None:
    a, b, scale_a, scale_b = _whole(s)
    exact = a.float().long().cpu() @ b.float().long().cpu().T
    kept = exact.abs() <= 256  # exact in bf16
    assert torch.equal(s(a, b, scale_a, scale_b).cpu().long()[kept], exact[kept])


@of("fp8_block_matmul")
def a_scale_of_zero_is_a_block_of_zeros(s: Subject) -> None:
    a, b, scale_a, scale_b = s.inputs()
    last = s.sizes["K"] // BLOCK - 1
    for at in {0, last}:
        block = slice(at * BLOCK, (at + 1) * BLOCK)
        empty_a, empty_b = a.clone(), b.clone()
        empty_a[:, block] = 0
        empty_b[-BLOCK:, block] = 0
        off_a, off_b = scale_a.clone(), scale_b.clone()
        off_a[:, at] = 0
        off_b[-1, at] = 0
        assert torch.equal(s(a, b, off_a, scale_b), s(empty_a, b, scale_a, scale_b))
        assert torch.equal(s(a, b, scale_a, off_b), s(a, empty_b, scale_a, scale_b))


@of("fp8_block_matmul")
def powers_of_two_scale_blocks(s: Subject) -> None:
    a, b, scale_a, scale_b = s.inputs()
    plain = s(a, b, scale_a, scale_b)
    down = torch.exp2((torch.arange(s.sizes["M"], device=a.device) % 7 - 3).float())
    across = torch.exp2((torch.arange(scale_b.shape[0], device=a.device) % 3).float())
    scaled = s(a, b, scale_a * down[:, None], scale_b * across[:, None])
    each = across.repeat_interleave(BLOCK)
    assert torch.equal(scaled.double(), plain.double() * down.double()[:, None] * each.double())


@of("fp8_block_matmul")
def nan_reaches_its_row_and_column(s: Subject) -> None:
    a, b, scale_a, scale_b = s.inputs()
    if not INTERPRETED:  # Triton's interpreter (3.6.0, 3.9.0) widens NaN of e4m3fn to a number
        a.view(torch.uint8)[0, -1] = 0x7F
        b.view(torch.uint8)[-1, 0] = 0xFF
    scale_a[-1, ...] = NAN
    s.verify(a, b, scale_a, scale_b)
    scale_b[0, ...] = NAN
    s.verify(a, b, scale_a, scale_b)
