"""What copy promises: every bit."""

import torch
from kernel_properties import Subject, bits, of

from workbench.measurement.inputs import torch_dtype


@of("copy")
def copies_every_bit(s: Subject) -> None:
    (N,) = s.sizes.values()
    generator = torch.Generator(device=s.device).manual_seed(s.seed)
    width = torch.int32 if s.dtype == "fp32" else torch.int16
    info = torch.iinfo(width)
    x = torch.randint(info.min, info.max + 1, (N,), generator=generator, device=s.device)
    x = x.to(width).view(torch_dtype(s.dtype))  # NaN of any payload, -0.0 and denormals among them
    assert torch.equal(bits(s(x)), bits(x))


@of("copy")
def copies_all_values_of_16_bits(s: Subject) -> None:
    count = torch.arange(1 << 16, device=s.device, dtype=torch.int32)
    kind = torch_dtype(s.dtype)
    x = count.to(torch.int16).view(kind) if kind.itemsize == 2 else (count << 16).view(kind)
    assert torch.equal(bits(s(x)), bits(x))


@of("copy")
def copying_twice_changes_nothing(s: Subject) -> None:
    x = s.integers(-9, 9, "N")
    once = s(x)
    assert torch.equal(bits(s(once)), bits(once))
