"""What single operations promise beyond agreement with their reference, shared by the interpreter
and the GPU.

A property is a function of one configured Impl, sizes, a dtype, a device and a seed. It makes its
inputs so that the promise is exact wherever it can be: on grids and on powers of two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from kernel_cases import bits, triton_impls, verify

from workbench.check import Posed
from workbench.dsl import INTERPRETED
from workbench.inputs import torch_dtype
from workbench.spec import Impl

INF, NAN = float("inf"), float("nan")
# What one rounding may lose, relative: half a step, but Triton's interpreter cuts bf16 off.
ROUNDING = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-7 if INTERPRETED else 2.0**-8}

Property = Callable[["Subject"], None]
PROPERTIES: dict[str, list[Property]] = {}


@dataclass(frozen=True)
class Subject:
    """One configured Impl, and all that its inputs are made from."""

    impl: Impl
    config: Any
    sizes: dict[str, int]
    dtype: str
    device: str
    seed: int

    def __call__(self, *inputs: Any) -> Any:
        return self.impl(*inputs, config=self.config)

    def verify(self, *inputs: Any) -> None:
        verify(self.impl, [self.config], Posed.given(self.impl.spec, self.dtype, inputs))

    def integers(self, low: int, high: int, *axes: str) -> Any:
        """Whole numbers in low..high, as the dtype under test."""
        return self._draw(low, high, axes).to(torch_dtype(self.dtype))

    def _draw(self, low: int, high: int, axes: tuple[str, ...]) -> Any:
        generator = torch.Generator(device=self.device).manual_seed(self.seed + len(axes) + high)
        shape = [self.sizes[axis] for axis in axes]
        return torch.randint(low, high + 1, shape, generator=generator, device=self.device)


def of(kernel: str) -> Callable[[Property], Property]:
    """Enter a property of that kernel."""

    def enter(check: Property) -> Property:
        PROPERTIES.setdefault(kernel, []).append(check)
        return check

    return enter


def promises() -> list[tuple[Property, Impl]]:
    """Every property with every Triton Impl of its kernel."""
    return [(p, impl) for impl in triton_impls() for p in PROPERTIES.get(impl.spec.name, [])]


# copy


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


# softmax: inputs are multiples of 1/4 up to 16, which stay exact in bf16 when they are shifted


def _quarters(s: Subject) -> Any:
    return s.integers(-64, 64, "M", "N") / 4


@of("softmax")
def rows_are_distributions(s: Subject) -> None:
    y = s(_quarters(s)).double()
    assert bool((y >= 0).all()) and bool((y <= 1 + 2.0**-22).all())
    lost = s.sizes["N"] * 2.0**-25 if s.dtype == "fp16" else 0.0  # half of fp16's least step each
    off = (y.sum(-1) - 1).abs().max()
    assert float(off) <= ROUNDING[s.dtype] + lost + 2e-5


@of("softmax")
def a_shift_changes_no_bit(s: Subject) -> None:
    x = _quarters(s)
    y = s(x)
    for shift in (-16.0, 0.25, 16.0):
        assert torch.equal(bits(s(x + shift)), bits(y))


@of("softmax")
def order_is_kept(s: Subject) -> None:
    x = _quarters(s)
    order = x.double().argsort(-1)
    ranked = s(x).double().gather(-1, order)
    assert bool((ranked.diff(dim=-1) >= 0).all())


@of("softmax")
def a_constant_row_is_uniform(s: Subject) -> None:
    x = s.integers(-9, 9, "M")[:, None].expand(s.sizes["M"], s.sizes["N"])
    s.verify(x)
    y = s(x)
    assert bool((y == y[:, :1]).all())


@of("softmax")
def infinities_and_nan_stay_in_their_rows(s: Subject) -> None:
    x = _quarters(s)
    N = s.sizes["N"]
    x = x.repeat(-(-6 // x.shape[0]), 1)[:6].clone()
    x[0, : N // 2] = -INF  # masked: the rest sums to 1
    x[1] = -INF  # nothing is left: NaN
    x[2, N - 1] = NAN
    x[3, 0] = INF
    x[4, N // 2 :] = -INF
    s.verify(x)
    y = s(x)
    assert bool(y[1:4].isnan().all())
    assert not bool(y[5].isnan().any())


# rms_norm


@of("rms_norm")
def powers_of_two_cancel(s: Subject) -> None:
    # The mean square is at least 2^22, so EPS is 2^-19 of a step of fp32: it cannot even tip the
    # rounding of a fused multiply-add, which at a mean square of 64 it did on an H200.
    x, w = s.integers(8, 16, "M", "N") * 256, s.integers(-4, 4, "N")
    y = s(x, w)
    for power in (2, 8):
        assert torch.equal(bits(s(x * power, w)), bits(y))


@of("rms_norm")
def signs_pass_through(s: Subject) -> None:
    x, w = s.integers(-8, 8, "M", "N"), s.integers(1, 4, "N")
    assert torch.equal(s(-x, w), -s(x, w))
    assert torch.equal(s(x, -w), -s(x, w))


@of("rms_norm")
def zero_rows_stay_zero(s: Subject) -> None:
    x, w = s.integers(-8, 8, "M", "N"), s.integers(-4, 4, "N")
    x[::2] = 0
    s.verify(x, w)
    assert bool((s(x, w)[::2] == 0).all())


@of("rms_norm")
def infinities_and_nan_stay_in_place(s: Subject) -> None:
    x, w = s.integers(1, 8, "M", "N"), s.integers(1, 4, "N")
    x = x.repeat(-(-4 // x.shape[0]), 1)[:4].clone()
    x[0, -1], x[1, 0], x[2, 0] = NAN, INF, -INF
    s.verify(x, w)
    assert not bool(s(x, w)[3].isnan().any())
    w[-1] = NAN
    s.verify(x, w)


# matmul: small whole numbers have products that sum exactly in fp32


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
