"""`matmul.tiles` without a pipeline: each step's loads are waited for before its product begins.

A kernel whose fault is known: loads and products take turns, so the experiment `memory_vs_compute`
must call it serialised. It is timed first where tiles are fewer than the cores of a large GPU: with
one on each core, some would load while others multiply, and bandwidth could become the limit.
"""

from dataclasses import dataclass, replace

from workbench.kernels import matmul as whole
from workbench.spec import stages

matmul_one_stage = replace(
    whole.matmul,
    name="matmul_one_stage",
    bench=[{"M": 1024, "N": 1024, "K": 4096}, {"M": 4096, "N": 4096, "K": 4096}],
    impls=[],
)


@dataclass(frozen=True)
class OneStage(whole.Tiles):
    num_stages: int = stages(1, 1, default=1)


SMALL = OneStage(block_m=128, block_n=128, block_k=32, num_warps=4)
LARGE = OneStage(block_m=128, block_n=128, block_k=64, num_warps=4)
RDNA = OneStage(block_m=128, block_n=64, block_k=32, num_warps=4)
DEFAULTS = {
    "fp32": OneStage(64, 64, 32, 8),
    "sm_80 sm_89 sm_120": SMALL,
    "gfx90a gfx942 gfx950": LARGE,
    "gfx1100": RDNA,
}


@matmul_one_stage.impl(OneStage, refuse=whole.refuse_tiles, work=whole.work, defaults=DEFAULTS)
def tiles(a, b, *, config):
    """One program a tile, as `matmul.tiles`."""
    (M, K), (_, N) = a.shape, b.shape
    c = a.new_empty(M, N)
    whole.launch_tiles(a, b, c, config, 1, K + -K % config.block_k, config.group_m)
    return c
