"""Counters that rocprofv3 is asked for by default, in groups that one pass can count.

Which counter a GPU has, in which block, is from AMD's definitions (`counter_defs.yaml` of
rocprofiler-sdk); those of gfx90a and gfx942 also stand in files of rocprof-compute of an MI200 and
an MI300X. How many counters of a block fit into one pass is from the specification of
rocprof-compute (`perfmon_config` of `mi_gpu_spec.yaml`: SQ 8, TCC 4 on gfx90a, gfx942 and gfx950).
None is published for gfx1100, so four of a block are taken there. None of this was ever run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from workbench.traces.metric import METRICS, Formula

TOOL = "rocprofv3"
CDNA_LIMITS = {"SQ": 8, "TCC": 4}
RDNA_LIMITS = {"SQ": 4, "GL2C": 4}  # taken, not published

_KINDS = ("F16", "F32", "F64")
_SQ = frozenset({
    *(f"SQ_INSTS_VALU_{op}_{kind}" for op in ("ADD", "MUL", "TRANS", "FMA") for kind in _KINDS),
    *(f"SQ_INSTS_VALU_MFMA_MOPS_{kind}" for kind in ("BF16", *_KINDS)),
    *(f"SQ_INSTS_{kind}" for kind in ("VALU", "MFMA", "VMEM", "LDS", "SALU", "SMEM")),
    "SQ_INSTS", "SQ_LDS_BANK_CONFLICT", "SQ_LDS_IDX_ACTIVE", "SQ_WAIT_ANY", "SQ_WAVE_CYCLES",
    "SQ_THREAD_CYCLES_VALU", "SQ_ACTIVE_INST_VALU", "TCC_HIT_sum", "TCC_MISS_sum",
})  # fmt: skip
_REQUESTS = ("RDREQ_sum", "RDREQ_32B_sum", "WRREQ_sum", "WRREQ_64B_sum")
_MI300 = frozenset({"TCC_BUBBLE_sum", *(f"TCC_EA0_{name}" for name in _REQUESTS),
                    "SQ_INSTS_VALU_MFMA_MOPS_F8"})  # fmt: skip


@dataclass(frozen=True)
class AmdCounters:
    """The counters of one architecture that metrics are made of, and how many of a block one pass
    counts. `costs` are the hardware counters of a name that stands for several."""

    names: frozenset[str]
    limits: Mapping[str, int]
    costs: Mapping[str, int] = field(default_factory=dict)

    def block(self, name: str) -> str:
        """Return the block that counts a name."""
        start = name.split("_", maxsplit=1)[0]
        return {"SQC": "SQ", "FETCH": "GL2C", "WRITE": "GL2C"}.get(start, start)

    def fits(self, names: Sequence[str]) -> bool:
        """Return whether one pass counts all of these."""
        used: dict[str, int] = {}
        for name in dict.fromkeys(names):
            block = self.block(name)
            used[block] = used.get(block, 0) + self.costs.get(name, 1)
        return all(count <= self.limits[block] for block, count in used.items())


ARCHITECTURES: Mapping[str, AmdCounters] = {
    "gfx90a": AmdCounters(_SQ | {f"TCC_EA_{name}" for name in _REQUESTS}, CDNA_LIMITS),
    "gfx942": AmdCounters(_SQ | _MI300, CDNA_LIMITS),
    "gfx950": AmdCounters(_SQ | _MI300 | {"SQ_INSTS_VALU_MFMA_MOPS_F6F4"}, CDNA_LIMITS),
    "gfx1100": AmdCounters(
        frozenset({
            "SQ_WAIT_ANY", "SQ_WAVE_CYCLES", "SQC_LDS_BANK_CONFLICT", "SQC_LDS_IDX_ACTIVE",
            "GL2C_HIT_sum", "GL2C_MISS_sum", "FETCH_SIZE", "WRITE_SIZE",
        }),
        RDNA_LIMITS,
        # reads of 32, 64, 96 and 128 bytes; writes, and those of 64 bytes
        {"FETCH_SIZE": 4, "WRITE_SIZE": 2},
    ),
}  # fmt: skip


def default_groups(arch: str) -> tuple[str, ...]:
    """Return the groups of counters for an architecture, each the names of one pass with commas
    between; empty where the architecture is not known. The counters of one metric stand in one
    group wherever one pass can count them."""
    counters = ARCHITECTURES.get(arch)
    if counters is None:
        return ()
    groups: list[list[str]] = []
    for formula in _formulas(counters):
        for part in _parts(formula.needs, counters):
            group = next((g for g in groups if counters.fits([*g, *part])), None)
            if group is None:
                groups.append(group := [])
            group += [name for name in part if name not in group]
    return tuple(",".join(group) for group in groups)


def _formulas(counters: AmdCounters) -> Iterator[Formula]:
    """Yield the formula of each metric that the architecture's counters give."""
    for metric in METRICS:
        for formula in metric.formulas:
            if TOOL in formula.tools and set(formula.needs) <= counters.names:
                yield formula
                break


def _parts(names: Sequence[str], counters: AmdCounters) -> Iterator[list[str]]:
    """Yield the names as one part, or where one pass cannot count them as several."""
    part: list[str] = []
    for name in names:
        if part and not counters.fits([*part, name]):
            yield part
            part = []
        part.append(name)
    yield part
