"""The memory traffic of `copy`, which is all that it does: y = x.

A kernel whose limit is known: the experiment `memory_vs_compute` must call it memory-bound.
"""

from dataclasses import replace

from workbench.kernels import copy as whole

copy_traffic = replace(whole.copy, name="copy_traffic", impls=[])


@copy_traffic.impl(
    whole.Blocks, refuse=whole.refuse_blocks, work=whole.work, defaults=whole.blocks.defaults
)
def blocks(x, *, config):
    """The loads and stores of `copy.blocks`."""
    return whole.blocks.launch(x, config=config)
