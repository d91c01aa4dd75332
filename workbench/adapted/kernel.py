"""Load an adapted kernel as a Spec with one Impl; the generated file calls this."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from workbench.adapted.call import Argument, Call, ConfigEntry, Layout
from workbench.adapted.kept import GivenIntegers, Kept
from workbench.adapted.traced import (
    LaunchFault,
    Memory,
    ProgramPlan,
    ProgramsWait,
    ProgramTrace,
    trace_programs,
    watch_interpreter,
)
from workbench.adapted.travel import AdaptedError, unpack
from workbench.compile.launches import use_machine_driver
from workbench.dsl import INTERPRETED
from workbench.measurement import inputs
from workbench.measurement.candidate import WHOLE
from workbench.spec import (
    ITEMSIZE,
    Impl,
    Knob,
    Limits,
    Sampling,
    Sizes,
    Spec,
    Tensor,
    Tolerance,
    among,
    stages,
    threads,
    values,
)

SAMPLED, SAMPLE_CHECK = "workbench.adapted.sampled", "workbench.adapted.sample_check"
LARGE = 1 << 24  # bytes of all tensors, beyond which the code is asked for those that it accesses
WORDS: Mapping[str, Knob] = {"num_warps": threads, "num_stages": stages}


@dataclass(frozen=True)
class TakenInput(Spec):
    """A Spec whose least bytes leave out reading inputs that may be only written."""

    unread: tuple[str, ...] = ()
    call: Call | None = None
    has_stored_outputs = True

    def compared_outputs(self, outputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return what of the outputs is compared: of partial results their sum."""
        if self.call is None:
            return tuple(outputs)
        return tuple(map(self.call.compared_output, self.call.outputs, outputs))

    @property
    def contiguous(self) -> bool:
        """Return False: outputs have the strides of the tensors that the function was given."""
        return False

    def bytes_read(self, sizes: Sizes, dtype: str) -> int:
        """Return the bytes of the inputs like any Spec, but without those that are not known to be
        read: integers that a launch changes, memory that begins as zeros, and what the code of the
        launch leaves out of its tensors, such as rows of a table that no index names. Counting them
        would make the roofline bound too high."""
        tensors = [self.inputs[n] for n in self.unread]
        spared = (math.prod(t.shape(sizes)) * ITEMSIZE[t.dtype or dtype] for t in tensors)
        return self._accessed_part(super().bytes_read(sizes, dtype) - sum(spared), 0)

    def bytes_written(self, sizes: Sizes, dtype: str) -> int:
        """Return the bytes of the outputs like any Spec, but where the code of the launch writes a
        part of them, such as rows that indices name, the bytes of that part."""
        return self._accessed_part(super().bytes_written(sizes, dtype), 1)

    def _accessed_part(self, whole: int, direction: int) -> int:
        accessed = self.call.moved_bytes if self.call is not None else None
        part = whole if accessed is None else accessed[direction]
        return part if part < WHOLE * whole else whole

    def certain_bytes(self, sizes: Sizes, dtype: str) -> int:
        """Return the least bytes like any Spec, but only those of the outputs where tensors are
        large and the code does not say how much of them a launch reads."""
        if self.call is not None and self.call.total_bytes > LARGE and not self.call.moved_bytes:
            return self.bytes_written(sizes, dtype)
        return self.bytes(sizes, dtype)


def unread(call: Call) -> tuple[str, ...]:
    """Return the inputs that a launch changes and is not known to read."""
    return tuple(
        n
        for n in call.mutates
        if call.initial[n] == "zeros"
        or not inputs.torch_dtype(call.tensors[n].dtype).is_floating_point
    )


