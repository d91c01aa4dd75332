"""List the devices that a command can name."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.commands.console import say
from workbench.commands.options import DevicesOptions
from workbench.device.hardware import DEVICES, UNCOMPILED, Device


def devices() -> list[Device]:
    """Return every device of `workbench/devices/`, by name."""
    known = {**DEVICES, **UNCOMPILED}
    return [known[name] for name in sorted(known)]


def lines() -> Iterator[str]:
    """Yield one line a device: its name, architecture and title."""
    for device in devices():
        yield f"{device.name:<10} {device.limits.arch:<8} {device.title}"


def run(options: DevicesOptions) -> int:
    """Run the command. Returns its exit code."""
    for line in lines():
        say(line)
    return 0
