"""Check the database and what this machine can do, and what to install for the rest."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from workbench.commands import field
from workbench.commands.options import Options
from workbench.data.errors import first_line
from workbench.data.exits import PASSED
from workbench.data.files import history_file, readable_text
from workbench.data.parts import missing_part

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rich.console import Console

    from workbench.device.cuda_driver import CudaGpu


class DoctorOptions(Options):
    quiet: bool = field.quiet("Print only what is missing.")
    json: Path | None = field.json("Write the checks to this file; - is standard output.")
    database: str | None = field.database()


def run(options: DoctorOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.console import console_for, say_result
    from workbench.commands.result import write_result

    console, checks = console_for(options), examine(options.database)
    show(checks, console)
    for check in checks if options.quiet else ():
        if check.ok is False:
            say_result(console, f"{check.name}: {check.result}; {check.remedy}")
    plain = [{**asdict(check), "state": check.state} for check in checks]
    return write_result(options, "doctor", PASSED, checks=plain)


NVIDIA_PROC = Path("/proc/driver/nvidia")
AMD_DRIVER = Path("/sys/module/amdgpu/version")
OWN_STATUS = Path("/proc/self/status")

# Programs that the workbench's profilers start, and how to install them.
PROFILERS: Mapping[str, str] = {
    "ncu": "install NVIDIA Nsight Compute, which is also in the CUDA toolkit",
    "nsys": "install NVIDIA Nsight Systems, which is also in the CUDA toolkit",
    "compute-sanitizer": "install it from the CUDA toolkit",
    "rocprofv3": "install rocprofiler-sdk from ROCm, for AMD GPUs",
    "rocprof-compute": "install rocprofiler-compute from ROCm, for AMD Instinct GPUs",
}
BINARY_TOOLS = ("cuobjdump", "nvdisasm")

# Optional packages by pip's name, and what they are used for.
PACKAGES: Mapping[str, str] = {
    "nvidia-ml-py": "clocks, temperature, power and energy (--also energy) on NVIDIA GPUs",
    "psycopg": "a history in PostgreSQL, which a team can share",
    "ruptures": "steps in the history (site)",
    "hypothesis": "the property tests",
    "scipy": "a second opinion on the statistics, in the tests",
}


@dataclass(frozen=True)
class Check:
    """One check: `ok` is True if the thing is present, False if it is missing, None if unknown or
    not applicable; `remedy` says what to do, or is empty."""

    name: str
    ok: bool | None
    result: str
    remedy: str = ""

    @property
    def state(self) -> str:
        """State in the table: `ok`, `missing` or `unknown`."""
        return "unknown" if self.ok is None else "ok" if self.ok else "missing"


def examine(database: str | None = None) -> list[Check]:
    """Return one check for each thing that the workbench may use; never raises.

    database is the URL of the database to check, or None for the default one.
    """
    from concurrent.futures import ThreadPoolExecutor

    from workbench.data.environment import torch_build

    triton, build = _package_folder("triton"), torch_build()
    mac = sys.platform == "darwin"
    with ThreadPoolExecutor() as pool:  # for what waits for a driver, a process or an import
        fault = pool.submit(_torch_fault, _package_folder("torch"))
        gpus = pool.submit(_visible_gpus, build)
        compiler, history = pool.submit(_metal_compiler), pool.submit(_database, database)
        others = _others(triton, mac)
        return [
            *(_mac_gpu() if mac else (*_gpus(gpus, fault.result()), _driver())),
            _torch(build, fault.result()),
            *others,
            compiler.result(),
            _chromium(),
            *(_package(name, use) for name, use in PACKAGES.items()),
            history.result(),
        ]


def _others(triton: Path | None, mac: bool) -> list[Check]:
    """Return the checks of what only files and the path tell."""
    return [
        _triton(triton),
        _targets(triton),
        _compiler(),
        *(_program(name, remedy) for name, remedy in PROFILERS.items()),
        *(_binary_tool(name, triton) for name in BINARY_TOOLS),
        _proton(triton),
        _counters(),
        *(_xcode() if mac else [Check("xctrace", None, "for macOS only")]),
        _profile_tools(),
        _metal(),
    ]


def show(findings: Iterable[Check], console: Console) -> None:
    """Print the checks as a table. The state is a word; its colour only repeats it."""
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "missing": "red", "unknown": "yellow"}
    table = Table("looked for", "state", "found", "what to do")
    for finding in findings:
        table.add_row(
            Text(finding.name),
            Text(finding.state, style=styles[finding.state]),
            Text(finding.result),
            Text(finding.remedy),
        )
    console.print(table)


# The GPU and its driver


def _gpus(gpus: Future[Sequence[CudaGpu]], fault: str | None) -> list[Check]:
    """Return a check for each GPU that torch uses; `fault` says why torch cannot be imported."""
    if fault is not None:
        return [Check("GPU", None, f"torch cannot be imported: {fault}", "install torch")]
    try:
        visible = gpus.result()
    except _TooOld as error:
        remedy = "update NVIDIA's driver, or install a torch that was built for its version"
        return [Check("GPU", False, str(error), remedy)]
    except Exception as error:  # torch raises RuntimeError and its kin on driver trouble
        return [Check("GPU", None, f"the driver failed: {first_line(error)}", "check the driver")]
    if not visible:
        without = "everything but measuring works without; to measure, use a machine with a GPU"
        return [Check("GPU", False, "torch sees none", without)]
    return [
        Check(f"GPU {index}", True, f"{gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB")
        for index, gpu in enumerate(visible)
    ]


def _visible_gpus(build: Mapping[str, str | None]) -> Sequence[CudaGpu]:
    """Return the GPUs that a torch of this build uses. Raises _TooOld, DriverFailed, or what torch
    raises."""
    from workbench.device.cuda_driver import CudaDriver, cuda_driver

    if build.get("hip"):
        return _gpus_of_torch()
    cuda = build.get("cuda")
    driver = cuda_driver() if cuda else CudaDriver()
    if cuda and driver.gpus and not driver.can_run(cuda):
        version = ".".join(map(str, driver.version))
        raise _TooOld(f"the driver runs CUDA {version}, and torch was built for CUDA {cuda}")
    return driver.gpus


class _TooOld(Exception):
    """The driver runs no torch of this build."""


def _gpus_of_torch() -> Sequence[CudaGpu]:
    """Return the GPUs that torch names. ROCm's runtime was never there to be asked without it."""
    import torch

    from workbench.device.cuda_driver import CudaGpu

    cuda: Any = torch.cuda
    count = cuda.device_count() if cuda.is_available() else 0
    every = [cuda.get_device_properties(index) for index in range(count)]
    return [CudaGpu(gpu.name, gpu.total_memory) for gpu in every]


