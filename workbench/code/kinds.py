"""Classify instructions: kinds that experiments count, groups of the mix, bytes and matrix work."""

import re
from functools import cache

from workbench.code.listing import Instruction
from workbench.data.matrix_work import opcode_flops

BY_DESCRIPTOR = "descriptor"  # a load of the copy engine (TMA), whose descriptor holds the size
ASYNC = "async"  # from global into shared memory, bypassing the registers

# Groups of the mix, in the order of tables
GROUPS = (
    "matrix", "global loads", "global stores", "shared loads", "shared stores", "tensor memory",
    "spills", "atomics", "barriers", "special", "conversions", "float", "integer", "moves",
    "constants", "control", "other",
)  # fmt: skip


def group_text(n: int, group: str) -> str:
    """Return a number of instructions of a group: `1 global load`, `2 global loads`, `4 matrix`."""
    return f"{n} {group.removesuffix('s') if n == 1 else group}"


# Groups of which a part of a kernel that does anything has one.
WORK = ("matrix", "global loads", "global stores", "shared loads", "shared stores", "tensor memory")
_MATRIX = re.compile(r"(UTC\w*MMA|[A-Z]{1,2}G?MMA)$")
_VECTOR = {
    "FFMA",
    "FADD",
    "FMUL",
    "FFMA2",
    "FADD2",
    "FMUL2",
    "FFMA32I",
    "FADD32I",
    "FMUL32I",
    "HFMA2",
    "HADD2",
    "HMUL2",
    "DFMA",
    "DADD",
    "DMUL",
}
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
_AMD_MATRIX = ("v_mfma_", "v_smfmac_", "v_wmma_", "v_swmmac_")
_AMD_VECTOR = re.compile(
    r"v_(dual_|pk_)?(fma|fmac|fmaak|fmamk|mad|mac|add|sub|mul|dot2\w*)_.*f(16|32|64)"
)
_AMD_SPECIAL = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos|tanh)_")
_AMD_LOAD = re.compile(r"(?:global|buffer|flat)_load_(.*)")


def sass_kind(op: Instruction) -> str | None:
    """Return the kind of an NVIDIA instruction that experiments count, such as `"load 128"` or
    `"matrix"`; None for the others."""
    head, *marks = op.opcode.split(".")
    bits = next((_WIDTHS[mark] for mark in marks if mark in _WIDTHS), 32)
    if head in ("LDG", "LD"):
        return f"load {bits}"
    if head == "LDGSTS":
        return f"load {ASYNC} {bits}"
    if head in ("UTMALDG", "UBLKCP"):
        # a bulk copy names its destination first: from shared memory it is a store
        return f"load {BY_DESCRIPTOR}" if head == "UTMALDG" or ".S.G" in op.opcode else "store"
    if head in ("STG", "ST", "UTMASTG"):
        return "store"
    if head in ("LDS", "LDSM"):
        return "shared"
    if _MATRIX.match(head):
        return "matrix"
    if head == "MUFU":
        return "special"
    # a multiply-add of two zeros is how an immediate gets into a register
    moved = re.match(r"[^,]*,\s*-?RZ,\s*-?RZ\b", op.operands)
    return "vector" if head in _VECTOR and not moved else None


def amd_kind(op: Instruction) -> str | None:
    """Return the kind of an AMD instruction, as `sass_kind` does."""
    if result := _AMD_LOAD.match(op.opcode):
        into = f"{ASYNC} " if "lds" in op.operands.split() or "lds" in op.opcode else ""
        return f"load {into}{_amd_bits(result[1])}"
    if re.match(r"(global|buffer|flat)_store_", op.opcode):
        return "store"
    if op.opcode.startswith(("ds_load", "ds_read")):
        return "shared"
    if op.opcode.startswith(_AMD_MATRIX):
        return "matrix"
    if _AMD_SPECIAL.match(op.opcode):
        return "special"
    return "vector" if _AMD_VECTOR.match(op.opcode) else None


def _amd_bits(kind: str) -> int:
    """Return the width in bits of `dwordx4`, `b128`, `ushort`, `d16_hi_b16`, `lds_dwordx4`."""
    if result := re.search(r"dword(?:x(\d))?", kind):
        return 32 * int(result[1] or 1)
    if result := re.search(r"[bui](\d+)$", kind):
        return int(result[1])
    return 16 if "short" in kind else 8


# Groups of the mix

