"""List the devices that --device can name: name, architecture, title."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.commands import field
from workbench.commands.options import Options
from workbench.data.exits import PASSED

if TYPE_CHECKING:
    from workbench.device.hardware import Device


class DevicesOptions(Options):
    quiet: bool = field.quiet("Print only the names.")
    json: Path | None = field.json("Write all figures to this file; - is standard output.")


def run(options: DevicesOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.console import console_for, say_result
    from workbench.commands.result import write_result
    from workbench.device.hardware import DEVICES, UNCOMPILED

    console, devices = console_for(options), {**DEVICES, **UNCOMPILED}
    for name, device in sorted(devices.items()):
        say_result(console, name if options.quiet else line(device))
    known = [asdict(devices[name]) for name in sorted(devices)]
    return write_result(options, "devices", PASSED, devices=known)


def line(device: Device) -> str:
    """Return a device's name, architecture and title, and the number of kernels calibrated."""
    from workbench.data.units import amount
    from workbench.device.calibration import calibration_of

    known = calibration_of(device.name)
    more = f", calibrated for {amount(len(known.kernels), 'kernel')}" if known else ""
    return f"{device.name:<10} {device.limits.arch:<8} {device.title}{more}"
