"""What reading promises: every element is looked at, and its value comes out as it is."""

import torch
from kernel_properties import NAN, Subject, of


@of("read_only")
def every_element_counts(s: Subject) -> None:
    x = torch.zeros_like(s.integers(0, 1, "N"))
    generator = torch.Generator().manual_seed(s.seed)
    for c, n in enumerate(torch.randint(4096, (x.numel() // 4096,), generator=generator).tolist()):
        x[4096 * c + n] = 1 + c % 100
    assert s(x).tolist() == [1 + c % 100 for c in range(x.numel() // 4096)]


@of("read_only")
def the_order_inside_a_chunk_does_not_matter(s: Subject) -> None:
    x = s.integers(-99, -1, "N")
    assert torch.equal(s(x.view(-1, 4096).flip(1).reshape(-1)), s(x))


@of("read_only")
def nan_is_no_largest_element(s: Subject) -> None:
    x = s.integers(-9, 9, "N")
    x[::4096] = NAN  # a maximum in Triton takes the number, as IEEE's maximumNumber
    kept = x.clone()
    kept[::4096] = -99
    assert torch.equal(s(x), s(kept))
