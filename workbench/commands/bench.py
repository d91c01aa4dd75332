"""Time a decorated function over sizes: a run like those of `measure`, in this process.

It has no options class and no command, as a function cannot be named on the command line.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from workbench.backend.protocol import Backend, GpuPlace, Problem
from workbench.commands.console import console_for, note
from workbench.commands.options import CommandError
from workbench.commands.progress import show_part
from workbench.commands.result import write_result
from workbench.commands.run import (
    OpenResources,
    Recorder,
    draw_ended_run,
    execute,
    measured_peaks,
    new_run,
    resources,
    say_page,
)
from workbench.data.clock import folder_of, timestamp
from workbench.data.environment import fingerprint
from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED, PASSED
from workbench.data.record import (
    Case,
    Environment,
    Failure,
    Measured,
    Outcome,
    Predicted,
    Record,
    Run,
    Stage,
    key_of,
)
from workbench.device import hardware
from workbench.device.bounds import arithmetic_s, bound_s
from workbench.device.error_band import BOUND
from workbench.experiments.analysis.ceilings import measured_ceilings
from workbench.measurement.functions import Call, Refused, TimedGpu, time_functions
from workbench.measurement.preflight import gpu_lock
from workbench.reports.run_index import write_run_page
from workbench.spec import Sizes, Spec, sizes_text

if TYPE_CHECKING:
    from workbench.commands.measure import MeasureOptions

NEEDS_GPU = (
    "Timing a function needs a GPU that torch sees, and there is none here; run it where there is "
    'one, or name a device for only its roofline bound: device="h200".'
)


@dataclass(frozen=True)
class BenchedFunction:
    """A decorated function: for sizes it makes inputs, and returns a call for each provider."""

    name: str
    function: Callable[..., Any]
    make: Callable[[Sizes], Mapping[str, Call]]
    sizes: Sequence[Sizes]
    owners: int  # providers that have inputs of their own; 1 where they share them
    dtype: str
    bytes: Callable[..., int] | None  # least bytes of a call, of the sizes
    flops: Callable[..., int] | None
    check: bool

    def costs(self, sizes: Sizes) -> tuple[int, int]:
        """Return least bytes and FLOPs of a call; 0 where they are not declared. Raises
        CommandError where a declared one is not a whole number from 0 on."""
        return self._cost("bytes", self.bytes, sizes), self._cost("flops", self.flops, sizes)

    def _cost(self, name: str, declared: Callable[..., int] | None, sizes: Sizes) -> int:
        if declared is None:
            return 0
        at = f"{name}= of {self.name} at {sizes_text(sizes)}"
        try:
            value = declared(**sizes)
        except Exception as error:
            raise CommandError(
                f"{at} fails ({type(error).__name__}: {error}); give a function of "
                f"{', '.join(sizes)} that returns a number."
            ) from None
        try:
            if 0 <= value < math.inf:
                return int(value)
        except (TypeError, ValueError, ArithmeticError):
            pass
        raise CommandError(
            f"{at} is {value!r:.60}; return a number from 0 on (a negative "
            "one may be an overflow of 32 bits)."
        )

    @property
    def source(self) -> str:
        """Hash of the text of the function, part of each outcome's key."""
        try:
            text = inspect.getsource(self.function)
        except (OSError, TypeError):
            text = self.name
        return sha256(text.encode()).hexdigest()[:16]


@dataclass
class FunctionBackend:
    """What a run knows of the backend: the device and the machine. Nothing is compiled."""

    device: hardware.Device
    environment: Environment
    predicts: bool
    protocol: str
    room: int = 1
    place: GpuPlace = field(default_factory=GpuPlace)
    seconds: Mapping[str, float] = field(default_factory=dict)

    def close(self) -> None:
        """Do nothing: there is no process to end."""


def _gpu_here() -> TimedGpu | None:
    """Return the GPU of this process, with torch imported where it is asked for."""
    from workbench.measurement.function_timer import gpu_here

    return gpu_here()


