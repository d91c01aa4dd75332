"""Let processes of compared runs import at once, and use the GPU one run after the other.

A run waits, in each of its processes, as torch first uses the GPU or at its first step, whichever
comes first, until its gate is opened. The gate is a lock on a file, which takes no time of the
processor while it is waited for, and which the kernel gives up if the comparison is killed.
"""

import fcntl
import os
import sys
from pathlib import Path
from typing import Any

FILE, OPENED = "gate", "opened"


class Gate:
    """The gate of one run, closed until `open`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / FILE).open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    @property
    def waited_for(self) -> bool:
        """Whether a process waits."""
        return any(self._folder.glob("*.waiting"))

    def open(self) -> None:
        """Let the run go on."""
        (self._folder / OPENED).touch()
        self.close()

    def close(self) -> None:
        """Give up the lock: processes that still wait end."""
        self._file.close()


def wait(folder: Path) -> None:
    """Wait until the gate in this folder is opened. The process ends if the one that would open it
    has ended."""
    (folder / f"{os.getpid()}.waiting").touch()
    with (folder / FILE).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    if not (folder / OPENED).exists():
        sys.exit("The comparison that this run belongs to has ended.")


def call_before_gpu(then: Any) -> None:
    """Call a function as torch first uses the GPU in this process."""
    from workbench.traces.profilers.running.after_import import AfterImport

    def hook_torch() -> None:
        sys.modules["torch"].cuda._lazy_call(then)

    sys.meta_path.insert(0, AfterImport("torch", hook_torch))
