"""What a launcher does, as plain data: memory, views, launches and outputs of one call.

A process that runs the code under test records plans. They travel as JSON, each field of the type
that is declared here, and `fault_of` holds them to the inputs of the Spec before any is used.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any, Literal

from workbench.spec import WorkbenchError

MOST_BYTES = 1 << 37  # of the memory of one call
MOST_SHARE = 64  # how many times the memory of its inputs, or LEAST_BYTES, a call may take
LEAST_BYTES = 1 << 26
MOST_STEPS = 4096  # launches and fills of one call
MOST_TEXT = 200_000  # characters of a device function
MOST_FUNCTIONS = 256
# Options of a launch, by the types of their values; others are not recorded.
OPTIONS: Mapping[str, tuple[type, ...]] = {
    **{name: (int,) for name in ("num_warps", "num_stages", "num_ctas")},
    **{name: (int, type(None)) for name in ("maxnreg", "waves_per_eu", "matrix_instr_nonkdim")},
    **{name: (bool,) for name in ("launch_pdl", "launch_cooperative_grid", "enable_fp_fusion")},
    "kpack": (int,),
}
ITEMSIZE: Mapping[str, int] = {
    **{"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1},
    **{"float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1},
    **{"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1},
    **{"uint16": 2, "uint32": 4, "uint64": 8},
}  # of torch's dtypes


class NotReplayable(WorkbenchError):
    """A launcher does what no plan holds; the message is one clause."""


@dataclass(frozen=True)
class PlannedView:
    """A tensor in the memory of an input or of an allocation. Bases count the inputs first."""

    base: int
    dtype: str  # torch's name
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    offset: int  # in bytes from the first element of the base


@dataclass(frozen=True)
class PlannedConstant:
    """A number, a truth value, a text or None."""

    value: int | float | bool | str | None


@dataclass(frozen=True)
class PlannedDtype:
    """A dtype of Triton by its name: `float32`."""

    name: str


@dataclass(frozen=True)
class PlannedFunction:
    """A device function that is an argument, by its place."""

    function: int


@dataclass(frozen=True)
class PlannedDescriptor:
    """A tensor descriptor that the host makes."""

    view: PlannedView
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block_shape: tuple[int, ...]
    padding: str


@dataclass(frozen=True)
class PlannedTuple:
    """Several arguments as one."""

    items: tuple[Any, ...]  # arguments


Argument = (
    PlannedView
    | PlannedConstant
    | PlannedDtype
    | PlannedFunction
    | PlannedDescriptor
    | PlannedTuple
)


@dataclass(frozen=True)
class PlannedMemory:
    """Fresh memory of one dtype, filled with one number or with nothing."""

    dtype: str
    count: int  # of elements
    fill: int | float | bool | None = None


@dataclass(frozen=True)
class FillStep:
    """A view that is filled with one number between launches."""

    view: PlannedView
    value: int | float | bool


@dataclass(frozen=True)
class LaunchStep:
    """One launch of a device function."""

    function: int
    grid: tuple[int, ...]
    arguments: dict[str, Argument]
    options: dict[str, int | bool | None]


@dataclass(frozen=True)
class PlannedCall:
    """One call of a launcher at the shapes of its inputs."""

    inputs: tuple[PlannedView, ...]  # the layout of each; its base is its place
    memory: tuple[PlannedMemory, ...]
    steps: tuple[LaunchStep | FillStep, ...]
    outputs: tuple[PlannedView, ...]
    operators: tuple[str, ...] = ()  # those of torch that compute, which no plan holds


@dataclass(frozen=True)
class DeviceName:
    """What a name of a device function's file means: a module or a value of Triton by its path, a
    device function by its place, or a constant."""

    kind: Literal["language", "function", "constant", "constexpr", "dtype"]
    value: int | float | bool | str | tuple[Any, ...] | None


@dataclass(frozen=True)
class DeviceText:
    """A device function: its text, and what the names mean that it takes from its file."""

    name: str
    text: str
    names: dict[str, DeviceName]
    options: dict[str, bool | tuple[int | str, ...]] = field(default_factory=dict)  # of `jit`


@dataclass(frozen=True)
class LaunchPlan:
    """The calls of a config at several sizes, and the device functions that they launch."""

    functions: tuple[DeviceText, ...]
    calls: tuple[PlannedCall, ...]

    @property
    def digest(self) -> str:
        """Return a hash of all of it."""
        return digest(asdict(self))


def digest(plain: Any) -> str:
    """Return the SHA-256 of plain data."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def views_of(argument: Any) -> Iterator[PlannedView]:
    """Yield the views in an argument."""
    if isinstance(argument, PlannedView):
        yield argument
    elif isinstance(argument, PlannedDescriptor):
        yield argument.view
    elif isinstance(argument, PlannedTuple):
        for item in argument.items:
            yield from views_of(item)


