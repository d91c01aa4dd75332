"""Find clang, compile a kernel's C++ text to a shared object that the runtime loads, with a cache.

Programs are kept in the user's cache folder under a hash of everything that they depend on: text,
flags, header, runtime and the compiler's version. An entry is never changed after it was written.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import platformdirs

from workbench.spec import WorkbenchError

HERE = Path(__file__).resolve().parent
INCLUDE = HERE / "include"
RUNTIME = HERE / "runtime.cpp"
OLDEST = 19  # earlier versions of clang lack bfloat16 vectors in this mode
TIME_LIMIT_S = 300.0  # for one compilation: a second, but over one minute for zig's first
CANDIDATES = (
    *("clang++-22", "clang++-21", "clang++-20", "clang++-19"),
    # where Homebrew has its own, which no PATH names
    *("/opt/homebrew/opt/llvm/bin/clang++", "/usr/local/opt/llvm/bin/clang++", "clang++"),
)
PACKAGE = {"darwin": "brew install llvm"}.get(sys.platform, "apt-get install clang-19")
REMEDY = f"{PACKAGE}, or pip install ziglang"

_EXTENSIONS = (
    "-__opencl_c_pipes,-__opencl_c_device_enqueue,-__opencl_c_fp64,-cl_khr_fp64,+cl_khr_fp16,"
    "+__cl_clang_function_pointers,"
    # on by themselves for x86-64 alone
    "+__opencl_c_program_scope_global_variables,+__opencl_c_generic_address_space,+__opencl_c_int64"
)
_LANGUAGE = (
    *("-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc", "-nostdinc"),
    *("-cl-single-precision-constant", "-Xclang", f"-cl-ext={_EXTENSIONS}"),
    *("-ffp-contract=off", "-fno-math-errno", "-ftrivial-auto-var-init=pattern"),
)
# `float4(...)` makes a vector; `float4 x` remains a type.
_INTEGERS = [f"{sign}{kind}" for kind in ("char", "short", "int", "long") for sign in ("", "u")]
_VECTORS = [f"{kind}{n}" for kind in ("float", "half", "bfloat", *_INTEGERS) for n in (2, 3, 4)]
_MACROS = tuple(f"-D{v}(...)=metal::msl_make<metal::{v}>(__VA_ARGS__)" for v in _VECTORS)
_WARNINGS = (
    *("-Wno-everything", "-Werror=uninitialized", "-Werror=sometimes-uninitialized"),
    *("-Werror=conditional-uninitialized", "-Werror=return-type"),
)
_CHECKS = (
    # DWARF 4: addr2line of binutils 2.40 names the wrong file after #line in DWARF 5
    # and -g1 behind it, which it would raise: lines alone, in 9 % less time than all of it
    *("-O1", "-fPIC", "-gdwarf-4", "-g1", "-gno-column-info"),
    *("-fno-finite-loops", "-fsanitize=thread"),
    # VectorCombine would split vectors of integers before their loads are counted and checked
    *("-mllvm", "-disable-vector-combine", "-mllvm", "-tsan-instrument-func-entry-exit=0"),
    *("-mllvm", "-tsan-instrument-read-before-write=1"),
    "-fsanitize=array-bounds,shift,integer-divide-by-zero",
    "-fsanitize=signed-integer-overflow,float-cast-overflow,bool",
)
_FEATURES = {"x86_64": ("-mf16c", "-mfma"), "amd64": ("-mf16c", "-mfma")}


# clang's words in its errors, and Metal's
_SPACES = {
    "__global": "device",
    "__constant": "constant",
    "__local": "threadgroup",
    "__private": "thread",
    "__bf16": "bfloat",
}


class CompilerMissing(WorkbenchError, RuntimeError):
    """No compiler for the emulator is installed; the message names the packages that bring one."""


class CacheUnusable(WorkbenchError, RuntimeError):
    """The folder of compiled programs cannot be used; the message is one sentence."""


class KernelRejected(WorkbenchError, ValueError):
    """clang does not take a kernel. The message holds its first errors."""


@dataclass(frozen=True)
class MetalCompiler:
    """The commands that compile a kernel and that compile and link C++, and their version."""

    kernel: tuple[str, ...]
    native: tuple[str, ...]
    version: str

    @property
    def number(self) -> str:
        """Its version as `19.1.7`, or as `zig 0.15.2`."""
        number = re.search(r"clang version ([\d.]+)", self.version)
        return number[1] if number else self.version


def find_compiler(command: str | None = None) -> MetalCompiler:
    """Return the compiler that emulates Metal kernels.

    Args:
        command: Name or path of a clang++; without it clang++-22 to clang++-19, a clang++ that is
            new enough, and then the wheel `ziglang` are tried.

    Raises CompilerMissing where there is none.
    """
    names = (command,) if command else CANDIDATES
    compiler = _first_clang(names, os.environ.get("PATH")) or (None if command else _zig())
    if compiler is None:
        wanted = f"clang++ {OLDEST} or later"
        reason = f"{command} is not {wanted}" if command else f"{wanted} is not installed"
        raise CompilerMissing(f"Metal kernels cannot be emulated: {reason}; {REMEDY}.")
    return compiler


@cache  # a launch asks twice, and looking through a path takes half a millisecond
def _first_clang(names: tuple[str, ...], path: str | None) -> MetalCompiler | None:
    for name in names:
        if program := shutil.which(name, path=path):
            version = _version((program, "--version"))
            number = re.search(r"clang version (\d+)", version)
            if number and int(number[1]) >= OLDEST:
                return MetalCompiler((program,), (program,), version)
    return None


@cache
def _zig() -> MetalCompiler | None:
    """Return the compiler of the wheel: its `clang` takes kernels, and its `c++`, which refuses
    that language, links."""
    if importlib.util.find_spec("ziglang") is None:
        return None
    zig = (sys.executable, "-m", "ziglang")
    version = _version((*zig, "version"))
    return MetalCompiler((*zig, "clang"), (*zig, "c++"), f"zig {version}") if version else None


def _version(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.partition("\n")[0]


def cache_folder() -> Path:
    """Return the folder of compiled programs."""
    return Path(platformdirs.user_cache_dir("kernel-workbench")) / "metal"


ZEROED = ("-ftrivial-auto-var-init=zero",)  # locals that nothing sets: else NaN as a float
WRAPPING = ("-fsanitize=unsigned-integer-overflow,implicit-integer-truncation",)


def compile_text(text: str, compiler: MetalCompiler, more: tuple[str, ...] = ()) -> Path:
    """Return the shared object of a kernel's C++ text, compiled now or taken from the cache, with
    more flags, `ZEROED` or `WRAPPING`.

    Raises KernelRejected with the compiler's first errors.
    """
    flags = (*_kernel_flags(), *more)
    library = _library(compiler, flags)
    program = entry(text, library.name, suffix=".so")
    options = ("-Xclang", "-fno-pch-timestamp", "-include-pch", str(library), "-c")

    def build(built: Path) -> None:
        source, part = built.with_name("kernel.cpp"), built.with_name("kernel.o")
        source.write_text(text, encoding="utf-8")
        if sys.platform == "darwin":  # its programs have their lines in the object file
            part = program.with_suffix(".o")
        _run(*compiler.kernel, *flags, *options, str(source), "-o", str(part))
        _run(*_linker(compiler), str(part), "-o", str(built))

    return _build_file(program, build)


# Headers of Apple's: what they declare is in the library, and where it is not a use says so.
_OWN_HEADER = re.compile(
    r"fatal error: '((?:metal_|simd/|Metal)[^'\n]*|metal|TargetConditionals.h)' file"
)
METAL_VERSION = 320  # Metal 3.2, as MLX has it


def preprocess(path: Path, defines: Mapping[str, str], folders: Sequence[Path]) -> str:
    """Return the text of a file after clang's preprocessor, with its line markers; macros of the
    Metal library remain. Raises KernelRejected."""
    compiler = find_compiler()
    macros = {"__METAL__": "1", "__METAL_VERSION__": str(METAL_VERSION), "__METAL_MACOS__": "1"}
    macros |= {"__HAVE_BFLOAT__": "1", **defines}
    options = [f"-D{name}={value}" for name, value in macros.items()]
    options += [f"-I{folder}" for folder in folders]
    command = (*compiler.kernel, "-E", "-x", "c++", "-std=c++17", "-undef", "-nostdinc", "-w")
    with tempfile.TemporaryDirectory() as empty:
        while True:
            try:
                return _run(*command, *options, f"-I{empty}", str(path))
            except KernelRejected as error:
                header = _OWN_HEADER.search(str(error))
                if header is None or Path(empty, header[1]).exists():
                    raise
                Path(empty, header[1]).parent.mkdir(exist_ok=True)
                Path(empty, header[1]).touch()


def _library(compiler: MetalCompiler, flags: Sequence[str]) -> Path:
    """Return the Metal library as a precompiled header, made now or taken from the cache; parsing
    it is a quarter of a compilation. Its name stands for the header, flags and compiler."""
    path = entry(_digest(INCLUDE), *flags, compiler.version, suffix=".pch")
    # of a checkout anew, whose header has another time of change, it stays usable
    options = ("-fpch-instantiate-templates", "-Xclang", "-fno-pch-timestamp")
    emit = ("-Xclang", "-emit-pch", "-c", str(INCLUDE / "metal_stdlib"))
    command = (*compiler.kernel, *flags, *options, *emit, "-o")
    return _build_file(path, lambda built: _run(*command, str(built)))


@cache  # each launch asks for it
def _digest(folder: Path) -> bytes:
    texts = [(folder / name).read_bytes() for name in ("metal_stdlib", "mlx_utils")]
    return hashlib.sha256(b"\0".join(texts)).digest()


_ONCE = defaultdict[Path, threading.Lock](threading.Lock)  # schedules run side by side


def _build_file(path: Path, build: Callable[[Path], object]) -> Path:
    """Return a file of the cache. What is not there is built in a folder of its own, by one thread
    for all."""
    with _ONCE[path]:
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                build(built := Path(folder, path.name))
                os.replace(built, path)
    return path


def _linker(compiler: MetalCompiler) -> tuple[str, ...]:
    """Return the command that links a kernel. It needs no library: what it calls is in the runner.
    `ld` itself takes 4 ms of CPU, and a compiler that calls it 70."""
    if sys.platform == "linux":
        own = shutil.which("ld")
        return (own, "-shared") if own else (*compiler.native, "-shared", "-nostdlib")
    return (*compiler.native, "-shared", "-undefined", "dynamic_lookup")


def _kernel_flags(machine: str = "", system: str = "") -> tuple[str, ...]:
    """Return the options that compile a kernel, for this machine unless another is named."""
    machine = machine or platform.machine()
    system = system or ("linux-gnu" if sys.platform == "linux" else "apple-macosx")
    target = ("-target", f"{'x86_64' if machine in _FEATURES else 'aarch64'}-{system}")
    features = _FEATURES.get(machine.lower(), ())
    return (*_LANGUAGE, *_MACROS, *target, *features, *_CHECKS, *_WARNINGS, f"-I{INCLUDE}")


@cache
def runner(compiler: MetalCompiler) -> Path:
    """Return the program that loads kernels and runs them, compiled now or taken from the cache."""
    flags = ("-std=c++17", "-O2", "-w", "-rdynamic")
    libraries = ("-ldl",) if sys.platform == "linux" else ()
    path = entry(RUNTIME.read_text(encoding="utf-8"), compiler.version, *flags, *libraries)
    command = (*compiler.native, *flags, str(RUNTIME), *libraries, "-o")
    return _build_file(path, lambda built: _run(*command, str(built)))


def entry(*parts: str | bytes, suffix: str = "") -> Path:
    """Return the path in the cache of what depends on these parts. Raises CacheUnusable."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CacheUnusable(
            f"{folder}, where compiled Metal kernels are kept, cannot be made ({reason}); make it, "
            "or name another folder by XDG_CACHE_HOME."
        ) from error
    known = b"\0".join(part.encode() if isinstance(part, str) else part for part in parts)
    return folder / (hashlib.sha256(known).hexdigest()[:32] + suffix)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=TIME_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise KernelRejected(f"the compiler took more than {TIME_LIMIT_S:.0f} s") from None
    if "No space left on device" in done.stderr:
        raise CacheUnusable(
            f"The disk of {cache_folder()}, where compiled Metal kernels are kept, is full; free "
            "some space, or name another folder by XDG_CACHE_HOME."
        )
    if done.returncode:
        errors = re.findall(r"^.*error: .*$", done.stderr, flags=re.MULTILINE)
        text = "; ".join(errors[:3]) or " ".join(done.stderr.split())[:400]
        raise KernelRejected(re.sub("|".join(_SPACES), lambda m: _SPACES[m[0]], text))
    return done.stdout


