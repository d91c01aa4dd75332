"""Check what a kernel's file declares, before anything is planned: names, tensors, sizes, FLOPs,
Impls and their knobs. Each function returns the first contradiction as part of a sentence, or
None."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from itertools import chain
from typing import Any

from workbench.data.user_code import user_code
from workbench.spec import (
    AUTO,
    ITEMSIZE,
    Extent,
    Impl,
    Sizes,
    Spec,
    Tensor,
    Tolerance,
    is_number,
    short,
    sizes_text,
)

WHOLE = ("int64", "int32", "int16", "int8", "uint8", "bool")  # compared exactly
LONGEST = 64  # characters of a name: names are parts of paths, tables and keys
MOST_BYTES = 1 << 42  # of one problem; no device holds more
MOST_FLOPS = 1 << 100  # of one problem: 40,000 years at 1 EFLOP/s

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LIBRARY = re.compile(r"[A-Za-z_][A-Za-z0-9_.+-]*")  # `torch.compile`
_PART = r"(\d+|[A-Za-z_]\w*)"
_AXIS = re.compile(rf"{_PART}([*/]{_PART})*", re.ASCII)
_TAKEN = ("config", "limits", "itemsize")  # other arguments of `refuse`, `resolve` and `work`
_WORDS = "tile, threads, stages or among"


def misfit(spec: Spec) -> str | None:
    """Return what contradicts itself in a Spec or its Impls, or None."""
    return next(chain(_spec_faults(spec), _size_faults(spec), _impl_faults(spec)), None)


def flops_fault(spec: Spec, sizes: Sizes) -> str | None:
    """Return why `flops` of a Spec gives no number of operations at these sizes, or None."""
    named, at = f"`flops` of {spec.name}", f" at {sizes_text(sizes)}" if sizes else ""
    try:
        with user_code(named):
            count = spec.flops(**sizes)
    except TypeError as error:
        axes = ", ".join(spec.axes) or "nothing"
        return f"{named} fails{at} (TypeError: {error}); it must take the axes {axes} as keywords"
    except Exception as error:
        return f"{named} fails{at} ({type(error).__name__}: {error}); correct it"
    if type(count) is not int or count < 0:
        needs = "a whole number, 0 or more (// divides)"
        return f"{named} gives {short(count)}{at}; it must give {needs}"
    if count > MOST_FLOPS:
        return f"{named} gives more than 2^100{at}; correct it"
    return None


def size_fault(spec: Spec, sizes: Sizes) -> str | None:
    """Return why these sizes are not a problem of a Spec, as the end of a sentence about them."""
    for axis, extent in sizes.items():
        if type(extent) is not int or extent < 1:
            return f"give {axis} = {short(extent)}; an extent is a whole number above 0"
    if missing := [a for a in spec.axes if a not in sizes]:
        return f"lack {', '.join(missing)}"
    if unknown := [a for a in sizes if a not in spec.axes]:
        return f"name {unknown[0]}, which no tensor has"
    try:
        for tensor in (*spec.inputs.values(), *spec.outputs.values()):
            tensor.shape(sizes)
            Tensor(tensor.part or tensor.axes).shape(sizes)
    except ValueError as error:
        return f"do not fit: {error}"
    if reason := spec.refuse(sizes):
        return f"do not fit: {reason}"
    if 3 * spec.held_bytes(sizes, "fp32") > MOST_BYTES:
        return "need terabytes of memory"
    return None


# The Spec


def _spec_faults(spec: Spec) -> Iterator[str]:
    yield from _name_fault("the Spec", spec.name, _NAME)
    for part in ("inputs", "outputs"):
        yield from _tensor_faults(part, getattr(spec, part))
    for part in ("reference", "flops"):
        if not callable(getattr(spec, part)):
            yield f"`{part}` is {short(getattr(spec, part))}, not a function"
    yield from _part_faults(spec)
    yield from _tolerance_faults(spec)
    yield from _extent_faults(spec)


def _part_faults(spec: Spec) -> Iterator[str]:
    for name, tensor in (*spec.inputs.items(), *spec.outputs.items()):
        named = re.findall(r"[A-Za-z_]\w*", tensor.part)
        if unknown := [axis for axis in named if axis not in spec.axes]:
            yield f"`part` of {name} names {unknown[0]}, which no tensor has"


def _name_fault(whose: str, name: object, allowed: re.Pattern[str]) -> Iterator[str]:
    if isinstance(name, str) and len(name) <= LONGEST and allowed.fullmatch(name):
        return
    more = ", and of a library's version also . + and -" if allowed is _LIBRARY else ""
    yield (
        f"{whose} is called {short(name)}; a name is of at most {LONGEST} letters, digits and _, "
        f"and begins with no digit{more}"
    )


def _tensor_faults(part: str, tensors: object) -> Iterator[str]:
    if not isinstance(tensors, Mapping) or not tensors:
        yield f"`{part}` is {short(tensors)}; name its tensors, as in {{'x': Tensor('M N')}}"
        return
    for name, tensor in tensors.items():
        yield from _name_fault(f"one of the {part}", name, _NAME)
        if not isinstance(tensor, Tensor):
            yield f"{name} is {short(tensor)}, not a Tensor"
        elif not isinstance(tensor.axes, str):
            yield f"{name} has the axes {short(tensor.axes)}; axes are text, as in Tensor('M N')"
        else:
            yield from _axis_faults(name, tensor.axes.split())
            if tensor.dtype is not None and tensor.dtype not in list(ITEMSIZE):
                is_axis = isinstance(tensor.dtype, str) and _AXIS.fullmatch(tensor.dtype)
                text = short(f"{tensor.axes} {tensor.dtype}")
                hint = f"; if it is an axis, write Tensor({text})" if is_axis else ""
                yield (
                    f"{name} has the unknown dtype {short(tensor.dtype)}; "
                    f"known are {', '.join(ITEMSIZE)}{hint}"
                )
            if not isinstance(tensor.part, str):
                yield f"`part` of {name} is {short(tensor.part)}; it is axes, as in 'M N'"
            else:
                yield from _axis_faults(name, tensor.part.split())
            if tensor.make is not None and not callable(tensor.make):
                yield f"`make` of {name} is {short(tensor.make)}, not a function"


def _axis_faults(name: str, axes: Iterable[str]) -> Iterator[str]:
    for axis in axes:
        if not _AXIS.fullmatch(axis):
            apart = " ".join(axis.replace(",", " ").split())
            write = f"; write Tensor({short(apart)}), with spaces" if "," in axis else ""
            yield (
                f"{name} has the axis {short(axis)}; an axis is names and numbers joined by * and /"
                f"{write}"
            )
        parts = re.split(r"[*/]", axis)
        if any(part.isdigit() and not int(part) for part in parts):
            yield f"{name} has the axis {short(axis)}; an axis holds no 0"
        if taken := [part for part in parts if part in _TAKEN or len(part) > LONGEST]:
            yield f"{name} has the axis {short(taken[0])}; give it another, short name"


def _tolerance_faults(spec: Spec) -> Iterator[str]:
    given = spec.tolerance
    if not isinstance(given, Mapping) or not given:
        yield f"`tolerance` is {short(given)}; it maps each dtype to a Tolerance"
        return
    for dtype, tolerance in given.items():
        if dtype not in list(ITEMSIZE):
            known = ", ".join(ITEMSIZE)
            yield f"`tolerance` names the unknown dtype {short(dtype)}; known are {known}"
        if not isinstance(tolerance, Tolerance):
            yield f"`tolerance` of {dtype} is {short(tolerance)}, not a Tolerance"
        elif not all(map(is_number, _numbers(tolerance))):
            yield f"`tolerance` of {dtype} is {short(tolerance)}; its numbers are finite, 0 or more"
    for tensor in spec.outputs.values():
        if tensor.dtype is not None and tensor.dtype not in (*WHOLE, *given):
            yield f"an output is always {tensor.dtype}, and tolerance says nothing of it"


def _numbers(tolerance: Tolerance) -> tuple[object, ...]:
    rms = tolerance.rms
    return tolerance.relative, tolerance.rms_share, 0 if rms is None or callable(rms) else rms


def _extent_faults(spec: Spec) -> Iterator[str]:
    if not isinstance(spec.extents, Mapping):
        yield f"`extents` is {short(spec.extents)}; it maps an axis to an Extent"
        return
    for axis, extent in spec.extents.items():
        if axis not in spec.axes:
            yield f"extents names {axis}, which no tensor has"
        fine = isinstance(extent, Extent) and isinstance(extent.choices, tuple)
        if not fine or any(type(n) is not int or n < 1 for n in (extent.multiple, *extent.choices)):
            yield (
                f"extents gives {axis} {short(extent)}; write Extent(multiple=16) or "
                "Extent(choices=(64, 128)), in whole numbers above 0"
            )


def _size_faults(spec: Spec) -> Iterator[str]:
    for part in ("check", "bench"):
        every = getattr(spec, part)
        if isinstance(every, (str, Mapping)) or not hasattr(every, "__iter__"):
            yield f"`{part}` is {short(every)}; it is a list of sizes, as in [{{'N': 127}}]"
            return
        if not every:
            yield f"it names no sizes to {part}: fill `{part}=[...]`"
        for sizes in every:
            if not isinstance(sizes, Mapping):
                yield f"the {part} sizes {short(sizes)} are not a mapping from axis to extent"
                return
            if reason := size_fault(spec, sizes):
                yield f"the {part} sizes {short(dict(sizes))} {reason}"
            if reason := flops_fault(spec, sizes):
                yield reason


# The Impls


def _impl_faults(spec: Spec) -> Iterator[str]:
    seen = set[str]()
    for impl in spec.impls:
        yield from _name_fault("an impl", impl.name, _NAME if _is_own(impl) else _LIBRARY)
        if impl.name in seen:
            yield f"it has two impls called {impl.name}; give one of them another name"
        seen.add(impl.name)
        if impl.backend not in ("triton", "metal", "torch"):
            yield f"{impl.name} has the backend {short(impl.backend)}; it is triton, metal or torch"
        if _is_own(impl) and not hasattr(impl.launch, "__globals__"):
            yield f"{impl.name} launches by {short(impl.launch)}; decorate a function"
        for part in ("resolve", "refuse", "work"):
            if (function := getattr(impl, part)) is not None and not callable(function):
                yield f"`{part}` of {impl.name} is {short(function)}, not a function"
        yield from _config_faults(impl)


def _is_own(impl: Impl) -> bool:
    return impl.backend != "torch"


def _config_faults(impl: Impl) -> Iterator[str]:
    kind = impl.config
    if not isinstance(kind, type) or not is_dataclass(kind):
        yield (
            f"the config of {impl.name} is {short(kind)}, not a dataclass; "
            "write @dataclass(frozen=True) above its class"
        )
        return
    settings = kind.__dataclass_params__  # type: ignore[attr-defined]
    if not settings.frozen or not settings.eq:
        yield f"the config {kind.__name__} is not frozen; write @dataclass(frozen=True) above it"
    if own := [name for name in ("__eq__", "__hash__") if _is_written(getattr(kind, name))]:
        yield (
            f"the config {kind.__name__} has a function {own[0]} of its own; leave it out, as "
            "configs are compared by their fields"
        )
    for one in fields(kind):
        yield from _knob_faults(kind, one)
    try:
        with user_code(f"the config {kind.__name__}"):
            kind()
    except Exception as error:
        yield (
            f"the config {kind.__name__} cannot be made of its defaults "
            f"({type(error).__name__}: {error}); correct it"
        )
    for name, config in impl.defaults.items():
        if not isinstance(config, kind):
            yield f"`defaults` of {impl.name} gives {name} {short(config)}, not a {kind.__name__}"


def _is_written(function: object) -> bool:
    """Return whether a function is in a file, and not one that `dataclass` made or Python has."""
    code = getattr(function, "__code__", None)
    return getattr(code, "co_filename", "<string>") != "<string>"


def _knob_faults(kind: type, one: Field[Any]) -> Iterator[str]:
    named = f"the field {one.name} of {kind.__name__}"
    choices = one.metadata.get("choices")
    if choices is None or "knob" not in one.metadata:
        held = "has no default" if one.default is MISSING else f"is a plain {short(one.default)}"
        yield f"{named} {held}; declare it by {_WORDS}, which names the choices of a sweep"
    elif not isinstance(choices, tuple) or not choices:
        yield f"{named} has no choices; declare it by {_WORDS}"
    elif odd := [c for c in choices if type(c) is not int]:
        yield f"{named} has the choice {short(odd[0])}; choices are whole numbers"
    elif len(set(choices)) < len(choices):
        yield f"{named} names a choice twice: {short(choices)}"
    elif one.default not in (*choices, AUTO):
        yield f"{named} has the default {short(one.default)}; it is not one of its choices"
    elif not one.init:
        yield f"{named} cannot be given to {kind.__name__}(...); leave out init=False"