def fault_of(plan: LaunchPlan, inputs: Sequence[Sequence[PlannedView]]) -> str | None:
    """Return in one clause why a plan is none for these inputs of each call, or None. What it
    passes names no memory beside its own, and no function beside its own."""
    if len(plan.functions) > MOST_FUNCTIONS or not plan.functions:
        return f"it has {len(plan.functions)} device functions"
    if any(len(f.text) > MOST_TEXT for f in plan.functions):
        return "the text of a device function is too long"
    if len(plan.calls) != len(inputs):
        return f"it has {len(plan.calls)} calls in place of {len(inputs)}"
    faults = (_call_fault(plan, *pair) for pair in zip(plan.calls, inputs, strict=True))
    return next(filter(None, faults), None)


def _call_fault(plan: LaunchPlan, call: PlannedCall, inputs: Sequence[PlannedView]) -> str | None:
    if list(call.inputs) != list(inputs):
        return "its inputs are others"
    if len(call.steps) > MOST_STEPS:
        return f"it has {len(call.steps)} steps"
    bytes_of = [_extent(view) for view in call.inputs]
    for memory in call.memory:
        if memory.dtype not in ITEMSIZE or memory.count < 0:
            return f"it allocates {memory.count} of {memory.dtype[:40]!r}"
        bytes_of.append(memory.count * ITEMSIZE[memory.dtype])
    most = MOST_SHARE * max(LEAST_BYTES, sum(bytes_of[: len(call.inputs)]))
    if sum(bytes_of) > min(MOST_BYTES, most):
        return "it takes too much memory"
    if not call.outputs:
        return "it has no output"
    waits = any("gdc_wait" in function.text for function in plan.functions)
    early = [s for s in call.steps if isinstance(s, LaunchStep) and s.options.get("launch_pdl")]
    if early and not waits:
        return "a launch begins before the one before it ends (launch_pdl), and waits for nothing"
    views = [*call.outputs, *(s.view for s in call.steps if isinstance(s, FillStep))]
    for step in call.steps:
        if isinstance(step, LaunchStep):
            if fault := _launch_fault(step, len(plan.functions)):
                return fault
            views += [v for a in step.arguments.values() for v in views_of(a)]
    return next(filter(None, (_view_fault(view, bytes_of) for view in views)), None)


def _extent(view: PlannedView) -> int:
    """Return the bytes from the first element of a view to its last."""
    if not prod(view.shape):
        return 0
    last = sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True))
    return (last + 1) * ITEMSIZE[view.dtype]


def _view_fault(view: PlannedView, bytes_of: Sequence[int]) -> str | None:
    if view.dtype not in ITEMSIZE or len(view.shape) != len(view.strides):
        return "a view is none"
    if min((*view.shape, *view.strides, view.offset), default=0) < 0:
        return "a view has negative extents"
    if not 0 <= view.base < len(bytes_of):
        return "a view is of no memory"
    if view.offset % ITEMSIZE[view.dtype]:
        return "a view begins within an element"
    if view.offset + _extent(view) > bytes_of[view.base]:
        return "a view reaches beyond its memory"
    return None


def _launch_fault(launch: LaunchStep, functions: int) -> str | None:
    if not 0 <= launch.function < functions:
        return "it launches no function of its own"
    if not (1 <= len(launch.grid) <= 3 and all(0 < n < 1 << 31 for n in launch.grid)):
        return f"its grid is {str(launch.grid)[:60]}"
    for name, value in launch.options.items():
        if name not in OPTIONS or type(value) not in OPTIONS[name]:
            return f"it launches with the option {name[:40]}"
    faults = (_argument_fault(a, functions) for a in launch.arguments.values())
    return next(filter(None, faults), None)


def _argument_fault(argument: Any, functions: int, depth: int = 0) -> str | None:
    if isinstance(argument, PlannedFunction) and not 0 <= argument.function < functions:
        return "an argument is not a function of its own"
    if isinstance(argument, PlannedTuple):
        if depth > 4:
            return "an argument is nested too deep"
        faults = (_argument_fault(item, functions, depth + 1) for item in argument.items)
        return next(filter(None, faults), None)
    return None if isinstance(argument, Argument) else "an argument is not a value of a plan"
