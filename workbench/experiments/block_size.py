"""Find the best number of threads per block: a sweep, as an experiment with a verdict.

Each number of warps that the kernel declares, 1 to 16 for most and so 32 to 512 threads on NVIDIA,
is tried with the few tiles and stages that the model ranks best, and represented by the fastest of
them.
"""

from workbench.experiments import Context
from workbench.experiments.analysis.knobs import Config, Varied, experiment_of
from workbench.spec import Impl, threads


def block(impl: Impl, config: Config, context: Context) -> int:
    """Return the threads of a block: its warps times the threads of a warp on that device."""
    field = next(f for f, knob in impl.knobs().items() if knob == threads.__name__)
    return config[field] * context.device.limits.warp_size


BLOCK = Varied("size of the block", " threads", threads, block)


EXPERIMENT = experiment_of(
    BLOCK, "how many threads a block: every number of warps with the tiles and stages that suit it"
)
