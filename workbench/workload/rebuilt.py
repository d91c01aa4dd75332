"""Make a launch again from its signature: the function, arguments with values, configs, grid."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.adapted.autotuned import autotuner_of, configs_of
from workbench.adapted.travel import AdaptedError, Place
from workbench.workload.errors import WorkloadError
from workbench.workload.grids import neighbours
from workbench.workload.identity import text_hash
from workbench.workload.signature import (
    ConfigGrids,
    DescriptorArgument,
    KernelFunction,
    LaunchSignature,
    PlainArgument,
    RecordedArgument,
    TensorArgument,
    TupleArgument,
    plain_value,
    tensors_of,
)

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
MOST_WARPS = 32  # 1024 threads
MOST_STAGES = 8
SEED = 20
# Of random floats. Recurrences over a long sequence, and inverses of triangular blocks, overflow on
# values of 1, and then a result says nothing about a config.
SCALE = 1 / 16
PERIOD = 2**20 + 7  # random floats that are drawn; a prime, so that no layout's strides hit it


class NotRebuilt(WorkloadError):
    """A launch cannot be made again from its signature; one clause."""


@dataclass(frozen=True)
class RecordedGrid:
    """The grid of a launch by its config, callable as Triton calls one."""

    knobs: tuple[str, ...]
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

    def __call__(self, meta: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the grid of a config among all arguments by name. Raises KeyError."""
        return dict(self.shapes)[tuple(meta[name] for name in self.knobs)]


@dataclass(frozen=True)
class RebuiltLaunch:
    """A launch that can be repeated with several configs. The first config is the one in use."""

    kernel: Any
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    configs: tuple[Any, ...]
    grid: RecordedGrid
    notes: tuple[str, ...] = ()


def rebuild_launch(signature: LaunchSignature, trust: bool = False) -> RebuiltLaunch:
    """Return the launch of a signature. Raises NotRebuilt, with the reason as a clause."""
    if signature.origin == "inductor":
        raise NotRebuilt("torch.compile generates and tunes it; no table can pin it")
    kernel = function_here(signature.function, trust)
    arguments = _arguments(signature, kernel)
    grid = _grid(signature)
    own, notes = _own_configs(signature, kernel, arguments)
    used = _used_config(signature, kernel, own)
    configs = [used, *(c for c in own if c.all_kwargs() != used.all_kwargs())]
    gridded = [c for c in configs if has_grid(grid, c)]
    if not gridded or gridded[0] is not used:
        raise NotRebuilt("the grid of the config in use was not recorded; record it again")
    if len(gridded) < len(configs):
        notes.append(f"{len(configs) - len(gridded)} configs have a grid that was not recorded")
    return RebuiltLaunch(kernel, arguments, tuple(gridded), grid, tuple(notes))


# The function


def function_here(function: KernelFunction, trust: bool) -> Any:
    """Return a recorded function, importing its file. Without `trust` the file must be where it was
    recorded and hold, at its top level, a function of this name with these arguments; and after the
    import its text must be the recorded one. Raises NotRebuilt."""
    file = Path(function.file)
    if not trust and (fault := _fault(file, function)):
        raise NotRebuilt(f"{fault}; --trust imports module {function.module} as it is here")
    module = function.module
    try:
        if file.is_file():
            kernel = Place(str(file), module, function.name).find()
        else:
            kernel = _import_name(module, function.name)
        changed = text_hash(kernel) != function.text_hash
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise NotRebuilt(f"its file cannot be imported ({lines[-1]})") from None
    if not hasattr(kernel, "arg_names"):
        raise NotRebuilt(f"{function.name} of {module} is not a Triton function")
    if changed and not trust:
        raise NotRebuilt("its text is another than the recorded one; record again, or --trust it")
    return kernel


def _import_name(module: str, name: str) -> Any:
    from functools import reduce
    from importlib import import_module

    return reduce(getattr, name.split("."), import_module(module))


