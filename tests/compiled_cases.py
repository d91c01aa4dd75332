"""One config as it was compiled, for tests that compare machine code."""

from workbench.data.compiled_code import CompiledCode, HotLoop
from workbench.data.record import Case, Predicted, Resources

CASE = Case("matmul", "tiles", "triton", {"block_m": 128}, {"M": 4096}, "bf16", "a100")
RESOURCES = Resources(
    binary="b", registers=228, spill_bytes=0, shared_bytes=1024, threads=128, blocks_per_core=2,
    occupancy=0.125, limiter="registers", programs=1024, waves=1.0, tail=0.0, load_bits=128,
    matrix_unit="mma", compile_s=1.0,
)  # fmt: skip


def predicted(seconds):
    return Predicted(seconds, "analytic-1", seconds, 0.0, 0.0, 0.0, 0.0, "compute")


FACTS = CompiledCode("a", RESOURCES, 1, {"matrix": 64}, HotLoop(138, {"matrix": 64}, 396),
                  predicted(1e-3))  # fmt: skip
