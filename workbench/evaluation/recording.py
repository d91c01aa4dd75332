"""Record the plans of a launcher, in a process that may run the code under test.

The launcher gets tensors without values, and no launch is compiled or run. Nothing here is
trusted: what comes out is a plan, which another process trusted.
"""

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from workbench.catalog.source import load_kernel
from workbench.compile.launches import _active
from workbench.compile.stand_in import AbsentDriver
from workbench.data.errors import first_sentence
from workbench.data.user_code import user_code
from workbench.device.hardware import Device
from workbench.dsl import pretend
from workbench.evaluation.plan import (
    DeviceName,
    DeviceText,
    FillStep,
    LaunchPlan,
    LaunchStep,
    NotReplayable,
    PlannedCall,
    PlannedConstant,
    PlannedDescriptor,
    PlannedDtype,
    PlannedFunction,
    PlannedMemory,
    PlannedTuple,
    PlannedView,
)
from workbench.measurement.candidate import Candidate
from workbench.measurement.observed import HARMLESS
from workbench.measurement.reference import output_tuple

_FILLED = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}
_FULL = {"full": 1, "full_like": 1, "new_full": 2}  # the place of the value
_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_FILLS = {"fill_": 1, "zero_": None}
_PLAIN = (int, float, bool, str, type(None))
_JIT = ("noinline", "debug", "do_not_specialize", "do_not_specialize_on_alignment")


@dataclass(frozen=True)
class CallLayout:
    """The inputs of a call to record, and how many cores its launcher sees; 0: the device's."""

    inputs: tuple[PlannedView, ...]
    cores: int = 0


def record_plan(
    kernel: str, candidate: Candidate, layouts: Sequence[CallLayout], device: Device
) -> LaunchPlan | str:
    """Return the plan of a config for inputs of these layouts, or in a clause why not."""
    known = load_kernel(kernel)
    impl = known.impl(candidate.case.impl, candidate.code)
    config = impl.config(**candidate.case.config)
    recording = _PlanRecorder()
    calls = []
    for layout in layouts:
        limits = replace(device.limits, cores=layout.cores or device.limits.cores)
        try:
            with (
                user_code(f"the launch of {impl.title}"),
                pretend(limits),
                _active(AbsentDriver(device)),
            ):
                calls.append(recording.call(impl, config, layout.inputs))
        except NotReplayable as reason:
            return str(reason)
        except Exception as error:  # the launcher's own, which needs values or a GPU
            return f"the launcher stops on tensors without values ({first_sentence(error)})"
    return LaunchPlan(tuple(recording.texts), tuple(calls))


@dataclass
class _CallMemory:
    """The memory of one call: inputs first, then allocations, by their storage."""

    bases: dict[int, int] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)  # bytes before an input in its storage
    tensors: list[Any] = field(default_factory=list)  # so that no storage gets the place of another
    allocations: list[PlannedMemory] = field(default_factory=list)

    def add(self, x: Any) -> None:
        self.bases[_place(x)] = len(self.bases)
        self.tensors.append(x)

    def view(self, x: Any) -> PlannedView:
        if type(x) is not torch.Tensor or x.layout is not torch.strided:
            raise NotReplayable(f"a tensor is a {type(x).__name__}")
        if (base := self.bases.get(_place(x))) is None:
            raise NotReplayable("it uses a tensor that no call of torch allocated in the launch")
        if x.is_neg() or x.is_conj():
            raise NotReplayable("it uses a tensor that is negated or conjugated later")
        offset = x.storage_offset() * x.element_size()
        layout = tuple(x.shape), tuple(x.stride())
        return PlannedView(base, _dtype(x), *layout, offset)


def _place(x: Any) -> int:
    return int(x.untyped_storage()._cdata)


