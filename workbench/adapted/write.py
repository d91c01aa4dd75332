"""Convert a user's launch to a `Call`, and write it to a folder with a one-file kernel."""

import hashlib
import keyword
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workbench.adapted.autotuned import Arguments
from workbench.adapted.call import Argument, Call, ConfigEntry, Knobs, Layout, word_numbers
from workbench.adapted.grid import Grid
from workbench.adapted.travel import AdaptedError, Place, base, describe, pack
from workbench.catalog import name_hint
from workbench.measurement.inputs import TORCH_NAMES
from workbench.spec import ITEMSIZE, WorkbenchError

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
HOOK = "pre_hook"
ALIGNED = 16  # bytes: what Triton specialises pointers for

FILE = '''"""A function that workbench.adapter took over; its arguments and configs are beside.

What it changes is restored before each launch.
"""

# {name} of {file!r}
from workbench.adapted.kernel import load

SPEC = load(__file__, __name__, "{fingerprint}")
'''


def split_options(kernel: Any, arguments: Arguments) -> tuple[Arguments, dict[str, Any]]:
    """Return the arguments of a launch without the compiler's options among them, and these: a
    launch may name `num_warps` or `enable_fp_fusion` beside the function's own arguments."""
    args, kwargs = arguments
    names = backend_options() - set(getattr(kernel, "arg_names", ()))
    plain = {name: value for name, value in kwargs.items() if name not in names}
    return (args, plain), {n: v for n, v in kwargs.items() if n in names}


def call_of(
    kernel: Any,
    given: Arguments,
    grid: Grid,
    configs: Sequence[Any],
    flops: int,
    fixed: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Call, dict[str, Any]]:
    """Return the call and the memory of its tensors, by name, on the CPU. `fixed` are options of
    the compiler that every config gets. Raises AdaptedError."""
    if not hasattr(kernel, "arg_names"):
        raise AdaptedError(
            f"{kernel!r} is not a @triton.jit function; where its package turns Triton off for "
            "want of a GPU, name it as FILE.py:FUNCTION to workbench tune."
        )
    place, args, kwargs = Place.locate(kernel), *given
    names = list(kernel.arg_names)
    if len(args) > len(names) or (unknown := [k for k in kwargs if k not in names]):
        many = f"{len(args)} arguments" if len(args) > len(names) else ", ".join(unknown)
        raise AdaptedError(f"{base(kernel).__name__} takes {', '.join(names)}; it got {many}.")
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    layouts: dict[str, Layout] = {}
    memory: dict[str, Any] = {}
    known: dict[tuple[Any, ...], str] = {}  # a tensor that is passed twice is stored once
    arguments = [
        _argument(name, name not in kwargs, value, known, layouts, memory)
        for name, value in named.items()
    ]
    if not layouts:
        raise AdaptedError(f"None of the arguments of {base(kernel).__name__} is a tensor.")
    entries, knobs = entries_of(kernel, named, grid, configs, fixed)
    call = Call(base(kernel).__name__, place, tuple(arguments), layouts, entries, knobs, flops)
    return call, memory