def _driver() -> Check:
    nvidia = readable_text(NVIDIA_PROC / "version")
    if nvidia is not None:
        version = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", nvidia)
        return Check("GPU driver", True, f"NVIDIA {version[1] if version else 'of some version'}")
    amd = readable_text(AMD_DRIVER)
    if amd is not None:
        return Check("GPU driver", True, f"amdgpu {amd.strip()}")
    return Check(
        "GPU driver", False, "neither NVIDIA's nor amdgpu is loaded", "only needed to measure"
    )


def _mac_gpu() -> Iterator[Check]:
    """Yield the Metal device that MLX launches on, and whether times on it would mislead now."""
    from workbench.data.environment import output_of
    from workbench.data.mac import read_mac
    from workbench.device.hardware import metal_device

    mac = read_mac(output_of)
    cores = f", {mac.gpu_cores} GPU cores" if mac.gpu_cores else ""
    memory = f", {mac.memory_bytes / 2**30:.0f} GiB" if mac.memory_bytes else ""
    shown = f"{mac.chip or 'of a chip that system_profiler does not name'}{cores}{memory}"
    remedy = "pip install mlx; everything but measuring works without"
    try:
        there = metal_device()
    except Exception as error:  # MLX without its library
        yield Check("Metal device", None, f"MLX cannot be imported: {first_line(error)}", remedy)
    else:
        texts = (shown, "") if there else ("MLX sees none", remedy)
        yield Check("Metal device", there, *texts)
    reason, _, advice = (mac.refusal() or "").rstrip(".").partition("; ")
    fit = None if mac.power is None else not reason
    yield Check("power", fit, reason or "on its adapter, low power mode off", advice)


def _counters() -> Check:
    """Return whether ncu may read hardware counters, from the driver's settings alone."""
    name = "GPU counters for ncu"
    if missing := missing_part("traces"):
        return Check(name, None, str(missing))
    from workbench.traces.profilers.running.permission import counter_permission

    known = counter_permission(NVIDIA_PROC / "params", OWN_STATUS)
    return Check(name, known.is_allowed, known.reason, known.remedy)


# What compiles


