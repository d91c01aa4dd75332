"""Mend Triton's interpreter where it gives what no GPU gives.

It keeps bf16 as 16-bit integers and computes on those integers (seen in 3.6.0 and 3.9.0): sums,
products, comparisons, `tl.dot`, conversions of integers, atomic additions and the fast paths of
reductions are wrong, and conversions from fp32 cut instead of rounding. Here each of these
operations widens its bf16 operands to fp32, computes, and rounds the result to the nearest bf16, as
a GPU does.

It hands Python floats to the kernel as they are, where a compiled launch has fp32 scalars; the
index of a loop is a Python integer there and a tensor in a compiled launch; and it has no
libdevice. Here all three are as in a compiled launch; functions of libdevice are computed by numpy
in fp64, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, wraps
from importlib import import_module
from typing import Any, ClassVar

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

    _remember_dtypes(interpreter)
    _remember_extents()
    _mend_index(interpreter)
    _mend_scalars(interpreter)
    _mend_loops(interpreter)
    _mend_imported_names(interpreter)
    _patch_once_a_launch(interpreter)
    _mend_libdevice()
    builder = interpreter.InterpreterBuilder
    builder.create_dot = _round_rows(builder.create_dot)
    builder.create_masked_load = _allow_truths(builder.create_masked_load, 1)
    builder.create_masked_store = _allow_truths(builder.create_masked_store, 2)
    for name in (f"create_{short}" for short in (*_ROUNDED, *_OTHER)):
        if (real := getattr(builder, name, None)) is not None:  # a version may lack some
            rounds = name.removeprefix("create_") in _ROUNDED
            setattr(builder, name, _widen(real, rounds))
    builder.create_dot = _note_operands(builder.create_dot)
    for name in (f"create_{short}" for short in _CASTS):
        setattr(builder, name, _cast(getattr(builder, name)))
    builder.create_fp_to_fp = _rounding_cast(builder.create_fp_to_fp)
    builder.create_atomic_rmw = _atomic(builder.create_atomic_rmw)
    builder.get_bf16 = lambda self, value: narrow(self.get_fp32(value))
    for kind, names in ((interpreter.ReduceOps, ("sum", "min_max")), (interpreter.ScanOps, _SCANS)):
        for name in names:
            setattr(kind, name, _reduction(getattr(kind, name)))


_SCANS = ("cumsum", "cumprod")


def _remember_dtypes(interpreter: Any) -> None:
    """Patch the lookup of the numpy dtype of a type, which makes its table anew for each value: 9 %
    of the interpreter's time."""
    real, known = interpreter._get_np_dtype, dict[str, Any]()

    def looked_up(kind: Any) -> Any:
        if (result := known.get(kind.name)) is None:
            result = known[kind.name] = real(kind)
        return result

    interpreter._get_np_dtype = looked_up


def _remember_extents() -> None:
    """Patch the constructors of block types and of tensors, which wrap each extent as a constant
    with a type of its own and compare shapes by these: blocks of one shape share them, and two
    that do are not compared. A third of the interpreter's time. A version whose types or tensors
    have other attributes keeps its own."""
    import triton.language.core as core

    blocks, tensors = dict[Any, tuple[dict[str, Any], str]](), dict[Any, dict[str, Any]]()
    real_block, real_tensor = core.block_type.__init__, core.tensor.__init__

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        known = blocks.get(id(shape)) or blocks.get(extents := _extents(shape))
        if known is not None:
            same, start = known
            self.__dict__.update(same, element_ty=element_ty, name=f"{start}{element_ty}>")
            return
        real_block(self, element_ty, shape)
        if extents and vars(self).keys() == {"element_ty", "shape", "numel", "name"}:
            same = {name: vars(self)[name] for name in ("shape", "numel")}
            known = same, f"<{self.shape}, "
            blocks[extents] = blocks[id(self.shape)] = known  # which keeps the shape, and its id

    def tensor(self: Any, handle: Any, type: Any) -> None:
        shape = id(type.shape) if type.is_block() else ()
        if (same := tensors.get(shape)) is not None:
            self.__dict__.update(same, handle=handle, type=type, dtype=type.scalar)
            return
        real_tensor(self, handle, type)
        if vars(self).keys() == {"handle", "type", "dtype", "shape", "numel"} and (
            shape == () or shape in blocks
        ):
            tensors[shape] = {name: vars(self)[name] for name in ("shape", "numel")}

    core.block_type.__init__, core.tensor.__init__ = block, tensor
    _share_shapes()


def _extents(shape: Any) -> tuple[int, ...] | None:
    """Return the numbers of a shape; None where it is none, or one is not an integer."""
    import triton.language.core as core

    def plain(value: Any) -> Any:
        return value.value if isinstance(value, core.constexpr) else value

    if not isinstance(plain(shape), list | tuple | core.tuple):
        return None
    numbers = tuple(plain(extent) for extent in plain(shape))
    return numbers if all(type(number) is int for number in numbers) else None


