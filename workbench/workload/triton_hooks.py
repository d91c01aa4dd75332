"""Observe the launches of Triton kernels: the one module here that touches Triton's insides.

Tested with Triton 3.6.0 and 3.9.0, and Inductor of torch 2.13. Triton's own hooks do not suffice:
`pre_run_hooks` gets no grid and `launch_enter_hook` no arguments. So `run` of the classes is
replaced while a recording lasts: of `JITFunction` (and of the interpreter's functions), which every
launch of `@triton.jit` passes through; of `Autotuner` and `Heuristics`, to know what chose the
config; and of Inductor's `CachingAutotuner`, which launches compiled kernels by itself.

A launch in a CUDA graph is seen when it is captured, not when it is replayed. Kernels of
AOTInductor and of the C++ wrapper are not seen.
"""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from workbench.traces.profilers.running.after_import import AfterImport
from workbench.workload.errors import WorkloadError

INDUCTOR = "torch._inductor.runtime.triton_heuristics"


class Chooser(NamedTuple):
    """What chose the config of a launch: an Autotuner of Triton or of Inductor, and the names that
    `@triton.heuristics` computes. Compared by identity."""

    tuner: Any = None
    heuristics: Any = None
    was_caught: bool = False  # the first config was taken, as there is no GPU to tune on


NOBODY = Chooser()


class LaunchSink(Protocol):
    """What hears of launches."""

    def note_launch(
        self, jit: Any, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Any, by: Chooser
    ) -> None:
        """Hear of one launch, after it. `grid` is None where Triton did not compute it."""

    def launched_by_inductor(self, tuner: Any, args: Sequence[Any]) -> None:
        """Hear of one launch of a kernel of torch.compile, after it."""


class _LaunchContext(threading.local):
    """What stands around a launch in this thread."""

    chooser: Chooser = NOBODY
    benchmarking: bool = False  # an autotuner times candidates: these launches are its own
    grid: Any = None  # that the autotuner of this launch was given


class TritonHooks:
    """The replaced methods, from `install` to `remove`."""

    def __init__(self, sink: LaunchSink) -> None:
        self._sink = sink
        self._context = _LaunchContext()
        self._bound: list[Any] = []  # heuristics whose `run` is Triton's own again
        self._choosers: dict[tuple[int, int], Chooser] = {}
        self._replaced: list[tuple[Any, str, Any]] = []
        self._finder: AfterImport | None = None
        self._caught: bool | None = None  # None before the first launch

    def install(self, choosers: bool = True) -> None:
        """Replace the methods; without `choosers` those alone that launch, so that autotuners do
        what they do without hooks. Raises WorkloadError where Triton is missing."""
        try:
            from triton.runtime.autotuner import Autotuner, Heuristics
            from triton.runtime.interpreter import InterpretedFunction
            from triton.runtime.jit import JITFunction
        except ImportError as error:
            raise WorkloadError(
                f"Triton cannot be imported ({error}), so there is nothing to record: "
                "pip install 'triton>=3.6'."
            ) from None
        self._replace(JITFunction, "run", self._jit_run)
        self._replace(InterpretedFunction, "run", self._interpreted_run)
        self._replace(Autotuner, "_bench", self._bench)
        if choosers:
            self._replace(Autotuner, "run", self._autotuner_run)
            self._replace(Heuristics, "run", self._heuristics_run)
        if INDUCTOR in sys.modules:
            self._inductor()
        else:
            self._finder = AfterImport(INDUCTOR, self._inductor)
            sys.meta_path.insert(0, self._finder)

    def _inductor(self) -> None:
        """Replace Inductor's methods, once its module is imported."""
        module = sys.modules[INDUCTOR]
        self._replace(module.CachingAutotuner, "run", self._inductor_run)
        for name in ("bench", "_combo_sequential_autotune"):
            if hasattr(module.CachingAutotuner, name):
                self._replace(module.CachingAutotuner, name, self._bench)

    def remove(self) -> None:
        """Put the methods back."""
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        for owner, name, real in reversed(self._replaced):
            setattr(owner, name, real)
        self._replaced.clear()
        for owner in self._bound:
            owner.__dict__.pop("run", None)
        self._bound.clear()

    @property
    def skips_launches(self) -> bool:
        """Whether there is no GPU, so that launches are not run."""
        if self._caught is None:
            from triton.runtime.driver import driver

            try:
                self._caught = getattr(driver.active, "stands_in", False)
            except RuntimeError:  # "0 active drivers"
                self._caught = True
        return self._caught

    @property
    def grid(self) -> Any:
        """The grid that the autotuner of the launch in this thread was given; None outside of
        one."""
        return self._context.grid

    def _replace(self, owner: Any, name: str, by: Callable[[Any], Any]) -> None:
        real = getattr(owner, name)
        self._replaced.append((owner, name, real))
        setattr(owner, name, by(real))

    def _jit_run(self, real: Any) -> Any:
        context, sink, hooks = self._context, self._sink, self

        def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            if warmup or context.benchmarking:
                return real(self, *args, grid=grid, warmup=warmup, **kwargs)
            if hooks.skips_launches:
                sink.note_launch(
                    self, args, kwargs, _grid(self, grid, args, kwargs), context.chooser
                )
                return None
            if not callable(grid):
                result = real(self, *args, grid=grid, warmup=warmup, **kwargs)
                sink.note_launch(self, args, kwargs, grid, context.chooser)
                return result
            shapes: list[Any] = []

            def once(meta: Any) -> Any:
                shapes.append(shape := grid(meta))
                return shape

            result = real(self, *args, grid=once, warmup=warmup, **kwargs)
            sink.note_launch(self, args, kwargs, shapes[-1] if shapes else None, context.chooser)
            return result

        return run

    def _interpreted_run(self, real: Any) -> Any:
        context, sink = self._context, self._sink

        def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            result = real(self, *args, grid=grid, warmup=warmup, **kwargs)
            if not warmup and not context.benchmarking:
                shape = _grid(self, grid, args, kwargs)
                sink.note_launch(self, args, kwargs, shape, context.chooser)
            return result

        return run

    def _autotuner_run(self, real: Any) -> Any:
        context, hooks = self._context, self

        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            before = context.chooser
            context.chooser = by = hooks.chooser(self, before.heuristics)
            context.grid = kwargs.get("grid")
            try:
                if not by.was_caught:
                    return real(self, *args, **kwargs)
                return _first_config(self, args, kwargs)
            finally:
                context.chooser, context.grid = before, None

        return run

    def chooser(self, tuner: Any, heuristics: Any) -> Chooser:
        """Return the one Chooser of these two, which it keeps, so that no other gets their ids."""
        known = self._choosers.get((id(tuner), id(heuristics)))
        if known is None:
            caught = tuner is not None and self.caught_here(tuner)
            known = Chooser(tuner, heuristics, caught)
            self._choosers[id(tuner), id(heuristics)] = known
        return known

    def caught_here(self, tuner: Any) -> bool:
        """Return whether this autotuner cannot time: there is no GPU, or the interpreter runs."""
        inner = tuner
        while hasattr(inner, "configs") or hasattr(inner, "values"):
            inner = inner.fn
        return type(inner).__name__ == "InterpretedFunction" or self.skips_launches

    def _heuristics_run(self, real: Any) -> Any:
        context, hooks = self._context, self

        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if type(self).run is run and hasattr(self.fn, "configs"):
                # an autotuner below says it all, and each layer costs 3 us of a launch
                self.run = real.__get__(self)
                hooks._bound.append(self)
                return self.run(*args, **kwargs)
            before = context.chooser
            context.chooser = hooks.chooser(before.tuner, self)
            try:
                return real(self, *args, **kwargs)
            finally:
                context.chooser = before

        return run

    def _bench(self, real: Any) -> Any:
        context = self._context

        def bench(*args: Any, **kwargs: Any) -> Any:
            before, context.benchmarking = context.benchmarking, True
            try:
                return real(*args, **kwargs)
            finally:
                context.benchmarking = before

        return bench

    def _inductor_run(self, real: Any) -> Any:
        context, sink = self._context, self._sink

        def run(self: Any, *args: Any, stream: Any, **kwargs: Any) -> Any:
            before, context.benchmarking = context.benchmarking, True  # `fn.run` in the interpreter
            try:
                result = real(self, *args, stream=stream, **kwargs)
            finally:
                context.benchmarking = before
            if not before and not kwargs.get("benchmark_run"):
                sink.launched_by_inductor(self, args)
            return result

        return run


