"""Record the launches of this process: count equal ones, and keep the file up to date.

The file is replaced while the program runs, so that a crash or a kill -9 leaves what was recorded
until the last write, and once more at the end.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.data.clock import timestamp
from workbench.data.files import FileError
from workbench.workload.errors import WorkloadError
from workbench.workload.file import (
    CountedSignature,
    GpuTimes,
    Mode,
    RecordedProcess,
    RecordedWorkload,
    canonical,
    write,
)
from workbench.workload.gpu_time import MOST_LAUNCHES, ProfiledWindow
from workbench.workload.grids import grids_of
from workbench.workload.identity import function_of
from workbench.workload.observed import KeyFunction, describe, key_function, slow_key
from workbench.workload.pinned import PinnedTable
from workbench.workload.signature import (
    ConfigGrids,
    KernelFunction,
    LaunchSignature,
    Origin,
    PlainArgument,
    RecordedArgument,
)
from workbench.workload.triton_hooks import (
    Chooser,
    TritonHooks,
    inductor_arguments,
    inductor_choices,
    inductor_function,
    named_arguments,
    tuner_key,
)

MOST_SIGNATURES = 4096  # about 1 MB of file; later ones are counted only by function
MOST_KEYS = 4 * MOST_SIGNATURES  # of launches in memory; several may be of one signature
LEAST_WAIT_S = 1.0  # between two writes
# Names of constants that are knobs of a kernel; other constants, such as extents, are not a choice.
KNOB = re.compile(r"block|tile|chunk|split|unroll|^B[A-Z]?$|^GROUP_|num_warps|num_stages", re.I)
WRITE_SHARE = 0.01  # of the time goes into writes, at most


@dataclass
class _LaunchCounter:
    """Launches of one signature. Python switches threads at calls and jumps alone, so that `+= 1`
    on an attribute loses no count."""

    launches: int = 0


@dataclass
class _Kernel:
    """One function below one autotuner."""

    jit: Any
    chooser: Chooser
    # Key functions by types, and of the first types with so many arguments of each kind: other
    # names are a KeyError.
    keys: dict[tuple[Any, ...], KeyFunction] = field(default_factory=dict)
    usual: dict[tuple[Any, ...], KeyFunction] = field(default_factory=dict)
    counters: dict[Any, _LaunchCounter] = field(default_factory=dict)  # by key
    identity: KernelFunction | None = None


@dataclass(frozen=True)
class RecordOptions:
    """What is recorded."""

    profile_steps: int = 3  # steps under torch.profiler; 0 for none
    values: bool = False  # keep the values of small integer tensors
    device: str | None = None  # that answers for the GPU, by its name


class LaunchRecorder:
    """One recording of this process, as a context manager."""

    active: LaunchRecorder | None = None

    def __init__(self, path: Path, options: RecordOptions) -> None:
        self.path, self.options = path, options
        self._hooks = TritonHooks(self)
        self._kernels: dict[Chooser, dict[int, _Kernel]] = {}
        self._signatures: dict[str, tuple[LaunchSignature, _LaunchCounter]] = {}
        self._beyond: dict[KernelFunction, _LaunchCounter] = {}
        self._window = ProfiledWindow(options.profile_steps)
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._started, self._since = timestamp(), time.monotonic()
        self._seen = self._written = 0
        self._kept_keys = 0
        self._process = os.getpid()

    def __enter__(self) -> LaunchRecorder:
        if LaunchRecorder.active is not None:
            raise WorkloadError(
                f"{LaunchRecorder.active.path} is being recorded already; end that recording first."
            )
        if PinnedTable.active is not None:
            PinnedTable.active.unbind()
        self._hooks.install()
        LaunchRecorder.active = self
        try:
            self._write(complete=False)  # fails now rather than at the end
        except FileError as error:
            self._hooks.remove()
            LaunchRecorder.active = None
            raise WorkloadError(str(error)) from None
        os.register_at_fork(after_in_child=self._reset_after_fork)
        self._start_writing()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop to record, and write the file; once."""
        if self._ended.is_set() or LaunchRecorder.active is not self:
            return
        self._ended.set()
        self._hooks.remove()
        LaunchRecorder.active = None
        self._window.end()
        self._write(complete=True)

    def step(self) -> None:
        """Hear that a step of the program is over."""
        self._window.mark_step()

    # Launches

    def note_launch(
        self, jit: Any, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Any, by: Chooser
    ) -> None:
        """Count one launch."""
        self._seen += 1
        try:
            kernel = self._kernels[by][id(jit)]
            key = kernel.usual[len(args), len(kwargs)](args, kwargs, grid)
            kernel.counters[key].launches += 1
        except (KeyError, AttributeError, TypeError, RuntimeError, NotImplementedError, IndexError):
            try:
                self._count(jit, args, kwargs, _shape(grid), by)
            except Exception as error:  # the program's launch is done, and goes on
                self._count_alone(jit, error)
        if self._seen == MOST_LAUNCHES:
            self._window.full()

    def _count(
        self, jit: Any, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Any, by: Chooser
    ) -> None:
        """Count a launch that was not seen before, or whose arguments have other types than
        usual."""
        with self._lock:
            kernel = self._kernel_of(jit, by)
            types = (*map(type, args), *kwargs, *map(type, kwargs.values()))
            make = kernel.keys.get(types)
            if make is None:
                make = kernel.keys[types] = key_function(args, kwargs)
                kernel.usual.setdefault((len(args), len(kwargs)), make)
            try:
                key = make(args, kwargs, shape)
                hash(key)
            except (RuntimeError, NotImplementedError, TypeError):  # a fake tensor has no address
                key = shape, slow_key(args, kwargs)
            self._counter(kernel, key, args, kwargs, shape).launches += 1

    def _count_alone(self, jit: Any, error: Exception) -> None:
        """Count a launch that cannot be described by the name of its function alone."""
        name = str(getattr(jit, "__name__", type(jit).__name__))
        function = KernelFunction(name, "", "", "", ())
        if function not in self._beyond:
            first = (str(error).strip().splitlines() or [""])[0][:200]
            text = f"Launches of {name} are only counted: {type(error).__name__}: {first}"
            self._window.notes.append(text)
        self._beyond.setdefault(function, _LaunchCounter()).launches += 1

    def _counter(
        self, kernel: _Kernel, key: Any, args: Sequence[Any], kwargs: Any, shape: Any
    ) -> _LaunchCounter:
        """Return the counter of a key, which is kept if it is new."""
        if (known := kernel.counters.get(key)) is not None:
            return known
        if hasattr(kernel.chooser.tuner, "triton_meta"):
            signature = self._inductor_signature(kernel, args)
        else:
            signature = self._launch_signature(kernel, args, kwargs, shape)
        counter = self._counter_of(signature)
        self._keep_key(kernel, key, counter)
        return counter

    def _keep_key(self, kernel: _Kernel, key: Any, counter: _LaunchCounter) -> None:
        if self._kept_keys >= MOST_KEYS:
            for each in self._all_kernels():
                each.counters.clear()
            self._kept_keys = 0
        kernel.counters[key] = counter
        self._kept_keys += 1

    def _all_kernels(self) -> list[_Kernel]:
        return [kernel for of in list(self._kernels.values()) for kernel in list(of.values())]

    def _counter_of(self, signature: LaunchSignature) -> _LaunchCounter:
        text = canonical(signature)
        if text in self._signatures:
            return self._signatures[text][1]
        if len(self._signatures) >= MOST_SIGNATURES:
            return self._beyond.setdefault(signature.function, _LaunchCounter())
        counter = _LaunchCounter()
        self._signatures[text] = signature, counter
        return counter

    def _kernel_of(self, jit: Any, by: Chooser) -> _Kernel:
        """Return the entry of a function; it keeps the object, so that no other gets its id."""
        if not self._kernels:
            self._window.first_launch(not self._hooks.skips_launches)
        kernels = self._kernels.setdefault(by, {})
        return kernels.setdefault(id(jit), _Kernel(jit, by))

    def launched_by_inductor(self, tuner: Any, args: Sequence[Any]) -> None:
        """Count one launch of a kernel of torch.compile."""
        self.note_launch(tuner.fn, args, {}, (), Chooser(tuner, None, False))

    # Signatures

    def _launch_signature(
        self, kernel: _Kernel, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Any
    ) -> LaunchSignature:
        jit, by = kernel.jit, kernel.chooser
        kernel.identity = kernel.identity or function_of(jit)
        named = named_arguments(jit, args, kwargs)
        options = {n: v for n, v in kwargs.items() if n not in jit.arg_names}
        origin, config = self._chosen_config(kernel, named, options)
        return LaunchSignature(
            kernel.identity,
            self._describe_arguments(named),
            tuple(shape),
            _plain(options),
            origin,
            _plain(config),
            len(by.tuner.configs) if by.tuner is not None else 1,
            not by.was_caught,
            None if by.tuner is None else tuner_key(by.tuner, _drop_config(named, config)),
            None if by.tuner is None else self._grids(by.tuner, _drop_config(named, config)),
        )

    def _grids(self, tuner: Any, named: Mapping[str, Any]) -> ConfigGrids | None:
        if (grid := self._hooks.grid) is None:
            return None
        return grids_of(grid, named, [config.kwargs for config in tuner.configs])

    def _chosen_config(
        self, kernel: _Kernel, named: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[Origin, Mapping[str, Any]]:
        """Return what chose the config, and the config."""
        by = kernel.chooser
        given = {**named, **options}
        if by.tuner is not None:
            best = by.tuner.best_config.all_kwargs()
            return "autotune", {n: given.get(n, v) for n, v in best.items()}
        if by.heuristics is not None:
            chosen = {n: given[n] for n in by.heuristics.values if n in given}
            return "heuristics", {**chosen, **options}
        constexprs = kernel.identity.constexprs if kernel.identity is not None else ()
        blocks = {n: named[n] for n in constexprs if KNOB.search(n) and type(named.get(n)) is int}
        return "call", {**blocks, **options}

    def _inductor_signature(self, kernel: _Kernel, args: Sequence[Any]) -> LaunchSignature:
        tuner = kernel.chooser.tuner
        named, grid, config = inductor_arguments(tuner, args)
        if kernel.identity is None:
            kernel.identity = function_of(inductor_function(tuner), tuner.filename)
        chosen = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
        return LaunchSignature(
            kernel.identity,
            self._describe_arguments(named),
            tuple(int(n) for n in grid),
            {},
            "inductor",
            _plain(chosen),
            inductor_choices(tuner),
        )

    def _describe_arguments(self, named: Mapping[str, Any]) -> dict[str, RecordedArgument]:
        storages: dict[Any, int] = {}
        return {n: describe(v, storages, self.options.values) for n, v in named.items()}

    # The file

    def workload(self, complete: bool) -> RecordedWorkload:
        """Return what was recorded until now."""
        times: list[GpuTimes] = []
        with self._lock:
            signatures = [CountedSignature(s, c.launches) for s, c in self._signatures.values()]
            beyond = [(f, c.launches) for f, c in self._beyond.items() if c.launches]
        signatures = [each for each in signatures if each.launches]
        names = {each.signature.function.name for each in signatures}
        if complete and (result := self._window.times(names)) is not None:
            times.append(result)
        process = self._described_process(complete)
        return RecordedWorkload([process], signatures, times, beyond, list(self._window.notes))

    def _described_process(self, complete: bool) -> RecordedProcess:
        rank = os.environ.get("RANK", "")
        mode, device = self._where()
        versions = {"python": platform.python_version()}
        for name in ("torch", "triton"):
            if (module := sys.modules.get(name)) is not None:
                versions[name] = str(getattr(module, "__version__", ""))
        return RecordedProcess(
            Path(sys.argv[0]).name or "python" if sys.argv else "python",
            int(rank) if rank.isdecimal() else None,
            mode,
            device,
            self._started,
            round(time.monotonic() - self._since, 3),
            complete,
            versions,
        )

    def _where(self) -> tuple[Mode, str]:
        """Return how launches were treated, and the device, as far as it is known without asking
        the GPU before the program does."""
        jits = [type(kernel.jit).__name__ for kernel in self._all_kernels()]
        if jits and all(name == "InterpretedFunction" for name in jits):
            return "interpreted", "CPU"
        if not jits:
            return "gpu", ""
        if self._hooks.skips_launches:
            return "caught", ""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return "gpu", ""
        return "gpu", str(torch.cuda.get_device_name())

    def _write(self, complete: bool) -> float:
        """Write the file. Returns the seconds that it took."""
        began, self._written = time.monotonic(), self._seen
        write(self.path, self.workload(complete))
        return time.monotonic() - began

    def _start_writing(self) -> None:
        threading.Thread(target=self._write_often, name="workload", daemon=True).start()

    def _write_often(self) -> None:
        """Write the file again after launches, at most every second and for a hundredth of the
        time."""
        wait = LEAST_WAIT_S
        while not self._ended.wait(wait):
            if self._seen == self._written:
                continue
            try:
                wait = max(LEAST_WAIT_S, self._write(complete=False) / WRITE_SHARE)
            except FileError as error:
                print(f"note: {error}", file=sys.stderr)
                return

    def _reset_after_fork(self) -> None:
        """Begin anew in a forked process: counts of its own, in a file of its own."""
        if LaunchRecorder.active is not self:
            return
        self._lock = threading.RLock()
        self._process = os.getpid()
        self.path = self.path.with_name(f"{self.path.stem}.{self._process}{self.path.suffix}")
        for _, counter in self._signatures.values():
            counter.launches = 0
        for counter in self._beyond.values():
            counter.launches = 0
        self._seen = self._written = 0
        self._started, self._since = timestamp(), time.monotonic()
        self._window = ProfiledWindow(0)
        self._start_writing()


def _shape(grid: Any) -> tuple[Any, ...]:
    if grid is None:
        return ()
    return tuple(grid) if isinstance(grid, (list, tuple)) else (grid,)


def _drop_config(named: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in named.items() if n not in config}


def _plain(values: Mapping[str, Any]) -> dict[str, PlainArgument]:
    """Return plain arguments; any other is given by the name of its type."""
    result = {}
    for name, value in values.items():
        described = describe(value, {}, False)
        if not isinstance(described, PlainArgument):
            described = PlainArgument("other", type(value).__name__)
        result[name] = described
    return result