def _share_shapes() -> None:
    """Patch the broadcast of two blocks: those that share their shape are as they shall be."""
    from triton.language.semantic import TritonSemantic

    real = TritonSemantic.broadcast_impl_value

    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        if left.is_block() and right.is_block() and left.shape is right.shape:
            return lhs, rhs
        return real(self, lhs, rhs)

    TritonSemantic.broadcast_impl_value = broadcast


def _mend_index(interpreter: Any) -> None:
    """Patch a conversion of Triton 3.6. It makes an index of a tensor by int(array), which numpy
    2.4 allows only for an array without axes; without this, no loop over a tensor's extent runs."""
    real = interpreter._patch_lang_tensor

    def patch(tensor: Any, *scope: Any) -> None:
        real(tensor, *scope)  # registers `__index__` to be restored after the launch
        tensor.__index__ = lambda self: int(self.handle.data.squeeze())

    interpreter._patch_lang_tensor = patch


def _mend_scalars(interpreter: Any) -> None:
    """Patch the conversion of arguments: a float is a scalar of fp32 and a truth value one of int1,
    as in a compiled launch. Integers are int32, or int64 by their value, already."""
    real = interpreter._implicit_cvt

    def convert(argument: Any) -> Any:
        import numpy as np
        import triton.language as tl

        for kind, dtype, ours in ((bool, np.bool_, tl.int1), (float, np.float32, tl.float32)):
            if isinstance(argument, kind):
                return tl.tensor(interpreter.TensorHandle(np.array([argument], dtype), ours), ours)
        return real(argument)

    interpreter._implicit_cvt = convert


def _mend_loops(interpreter: Any) -> None:
    """Patch loops over `range` and `tl.range`: their index is a scalar tensor, as in a compiled
    launch, and no Python integer. That of `tl.static_range` is a constant. And a condition of
    `while` is true or false."""
    import ast

    def visit_for(self: Any, node: Any) -> Any:
        self.generic_visit(node)
        called = getattr(node.iter, "func", None)
        name = getattr(called, "id", getattr(called, "attr", ""))
        if name == "range" and isinstance(node.target, ast.Name):
            index = node.target.id
            text = f"{index} = interpreter_semantic.to_tensor({index}, False)"
            node.body.insert(0, ast.copy_location(ast.parse(text).body[0], node))
        return node

    interpreter.ASTTransformer.visit_For = visit_for
    from triton.language import condition

    if "__bool__" not in vars(condition):  # in 3.6 no `while tl.condition(...)` ended
        condition.__bool__ = lambda self: bool(self.condition)


def _mend_imported_names(interpreter: Any) -> None:
    """Patch the lookup of Triton's functions: a kernel may have imported one by its own name, as
    `from triton.language import gather`, also one of libdevice."""
    real = interpreter._patch_lang

    def patch(function: Any) -> Any:
        import triton.language.core as core

        known = function.__globals__
        for name, value in list(known.items()):
            if _is_libdevice(value):
                known[name] = _elementwise(value.__name__)
            elif getattr(value, core.TRITON_BUILTIN, False) and not hasattr(
                value, "__wrapped_here__"
            ):
                known[name] = _bind_interpreter(value, interpreter)
        return real(function)

    interpreter._patch_lang = patch


def _patch_once_a_launch(interpreter: Any) -> None:
    """Patch the lookup once more: the interpreter makes the language its own anew in every call of
    a device function, such as `tl.max`, a millisecond each and half the time of some kernels. Here
    it does so once in a launch for each module."""
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    done: list[set[int]] = []  # the modules of each launch, the innermost last

    def patch_once(function: Any) -> Any:
        module = id(function.__globals__)
        if done and module in done[-1]:
            return None  # the launch alone looks at it, and is the first
        if done:  # else its programs are traced one by one
            done[-1].add(module)
        return patch(function)

    @wraps(launch)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        done.append(set())
        try:
            return launch(self, *args, **kwargs)
        finally:
            done.pop()

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, run


def _bind_interpreter(builtin: Callable[..., Any], interpreter: Any) -> Callable[..., Any]:
    @wraps(builtin)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("_semantic", interpreter.interpreter_semantic)
        return builtin(*args, **kwargs)

    call.__wrapped_here__ = True  # type: ignore[attr-defined]
    return call


