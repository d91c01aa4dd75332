"""Let Triton's interpreter give what a GPU gives where numpy gives something else, and stop where
device code says what is not so.

Device code could tell the two apart by this, and compute rightly in the interpreter alone: numpy
makes the least integer of a float that is too large, and NVIDIA the greatest. What no processor
defines is here as NVIDIA has it.
"""

import ast
import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from math import gcd
from typing import Any

_TRUTH = "_one_truth_value"
_SLACK = 1024  # bytes of the guard bands, which show what is written there
_done = False


class UncompiledCode(NotImplementedError):
    """Device code does what the interpreter takes and compiled code does not."""


class UntrueHint(Exception):
    """Device code gives the compiler a hint that is not so, or leaves its tensors."""


class Bounds:
    """Addresses that the launch under way may read; writes may reach the guard bands, too."""

    ranges: Sequence[tuple[int, int]] = ()
    is_sampled = False  # some programs run: fresh memory shows what they write


class ProgramOrder:
    """The order of the programs of the launch under way: a step and a start, coprime to their
    number. A GPU begins them in any order."""

    grid: tuple[int, int, int] = (0, 0, 0)
    step, start = 1, 0

    @classmethod
    def choose(cls, grid: Sequence[int], chance: random.Random) -> None:
        """Choose an order of these programs; every other time it is the usual one."""
        x, y, z = (*grid, 1, 1)[:3]
        cls.grid, cls.step, cls.start, count = (x, y, z), 1, 0, x * y * z
        if count > 1 and chance.random() < 0.5:
            steps = (chance.randrange(1, count) for _ in range(64))
            cls.step = next((s for s in steps if gcd(s, count) == 1), count - 1)
            cls.start = chance.randrange(count)

    @classmethod
    def place(cls, x: int, y: int, z: int) -> tuple[int, int, int]:
        """Return the program that runs in place of this one."""
        if cls.step == 1 and cls.start == 0:
            return x, y, z
        _, second, third = cls.grid
        count = cls.grid[0] * second * third
        number = (((x * second + y) * third + z) * cls.step + cls.start) % count
        first, rest = divmod(number, second * third)
        return (first, *divmod(rest, third))


def follow_gpu_rules() -> None:
    """Patch the interpreter of this process, once."""
    global _done
    from triton.runtime import interpreter

    if _done:
        return
    _done = True
    _allow_precisions(interpreter)
    builder = interpreter.InterpreterBuilder
    for name, result in (("sdiv", _ones), ("udiv", _ones), ("srem", _first), ("urem", _first)):
        _replace(builder, f"create_{name}", lambda left, right: right == 0, result)
    for name in ("shl", "lshr"):
        _replace(builder, f"create_{name}", _is_far, lambda left, right: left * 0)
    for name in ("create_fp_to_si", "create_fp_to_ui"):
        setattr(builder, name, _saturate(getattr(builder, name)))
    for name in ("exp", "exp2", "log", "log2", "sin", "cos"):
        setattr(builder, f"create_{name}", _nudge(getattr(builder, f"create_{name}"), name))
    builder.create_ptr_to_int = _no_address
    builder.set_grid_idx = _reorder_programs(builder.set_grid_idx)
    _check_bounds(builder)
    _check_truths(interpreter)
    _check_hints(interpreter)