@dataclass
class BenchCommand:
    """Time a function at all its sizes, from the options to the page."""

    target: BenchedFunction
    options: MeasureOptions
    open_gpu: Callable[[], TimedGpu | None] = _gpu_here

    def go(self) -> int:
        """Run to the end. Returns the exit code. Raises CommandError where there is no GPU and no
        device was named, and the errors of the parts."""
        for sizes in self.target.sizes:
            self.target.costs(sizes)
        gpu = None if self.options.device is not None else self.open_gpu()
        if gpu is None and self.options.device is None:
            raise CommandError(NEEDS_GPU)
        backend = self._paper_backend() if gpu is None else _backend_of(gpu)
        with ExitStack() as stack:
            opened = stack.enter_context(resources(self.options, lambda: cast(Backend, backend)))
            if gpu is not None:
                stack.enter_context(gpu_lock(gpu.lock, note))
            return self._go(opened, gpu)

    def _paper_backend(self) -> FunctionBackend:
        """Return the backend of a named device. Raises UnknownDevice, or CommandError where nothing
        is declared."""
        device = hardware.find_device(str(self.options.device))
        if self.target.bytes is None and self.target.flops is None:
            raise CommandError(
                f"The time of {self.target.name} cannot be predicted; declare "
                "bytes= or flops= for its roofline bound, or run it on a GPU without device=."
            )
        return FunctionBackend(device, fingerprint(None, Path.cwd()), True, BOUND)

    def _go(self, opened: OpenResources, gpu: TimedGpu | None) -> int:
        benched, backend = self.target, opened.backend
        spec = Spec(benched.name, {}, {}, benched.function, benched.flops or _none, [], [])
        dtype = benched.dtype
        problems = [Problem(benched.name, spec, sizes, dtype) for sizes in benched.sizes]
        module = benched.function.__module__
        run = new_run("measure", "bench", f"{module}.{benched.name}.run()", backend, problems)
        peaks = measured_peaks(opened.history, backend, [dtype])
        ceilings = {**run.ceilings, **_bandwidth(opened), **peaks}
        run = replace(run, ceilings=ceilings, source="")

        def obtain(recorder: Recorder) -> None:
            recorder.begin()
            for at, sizes in enumerate(benched.sizes):
                show_part(sizes_text(sizes), at, len(benched.sizes))
                for outcome in self._outcomes(recorder.run, backend, sizes, gpu):
                    recorder.keep(outcome)

        recorder = opened.recorder(run)
        state = execute(recorder, obtain, self._draw)
        page = draw_ended_run(recorder, self._draw)
        say_page(console_for(self.options), page)
        code = PASSED if recorder.has_times else COULD_NOT_RUN
        code = INTERRUPTED if state == "interrupted" else code
        return write_result(self.options, "measure", code, [recorder.result(page)])

    def _outcomes(
        self, run: Run, backend: Backend, sizes: Sizes, gpu: TimedGpu | None
    ) -> Iterator[Outcome]:
        """Yield the outcome of each provider at one size; of a named device the bound alone."""
        factory = FunctionRecords(self.target, run, backend, sizes)
        if gpu is None:
            yield factory.bound()
            return
        costs = self.target.costs(sizes)
        least_s = bound_s(backend.device, *costs, self.target.dtype)
        returned = self._returned_bytes(sizes) if costs[0] else 0
        if costs[0] < returned:
            factory = replace(factory, is_rated=False)
            note(
                f"{self.target.name} at {sizes_text(sizes)}: bytes= is {costs[0]:,}, less than "
                f"the {returned:,} of the tensors that a call returns; no rate and no share of a "
                "roof follows from it."
            )
        times = time_functions(
            gpu.timer,
            lambda number: self._calls(sizes, number),
            owners=self.target.owners,
            check=self.target.check,
            bound_s=least_s,
        )
        for provider, result in times.items():
            yield factory.outcome(provider, result)

    def _returned_bytes(self, sizes: Sizes) -> int:
        """Return the bytes of the tensors that the first provider's call returns; 0 where it fails,
        which its timing tells."""
        call = next(iter(self._calls(sizes, 0).values()))
        try:
            return tensor_bytes(call())
        except Exception:
            return 0

    def _calls(self, sizes: Sizes, number: int) -> Mapping[str, Call]:
        """Return the calls of one set of inputs. It has the same random values for each provider,
        and the program's own generators stay as they are."""
        import torch

        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(number)
            return self.target.make(sizes)

    def _draw(self, recorder: Recorder) -> Path:
        from workbench.reports.measure import page

        html = page(recorder.run, recorder.outcomes)
        return write_run_page(folder_of(self.options.out, recorder.run.id), html)