def _allow_truths(real: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Return a masked access whose mask, the operand at `place`, may be computed from integers."""

    @wraps(real)
    def access(self: Any, *operands: Any, **named: Any) -> Any:
        mask = operands[place]
        # the mask of a descriptor is an array of its own in Triton 3.6, whose `data` is its buffer
        data = mask.data
        if not isinstance(data, memoryview) and data.dtype != bool:
            truths = type(mask)(data.astype(bool), mask.dtype)
            operands = (*operands[:place], truths, *operands[place + 1 :])
        return real(self, *operands, **named)

    return access


LIBDEVICE = (
    "triton.language.extra.libdevice",
    "triton.language.extra.cuda.libdevice",
    "triton.language.extra.hip.libdevice",
)


def _mend_libdevice() -> None:
    """Replace the functions of libdevice, which are empty outside of the compiler."""
    for name in LIBDEVICE:
        try:
            module = import_module(name)
        except ImportError:
            continue
        for function in (*_meanings(), *_TRUTHS):
            if hasattr(module, function):
                setattr(module, function, _elementwise(function))


def _is_libdevice(value: Any) -> bool:
    """Return whether a value is a function of libdevice as Triton has it: a file may hold one that
    it got before they were replaced, or from a copy of the module that it loaded itself."""
    of = getattr(value, "__module__", None)
    return of in LIBDEVICE and getattr(value, "__name__", "") in libdevice_names()


def libdevice_names() -> tuple[str, ...]:
    """Return the functions of libdevice that the interpreter computes here."""
    return (*_meanings(), *_TRUTHS)


_TRUTHS = {"isnan": "isnan", "isinf": "isinf", "finitef": "isfinite", "isfinited": "isfinite"}
# Functions that numpy has by the same name, and by another one.
_SAME = (
    *("abs", "floor", "ceil", "trunc", "rint", "sqrt", "cbrt", "exp", "exp2", "expm1", "log"),
    *("log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "fmod", "hypot"),
    *("copysign", "nextafter"),
)
_OTHER_NAMES = {
    **{"asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2", "pow": "power"},
    **{"asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "nearbyint": "rint"},
    **{"add_rn": "add", "sub_rn": "subtract", "mul_rn": "multiply", "div_rn": "divide"},
    **{"sqrt_rn": "sqrt", "fast_dividef": "divide", "fast_powf": "power"},
    **{f"fast_{n}f": n for n in ("exp", "log", "log2", "log10", "sin", "cos", "tan", "tanh")},
}


@cache
def _meanings() -> dict[str, Callable[..., Any]]:
    """Return what functions of libdevice compute, on arrays of fp64."""
    import math

    import numpy as np

    def each(function: Callable[..., float]) -> Callable[..., Any]:
        return np.vectorize(function, otypes=[np.float64])

    named = {**{n: n for n in _SAME}, **_OTHER_NAMES}
    return {
        **{ours: getattr(np, theirs) for ours, theirs in named.items()},
        **{"erf": each(math.erf), "erfc": each(math.erfc), "lgamma": each(math.lgamma)},
        "exp10": lambda x: np.power(10.0, x),
        "fast_exp10f": lambda x: np.power(10.0, x),
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "rsqrt_rn": lambda x: 1 / np.sqrt(x),
        "rcp_rn": lambda x: 1 / x,
        "rcbrt": lambda x: 1 / np.cbrt(x),
        "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),  # halves away from zero
        "fdim": lambda x, y: np.where(np.isnan(x + y), x + y, np.maximum(x - y, 0)),
        "fma": lambda x, y, z: x * y + z,
        "fma_rn": lambda x, y, z: x * y + z,
        "normcdf": lambda x: 0.5 * each(math.erfc)(-x / math.sqrt(2)),
    }


def _elementwise(name: str) -> Callable[..., Any]:
    """Return a function of libdevice for the interpreter: tensors and numbers in, a tensor of the
    first one's dtype out, or of truth values."""

    def call(*operands: Any, **_: Any) -> Any:
        import numpy as np
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle, interpreter_semantic

        tensors = [interpreter_semantic.to_tensor(each) for each in operands]
        kind = next((t.dtype.scalar for t in tensors if t.dtype.is_floating()), tl.float32)
        with np.errstate(all="ignore"):
            arrays = [wide(t.handle).data.astype(np.float64) for t in tensors]
            if name in _TRUTHS:
                result, kind = getattr(np, _TRUTHS[name])(*arrays), tl.int1
                handle = TensorHandle(result, kind)
            else:
                result = _meanings()[name](*np.broadcast_arrays(*arrays))
                handle = _rounded_to(kind, result)
        shape = np.broadcast_shapes(*(tuple(map(int, t.shape)) for t in tensors))
        return tl.tensor(handle, tl.block_type(kind, list(shape)) if shape else kind)

    call.__name__ = name
    return call


def _rounded_to(kind: Any, result: Any) -> Any:
    """Return an array of fp64 as a handle of this dtype."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if kind == tl.bfloat16:
        return narrow(TensorHandle(result.astype(np.float32), tl.float32))
    number = {tl.float16: np.float16, tl.float64: np.float64}.get(kind, np.float32)
    return TensorHandle(result.astype(number), kind)


def _round_rows(real: Callable[..., Any]) -> Callable[..., Any]:
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


def _note_operands(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return products that note how their operands were rounded; those of fp32 are rounded here
    where the product is one of tf32."""

    @wraps(real)
    def dot(self: Any, a: Any, b: Any, d: Any, *how: Any) -> Any:
        from triton._C.libtriton import ir

        for each in (a, b):
            RoundedProducts.meet(each.dtype.scalar.name)
        if how and how[0] == ir.INPUT_PRECISION.TF32:
            a, b = _rounded_to_tf32(a), _rounded_to_tf32(b)
        return real(self, a, b, d, *how)

    return dot


MANTISSA: Mapping[str, int] = {  # bits
    **{"fp16": 10, "bf16": 7, "fp8e4nv": 3, "fp8e4b8": 3, "fp8e4b15": 3},
    **{"fp8e5": 2, "fp8e5b16": 2},
}


class RoundedProducts:
    """What this process knows of products whose operands a program rounded itself: to tf32, or by
    a conversion such as that of an attention's probabilities. What is rounded depends on the tiles,
    and so does the result."""

    bits: int | None = None  # of the mantissa: the fewest of all such operands
    _cast: ClassVar[set[str]] = set()  # dtypes that the program that runs has rounded to

    @classmethod
    def begin(cls) -> None:
        """Begin a program."""
        cls._cast.clear()

    @classmethod
    def rounds(cls, bits: int) -> None:
        """Note an operand of a product with so many bits of mantissa."""
        cls.bits = bits if cls.bits is None else min(cls.bits, bits)

    @classmethod
    def cast(cls, source: Any, kind: Any) -> None:
        """Note a conversion of a handle to a type."""
        narrower = kind.scalar.primitive_bitwidth < source.dtype.scalar.primitive_bitwidth
        if narrower and source.dtype.scalar.is_floating():
            cls._cast.add(kind.scalar.name)

    @classmethod
    def meet(cls, dtype: str) -> None:
        """Note an operand of a product by its dtype."""
        if dtype in cls._cast and dtype in MANTISSA:
            cls.rounds(MANTISSA[dtype])


def _rounded_to_tf32(handle: Any) -> Any:
    """Return a handle of fp32 with 10 bits of mantissa, rounded to the nearest, ties to even; any
    other one as it is."""
    import numpy as np

    if handle.data.dtype != np.float32:
        return handle
    RoundedProducts.rounds(10)
    bits = np.ascontiguousarray(handle.data).view(np.uint32)
    half = np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    rounded = ((bits + half) & np.uint32(0xFFFFE000)).view(np.float32)
    data = np.where(np.isfinite(handle.data), rounded, handle.data)
    return type(handle)(data, handle.dtype.scalar)


def is_bf16(value: Any) -> bool:
    """Return whether a value is a handle of the interpreter that holds bf16 as integers."""
    dtype = getattr(getattr(value, "data", None), "dtype", None)
    if dtype != "uint16":
        return False
    import triton.language as tl

    return bool(getattr(getattr(value, "dtype", None), "scalar", None) == tl.bfloat16)


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


def _widen(real: Callable[..., Any], rounds: bool) -> Callable[..., Any]:
    @wraps(real)
    def compute(self: Any, *operands: Any) -> Any:
        is_wide = any(is_bf16(each) for each in operands)
        result = real(self, *[wide(each) for each in operands])
        return narrow(result) if is_wide and rounds else result

    return compute


def _cast(real: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real)
    def cast(self: Any, source: Any, kind: Any) -> Any:
        import triton.language as tl

        RoundedProducts.cast(source, kind)
        source = wide(source)
        return narrow(source) if kind.scalar == tl.bfloat16 else real(self, source, kind)

    return cast


def _rounding_cast(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a cast of one float to another that may name its rounding."""

    @wraps(real)
    def cast(self: Any, source: Any, kind: Any, rounding: Any) -> Any:
        import triton.language as tl
        from triton._C.libtriton import ir

        RoundedProducts.cast(source, kind)
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
    def reduce(self: Any, given: Any, *more: Any, **named: Any) -> Any:
        import triton.language as tl

        if not is_bf16(given.handle):
            return real(self, given, *more, **named)
        shape = tl.block_type(tl.float32, list(given.shape)) if given.shape else tl.float32
        result = real(self, tl.core.tensor(wide(given.handle), shape), *more, **named)
        if isinstance(result, (list, tuple)):
            return type(result)(_round(each) for each in result)
        return _round(result)

    return reduce


def _round(result: Any) -> Any:
    import triton.language as tl

    if result.dtype != tl.float32:
        return result
    kind = tl.block_type(tl.bfloat16, list(result.shape)) if result.shape else tl.bfloat16
    return tl.core.tensor(narrow(result.handle), kind)
