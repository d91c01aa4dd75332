"""Disassemble an hsaco with LLVM's llvm-objdump, if there is one, into the listing of assembly."""

import re
import shutil
import subprocess
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from workbench.code.listing import DisassemblyError, Listing, read_amdgcn_listing
from workbench.data.temporary import temporary_folder

TOOL = "llvm-objdump"
ROCM = Path("/opt/rocm/llvm/bin")  # where AMD's own packages put it
SECONDS = 60.0
PADDING = ("s_nop", "s_code_end")
_SYMBOL = re.compile(r"^([0-9a-f]+) <([^>]+)>:")
_LINE = re.compile(
    r"^\s+([a-z]\w+.*?)\s*// ([0-9A-Fa-f]+):[^<]*(?:<([^>+]+)(?:\+0x([0-9a-f]+))?>)?"
)


def find_tool() -> str | None:
    """Return the path of llvm-objdump: on PATH, of ROCm, or in Triton's wheel; None without one."""
    spec = find_spec("triton")
    wheels = [
        Path(p) / "backends" / "amd" / "bin"
        for p in (spec and spec.submodule_search_locations) or ()
    ]
    others = (str(folder / TOOL) for folder in (ROCM, *wheels) if (folder / TOOL).is_file())
    return shutil.which(TOOL) or next(others, None)


def disassembled_hsaco(image: bytes, arch: str) -> Listing:
    """Return the listing of an hsaco, with addresses. Raises DisassemblyError with the reason."""
    tool = find_tool()
    if tool is None:
        raise DisassemblyError(f"no {TOOL} is on PATH")
    with temporary_folder() as folder:
        file = folder / "kernel.hsaco"
        file.write_bytes(image)
        command = [tool, "-d", "--triple=amdgcn-amd-amdhsa", f"--mcpu={arch}", str(file)]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, timeout=SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DisassemblyError(f"{tool} failed ({type(error).__name__})") from error
    errors = done.stderr.decode("utf-8", "replace")
    if done.returncode or "not a recognized processor" in errors:
        raise DisassemblyError(f"{tool} does not know {arch}")
    listing = read_objdump(done.stdout.decode("utf-8", "replace"))
    if not listing.instructions:
        raise DisassemblyError(f"{tool} finds no instruction")
    return listing


Row = tuple[int, str, int | None]  # address, instruction, target of a jump


def read_objdump(text: str) -> Listing:
    """Return the listing of llvm-objdump's text: the targets of jumps, which it prints as offsets
    from a symbol, become labels."""
    symbols: dict[str, int] = {}
    rows: list[Row] = []
    for line in text.splitlines():
        if match := _SYMBOL.match(line):
            symbols[match[2]] = int(match[1], 16)
        elif match := _LINE.match(line):
            base = symbols.get(match[3] or "")
            target = None if base is None else base + int(match[4] or "0", 16)
            rows.append((int(match[2], 16), match[1], target))
    named = {at: name for name, at in symbols.items()}
    targets = {target for _, _, target in rows if target is not None}
    rows = list(_strip_padding(rows, targets | set(named)))
    lines = [f".type {name},@function" for name in symbols]
    for at, instruction, target in rows:
        lines += [f"{named[at]}:"] if at in named else []
        lines += [f".L_{at:x}:"] if at in targets else []
        jump = instruction.split()[0]
        lines.append(f"\t{instruction}" if target is None else f"\t{jump} .L_{target:x}")
    listing = read_amdgcn_listing("\n".join(lines))
    if len(listing.instructions) == len(rows):  # not so where two are issued as one
        listing.instructions = [
            replace(op, address=at)
            for op, (at, _, _) in zip(listing.instructions, rows, strict=True)
        ]
    return listing


def _strip_padding(rows: Iterable[Row], named: Container[int]) -> Iterator[Row]:
    """Yield the instructions without those that fill the space behind a jump or the end up to the
    next label: assembly has a directive for them."""
    is_behind = False
    for row in rows:
        opcode = row[1].split()[0]
        is_behind = is_behind and row[0] not in named and opcode in PADDING
        if not is_behind:
            yield row
        is_behind = is_behind or opcode in ("s_branch", "s_endpgm")
