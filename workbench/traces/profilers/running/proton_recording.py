"""Triton's Proton around a program, or around the marked steps of a script of ours.

Loaded by the path of this file into the program's own process, see `recorder.py`.
"""

import argparse
from pathlib import Path
from typing import Any

NAME = "proton"  # of the file, before Proton's own ending
MARKED = "wb"  # scope around the marked steps


class ProtonRecording:
    """One profile: the tree, the trace, or the records inside of kernels."""

    MODULE = ""  # begun before the program, as Triton's own command line does

    def __init__(self, options: argparse.Namespace) -> None:
        self._folder: Path = options.folder
        self._data: str = options.data
        self._first = 0 if options.active is None else options.wait + options.warmup
        self._last = None if options.active is None else self._first + options.active
        self._is_inside = self._data == "inside"
        self._running: Any = None
        self._step = 0
        self._scope = options.stepping and not self._is_inside
        self._facts: dict[str, Any] = {"recorded": "", "conflict": False}

    def facts(self) -> dict[str, Any]:
        """Return what the process that started this one needs to know."""
        return self._facts

    def begin(self) -> None:
        """Import Proton, and begin unless steps come first. Records inside of kernels begin at
        once: kernels that were compiled before hold none."""
        import triton

        self._facts["triton"] = triton.__version__
        if self._first == 0 or self._is_inside:
            self._start()

    def step(self) -> None:
        """Begin or end at a step."""
        self._step += 1
        if self._is_inside:
            return
        if self._step == self._last:
            self._stop()
        elif self._step == self._first:
            self._start()

    def end(self) -> None:
        """Write the profile."""
        self._stop()

    def _start(self) -> None:
        import triton.profiler as proton

        name = str(self._folder / NAME)
        if self._is_inside:
            self._running = proton.start(name, backend="instrumentation", data="trace")
        else:
            self._running = proton.start(name, data=self._data, hook="triton")
        if self._running is None:
            raise RuntimeError("Proton is switched off here (TRITON_PROTON_DISABLE)")
        self._facts["recorded"] = "steps" if self._scope else "program"
        if self._scope:
            proton.enter_scope(MARKED)

    def _stop(self) -> None:
        import triton.profiler as proton

        if self._running is None:
            return
        try:
            if self._scope:
                proton.exit_scope()
        finally:
            proton.finalize(self._running)
            self._running = None


RECORDING = ProtonRecording
