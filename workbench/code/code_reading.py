"""Read one kernel's machine code in full, from Triton's compiler or from a file."""

import hashlib
import re
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.code.amd_listing import disassembled_hsaco
from workbench.code.amd_note import counts_of_text, note_of
from workbench.code.flow import FlowGraph, Loop, flow_graph
from workbench.code.kinds import is_amd
from workbench.code.listing import (
    DisassemblyError,
    Instruction,
    Listing,
    disassemble,
    read_amdgcn_listing,
    read_sass,
)
from workbench.code.live import amd_live, nvidia_live
from workbench.code.machine_code import amdgcn_registers, cubin_registers
from workbench.code.mix import Mix, mix_of
from workbench.code.partitions import Specialisation, specialisation
from workbench.code.ptx_lines import correct_lines
from workbench.code.ptxas import PtxasError, PtxasReport, run_ptxas, target_of
from workbench.data.files import open_to_read
from workbench.spec import WorkbenchError

LARGEST = 64 << 20  # bytes of a file; the largest kernels of libraries have about 10 MB
CUDA, AMDGPU = 190, 224  # ELF's numbers of machines


class CodeError(WorkbenchError):
    """Machine code cannot be read; one sentence says why and what to do."""


@dataclass(frozen=True)
class MachineCode:
    """The machine code of one kernel."""

    name: str
    arch: str
    listing: Listing
    graph: FlowGraph
    binary: str  # hash of the image, or of the assembly where there is no image
    registers: int | None  # of a thread; None where the image does not say
    stack_bytes: int | None  # of a thread: stack frame or scratch
    spill_store_bytes: int | None = None  # of a thread, each instruction once
    spill_load_bytes: int | None = None
    live: tuple[int, ...] = ()  # registers live at each instruction; empty where not known
    warnings: tuple[tuple[str, str], ...] = ()  # the assembler's: number, sentence
    partitions: Specialisation | None = None
    counts: Mapping[str, int] = field(default_factory=dict)  # of AMD's metadata, by its names
    notes: tuple[str, ...] = ()  # facts that are not known, a sentence each

    @property
    def whole(self) -> Mix:
        """Return the mix of the kernel, without the functions that it calls."""
        first = next(iter(self.listing.functions), "")
        return mix_of((op for op in self.listing.instructions if op.function == first), self.arch)

    @property
    def peak_live(self) -> tuple[int, int] | None:
        """Return the most live registers and the instruction with them, or None."""
        if not self.live:
            return None
        place = max(range(len(self.live)), key=self.live.__getitem__)
        return self.live[place], place

    def loops(self) -> list[tuple[int, Loop, Mix]]:
        """Return all loops with depth and mix, outer ones before those inside."""
        return [
            (depth, loop, mix_of(self.instructions(loop), self.arch))
            for depth, loop in self.graph.all_loops()
        ]

    def instructions(self, loop: Loop) -> list[Instruction]:
        """Return the instructions of a loop, with those of the loops inside it."""
        return [self.listing.instructions[i] for i in self.places(loop)]

    def places(self, loop: Loop) -> list[int]:
        """Return the numbers of the instructions of a loop, with those of the loops inside it."""
        blocks = [self.graph.blocks[n] for n in sorted(loop.blocks)]
        return [i for b in blocks for i in range(b.start, b.end)]


def code_of_kernel(asm: Mapping[str, Any], arch: str) -> MachineCode:
    """Return the machine code of a compiled kernel, from the `asm` of Triton's CompiledKernel.
    Raises CodeError."""
    if "amdgcn" in asm:
        return code_of_assembly(asm["amdgcn"], asm.get("hsaco"))
    if "cubin" not in asm:
        raise CodeError(f"There is no machine code for {arch} to read; name another device.")
    return code_of_cubin(asm["cubin"], asm.get("ptx"))


