"""Run ptxas once more on PTX: spills, stack and the warnings that Triton discards."""

import re
import subprocess
from dataclasses import dataclass

from workbench.data.temporary import temporary_folder

_TARGET = re.compile(r"^\s*\.target\s+(sm_\w+)", re.MULTILINE)
_SPILLS = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)  # fmt: skip
_WARNING = re.compile(r"\((C\d+)\)\s+(Potential Performance Loss:.*)|warning\s*:\s*(.*)")


class PtxasError(ValueError):
    """ptxas rejects the PTX; the message is its first reason."""


@dataclass(frozen=True)
class PtxasReport:
    """The report of `ptxas -v` on one PTX."""

    cubin: bytes
    stack_bytes: int  # of a thread
    spill_store_bytes: int  # of a thread, each store instruction once
    spill_load_bytes: int
    warnings: tuple[tuple[str, str], ...]  # number such as C7511, or "", and sentence


def target_of(ptx: str) -> str | None:
    """Return the target that PTX names, such as sm_90a; None where it names none."""
    match = _TARGET.search(ptx)
    return match[1] if match else None


def run_ptxas(ptx: str, newest: bool = False) -> PtxasReport:
    """Return the report of the ptxas that Triton uses for the target, or of its `newest` one.

    Raises PtxasError where it rejects the PTX or the PTX names no target, OSError where there is no
    ptxas, SubprocessError after two minutes.
    """
    target = target_of(ptx)
    if target is None:
        raise PtxasError("it names no .target")
    with temporary_folder() as folder:
        source, image = folder / "kernel.ptx", folder / "kernel.cubin"
        source.write_text(ptx, encoding="utf-8")
        command = [_path(target, newest), "-v", "-lineinfo", f"--gpu-name={target}",
                   str(source), "-o", str(image)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        text = done.stderr + done.stdout
        if done.returncode:
            errors = [line for line in text.splitlines() if "error" in line or "fatal" in line]
            reason = (errors or [f"ptxas ended with {done.returncode}"])[0]
            raise PtxasError(reason.replace(str(source), "the PTX").strip())
        return PtxasReport(image.read_bytes(), *_spills(text), _warnings(text))


def _path(target: str, newest: bool) -> str:
    from triton import knobs
    from triton.backends.nvidia.compiler import get_ptxas

    digits = int(re.sub(r"\D", "", target))
    tool = knobs.nvidia.ptxas_blackwell if newest else get_ptxas(digits)
    return str(tool.path)


def _spills(text: str) -> tuple[int, int, int]:
    match = [(int(a), int(b), int(c)) for a, b, c in _SPILLS.findall(text)]
    return max(match, default=(0, 0, 0))  # the entry function has the largest


def _warnings(text: str) -> tuple[tuple[str, str], ...]:
    match = (_WARNING.search(line) for line in text.splitlines())
    pairs = ((m[1] or "", (m[2] or m[3]).strip()) for m in match if m)
    return tuple(dict.fromkeys(pairs))
