"""The products of `matmul_one_stage`: those of `matmul`, at one stage."""

from dataclasses import replace

from workbench.kernels import matmul as whole
from workbench.variants import matmul_arithmetic as part
from workbench.variants.matmul_one_stage import DEFAULTS, OneStage

matmul_one_stage_arithmetic = replace(
    part.matmul_arithmetic, name="matmul_one_stage_arithmetic", impls=[]
)


@matmul_one_stage_arithmetic.impl(
    OneStage, refuse=whole.refuse_tiles, work=part.work, defaults=DEFAULTS
)
def tiles(a, b, k, *, config):
    """As `matmul_arithmetic.tiles`."""
    return part.tiles.launch(a, b, k, config=config)
