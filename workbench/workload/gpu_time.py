"""GPU time by kernel of a window of the program, by torch.profiler (CUPTI on NVIDIA).

The window is `profile_steps` steps after the first one, which compiles and tunes. A step ends at
`workbench.step()` or at a step of an optimizer of torch. A program that marks no step is profiled
from its first launch on, for
`MOST_LAUNCHES` launches.
"""

import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.traces.trace import ActivityKind, Trace
from workbench.workload.file import GpuTimes, KernelTime

MOST_LAUNCHES = 20_000  # of a program without steps; a trace takes about 1 kB a launch
OTHERS = 10  # the longest kernels that are not recorded ones

Place = tuple[str, tuple[int, int, int], tuple[int, int, int]]


class ProfiledWindow:
    """The profiler of one recording. Its errors are notes: they are none of the program's."""

    def __init__(self, steps: int) -> None:
        self.notes: list[str] = []
        self._wanted = steps
        self._ended = steps == 0
        self._steps = 0  # that are over
        self._profiler: Any = None
        self._window = ""
        self._trace: Trace | None = None
        self._hook: Any = None
        self._marked = False  # the program calls `workbench.step()`

    def first_launch(self, on_gpu: bool) -> None:
        """Begin, at the first launch."""
        if self._ended or not on_gpu or not _has_gpu():
            return
        with suppress(ImportError, AttributeError):
            from torch.optim.optimizer import register_optimizer_step_post_hook

            self._hook = register_optimizer_step_post_hook(lambda *_: self.step())
        self._window = "the program from its first launch on: it marks no steps"
        self._begin()

    def mark_step(self) -> None:
        """Hear of `workbench.step()`. From the first one on, steps of optimizers end no step."""
        if not self._marked:
            self._marked = True
            self._forget_optimizers()
            self._steps = 0
        self.step()

    def _forget_optimizers(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def step(self) -> None:
        """Hear that a step is over: the first one ends what was before, and begins the window."""
        self._steps += 1
        if self._ended or self._profiler is None:
            return
        if self._steps == 1:
            self._stop()
            self._begin()
        first, last = 2, self._steps
        self._window = f"steps {first} to {last}" if last > first else f"step {first}"
        if self._steps > self._wanted:
            self.end()

    def full(self) -> None:
        """Hear of the last launch that a program without steps is profiled for."""
        if self._steps == 0 and not self._ended:
            self._window = f"its first {MOST_LAUNCHES:,} launches: it marked no step until then"
            self.end()

    def end(self) -> None:
        """Stop, and read what was recorded; once."""
        self._forget_optimizers()
        if self._ended:
            return
        self._ended = True
        if (profiler := self._stop()) is None:
            return
        try:
            self._trace = _trace_of(profiler)
        except Exception as error:
            self._fail(error)

    def times(self, names: Collection[str]) -> GpuTimes | None:
        """Return the times of the window; None where nothing was profiled. `names` are those of the
        recorded kernels."""
        return None if self._trace is None else times_of(self._trace, names, self._window)

    def _begin(self) -> None:
        try:
            from torch.profiler import ProfilerActivity, profile

            self._profiler = profile(activities=[ProfilerActivity.CUDA], acc_events=True)
            self._profiler.start()
        except Exception as error:
            self._profiler = None
            self._fail(error)

    def _stop(self) -> Any:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return None
        try:
            profiler.stop()
        except Exception as error:
            self._fail(error)
            return None
        return profiler

    def _fail(self, error: Exception) -> None:
        self._ended = True
        first = (str(error).strip().splitlines() or [""])[0][:200]
        self.notes.append(f"GPU times are missing: {type(error).__name__}: {first}")


def _has_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


def _trace_of(profiler: Any) -> Trace:
    from workbench.traces.readers import read

    with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
        path = Path(folder) / "torch.pt.trace.json"
        profiler.export_chrome_trace(str(path))
        return read([path])


def times_of(trace: Trace, names: Collection[str], window: str) -> GpuTimes:
    """Return the GPU time of each kernel and grid of a trace.

    Args:
        trace: as `workbench.traces.readers.read` gives it.
        names: names of recorded kernels. Others count in the total, and the longest are listed.
        window: which part of the program the trace is of.
    """
    spent: dict[Place, int] = defaultdict(int)
    launches: dict[Place, int] = defaultdict(int)
    others: dict[str, int] = defaultdict(int)
    total = 0
    for index in trace.activities.select(ActivityKind.KERNEL):
        activity = trace.activities[index]
        total += activity.duration
        if activity.name not in names:
            others[activity.name] += activity.duration
            continue
        geometry = activity.geometry
        place = activity.name, geometry.grid or (0, 0, 0), geometry.block or (0, 0, 0)
        spent[place] += activity.duration
        launches[place] += 1
    kernels = [KernelTime(*place, launches[place], ns * 1e-9) for place, ns in spent.items()]
    kernels.sort(key=lambda each: -each.seconds)
    longest = sorted(others.items(), key=lambda each: -each[1])[:OTHERS]
    rest = tuple((name, ns * 1e-9) for name, ns in longest)
    return GpuTimes(window, total * 1e-9, tuple(kernels), rest)


def shares(times: GpuTimes) -> str:
    """Return which part of all GPU time the recorded kernels have, in one sentence."""
    ours = sum(each.seconds for each in times.kernels)
    launches = sum(each.launches for each in times.kernels)
    share = ours / times.total_s if times.total_s else 0.0
    return (
        f"Triton kernels have {100 * share:.1f} % of the GPU time of {times.window}: "
        f"{1e3 * ours:.3f} of {1e3 * times.total_s:.3f} ms, in {launches:,} launches."
    )