def _torch(build: Mapping[str, str | None], fault: str | None) -> Check:
    version = _version("torch")
    if version is None:
        return Check("torch", False, "not installed", "pip install torch")
    cuda, hip = build.get("cuda"), build.get("hip")
    built = f"for CUDA {cuda}" if cuda else f"for ROCm {hip}" if hip else "for the CPU only"
    if fault is not None:
        result = f"{version}, built {built}, cannot be imported: {fault}"
        return Check("torch", False, result, "install torch again")
    remedy = "" if cuda or hip else "to measure, install a CUDA or ROCm build of torch"
    return Check("torch", True, f"{version}, built {built}", remedy)


def _torch_fault(folder: Path | None) -> str | None:
    """Return why torch cannot be imported, or None. Another process loads its libraries, where an
    import fails that fails: that takes 0.5 s, and the import 1 to 5. Where they do not load, the
    import itself says why."""
    if folder is None:
        return "No module named 'torch'"
    library = next((folder / "lib").glob("*torch_python.*"), None)  # `.so`, `.dylib`
    load = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    if library is not None and _fault_of(load, str(library)) is None:
        return None
    return _fault_of("import torch")


def _fault_of(code: str, *words: str) -> str | None:
    """Run a line of Python in a process of its own. Returns None, or the last line that it printed
    where it failed."""
    line = [sys.executable, "-c", code, *words]
    done = subprocess.run(line, capture_output=True, text=True, errors="replace")
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"Python ended with exit code {done.returncode}"


def _triton(folder: Path | None) -> Check:
    version = _version("triton") or _version("pytorch-triton-rocm")
    if folder is None:
        remedy = "pip install triton (Linux only: elsewhere only the Metal kernels run)"
        return Check("Triton", False, "not installed", remedy)
    return Check("Triton", True, version or "of some version")


def _targets(folder: Path | None) -> Check:
    """Return the devices of the table that the installed Triton has a compiler for."""
    from workbench.device.hardware import DEVICES

    name = "offline compile targets"
    backends = {"cuda": "nvidia", "hip": "amd"}
    have = [
        device.name
        for device in DEVICES.values()
        if folder and (folder / "backends" / backends[device.backend] / "compiler.py").exists()
    ]
    if not have:
        return Check(name, False, "none", "install Triton from PyPI, which has both compilers")
    return Check(name, True, ", ".join(have))


def _compiler() -> Check:
    name = "C compiler"
    named = os.environ.get("CC")
    path = next((p for c in (named, "gcc", "clang") if c and (p := shutil.which(c))), None)
    if path and (not named or shutil.which(named)):
        return Check(name, True, path)
    if named:
        return Check(name, False, f"CC is {named}, which is not there", "unset CC or correct it")
    remedy = "install gcc or clang: Triton builds the launcher of every kernel with it"
    return Check(name, False, "neither gcc nor clang is on the path", remedy)


# What profiles


def _program(name: str, remedy: str) -> Check:
    path = shutil.which(name)
    return Check(name, True, path) if path else Check(name, False, "not on the path", remedy)


def _binary_tool(name: str, triton: Path | None) -> Check:
    """Return whether a tool that reads machine code is on the path or in Triton's own wheel."""
    path = shutil.which(name)
    bundled = triton / "backends" / "nvidia" / "bin" / name if triton else None
    if path is None and bundled is not None and bundled.exists():
        return Check(name, True, "in Triton's wheel")
    return _program(name, "install it from the CUDA toolkit, or Triton, which brings it")


def _xcode() -> Iterator[Check]:
    """Yield Xcode, and Apple's recorder: `xcrun` is there without Xcode, and names its target."""
    from workbench.data.environment import output_of

    remedy = "install Xcode, and point to it with xcode-select -s /Applications/Xcode.app"
    version = output_of("xcodebuild", "-version")
    name = (version or "").splitlines()[:1]
    yield Check(
        "Xcode", bool(name), name[0] if name else "none is selected", "" if name else remedy
    )
    path = output_of("xcrun", "--find", "xctrace")
    yield Check("xctrace", bool(path), path or "none", "" if path else remedy)


def _profile_tools() -> Check:
    """Return the tools that `workbench profile` could use here for a kernel."""
    name = "tools of workbench profile"
    if missing := missing_part("traces"):
        return Check(name, None, str(missing))
    from workbench.traces.profilers import profilers, refusal
    from workbench.traces.profilers.running.machine import machine_here
    from workbench.traces.profilers.running.workload import MarkedCalls, Workload

    machine = machine_here()
    calls = Workload((), "a kernel", marks=MarkedCalls(1, bool(machine.gpu)))
    usable = [name for name, tool in profilers().items() if refusal(tool, machine, calls) is None]
    if usable:
        return Check(name, True, ", ".join(usable))
    return Check(name, False, "none", "workbench profile --tool NAME says what each one lacks")


