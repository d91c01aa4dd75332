"""Names shared by kernel files: `triton`, `tl`, and helpers of launchers and library baselines.

Where Triton has no wheel (macOS), `triton` and `tl` are stand-ins. With those every kernel file
still imports, so its Spec, its reference and its Metal version work; only launching the Triton
kernel raises.
"""

from __future__ import annotations

import itertools
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import cache, cached_property, update_wrapper
from importlib.util import find_spec
from typing import Any

from workbench.spec import Limits, Spec

try:
    import triton
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

    INTERPRETED = bool(triton.knobs.runtime.interpret)
except ModuleNotFoundError:

    class _Missing:
        """Stands in for the names of Triton; its functions of the host, which `work` and `refuse`
        of a kernel call, return what Triton's do."""

        @staticmethod
        def cdiv(a: int, b: int) -> int:
            return -(-a // b)

        @staticmethod
        def next_power_of_2(n: int) -> int:
            return 1 << max(0, n - 1).bit_length()

        def __getattr__(self, name: str) -> _Missing:
            return self

        def __call__(self, *args: Any, **kwargs: Any) -> _Missing:  # @triton.jit, @triton.jit(...)
            return self

        def __getitem__(self, grid: Any) -> Any:  # kernel[grid](...): the launch
            raise RuntimeError("Triton is not installed here; it has wheels for Linux only")

    triton = tl = TensorDescriptor = _Missing()
    INTERPRETED = False


if INTERPRETED:
    from workbench.dsl.interpreter import mend

    mend()

# 3, so that in the interpreter each program still computes several tiles and the last round is
# partial
CORES_OF_A_CPU = 3


def _precision(dtype: Any) -> str:
    """Return the `input_precision` of products of numbers of this dtype, at compile time.

    Of fp32 on Hopper it is bf16x6: each number is split in three of bf16, which hold its 24 bits,
    and the six larger products of them are summed on the matrix unit. On an H100 a product of
    4096^3 takes 0.78 of cuBLAS's time in fp32; on the vector units it took 1.41 with b by rows and
    2.8 or more by columns. The rms of its errors is 0.2 of that of both. The parts of numbers below
    2^-110 lose bits (1e-6 of the rms at 2^-115, 6e-4 at 2^-124), and numbers from 3.396e38 on count
    as infinite. Elsewhere it is not timed, and fp32 stays on the vector units, or on a matrix unit
    of its own (CDNA).
    """
    from triton.language.target_info import current_target

    target = None if INTERPRETED else current_target()
    hopper = target is not None and target.backend == "cuda" and target.arch == 90
    return "bf16x6" if hopper and str(dtype) == "fp32" else "ieee"


precision_of = _precision if INTERPRETED else triton.constexpr_function(_precision)
_pretended: ContextVar[Limits | None] = ContextVar("pretended", default=None)


def cores(tensor: Any) -> int:
    """Return the number of streaming multiprocessors or compute units of the device that holds
    `tensor`, which is the number of programs that a persistent launcher starts. On a CPU (the
    interpreter) it is CORES_OF_A_CPU."""
    limits = _pretended.get()
    if limits is not None:
        return limits.cores
    if tensor.device.type != "cuda":
        return CORES_OF_A_CPU
    import torch

    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)


def pad_up(extent: int) -> int:
    """Return the least power of two that is at least `extent`, as blocks of device code need it."""
    return 1 << (extent - 1).bit_length()


