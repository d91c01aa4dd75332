"""Machine code and its listings: no profile, so refused with the command that shows them."""

import re
from typing import NoReturn

from workbench.traces.readers import TraceReader, ptxas
from workbench.traces.readers.inputs.source import Source

NVDISASM = r"^\s*\.headerflags\b|^//-+ \.text\.|^\s*\.section\s+\.text\."
KINDS = (
    (re.compile(r"\A\s*(?://.*\n\s*)*\.version \d", re.M), "PTX"),
    (re.compile(r"^\s*\.amdgcn_target|^\s*\.amdhsa_|^amdhsa\.kernels:", re.M), "AMD assembly"),
    (re.compile(r"^\s*Function : \S+|^Fatbin elf code:", re.M), "a listing of SASS"),
    (re.compile(NVDISASM, re.M), "a listing of nvdisasm"),
    (re.compile(r'"SM"\s*:\s*\{|"opcode"\s*:\s*"'), "JSON of nvdisasm"),
    (re.compile(r"\A\s*digraph\b"), "a control flow graph in DOT"),
    (re.compile(r"^Resource usage:|REG:\d+ STACK:\d+", re.M), "the resources of a cubin"),
    (re.compile(r"\A\s*(?:#\w+ = |module\b|#blocked)", re.M), "MLIR of Triton"),
)


def sniff(source: Source) -> bool:
    """Return whether a file is machine code or a listing of it."""
    return _kind(source) is not None


def _kind(source: Source) -> str | None:
    if source.head[:4] == b"\x7fELF":
        return "machine code"
    text = source.head_text
    if not text or ptxas.sniff(source):
        return None
    return next((name for pattern, name in KINDS if pattern.search(text)), None)


def read(source: Source) -> NoReturn:
    """Raise ReadError with the remedy."""
    source.fail(
        f"it is {_kind(source)}, and no file of a profiler",
        "`workbench code FILE` shows a cubin, hsaco, PTX or AMD assembly, `--against` compares two",
    )


READER = TraceReader("machine code", sniff, read)