_SYMBOLIZER = ("--inlines", "-e", "{program}")
LINE_TOOLS: Mapping[str, Sequence[str]] = {
    "atos": ("-i", "-o", "{program}", "-l", "0x0"),  # of Xcode's Command Line Tools
    "addr2line": ("-i", "-e", "{program}"),
    "llvm-addr2line": ("-i", "-e", "{program}"),
    "llvm-symbolizer": _SYMBOLIZER,
    f"llvm-symbolizer-{OLDEST}": _SYMBOLIZER,
}


def line_of(program: Path, address: int, name: str) -> int | None:
    """Return the line of a kernel's text that an address of its program comes from, or None where
    no tool is installed that reads it (addr2line of binutils, llvm-symbolizer; atos of a Mac)."""
    for tool, options in LINE_TOOLS.items():
        if path := shutil.which(tool):
            # of a call that two branches share there is no line: the instructions before it have
            places = [hex(address - back) for back in range(0, 40, 3)]
            done = subprocess.run(
                (path, *(option.format(program=program) for option in options), *places),
                capture_output=True, text=True, check=False, timeout=60,
            )  # fmt: skip
            lines = re.findall(rf"{re.escape(name)}\.metal:(\d+)", done.stdout)
            return int(lines[0]) if lines else None
    return None
