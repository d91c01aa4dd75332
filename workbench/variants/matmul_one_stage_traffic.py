"""The memory traffic of `matmul_one_stage`: that of `matmul`, at one stage."""

from dataclasses import replace

from workbench.kernels import matmul as whole
from workbench.variants import matmul_traffic as part
from workbench.variants.matmul_one_stage import DEFAULTS, OneStage

matmul_one_stage_traffic = replace(part.matmul_traffic, name="matmul_one_stage_traffic", impls=[])


@matmul_one_stage_traffic.impl(
    OneStage, refuse=whole.refuse_tiles, work=part.work, defaults=DEFAULTS
)
def tiles(a, b, *, config):
    """As `matmul_traffic.tiles`."""
    return part.tiles.launch(a, b, config=config)
