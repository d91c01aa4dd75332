"""What fp8_matmul promises: whole numbers sum exactly, also in the 13 bits of Hopper's matrix
unit, and scales of powers of two pass through every rounding."""

import torch
from kernel_properties import NAN, NOT_DENSE_ROWS, Subject, of, refuses

from workbench.dsl import INTERPRETED
from workbench.measurement.inputs import torch_dtype

refuses("fp8_matmul.persistent", "a b", NOT_DENSE_ROWS)


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
