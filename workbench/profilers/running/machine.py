"""The facts of a machine that decide which profilers can run: driver, versions, programs."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from workbench.data.environment import gpu_shown

# Variables that load a collector into every process, each with the tools that set it.
COLLECTORS = {
    "CUDA_INJECTION64_PATH": "ncu, nsys, compute-sanitizer",
    "ROCP_TOOL_LIBRARIES": "rocprofv3",
    "HSA_TOOLS_LIB": "rocprof",
}
VARIABLES = (*COLLECTORS, "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
PACKAGES = ("torch", "triton")


@dataclass(frozen=True)
class Machine:
    """A machine, as the command lines and refusals of profilers see it."""

    python: str  # the interpreter of the workbench
    gpu: str = ""  # `cuda` or `hip` where a driver shows a GPU that torch can use
    versions: Mapping[str, str] = field(default_factory=dict)  # of packages that are installed
    variables: Mapping[str, str] = field(default_factory=dict)  # of VARIABLES, those that are set
    programs: Mapping[str, str] = field(default_factory=dict)  # paths of what is on the path


def machine_here(programs: Iterable[str] = ()) -> Machine:
    """Return this machine, with the paths of these programs. Imports nothing large and starts
    nothing on a GPU."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    paths = {name: path for name in programs if (path := shutil.which(name))}
    variables = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    return Machine(sys.executable, gpu_shown(), versions, variables, paths)


def collector_refusal(machine: Machine) -> str | None:
    """Return in one sentence why no further collector can enter a process here, or None."""
    for name, tools in COLLECTORS.items():
        if name in machine.variables:
            return (
                f"{name} is set, by which {tools} enter every process, and a process has one "
                f"collector at a time; run without it: env -u {name} workbench profile ..."
            )
    return None
