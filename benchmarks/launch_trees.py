"""Boosted trees that order the configs of a kernel, trained on its table of `launch_times.py`.

    python benchmarks/launch_trees.py             train them; needs LightGBM
    python benchmarks/launch_trees.py --check     print the shares alone

Tenths of the sizes are left out in turn, and what the other sizes choose there, by their mean, by
trees, and by trees that have the mean among their features, is compared with the best config. The
trees that choose best are trained on all sizes and written, if they choose better than the mean.
Run it after a change of the analytic model or of a table.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import math
import random
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from launch_times import HEADS, left_out, shares
from numpy.typing import NDArray
from runs import say, show

from workbench import catalog
from workbench.data.files import write_file
from workbench.device.hardware import device_named
from workbench.device.launch_times import LAUNCHES, MOST, TREES, LaunchTimes, launch_times
from workbench.device.launch_trees import (
    DECIMALS,
    FIELDS,
    NEAR,
    feature_table,
    launch_features,
    parse_trees,
)

MODEL_OF = "h200"  # the device whose model the times are described by
FOLDS = 10
WEIGHT = 8.0  # a config counts exp(-WEIGHT * log(time / best)): fast ones have to be told apart
SETTINGS: dict[str, Any] = dict(  # chosen on nine products and recurrences (docs/log.md)
    n_estimators=300, learning_rate=0.07, num_leaves=31, min_child_samples=8, colsample_bytree=0.7,
    subsample=0.8, subsample_freq=1, reg_lambda=1.0, random_state=0, verbose=-1, n_jobs=1,
    deterministic=True, force_row_wise=True,
)  # fmt: skip


class Examples:
    """The features and the times of a kernel's launches; arrays are (launches, ...)."""

    def __init__(self, kernel: str, table: LaunchTimes) -> None:
        self.table = table
        logs = np.log(table.us / np.nanmin(table.us, axis=1, keepdims=True))
        launches, size, config = [], list[int](), list[int]()
        for n in range(len(table.sizes)):
            for c, features in describe(kernel, table, n).items():
                if math.isfinite(logs[n, c]):
                    launches.append(features)
                    size.append(n)
                    config.append(c)
        self.size, self.config, self.log = np.array(size), np.array(config), logs[size, config]
        self.features = sorted({name for one in launches for name in one} - set(NEAR))
        self.rows = feature_table(launches, self.features)

    def rows_by_mean(self, sizes: Collection[int]) -> NDArray[np.float64]:
        """Return the features, and behind them those of near sizes, of which only the times at
        `sizes` are known, and none at the launch's own."""
        unknown = set(range(len(self.table.sizes))) - set(sizes)
        columns = np.empty((len(self.rows), len(NEAR)))
        for n in set(self.size.tolist()):
            at = self.table.dtypes[n], self.table.sizes[n]
            mean, octaves = self.table.mean(*at, without=unknown | {n})
            here = np.flatnonzero(self.size == n)
            of_each = mean[self.config[here]]
            columns[here] = np.transpose([of_each, of_each - of_each.min(), [octaves] * len(here)])
        return np.hstack([self.rows, columns.round(DECIMALS)])

    def fit(self, rows: NDArray[np.float64], sizes: Sequence[int]) -> Any:
        """Return the trees of LightGBM that are trained on the launches at some of the sizes."""
        from lightgbm import LGBMRegressor

        taken = np.isin(self.size, sizes)
        logs = self.log[taken]
        weights = np.exp(-WEIGHT * logs.clip(0, 1))
        model = LGBMRegressor(**SETTINGS)
        return model.fit(rows[taken], np.minimum(logs, MOST), sample_weight=weights)

    def left_out(self, by_mean: bool) -> list[float]:
        """Return, of each size, the time of the config that trees of other sizes choose over the
        best. With `by_mean` they know the mean of near sizes."""
        count = len(self.table.sizes)
        order, ratios = random.Random(0).sample(range(count), count), []
        for fold in range(FOLDS):
            out = order[fold::FOLDS]
            known = [n for n in order if n not in out]
            rows = self.rows_by_mean(known) if by_mean else self.rows
            expected = self.fit(rows, known).predict(rows)
            for n in out:
                here = np.flatnonzero(self.size == n)
                if len(here):
                    ratios.append(math.exp(self.log[here[int(expected[here].argmin())]]))
        return ratios


def describe(kernel: str, table: LaunchTimes, n: int) -> dict[int, dict[str, float]]:
    """Return the features of the table's configs that the model can predict, at its n-th sizes."""
    impls, device = {one.name: one for one in catalog.spec_of(kernel).impls}, device_named(MODEL_OF)
    sizes, dtype = table.sizes[n], table.dtypes[n]

    def features(name: str, knobs: Mapping[str, int]) -> dict[str, float] | None:
        return launch_features(impls[name], impls[name].config(**knobs), device, dtype, sizes)

    described = table.describe_launches(features, *table.mean(dtype, sizes))
    return {c: one for c, one in enumerate(described) if one is not None}


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


def train(examples: Examples, by_mean: bool, path: Path) -> NDArray[np.float64]:
    """Write the trees of a kernel, and return the largest difference of what they expect from what
    LightGBM predicts."""
    everywhere, times = range(len(examples.table.sizes)), examples.table.metadata
    rows = examples.rows_by_mean(everywhere) if by_mean else examples.rows
    features = [*examples.features, *(NEAR if by_mean else ())]
    model = examples.fit(rows, everywhere)
    about = {
        "source": "benchmarks/launch_trees.py", "device": MODEL_OF,
        "times": f"{times['gpu']}, {times['date']}", "features": ", ".join(features),
    }  # fmt: skip
    write_trees(path, about, model)
    launches = [dict(zip(features, row, strict=True)) for row in rows.tolist()]
    return np.abs(parse_trees(path).expect(launches) - model.predict(rows)).max()


def mean_log(ratios: Sequence[float]) -> float:
    """Return the mean log of ratios."""
    return sum(map(math.log, ratios)) / len(ratios)


def main(given: Sequence[str] | None = None) -> int:
    """Compare trees with the mean, and write those that choose better."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kernels", nargs="*")
    parser.add_argument("--out", type=Path, default=TREES / "sm_90", help="folder of trees")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(given)
    there = sorted(path.name.partition(".")[0] for path in LAUNCHES.glob("sm_90/*.csv.gz"))
    rows = []
    for kernel in options.kernels or there:
        table = launch_times("sm_90", kernel)
        if table is None:
            continue
        means, examples = left_out(table), Examples(kernel, table)
        trees = [examples.left_out(by_mean) for by_mean in (False, True)]
        names = "mean", "trees", "trees by the mean"
        every = zip(names, (means, *trees), strict=True)
        rows += [(f"{kernel}, {name}", *shares(ratios)) for name, ratios in every]
        path, by_mean = options.out / f"{kernel}.csv.gz", mean_log(trees[1]) < mean_log(trees[0])
        if options.check:
            continue
        if mean_log(trees[by_mean]) < mean_log(means):
            say(f"{kernel}: off by {train(examples, by_mean, path):.1g} from LightGBM's own values")
        else:
            path.unlink(missing_ok=True)
    show(HEADS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
