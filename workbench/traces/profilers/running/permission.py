"""Read from the driver's settings whether a process may read hardware counters."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from workbench.data.files import readable_text

NVIDIA_PARAMS = Path("/proc/driver/nvidia/params")
OWN_STATUS = Path("/proc/self/status")
CAP_SYS_ADMIN = 21  # bit number in capabilities(7)
REMEDY = (
    "run ncu with CAP_SYS_ADMIN, or have an administrator load the nvidia module with "
    "NVreg_RestrictProfilingToAdminUsers=0"
)


@dataclass(frozen=True)
class CounterPermission:
    """The driver's word on counters: `is_allowed` is None where no driver says anything."""

    is_allowed: bool | None
    reason: str
    remedy: str = ""


def counter_permission(
    params: Path = NVIDIA_PARAMS, status: Path = OWN_STATUS
) -> CounterPermission:
    """Return whether this process may read counters of an NVIDIA GPU, from files alone."""
    restricted = re.search(r"RmProfilingAdminOnly:\s*(\d)", readable_text(params) or "")
    if restricted is None:
        return CounterPermission(None, "no NVIDIA driver says who may read them")
    if restricted[1] == "0":
        return CounterPermission(True, "every user may read them")
    if _is_admin(status):
        return CounterPermission(True, "administrators may, and this process is one")
    reason = "only administrators may read them (RmProfilingAdminOnly is 1)"
    return CounterPermission(False, reason, REMEDY)


def _is_admin(status: Path) -> bool:
    """Return whether the process has CAP_SYS_ADMIN, which root in a container often lacks."""
    effective = re.search(r"^CapEff:\s*([0-9a-fA-F]+)$", readable_text(status) or "", re.MULTILINE)
    if effective:
        return bool(int(effective[1], 16) >> CAP_SYS_ADMIN & 1)
    return hasattr(os, "geteuid") and os.geteuid() == 0
