"""Describe the arguments of a launch without their values, and tell launches apart cheaply.

`key_function` compiles, for each function and types of arguments, the few expressions that tell two
launches apart, so that a launch that was seen before costs no loop over its arguments.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.workload.signature import (
    DescriptorArgument,
    PlainArgument,
    RecordedArgument,
    TensorArgument,
    TupleArgument,
)

ALIGN = 16  # bytes: what Triton specialises pointers for
MOST_VALUES = 4096  # elements of an integer tensor whose values are kept
HASHED = (int, float, bool, str, type(None))

KeyFunction = Callable[[Sequence[Any], Mapping[str, Any], Any], Any]


def key_function(args: Sequence[Any], kwargs: Mapping[str, Any]) -> KeyFunction:
    """Return a function of the arguments of a launch, whose result is equal for launches with the
    same layouts, alignments, scalars and types of scalars. It is for launches whose arguments have
    the types of these; of others its result is equal to none of these, or it raises
    AttributeError."""
    values = {f"a[{i}]": value for i, value in enumerate(args)}
    values |= {f"k[{name!r}]": value for name, value in kwargs.items()}
    parts, pointers = [], []
    for number, (source, value) in enumerate(values.items()):
        if _is_tensor(value):
            parts += [f"(t{number} := {source}).shape", f"t{number}.dtype"]
            parts.append(f"t{number}.is_contiguous() or t{number}.stride()")
            parts.append(f"(p{number} := t{number}.data_ptr()) & {ALIGN - 1}")
            pointers.append(f"p{number}")
        elif type(value) in HASHED:
            parts += [source, f"{source}.__class__"]
        else:
            parts.append(f"other({source})")
    if len(pointers) > 1:
        parts.append(f"len({{{', '.join(pointers)}}})")
    space: dict[str, Any] = {"other": _other}
    exec(f"def key(a, k, grid):\n return ({', '.join(['grid', *parts])},)", space)
    result: KeyFunction = space["key"]
    return result


def slow_key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what `key_function` gives, for tensors that have no address, such as fake ones."""
    return repr([describe(v, {}, False) for v in (*args, *kwargs.values())])


def _other(value: Any) -> Any:
    return repr(describe(value, {}, False))


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "data_ptr") and hasattr(value, "stride") and callable(value.stride)


def describe(value: Any, storages: dict[Any, int], values: bool) -> RecordedArgument:
    """Return an argument without the values of tensors. `storages` numbers the storages of the
    launch; with `values`, those of small integer tensors are kept."""
    if type(value) is bool:
        return PlainArgument("bool", value)
    if isinstance(value, int):
        return PlainArgument("int", int(value))
    if isinstance(value, float):
        return PlainArgument("float", repr(float(value)))
    if value is None:
        return PlainArgument("none", None)
    if isinstance(value, str):
        return PlainArgument("str", str(value))
    if hasattr(value, "block_shape") and hasattr(value, "base"):
        return DescriptorArgument(
            _tensor(value.base, storages, False),
            *(tuple(map(int, each)) for each in (value.shape, value.strides, value.block_shape)),
        )
    if hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "stride"):
        return _tensor(value, storages, values)
    if isinstance(value, (tuple, list)):
        return TupleArgument(tuple(describe(each, storages, values) for each in value))
    return _describe_other(value, storages)


def _describe_other(value: Any, storages: dict[Any, int]) -> PlainArgument | RecordedArgument:
    """Return a dtype, a JIT function or a constexpr by its name or value; of anything else its
    type's name."""
    kind = type(value).__name__
    if kind == "constexpr":
        return describe(value.value, storages, False)
    if kind == "dtype":
        return PlainArgument("dtype", str(getattr(value, "name", value)))
    if hasattr(value, "arg_names") and hasattr(value, "fn"):
        inner = value.fn
        return PlainArgument("function", f"{inner.__module__}.{inner.__qualname__}")
    if hasattr(value, "item") and not hasattr(value, "stride"):  # a number of NumPy
        return describe(value.item(), storages, False)
    return PlainArgument("other", kind)


def _tensor(x: Any, storages: dict[Any, int], values: bool) -> TensorArgument:
    x = getattr(x, "base", x) if type(x).__name__ == "TensorWrapper" else x
    number = storages.setdefault(_storage(x), len(storages))
    dtype, address = str(x.dtype).removeprefix("torch."), _address(x)
    return TensorArgument(
        dtype,
        tuple(map(int, x.shape)),
        tuple(map(int, x.stride())),
        ALIGN if address % ALIGN == 0 else address & -address,
        number,
        _values(x) if values else None,
    )


def _address(x: Any) -> int:
    """Return a tensor's address; 0 where it has none, as on the device `meta`."""
    try:
        return int(x.data_ptr())
    except (RuntimeError, AttributeError, NotImplementedError):
        return 0


def _storage(x: Any) -> Any:
    try:
        return x.untyped_storage()._cdata
    except (RuntimeError, AttributeError, NotImplementedError):
        return id(x)


def _values(x: Any) -> tuple[int, ...] | None:
    """Return the values of a small integer tensor; None of any other, and where they cannot be
    read."""
    import torch

    if x.is_floating_point() or x.is_complex() or x.numel() > MOST_VALUES:
        return None
    if x.device.type == "meta" or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    return tuple(int(each) for each in x.detach().reshape(-1).tolist())