def _dtype(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


class _PlanRecorder:
    """The device functions of all calls, and the steps of the one that is recorded."""

    def __init__(self) -> None:
        self.texts: list[DeviceText] = []
        self._places: dict[int, int] = {}  # of a function by its identity
        self._held: list[Any] = []
        self._steps: list[LaunchStep | FillStep] = []
        self._memory = _CallMemory()

    def call(self, impl: Any, config: Any, layout: Sequence[PlannedView]) -> PlannedCall:
        """Return the plan of one call."""
        self._steps, self._memory = [], _CallMemory()
        inputs = [
            torch.empty_strided(v.shape, v.strides, dtype=getattr(torch, v.dtype), device="meta")
            for v in layout
        ]
        for x in inputs:
            self._memory.add(x)
        operators = _RecordedOperators(self._memory, self._steps)
        with self._launches(), operators:
            outputs = output_tuple(impl(*inputs, config=config))
        if odd := [x for x in outputs if not isinstance(x, torch.Tensor)]:
            raise NotReplayable(f"the launch returns a {type(odd[0]).__name__}")
        views = tuple(self._memory.view(x) for x in outputs)
        allocated, computing = (
            tuple(self._memory.allocations),
            tuple(dict.fromkeys(operators.computing)),
        )
        return PlannedCall(tuple(layout), allocated, tuple(self._steps), views, computing)

    @contextmanager
    def _launches(self) -> Iterator[None]:
        from triton.runtime.jit import JITFunction

        real = JITFunction.run

        def run(jit: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            self._steps.append(self._launch(jit, args, kwargs, grid))

        JITFunction.run = run
        try:
            yield
        finally:
            JITFunction.run = real

    def _launch(self, jit: Any, args: Any, kwargs: Any, grid: Any) -> LaunchStep:
        if jit.pre_run_hooks:
            raise NotReplayable("a hook runs before its launches")
        given = {n: v for n, v in kwargs.items() if n in jit.arg_names}
        options = {n: v for n, v in kwargs.items() if n not in jit.arg_names}
        options.pop("warmup", None)
        bound = jit.signature.bind(*args, **given)
        bound.apply_defaults()
        named = dict(bound.arguments)
        shape = grid(named) if callable(grid) else grid
        shape = tuple(int(n) for n in (shape if isinstance(shape, (tuple, list)) else (shape,)))
        place = self.function(jit)
        arguments = {n: self._argument(v, n) for n, v in named.items()}
        return LaunchStep(place, shape, arguments, options)

    def _argument(self, value: Any, name: str) -> Any:
        value = getattr(value, "value", value) if _is_constexpr(value) else value
        if type(value) in _PLAIN:
            return PlannedConstant(value)
        if isinstance(value, torch.Tensor):
            return self._memory.view(value)
        if isinstance(value, (tuple, list)):
            return PlannedTuple(tuple(self._argument(item, name) for item in value))
        if isinstance(value, torch.dtype) or type(value).__name__ == "dtype":
            return PlannedDtype(value.name)
        if hasattr(value, "block_shape") and isinstance(value.base, torch.Tensor):
            shapes = (tuple(map(int, getattr(value, n))) for n in ("shape", "strides"))
            block = tuple(map(int, value.block_shape))
            padding = getattr(value, "padding", "zero")
            return PlannedDescriptor(self._memory.view(value.base), *shapes, block, padding)
        if hasattr(value, "arg_names") and hasattr(value, "fn"):
            return PlannedFunction(self.function(value))
        raise NotReplayable(f"the argument {name} is a {type(value).__name__}")

    # Device functions

    def function(self, jit: Any) -> int:
        """Return the place of a device function, with all that it uses."""
        if (place := self._places.get(id(jit))) is not None:
            return place
        if getattr(jit, "is_gluon", lambda: False)():
            raise NotReplayable(f"{jit.__name__} is in Gluon, which Triton's interpreter lacks")
        place = self._places[id(jit)] = len(self.texts)
        self._held.append(jit)
        text, scope = jit.src, jit.get_capture_scope()
        self.texts.append(DeviceText(jit.fn.__name__, text, {}))
        names = {n: self._name(n, scope[n]) for n in _free_names(text) if n in scope}
        options = {n: _option(getattr(jit, n)) for n in _JIT if getattr(jit, n, None)}
        self.texts[place] = DeviceText(jit.fn.__name__, text, names, options)
        return place

    def _name(self, name: str, value: Any) -> DeviceName:
        if _is_constexpr(value):
            if type(value.value).__name__ == "dtype":
                return DeviceName("dtype", value.value.name)
            return DeviceName("constexpr", value.value)
        if isinstance(value, ModuleType):
            return DeviceName("language", value.__name__)
        kind, module = type(value).__name__, str(getattr(value, "__module__", ""))
        if kind == "dtype":
            return DeviceName("dtype", value.name)
        if kind == "ConstexprFunction":
            return DeviceName("language", f"{module}.{value.__name__.strip('_')}_of")
        if module.startswith("triton.") and hasattr(value, "__name__"):
            return DeviceName("language", f"{module}.{value.__name__}")
        if kind == "JITFunction":
            return DeviceName("function", self.function(value))
        if type(value) in (*_PLAIN, tuple):
            return DeviceName("constant", value)
        raise NotReplayable(f"device code names {name}, which is a {kind}")


def _is_constexpr(value: Any) -> bool:
    return type(value).__name__ == "constexpr" and hasattr(value, "value")


def _option(value: Any) -> Any:
    return tuple(value) if isinstance(value, (tuple, list)) else bool(value)


def _free_names(text: str) -> list[str]:
    """Return the names that a function reads and does not set."""
    nodes = list(ast.walk(ast.parse(text).body[0]))
    names = [n for n in nodes if isinstance(n, ast.Name)]
    own = {n.id for n in names if isinstance(n.ctx, ast.Store)}
    own |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    return list(dict.fromkeys(n.id for n in names if n.id not in own))


class _RecordedOperators(TorchDispatchMode):  # type: ignore[misc]  # untyped, as all of torch is here
    """Records allocations and fills, and the names of operators that compute."""

    def __init__(self, memory: _CallMemory, steps: list[Any]) -> None:
        super().__init__()
        self._memory, self._steps = memory, steps
        self.computing: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would import its compiler here, which takes 2 s and more."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        result = func(*args, **(kwargs or {}))
        if name in _FILLS:
            place = _FILLS[name]
            self._fill(args[0], 0 if place is None else args[place])
        elif name in (*_EMPTY, *_FILLED, *_FULL):
            value = _FILLED.get(name)
            self._note_allocation(result, args[_FULL[name]] if name in _FULL else value)
        elif name not in HARMLESS:
            self.computing.append(name)
            for x in output_tuple(result):
                if isinstance(x, torch.Tensor) and _place(x) not in self._memory.bases:
                    self._note_allocation(x, None)
        return result

    def _note_allocation(self, x: Any, value: Any) -> None:
        if x.device.type != "meta":
            raise NotReplayable(f"it allocates on {x.device}, where the inputs are elsewhere")
        count = x.untyped_storage().nbytes() // x.element_size()
        if value is not None and type(value) not in (int, float, bool):
            raise NotReplayable("it fills memory with what is not a number")
        self._memory.add(x)
        self._memory.allocations.append(PlannedMemory(_dtype(x), count, value))

    def _fill(self, x: Any, value: Any) -> None:
        if type(value) not in (int, float, bool):
            raise NotReplayable("it fills memory with what is not a number")
        self._steps.append(FillStep(self._memory.view(x), value))
