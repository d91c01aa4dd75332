"""Collect the hardware and software of a run: an allow-list, so no host, user or serial number.

Nothing is looked up on import, and nothing is guessed: unknown values are None.
"""

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any

from workbench import __version__
from workbench.data.record import Environment, encode_plain

# Triton 3.10 flips its default; a result must not depend on Triton's version.
FP_FUSION = "TRITON_DEFAULT_FP_FUSION"

# Variables that change what Triton 3.6 to 3.9 compiles or runs (its knobs.py and the list that
# invalidates its cache), without those that only print or dump. Of a path only the last part is
# kept, since folders contain user names.
SETTINGS: tuple[str, ...] = (
    "ALLOW_LHS_TMEM_LAYOUT_CONVERSION",
    "AMDGCN_ANALYZE_SMALL_TENSOR_RANGE",
    "AMDGCN_SCALARIZE_PACKED_FOPS",
    "AMDGCN_USE_BUFFER_ATOMICS",
    "AMDGCN_USE_BUFFER_OPS",
    "DISABLE_LLVM_OPT",
    "DISABLE_MMA_V3",
    "DISABLE_MMA_V5",
    "DISABLE_PTXAS_OPT",
    "LLVM_EXTRACT_DI_LOCAL_VARIABLES",
    "LLVM_PASS_PLUGIN_PATH",
    "PTXAS_OPTIONS",
    "TRITON_DEBUG",
    FP_FUSION,
    "TRITON_DISABLE_LINE_INFO",
    "TRITON_ENABLE_ASAN",
    "TRITON_ENABLE_EXPERIMENTAL_CONSAN",
    "TRITON_F32_DEFAULT",
    "TRITON_FORCE_DISABLE_FP_FUSION",
    "TRITON_FPSAN_HOMOMORPHIC_CASTS",
    "TRITON_HIP_USE_ASYNC_COPY",
    "TRITON_HIP_USE_BLOCK_PINGPONG",
    "TRITON_HIP_USE_COEXEC_SCHEDULER",
    "TRITON_HIP_USE_EXPERT_SCHEDULING",
    "TRITON_HIP_USE_IN_THREAD_TRANSPOSE",
    "TRITON_INSTRUMENTATION_MODE",
    "TRITON_INTERPRET",
    "TRITON_KERNEL_OVERRIDE",
    "TRITON_LIBDEVICE_PATH",
    "TRITON_MOCK_PTX_VERSION",
    "TRITON_OVERRIDE_ARCH",
    "TRITON_PLUGIN_PATHS",
    "TRITON_PTXAS_BLACKWELL_PATH",
    "TRITON_PTXAS_PATH",
    "TRITON_SWAP_MIR",
    "TRITON_SWAP_MIR_ENABLE_MISCHED",
    "USE_IR_LOC",
)

# ROCm and nightly wheels of torch bring Triton under other distribution names.
_TRITON_NAMES = ("triton", "triton-rocm", "pytorch-triton", "pytorch-triton-rocm")


def fingerprint(device_index: int | None, repository: Path | None) -> Environment:
    """Return the environment of a run. `device_index` is torch's; None means that no GPU took part,
    and then torch is not imported. `repository` is any folder of the work tree that holds the
    kernel."""
    commit, dirty = _git(repository) if repository else (None, None)
    return replace(
        UNKNOWN if device_index is None else _gpu(device_index),
        os=_os(),
        cpu=_cpu(),
        python=platform.python_version(),
        versions=_versions(),
        settings={n: _hide_folders(os.environ[n]) for n in SETTINGS if n in os.environ},
        commit=commit,
        dirty=dirty,
    )


# Of a run that only read the files of a profiler: the machine that reads is not the one measured.
UNKNOWN = Environment(
    gpu=None,
    driver=None,
    gpu_memory_bytes=None,
    power_limit_w=None,
    clock_policy="unknown",
    others_on_gpu=None,
    os="",
    cpu="",
    python="",
    versions={},
    settings={},
    commit=None,
    dirty=None,
)


