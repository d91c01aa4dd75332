"""The reports of the workers of a cluster, and the sentences that refuse a worker."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import workbench
from workbench.data.record import Environment
from workbench.device.hardware import Device

COMPARED = ("workbench", "triton", "torch")  # versions that must be those of the parent


@dataclass(frozen=True)
class WorkerReport:
    """Software of one worker."""

    host: str
    versions: Mapping[str, str]
    code: str  # hash of the workbench's own files
    pid: int


@dataclass(frozen=True)
class GpuReport:
    """GPU of one worker."""

    device: Device
    environment: Environment  # its `others_on_gpu` is of the time before the command used it
    lock: str  # name of the GPU's lock: its UUID where the driver reports one
    index: str  # on its host

    def title(self, host: str) -> str:
        """Return the name of the GPU on terminals and pages: `node3 GPU 1 (1f2e3d4c)`."""
        return f"{host} GPU {self.index} ({self.lock.removeprefix('GPU-')[:8]})"


@cache
def files_hash() -> str:
    """Return 16 hex digits, a hash of the names and bytes of the workbench's Python files."""
    folder = Path(workbench.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def software_refusal(title: str, theirs: WorkerReport, ours: WorkerReport) -> str | None:
    """Return one sentence why a worker cannot take part, or None."""
    for name in COMPARED:
        here, there = ours.versions.get(name, "none"), theirs.versions.get(name, "none")
        if here != there:
            return (
                f"The worker {title} has {name} {there}, and this process has {name} {here}; "
                f"install the same version there."
            )
    if theirs.code != ours.code:
        return (
            f"The worker {title} has other files of the workbench (hash {theirs.code}) than this "
            f"process (hash {ours.code}); install the same ones there."
        )
    return None


def model_refusal(title: str, model: str, first: str, first_model: str) -> str | None:
    """Return one sentence why a GPU cannot take part beside the first one, or None."""
    if model == first_model:
        return None
    return (
        f"The worker {title} has a {model}, and {first} has a {first_model}; GPUs of two models "
        "are not ranked together, so start one command for each."
    )


def kernel_refusal(
    title: str, kernel: str, theirs: Mapping[str, str], ours: Mapping[str, str]
) -> str | None:
    """Return one sentence why a worker's file of a kernel is not the one here, or None. Both are
    hashes of the code by Impl."""
    if dict(theirs) == dict(ours):
        return None
    odd = next((n for n in ours if theirs.get(n) != ours[n]), next(iter(theirs), ""))
    return (
        f"The worker {title} has another {kernel}: the code of its Impl {odd} has the hash "
        f"{theirs.get(odd, 'none')}, and here {ours.get(odd, 'none')}; copy the file there."
    )
