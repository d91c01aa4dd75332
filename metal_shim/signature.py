"""Generate the Metal source that MLX builds around the body of a kernel. Pure text.

The format is that of `mx.fast.metal_kernel` in MLX 0.32 (mlx/fast.cpp and
mlx/backend/metal/custom_kernel.cpp): the header, a template line, the kernel's parameters in the
order inputs, outputs, attributes, then the body. An input of fewer than 8 elements lies in the
address space `constant`, so a helper that takes a `device` pointer does not compile for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from workbench.spec import ITEMSIZE

# Metal's names of the dtypes, as MLX writes them.
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
TYPES: Mapping[str, str] = {
    "fp32": "float",
    "fp16": "float16_t",
    "bf16": "bfloat16_t",
    **{word: f"{word}_t" for word in _INTEGERS},
    "bool": "bool",
}
METAL_DTYPES = {name: word for word, name in TYPES.items()} | {
    "half": "fp16", "bfloat": "bf16", "int": "int32", "uint": "uint32", "short": "int16",
    "ushort": "uint16", "char": "int8", "uchar": "uint8", "long": "int64", "ulong": "uint64",
    "size_t": "uint64", "atomic_uint": "uint32", "atomic_int": "int32", "atomic_float": "fp32",
    "msl_float": "fp32",
}  # fmt: skip
LIBRARY_NAMES = {  # of torch, MLX and numpy, which has no bfloat16
    word: word.replace("bf", "bfloat").replace("fp", "float") for word in TYPES
}
SIZES: Mapping[str, int] = {**ITEMSIZE, "uint16": 2, "uint32": 4, "uint64": 8}  # of an element
CONSTANT_BELOW = 8  # elements: smaller inputs lie in the address space `constant`

# MLX adds an attribute to the parameters where its name occurs in the body: each with its value in
# the emulator, of an axis or alone.
POSITIONS: Mapping[str, str] = {
    "dispatch_threads_per_threadgroup": "msl_dispatch.group[{0}]",
    "grid_origin": "0 * {0}",
    "grid_size": "msl_dispatch.grid[{0}]",
    "thread_position_in_grid": "msl_thread->group[{0}] * msl_dispatch.group[{0}]"
    " + msl_thread->tid[{0}]",
    "thread_position_in_threadgroup": "msl_thread->tid[{0}]",
    "threadgroup_position_in_grid": "msl_thread->group[{0}]",
    "threadgroups_per_grid": "msl_dispatch.groups[{0}]",
    "threads_per_grid": "msl_dispatch.grid[{0}]",
    "threads_per_threadgroup": "msl_dispatch.current[{0}]",
}
NUMBERS: Mapping[str, str] = {
    "dispatch_quadgroups_per_threadgroup": "(msl_dispatch.threads + 3) / 4",
    "dispatch_simdgroups_per_threadgroup": "msl_dispatch.simdgroups",
    "quadgroup_index_in_threadgroup": "msl_thread->index / 4",
    "quadgroups_per_threadgroup": "(msl_dispatch.threads + 3) / 4",
    "simdgroup_index_in_threadgroup": "msl_thread->simdgroup",
    "simdgroups_per_threadgroup": "msl_dispatch.simdgroups",
    "thread_execution_width": "32",
    "thread_index_in_quadgroup": "msl_thread->index % 4",
    "thread_index_in_simdgroup": "msl_thread->lane",
    "thread_index_in_threadgroup": "msl_thread->index",
    "threads_per_simdgroup": "32",
}
ATTRIBUTES = {n: "uint3" if n in POSITIONS else "uint" for n in sorted({*POSITIONS, *NUMBERS})}

TemplateValue = bool | int | str  # a str is a dtype of TYPES


@dataclass(frozen=True)
class Parameter:
    """One buffer of the generated function: `const device float*` and `x`. `array` names the input
    or output, and `part` is "shape", "strides" or "ndim" where the buffer describes it. Of a whole
    kernel `part` may be an attribute, "threadgroup" (memory of so many bytes) or "absent", and then
    there is no array; `fields` are values of a structure's fields."""

    declaration: str
    name: str
    array: str
    part: str = ""
    bytes: int = 0
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class MetalSource:
    """A kernel as MLX takes it: names of its arrays, the body in MSL, and helpers before it. For a
    whole kernel (see `whole`) the body is what it reaches of its text, `whole` its parameters,
    `function` its name with the template's arguments, and `files` the names and texts it is of."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: str
    header: str = ""
    whole: tuple[Parameter, ...] = ()
    function: str = ""
    files: tuple[tuple[str, str], ...] = ()
    atomic_outputs: bool = False  # `device atomic<float>*` in place of `device float*`


@dataclass(frozen=True)
class ArrayType:
    """Shape and dtype (`fp32`) of an input or output. The strides of an array that is not dense,
    in elements, come with all elements from its first to its last as contents."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the dense array."""
        return self.size * SIZES[self.dtype]


