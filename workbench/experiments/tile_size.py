"""How large a tile should one program own? A sweep, as an experiment with a verdict.

A tile is only as good as the warps and stages it is given, so each edge that the kernel declares
(16 to 256 for a matmul) is tried with the few configs that the model expects most of, and judged by
the fastest of them. A tile's edge is its longest: 128 x 256 is 256. How deep one step goes
(`block_k`) is no edge.
"""

from __future__ import annotations

from collections.abc import Mapping

from workbench.experiments import Arm, Asked, Experiment, Found, Judgement
from workbench.experiments.analysis.knobs import DEPTH, Config, Varied, arms_of, judged
from workbench.spec import Impl, tile


def edge(impl: Impl, config: Config, asked: Asked) -> int:
    """The longest edge of the tile of a config."""
    edges = [f for f, knob in impl.knobs().items() if knob == tile.__name__]
    return max(config[f] for f in edges if f != DEPTH or len(edges) == 1)


EDGE = Varied("edge of the tile", "", tile, edge)


def arms(asked: Asked) -> list[Arm]:
    """See `arms_of`."""
    return arms_of(asked, EDGE)


def judge(asked: Asked, found: Mapping[str, Found]) -> list[Judgement]:
    """See `judged`."""
    return judged(asked, found, EDGE)


EXPERIMENT = Experiment(
    "how large a tile: every edge with the warps and stages that suit it", arms,
    judge, kernels=("matmul",),
)  # fmt: skip
