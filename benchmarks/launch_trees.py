"""Boosted trees that order the configs of a kernel, trained on its table of `launch_times.py`.

    python benchmarks/launch_trees.py             train them; needs LightGBM
    python benchmarks/launch_trees.py --check     print the shares alone

Tenths of the sizes are left out in turn, and what the other sizes choose there, by their mean and
by trees, is compared with the best config. Trees that choose better than the mean are trained on
all sizes and written; a kernel of rows has none, for its sizes lie close, and the mean takes 1 ms
on the host. Run it after a change of the analytic model or of a table.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from launch_times import HEADS, left_out, shares
from numpy.typing import NDArray
from ops_choice import ROWS
from runs import say, show

from workbench import catalog
from workbench.data.files import write_file
from workbench.device.hardware import device_named
from workbench.device.launch_times import LAUNCHES, MOST, TREES, LaunchTimes, launch_times
from workbench.device.launch_trees import (
    FIELDS,
    feature_table,
    launch_features,
    parse_trees,
    relate,
)
from workbench.spec import Sizes

MODEL_OF = "h200"  # the device whose model the times are described by
FOLDS = 10
WEIGHT = 8.0  # a config counts exp(-WEIGHT * log(time / best)): fast ones have to be told apart
SETTINGS: dict[str, Any] = dict(  # chosen on nine products and recurrences (docs/log.md)
    n_estimators=300, learning_rate=0.07, num_leaves=31, min_child_samples=8, colsample_bytree=0.7,
    subsample=0.8, subsample_freq=1, reg_lambda=1.0, random_state=0, verbose=-1, n_jobs=2,
    deterministic=True, force_row_wise=True,
)  # fmt: skip


class Examples:
    """The features and the times of a kernel's launches; arrays are (launches, ...)."""

    def __init__(self, kernel: str, table: LaunchTimes) -> None:
        logs = np.log(table.us / np.nanmin(table.us, axis=1, keepdims=True))
        launches, self.size, self.log = [], list[int](), list[float]()
        for n, (sizes, dtype) in enumerate(zip(table.sizes, table.dtypes, strict=True)):
            for c, features in describe(kernel, table, sizes, dtype).items():
                if math.isfinite(logs[n, c]):
                    launches.append(features)
                    self.size.append(n)
                    self.log.append(float(logs[n, c]))
        self.features = sorted({name for one in launches for name in one})
        self.rows = feature_table(launches, self.features)
        self.sizes = len(table.sizes)

    def fit(self, sizes: Sequence[int]) -> Any:
        """Return the trees of LightGBM that are trained on the launches at some of the sizes."""
        from lightgbm import LGBMRegressor

        taken = np.isin(self.size, sizes)
        logs = np.array(self.log)[taken]
        weights = np.exp(-WEIGHT * logs.clip(0, 1))
        model = LGBMRegressor(**SETTINGS)
        return model.fit(self.rows[taken], np.minimum(logs, MOST), sample_weight=weights)

    def left_out(self) -> list[float]:
        """Return, of each size, the time of the config that trees of other sizes choose over the
        best."""
        order = random.Random(0).sample(range(self.sizes), self.sizes)
        ratios = []
        for fold in range(FOLDS):
            out = order[fold::FOLDS]
            model = self.fit([n for n in order if n not in out])
            for n in out:
                here = np.flatnonzero(np.array(self.size) == n)
                if len(here):
                    first = here[int(np.argmin(model.predict(self.rows[here])))]
                    ratios.append(math.exp(self.log[first]))
        return ratios


def describe(
    kernel: str, table: LaunchTimes, sizes: Sizes, dtype: str
) -> dict[int, dict[str, float]]:
    """Return the features of the table's configs that the model can predict at these sizes."""
    impls, device = {one.name: one for one in catalog.spec_of(kernel).impls}, device_named(MODEL_OF)
    result = {}
    for c, (name, knobs) in enumerate(table.configs):
        impl = impls[name]
        features = launch_features(impl, impl.config(**knobs), device, dtype, sizes)
        if features is not None:
            result[c] = features
    relate(list(result.values()))
    return result


def write_trees(path: Path, about: Mapping[str, str], model: Any) -> None:
    """Write trees as `parse_trees` reads them, whole or not at all."""
    text = io.StringIO()
    text.writelines(f"# {name}: {words}\n" for name, words in about.items())
    table = csv.writer(text, lineterminator="\n")
    table.writerow(FIELDS)
    leaves = SETTINGS["num_leaves"]
    # a child that a tree lacks is its first leaf
    missing = {"left_child": "-1", "right_child": "-1"}
    for block in model.booster_.model_to_string(-1).split("Tree=")[1:]:
        fields = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if int(fields["num_leaves"]) < 2:
            continue
        row = []
        for name in FIELDS:
            numbers = [f"{float(one):.7g}" for one in fields[name].split()]
            count = leaves - (name != "leaf_value")
            row.append(" ".join(numbers + [missing.get(name, "0")] * (count - len(numbers))))
        table.writerow(row)
    write_file(path, gzip.compress(text.getvalue().encode(), mtime=0), make_folder=True)


def train(kernel: str, table: LaunchTimes, path: Path) -> NDArray[np.float64]:
    """Write the trees of a kernel, and return the largest difference of what they expect from what
    LightGBM predicts."""
    examples = Examples(kernel, table)
    model = examples.fit(range(examples.sizes))
    about = {
        "source": "benchmarks/launch_trees.py", "device": MODEL_OF,
        "times": f"{table.metadata['gpu']}, {table.metadata['date']}",
        "features": ", ".join(examples.features),
    }  # fmt: skip
    write_trees(path, about, model)
    launches = [dict(zip(examples.features, row, strict=True)) for row in examples.rows.tolist()]
    return np.abs(parse_trees(path).expect(launches) - model.predict(examples.rows)).max()


def main(given: Sequence[str] | None = None) -> int:
    """Compare trees with the mean, and write those that choose better."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kernels", nargs="*")
    parser.add_argument("--out", type=Path, default=TREES / "sm_90", help="folder of trees")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(given)
    there = sorted(path.name.partition(".")[0] for path in LAUNCHES.glob("sm_90/*.csv.gz"))
    rows = []
    for kernel in options.kernels or [k for k in there if k not in (*ROWS, "softmax")]:
        table = launch_times("sm_90", kernel)
        if table is None:
            continue
        means, trees = left_out(replace(table, trees=None)), Examples(kernel, table).left_out()
        rows += [(f"{kernel}, mean", *shares(means)), (f"{kernel}, trees", *shares(trees))]
        path = options.out / f"{kernel}.csv.gz"
        if options.check:
            continue
        if sum(map(math.log, trees)) / len(trees) < sum(map(math.log, means)) / len(means):
            say(f"{kernel}: off by {train(kernel, table, path):.1g} from LightGBM's own values")
        else:
            path.unlink(missing_ok=True)
    show(HEADS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
