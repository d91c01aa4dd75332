"""Metrics of a kernel from its instructions: what ran, with how many lanes, and where warps waited.

A table of instructions is ncu's source page, or the same of a report. Executions are those of
warps, samples those of the program counter. A metric whose columns are missing is absent, never 0.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from workbench.data.matrix_work import opcode_flops
from workbench.traces.trace import Dispatch, InstructionTable

# Heads of a column: in the CSV of ncu, and in what `traces/readers/inputs/ncu_worker.py` reads.
EXECUTED = ("Instructions Executed", "executed")
LANES_ACTIVE = ("Thread Instructions Executed",)  # without the lanes that a branch left
LANES_ON = ("Predicated-On Thread Instructions Executed", "lanes")
SAMPLES = ("# Samples", "Warp Stall Sampling (All Samples)", "samples")
LOCAL = ("L2 Theoretical Sectors Local",)
EXCESSIVE = ("L2 Theoretical Sectors Global Excessive",)
IDEAL = ("L2 Theoretical Sectors Global Ideal",)
EXCESSIVE_SHARED = ("L1 Wavefronts Shared Excessive",)
STALL = "stall_"
# Reasons that the source page or the samples call otherwise than the counters do.
REASONS = {
    "dispatch": "dispatch_stall",
    "imc": "imc_miss",
    "lg": "lg_throttle",
    "long_sb": "long_scoreboard",
    "math": "math_pipe_throttle",
    "mio": "mio_throttle",
    "no_inst": "no_instruction",
    "no_instructions": "no_instruction",
    "short_sb": "short_scoreboard",
    "sleep": "sleeping",
    "tex": "tex_throttle",
    "warpgroup_arrive": "gmma",
}

# Opcodes without their modifiers. REDUX is not an atomic: it reduces over the lanes of a warp.
MIXES: Mapping[str, frozenset[str]] = {
    "atomic_share": frozenset({"ATOM", "ATOMG", "RED", "REDG"}),
    "fence_share": frozenset({"MEMBAR"}),
    "exchange_share": frozenset({"BAR", "SHFL", "LDS", "STS"}),
    "special_share": frozenset({"MUFU"}),
    "conversion_share": frozenset({"I2F", "F2I", "F2F", "FRND"}),
    "unpack_share": frozenset({"PRMT", "LOP3", "SHF"}),
    "async_copy_share": frozenset({"LDGSTS", "UTMALDG", "UBLKCP"}),
}
COPY = "LDGSTS"  # left out of lanes: pipelined loops issue it without any on purpose
ACCESSES = frozenset({"LDG", "STG"})
NARROW = re.compile(r"(?:LDG|STG)\.(?:[\w.]*\.)?[US](?:8|16)\b")  # one or two bytes a thread
# Operations of one thread; a fused multiply-add is two, and packed halves are two values.
FLOPS = {
    "FADD": 1, "FMUL": 1, "FFMA": 2, "DADD": 1, "DMUL": 1, "DFMA": 2,
    "HADD2": 2, "HMUL2": 2, "HFMA2": 4,
}  # fmt: skip
BULK_STORES = frozenset({"UTMASTG", "UTMACMDFLUSH"})
# Loads whose results are waited for as `long scoreboard`.
LOADS = frozenset({"LDTM", "LDG", "LD", "LDL", "ATOM", "ATOMG", "TLD", "TEX"})
WARPS_OF_A_GROUP = 4  # that each execute one instruction of wgmma

INSTRUCTION = re.compile(r"(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*)")
REGISTER = re.compile(r"\bR(\d+)\b")
REGISTERS = re.compile(r"\.x(\d+)\b")  # of LDTM: 1 for each, 2 or 4 where lanes hold wider parts


@dataclass(frozen=True)
class Executed:
    """One instruction: its opcode with and without modifiers, its operands, and its row."""

    opcode: str
    stem: str
    operands: str
    row: int


def instruction_metrics(dispatch: Dispatch) -> dict[str, float]:
    """Return the metrics that the instructions of a dispatch give, by name: `MIXES` as shares of
    all that ran, `memory_lanes` (lanes that are on in a global load or store, of 32),
    `masked_share` (of these with no lane on), `copied_share`
    (of both and asynchronous copies, the latter), `narrow_share` (of
    these that move at most two bytes a thread), `tma_store_samples` and `tmem_load_samples` (shares
    of all samples), `matrix_flop` and `vector_flop` (operations in the matrix unit and outside of
    it), and sectors of L2. Without a table, those of the opcodes."""
    table = dispatch.instructions
    if table is None:
        return _mixes(dispatch.opcodes)
    code = list(_instructions(table))
    executed = _column(table, EXECUTED)
    metrics = _sectors(table)
    if executed is not None:
        counts: dict[str, float] = {}
        for op in code:
            counts[op.stem] = counts.get(op.stem, 0.0) + executed[op.row]
        metrics |= _mixes(counts)
        metrics |= _matrix_flop(code, executed) | _narrow(code, executed)
        lanes = _column(table, LANES_ON)
        if lanes is not None:
            metrics |= _memory_lanes(code, executed, lanes)
            flops = (FLOPS.get(op.stem, 0) * lanes[op.row] for op in code)
            metrics["vector_flop"] = math.fsum(flops)
    return metrics | _samples(table, code)


def sampled_stalls(table: InstructionTable) -> dict[str, float]:
    """Return each reason's share of all samples that name a reason, in the words of the counters;
    empty where the table has no samples."""
    weights: dict[str, float] = {}
    for head in table.heads:
        if head.startswith(STALL) and " " not in head:
            name = reason_of(head)
            weights[name] = weights.get(name, 0.0) + table.total(head)
    whole = math.fsum(weights.values())
    return {name: weight / whole for name, weight in weights.items()} if whole > 0 else {}


def reason_of(head: str) -> str:
    """Return the reason to stall of a column, in the word of the counters."""
    word = head.removeprefix(STALL)
    return REASONS.get(word, word)


def _instructions(table: InstructionTable) -> Iterator[Executed]:
    for row, text in enumerate(table.texts):
        if match := INSTRUCTION.match(text):
            yield Executed(match[1], match[1].split(".")[0], match[2], row)


def _column(table: InstructionTable, heads: Sequence[str]) -> list[float] | None:
    """Return the first column of these heads that the table has, or None."""
    for head in heads:
        if head in table.heads:
            at = table.heads.index(head)
            return [row[at] or 0.0 for row in table.values]
    return None


def _mixes(counts: Mapping[str, float]) -> dict[str, float]:
    whole = math.fsum(counts.values())
    if whole <= 0:
        return {}
    return {
        name: math.fsum(counts.get(stem, 0.0) for stem in stems) / whole
        for name, stems in MIXES.items()
    }


def _matrix_flop(code: Sequence[Executed], executed: Sequence[float]) -> dict[str, float]:
    """Return the operations of the matrix instructions that ran; nothing where a descriptor holds
    the shape of one."""
    whole = 0.0
    for op in code:
        flops = opcode_flops(op.opcode)
        if flops is None and op.stem.endswith("MMA") and executed[op.row]:
            return {}
        warps = WARPS_OF_A_GROUP if op.stem.endswith("GMMA") else 1
        whole += executed[op.row] * (flops or 0) / warps
    return {"matrix_flop": whole}


def _narrow(code: Sequence[Executed], executed: Sequence[float]) -> dict[str, float]:
    """Return the part of global loads and stores that move at most two bytes a thread; nothing
    where none ran. Asynchronous copies are loads, too, of at least four bytes."""
    whole = math.fsum(executed[op.row] for op in code if op.stem in {*ACCESSES, COPY})
    if not whole:
        return {}
    slim = math.fsum(executed[op.row] for op in code if NARROW.match(op.opcode))
    return {"narrow_share": slim / whole}


def _memory_lanes(
    code: Sequence[Executed], executed: Sequence[float], lanes: Sequence[float]
) -> dict[str, float]:
    rows = [op.row for op in code if op.stem in ACCESSES and executed[op.row] > 0]
    whole = math.fsum(executed[row] for row in rows)
    if not whole:
        return {}
    copies = math.fsum(executed[op.row] for op in code if op.stem == COPY)
    return {
        "memory_lanes": math.fsum(lanes[row] for row in rows) / whole,
        "masked_share": math.fsum(executed[row] for row in rows if not lanes[row]) / whole,
        "copied_share": copies / (copies + whole),
    }


def _sectors(table: InstructionTable) -> dict[str, float]:
    """Return the sectors of L2 that instructions ask for: of spills and other local memory, of
    global accesses beyond what they need, and those that they need."""
    ideal, excessive = _column(table, IDEAL), _column(table, EXCESSIVE)
    if ideal is None or excessive is None:
        return {}
    # ncu leaves the column out where no instruction accesses local memory
    local = _column(table, LOCAL) or []
    return {
        "ideal_sectors": math.fsum(ideal),
        "excessive_sectors": math.fsum(excessive),
        "local_sectors": math.fsum(local),
    }


# Samples


def _samples(table: InstructionTable, code: Sequence[Executed]) -> dict[str, float]:
    samples = _column(table, SAMPLES)
    if samples is None or not (whole := math.fsum(samples)):
        return {}
    metrics = {"tma_store_samples": math.fsum(samples[i] for i in _bulk_stores(code)) / whole}
    waits = [h for h in table.heads if h.startswith(STALL) and reason_of(h) == "long_scoreboard"]
    waiting = _column(table, waits)
    if waiting is not None:
        metrics["tmem_load_samples"] = math.fsum(waiting[i] for i in _tmem_waits(code)) / whole
    return metrics


def _bulk_stores(code: Sequence[Executed]) -> Iterator[int]:
    """Yield the rows of bulk stores by TMA and of the waits for them, which one elected lane makes.
    Such a wait is a DEPBAR after an ELECT; where the kernel has groups of cp.async too, a DEPBAR
    may be theirs and does not count."""
    stems = {op.stem for op in code}
    waits = "UTMASTG" in stems and "LDGDEPBAR" not in stems
    elected = False
    for op in code:
        elected = elected or op.stem == "ELECT"
        if op.stem in BULK_STORES or (op.stem == "DEPBAR" and waits and elected):
            yield op.row


def _tmem_waits(code: Sequence[Executed]) -> Iterator[int]:
    """Yield the rows that load from tensor memory, and those that wait for such a load: the NOP
    behind it, and what reads a register of which the latest load is one."""
    loads: dict[int, tuple[int, bool]] = {}  # by register: place of its load, whether an LDTM
    before = ""
    for place, op in enumerate(code):
        target, _, sources = op.operands.partition(",")
        if "[" in target:  # a store, whose first operand is an address
            target, sources = "", op.operands
        read = [loads[r] for r in _registers(sources) if r in loads]
        if op.stem == "LDTM" or (op.stem == "NOP" and before == "LDTM") or (read and max(read)[1]):
            yield op.row
        for register in _written_registers(op, target):
            if op.stem in LOADS:
                loads[register] = place, op.stem == "LDTM"
            else:
                loads.pop(register, None)
        before = op.stem


def _registers(text: str) -> list[int]:
    return [int(number) for number in REGISTER.findall(text)]


def _written_registers(op: Executed, target: str) -> Sequence[int]:
    """Return the registers that an instruction writes: the one that it names, or all of an LDTM."""
    first = _registers(target)[:1]
    if op.stem != "LDTM" or not first or not (match := REGISTERS.search(op.opcode)):
        return first
    wide = 4 if "256" in op.opcode else 2 if "128bit" in op.opcode else 1
    return range(first[0], first[0] + wide * int(match[1]))
