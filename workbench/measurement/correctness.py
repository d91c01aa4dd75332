"""Check every output of an Impl against the float64 reference of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from workbench.measurement import inputs as inputs_
from workbench.measurement import reference
from workbench.measurement.reference import as_tuple
from workbench.spec import Impl, Sizes, Spec, Tolerance

GUARD = 1024  # elements on each side of a fresh output that no kernel may write
EMPTY = {
    torch.empty,
    torch.empty_like,
    torch.empty_strided,
    torch.Tensor.new_empty,
    torch.Tensor.new_empty_strided,
}


@dataclass(frozen=True)
class Checked:
    """Error of a result in units of its tolerance: right when `error` is at most 1."""

    error: float
    wrong: str | None = None  # one sentence, where the result is wrong


@dataclass(frozen=True)
class PreparedProblem:
    """Inputs and their expected outputs, kept for the many configs that share them."""

    spec: Spec
    dtype: str
    inputs: tuple[Any, ...]
    expected: tuple[Any, ...]  # float64

    @staticmethod
    def of(spec: Spec, sizes: Sizes, dtype: str, device: str, seed: int = 0) -> PreparedProblem:
        """Return a problem with inputs made on `device` and their float64 reference."""
        inputs = inputs_.make(spec, sizes, dtype, device, seed)
        return PreparedProblem.given(spec, dtype, inputs, sizes)

    @staticmethod
    def given(
        spec: Spec, dtype: str, compiled: tuple[Any, ...], sizes: Sizes | None = None
    ) -> PreparedProblem:
        """Return the problem of these inputs, with their float64 reference. Raises SpecFault where
        the reference does not give the outputs that the Spec declares."""
        return PreparedProblem(spec, dtype, compiled, reference.expected(spec, compiled, sizes))


def check(impl: Impl, config: Any, problem: PreparedProblem) -> Checked:
    """Run `impl` once on poisoned memory and return the check of its outputs, guards and inputs.

    Inputs that the Impl declares to mutate are guarded copies, so that the problem's own are kept;
    all others must not change. Errors of the launch, such as a compiler's or a driver's, are
    raised.
    """
    memory = Poisoned()
    named = list(zip(problem.spec.inputs, problem.inputs, strict=True))
    given = [memory.copied(x, n) if n in impl.mutates else x for n, x in named]
    untouched = [(n, x, x.clone()) for n, x in named if n not in impl.mutates]
    with memory:
        outputs = as_tuple(impl(*given, config=config))
    changed = [n for n, now, kept in untouched if not torch.equal(_bits(kept), _bits(now))]
    for _, now, kept in (u for u in untouched if u[0] in changed):
        _restore(now, kept)  # other configs are checked on the same inputs
    if wrong := memory.trespass() or _undeclared(changed):
        return Checked(float("inf"), wrong)
    return check_outputs(outputs, problem)


def _undeclared(changed: Sequence[str]) -> str | None:
    if not changed:
        return None
    name = changed[0]
    return f"the launch changed its input {name}; if it means to, declare mutates=({name!r},)"


def _restore(now: Any, kept: Any) -> None:
    """Restore values, also where elements share memory, which `copy_` rejects."""
    for axis, stride in enumerate(now.stride()):
        if stride == 0 and now.shape[axis] > 1:
            now, kept = now.narrow(axis, 0, 1), kept.narrow(axis, 0, 1)
    now.copy_(kept)


def check_outputs(outputs: Sequence[Any], problem: PreparedProblem) -> Checked:
    """Compare outputs with the expected ones and return the largest error. NaN and infinities must
    be in the same places."""
    spec = problem.spec
    if wrong := reference.returned_fault(spec, outputs, problem.expected):
        return Checked(float("inf"), wrong)
    verdicts = [
        _compare_one(
            name, actual, expected, spec.tolerance, spec.outputs[name].dtype or problem.dtype
        )
        for name, actual, expected in zip(spec.outputs, outputs, problem.expected, strict=True)
    ]
    return max(verdicts, key=lambda v: v.error)


def _compare_one(
    name: str, actual: Any, expected: Any, tolerance: Mapping[str, Tolerance], dtype: str
) -> Checked:
    wanted = inputs_.torch_dtype(dtype)
    if actual.dtype != wanted:
        return Checked(float("inf"), f"{name} has dtype {actual.dtype} where {wanted} was expected")
    if not actual.is_floating_point():
        return _compare_exactly(name, actual, expected)
    allowed = tolerance[dtype]
    rounded = expected.to(actual.dtype)  # so that values beyond the dtype are expected as inf
    a, e = actual.double(), torch.where(rounded.double().isfinite(), expected, rounded.double())
    alien = (a.isnan() != e.isnan()) | ((a.isinf() | e.isinf()) & ~e.isnan() & (a != e))
    if bool(alien.any()):
        return Checked(float("inf"), _first(name, alien, a, e, "NaN or infinity out of place"))
    finite = e.isfinite()
    e, a = torch.where(finite, e, 0.0), torch.where(finite, a, 0.0)
    scale = e.square().mean().sqrt() if e.numel() else e.sum()
    bound = allowed.relative * e.abs() + allowed.of_rms * scale + _least(actual.dtype)
    ratio = (a - e).abs() / bound
    worst = float(ratio.max()) if ratio.numel() else 0.0
    if worst <= 1:
        return Checked(worst)
    return Checked(worst, _first(name, ratio > 1, a, e, f"off by up to {worst:.3g} tolerances"))


def _compare_exactly(name: str, actual: Any, expected: Any) -> Checked:
    """Compare integers and booleans, which must be equal."""
    off = actual != expected.to(actual.dtype)
    if not bool(off.any()):
        return Checked(0.0)
    return Checked(float("inf"), _first(name, off, actual, expected, "which must be exact"))


def _least(dtype: torch.dtype) -> float:
    """Return the error allowed beside zero: one step of fp16, whose denormals every GPU keeps; the
    least normal number elsewhere, because fast exponentials flush fp32 denormals to zero."""
    info = torch.finfo(dtype)
    return float(info.smallest_normal * (info.eps if dtype == torch.float16 else 1.0))


def _first(name: str, where: Any, actual: Any, expected: Any, what: str) -> str:
    at = tuple(int(i) for i in where.nonzero()[0])
    share = 100 * float(where.double().mean())
    got, want = float(actual[at]), float(expected[at])
    return (
        f"{name} is wrong in {share:.3g} % of its elements, {what}; "
        f"the first is {list(at)}: {got:.6g} where {want:.6g} was expected"
    )


class Poisoned(TorchFunctionMode):  # type: ignore[misc]  # untyped, as all of torch is here
    """Mode in which uninitialised tensors are filled with NaN (integers: 0xA5 bytes) and lie
    between guard bands, which reveals elements that a kernel does not write, or writes out of
    bounds."""

    def __init__(self) -> None:
        super().__init__()
        self._given: list[tuple[Any, int, int, str]] = []  # memory, first, count, whose

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        tensor = func(*args, **(kwargs or {}))
        if func not in EMPTY or tensor.device.type == "meta" or not tensor.is_contiguous():
            return tensor
        count = tensor.numel()
        return self._guarded(tensor, GUARD, count, "its output")[GUARD : GUARD + count].view(
            tensor.shape
        )

    def copied(self, x: Any, name: str) -> Any:
        """Return a copy of an input with its strides and alignment, between guard bands."""
        if x.device.type == "meta":
            return x
        stride = x.stride() if not _shares(x) else torch.empty_like(x).stride()
        span = 1 + sum((n - 1) * s for n, s in zip(x.shape, stride, strict=True))
        # same offset from an address divisible by 16, for which Triton compiles other code
        first = GUARD + x.data_ptr() % 16 // x.element_size()
        flat = self._guarded(x, first, span if x.numel() else 0, f"its input {name}")
        return flat.as_strided(x.shape, stride, first).copy_(x)

    def _guarded(self, like: Any, first: int, count: int, whose: str) -> Any:
        flat = torch.empty(first + count + GUARD, dtype=like.dtype, device=like.device)
        _poison(flat)
        self._given.append((flat, first, count, whose))
        return flat

    def trespass(self) -> str | None:
        """Return a sentence on the first write outside the tensors, or None."""
        for flat, first, count, whose in self._given:
            for operand, band in (("before", flat[:first]), ("behind", flat[first + count :])):
                fresh = torch.empty_like(band)
                _poison(fresh)
                if not torch.equal(_bits(band), _bits(fresh)):
                    return f"the launch wrote {operand} the memory of {whose}"
        return None


def _poison(flat: Any) -> None:
    if flat.is_floating_point():
        flat.fill_(float("nan"))
    else:
        flat.view(torch.uint8).fill_(0xA5)


def _shares(x: Any) -> bool:
    """Return whether elements share memory, as those of an expanded tensor do."""
    return any(s == 0 and n > 1 for n, s in zip(x.shape, x.stride(), strict=True))


def _bits(x: Any) -> Any:
    """Return the same memory as integers, in which NaN equals NaN."""
    by_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(by_size[x.element_size()])