def environment_id(env: Environment) -> str:
    """Return twelve hex digits, a hash of every field."""
    text = json.dumps(encode_plain(env), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _gpu(index: int) -> Environment:
    """Return what is known of a GPU, without the machine."""
    import torch

    try:
        text = torch.cuda.get_device_properties(index)
    except (RuntimeError, AssertionError):  # no such GPU, no driver, or a build of torch without
        return UNKNOWN
    known = replace(UNKNOWN, gpu=text.name, gpu_memory_bytes=text.total_memory)
    if torch.version.hip:
        return replace(known, driver=_first_line("/sys/module/amdgpu/version"))
    # By UUID, because CUDA_VISIBLE_DEVICES renumbers torch's devices and not NVML's.
    with _nvml(f"GPU-{getattr(text, 'uuid', '')}") as nvml:
        milliwatts = nvml("nvmlDeviceGetEnforcedPowerLimit")
        processes = nvml("nvmlDeviceGetComputeRunningProcesses")
        others = None if processes is None else sum(p.pid != os.getpid() for p in processes)
        return replace(
            known,
            driver=nvml("nvmlSystemGetDriverVersion", of_gpu=False),
            power_limit_w=None if milliwatts is None else milliwatts / 1000,
            clock_policy=_clock_policy(nvml),
            others_on_gpu=others,
        )


class _NvmlInfo:
    """Call NVML by name about one GPU; returns None for whatever it does not support."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    def __call__(self, name: str, *args: int, of_gpu: bool = True) -> Any:
        if self._library is None or (of_gpu and self._handle is None):
            return None
        try:
            call = getattr(self._library, name)
            return call(self._handle, *args) if of_gpu else call(*args)
        except (AttributeError, self._library.NVMLError):
            return None


@contextmanager
def _nvml(uuid: str) -> Iterator[_NvmlInfo]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # not installed, or no driver: NVMLError cannot be named before the import
        yield _NvmlInfo(None, None)
        return
    try:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError:
            handle = None
        yield _NvmlInfo(pynvml, handle)
    finally:
        pynvml.nvmlShutdown()


def _clock_policy(nvml: _NvmlInfo) -> str:
    """Return "locked" if the application clocks are off their default or hold the clock down now,
    "default" if neither, "unknown" if NVML does not report it: newer drivers do not report
    application clocks. NVML has no query for a lock by `nvidia-smi -lgc`; on a GPU that is
    "default" here, such a lock shows as a constant clock in all windows."""
    graphics = 0  # NVML_CLOCK_GRAPHICS
    now = nvml("nvmlDeviceGetApplicationsClock", graphics)
    default = nvml("nvmlDeviceGetDefaultApplicationsClock", graphics)
    reasons = nvml("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:  # its name until 2023
        reasons = nvml("nvmlDeviceGetCurrentClocksThrottleReasons")
    moved = None not in (now, default) and now != default
    if moved or (reasons or 0) & 0x2:  # nvmlClocksEventReasonApplicationsClocksSetting
        return "locked"
    return "unknown" if None in (now, default, reasons) else "default"


def _git(folder: Path) -> tuple[str | None, bool | None]:
    """Return the commit, and whether the work tree differs from it: a changed tracked file, or an
    untracked Python file. Other untracked files may be the reports of a run."""
    commit = output_of("git", "-C", str(folder), "rev-parse", "--verify", "HEAD")
    if not commit:
        return None, None
    changed = output_of("git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no")
    unknown = output_of(
        "git",
        "-C",
        str(folder),
        "ls-files",
        "--others",
        "--exclude-standard",
        "--full-name",
        ":/*.py",
    )
    if changed is None or unknown is None:
        return commit, None
    return commit, bool(changed or unknown)


def output_of(*command: str) -> str | None:
    """Return the output of a command, or None if it is missing, fails or takes over ten seconds."""
    # A git hook sets these, and they would point at another repository; and git must not write.
    of_a_hook = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    quiet = {k: v for k, v in os.environ.items() if k not in of_a_hook}
    quiet["GIT_OPTIONAL_LOCKS"] = "0"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=10, env=quiet
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _os() -> str:
    """Return `Linux 6.1.0 x86_64`, without the version's suffixes, which may name the builder."""
    release = platform.mac_ver()[0] or platform.release()
    number = re.match(r"[\d.]*\d", release)
    name = "macOS" if platform.system() == "Darwin" else platform.system()
    return " ".join(p for p in (name, number and number[0], platform.machine()) if p)


def _cpu() -> str:
    try:
        named = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        named = None
    if named:
        return named[1].strip()
    if sys.platform == "darwin":
        return output_of("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    return platform.processor() or platform.machine()


def _versions() -> dict[str, str]:
    torch = torch_build()
    results = {
        "workbench": __version__,
        "torch": installed_version("torch"),
        "triton": next(filter(None, map(installed_version, _TRITON_NAMES)), None),
        "numpy": installed_version("numpy"),
        "cuda": torch.get("cuda"),
        "hip": torch.get("hip"),
        "ptxas": _ptxas("ptxas"),
        "ptxas-blackwell": _ptxas("ptxas-blackwell"),
    }
    return {name: version for name, version in results.items() if version}


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    from importlib.metadata import PackageNotFoundError, version  # 14 ms, with the email package

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def torch_build() -> Mapping[str, str | None]:
    """Return the variables of torch/version.py, which is run alone: importing torch takes over a
    second."""
    home = _home("torch")
    if home is None or not (home / "version.py").is_file():
        return {}
    loader = importlib.machinery.SourceFileLoader("_torch_version", str(home / "version.py"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None  # a loader given by hand always makes one
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return vars(module)


GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")  # they choose among a host's GPUs
# Device files of the drivers; `/dev/dxg` is that of the Windows Subsystem for Linux.
DRIVER_FILES = {"cuda": ("/dev/nvidia[0-9]*", "/dev/dxg"), "hip": ("/dev/kfd",)}


def gpu_shown() -> str:
    """Return the kind of GPU, `cuda` or `hip`, that a driver shows and that torch was built for;
    empty for none. Imports nothing."""
    build = torch_build()
    for kind, files in DRIVER_FILES.items():
        if build.get(kind) and any(glob(file) for file in files):
            return kind
    return ""


def gpus_of_host() -> list[str]:
    """Return the names of this host's GPUs as CUDA_VISIBLE_DEVICES takes them. Opens none."""
    import torch

    named = next((os.environ[v] for v in GPU_VARIABLES if os.environ.get(v)), "")
    count = torch.cuda.device_count()
    names = [name.strip() for name in named.split(",") if name.strip()]
    return names[:count] if names else [str(i) for i in range(count)]


def _ptxas(name: str) -> str | None:
    """Return the version of the ptxas that Triton calls: `12.9.86`. Running it takes 20 ms."""
    home = _home("triton")
    chosen = os.environ.get(f"TRITON_{name.upper().replace('-', '_')}_PATH")
    bundled = str(home / "backends" / "nvidia" / "bin" / name) if home else None
    for path in filter(None, (chosen, bundled)):  # Triton falls back in the same order
        version = re.search(r"release [\d.]+, V([\d.]+)", output_of(path, "--version") or "")
        if version:
            return version[1]
    return None


def _home(package: str) -> Path | None:
    """Return the folder of an installed package, which is not imported."""
    spec = None
    with suppress(ImportError):
        spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None


def _hide_folders(value: str) -> str:
    """Return a value without the folders in it, as `ptxas` of `/home/me/bin/ptxas`, and a hash of
    it whole where it had any."""
    short = re.sub(r"[^\s:;,=]*/", "", value)
    return short if short == value else f"{short} #{hashlib.sha256(value.encode()).hexdigest()[:8]}"


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text().splitlines()[0].strip()
    except (OSError, IndexError):
        return None
