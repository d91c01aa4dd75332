"""Mend Triton's interpreter where it gives what no GPU gives.

It keeps bf16 as 16-bit integers and computes on those integers (seen in 3.6.0 and 3.9.0): sums,
products, comparisons, `tl.dot`, conversions of integers, atomic additions and the fast paths of
reductions are wrong, and conversions from fp32 cut instead of rounding. Here each of these
operations widens its bf16 operands to fp32, computes, and rounds the result to the nearest bf16, as
a GPU does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

# Methods of the interpreter's builder whose result has the dtype of the operands.
_ROUNDED = (
    *("fadd", "fsub", "fmul", "fdiv", "frem", "fneg", "precise_divf", "approx_divf", "fma"),
    *("minimumf", "minnumf", "maximumf", "maxnumf", "clampf"),
    *("floor", "ceil", "exp", "exp2", "log", "log2", "cos", "sin", "sqrt", "precise_sqrt"),
    *("rsqrt", "erf"),
)
# Those whose result has another dtype: truth values, or the dtype of the sum in `tl.dot`.
_OTHER = (
    *(f"fcmp{kind}" for kind in ("OLT", "OGT", "OLE", "OGE", "OEQ", "ONE")),
    *(f"fcmp{kind}" for kind in ("ULT", "UGT", "ULE", "UGE", "UEQ", "UNE")),
    *("dot", "print"),
)
_CASTS = ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc")


def mend() -> None:
    """Patch the interpreter in this process. Triton must have been imported as an interpreter."""
    from triton.runtime import interpreter

    _mend_index(interpreter)
    builder = interpreter.InterpreterBuilder
    builder.create_dot = _by_rows(builder.create_dot)
    for name in (f"create_{short}" for short in (*_ROUNDED, *_OTHER)):
        if (real := getattr(builder, name, None)) is not None:  # a version may lack some
            rounds = name.removeprefix("create_") in _ROUNDED
            setattr(builder, name, _widened(real, rounds))
    for name in (f"create_{short}" for short in _CASTS):
        setattr(builder, name, _cast(getattr(builder, name)))
    builder.create_fp_to_fp = _rounding_cast(builder.create_fp_to_fp)
    builder.create_atomic_rmw = _atomic(builder.create_atomic_rmw)
    builder.get_bf16 = lambda self, value: narrow(self.get_fp32(value))
    for kind, names in ((interpreter.ReduceOps, ("sum", "min_max")), (interpreter.ScanOps, _SCANS)):
        for name in names:
            setattr(kind, name, _reduction(getattr(kind, name)))


_SCANS = ("cumsum", "cumprod")


def _mend_index(interpreter: Any) -> None:
    """Patch a conversion of Triton 3.6. It makes an index of a tensor by int(array), which numpy
    2.4 allows only for an array without axes; without this, no loop over a tensor's extent runs."""
    real = interpreter._patch_lang_tensor

    def patched(tensor: Any, *scope: Any) -> None:
        real(tensor, *scope)  # registers `__index__` to be restored after the launch
        tensor.__index__ = lambda self: int(self.handle.data.squeeze())

    interpreter._patch_lang_tensor = patched


def _by_rows(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return products whose rows have the same bits wherever they stand, as on a GPU: summed in
    fp64 and rounded once. In fp32 numpy's BLAS sums the rows at an edge in another order, on some
    CPUs."""

    @wraps(real)
    def dot(self: Any, a: Any, b: Any, d: Any, *how: Any) -> Any:
        import numpy as np
        import triton.language as tl

        if d.data.dtype != np.float32:
            return real(self, a, b, d, *how)
        exact = real(self, a, b, type(d)(d.data.astype(np.float64), tl.float64), *how)
        return type(exact)(exact.data.astype(np.float32), d.dtype.scalar)

    return dot


def is_bf16(value: Any) -> bool:
    """Return whether a value is a handle of the interpreter that holds bf16 as integers."""
    import triton.language as tl

    kind = getattr(value, "dtype", None)
    held = getattr(getattr(value, "data", None), "dtype", None)
    return getattr(kind, "scalar", None) == tl.bfloat16 and str(held) == "uint16"


def wide(value: Any) -> Any:
    """Return a handle of bf16 as one of fp32, exactly; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return type(value)(wide(each) for each in value)
    if not is_bf16(value):
        return value
    import numpy as np
    import triton.language as tl

    bits = value.data.astype(np.uint32) << np.uint32(16)
    return type(value)(bits.view(np.float32), tl.float32)


def narrow(handle: Any, cut: bool = False) -> Any:
    """Return a handle of any number as one of bf16, rounded to the nearest, ties to even; `cut`
    rounds toward zero."""
    import numpy as np
    import triton.language as tl

    data = np.asarray(handle.data).astype(np.float32)
    bits = data.view(np.uint32)
    half = 0 if cut else np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + half) >> np.uint32(16)).astype(np.uint16)
    return type(handle)(np.where(np.isnan(data), np.uint16(0x7FC0), rounded), tl.bfloat16)


