"""torch.profiler around a program, begun as soon as the program has imported torch.

Loaded by the path of this file into the program's own process, see `recorder.py`.
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

TRACE = "torch.pt.trace.json"  # the ending by which TensorBoard's plugin knows a trace
OPERATORS = "operators.json"
PROGRAM = "program"  # range around all that is recorded without a schedule
TWICE = (
    "workbench records this program with torch.profiler, and a process has one profiler at a time; "
    "run the program without `workbench profile`, and read its own trace with `workbench read`"
)


class TorchRecording:
    """One trace: of the whole program, or of the steps of a schedule."""

    MODULE = "torch"

    def __init__(self, options: argparse.Namespace) -> None:
        self._folder: Path = options.folder
        self._options = options
        steps = (options.wait, options.warmup, options.active)
        self._schedule: tuple[int, int, int] | None = None if steps[2] is None else steps
        self._whole: Any = None  # the profiler of the whole program, with its range
        self._range: Any = None
        self._steps: Any = None  # the profiler with the schedule
        self._ours: list[Any] = []
        self._facts: dict[str, Any] = {"recorded": "", "conflict": False}
        self._took_s: list[float] = []  # of each step but the first, in which the program begins
        self._start_s: float | None = None

    def facts(self) -> dict[str, Any]:
        """Return what the process that started this one needs to know."""
        return self._facts

    def begin(self) -> None:
        """Begin to record. With a schedule, the whole program until its first step, unless the
        program is known to have steps, or its first step is one to record."""
        import torch

        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # 5 prints two lines at each start
        # torch 2.11 warns that a second cycle would drop the first; there is only one cycle
        warnings.filterwarnings("ignore", message="Warning: Profiler clears events")
        self._facts["torch"] = torch.__version__
        self._refuse_others()
        if self._schedule is None:
            self._begin_whole()
        elif self._options.stepping or sum(self._schedule[:2]) == 0:
            self._begin_steps()
        else:
            self._begin_whole()

    def step(self) -> None:
        """Go on to the next step of the schedule."""
        now = time.perf_counter()
        if self._schedule is None:
            return
        if self._start_s is not None:
            self._took_s.append(now - self._start_s)
        if self._steps is None:
            self._end_whole()  # of the time before the first step; it is not kept
            self._begin_steps()
        self._steps.step()
        self._start_s = time.perf_counter()  # what the profiler does between steps is of none

    def end(self) -> None:
        """Stop, and write the trace and the table of operators."""
        import torch

        self._facts["gpu_used"] = bool(torch.cuda.is_initialized())
        if self._steps is not None:
            self._steps.stop()
            self._facts["recorded_step_s"], self._facts["plain_step_s"] = self._step_seconds()
        elif self._whole is not None:
            whole = self._whole
            self._end_whole()
            self._save(whole, "program")

    def _step_seconds(self) -> tuple[list[float], list[float]]:
        """Return the host's seconds of the recorded steps, and of those without the profiler."""
        assert self._schedule is not None
        wait, warmup, active = self._schedule
        first = wait + warmup
        recorded = self._took_s[max(0, first - 1) : max(0, first + active - 1)]
        plain = self._took_s[: max(0, wait - 1)] + self._took_s[max(0, first + active - 1) :]
        return recorded, plain

    def _begin_whole(self) -> None:
        from torch.profiler import record_function

        self._whole = self._profile()
        self._whole.start()
        self._range = record_function(PROGRAM)
        self._range.__enter__()

    def _end_whole(self) -> None:
        self._range.__exit__(None, None, None)
        self._whole.stop()
        self._whole = None

    def _begin_steps(self) -> None:
        from torch.profiler import schedule

        assert self._schedule is not None
        wait, warmup, active = self._schedule
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a schedule without a warm-up
            plan = schedule(wait=wait, warmup=warmup, active=active, repeat=1)
        ready = lambda profiler: self._save(profiler, "steps")  # noqa: E731
        self._steps = self._profile(schedule=plan, on_trace_ready=ready)
        self._steps.start()

    def _profile(self, **more: Any) -> Any:
        import torch
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds.append(ProfilerActivity.CUDA)
        profiler = profile(
            activities=kinds,
            record_shapes=self._options.shapes,
            profile_memory=self._options.memory,
            with_stack=self._options.stacks,
            **more,
        )
        self._ours.append(profiler)
        return profiler

    def _save(self, profiler: Any, recorded: str) -> None:
        draft = self._folder / f"draft.{TRACE}"
        profiler.export_chrome_trace(str(draft))
        draft.replace(self._folder / TRACE)
        self._facts["recorded"] = recorded
        results = _ReadableResults(profiler.profiler.kineto_results)
        profiler.profiler.kineto_results = results
        table = json.dumps(_operators(profiler, self._options.shapes))
        (self._folder / OPERATORS).write_text(table, encoding="utf-8")
        self._facts["unreadable"] = results.unreadable

    def _refuse_others(self) -> None:
        """Let the program's own use of torch.profiler raise an error: two at once lose events."""
        from torch.autograd.profiler import profile as older
        from torch.profiler import profile

        start = profile.start

        def check_and_start(profiler: Any) -> Any:
            if not any(profiler is own for own in self._ours):
                self._refuse()
            return start(profiler)

        profile.start = check_and_start
        older.__enter__ = lambda _: self._refuse()

    def _refuse(self) -> None:
        self._facts["conflict"] = True
        raise RuntimeError(TWICE)


class _ReadableResults:
    """The events of a recording whose texts are UTF-8. torch 2.13 with stacks gives some frames of
    Python names of other bytes, at which its own parser ends with UnicodeDecodeError."""

    def __init__(self, results: Any) -> None:
        self._results = results
        self.unreadable = 0  # events left out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)

    def events(self) -> list[Any]:
        """Return the events whose name and stack can be read."""
        every = self._results.events()
        kept = [event for event in every if _is_readable(event)]
        self.unreadable = len(every) - len(kept)
        return kept


def _is_readable(event: Any) -> bool:
    try:
        event.name(), event.stack()
    except UnicodeDecodeError:
        return False
    return True


def _operators(profiler: Any, shapes: bool) -> list[dict[str, Any]]:
    """Return one row an operator, summed over its calls. Times in seconds; `device` is where a row
    ran: a kernel's own row is of a GPU, and its time is also in the row of the operator."""
    frames = {e.name for e in profiler.events() if getattr(e, "is_python_function", False)}
    rows = []
    for event in profiler.key_averages(group_by_input_shape=shapes):
        if event.key in frames:
            continue
        row = {
            "name": event.key,
            "device": event.device_type.name.lower(),
            "calls": event.count,
            "cpu_s": event.cpu_time_total * 1e-6,
            "self_cpu_s": event.self_cpu_time_total * 1e-6,
            "device_s": event.device_time_total * 1e-6,
            "self_device_s": event.self_device_time_total * 1e-6,
            "self_cpu_bytes": event.self_cpu_memory_usage,
            "self_device_bytes": event.self_device_memory_usage,
            "is_range": bool(getattr(event, "is_user_annotation", False)),
        }
        if shapes:
            row["shapes"] = str(event.input_shapes)
        rows.append(row)
    return rows


RECORDING = TorchRecording
