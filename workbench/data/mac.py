"""Read the fingerprint of a Mac from what its own programs print: an allow-list, so no serial
number, host or user name.

The parsers are pure functions of text. `read_mac` runs the programs; no Mac has run it yet.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.data.environment import fingerprint, installed_version, output_of
from workbench.data.record import Environment

# The programs, and the settings and versions that may leave the machine.
DISPLAYS = ("system_profiler", "SPDisplaysDataType", "-json")
BATTERY = ("pmset", "-g", "batt")
POWER = ("pmset", "-g")
MEMORY = ("sysctl", "-n", "hw.memsize")
SETTINGS = ("power", "low_power_mode", "gpu_cores", "architecture", "math_mode", "MLX_ENABLE_TF32")
VERSIONS = ("workbench", "torch", "numpy", "mlx")

Run = Callable[..., str | None]  # a program and its arguments; None where it fails


@dataclass(frozen=True)
class Mac:
    """A Mac, as its measurements need it. Fields are None where no program tells."""

    chip: str | None  # "Apple M2 Max"
    gpu_cores: int | None
    memory_bytes: int | None
    power: str | None  # "ac" or "battery"
    low_power: bool | None

    def refusal(self) -> str | None:
        """Return in one sentence why times taken now would mislead, or None."""
        if self.power == "battery":
            return "The Mac runs on its battery, which lowers the clock; plug it in."
        if self.low_power:
            return "Low power mode is on, which lowers the clock; turn it off in System Settings."
        if self.power is None:
            return "pmset does not say whether the Mac runs on its battery."
        return None


def parse_displays(text: str) -> tuple[str | None, int | None]:
    """Return the chip and the number of its GPU cores from the JSON of `system_profiler
    SPDisplaysDataType`; None for what it does not tell."""
    try:
        displays = json.loads(text)["SPDisplaysDataType"]
        entries = [d for d in displays if str(d.get("sppci_model", "")).startswith("Apple")]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, None
    if not entries:
        return None, None
    cores = str(entries[0].get("sppci_cores", ""))
    chip = re.match(r"Apple M\d+(?: (?:Pro|Max|Ultra))?", entries[0]["sppci_model"])
    return chip and chip[0], int(cores) if re.fullmatch(r"\d{1,3}", cores, re.ASCII) else None


def parse_power(text: str) -> str | None:
    """Return `ac` or `battery` from the first line of `pmset -g batt`, or None."""
    source = re.match(r"Now drawing from '(AC|Battery) Power'", text)
    return {"AC": "ac", "Battery": "battery"}[source[1]] if source else None


def parse_low_power(text: str) -> bool | None:
    """Return whether low power mode is on from `pmset -g`. A Mac without the setting has none of
    its lines: False where other settings stand there, None where nothing does."""
    mode = re.search(r"^\s*(?:lowpowermode|powermode)\s+(\d)\s*$", text, re.M)
    if mode:
        return mode[1] == "1"
    return False if re.search(r"^\s*sleep\s", text, re.M) else None


def read_mac(run: Run = output_of) -> Mac:
    """Return this Mac; `run` prints what a program prints, or None where it fails."""
    chip, cores = parse_displays(run(*DISPLAYS) or "")
    memory = run(*MEMORY) or ""
    return Mac(
        chip=chip,
        gpu_cores=cores,
        memory_bytes=int(memory) if re.fullmatch(r"\d{1,15}", memory, re.ASCII) else None,
        power=parse_power(run(*BATTERY) or ""),
        low_power=parse_low_power(run(*POWER) or ""),
    )


def mac_environment(
    mac: Mac, info: Mapping[str, Any] | None = None, repository: Path | None = None
) -> Environment:
    """Return the environment of a run on this Mac. `info` is MLX's `device_info`, of which the
    architecture is taken."""
    environment = fingerprint(None, repository)
    low = None if mac.low_power is None else str(int(mac.low_power))
    settings = {
        "power": mac.power,
        "low_power_mode": low,
        "gpu_cores": None if mac.gpu_cores is None else str(mac.gpu_cores),
        "architecture": str((info or {}).get("architecture", ""))[:40] or None,
        "math_mode": "safe",  # MLX's default for custom kernels, which nothing here changes
        "MLX_ENABLE_TF32": os.environ.get("MLX_ENABLE_TF32"),
    }
    versions = {**environment.versions, "mlx": installed_version("mlx")}
    return replace(
        environment,
        gpu=mac.chip,
        # what launches and compiles there, so that keys of two versions differ
        driver=f"MLX {installed_version('mlx') or 'unknown'}, {environment.os}",
        gpu_memory_bytes=mac.memory_bytes,
        versions={k: v for k, v in versions.items() if k in VERSIONS and v},
        settings={k: v for k, v in settings.items() if v is not None},
    )