def _fault(file: Path, function: KernelFunction) -> str | None:
    """Return why a file is not the recorded one, without importing it."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return f"{file} cannot be read here"
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    for node in nodes:
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        if node.name == function.name and tuple(names) == function.arguments:
            return None
    return f"{file} holds no function {function.name} with the recorded arguments"


# Arguments


def _arguments(signature: LaunchSignature, kernel: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a launch: positional ones until the first that a config sets."""
    computed = {n for values in _heuristics(kernel) for n in values}
    needed = [
        name
        for name, argument in signature.arguments.items()
        if any(tensor.needs_values for tensor in tensors_of(argument))
    ]
    if needed:
        raise NotRebuilt(
            f"{', '.join(needed[:3])} may hold indices or offsets whose values were not kept; "
            "record with --values"
        )
    memory: dict[tuple[Any, ...], Any] = {}
    named = {
        name: _value(argument, memory, name)
        for name, argument in signature.arguments.items()
        if name not in signature.config and name not in computed
    }
    leading = []
    for name in kernel.arg_names:
        if name not in named:
            break
        leading.append(named.pop(name))
    return tuple(leading), named


def _heuristics(kernel: Any) -> Iterator[Mapping[str, Any]]:
    while kernel is not None:
        if isinstance(values := getattr(kernel, "values", None), Mapping):
            yield values
        kernel = getattr(kernel, "fn", None)


def _value(argument: RecordedArgument, memory: dict[tuple[Any, ...], Any], name: str) -> Any:
    if isinstance(argument, TensorArgument):
        return _tensor(argument, memory)
    if isinstance(argument, TupleArgument):
        return tuple(_value(item, memory, name) for item in argument.items)
    if isinstance(argument, DescriptorArgument):
        from workbench.dsl import TensorDescriptor

        base = _tensor(argument.base, memory)
        shapes = (list(n) for n in (argument.shape, argument.stride, argument.block_shape))
        return TensorDescriptor(base, *shapes)
    return _plain(argument, name)


def _plain(argument: PlainArgument, name: str) -> Any:
    if argument.kind in ("function", "other"):
        raise NotRebuilt(f"{name} is a {argument.value}, which a signature does not hold")
    if argument.kind == "dtype":
        import triton.language as tl

        return tl.dtype(str(argument.value))
    return plain_value(argument)


def _tensor(argument: TensorArgument, memory: dict[tuple[Any, ...], Any]) -> Any:
    """Return a tensor with this layout and random values; dense tensors of one layout in one
    storage are the same tensor, as in a launch that works in place."""
    import torch

    of, dense = (argument.shape, argument.stride, argument.dtype), _dense(argument)
    place = (argument.storage, *of) if dense else (len(memory), argument.storage, *of)
    if place in memory:
        return memory[place]
    dtype = getattr(torch, argument.dtype, None)
    if not isinstance(dtype, torch.dtype) or 0 in argument.shape:
        raise NotRebuilt(f"a tensor of {argument.dtype} {list(argument.shape)} cannot be made")
    spans = (s * (n - 1) for n, s in zip(argument.shape, argument.stride, strict=True))
    lead = argument.align // dtype.itemsize if argument.align < 16 else 0
    whole = _random_values(1 + sum(spans) + lead, dtype, argument.values, SEED + len(memory))
    memory[place] = whole.as_strided(argument.shape, argument.stride, lead)
    if argument.values is not None:
        values = torch.tensor(argument.values).to(dtype).reshape(argument.shape)
        memory[place].copy_(values)
    return memory[place]


