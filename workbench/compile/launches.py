"""Capture kernel launches for a target GPU that need not be present."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from workbench.code.program_values import LaunchArguments
from workbench.compile.dedup import Dedup, Stop
from workbench.compile.stand_in import AbsentDriver, HiddenTarget
from workbench.data.environment import FP_FUSION
from workbench.data.triton_key import remember_key
from workbench.device.hardware import Device


@dataclass(frozen=True)
class Launch:
    """One captured launch of a kernel."""

    kernel: Any  # triton.compiler.CompiledKernel, not loaded
    grid: tuple[int, ...]
    arguments: str  # those that are not constants of the machine code
    function: str = ""  # name of the device function in its file
    constants: Mapping[str, Any] = field(default_factory=dict)  # `tl.constexpr` arguments by name
    options: Mapping[str, Any] = field(default_factory=dict)  # num_warps and the like
    launch_arguments: LaunchArguments = field(default_factory=lambda: LaunchArguments({}, {}))

    @property
    def programs(self) -> int:
        """Return the number of blocks: the product of the grid's extents, of which each may be a
        cluster."""
        total: int = self.options.get("num_ctas", 1)
        for extent in self.grid:
            total *= extent
        return total


@contextmanager
def capture_launches(device: Device, dedup: Dedup | None = None) -> Iterator[list[Launch]]:
    """Compile launches inside the block for `device` without running them; yields their list.
    Launches that `dedup` stops return None and are not in the list."""
    os.environ.setdefault(FP_FUSION, "1")
    from triton.compiler.compiler import make_backend
    from triton.runtime.jit import JITFunction

    from workbench.dsl import pretend

    remember_key()
    dedup = dedup or Dedup()
    launches: list[Launch] = []
    absent = AbsentDriver(device)
    backend = type(make_backend(absent.get_current_target()))
    real_run, real_stages = JITFunction.run, backend.add_stages

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        named = dict(zip(self.arg_names, args, strict=False)) | kwargs
        shape = _grid(grid, named)
        arguments = _arguments(self, named)
        dedup.begin(arguments, shape)
        try:
            kernel = real_run(self, *args, grid=grid, warmup=True, **kwargs)
        except Stop:
            return None
        dedup.end(kernel)
        options = {n: v for n, v in kwargs.items() if n not in self.arg_names}
        name = self.fn.__name__
        constants, inputs = _constants(self, named), _launch_arguments(self, named)
        launches.append(Launch(kernel, shape, arguments, name, constants, options, inputs))
        return kernel

    def add_stages(self: Any, stages: dict[str, Any], options: Any, *more: Any) -> None:
        real_stages(self, stages, options, *more)
        later = list(stages)[list(stages).index("ttgir") + 1 :]
        follow = stages[later[0]]

        def deduplicate(module: Any, metadata: Any) -> Any:
            dedup.meet(module, metadata, self, options, later)
            return follow(module, metadata)

        stages[later[0]] = deduplicate

    JITFunction.run, backend.add_stages = run, add_stages
    try:
        with _active(absent), pretend(device.limits):
            yield launches
    finally:
        JITFunction.run, backend.add_stages = real_run, real_stages


@contextmanager
def _active(stand_in: AbsentDriver) -> Iterator[None]:
    from triton.runtime.driver import driver

    before = driver._active  # `reset_active` would look for a GPU and fail where there is none
    driver.set_active(stand_in)
    try:
        yield
    finally:
        driver.set_active(before)


@contextmanager
def use_machine_driver() -> Iterator[None]:
    """Return a context manager that gives Triton this machine's driver back inside of
    `capture_launches`, for the import of a user's file: one that asks for the target would take it
    for a GPU of this machine."""
    from triton.runtime.driver import driver

    target = driver._active
    if not isinstance(target, AbsentDriver):
        yield
        return
    driver._active = None  # it is looked for again where a file asks for it
    HiddenTarget.device = target.device
    try:
        yield
    finally:
        HiddenTarget.device = None
        driver.set_active(target)


def _grid(grid: Any, named: Mapping[str, Any]) -> tuple[int, ...]:
    if callable(grid):
        grid = grid(named)
    return tuple(int(g) for g in (grid if isinstance(grid, Sequence) else (grid,)))


def _constants(jit: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constants that a launch gives, and not those that are left at their defaults."""
    return {
        jit.arg_names[i]: named[jit.arg_names[i]]
        for i in jit.constexprs
        if jit.arg_names[i] in named
    }


def _arguments(jit: Any, named: Mapping[str, Any]) -> str:
    """Return a launch's arguments beside its constants, which are in the machine code: scalars by
    value, tensors by layout and by which of them share memory."""
    constants = {jit.arg_names[i] for i in jit.constexprs}
    memory: dict[Any, int] = {}

    def describe(value: Any) -> Any:
        if hasattr(value, "untyped_storage"):
            where = memory.setdefault(value.untyped_storage()._cdata, len(memory))
            layout = tuple(value.shape), value.stride(), value.storage_offset()
            return (str(value.dtype), *layout, where)
        if hasattr(value, "block_shape"):  # a tensor descriptor; its own class differs by version
            return "descriptor", {k: describe(v) for k, v in sorted(vars(value).items())}
        return [describe(v) for v in value] if isinstance(value, (list, tuple)) else repr(value)

    names = {name for name in jit.arg_names if name not in constants}
    return repr([(name, describe(value)) for name, value in named.items() if name in names])


def _launch_arguments(jit: Any, named: Mapping[str, Any]) -> LaunchArguments:
    """Return a launch's scalars, its descriptors, and the bytes behind each of its pointers."""
    scalars: dict[str, int | None] = {}
    tensors: dict[str, int] = {}
    descriptors: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for name in jit.arg_names:
        value: Any = named.get(name)
        if hasattr(value, "block_shape"):
            descriptors[name] = tuple(value.shape), tuple(value.strides)
            value = value.base
        if hasattr(value, "untyped_storage"):
            before = value.storage_offset() * value.element_size()
            tensors[name] = value.untyped_storage().nbytes() - before
        elif isinstance(value, (int, float)):
            scalars[name] = int(value) if isinstance(value, int) else None
    return LaunchArguments(scalars, tensors, descriptors=descriptors)
