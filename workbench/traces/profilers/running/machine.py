"""The facts of a machine that decide which profilers can run: driver, versions, programs."""

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from workbench.data.environment import gpu_shown
from workbench.traces.profilers.running.permission import CounterPermission, counter_permission

# Variables that load a collector into every process, each with the tools that set it.
COLLECTORS = {
    "CUDA_INJECTION64_PATH": "ncu, nsys, compute-sanitizer",
    "ROCP_TOOL_LIBRARIES": "rocprofv3",
    "HSA_TOOLS_LIB": "rocprof",
}
CAPTURE = "MTL_CAPTURE_ENABLED"  # of Apple: 1 lets a process capture its Metal commands
VARIABLES = (*COLLECTORS, "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", CAPTURE)
PACKAGES = ("torch", "triton", "ncu-report")
PROGRAMS = (
    "ncu", "compute-sanitizer", "nsys", "rocprofv3", "rocprofv3-avail", "rocprof",
    "rocprof-compute", "xcrun",
)  # fmt: skip
KFD = Path("/dev/kfd")  # through which AMD's driver is reached


NOBODY_SAYS = CounterPermission(None, "no driver says who may read them")


@dataclass(frozen=True)
class Machine:
    """A machine, as the command lines and refusals of profilers see it."""

    python: str  # the interpreter of the workbench
    gpu: str = ""  # `cuda` or `hip` where a driver shows a GPU that torch can use
    versions: Mapping[str, str] = field(default_factory=dict)  # of packages that are installed
    variables: Mapping[str, str] = field(default_factory=dict)  # of VARIABLES, those that are set
    programs: Mapping[str, str] = field(default_factory=dict)  # paths of what is on the path
    system: str = "linux"  # as sys.platform
    counters: CounterPermission = NOBODY_SAYS
    kfd: bool = True  # AMD's driver may be opened

    def program(self, name: str) -> str:
        """Return the path of a program, or its bare name where it is not on the path."""
        return self.programs.get(name, name)


def machine_here(programs: Iterable[str] = ()) -> Machine:
    """Return this machine, with the paths of these programs. Imports nothing large and starts
    nothing on a GPU."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    paths = {name: path for name in (*PROGRAMS, *programs) if (path := shutil.which(name))}
    variables = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    kfd = os.access(KFD, os.R_OK | os.W_OK)
    known = versions, variables, paths, sys.platform, counter_permission(), kfd
    return Machine(sys.executable, gpu_shown(), *known)


def collector_refusal(machine: Machine) -> str | None:
    """Return in one sentence why no further collector can enter a process here, or None."""
    for name, tools in COLLECTORS.items():
        if name in machine.variables:
            return (
                f"{name} is set, by which {tools} enter every process, and a process has one "
                f"collector at a time; run without it: env -u {name} workbench profile ..."
            )
    return None
