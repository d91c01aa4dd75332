"""The doctor says what is there, what is missing and what to do, whatever the machine is like."""

import io
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from mac_programs import ON_BATTERY, PROGRAMS, run
from rich.console import Console

from metal_shim import compiler
from workbench.commands import doctor
from workbench.commands.doctor import Check, examine, show
from workbench.data import environment
from workbench.data.database import open_history
from workbench.device import cuda_driver, hardware
from workbench.device.cuda_driver import CudaDriver, CudaGpu, DriverFailed
from workbench.device.hardware import DEVICES
from workbench.traces.profilers.running import machine
from workbench.traces.profilers.running.machine import Machine

FAULT = doctor._torch_fault


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch, tmp_path):
    """No GPU, driver, program or browser; each test adds what it is about."""
    monkeypatch.setattr(environment, "torch_build", lambda: {})
    monkeypatch.setattr(doctor, "_torch_fault", lambda folder: None)
    monkeypatch.setattr(doctor, "NVIDIA_PROC", tmp_path / "nvidia")
    monkeypatch.setattr(doctor, "AMD_DRIVER", tmp_path / "amdgpu")
    monkeypatch.setattr(doctor, "OWN_STATUS", tmp_path / "status")
    monkeypatch.setattr(doctor.shutil, "which", lambda name, **_: None)
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    monkeypatch.setattr(doctor, "_package_folder", lambda package: None)
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "browsers"))
    monkeypatch.delenv("CC", raising=False)
    for name in ("_first_clang", "_zig"):  # neither what other tests looked up, nor for them
        uncached = getattr(compiler, name).__wrapped__
        monkeypatch.setattr(compiler, name, uncached)
    monkeypatch.setattr(machine, "machine_here", lambda: Machine("python"))
    monkeypatch.setattr(doctor, "history_file", lambda: tmp_path / "none.db")


@pytest.fixture
def look(monkeypatch):
    """One finding by its name."""

    def of(name, **wanted):
        results = [f for f in examine(**wanted) if f.name == name]
        assert len(results) == 1, f"{name}: {results}"
        return results[0]

    return of


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# In general


def test_on_a_bare_machine_each_missing_thing_has_a_remedy():
    findings = examine()
    assert all(isinstance(f, Check) and f.name and f.result for f in findings)
    assert len({f.name for f in findings}) == len(findings)
    assert all(f.remedy for f in findings if f.ok is False)
    assert not any(f.ok for f in findings)


def test_states_are_words():
    assert [Check("x", ok, "y").state for ok in (True, False, None)] == [
        "ok",
        "missing",
        "unknown",
    ]


def test_the_table_says_everything_without_colour():
    findings = [
        Check("ncu", True, "/opt/[bold]/ncu"),
        Check("nsys", False, "not on the path", "install it"),
        Check("MLX", None, "for macOS only"),
    ]
    out = io.StringIO()
    show(findings, Console(file=out, width=120, color_system=None))
    text = out.getvalue()
    for finding in findings:
        assert finding.name in text and finding.state in text and finding.result in text
    assert "install it" in text and "\x1b" not in text


# GPUs and drivers


GPUS = (CudaGpu("NVIDIA H200", 140 << 30), CudaGpu("NVIDIA A100", 80 << 30))


def machine_with(monkeypatch, driver, cuda="13.0"):
    monkeypatch.setattr(environment, "torch_build", lambda: {"cuda": cuda})
    monkeypatch.setattr(cuda_driver, "cuda_driver", driver)


def test_every_gpu_is_named_with_its_memory(monkeypatch, look):
    machine_with(monkeypatch, lambda: CudaDriver((13, 2), GPUS))
    assert look("GPU 0").result == "NVIDIA H200, 140 GiB"
    assert look("GPU 1").result == "NVIDIA A100, 80 GiB"