def _argument(
    name: str,
    positional: bool,
    value: Any,
    names: dict[tuple[Any, ...], str],
    layouts: dict[str, Layout],
    memory: dict[str, Any],
) -> Argument:
    import torch

    from workbench.dsl import TensorDescriptor

    descriptor = None
    if isinstance(value, TensorDescriptor):
        rest = {f.name: getattr(value, f.name) for f in fields(value) if f.name != "base"}
        descriptor = {k: pack(v, f"{k} of {name}") for k, v in rest.items()}
        value = value.base
    if not isinstance(value, torch.Tensor):
        return Argument(name, positional, pack(value, f"The argument {name}"))
    same = (value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
    if same not in names:
        layouts[name] = layout_of(name, value)
        memory[name] = memory_of(value.detach(), layouts[name])
        names[same] = name
    return Argument(name, positional, None, names[same], descriptor)


def overlaps(arguments: Arguments, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of tensors of a launch that share memory, and are not one tensor."""
    import torch

    args, kwargs = arguments
    spans: dict[tuple[int, int], str] = {}
    for name, value in {**dict(zip(names, args, strict=False)), **kwargs}.items():
        tensor = getattr(value, "base", value)
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            axes = zip(tensor.shape, tensor.stride(), strict=True)
            count = 1 + sum((n - 1) * s for n, s in axes)
            begin = tensor.data_ptr()
            spans.setdefault((begin, begin + count * tensor.element_size()), name)
    ordered = sorted(spans.items())
    return [(a, b) for ((_, end), a), ((begin, _), b) in pairwise(ordered) if begin < end]


def layout_of(name: str, x: Any) -> Layout:
    """Return the layout of a torch tensor. Raises AdaptedError where it cannot be adapted."""
    import torch

    dtype = dtype_name(x.dtype)
    if dtype is None:
        raise AdaptedError(f"{name} is of {x.dtype}; supported are {', '.join(ITEMSIZE)}.")
    if x.device.type == "meta" or not x.numel() or x.layout is not torch.strided:
        raise AdaptedError(f"{name} holds no values in memory; give a dense tensor with elements.")
    lead = x.data_ptr() % ALIGNED // x.element_size()
    plain = x.is_contiguous() and lead == 0
    return Layout(tuple(x.shape), tuple(x.stride()), dtype, lead, plain)


def memory_of(x: Any, layout: Layout) -> Any:
    """Return a copy on the CPU of the memory that a tensor lies in."""
    import torch

    if layout.plain:
        return x.to("cpu", copy=True).contiguous()
    (count,) = layout.extents
    whole = torch.zeros(count, dtype=x.dtype)
    span = x.as_strided((count - layout.lead,), (1,), x.storage_offset())
    whole[layout.lead :] = span.cpu()
    return whole


def dtype_name(dtype: Any) -> str | None:
    """Return the workbench's name of a torch dtype; None if it has none."""
    torch_name = str(dtype).removeprefix("torch.")
    ours = next((k for k, v in TORCH_NAMES.items() if v == torch_name), torch_name)
    return ours if ours in ITEMSIZE else None


def entries_of(
    kernel: Any,
    named: Mapping[str, Any],
    grid: Grid,
    configs: Sequence[Any],
    fixed: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[tuple[ConfigEntry, ...], tuple[Knobs, ...]]:
    """Return the configs as numbers, each with its grid, and their knobs. Raises AdaptedError where
    a config is not supported."""
    taken = {*kernel.arg_names, *backend_options()}
    for config in configs:
        if odd := sorted(set(config.kwargs) - taken):
            of = f"argument of {base(kernel).__name__} for the knob"
            raise AdaptedError(name_hint(of, odd[0], kernel.arg_names))
        own = config.all_kwargs()
        twice = {n for n in fixed if n in own and own[n] != fixed[n]}
        if clash := sorted(set(config.kwargs) & set(named) | twice):
            raise AdaptedError(f"{', '.join(clash)} is given both as argument and by a config.")
        if config.ir_override is not None:
            raise AdaptedError("A config has an ir_override, whose file the workbench ignores.")
    numbers = numbers_of(configs)
    if odd := [n for n in numbers[0] if not n.isidentifier() or keyword.iskeyword(n)]:
        raise AdaptedError(f"{odd[0]} of a config is not a name that an argument can have.")
    created: dict[tuple[int, ...], ConfigEntry] = {}
    for config, at in zip(configs, numbers, strict=True):
        if tuple(at.values()) not in created:
            all_kwargs = {**fixed, **config.all_kwargs()}
            kwargs = {k: pack(v, f"{k} of a config") for k, v in all_kwargs.items()}
            hook = Place.find_hook(config.pre_hook, kernel) if config.pre_hook is not None else None
            shape = grid_of(kernel, named, grid, config)
            created[tuple(at.values())] = ConfigEntry(word_numbers(at, kwargs), kwargs, shape, hook)
    knobs = tuple(Knobs(n, tuple(sorted({at[n] for at in numbers}))) for n in numbers[0])
    return tuple(created.values()), knobs


def backend_options() -> set[str]:
    """Return the options that a config may name beside arguments, of all backends of Triton:
    `waves_per_eu` and the like."""
    import triton.backends.amd.compiler as amd
    import triton.backends.nvidia.compiler as nvidia

    return {f.name for cls in (amd.HIPOptions, nvidia.CUDAOptions) for f in fields(cls)}


def numbers_of(configs: Sequence[Any]) -> list[dict[str, int]]:
    """Return each `triton.Config` as integers by name; options that are equal in all are left out,
    except warps and stages. Configs with different hooks have a number for the hook, too."""
    names = list(dict.fromkeys(n for c in configs for n in c.kwargs))
    columns = {n: number_values([c.kwargs.get(n, _NoValue) for c in configs]) for n in names}
    for option in OPTIONS:
        values = [getattr(config, option) for config in configs]
        if option in OPTIONS[:2] or len(set(values)) > 1:
            columns[option] = [0 if v is None else v for v in values]
    hooks = number_values([config.pre_hook for config in configs])
    if len(set(hooks)) > 1:
        columns[HOOK] = hooks
    return [{n: column[i] for n, column in columns.items()} for i in range(len(configs))]


class _NoValue:
    """Stands for a value that one config names and another does not."""


def number_values(column: Sequence[Any]) -> list[int]:
    """Return integers unchanged; of anything else, its index among the distinct values."""
    if all(type(v) is int for v in column) or all(type(v) is bool for v in column):
        return [int(v) for v in column]
    seen: dict[tuple[str, str], int] = {}
    return [seen.setdefault((type(v).__name__, repr(v)), len(seen)) for v in column]


def grid_of(kernel: Any, named: Mapping[str, Any], grid: Grid, config: Any) -> tuple[int, ...]:
    """Return the grid of a config, as a launch computes it. Raises AdaptedError if that fails."""
    defaults = {
        name: p.default for name, p in _parameters(kernel).items() if p.default is not p.empty
    }
    meta = {**defaults, **named, **config.all_kwargs()}
    try:
        for values in _heuristics(kernel):
            meta |= {name: value(meta) for name, value in values.items()}
        result = grid(meta) if callable(grid) else grid
        shape = tuple(int(n) for n in result)
    except WorkbenchError:  # it says itself what is wrong with --grid
        raise
    except Exception as error:
        raise AdaptedError(
            f"The grid fails for {config} ({type(error).__name__}: {error}); it must take a dict "
            "of all arguments and give one to three numbers."
        ) from error
    if not 1 <= len(shape) <= 3 or math.prod(shape) < 1 or min(shape) < 1:
        odd = f"The grid for {config} is {shape}; it must be one to three numbers > 0."
        raise AdaptedError(odd)
    return shape


def _parameters(kernel: Any) -> Mapping[str, Any]:
    import inspect

    return inspect.signature(base(kernel)).parameters


def _heuristics(kernel: Any) -> list[Mapping[str, Any]]:
    """Return the `heuristics` around a function, the outermost first."""
    results = []
    while kernel is not None:
        if isinstance(values := getattr(kernel, "values", None), Mapping):
            results.append(values)
        kernel = getattr(kernel, "fn", None)
    return results


def fingerprint(
    call: Call, kernel: Any, rules: Sequence[Any], memory: Mapping[str, Any], target: str
) -> str:
    """Return the hash of what decides the outcome of one config: code, arguments, the rules for
    grid and expected outputs. Of the tensors it includes the layout and the values of integers that
    are read, which may be indices. Of the list of configs it includes only what their numbers stand
    for, so that a longer list reuses earlier outcomes."""
    digest = hashlib.sha256()
    digest.update(
        repr(
            (
                call.name,
                call.place.file,
                call.arguments,
                sorted(call.tensors.items()),
                call.outputs,
                call.partial,
                sorted(call.initial.items()),
                call.flops,
                call.dtype,
                sorted(call.tolerance.items()),
                meanings(call.entries),
                target,
                describe(kernel),
                [describe(rule) for rule in rules],
            )
        ).encode()
    )
    for name in call.inputs:
        if not memory[name].is_floating_point():
            digest.update(memory[name].numpy().tobytes())
    return digest.hexdigest()[:16]


def meanings(entries: Sequence[ConfigEntry]) -> list[tuple[str, str]]:
    """Return what the numbers of configs stand for, by name: `int` or `bool` where all are these
    themselves, else the value of each number. In another list, 0 may stand for another value."""
    names = {name for e in entries for name in (*e.values, *e.kwargs, HOOK)}
    return [(name, _meaning(name, entries)) for name in sorted(names)]


def _meaning(name: str, entries: Sequence[ConfigEntry]) -> str:
    column = {repr((e.values.get(name), _value_of(name, e))) for e in entries}
    kinds = {type(_value_of(name, e)) for e in entries}
    if kinds in ({int}, {bool}) and all(name in e.values for e in entries):
        return kinds.pop().__name__
    return ", ".join(sorted(column))


def _value_of(name: str, entry: ConfigEntry) -> Any:
    hook = entry.pre_hook
    if name == HOOK:
        return hook and (hook.file, hook.name, hook.config)
    return entry.kwargs.get(name, "not named")


def folder_name(call: Call, mark: str) -> str:
    """Return the name of the folder for this call. Other configs get another folder, with the same
    file."""
    text = repr([(dict(e.values), dict(e.kwargs), e.grid) for e in call.entries])
    return f"{call.name}-{hashlib.sha256((mark + text).encode()).hexdigest()[:10]}"


def write_file(call: Call, folder: Path, mark: str) -> Path:
    """Write the one-file kernel of a call. Returns its path."""
    path = folder / f"{call.name}.py"
    text = FILE.format(name=call.name, file=call.place.file, fingerprint=mark)
    path.write_text(text, encoding="utf-8")
    return path
