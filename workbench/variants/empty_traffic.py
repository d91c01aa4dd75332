"""The memory traffic of `empty`, which has none: one zero, as there.

A kernel whose limit is known: the experiment `memory_vs_compute` must call it latency-bound.
"""

from dataclasses import replace

from workbench.kernels import empty as whole

empty_traffic = replace(whole.empty, name="empty_traffic", impls=[])


@empty_traffic.impl(whole.Once)
def once(x, *, config):
    """The one program of `empty.once`."""
    return whole.once.launch(x, config=config)
