"""Repeat a plan as an Impl of the Spec that trusted it, in processes that never import the file
under test.

The device functions are written to a file of their own, which workers import like that of any
kernel. Its launcher is `Replay`: it allocates, launches and returns what the plan says.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import Any

from workbench import catalog
from workbench.backend import replies
from workbench.data.frozen import freeze
from workbench.dsl import INTERPRETED, TensorDescriptor, tl
from workbench.evaluation.device_text import LAUNCH_ORDER, device_file_text
from workbench.evaluation.plan import (
    ITEMSIZE,
    FillStep,
    LaunchPlan,
    LaunchStep,
    PlannedCall,
    PlannedConstant,
    PlannedDescriptor,
    PlannedDtype,
    PlannedFunction,
    PlannedTuple,
    PlannedView,
)
from workbench.spec import Impl, among

PLAN, SPEC, CACHE = "plan.bin", "spec.bin", "cache"  # files beside the written one


@dataclass(frozen=True)
class ReplaySpec:
    """What the written file needs beside its plan: the Spec, and the Impl that it repeats."""

    kernel: str  # that holds the Spec
    sources: Mapping[str, bytes]  # of the Spec, by path
    impl: str
    config: Mapping[str, int]
    mutates: tuple[str, ...]


def write_plan(folder: Path, plan: LaunchPlan, of: ReplaySpec) -> tuple[Path, tuple[str, ...]]:
    """Write a plan as the file of a kernel, and return its path with the names of its device
    functions. Raises NotReplayable."""
    text, names = device_file_text(plan.functions)
    held = ", ".join(names)
    text += (
        "\nfrom workbench.evaluation.replay import add_replay\n\n"
        f"replayed = add_replay(__file__, __name__, ({held},))\nreplayed_spec = replayed.spec\n"
    )
    (folder / PLAN).write_bytes(replies.write(True, plan))
    (folder / SPEC).write_bytes(replies.write(True, of))
    path = folder / f"plan_{plan.digest[:12]}.py"
    path.write_text(text, encoding="utf-8")
    return path, names


def add_replay(file: str, module: str, functions: tuple[Any, ...]) -> Impl:
    """Return the Impl of a written file, added to a copy of its Spec; the file calls this as it is
    imported."""
    import triton

    folder = Path(file).parent
    _, plan = replies.read((folder / PLAN).read_bytes())
    _, of = replies.read((folder / SPEC).read_bytes())
    freeze(of.sources)
    # code of another cache may be what an earlier file under test left there
    triton.knobs.cache.dir = str(folder / CACHE)
    triton.knobs.compilation.disable_line_info = True  # machine code would hold the folder's name
    if INTERPRETED:
        from workbench.evaluation.gpu_rules import follow_gpu_rules

        follow_gpu_rules()
        for function in functions:  # launches run one after the other here
            known = function.fn.__globals__
            known |= {name: _nothing for name in LAUNCH_ORDER if name in known}
    spec = catalog.spec_of(of.kernel, bare=True)
    own = [impl for impl in spec.impls if impl.backend == "torch" and impl.name != of.impl]
    spec = replace(spec, impls=own)
    knobs = [(n, int, among(v, default=v)) for n, v in of.config.items()]
    config = make_dataclass("ReplayedConfig", knobs, frozen=True, namespace={"__module__": module})
    replay = Replay(plan, functions)

    def launch(*inputs: Any, config: Any) -> Any:
        return replay.repeat(inputs)

    launch.__module__, launch.__name__ = module, of.impl
    add = spec.impl(config, name=of.impl, mutates=of.mutates)
    return add(launch)


def _nothing(**_: Any) -> None:
    """Stand in for an order between launches."""


class Replay:
    """A plan with the device functions that its launches name."""

    def __init__(self, plan: LaunchPlan, functions: tuple[Any, ...]) -> None:
        """Enter each call by the shapes of its inputs."""
        self._functions = functions
        texts = " ".join(each.text for each in plan.functions)
        # a program that waits for another one's sign relies on the order in which they begin
        self._waits = "atomic" in texts and "while" in texts
        self._calls: dict[Any, PlannedCall] = {}
        for call in plan.calls:
            self._calls.setdefault(tuple(view.shape for view in call.inputs), call)

    def repeat(self, inputs: Sequence[Any]) -> Any:
        """Do on these inputs what the plan says, and return the outputs. Raises ValueError where no
        call of the plan has their shapes."""
        call = self._calls.get(tuple(tuple(x.shape) for x in inputs))
        if call is None:
            raise ValueError("the plan has no call of these shapes")
        memory = _Bases(inputs, call)
        chance = random.Random(_content(inputs)) if INTERPRETED else None
        for step in call.steps:
            if isinstance(step, FillStep):
                memory.view(step.view).fill_(step.value)
            else:
                self._launch(step, memory, chance)
        outputs = tuple(memory.view(view) for view in call.outputs)
        return outputs if len(outputs) > 1 else outputs[0]

    def _launch(self, step: LaunchStep, memory: _Bases, chance: random.Random | None) -> None:
        if chance is not None:
            from workbench.evaluation.gpu_rules import Bounds, ProgramOrder

            ProgramOrder.choose((1,) if self._waits else step.grid, chance)
            Bounds.ranges = memory.ranges()
        function = self._functions[step.function]
        given = {n: self._argument(a, memory) for n, a in step.arguments.items()}
        function[step.grid](**given, **step.options)

    def _argument(self, argument: Any, memory: _Bases) -> Any:
        if isinstance(argument, PlannedConstant):
            return argument.value
        if isinstance(argument, PlannedView):
            return memory.view(argument)
        if isinstance(argument, PlannedDtype):
            return tl.dtype(argument.name)
        if isinstance(argument, PlannedFunction):
            return self._functions[argument.function]
        if isinstance(argument, PlannedTuple):
            return tuple(self._argument(item, memory) for item in argument.items)
        assert isinstance(argument, PlannedDescriptor)
        shapes = (list(n) for n in (argument.shape, argument.strides, argument.block_shape))
        base = memory.view(argument.view)
        return TensorDescriptor(base, *shapes, padding=argument.padding)


def _content(inputs: Sequence[Any]) -> str:
    """Return a text of a part of each input: equal inputs get an equal order of programs, in which
    sums have equal bits."""
    parts = (x.reshape(-1)[:16].tolist() for x in inputs if x.is_contiguous())
    return repr(list(parts))


def _may_vary() -> bool:
    if not INTERPRETED:
        return False
    from workbench.evaluation.gpu_rules import Bounds

    return not Bounds.is_sampled


class _Bases:
    """The memory of one call."""

    def __init__(self, inputs: Sequence[Any], call: PlannedCall) -> None:
        import torch

        device = inputs[0].device if inputs else "cpu"
        self._layouts = call.inputs
        self._bases = list(inputs)
        # Fresh memory holds poison in one call and a number in the next: device code that looks
        # there for a check gives other results then.
        other = random.choice((None, random.randint(1, 100))) if _may_vary() else None
        for memory in call.memory:
            fresh = torch.empty(memory.count, dtype=getattr(torch, memory.dtype), device=device)
            fill = other if memory.fill is None else memory.fill
            self._bases.append(fresh if fill is None else fresh.fill_(fill))

    def ranges(self) -> list[tuple[int, int]]:
        """Return the first address of each tensor and the one behind its last element."""
        result = []
        for x in self._bases:
            last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
            size = (last + 1) * x.element_size() if x.numel() else 0
            result.append((x.data_ptr(), x.data_ptr() + size))
        return result

    def view(self, view: PlannedView) -> Any:
        """Return a view of an input or of fresh memory."""
        import torch

        base = self._bases[view.base]
        if view.base < len(self._layouts) and view == self._layouts[view.base]:
            return base
        size, start = base.element_size(), base.storage_offset()
        if (dtype := getattr(torch, view.dtype)) != base.dtype:
            if base.dim() != 1:
                base = base.as_strided((base.untyped_storage().nbytes() // size - start,), (1,))
            start = start * size // ITEMSIZE[view.dtype]
            base = base.view(dtype)
            start = base.storage_offset()
        return base.as_strided(
            view.shape, view.strides, start + view.offset // ITEMSIZE[view.dtype]
        )
