"""Record a process of a program that `workbench workload record` started.

Each process writes a file of its own into the folder that the command gave; the command merges them
at the end.
"""

import atexit
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbench.workload.recorder import LaunchRecorder, RecordOptions
from workbench.workload.step_hooks import add_step_hook


def handed_on(folder: Path, options: RecordOptions) -> str:
    """Return the text by which processes learn where and what to record."""
    return json.dumps({"folder": str(folder), "options": asdict(options)})


def begin(text: str) -> None:
    """Record this process until its end, by the text of `handed_on`."""
    given = json.loads(text)
    path = Path(given["folder"]) / f"process.{os.getpid()}.workload"
    options = RecordOptions(**given["options"])
    if options.device is not None:
        from workbench.compile.stand_in import stand_in
        from workbench.device.hardware import device_named

        stand_in(device_named(options.device), for_program=True)
    recorder = LaunchRecorder(path, options)
    recorder.__enter__()
    atexit.register(recorder.end)
    _end_before_exit(recorder)
    add_step_hook(recorder.step)


def _end_before_exit(recorder: LaunchRecorder) -> None:
    """Let `os._exit` write the recording first; it skips all exit handlers."""
    leave = os._exit

    def end_and_leave(status: int) -> Any:
        try:
            recorder.end()
        finally:
            leave(status)

    os._exit = end_and_leave