def _reorder_programs(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return what sets the index of a program, for another order of them."""

    @wraps(real)
    def place_program(self: Any, x: int, y: int, z: int) -> None:
        real(self, *ProgramOrder.place(x, y, z))

    return place_program


def _allow_precisions(interpreter: Any) -> None:
    """Let products be of bf16 parts, as a launcher for Hopper asks: here they are exact."""
    builder = interpreter.interpreter_builder
    known = builder.options.allowed_dot_input_precisions
    more = tuple(name for name in ("bf16x3", "bf16x6") if name not in known)
    builder.options = replace(builder.options, allowed_dot_input_precisions=(*known, *more))


def _replace(builder: Any, name: str, where: Callable[..., Any], what: Callable[..., Any]) -> None:
    """Let an operation of two integers give `what` `where` numpy's result means nothing."""
    real = getattr(builder, name)

    @wraps(real)
    def apply(self: Any, left: Any, right: Any) -> Any:
        import numpy as np

        odd = np.broadcast_to(
            where(left.data, right.data), np.broadcast(left.data, right.data).shape
        )
        if not odd.any():
            return real(self, left, right)
        with np.errstate(all="ignore"):
            result = real(self, left, right)
        data = np.where(odd, what(left.data, right.data), result.data).astype(result.data.dtype)
        return type(result)(data, result.dtype.scalar)

    setattr(builder, name, apply)


def _ones(left: Any, right: Any) -> Any:
    return ~(left * 0)


def _first(left: Any, right: Any) -> Any:
    return left


def _is_far(left: Any, right: Any) -> Any:
    places = right.astype("int64")
    return (places < 0) | (places >= 8 * left.dtype.itemsize)


def _saturate(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a conversion to integers that gives the nearest one, and 0 for NaN."""

    @wraps(real)
    def convert(self: Any, source: Any, kind: Any) -> Any:
        import numpy as np

        from workbench.dsl.interpreter import wide

        scalar = kind.scalar
        bits = scalar.primitive_bitwidth
        if bits == 1:
            return real(self, source, kind)
        signed = scalar.is_int_signed()
        low, past = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if signed else (0.0, 2.0**bits)
        values = np.trunc(wide(source).data.astype(np.float64))
        if ((values >= low) & (values < past)).all():
            return real(self, source, kind)
        with np.errstate(all="ignore"):
            result = real(self, source, kind)
        number = np.iinfo(result.data.dtype)
        data = np.where(values >= past, number.max, np.where(values < low, number.min, result.data))
        data = np.where(np.isnan(values), 0, data).astype(result.data.dtype)
        return type(result)(data, result.dtype.scalar)

    return convert


def _nudge(real: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function of fp32 whose inexact results are one step up or down, by the operand and a
    number of this process: those of GPUs differ from numpy's by as much, and device code that
    compares their bits shall not tell the two apart."""
    seed = secrets.randbits(32) | 1

    @wraps(real)
    def nudge(self: Any, operand: Any) -> Any:
        import numpy as np

        result = real(self, operand)
        data = result.data
        if data.dtype != np.float32 or operand.data.dtype != np.float32:
            return result
        with np.errstate(all="ignore"):
            exact = getattr(np, name)(operand.data.astype(np.float64))
            held = (exact == data) | ~np.isfinite(data) | (np.abs(data) < 1e-30)
            spread = np.ascontiguousarray(operand.data).view(np.uint32) * np.uint32(seed)
            up = (spread >> np.uint32(15)) & np.uint32(1) == 1
            step = np.nextafter(data, np.where(up, np.float32(np.inf), np.float32(-np.inf)))
        return type(result)(np.where(held, data, step), result.dtype.scalar)

    return nudge


def _no_address(self: Any, pointer: Any, kind: Any) -> Any:
    raise UncompiledCode("device code computes with an address; a plan cannot hold one")


def _check_bounds(builder: Any) -> None:
    """Stop where a program reads outside of its tensors, or writes beyond their guard bands."""
    places = {"create_masked_load": 1, "create_masked_store": 2, "create_atomic_rmw": 3}
    for name, place in places.items():
        setattr(builder, name, _bound_access(getattr(builder, name), name, place))
    builder.create_atomic_cas = _bound_access(builder.create_atomic_cas, "create_atomic_cas", None)


def _bound_access(real: Callable[..., Any], name: str, place: int | None) -> Callable[..., Any]:
    slack = 0 if name == "create_masked_load" else _SLACK

    @wraps(real)
    def access(self: Any, *operands: Any, **named: Any) -> Any:
        import numpy as np

        pointers = operands[1 if name == "create_atomic_rmw" else 0]
        addresses = pointers.data
        if place is not None:
            mask = np.broadcast_to(np.asarray(operands[place].data, bool), addresses.shape)
            addresses = addresses[mask]
        if addresses.size:
            bytes_ = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
            _check_addresses(addresses, bytes_, slack)
        return real(self, *operands, **named)

    return access


def _check_addresses(addresses: Any, size: int, slack: int) -> None:
    low, high = int(addresses.min()), int(addresses.max()) + size
    if any(first - slack <= low and high <= end + slack for first, end in Bounds.ranges):
        return
    inside = None
    for first, end in Bounds.ranges:
        each = (addresses >= max(0, first - slack)) & (addresses <= end + slack - size)
        inside = each if inside is None else inside | each
    if inside is None or not inside.all():
        raise UntrueHint(f"a program {'writes' if slack else 'reads'} outside of its tensors")


def _check_truths(interpreter: Any) -> None:
    """Stop where device code uses a tensor of several elements as one truth value. Compiled code
    does not branch on one, and joins two by `and` element by element; Python takes the second."""
    transformer = interpreter.ASTTransformer

    def wrap_truths(name: str, *fields: str) -> None:
        real = getattr(transformer, name, transformer.generic_visit)

        def visit(self: Any, node: Any) -> Any:
            node = real(self, node)
            for field in fields:
                value = getattr(node, field)
                checked = [_truth_call(v) for v in value] if isinstance(value, list) else None
                setattr(node, field, checked or _truth_call(value))
            return node

        setattr(transformer, name, visit)

    for name, field in (("BoolOp", "values"), ("IfExp", "test"), ("If", "test"), ("While", "test")):
        wrap_truths(f"visit_{name}", field)

    def visit_call(self: Any, node: Any) -> Any:
        node = self.generic_visit(node)
        if getattr(node.func, "id", "") in ("min", "max"):  # compiled: element by element
            node.args = [_truth_call(arg) for arg in node.args]
        return node

    def visit_not(self: Any, node: Any) -> Any:
        node = self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            node.operand = _truth_call(node.operand)
        return node

    transformer.visit_Call, transformer.visit_UnaryOp = visit_call, visit_not
    setattr(interpreter, _TRUTH, _truth)  # whose names each device function gets


def _truth_call(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Starred):
        return node
    return ast.Call(ast.Name(_TRUTH, ast.Load()), [node], [])


def _truth(value: Any) -> Any:
    if _data(value).size > 1 and hasattr(value, "handle"):
        raise UncompiledCode("device code takes the truth value of several elements")
    return value


def _check_hints(interpreter: Any) -> None:
    """Stop where `tl.assume` and `tl.multiple_of` say what is not so."""
    real_core = interpreter._patch_lang_core

    def patched_core(lang: Any, scope: Any) -> None:
        real_core(lang, scope)
        before = lang.multiple_of

        def multiple_of(input: Any, values: Any) -> Any:
            _check_multiple(input, values)
            return before(input, values)

        scope.set_attr(lang, "multiple_of", multiple_of)
        scope.set_attr(lang, "assume", _check_assumption)

    interpreter._patch_lang_core = patched_core


def _data(value: Any) -> Any:
    import numpy as np

    return np.asarray(getattr(getattr(value, "handle", None), "data", value))


def _check_multiple(input: Any, values: Any) -> None:
    """Raise UntrueHint where the first element is not a multiple: that of a block, whose other
    elements may follow it one by one."""
    each = values if isinstance(values, (list, tuple)) else [values]
    numbers = [int(getattr(v, "value", v)) for v in each]
    data = _data(input)
    if data.size and any(n and int(data.reshape(-1)[0]) % n for n in numbers):
        raise UntrueHint("tl.multiple_of says what is not so")


def _check_assumption(condition: Any) -> None:
    if not _data(condition).all():
        raise UntrueHint("tl.assume says what is not so")