def code_of_file(path: Path) -> MachineCode:
    """Return the machine code of a .cubin, .ptx, .amdgcn or .hsaco file. Raises CodeError."""
    try:
        with open_to_read(path) as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise CodeError(
            f"{path} cannot be read ({reason}); name a .cubin or .hsaco file."
        ) from error
    if len(data) > LARGEST:
        raise CodeError(f"{path} is larger than {LARGEST >> 20} MB; extract one kernel's cubin.")
    try:
        return _read_data(path, data)
    except CodeError as error:
        raise CodeError(f"{path}: {error}") from error


def _read_data(path: Path, data: bytes) -> MachineCode:
    if data[:4] == b"\x7fELF":
        machine = int.from_bytes(data[18:20], "little")
        if machine == CUDA:
            return code_of_cubin(data, None)
        if machine == AMDGPU:
            return _read_hsaco(path, data)
        raise CodeError("an ELF image for another machine; name a .cubin or .hsaco file.")
    text = data.decode("utf-8", "replace")
    if ".amdgcn_target" in text:
        return code_of_assembly(text, None)
    if target_of(text):
        try:
            report = run_ptxas(text)
        except (PtxasError, OSError, subprocess.SubprocessError) as error:
            raise CodeError(f"ptxas does not assemble it ({error}); correct the PTX.") from error
        return code_of_cubin(report.cubin, text)
    raise CodeError("neither a cubin, an hsaco, PTX nor AMD assembly; name one of these.")


def _read_hsaco(path: Path, data: bytes) -> MachineCode:
    """Return the code of an hsaco: of the assembly that Triton stores beside it, else of its note
    and llvm-objdump."""
    beside = path.with_suffix(".amdgcn")
    try:
        text = beside.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return code_of_hsaco(data, beside.name)
    return code_of_assembly(text, data)


def code_of_hsaco(image: bytes, beside: str) -> MachineCode:
    """Return the resources of an hsaco by its note, with a listing where llvm-objdump makes one; a
    note names `beside`, the missing file of assembly. Raises CodeError."""
    try:
        known = note_of(image)
    except ValueError as error:
        raise CodeError(f"{error}; compile it again.") from error
    notes = ["source lines are not read from an hsaco; the .amdgcn file next to it has them"]
    try:
        listing = disassembled_hsaco(image, known.arch)
    except DisassemblyError as error:
        listing = Listing()
        notes = [
            f"without a listing, as {error}: put {beside} from Triton's cache beside the image, or "
            f"install LLVM's llvm-objdump of a version that knows {known.arch} (as ROCm has it)"
        ]
    graph = flow_graph(listing)
    return MachineCode(
        name=known.name,
        arch=known.arch,
        listing=listing,
        graph=graph,
        binary=hashlib.sha256(image).hexdigest()[:16],
        registers=known.counts["vgpr_count"],
        stack_bytes=known.counts.get("private_segment_fixed_size"),
        live=tuple(amd_live(listing, graph)) if listing.instructions else (),
        counts=known.counts,
        notes=(*notes, *_unknown(listing)),
    )