@dataclass(frozen=True)
class MetalCall:
    """A body with the arrays and template values of one launch: what the text depends on."""

    source: MetalSource
    inputs: tuple[ArrayType, ...]
    outputs: tuple[ArrayType, ...]
    template: Mapping[str, TemplateValue]

    @property
    def function(self) -> str:
        """Name of the generated function. It holds the template values and the arrays' types, with
        `c` for inputs in the address space `constant` and `s` for scalars."""
        values = "".join(f"_{value}" for value in template_values(self.template))
        kinds = [TYPES[array.dtype] + _suffix(array) for array in self.inputs]
        kinds += [TYPES[array.dtype] for array in self.outputs]
        name = f"custom_kernel_{self.source.name}" + (f"_{values}" if values else "")
        return "_".join([name, *kinds])


def parameters(call: MetalCall) -> list[Parameter]:
    """Return the buffers of the generated function in their order."""
    source, result = call.source, list[Parameter]()
    if source.whole:
        return [p for p in source.whole if p.array]
    for name, array in zip(source.inputs, call.inputs, strict=True):
        space = "constant" if array.size < CONSTANT_BELOW else "device"
        mark = "*" if array.shape else "&"
        result.append(Parameter(f"const {space} {TYPES[array.dtype]}{mark}", name, name))
        if array.shape:
            result += _descriptions(source, name)
    for name, array in zip(source.outputs, call.outputs, strict=True):
        kind = TYPES[array.dtype]
        kind = f"atomic<{kind}>" if source.atomic_outputs else kind
        result.append(Parameter(f"device {kind}*", name, name))
    return result


def attributes(source: MetalSource) -> list[Parameter]:
    """Return the attributes that the body uses, in alphabetical order."""
    return [Parameter(kind, n, "", n) for n, kind in ATTRIBUTES.items() if n in source.body]


def head(call: MetalCall) -> str:
    """Return the text between the header and the body: template line and parameters."""
    listed = [f"  {p.declaration} {p.name} [[buffer({i})]]" for i, p in enumerate(parameters(call))]
    listed += [f"  {p.declaration} {p.name} [[{p.name}]]" for p in attributes(call.source)]
    kinds = {str: "typename", bool: "bool", int: "int"}
    line = ", ".join(f"{kinds[type(value)]} {name}" for name, value in call.template.items())
    before = f"template <{line}>\n" if call.template else ""
    return f"{before}[[kernel]] void {call.function}(\n" + ",\n".join(listed) + ") {\n"


def metal_text(call: MetalCall) -> str:
    """Return the whole Metal source that MLX gives to Apple's compiler, without MLX's own utility
    header before it."""
    text = call.source.header + head(call) + call.source.body + "\n}\n"
    if not call.template:
        return text
    name, values = call.function, ", ".join(template_values(call.template))
    return (
        f'{text}\ntemplate [[host_name("{name}")]] [[kernel]] '
        f"decltype({name}<{values}>) {name}<{values}>;\n"
    )


def template_values(template: Mapping[str, TemplateValue]) -> list[str]:
    """Return the values of a template as MLX writes them: `float`, `256`, `1` for true."""
    return [TYPES[v] if isinstance(v, str) else str(int(v)) for v in template.values()]


def _suffix(array: ArrayType) -> str:
    if not array.shape:
        return "s"
    return "c" if array.size < CONSTANT_BELOW else ""


def _descriptions(source: MetalSource, name: str) -> list[Parameter]:
    parts = {"shape": "int*", "strides": "int64_t*", "ndim": "int&"}
    return [
        Parameter(f"const constant {kind}", f"{name}_{part}", name, part)
        for part, kind in parts.items()
        if f"{name}_{part}" in source.body
    ]