@pytest.mark.parametrize(
    ("version", "cuda", "ok"),
    [((12, 8), "12.9", True), ((12, 8), "11.8", True), ((12, 8), "13.0", False)],
)
def test_a_driver_that_is_too_old_for_torch_is_a_finding(monkeypatch, look, version, cuda, ok):
    machine_with(monkeypatch, lambda: CudaDriver(version, GPUS[:1]), cuda)
    assert look("GPU 0" if ok else "GPU").ok is ok
    words = f"the driver runs CUDA 12.8, and torch was built for CUDA {cuda}"
    assert ok or look("GPU").result == words


def test_a_torch_without_cuda_sees_none(monkeypatch, look):
    machine_with(monkeypatch, lambda: CudaDriver((13, 2), GPUS), None)
    assert look("GPU").ok is False and look("GPU").result == "torch sees none"


def test_a_build_for_rocm_is_asked_itself(monkeypatch, look):
    cuda = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 1,
        get_device_properties=lambda index: SimpleNamespace(name="MI300X", total_memory=192 << 30),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(environment, "torch_build", lambda: {"hip": "7.0"})
    assert look("GPU 0").result == "MI300X, 192 GiB"


def test_a_broken_torch_is_a_finding(monkeypatch, look, tmp_path):
    """Its library does not load, and its import says why."""
    write(tmp_path / "torch" / "lib" / "libtorch_python.so", "no library")
    write(tmp_path / "torch" / "__init__.py", "raise ImportError('libcudnn.so.9: cannot open')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "_torch_fault", FAULT)
    monkeypatch.setattr(doctor, "_package_folder", lambda package: tmp_path / package)
    monkeypatch.setattr(doctor, "_version", lambda package: "2.13.0")
    assert look("GPU").ok is None
    assert look("GPU").result.endswith("imported: ImportError: libcudnn.so.9: cannot open")
    assert look("torch").ok is False and "libcudnn.so.9" in look("torch").result


def test_the_torch_that_is_here_has_no_fault():
    assert FAULT(Path(find_spec("torch").origin).parent) is None


def test_a_failing_driver_is_a_finding(monkeypatch, look):
    def fail():
        raise DriverFailed("CUDA_ERROR_SYSTEM_NOT_READY")

    machine_with(monkeypatch, fail)
    assert look("GPU").ok is None
    assert look("GPU").result == "the driver failed: CUDA_ERROR_SYSTEM_NOT_READY"


DRIVER = """
#include <string.h>
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuInit(unsigned flags) { return CODE; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = 7 + index; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
    strcpy(name, device == 7 ? "A" : "B"); return 0;
}
int cuDeviceTotalMem_v2(unsigned long *size, int device) {
    *size = (unsigned long)device << 33; return 0;
}
int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_UNKNOWN"; return 0; }
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc, for a driver that is made up")
@pytest.mark.parametrize("code", [0, 100, 999])
def test_the_driver_is_asked_for_its_gpus(monkeypatch, tmp_path, code):
    (tmp_path / "driver.c").write_text(DRIVER.replace("CODE", str(code)))
    library = str(tmp_path / "libcuda.so")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "driver.c"], check=True)
    monkeypatch.setattr(cuda_driver, "LIBRARY", library)
    if code == 999:
        with pytest.raises(DriverFailed, match="CUDA_ERROR_UNKNOWN"):
            cuda_driver.cuda_driver()
        return
    gpus = () if code else (CudaGpu("A", 7 << 33), CudaGpu("B", 8 << 33))
    assert cuda_driver.cuda_driver() == CudaDriver((12, 8), gpus)


def test_without_a_driver_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libnone.so.1")
    assert cuda_driver.cuda_driver() == CudaDriver()


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Oct 1", "580.159.04"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release", "570.86"),
    ],
)
def test_the_nvidia_driver_has_its_version(look, text, result):
    write(doctor.NVIDIA_PROC / "version", text)
    assert look("GPU driver") == Check("GPU driver", True, f"NVIDIA {result}")


def test_the_amd_driver_has_its_version(look):
    write(doctor.AMD_DRIVER, "6.14.14\n")
    assert look("GPU driver").result == "amdgpu 6.14.14"


# Counters

COUNTERS = "GPU counters for ncu"


def status(*bits):
    return f"Name:\tpython\nCapEff:\t{sum(1 << b for b in bits):016x}\nSeccomp:\t0\n"


def test_without_a_driver_nothing_is_said_of_counters(look):
    assert look(COUNTERS).ok is None


@pytest.mark.parametrize(
    ("only_admin", "capabilities", "ok"),
    [(0, (), True), (1, (), False), (1, (21,), True), (1, (0, 1, 20, 22), False)],
)
def test_counters_need_the_setting_or_the_capability(look, only_admin, capabilities, ok):
    text = f"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {only_admin}\n"
    write(doctor.NVIDIA_PROC / "params", text)
    write(doctor.OWN_STATUS, status(*capabilities))
    finding = look(COUNTERS)
    assert finding.ok is ok
    assert ok or "NVreg_RestrictProfilingToAdminUsers=0" in finding.remedy


@pytest.mark.parametrize("user", [0, 1000])
def test_where_capabilities_cannot_be_read_root_decides(monkeypatch, look, user):
    write(doctor.NVIDIA_PROC / "params", "RmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(doctor.os, "geteuid", lambda: user, raising=False)
    assert look(COUNTERS).ok is (user == 0)


# Compilers


@pytest.mark.parametrize(
    ("build", "words"),
    [
        ({"cuda": "13.0"}, "for CUDA 13.0"),
        ({"cuda": None, "hip": "7.0"}, "for ROCm 7.0"),
        ({"cuda": None}, "for the CPU only"),
    ],
)
def test_torch_says_what_it_was_built_for(monkeypatch, look, build, words):
    monkeypatch.setattr(environment, "torch_build", lambda: build)
    monkeypatch.setattr(doctor, "_version", lambda package: "2.13.0")
    assert look("torch").result == f"2.13.0, built {words}"


@pytest.fixture
def triton(monkeypatch, tmp_path):
    folder = tmp_path / "site" / "triton"
    monkeypatch.setattr(doctor, "_package_folder", lambda package: folder)
    return folder


def test_targets_are_those_with_a_compiler(triton, look):
    write(triton / "backends" / "amd" / "compiler.py", "")
    amd = [name for name, device in DEVICES.items() if device.backend == "hip"]
    assert look("offline compile targets").result == ", ".join(amd)
    write(triton / "backends" / "nvidia" / "compiler.py", "")
    assert look("offline compile targets").result == ", ".join(DEVICES)


def test_tools_in_tritons_wheel_count(triton, look):
    assert look("nvdisasm").ok is False
    write(triton / "backends" / "nvidia" / "bin" / "nvdisasm", "")
    write(triton / "profiler" / "__init__.py", "")
    assert look("nvdisasm").ok and "wheel" in look("nvdisasm").result
    assert look("proton").ok


def test_the_path_comes_before_the_wheel(monkeypatch, triton, look):
    write(triton / "backends" / "nvidia" / "bin" / "nvdisasm", "")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/cuda/bin/{name}")
    assert look("nvdisasm").result == "/cuda/bin/nvdisasm"


@pytest.mark.parametrize(
    ("cc", "there", "result"),
    [
        (None, ["gcc", "clang"], "/usr/bin/gcc"),
        (None, ["clang"], "/usr/bin/clang"),
        ("cc-13", ["cc-13", "gcc"], "/usr/bin/cc-13"),
        (None, [], None),
        ("cc-13", ["gcc"], None),  # Triton takes CC at its word
    ],
)
def test_the_compiler_is_the_one_that_triton_would_take(monkeypatch, look, cc, there, result):
    monkeypatch.setattr(
        doctor.shutil, "which", lambda name: f"/usr/bin/{name}" if name in there else None
    )
    if cc:
        monkeypatch.setenv("CC", cc)
    finding = look("C compiler")
    assert (finding.result == result) if result else (finding.ok is False)


@pytest.mark.parametrize("name", [*doctor.PROFILERS, *doctor.BINARY_TOOLS])
def test_programs_on_the_path_are_found(monkeypatch, look, name):
    monkeypatch.setattr(
        doctor.shutil,
        "which",
        lambda context: f"/bin/{context}" if context == name else None,
    )
    assert look(name) == Check(name, True, f"/bin/{name}")


# Browser, Metal and packages


XCTRACE = "/Applications/Xcode.app/Contents/Developer/usr/bin/xctrace"
OF_XCODE = {"xcodebuild": "Xcode 16.1\nBuild version 16B40", "xcrun": XCTRACE}


def mac_with(monkeypatch, programs, device=True):
    monkeypatch.setattr(doctor.sys, "platform", "darwin")
    monkeypatch.setattr(environment, "output_of", lambda *words: run(*words, programs=programs))
    monkeypatch.setattr(hardware, "metal_device", lambda: device)


def test_a_mac_has_its_metal_device_xcode_and_power(monkeypatch, look):
    assert look("xctrace") == Check("xctrace", None, "for macOS only")
    mac_with(monkeypatch, PROGRAMS | OF_XCODE)
    assert look("Metal device") == Check("Metal device", True, "Apple M2 Max, 30 GPU cores, 64 GiB")
    assert look("Xcode") == Check("Xcode", True, "Xcode 16.1")
    assert look("xctrace") == Check("xctrace", True, XCTRACE)
    assert look("power") == Check("power", True, "on its adapter, low power mode off")
    names = {check.name for check in examine()}
    assert not names & {"GPU", "GPU driver"} and "MLX" in names


def test_what_a_mac_lacks_has_a_remedy(monkeypatch, look):
    mac_with(monkeypatch, PROGRAMS | {"pmset batt": ON_BATTERY}, device=False)
    assert look("Metal device").ok is False and "pip install mlx" in look("Metal device").remedy
    for name in ("Xcode", "xctrace"):
        assert look(name).ok is False and "xcode-select" in look(name).remedy
    assert look("power").ok is False and look("power").remedy == "plug it in"
    monkeypatch.setattr(hardware, "metal_device", lambda: 1 / 0)
    assert look("Metal device").ok is None


def test_a_mac_whose_programs_print_nothing_is_still_examined(monkeypatch, look):
    mac_with(monkeypatch, {})
    assert "system_profiler does not name" in look("Metal device").result
    assert look("power").ok is None


def test_the_tools_that_profile_could_use(monkeypatch, look):
    assert look("tools of workbench profile").ok is False
    programs = {"ncu": "/cuda/ncu", "nsys": "/cuda/nsys", "rocprofv3": "/rocm/rocprofv3"}
    here = Machine("python", "cuda", {"torch": "2.11"}, {}, programs)
    monkeypatch.setattr(machine, "machine_here", lambda: here)
    assert look("tools of workbench profile").result == "ncu, nsys, trace"


def test_a_browser_of_playwright_is_found(monkeypatch, look, tmp_path):
    name = "Chromium for the web tests"
    assert "pip install playwright" in look(name).remedy
    monkeypatch.setattr(doctor, "_version", lambda package: "1.0")
    assert "playwright install chromium" in look(name).remedy
    (tmp_path / "browsers" / "chromium-1200").mkdir(parents=True)
    assert look(name).result == "chromium-1200"


def test_mlx_launches_on_macos_and_is_optional_on_linux(monkeypatch, look):
    assert look("MLX").ok is None and "mlx[cpu]" in look("MLX").remedy
    mac_with(monkeypatch, {}, device=False)
    assert look("MLX").ok is False
    monkeypatch.setattr(doctor, "_version", lambda package: "0.30")
    assert look("MLX") == Check("MLX", True, "0.30")
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    assert look("MLX").ok and "second reference" in look("MLX").result


def test_a_compiler_that_emulates_metal_kernels_is_named_or_its_package(look, monkeypatch):
    name = "C++ compiler for Metal kernels"
    assert look(name).ok is False and "apt-get install clang-19" in look(name).remedy
    compiler = SimpleNamespace(version="clang version 19.1.7")
    monkeypatch.setattr("metal_shim.compiler.find_compiler", lambda: compiler)
    assert look(name) == Check(name, True, "clang version 19.1.7")
    monkeypatch.setattr("metal_shim.compiler.find_compiler", lambda: 1 / 0)
    assert look(name).ok is None


@pytest.mark.parametrize("package", doctor.PACKAGES)
def test_a_missing_package_comes_with_its_use(look, package):
    finding = look(f"package {package}")
    assert finding.remedy == f"pip install {package}, for {doctor.PACKAGES[package]}"


def test_versions_and_folders_are_asked_of_python_itself(monkeypatch):
    monkeypatch.undo()
    assert doctor._version("hypothesis") and doctor._version("no-such-package") is None
    assert (doctor._package_folder("hypothesis") / "__init__.py").exists()
    assert doctor._package_folder("no_such_package") is None


# The history


@pytest.fixture
def history(monkeypatch, tmp_path):
    def of(open_history):
        module = ModuleType("workbench.data.database")
        module.open_history = open_history
        module.default_url = lambda: "sqlite:///usual.db"
        monkeypatch.setitem(sys.modules, "workbench.data.database", module)
        (tmp_path / "none.db").touch()

    return of


class Opened:
    """A database that says what is wrong with it, and notes that it is closed."""

    def __init__(self, url, reading, problems, closed):
        assert reading, "the doctor writes nothing"
        self.url, self.closed = url, closed
        self.problems = lambda: problems
        self.exists, self.is_read_only = True, False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closed.append(self.url)


def test_a_history_that_is_not_there_yet_is_not_made(look, tmp_path):
    for name, database in (("none.db", None), ("h.db", f"sqlite:///{tmp_path / 'h.db'}")):
        check = look("history database", database=database)
        assert (
            check.ok is None and check.result == f"sqlite:///{tmp_path / name}: there is none yet"
        )
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("url", [None, "sqlite:///h.db"])
def test_a_history_that_opens_is_closed_again(history, look, url):
    closed = []
    history(lambda url, reading: Opened(url, reading, [], closed))
    assert look("history database", database=url).ok
    assert closed == [url or "sqlite:///usual.db"]


def test_a_history_that_no_run_can_write_to_is_not_fine(look, tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'h.db'}"
    open_history(url).close()
    assert look("history database", database=url).ok
    monkeypatch.setattr("workbench.data.database._writable", lambda path: False)
    finding = look("history database", database=url)
    assert finding.ok is False and "read-only" in finding.result and "--database" in finding.remedy


def test_damage_that_the_database_finds_is_shown(history, look):
    history(lambda url, reading: Opened(url, reading, ["Tree 4 page 9: bad\ncell"], []))
    finding = look("history database", database="sqlite:///h.db")
    assert finding.ok is False and "damaged (Tree 4 page 9: bad)" in finding.result
    assert "import the events files" in finding.remedy


@pytest.mark.parametrize("error", [OSError, ValueError, RuntimeError, ImportError])
def test_any_failure_to_open_is_a_finding(history, look, error):
    def fail(url, reading):
        raise error("it is\nlocked")

    history(fail)
    finding = look("history database", database="sqlite:///h.db")
    assert finding.ok is False and finding.result == "sqlite:///h.db: it is" and finding.remedy


@pytest.mark.parametrize("password", ["hunter2", "p%40ss"])
def test_a_password_is_never_shown(history, look, password):
    url = f"postgresql://me:{password}@host/db"

    def fail(context, reading):
        raise ValueError(f"cannot log in at {context} with {password.replace('%40', '@')}")

    history(fail)
    finding = look("history database", database=url)
    assert password not in finding.result and "p@ss" not in finding.result
    assert "***" in finding.result and "host/db" in finding.result


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://user:s3cret%zz@[::1/x", "postgresql://user:***@[::1/x"),
        ("postgresql://user:s3c@ret@host/db", "postgresql://user:***@host/db"),
        ("postgresql://host/db?password=s3cret&x=1", "postgresql://host/db?password=***&x=1"),
        ("sqlite:////home/a:b@c/history.db", "sqlite:////home/a:b@c/history.db"),
        ("postgresql://host/db", "postgresql://host/db"),
    ],
)
def test_a_password_is_not_shown_of_an_address_that_cannot_be_parsed(url, shown):
    assert doctor._hide_password(url, url) == shown