@dataclass(frozen=True)
class Listed(Impl):
    """An Impl whose configs are those that the user listed, not all combinations."""

    configs: tuple[Any, ...] = ()
    launcher: Launcher | None = None
    integers: Mapping[str, Any] = field(default_factory=dict)
    store: Kept | None = None

    def load(self) -> None:
        """Import the module of the user's function. Raises AdaptedError."""
        if self.launcher is not None:
            _ = self.launcher.kernel

    def contents(self) -> Mapping[str, Any]:
        """Return the tensors of integers that the user gave, each read when it is asked for."""
        return self.integers

    def examine_code(self, ttgir: str, grid: Sequence[int], given: Any) -> Any:
        """Return what all programs of the launch write, where only some of them will run."""
        if self.launcher is None or self.store is None or not self.launcher.call.sampled:
            return None
        return import_module(SAMPLED).examine_code(ttgir, grid, given, self.store.probes)

    @property
    def sampling(self) -> Sampling | None:
        """The tasks that check some programs of a large launch."""
        if self.launcher is None or not self.launcher.call.sampled:
            return None
        tasks = import_module(SAMPLE_CHECK)
        return Sampling(tasks.launch_sample, tasks.compare_sample)

    @property
    def is_watched(self) -> bool:
        """Return whether a check in the interpreter watches every access of all programs."""
        return self.sampling is None

    def space(self, default: Any, vary: Sequence[Knob] = ()) -> Iterator[Any]:
        """Yield the listed configs that differ from `default` only in the knobs to vary."""
        words = {knob.__name__ for knob in vary}
        fixed = [n for n, word in self.knobs().items() if vary and word not in words]
        for config in self.configs:
            if all(getattr(config, n) == getattr(default, n) for n in fixed):
                yield config