def _proton(triton: Path | None) -> Check:
    name = "proton"
    if triton and (triton / "profiler" / "__init__.py").exists():
        return Check(name, True, "in Triton's wheel, as triton.profiler")
    return Check(name, False, "not in this Triton", "install Triton from PyPI")


# The rest


def _metal() -> Check:
    """Return whether MLX is there: on a Mac it launches the Metal kernels, on Linux its CPU backend
    is an optional second reference in their tests."""
    name, version = "MLX", _version("mlx")
    if sys.platform == "darwin":
        remedy = "pip install mlx, for the Metal kernels"
        return (
            Check(name, True, version) if version else Check(name, False, "not installed", remedy)
        )
    if version:
        return Check(name, True, f"{version}, a second reference of Metal kernels; none is timed")
    remedy = "optional: pip install 'mlx[cpu]', a second reference in tests of Metal kernels"
    return Check(name, None, "not installed", remedy)


def _metal_compiler() -> Check:
    """Return whether a compiler is there that executes Metal kernels on the CPU."""
    compiler = import_module("metal_shim.compiler")
    name = "C++ compiler for Metal kernels"
    try:
        return Check(name, True, compiler.find_compiler().version)
    except compiler.CompilerMissing:
        remedy = f"to emulate Metal kernels: {compiler.REMEDY}"
        return Check(name, False, "no clang++ 19 or later", remedy)
    except Exception as error:  # a compiler that cannot be started
        return Check(name, None, first_line(error), compiler.REMEDY)


def _chromium() -> Check:
    name = "Chromium for the web tests"
    if _version("playwright") is None:
        return Check(name, False, "playwright is not installed", "pip install playwright")
    cache = "Library/Caches" if sys.platform == "darwin" else ".cache"
    chosen = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    folder = Path(chosen) if chosen else Path.home() / cache / "ms-playwright"
    builds = sorted(p.name for p in folder.glob("chromium*-*")) if folder.is_dir() else []
    if builds:
        return Check(name, True, ", ".join(builds))
    for browser in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(browser):
            return Check(name, True, path)
    return Check(name, False, "none found", "python -m playwright install chromium")


def _package(name: str, use: str) -> Check:
    version = _version(name)
    if version:
        return Check(f"package {name}", True, version)
    return Check(f"package {name}", False, "not installed", f"pip install {name}, for {use}")


def _database(url: str | None) -> Check:
    name, none_yet = "history database", "there is none yet"
    if url is None and _is_missing(file := history_file()):  # SQLAlchemy takes 0.3 to 1 s to import
        return Check(name, None, f"sqlite:///{file}: {none_yet}", "the first run creates it")
    from workbench.data.database import default_url, open_history

    url = url or default_url()
    shown = _hide_password(url, url)
    try:
        with open_history(url, reading=True) as history:
            problems, exists, read_only = history.problems(), history.exists, history.is_read_only
    except Exception as error:  # drivers raise types of their own
        reason = _hide_password(first_line(error), url)
        remedy = "check the address and the rights, and that its server runs"
        return Check(name, False, f"{shown}: {reason}", remedy)
    if problems:
        remedy = "move that file away, and import the events files into a new history"
        return Check(name, False, f"{shown}: damaged ({problems[0].splitlines()[0]})", remedy)
    if not exists:
        return Check(name, None, f"{shown}: {none_yet}", "the first run creates it")
    if read_only:
        return Check(name, False, f"{shown}: read-only", "name one to write to with --database")
    return Check(name, True, shown)


def _is_missing(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # it may be there: an attempt to open it says why it cannot be
        return False
    return False


def _hide_password(text: str, url: str) -> str:
    """Return the text without what stands between a colon and the last `@` of the address: also of
    one that cannot be parsed."""
    if url.startswith("sqlite"):  # a path
        return text
    user, at, rest = url.partition("://")[2].rpartition("@")
    secrets = {user.partition(":")[2] if at else "", *_QUERY.findall(rest)}
    secrets |= set(map(unquote, secrets))
    for secret in sorted(secrets - {""}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


_QUERY = re.compile(r"[?&]password=([^&#\s]+)")


def _version(package: str) -> str | None:
    from importlib import metadata  # 20 ms, which `--help` does not spend

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _package_folder(package: str) -> Path | None:
    """Return the folder of a package, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # ValueError: it is in sys.modules without a spec
        return None
    return Path(spec.origin).parent if spec and spec.origin else None