def _widened(real: Callable[..., Any], rounds: bool) -> Callable[..., Any]:
    @wraps(real)
    def computed(self: Any, *operands: Any) -> Any:
        given = any(is_bf16(each) for each in operands)
        result = real(self, *[wide(each) for each in operands])
        return narrow(result) if given and rounds else result

    return computed


def _cast(real: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real)
    def cast(self: Any, source: Any, kind: Any) -> Any:
        import triton.language as tl

        source = wide(source)
        return narrow(source) if kind.scalar == tl.bfloat16 else real(self, source, kind)

    return cast


def _rounding_cast(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a cast of one float to another that may name its rounding."""

    @wraps(real)
    def cast(self: Any, source: Any, kind: Any, rounding: Any) -> Any:
        import triton.language as tl
        from triton._C.libtriton import ir

        if kind.scalar == tl.bfloat16 and source.dtype.scalar.primitive_bitwidth > 8:
            return narrow(wide(source), cut=rounding == ir.ROUNDING_MODE.RTZ)
        if is_bf16(source) and kind.scalar.primitive_bitwidth > 8:
            return self.cast_impl(wide(source), kind)
        return real(self, source, kind, rounding)

    return cast


def _atomic(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return atomic operations whose additions of bf16 are done element by element."""

    @wraps(real)
    def atomic(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *how: Any) -> Any:
        import numpy as np
        from triton._C.libtriton import interpreter, ir

        if not is_bf16(value) or operation != ir.ATOMIC_OP.FADD:
            return real(self, operation, pointers, value, mask, *how)
        at, added, wanted = np.broadcast_arrays(pointers.data, value.data, mask.data)
        before = np.zeros(at.shape, np.uint16)
        for place in np.ndindex(at.shape):
            one = (slice(i, i + 1) for i in place)
            spot = np.ascontiguousarray(at[tuple(one)]).reshape(1)
            on = np.array([bool(wanted[place])])
            old = interpreter.load(spot, on, np.zeros(1, np.uint16), np.dtype(np.uint16))
            kind = type(value)
            total = self.create_fadd(
                kind(old, value.dtype), kind(added[place].reshape(1), value.dtype)
            )
            interpreter.store(spot, total.data, on)
            before[place] = old[0]
        return type(value)(before, value.dtype.scalar)

    return atomic


def _reduction(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a fast path of a reduction or scan, which works on arrays of numbers."""

    @wraps(real)
    def reduced(self: Any, given: Any, *more: Any, **named: Any) -> Any:
        import triton.language as tl

        if not is_bf16(given.handle):
            return real(self, given, *more, **named)
        shape = tl.block_type(tl.float32, list(given.shape)) if given.shape else tl.float32
        result = real(self, tl.core.tensor(wide(given.handle), shape), *more, **named)
        if isinstance(result, (list, tuple)):
            return type(result)(_rounded(each) for each in result)
        return _rounded(result)

    return reduced


def _rounded(result: Any) -> Any:
    import triton.language as tl

    if result.dtype != tl.float32:
        return result
    kind = tl.block_type(tl.bfloat16, list(result.shape)) if result.shape else tl.bfloat16
    return tl.core.tensor(narrow(result.handle), kind)
