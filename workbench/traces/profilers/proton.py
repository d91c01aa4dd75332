"""Proton, Triton's profiler: times of kernels as a tree or a trace, or records inside of them."""

from pathlib import Path

from workbench.traces.profilers import Profiler, ToolRun
from workbench.traces.profilers.running.expected import check_inside, check_marked_calls
from workbench.traces.profilers.running.machine import Machine
from workbench.traces.profilers.running.proton_recording import NAME
from workbench.traces.profilers.running.workload import Workload, recorder_argv
from workbench.traces.readers import read
from workbench.traces.trace import Trace

ENDINGS = {"tree": "hatchet", "trace": "chrome_trace", "inside": "chrome_trace"}


def available(machine: Machine, workload: Workload) -> str | None:
    """Return why Proton cannot record here, or None."""
    if not machine.gpu:
        return (
            "Proton records kernels on a GPU, and no driver shows one here; `--tool trace` records "
            "the CPU."
        )
    if workload.marks and "triton" not in machine.versions:
        return "Triton is not installed, and Proton is a part of it: pip install triton."
    masked = [n for n in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if n in machine.variables]
    if machine.gpu == "hip" and masked:
        return f"Proton refuses {masked[0]} on AMD GPUs; unset it, and set ROCR_VISIBLE_DEVICES."
    return None


def argv(machine: Machine, workload: Workload, folder: Path) -> list[str]:
    """Return the command line. Raises ProgramError."""
    return recorder_argv(workload, machine, "proton", folder, ["--data", workload.data])


def reads(workload: Workload, folder: Path) -> list[Path]:
    """Return the file that must come back."""
    return [folder / f"{NAME}.{ENDINGS[workload.data]}"]


def parse(run: ToolRun) -> Trace:
    """Return the profile. Raises ProfilerError where it lacks what was to be recorded, and
    ReadError where it cannot be read."""
    check_inside(run, "triton", "Proton")
    trace = read(list(run.files))
    check_marked_calls(run, trace)
    return trace


PROFILER = Profiler("Proton", available, argv, reads, parse, wraps_program=False)
