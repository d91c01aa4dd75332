"""Write when the steps of this process end, and the outputs that it names, for `workbench workload
compare`. Begun by the startup folder; needs the standard library until there is an output."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench.workload import gate
from workbench.workload.step_hooks import add_step_hook

MOST_BYTES = 64 * 2**20  # of outputs in one process; later ones are counted alone

now: Callable[[], float] = time.perf_counter  # seconds; a test puts its own here


@dataclass(frozen=True)
class MarkOptions:
    """Where to write, and which launches end a step."""

    folder: str
    kernel: str | None = None  # None: `workbench.step()` does
    launches: int = 1  # of the kernel in one step
    gate: bool = False  # wait for the gate in the folder before the GPU is used

    def text(self) -> str:
        """Return the options for the processes of a program."""
        return json.dumps(asdict(self))


class StepMarks:
    """The marks of this process. A file is begun with the first of them, so that processes without
    any leave none."""

    active: StepMarks | None = None

    def __init__(self, options: MarkOptions) -> None:
        self._folder = Path(options.folder)
        self._began = now()
        self._process = os.getpid()  # forked ones write nothing
        self._file: Any = None
        self._bytes = 0
        self._waits = options.gate

    def wait(self) -> None:
        """Wait for the gate of this run, once."""
        if self._waits and os.getpid() == self._process:
            self._waits, began = False, now()
            gate.wait(self._folder)
            self._write({"waited": now() - began})

    def step(self) -> None:
        """Mark the end of a step, once the GPU has done it."""
        if os.getpid() == self._process:
            self.wait()
            _synchronize()
            self._write({"step": now()})

    def output(self, name: str, value: Any) -> None:
        """Keep a tensor or a number. Raises TypeError for anything else."""
        if os.getpid() != self._process:
            return
        import numpy as np

        array = _array(value)
        row = {"output": str(name), "file": None, "shape": list(array.shape)}
        self._bytes += array.nbytes
        if self._bytes <= MOST_BYTES:
            row["file"] = f"{self._process}.{self._bytes}.{time.monotonic_ns()}.npy"
            np.save(self._folder / str(row["file"]), array, allow_pickle=False)
        self._write(row)

    def _write(self, row: Mapping[str, Any]) -> None:
        if self._file is None:
            path = self._folder / f"{self._process}.marks"
            self._file = path.open("a", encoding="utf-8", buffering=1)
            rank = os.environ.get("RANK", "")
            head = {"began": self._began, "rank": int(rank) if rank.isdecimal() else None}
            self._file.write(json.dumps(head) + "\n")
        self._file.write(json.dumps(row) + "\n")


def begin(text: str) -> None:
    """Mark the steps of this process, by the text of MarkOptions."""
    options = MarkOptions(**json.loads(text))
    marks = StepMarks.active = StepMarks(options)
    if options.gate:
        gate.call_before_gpu(marks.wait)
    if options.kernel is None:
        add_step_hook(marks.step)
        return
    from workbench.traces.profilers.running.after_import import AfterImport

    counter = StepLaunches(options, marks)
    sys.meta_path.insert(0, AfterImport("triton", counter.install))


class StepLaunches:
    """Ends a step at each n-th launch of one kernel."""

    def __init__(self, options: MarkOptions, marks: StepMarks) -> None:
        self._name, self._every, self._marks = options.kernel, options.launches, marks
        self._count = 0

    def install(self) -> None:
        """Observe all launches of this process from now on."""
        from workbench.workload.triton_hooks import TritonHooks

        TritonHooks(self).install(choosers=False)

    def note_launch(
        self, jit: Any, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Any, by: Any
    ) -> None:
        """Count a launch, after it."""
        if jit.__name__ == self._name:
            self._count += 1
            if self._count % self._every == 0:
                self._marks.step()

    def launched_by_inductor(self, tuner: Any, args: Sequence[Any]) -> None:
        """Count a launch of a kernel of torch.compile, after it."""
        self.note_launch(tuner.fn, args, {}, (), None)


def _synchronize() -> None:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()


def _array(value: Any) -> Any:
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach()
        if value.is_floating_point():
            value = value.double() if value.element_size() == 8 else value.float()
        value = value.cpu().numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"an output is a tensor or a number of real values, not {array.dtype}")
    return array