_SASS_GROUPS = {
    "shared loads": r"LDS|LDSM|LDSM\w*",
    "shared stores": r"STS|STSM|UBLKST",
    "tensor memory": r"LDTM|STTM|UTCCP|UTCSHIFT|UTCATOMSWS|UTCBAR",
    "spills": r"LDL|STL",
    "atomics": r"ATOM|ATOMG|ATOMS|RED|REDG|REDAS|REDUX|UTMAREDG|UBLKRED|CREDUX|ATOMS\w*",
    "barriers": r"U?BAR|SYNCS|MEMBAR|FENCE|UCGABAR_\w+|WARPGROUP|WARPGROUPSET|DEPBAR"
    r"|WARPSYNC|LDGDEPBAR|LDTDEPBAR|ERRBAR|UTMACMDFLUSH|NANOSLEEP|ARRIVES|ELECT|USETMAXREG|UTMACCTL|CCTL\w*",
    "special": r"MUFU",
    "conversions": r"[FI]2[FIP]|[FI]2FP|I2IP|F2IP|FRND|I2F\w*|F2F\w*",
    "integer": r"U?(IADD\w*|IMAD|LEA|LOP3?|LOP32I|PLOP3|SHF|SHL|SHR|ISETP|IMNMX|VIMNMX\d?|VIADD\w*"
    r"|ISCADD|SGXT|BMSK|FLO|POPC|BREV|IABS|IDP\w*|LOP|ISET|VIADDMNMX|USEL|IMUL|XMAD)",
    "float": r"U?[FHD](SETP\d?|SET|MNMX\d?|SEL|ADD|SWZADD|CHK|FMA|MUL)\w*|HMNMX2|FADD32I|FSWZADD",
    "moves": r"U?MOV|UMOV|MOV32I|PRMT|UPRMT|U?SEL|CS2R|CS2UR|S2R|S2UR|R2UR|R2P|P2R|UP2UR|UR2UP|SHFL"
    r"|VOTE|VOTEU|MATCH|MOVM|R2B|B2R|FSEL",
    "constants": r"U?LDC|LDCU|ULDC",
    "control": r"BRA|BRX|BRXU|JMP|JMX|EXIT|RET|CALL|BSSY|BSYNC|BREAK|YIELD|NOP|KILL|BPT|WARPSYNC"
    r"|ACQBULK|PREEXIT|RPCMOV|BMOV|LEPC",
}
_SASS_GROUP = {name: re.compile(f"(?:{text})$") for name, text in _SASS_GROUPS.items()}
_AMD_GROUPS = {
    "spills": r"scratch_(load|store)_",
    "shared stores": r"ds_(write|store)",
    "atomics": r"(global|buffer|flat|ds)_(atomic|add|sub|cmpst|max|min|or|and|xor|inc|dec|wrxchg)",
    "barriers": r"s_(barrier|waitcnt|wait_|sleep)|buffer_(wbl2|inv|gl\d_inv|wbinv)|s_delay_alu",
    "conversions": r"v_(pk_)?cvt_|v_(rndne|trunc|floor|ceil)_",
    "moves": r"[vs]_(mov|accvgpr|perm|cndmask|cselect|readfirstlane|readlane|writelane|swap"
    r"|dual_mov|dual_cndmask|pk_mov|cmov|getreg|setreg)|ds_(b?permute|swizzle)",
    "constants": r"s_(buffer_)?load_",
    "control": r"s_(c?branch|endpgm|nop|setprio|call|swappc|setpc|getpc|code_end|clause|set_gpr"
    r"|inst)",
    "float": r"v_(dual_)?(pk_)?\w*_(f|bf)(16|32|64)",
    "integer": r"[vs]_",
}
_AMD_GROUP = {name: re.compile(text) for name, text in _AMD_GROUPS.items()}
_KIND_TITLES = {
    "store": "global stores",
    "shared": "shared loads",
    "matrix": "matrix",
    "special": "special",
    "vector": "float",
}


def is_amd(arch: str) -> bool:
    """Return whether a target is one of AMD's."""
    return arch.startswith("gfx")


def group_of(op: Instruction, arch: str) -> str:
    """Return the group of the mix that an instruction belongs to, one of GROUPS."""
    amd = is_amd(arch)
    if amd and "Folded" in op.note:
        return "spills"
    kind = (amd_kind if amd else sass_kind)(op)
    if kind is not None:
        return "global loads" if kind.startswith("load") else _KIND_TITLES[kind]
    return _group_of_name(op.opcode if amd else op.opcode.split(".")[0], amd)


@cache  # a kernel of thousands of instructions has some tens of names
def _group_of_name(name: str, amd: bool) -> str:
    table = _AMD_GROUP if amd else _SASS_GROUP
    return next((group for group, known in table.items() if known.match(name)), "other")


def access_of(op: Instruction, arch: str) -> tuple[str, int | None] | None:
    """Return the kind of a memory access (`global load`, `shared store`, ...) and the bytes that
    one thread moves, None where a descriptor states them; None for other instructions."""
    group = group_of(op, arch)
    if group not in ("global loads", "global stores", "shared loads", "shared stores", "spills"):
        return None
    name = group.removesuffix("s")
    kind = sass_kind(op) if not is_amd(arch) else None
    if kind and (BY_DESCRIPTOR in kind or op.opcode.startswith(("UTMA", "UBLK"))):
        return name, None
    if is_amd(arch):
        return name, _amd_access(op.opcode)
    head, *marks = op.opcode.split(".")
    if head in ("LDSM", "STSM"):  # 8x8 matrices of 16 bits: 4 bytes for each thread and matrix
        return name, 4 * int(next((m for m in marks if m in ("2", "4")), 1))
    return name, next((_WIDTHS[mark] for mark in marks if mark in _WIDTHS), 32) // 8


def _amd_access(opcode: str) -> int:
    if not re.match(r"(global|buffer|flat|ds|scratch)_", opcode):
        return 4  # a register that is put into a lane of another one
    several = 2 if re.search(r"(read|write|load|store)(x?2|_2addr)", opcode) else 1
    prefix = r"^(global|buffer|flat|ds|scratch)_(load|store|read2?|write2?)(2addr|st64|_)*"
    kind = re.sub(r"_d16(_hi)?$", "", re.sub(prefix, "", opcode))
    return several * _amd_bits(kind) // 8


def matrix_flops(op: Instruction) -> int | None:
    """Return the operations of a matrix instruction, two for a multiply-add: of one warp, or of a
    warp group for wgmma. None where a descriptor holds the shape (tcgen05), and for other
    instructions."""
    return opcode_flops(op.opcode)
