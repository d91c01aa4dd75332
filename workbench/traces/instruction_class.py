"""Classes of instructions that rules of counters hold responsible for lost time."""

from enum import StrEnum


class InstructionClass(StrEnum):
    """What instructions are counted by: the name is how a share of it is written, and under which
    the lines are stored."""

    EXCESS_SECTORS = "sectors that are not needed"
    SECTORS = "sectors of global accesses"
    CONFLICTS = "excess wavefronts of shared memory"
    SPILLS = "spill instructions"
    ATOMICS = "atomics"
    FP64 = "fp64 instructions"
    XU = "instructions of the XU pipe"
    MASKED_LANES = "masked lanes of loads and stores"
    INACTIVE_LANES = "inactive lanes"
    LOAD_WAITS = "waits for loads"
    EXCHANGE_WAITS = "waits at barriers and for shared memory"
    ARITHMETIC_WAITS = "waits for arithmetic"
    BULK_STORES = "samples at bulk stores"
    TENSOR_MEMORY_WAITS = "waits for tensor memory"
    UNPACKING = "instructions that extract bits"
    NARROW = "narrow loads and stores"
    VECTOR_ARITHMETIC = "arithmetic outside of the matrix unit"
