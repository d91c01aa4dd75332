"""What single operations promise beyond agreement with their reference, shared by the interpreter
and the GPU. The promises of kernel `x` stand in `properties/x.py`.

A property is a function of one configured Impl, sizes, a dtype, a device and a seed. It makes its
inputs so that the promise is exact wherever it can be: on grids and on powers of two.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from kernel_cases import LAYOUTS, ONLY, REFUSED, bits, triton_impls, verify

from workbench.measurement import inputs
from workbench.measurement.correctness import PreparedProblem
from workbench.measurement.inputs import torch_dtype
from workbench.spec import Impl, Tensor

FOLDER = Path(__file__).parent / "properties"
INF, NAN = float("inf"), float("nan")
# What one rounding may lose, relative: half a step.
ROUNDING = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
NEAR = {"fp32": 1e-4, "fp16": 3e-2, "bf16": 3e-2}  # for `Subject.near`

Property = Callable[["Subject"], None]
PROPERTIES: dict[str, list[Promise]] = {}  # by kernel; `load` fills it

__all__ = [
    "INF", "NAN", "NOT_DENSE_ROWS", "PROPERTIES", "ROUNDING", "Promise", "Subject", "bits", "load",
    "of", "promises", "refuses", "rows", "size_by_day", "triton_impls",
]  # fmt: skip


@dataclass(frozen=True)
class Promise:
    """A property, its place among those of its kernel, and the Impls and dtypes that make it: all
    where none is named. One that chooses its own sizes says so and is tried once."""

    check: Property
    place: int
    impls: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    own_sizes: bool = False

    @property
    def title(self) -> str:
        return self.check.__name__

    def __call__(self, subject: Subject) -> None:
        self.check(subject)

    def dtypes_of(self, every: Sequence[str]) -> list[str]:
        """Those of an Impl's dtypes that it is promised in."""
        return [dtype for dtype in every if not self.dtypes or dtype in self.dtypes]


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
        verify(self.impl, [self.config], PreparedProblem.wrap(self.impl.spec, self.dtype, inputs))

    def inputs(self) -> list[Any]:
        """What the Spec's own makers make, to be changed where a property wants other values."""
        spec = self.impl.spec
        return list(inputs.make(spec, self.sizes, self.dtype, self.device, self.seed))

    def near(self, actual: Any, expected: Any) -> bool:
        """Closer than 1e-4 of the largest magnitude, or 3e-2 in 16 bits: what a sum loses whose
        terms a kernel rounds to 16 bits and adds in another order."""
        most = NEAR[self.dtype] * expected.double().abs().max()
        return bool(((actual.double() - expected.double()).abs() <= most).all())

    def integers(self, low: int, high: int, *axes: str) -> Any:
        """Whole numbers in low..high, as the dtype under test; axes as a Tensor has them."""
        return self._draw(low, high, axes).to(torch_dtype(self.dtype))

    def _draw(self, low: int, high: int, axes: tuple[str, ...]) -> Any:
        generator = torch.Generator(device=self.device).manual_seed(self.seed + len(axes) + high)
        shape = Tensor(" ".join(axes)).shape(self.sizes)
        return torch.randint(low, high + 1, shape, generator=generator, device=self.device)


def rows(x: Any, count: int) -> Any:
    """So many rows, x over and over: fresh memory, to be changed row by row."""
    return x.repeat(-(-count // x.shape[0]), 1)[:count].clone()


def of(
    kernel: str, *, impls: str = "", dtypes: str = "", own_sizes: bool = False
) -> Callable[[Property], Property]:
    """Enter a property of that kernel, or of some of its Impls ("rows looped"), or of some dtypes
    ("fp32")."""

    def enter(check: Property) -> Property:
        known, some = (
            PROPERTIES.setdefault(kernel, []),
            (tuple(impls.split()), tuple(dtypes.split())),
        )
        known.append(Promise(check, len(known), *some, own_sizes))
        return check

    return enter


# What lies otherwise than a descriptor can say: it wants the last stride to be 1, and rows that
# start at multiples of 16 bytes.
NOT_DENSE_ROWS = "offset transposed every_second expanded"


def refuses(impls: str, inputs: str, layouts: str) -> None:
    """Enter that these Impls ("matmul.persistent matmul.stream_k") refuse each of these inputs
    ("a b") in these layouts ("offset expanded"), and in no others."""
    assert set(layouts.split()) <= set(LAYOUTS) - {"dense"}
    for impl in impls.split():
        REFUSED.update({(impl, name): frozenset(layouts.split()) for name in inputs.split()})


@cache
def load() -> dict[str, Path]:
    """Read the files of `properties/`, or those of the kernels that KERNELS names; by name."""
    paths = sorted(FOLDER.glob("*.py"))
    files = {path.stem: path for path in paths if not ONLY or path.stem in ONLY}
    for name, path in files.items():
        spec = importlib.util.spec_from_file_location(f"properties_of_{name}", path)
        assert spec is not None and spec.loader is not None
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return files


def promises(impls: Iterable[Impl] | None = None) -> list[tuple[Promise, Impl]]:
    """Every property with every Impl of its kernel that makes it, of these or of Triton's."""
    load()
    return [
        (promise, impl)
        for impl in (triton_impls() if impls is None else impls)
        for promise in PROPERTIES.get(impl.spec.name, [])
        if not promise.impls or impl.name in promise.impls
    ]


def is_promised_by_day(promise: Promise, impl: Impl, impls: Iterable[Impl] | None = None) -> bool:
    """Return whether every run tries a promise with this Impl: with one of its kernel in turn."""
    ours = [i for p, i in promises(impls) if p is promise and i.spec is impl.spec]
    return impl is ours[promise.place % len(ours)]


def size_by_day(promise: Promise, impl: Impl) -> int:
    """Return the place of the size to check at which every run tries a promise: another one for
    another promise or Impl, but the first, the least sizes, which say little."""
    last = len(impl.spec.check) - 1
    if promise.own_sizes or last < 2:
        return min(2, last)
    return 1 + (promise.place + impl.spec.impls.index(impl)) % last