def load(file: str, module: str, fingerprint: str) -> Spec:
    """Return the Spec of an adapted kernel, from the folder of its generated file.

    `fingerprint` is in the file so that another kernel, or other arguments, give another text: an
    outcome's key hashes the text. Raises AdaptedError where the folder is damaged.
    """
    folder = Path(file).resolve().parent
    try:
        call = Call.read(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AdaptedError(
            f"{folder} does not hold a whole adapted kernel ({type(error).__name__}); tune it again"
        ) from error
    return spec_of(call, folder, module)


def spec_of(call: Call, folder: Path, module: str) -> Spec:
    """Return the Spec of a call, with its Impl."""
    store, sizes, names = Kept(folder), sizes_of(call), extent_names(call)
    spec = TakenInput(
        name=call.name,
        inputs={
            n: Tensor(" ".join(kept_axes(n, t, names)), t.dtype, partial(store.input, n))
            for n, t in ((n, call.tensors[n]) for n in call.inputs)
        },
        outputs={
            n: Tensor(" ".join(compared_axes(call, n, names)), call.tensors[n].dtype)
            for n in call.outputs
        },
        reference=store.reference(call),
        flops=lambda **_: call.flops,
        check=[sizes],
        bench=[sizes],
        tolerance={d: Tolerance(*t) for d, t in call.tolerance.items()},
        longest=1 << 63,  # the user's own device code
        unread=unread(call),
        call=call,
    )
    launcher, config = Launcher(call), config_type(call)

    def jit(*tensors: Any, config: Any) -> Any:
        return launcher(*tensors, config=config)

    jit.__module__ = module  # the catalogue finds the Impls of a file by it
    refuse = partial(refusal_of_call, call, sizes)
    listed = tuple(config(**e.values) for e in call.entries)
    spec.impls.append(
        Listed(
            spec,
            "jit",
            jit,
            "triton",
            config,
            None,
            refuse,
            None,
            {},
            call.mutates,
            call.unchecked,
            configs=listed,
            launcher=launcher,
            integers=GivenIntegers(call, store),
            store=store,
        )
    )
    return spec


# Names that the functions of an Impl have for other arguments than sizes.
RESERVED = ("config", "limits", "itemsize", "sizes")


def extent_names(call: Call) -> dict[int, str]:
    """Return the names that the user's integer arguments give to extents: {4096: "n_cols"}. An
    extent that two arguments have keeps no name."""
    numbers = {a.name: a.value for a in call.arguments if type(a.value) is int and a.value > 1}
    free = {n: v for n, v in numbers.items() if n not in (*RESERVED, *call.tensors)}
    return {v: n for n, v in free.items() if list(numbers.values()).count(v) == 1}


def axes(name: str, layout: Layout, names: Mapping[int, str]) -> list[str]:
    """Return the axes of a tensor: by the user's name of the extent, else `x0 x1`."""
    return [names.get(n, f"{name}{i}") for i, n in enumerate(layout.shape)]


def compared_axes(call: Call, name: str, names: Mapping[int, str]) -> list[str]:
    """Return the axes of what is compared of an output: a sum of partial results has one row."""
    every = axes(name, call.tensors[name], names)
    return ["1", *every[1:]] if name in call.partial else every


def kept_axes(name: str, layout: Layout, names: Mapping[int, str]) -> list[str]:
    """Return the axes of the memory in which a tensor is stored."""
    return axes(name, layout, names) if layout.plain else [f"{name}_span"]


def sizes_of(call: Call) -> dict[str, int]:
    """Return the extent of every axis of the Spec: `{"n_rows": 1024, "x1": 64, ...}`."""
    results: dict[str, int] = {}
    names = extent_names(call)
    for name in call.inputs:
        layout = call.tensors[name]
        results |= dict(zip(kept_axes(name, layout, names), layout.extents, strict=True))
    for name in call.outputs:
        layout = call.tensors[name]
        results |= dict(zip(axes(name, layout, names), layout.shape, strict=True))
    return results


def config_type(call: Call) -> type:
    """Return a frozen dataclass with one field for each value that the configs set; its default is
    the first config."""
    first = call.entries[0].values
    return make_dataclass(
        "Config",
        [
            (k.name, int, among(*k.choices, default=int(first[k.name]), knob=WORDS.get(k.name)))
            for k in call.knobs
        ],
        frozen=True,
    )


def refusal_of_call(
    call: Call, created_at: Sizes, config: Any, limits: Limits, *, itemsize: int, **sizes: int
) -> str | None:
    """Return why this config or these sizes are not those of the user's call, or None."""
    if (entry := call.entry(values(config))) is None:
        return "not in the list of configs that was given"
    if (reason := refused_grid(entry.grid, limits)) is not None:
        return reason
    if sizes != created_at:
        return "the grids were computed for the tensors that were given; call tune() with others"
    return None


def refused_grid(grid: Sequence[int], limits: Limits) -> str | None:
    """Return why a device cannot launch a grid, or None."""
    _, second, third = (*grid, 1, 1)[:3]
    return limits.refuse_grid(second) or limits.refuse_grid(third, "third")


WAITS = 10  # times the accesses of the first pass, after which a program of a second one waits
USUAL = (1e-3, 1e-3)  # tolerance of a dtype for which none is given


class Launcher:
    """Launch the user's function with the user's arguments and a listed config."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._entries = {tuple(e.values.items()): e for e in call.entries}
        self._ready: dict[int, tuple[Mapping[str, Any], Callable[..., Any] | None]] = {}
        self.trace: ProgramTrace | None = None  # of the last launch, in the interpreter
        if INTERPRETED:
            watch_interpreter()

    @cached_property
    def kernel(self) -> Any:
        """The user's function below `autotune`, `heuristics` kept. Raises AdaptedError."""
        with use_machine_driver():
            return unwrap(self.call.place.find())

    def __call__(self, *tensors: Any, config: Any) -> Any:
        """Launch, and return the outputs: inputs that the launch changed, or new memory for tensors
        that it only writes. Raises AdaptedError for a config that is not listed."""
        entry = self._entries.get(tuple(values(config).items()))
        if entry is None:
            raise AdaptedError(f"{values(config)} is not in the list of configs that was given")
        inputs = dict(zip(self.call.inputs, tensors, strict=True))
        names = self.call.tensors
        memory = {n: inputs[n] if n in inputs else self._fresh(n, inputs) for n in names}
        views = self.fire_both_ways(memory, entry)
        outputs = tuple(views[n] for n in self.call.outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    def _fresh(self, name: str, given: Mapping[str, Any]) -> Any:
        """Return new memory for a tensor that the launch only writes."""
        import torch

        layout, device = self.call.tensors[name], next(iter(given.values())).device
        return torch.empty(layout.extents, dtype=inputs.torch_dtype(layout.dtype), device=device)

    def fire_both_ways(
        self, memory: Mapping[str, Any], entry: ConfigEntry, plan: ProgramPlan | None = None
    ) -> dict[str, Any]:
        """Launch once on this memory, and return what `fire` returns. Where programs use atomic
        operations, by which they may order their accesses, launch again on copies with the programs
        in reversed order. Raises LaunchFault where that gives other bits, or, of floats, which
        atomic additions round in another order, values farther apart than the tolerance."""
        if not INTERPRETED:
            return self.fire(memory, entry, plan)
        copies = {name: x.clone() for name, x in memory.items()}
        views = self.fire(memory, entry, plan)
        first = self.trace
        assert first is not None  # it ran in the interpreter
        if first.has_atomics:
            backwards = ProgramPlan(first.ran, is_reversed=True)
            try:
                others = self.fire(copies, entry, backwards, WAITS * first.count)
            except ProgramsWait:  # for the one before it: they are made to run in order
                others = views
            self.trace = first
            self._refuse_order(views, others)
        return views

    def _refuse_order(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
        """Raise LaunchFault where an output depends on the order of programs. Of tensors that the
        user did not name as outputs nothing is expected."""
        faults: dict[str, int | None] = {}
        for name in self.call.outputs or first:
            tolerance = self.call.tolerance.get(self.call.tensors[name].dtype)
            differs = far_apart(first[name], second[name], tolerance).reshape(-1)
            faults[name] = int(differs.nonzero()[0]) if bool(differs.any()) else None
        if wrong := {name: element for name, element in faults.items() if element is not None}:
            (name, element), *_ = wrong.items()
            same = tuple(name for name in faults if name not in wrong)
            advice = f"; if it is meant to, name the others: outputs={same}" if same else ""
            raise LaunchFault(
                f"{self.call.name} gives other values of {name}, such as element {element:,}, "
                "when its programs run in reversed order, and nothing orders them on a GPU"
                f"{advice}."
            )

    def fire(
        self,
        memory: Mapping[str, Any],
        entry: ConfigEntry,
        plan: ProgramPlan | None = None,
        most: int | None = None,
    ) -> dict[str, Any]:
        """Launch once on this memory, by tensor name. Returns the tensors as the kernel saw them.
        In the interpreter the launch is watched (`trace`), and runs only the planned programs;
        raises LaunchFault where it is at fault, and ProgramsWait after `most` accesses."""
        views = {n: self.call.tensors[n].view(m) for n, m in memory.items()}
        positional = [self._value(a, views) for a in self.call.arguments if a.positional]
        named = {a.name: self._value(a, views) for a in self.call.arguments if not a.positional}
        if id(entry) not in self._ready:
            hook = entry.pre_hook.find() if entry.pre_hook else None
            self._ready[id(entry)] = {k: unpack(v) for k, v in entry.kwargs.items()}, hook
        kwargs, hook = self._ready[id(entry)]
        if hook is not None:  # Triton's autotuner does the same before every launch
            names = [a.name for a in self.call.arguments if a.positional]
            hook({**dict(zip(names, positional, strict=True)), **named, **kwargs})
        launch = partial(self.kernel[entry.grid], *positional, **named, **kwargs)
        if not INTERPRETED:
            launch()
            return views
        self.trace = ProgramTrace(
            self.call.name, [Memory.locate(n, v) for n, v in views.items()], most
        )
        with trace_programs(self.trace, plan):
            launch()
        return views

    def _value(self, argument: Argument, views: Mapping[str, Any]) -> Any:
        if argument.tensor is None:
            return unpack(argument.value)
        view = views[argument.tensor]
        if argument.descriptor is None:
            return view
        from workbench.dsl import TensorDescriptor

        text = {k: unpack(v) for k, v in argument.descriptor.items()}
        lists = {k: list(v) if isinstance(v, tuple) else v for k, v in text.items()}
        return TensorDescriptor(view, **lists)


def far_apart(x: Any, other: Any, tolerance: tuple[float, float] | None) -> Any:
    """Return where two results differ: in their bits, or of floats by more than the tolerance, its
    relative part and that of the rms."""
    if not x.is_floating_point():
        return x != other
    a, b = x.double(), other.double()
    finite = a[a.isfinite()]
    relative, of_rms = tolerance or USUAL
    rms = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    near = (a - b).abs() <= relative * a.abs() + of_rms * rms
    return ~(near | (a == b) | (a.isnan() & b.isnan()))


def unwrap(kernel: Any) -> Any:
    """Return the function that is launched with an explicit config: without `autotune`, and without
    what a library has in its place or keeps compiled kernels in."""
    from workbench.dsl import triton

    if isinstance(kernel, triton.runtime.Heuristics):
        return triton.runtime.Heuristics(unwrap(kernel.fn), kernel.arg_names, kernel.values)
    if inspect.isfunction(getattr(kernel, "fn", kernel)):
        return kernel
    return unwrap(kernel.fn)