def _first_config(tuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Launch the first config of an autotuner that its pruning leaves, and time none."""
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    try:
        config = next(iter(tuner.prune_configs(dict(kwargs))), tuner.configs[0])
    except Exception:  # a pruning that asks the GPU
        config = tuner.configs[0]
    tuner.best_config = config
    if config.pre_hook is not None:
        config.pre_hook({**tuner.nargs, **kwargs, **config.all_kwargs()})
    try:
        return tuner.fn.run(*args, **kwargs, **config.all_kwargs())
    finally:
        tuner.nargs = None


def _grid(jit: Any, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the grid as Triton would compute it."""
    return grid(named_arguments(jit, args, kwargs)) if callable(grid) else grid


def named_arguments(jit: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of a launch by name, in the function's order, with its defaults; options
    such as `num_warps` are left out."""
    import inspect

    plain = jit
    while not inspect.isfunction(plain):
        plain = plain.fn
    given = dict(zip(jit.arg_names, args, strict=False)) | dict(kwargs)
    parameters = inspect.signature(plain).parameters
    defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
    return {n: {**defaults, **given}[n] for n in jit.arg_names if n in given or n in defaults}


def inductor_arguments(tuner: Any, args: Sequence[Any]) -> tuple[dict[str, Any], Any, Any]:
    """Return the arguments by name, the grid and the config of a launch of Inductor's."""
    config = tuner.launchers[0].config if tuner.launchers else tuner.configs[0]
    plain, grid = tuner._interpret_args_grid(tuple(args), config)
    constexprs = set(getattr(tuner.fn, "constexprs", ()))
    names = [n for i, n in enumerate(tuner.triton_meta["signature"]) if i not in constexprs]
    return dict(zip(names, plain, strict=False)), grid, config


def inductor_function(tuner: Any) -> Any:
    """Return the JIT function of a kernel of Inductor. What another process compiled comes without
    its Python function, and Inductor loads that from the kernel's file."""
    if tuner.fn.fn is None and callable(load := getattr(tuner, "_reload_kernel", None)):
        return load().fn
    return tuner.fn


def inductor_choices(tuner: Any) -> int:
    """Return the number of configs that Inductor had. Its list is gone once they are compiled."""
    return len(tuner.configs or getattr(tuner, "compile_results", None) or (None,))


def tuner_key(tuner: Any, named: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the key under which an Autotuner keeps its choice, each value as text: the arguments
    of `key`, then the dtypes of all arguments, as `Autotuner.run` in Triton 3.6 to 3.9."""
    given = {k: v for k, v in named.items() if k in tuner.arg_names}
    key = [repr(given[k]) for k in tuner.keys if k in given]
    return (*key, *(str(v.dtype) for v in given.values() if hasattr(v, "dtype")))