@dataclass(frozen=True)
class FunctionRecords:
    """Create the outcomes of one size."""

    target: BenchedFunction
    run: Run
    backend: Backend
    sizes: Sizes
    is_rated: bool = True  # the declared bytes can be those of a call

    def outcome(self, provider: str, result: Measured | Refused) -> Outcome:
        """Return the outcome of a provider."""
        if isinstance(result, Refused):
            stage = cast(Stage, result.stage)
            return Failure(*self._head(provider), stage=stage, reason=result.reason)
        checked = "gpu" if self.target.check else "not here"
        return self._record(provider, result, "final", checked)

    def bound(self) -> Record:
        """Return the roofline bound as a predicted time of its own name."""
        device, (moved, flops) = self.backend.device, self.target.costs(self.sizes)
        compute_s = arithmetic_s(device, flops, self.target.dtype)
        dram_s = moved / device.dram.value if device.dram else 0.0
        least = "compute" if compute_s > dram_s else "dram"
        timing = Predicted(max(compute_s, dram_s), BOUND, compute_s, dram_s, None, 0, 0, least)
        return self._record(BOUND, timing, "predict", "not here")

    def _record(self, provider: str, timing: Any, phase: Any, checked: Any) -> Record:
        moved, flops = self.target.costs(self.sizes)
        moved = moved if self.is_rated else 0
        more = {"phase": phase, "timing": timing, "checked": checked, "error": None}
        return Record(*self._head(provider), flops=flops, bytes=moved, **more)

    def _head(self, provider: str) -> tuple[Case, str, str, str]:
        benched, run = self.target, self.run
        device = self.backend.device.name
        case = Case(benched.name, provider, "python", {}, dict(self.sizes), benched.dtype, device)
        versions = run.environment.versions
        software = {name: versions.get(name, "") for name in ("torch", "triton")}
        key = key_of(case, source=benched.source, protocol=self.backend.protocol, **software)
        return case, key, run.id, timestamp()


def _backend_of(gpu: TimedGpu) -> FunctionBackend:
    return FunctionBackend(gpu.device, gpu.environment, False, gpu.timer.rules.id)


def _bandwidth(opened: OpenResources) -> Mapping[str, Mapping[str, Any]]:
    """Return the bandwidth of memory that `workbench ceilings` measured on this device, if any."""
    backend = opened.backend
    if backend.predicts:
        return {}
    measured = measured_ceilings(opened.history, backend.device.name) or {}
    return {name: c for name, c in measured.items() if c.get("level") == "dram"}


def tensor_bytes(result: Any) -> int:
    """Return the bytes of all tensors in a result of a call: one, or a list or mapping of them."""
    if isinstance(result, Mapping):
        return sum(map(tensor_bytes, result.values()))
    if isinstance(result, list | tuple):
        return sum(map(tensor_bytes, result))
    if hasattr(result, "numel") and hasattr(result, "element_size"):
        return int(result.numel() * result.element_size())
    return 0


def _none(**sizes: int) -> int:
    return 0
