"""Find the best tile size for one program: a sweep, as an experiment with a verdict.

The best tile depends on warps and stages, so each edge that the kernel declares (16 to 256 for a
matmul) is tried with the few configs that the model ranks best, and represented by the fastest of
them. A tile's edge is its longest: 128 x 256 is 256. The depth of one step (`block_k`) is not an
edge.
"""

from workbench.experiments import Context
from workbench.experiments.analysis.knobs import DEPTH, Config, Varied, experiment_of
from workbench.spec import Impl, tile


def edge(impl: Impl, config: Config, context: Context) -> int:
    """Return the longest edge of the tile of a config."""
    edges = [f for f, knob in impl.knobs().items() if knob == tile.__name__]
    return max(config[f] for f in edges if f != DEPTH or len(edges) == 1)


EDGE = Varied("edge of the tile", "", tile, edge)


EXPERIMENT = experiment_of(
    EDGE, "how large a tile: every edge with the warps and stages that suit it"
)
