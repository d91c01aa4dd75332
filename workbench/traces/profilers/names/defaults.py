"""Counters that a tool is asked for on one architecture, beyond those that it always takes."""

from workbench.data.matrix_work import MATRIX_COUNTERS
from workbench.traces.profilers.names import CHIPS, names_of
from workbench.traces.profilers.names.amd import default_groups

# From sm_100 on the shape of a matrix instruction is in a descriptor (tcgen05), so executions by
# opcode do not tell its FLOPs. sm_120 has mma.sync, whose opcode does, and the counters too.
BLACKWELL = ("sm_100", "sm_103", "sm_110", "sm_120", "sm_121")


def default_counters(tool: str, arch: str) -> tuple[str, ...]:
    """Return the counters of ncu or the groups of rocprofv3 that are asked for on an architecture
    (`sm_100`, `gfx942`), unless the user names others; empty for other tools and architectures."""
    if tool == "rocprofv3":
        return default_groups(arch)
    if tool == "ncu" and arch in BLACKWELL:
        return matrix_counters(CHIPS[arch])
    return ()


def matrix_counters(chip: str) -> tuple[str, ...]:
    """Return the counters of a chip whose sum is the FLOPs of its matrix unit, one for each type of
    operands."""
    named = (f"{name}.sum" for name in names_of(chip))
    return tuple(sorted(name for name in named if MATRIX_COUNTERS.fullmatch(name)))