def code_of_cubin(cubin: bytes, ptx: str | None) -> MachineCode:
    """Return the code of a cubin, with its PTX also spills and warnings. Raises CodeError."""
    with ThreadPoolExecutor(3) as threads:
        parts = (
            threads.submit(disassemble, cubin, "-gi"),
            threads.submit(disassemble, cubin, "-lrm", "count"),
            threads.submit(run_ptxas, ptx) if ptx else None,
        )
    try:
        text = parts[0].result()
        registers, stack = cubin_registers(cubin)
    except (OSError, ValueError, IndexError, KeyError, subprocess.SubprocessError) as error:
        raise CodeError(f"nvdisasm cannot read it ({error}); compile it again.") from error
    except Exception as error:  # struct.error of a damaged image
        raise CodeError(f"the cubin is damaged ({error}); compile it again.") from error
    listing = read_sass(text)
    if not listing.instructions:
        raise CodeError("the cubin holds no instruction; name one with a kernel.")
    if ptx is not None:
        correct_lines(listing, ptx)
    notes: list[str] = []
    report = _report(parts[2], notes)
    live = _live(parts[1], listing, ptx, notes)
    graph = flow_graph(listing)
    target = re.search(r"^\s*\.target\s+(sm_\d+)|EF_CUDA_(SM\d+)", text, re.MULTILINE)
    arch = (target[1] or target[2].lower().replace("sm", "sm_")) if target else "sm"
    return MachineCode(
        name=listing.functions[0],
        arch=arch,
        listing=listing,
        graph=graph,
        binary=hashlib.sha256(cubin).hexdigest()[:16],
        registers=registers,
        stack_bytes=stack,
        spill_store_bytes=report.spill_store_bytes if report else None,
        spill_load_bytes=report.spill_load_bytes if report else None,
        live=live,
        warnings=report.warnings if report else (),
        partitions=specialisation(listing, graph),
        notes=(*notes, *_unknown(listing)),
    )


def _report(part: Future[PtxasReport] | None, notes: list[str]) -> PtxasReport | None:
    if part is None:
        notes.append("without the PTX, ptxas' warnings and the bytes of spills are not known")
        return None
    try:
        return part.result()
    except (PtxasError, OSError, subprocess.SubprocessError) as error:
        notes.append(f"ptxas gave no report: {error}")
        return None


def _live(
    part: Future[str], listing: Listing, ptx: str | None, notes: list[str]
) -> tuple[int, ...]:
    """Return nvdisasm's live registers. Stock ptxas writes an older format for sm_80, of which
    nvdisasm finds none: then those of the PTX, assembled by the newer ptxas, are the note."""
    try:
        return tuple(nvidia_live(part.result(), listing))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = str(error)
    try:
        if ptx is not None:
            again = disassemble(run_ptxas(ptx, newest=True).cubin, "-lrm", "count")
            anew = nvidia_live(again, read_sass(again))
            notes.append(
                "nvdisasm finds no live registers in this older image; assembled again by "
                f"ptxas-blackwell, the same PTX has at most {max(anew)} live"
            )
            return ()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = str(error)
    notes.append(f"nvdisasm gave no live registers: {reason}")
    return ()


def code_of_assembly(text: str, image: bytes | None) -> MachineCode:
    """Return the code of AMD assembly. Raises CodeError."""
    listing = read_amdgcn_listing(text)
    target = re.search(r'\.amdgcn_target\s+"[^"]*?(gfx\w+)', text)
    if not listing.instructions or target is None:
        raise CodeError("the assembly holds no instruction; name one with a kernel.")
    graph = flow_graph(listing)
    try:
        registers, scratch = amdgcn_registers(text)
    except ValueError as error:
        raise CodeError(f"{error}; name assembly as Triton writes it.") from error
    spilled = re.search(r"\.vgpr_spill_count:\s*(\d+)", text)
    notes = [f"LLVM spilled {spilled[1]} vector registers"] if spilled and spilled[1] != "0" else []
    return MachineCode(
        name=listing.functions[0],
        arch=target[1],
        listing=listing,
        graph=graph,
        binary=hashlib.sha256(image or text.encode()).hexdigest()[:16],
        registers=registers,
        stack_bytes=scratch,
        live=tuple(amd_live(listing, graph)),
        counts=counts_of_text(text),
        notes=(*notes, *_unknown(listing)),
    )


def _unknown(listing: Listing) -> Iterator[str]:
    if listing.lost_jumps:
        names = ", ".join(sorted(set(listing.lost_jumps)))
        yield f"it has jumps with unknown targets ({names}), so loops may have been missed"


def register_name(arch: str) -> str:
    """Return the kind of register that `live` counts."""
    return "vector registers" if is_amd(arch) else "general registers"