def tile_count(config: Any, **extents: int) -> int:
    """Return how many tiles cover these extents: `tile_count(config, M=M, N=N)`, whose tiles are
    `block_m` x `block_n`."""
    total = 1
    for axis, extent in extents.items():
        total *= -(-extent // getattr(config, f"block_{axis.lower()}"))
    return total


def widest_block(limits: Limits, down: int, N: int, widths: Sequence[int]) -> int:
    """Return the first of these widths that gives 3 of 4 cores a tile, where tiles of the widths
    cover N columns in `down` rows of tiles; the last where none does."""
    enough = (n for n in widths if 4 * down * -(-N // n) >= 3 * limits.cores)
    return next(enough, widths[-1])


def pretended_limits() -> Limits | None:
    """Return the limits of the device that launchers are made to see, or None."""
    return _pretended.get()


@contextmanager
def pretend(limits: Limits) -> Iterator[None]:
    """Return a context manager in which launchers see a device with these limits, to compile
    without one."""
    token = _pretended.set(limits)
    try:
        yield
    finally:
        _pretended.reset(token)


# Arguments that launchers pass on


def meta(config: Any) -> dict[str, int]:
    """Return the launch arguments that come from a config unchanged: its fields `block_*` and
    `group_m` under their names in capitals, and `num_warps` and `num_stages`."""
    return {name: getattr(config, field) for field, name in _handed_on(config.__class__)}


@cache
def _handed_on(kind: Any) -> tuple[tuple[str, str], ...]:
    names = [f.name for f in fields(kind)]
    blocks = [(n, n.upper()) for n in names if n.startswith("block_") or n == "group_m"]
    return (*blocks, *((n, n) for n in names if n in ("num_warps", "num_stages")))


def divisors(**extents: int) -> dict[str, int]:
    """Return the largest power of two up to 16 that divides each extent or stride: `DIV_K=16` of
    `K=64`. Device code rounds by it, which tells the compiler how wide its loads may be."""
    return {f"DIV_{name}": min(16, n & -n) or 16 for name, n in extents.items()}


def strides(*tensors: Any) -> tuple[int, ...]:
    """Return the strides of all dimensions of these tensors, in their order."""
    return tuple(itertools.chain.from_iterable(tensor.stride() for tensor in tensors))


def describable(rows: Any) -> bool:
    """Return whether a tensor descriptor can describe this tensor: its rows are dense, and the
    outer dimensions do not overlap and have strides of multiples of 16 bytes."""
    size, extents = rows.element_size(), rows.shape
    outer = zip(rows.stride()[:-1], rows.stride()[1:], extents[1:], strict=True)
    apart = all(far >= near * extent and far * size % 16 == 0 for far, near, extent in outer)
    return bool(rows.stride(-1) == 1 and apart and rows.data_ptr() % 16 == 0)


def block_strides(name: str, tensor: Any) -> list[int]:
    """Return the strides with which a descriptor of blocks takes a tensor. Those of axes of extent
    1 mean nothing, and are replaced. Raises ValueError, which calls the tensor `name`, where its
    rows overlap, are not dense, or do not start at multiples of 16 bytes."""
    size, row = tensor.element_size(), tensor.shape[-1]
    outer = zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True)
    strides = [stride if extent > 1 else row for stride, extent in outer]
    odd = any(stride < row or stride * size % 16 for stride in strides)
    if tensor.stride(-1) != 1 or tensor.data_ptr() % 16 or odd:
        raise ValueError(f"{name} must have dense rows that start at multiples of 16 bytes")
    return [*strides, 1]


def describe(name: str, tensor: Any, block: list[int]) -> Any:
    """Return a descriptor of blocks of a tensor. Raises ValueError, which calls it `name`, where
    the tensor cannot have one."""
    if not describable(tensor):
        raise ValueError(f"{name} must have dense rows that start at multiples of 16 bytes")
    return TensorDescriptor.from_tensor(tensor, block)


def policies(hints: int) -> tuple[str, str]:
    """Return the eviction policies of what is read once and of what is read again."""
    return ("evict_first", "evict_last") if hints else ("", "")


def launch_pdl(pdl: bool) -> dict[str, bool]:
    """Return the launch option that lets a launch begin before the previous one ends, if `pdl`. The
    device code must wait for what the previous launch writes."""
    return {"launch_pdl": True} if pdl else {}


def upcast(tensor: Any) -> bool:
    """Return whether tiles of this tensor are widened before they are multiplied: bf16 in Triton's
    interpreter. A kernel need not do so, as `interpreter.py` widens them, too."""
    return INTERPRETED and str(tensor.dtype) == "torch.bfloat16"


# Makers of inputs


def normal(shape: Any, dtype: Any, device: Any, generator: Any) -> Any:
    """Return standard normal values, as a Tensor without a maker has them; of one with a maker
    tests draw no other values."""
    import torch

    return torch.randn(shape, generator=generator, device=device).to(dtype)


# Library baselines


class CodeReady(Exception):
    """The code is there, and not to be launched."""


class CompiledCall:
    """Launcher of `call` under torch.compile, compiled at its first launch."""

    imports = ("torch._dynamo", "torch._inductor.compile_fx")

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._compiles_only = False
        # so that its code is that of the call
        update_wrapper(self, call, ("__module__", "__name__", "__qualname__"), ())

    def __call__(self, *inputs: Any) -> Any:
        return self._compiled_call(*inputs)

    @cached_property
    def _compiled_call(self) -> Callable[..., Any]:
        import torch

        result: Callable[..., Any] = torch.compile(
            self._call, dynamic=False, backend=self._inductor
        )
        return result

    def _inductor(self, graph: Any, examples: Any) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        launch = compile_fx(graph, examples)

        def run(*inputs: Any) -> Any:
            if self._compiles_only:
                raise CodeReady
            return launch(*inputs)

        return run

    def compile_only(self, *inputs: Any) -> None:
        """Compile for such inputs and launch nothing; a call with such inputs then compiles
        nothing. Raises what torch.compile raises."""
        import torch

        torch._dynamo.config.suppress_errors = False
        self._compiles_only = True
        try:
            self._compiled_call(*inputs)
        except CodeReady:
            pass
        finally:
            self._compiles_only = False


def compile_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a launcher of `call` under torch.compile, compiled at its first launch."""
    return CompiledCall(call)


def baseline(spec: Spec) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds torch's own version of a Spec twice: as it is written
    (`torch`), and under torch.compile (`torch.compile`)."""

    def add(call: Callable[..., Any]) -> Callable[..., Any]:
        spec.library("torch", call)
        spec.library("torch.compile", compile_call(call))
        return call

    return add


def attention_backend(name: str) -> AbstractContextManager[None]:
    """Return a context in which torch's attention is its `flash` or `cudnn`. What it takes is
    imported at the call, for importing a kernel's file needs nothing of torch."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    context: AbstractContextManager[None] = sdpa_kernel(
        getattr(SDPBackend, f"{name.upper()}_ATTENTION")
    )
    return context


@dataclass(frozen=True)
class ThirdParty:
    """Another project's package, which need not be installed: it is imported at the first
    launch."""

    distribution: str
    module: str
    operations: str = ""  # the module that a launch imports; by default the package itself

    @property
    def missing(self) -> str:
        """Sentence for the case that it is not installed."""
        return f"{self.distribution} is not installed: pip install 'kernel-workbench[peers]'"

    def __call__(self, name: str) -> Any:
        """Import an object of the package by name: `ops:LigerSoftmaxFunction.apply`. Raises
        ImportError with `missing` where it is not installed."""
        return _import_name(self, name)

    def refuse(self, otherwise: Callable[..., str | None] | None = None) -> Callable[..., Any]:
        """Return a `refuse` function that says that the package is missing, or else returns
        `otherwise(itemsize=..., **sizes)`."""

        def refuse(config: Any, limits: Limits, **at: int) -> str | None:
            if find_spec(self.module) is None:
                return self.missing
            return otherwise(**at) if otherwise else None

        refuse.imports = (self.operations or self.module,)  # type: ignore[attr-defined]
        return refuse

    def refuse_rows(self, **most: int) -> Callable[..., Any]:
        """Return a `refuse` function for rows of at most so many elements along an axis:
        `N=65_536`."""
        ((axis, length),) = most.items()
        reason = f"{self.distribution} takes rows of at most {length} elements"
        return self.refuse(lambda **at: reason if at[axis] > length else None)


@cache
def _import_name(package: ThirdParty, name: str) -> Any:
    if find_spec(package.module) is None:
        raise ImportError(package.missing)
    return pkgutil.resolve_name(f"{package.module}.{name}")


FLA = ThirdParty("fla-core", "fla")
LIGER = ThirdParty("liger-kernel", "liger_kernel", "liger_kernel.ops")

__all__ = [
    "FLA",
    "INTERPRETED",
    "LIGER",
    "TensorDescriptor",
    "ThirdParty",
    "attention_backend",
    "baseline",
    "block_strides",
    "compile_call",
    "cores",
    "describable",
    "describe",
    "divisors",
    "launch_pdl",
    "meta",
    "normal",
    "pad_up",
    "policies",
    "precision_of",
    "pretend",
    "pretended_limits",
    "strides",
    "tile_count",
    "tl",
    "triton",
    "upcast",
    "widest_block",
]
