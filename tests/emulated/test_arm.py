"""On ARM64 the Metal library, a kernel and the runtime compile, and where qemu is installed they
run: Apple's chips, and ARM machines of continuous integration."""

import importlib.util
import shutil
import subprocess
import sys

import pytest
from metal_bugs import BUGS, CLEAN, launch

from metal_shim import compiler, host
from metal_shim.emulate import EmulationOptions, _request

LIBRARIES = "/usr/aarch64-linux-gnu"  # of the package libc6-arm64-cross


def built(command, *names):
    done = subprocess.run([*command, *names], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[:800]


def zig():
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("the wheel ziglang, which brings the headers of both systems, is not installed")
    return (sys.executable, "-m", "ziglang", "c++")


def kernel(case, system, folder):
    """The object file of a launch's kernel."""
    clang = compiler.find_compiler()
    text, program = folder / "kernel.cpp", folder / "kernel.o"
    text.write_text(host.host_text(case.call))
    flags = compiler._kernel_flags("aarch64", system)
    built((*clang.kernel, *flags), "-c", str(text), "-o", str(program))
    return program


@pytest.mark.parametrize(
    "system", ["apple-macosx", pytest.param("linux-gnu", marks=pytest.mark.nightly)]
)
def test_the_library_and_a_kernel_compile(system, tmp_path):
    case = launch("arm", CLEAN["histogram of atomics"])
    assert kernel(case, system, tmp_path).stat().st_size > 1000


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["aarch64-macos", "aarch64-linux-gnu"])
def test_the_runtime_compiles(target, tmp_path):
    command = (*zig(), "-target", target, "-std=c++17", "-O2", "-w", "-c", str(compiler.RUNTIME))
    built(command, "-o", str(tmp_path / "runtime.o"))


@pytest.mark.nightly
def test_kernels_run_on_an_emulated_arm64(tmp_path):
    """qemu takes minutes for the addresses of slots of 64 GiB; here they are smaller."""
    qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if qemu is None:
        pytest.skip("qemu-user-static and libc6-arm64-cross are not installed")
    linux = (*zig(), "-target", "aarch64-linux-gnu.2.36")
    runner = tmp_path / "runner"
    flags = ("-std=c++17", "-O2", "-w", "-rdynamic", "-DMSL_SLOT_BITS=25")
    built((*linux, *flags), str(compiler.RUNTIME), "-o", str(runner), "-ldl")
    (race,) = (bug for bug in BUGS if bug.name == "no barrier")
    for case, says in (
        (launch("clean", CLEAN["scratch of one SIMD-group"]), b"counts 64 0 192 256 0 0\n"),
        (launch("race", race.body), b"finding racecheck "),
    ):
        shared = tmp_path / "kernel.so"
        program = kernel(case, "linux-gnu", tmp_path)
        built((*linux, "-shared", "-nostdlib"), str(program), "-o", str(shared))
        done = subprocess.run(
            (qemu, "-L", LIBRARIES, str(runner), str(shared)),
            input=b"".join(_request(case, EmulationOptions())),
            capture_output=True, check=True, timeout=60,
        )  # fmt: skip
        assert done.stdout.startswith(says)
