"""Boosted trees that order a kernel's configs at sizes that were not measured.

`calibrations/trees/ARCH/KERNEL.csv.gz` has lines `# field: text`, among them the names of the
features, and a line for each tree: of each split the feature, the threshold and the two
children, and the values of the leaves. A child below zero is leaf -1 - child, as in LightGBM, which
`benchmarks/launch_trees.py` trains them with (Ke et al. 2017). The sum of the trees' values
is log(time / fastest time at these sizes).

Features are what the analytic model says of a launch before it is compiled, the sizes, whether each
is a multiple of 16 elements, the knobs, and of some kernels what the config took at near sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.data.record import Predicted, Resources
from workbench.device.calibration import read_rows, shipped_damage
from workbench.device.cost_model import estimate_launches
from workbench.device.hardware import Device
from workbench.spec import Impl, Sizes, Work

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ALIGNED = 16  # elements
NO_KNOB = -1.0  # of an Impl that lacks a knob of another
MEAN = "mean of near sizes"  # of log(time / fastest time) there
NEAR = (MEAN, f"{MEAN} over least", "octaves to the nearest")  # features that need a table
DECIMALS = 3
FIELDS = ("split_feature", "threshold", "left_child", "right_child", "leaf_value")  # LightGBM's


@dataclass(frozen=True)
class LaunchTrees:
    """Trees of one kernel. Arrays of splits are (trees, splits), `leaf_value` (trees, leaves)."""

    metadata: Mapping[str, str]
    features: Sequence[str]
    split_feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    left_child: NDArray[np.int64]
    right_child: NDArray[np.int64]
    leaf_value: NDArray[np.float64]

    def expect(self, launches: Sequence[Mapping[str, float]]) -> NDArray[np.float64]:
        """Return log(time / fastest time) of each launch, given its features."""
        import numpy as np

        table = feature_table(launches, self.features)
        rows, (trees, splits) = len(table), self.threshold.shape
        first, leaves = np.arange(trees)[:, None] * splits, self.leaf_value.shape[1]
        # numbers of splits, and below zero of leaves, over all trees
        left, right = (
            np.where(child < 0, child - first // splits * leaves, child + first).ravel()
            for child in (self.left_child, self.right_child)
        )
        feature, threshold, values = (
            one.ravel() for one in (self.split_feature, self.threshold, table)
        )
        node = np.tile(first.ravel(), rows)
        offset = np.repeat(np.arange(rows) * table.shape[1], trees)
        waiting, leaf = np.arange(rows * trees), np.empty(rows * trees, dtype=np.int64)
        while len(waiting):
            below = values[offset[waiting] + feature[node]] <= threshold[node]
            node = np.where(below, left[node], right[node])
            ends = node < 0
            leaf[waiting[ends]] = -1 - node[ends]
            waiting, node = waiting[~ends], node[~ends]
        total: NDArray[np.float64] = self.leaf_value.ravel()[leaf].reshape(rows, trees).sum(axis=1)
        return total


def feature_table(
    launches: Sequence[Mapping[str, float]], features: Sequence[str]
) -> NDArray[np.float64]:
    """Return the features (launches, features), rounded so that thresholds of 7 digits tell them
    apart."""
    import numpy as np

    rows = [[one.get(name, NO_KNOB) for name in features] for one in launches]
    return np.round(np.array(rows), DECIMALS)


def launch_features(
    impl: Impl, config: Any, device: Device, dtype: str, sizes: Sizes
) -> dict[str, float] | None:
    """Return the features of a launch but those that compare it with others; None where the model
    cannot predict it."""
    try:
        estimate = estimate_launches(impl, config, device, dtype, sizes)
    except Exception:  # the device lacks a figure, or the kernel's own `work` failed
        return None
    if estimate is None:
        return None
    features = _model_features(*estimate, device, impl.spec.flops(**sizes))
    for axis, extent in sizes.items():
        features[f"log2 {axis}"] = math.log2(max(1, extent))
        features[f"aligned {axis}"] = float(extent % ALIGNED == 0)
    features |= {f"knob {knob}": float(getattr(config, knob)) for knob in impl.choices()}
    return features | {f"is {impl.name}": 1.0}


def _model_features(
    works: Sequence[Work], resources: Sequence[Resources], predicted: Predicted, device: Device,
    flops: int,
) -> dict[str, float]:  # fmt: skip
    """Return what the model says of a call, and of the launch of it that does the most."""
    total_s = predicted.predicted_s
    shares = {
        "compute": predicted.compute_s, "memory": predicted.dram_s,
        "cache": predicted.cache_s, "latency": predicted.latency_s,
    }  # fmt: skip
    done = sum(2 * w.tiles * w.steps * w.products * math.prod(w.dot) for w in works if w.dot)
    pairs = zip(works, resources, strict=True)
    work, launch = max(pairs, key=lambda one: one[0].tiles * one[0].steps * one[0].load_bytes)
    per_core, loaded = work.tiles / device.limits.cores, max(1, work.load_bytes)
    warps, most = launch.threads / device.limits.warp_size, max(1, launch.blocks_per_core)
    resident, rounds = min(most, math.ceil(per_core)), per_core / most
    return {
        "log time": math.log(total_s),
        **{f"log share of {name}": _log_share(s, total_s) for name, s in shares.items()},
        "log FLOP over needed": math.log(max(1, done) / max(1, flops)),  # of tiles past the edges
        "launches": float(len(works)),
        "log2 tiles": math.log2(work.tiles),
        "log2 steps": math.log2(max(1, work.steps)),
        "log2 tile": math.log2(work.dot[0] * work.dot[1]) if work.dot else 0.0,
        "tiles per core": float(math.ceil(per_core)),
        "fill": per_core / math.ceil(per_core),
        "registers": float(launch.registers),
        "blocks per core": float(launch.blocks_per_core),
        "warps": warps,
        "resident warps": resident * warps,
        "rounds": float(math.ceil(rounds)),  # of as many tiles as are resident at once
        "log2 rounds": math.log2(rounds),
        "fill of rounds": rounds / math.ceil(rounds),
        "log2 bytes of a thread": math.log2(loaded / launch.threads),
        "log2 bytes of a step": math.log2(loaded),
        "log2 bytes of a core": math.log2(loaded * max(1, work.steps) * max(1, per_core)),
        "log2 resident bytes": math.log2(loaded * resident),
    }


def _log_share(term_s: float | None, total_s: float) -> float:
    """Return log(term / time) of a term of the model, at least that of a thousandth."""
    return math.log(max((term_s or 0.0) / total_s, 1e-3))


def relate(launches: Sequence[dict[str, float]]) -> None:
    """Add to the features of all launches that are compared what is relative to the others."""
    for name in ("log time", MEAN):
        least = min((one[name] for one in launches if name in one), default=0.0)
        for one in launches:
            if name in one:
                one[f"{name} over least"] = one[name] - least


def parse_trees(path: Path) -> LaunchTrees:
    """Return the trees of a file. Raises CalibrationError where it is damaged."""
    import numpy as np

    metadata, rows, _ = read_rows(path)
    try:
        texts = [[row[name].split() for name in FIELDS] for row in rows]
        features = metadata["features"].split(", ")
        split, threshold, left, right, value = (
            np.array([row[n] for row in texts], dtype=float) for n in range(len(FIELDS))
        )
        trees = LaunchTrees(
            metadata, features, split.astype(int), threshold,
            left.astype(int), right.astype(int), value,
        )  # fmt: skip
        _require_whole(trees)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise shipped_damage(path, error) from None
    return trees


def _require_whole(trees: LaunchTrees) -> None:
    """Raise ValueError where a split names a feature, a child or a leaf that is not there, or a
    child that is not below it."""
    import numpy as np

    splits = trees.threshold.shape[1]
    if not (trees.split_feature.min() >= 0 and trees.split_feature.max() < len(trees.features)):
        raise ValueError("a split of no feature")
    for child in (trees.left_child, trees.right_child):
        is_leaf = child < 0
        if (child[~is_leaf] <= np.broadcast_to(np.arange(splits), child.shape)[~is_leaf]).any():
            raise ValueError("a child above its split")
        if child.max() >= splits or (-1 - child[is_leaf]).max() >= trees.leaf_value.shape[1]:
            raise ValueError("a child that is not there")
