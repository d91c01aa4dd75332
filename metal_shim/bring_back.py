"""Measure a Mac once and write what to send back: `python -m metal_shim.bring_back`, 10 minutes.

Nothing is sent. The file holds a fingerprint, checks, times and counts, and no name, serial number
or path. Each result is on disk before the next; the same command continues a run that was stopped.
With --rehearse the emulator takes the GPU's place and a clock of its own the time's. No Mac has run
it yet.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from metal_shim.check import run_command
from metal_shim.rehearsal import REHEARSED, RehearsalDriver, SameProcess
from workbench.backend.metal.emulated import require_emulator
from workbench.backend.metal.metal import MetalLive, NoMetal
from workbench.commands.bring_back import BringBackPlan, bring_back
from workbench.data.exits import PASSED
from workbench.device.hardware import metal_device

REHEARSAL = BringBackPlan(kernels=("softmax", "matmul"), checked_kernels=("softmax",), sizes=1)


def backend_of(options: argparse.Namespace) -> MetalLive:
    """Return the backend. Raises NoMetal where there is no Metal device, or where times on it would
    mislead."""
    folder = Path(__file__).parent
    if options.rehearse:
        require_emulator()
        driver, process = RehearsalDriver(), SameProcess()
        backend = MetalLive(folder, mac=REHEARSED, driver=driver, process=process)
        backend.environment = replace(backend.environment, gpu=None, gpu_memory_bytes=None)
        return backend
    if not metal_device():
        raise NoMetal(
            "MLX has no Metal device here: run it on a Mac with `pip install mlx`, or see what it "
            "does with --rehearse."
        )
    return MetalLive(folder, battery=options.battery)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0, 2 where nothing could be measured, 130 after
    Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m metal_shim.bring_back", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the file")
    parser.add_argument("--battery", action="store_true", help="measure on slow power, too")
    parser.add_argument("--rehearse", action="store_true", help="without a Mac, on the emulator")
    options = parser.parse_args(arguments)
    return run_command(lambda: _measure(options), "stopped; the same command continues")


def _measure(options: argparse.Namespace) -> int:
    say = partial(print, flush=True)
    with closing(backend_of(options)) as backend:
        plan = replace(REHEARSAL, rehearsal=True) if options.rehearse else BringBackPlan()
        path = bring_back(backend, plan, options.out, say)
    then = "a rehearsal; it cannot be imported" if options.rehearse else "send this file back"
    say(f"written {path} ({path.stat().st_size} bytes): {then}")
    return PASSED


if __name__ == "__main__":
    sys.exit(main())