def _random_values(count: int, dtype: Any, values: Sequence[int] | None, seed: int) -> Any:
    """Return this many random floats, the same ones again after PERIOD of them, as a draw of a
    gigabyte takes seconds; zeros of other dtypes."""
    import torch

    if values is not None or not dtype.is_floating_point:
        return torch.zeros(count, dtype=dtype)
    dice = torch.Generator().manual_seed(seed)
    drawn = (SCALE * torch.randn(min(count, PERIOD), generator=dice)).to(dtype)
    return drawn.repeat(-(-count // len(drawn)))[:count]


def _dense(argument: TensorArgument) -> bool:
    expected = 1
    for extent, stride in sorted(zip(argument.shape, argument.stride, strict=True), key=_stride):
        if extent > 1 and stride != expected:
            return False
        expected *= extent
    return True


def _stride(pair: tuple[int, int]) -> tuple[int, int]:
    return pair[1], pair[0]


# Grid and configs


def _grid(signature: LaunchSignature) -> RecordedGrid:
    """Return the grid by config. Of a plain function, or where an autotuner's grids were not
    recorded, that of the launch for the tiles in use."""
    grids = signature.grids
    if grids is None:
        knobs = {n: v.value for n, v in signature.config.items() if n not in OPTIONS}
        ints = {n: v for n, v in knobs.items() if type(v) is int}
        grids = ConfigGrids(tuple(ints), {tuple(ints.values()): signature.grid})
    return RecordedGrid(grids.knobs, tuple(sorted(grids.shapes.items())))


def has_grid(grid: RecordedGrid, config: Any) -> bool:
    """Return whether the grid of a config was recorded."""
    knobs = config.all_kwargs()
    return tuple(knobs.get(name) for name in grid.knobs) in dict(grid.shapes)


def _own_configs(
    signature: LaunchSignature, kernel: Any, arguments: Any
) -> tuple[list[Any], list[str]]:
    tuner = autotuner_of(kernel)
    if tuner is None or signature.origin != "autotune":
        return [], []
    try:
        return configs_of(tuner, arguments)
    except AdaptedError as error:
        raise NotRebuilt(str(error).rstrip(".")) from None


def _used_config(signature: LaunchSignature, kernel: Any, own: Sequence[Any]) -> Any:
    """Return the config that the program used: the autotuner's own object, or a new one."""
    from workbench.dsl import triton

    computed = {n for values in _heuristics(kernel) for n in values}
    held = {n: plain_value(v) for n, v in signature.config.items() if n not in computed}
    for config in own:
        knobs = config.all_kwargs()
        if {**knobs, **held} == knobs:
            return config
    options = {n: held.pop(n) for n in OPTIONS if n in held}
    return triton.Config(held, **{n: v for n, v in options.items() if v is not None})


def limit_configs(launch: RebuiltLaunch, selection: Sequence[Mapping[str, Any]]) -> RebuiltLaunch:
    """Return the launch with the config in use and the wanted ones alone. Raises NotRebuilt where
    the grid of one is not known."""
    from workbench.dsl import triton

    used, configs = launch.configs[0], [launch.configs[0]]
    for values in selection:
        same = [c for c in launch.configs if {**c.all_kwargs(), **values} == c.all_kwargs()]
        if not same:  # of a widened search
            knobs = dict(values)
            options = {n: knobs.pop(n) for n in OPTIONS if n in knobs}
            named = {n: v for n, v in options.items() if v is not None}
            same = [triton.Config(knobs, pre_hook=used.pre_hook, **named)]
        if not has_grid(launch.grid, same[0]):
            raise NotRebuilt("the grid of a config is not known")
        if same[0] not in configs:
            configs.append(same[0])
    return replace(launch, configs=tuple(configs))


def widen_search(launch: RebuiltLaunch, winner: Any) -> RebuiltLaunch | None:
    """Return the launch with the winner's neighbours by one step in each knob whose value lies at
    an end of the configs; None where there is none."""
    from workbench.dsl import triton

    every = [c.all_kwargs() for c in launch.configs]
    new = []
    for name, value in winner.all_kwargs().items():
        column = [c.get(name) for c in every if type(c.get(name)) is int]
        if type(value) is not int or value not in (min(column), max(column)):
            continue
        for step in _steps(name, value):
            knobs = {**winner.all_kwargs(), name: step}
            if knobs not in every and not min(column) <= step <= max(column):
                options = {n: knobs.pop(n) for n in OPTIONS if n in knobs}
                config = triton.Config(knobs, pre_hook=winner.pre_hook, **options)
                if has_grid(launch.grid, config):
                    new.append(config)
    if not new:
        return None
    return replace(launch, configs=(*launch.configs, *new))


def _steps(name: str, value: int) -> tuple[int, ...]:
    if name == "num_warps":
        return tuple(v for v in (value // 2, value * 2) if 1 <= v <= MOST_WARPS)
    if name == "num_stages":
        return tuple(v for v in (value - 1, value + 1) if 1 <= v <= MOST_STAGES)
    return tuple(v for v in neighbours(name, value) if v != value)
