"""List the devices that a command can name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from workbench.commands.console import console_for, say_result
from workbench.commands.options import DevicesOptions
from workbench.commands.result import write_result
from workbench.data.exits import PASSED
from workbench.data.units import amount
from workbench.device.calibration import calibration_of
from workbench.device.hardware import DEVICES, UNCOMPILED, Device


def devices() -> list[Device]:
    """Return every device of `workbench/devices/`, by name."""
    known = {**DEVICES, **UNCOMPILED}
    return [known[name] for name in sorted(known)]


def lines() -> Iterator[str]:
    """Yield one line a device: its name, architecture and title, and how many kernels its
    calibration has."""
    for device in devices():
        known = calibration_of(device.name)
        more = f", calibrated for {amount(len(known.kernels), 'kernel')}" if known else ""
        yield f"{device.name:<10} {device.limits.arch:<8} {device.title}{more}"


def run(options: DevicesOptions) -> int:
    """Run the command. Returns its exit code."""
    console = console_for(options)
    known = [device.name for device in devices()] if options.quiet else list(lines())
    for line in known:
        say_result(console, line)
    return write_result(options, "devices", PASSED, devices=[asdict(d) for d in devices()])
