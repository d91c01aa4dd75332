"""The first recommendation of a sweep without a GPU against that of the whole sweep, by the model.

    python benchmarks/first_recommendation.py

Replays the search on the stored tables of `data/`: each config has the guess before it is compiled
and the prediction from the resources that the compiler gave. As in a sweep, the 208 configs of the
best guesses are tried, in the order of the strategy `model`, in batches of two a core of which
two are under way. Printed is, for each shape, after how many configs the top config of the whole
sweep was known, and for how many shapes the first answer is that config. The size of the batch was
chosen with these tables in view. Nothing is compiled or measured here.
"""

from __future__ import annotations

import argparse
from collections import deque
from dataclasses import replace

from search import Row, tables

from workbench import catalog
from workbench.commands.problem import MOST
from workbench.measurement.candidate import Candidate
from workbench.spec import tile
from workbench.tuner.first_pass import PREDICTED_BATCH
from workbench.tuner.search import Strategy, search_of
from workbench.tuner.space import thin

CORES = 2
WITHIN = (16, 20, 24, 32, 40)


def candidates(kernel: str, rows: list[Row]) -> list[Candidate]:
    """The configs that a sweep of tile sizes would try."""
    spec = catalog.spec_of(kernel)
    points = []
    for n, row in enumerate(rows):
        impl, config = catalog.impl_of(spec, row.impl), dict(row.config)
        point = Candidate.create(row.impl, config)
        points.append(replace(point, key=str(n), predicted_s=row.guess_s, impl=impl,
                              config=impl.config(**config)))  # fmt: skip
    return thin(points, MOST[True], [tile])


def known_after(points: list[Candidate], rows: list[Row], strategy: Strategy) -> int:
    """The number of configs tried when the top config of all is among them."""
    best = min(rows[int(p.key)].predicted_s for p in points)
    search = search_of(strategy, points, predicts=True)
    under_way, tried = deque[list[Candidate]](), 0
    while True:
        while len(under_way) < 2 and (batch := search.order(PREDICTED_BATCH * CORES)):
            under_way.append(batch)
        for point in (batch := under_way.popleft()):
            search.revise(point, rows[int(point.key)].predicted_s)
        for point in batch:
            tried += 1
            search.tell(point, rows[int(point.key)].predicted_s)
            if rows[int(point.key)].predicted_s <= best:
                return tried


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    results: dict[Strategy, list[int]] = {Strategy.MODEL: [], Strategy.EXHAUSTIVE: []}
    for (kernel, sizes), rows in tables().items():
        points = candidates(kernel, rows)
        text = []
        for strategy, after in results.items():
            after.append(known_after(points, rows, strategy))
            text.append(f"{strategy.value} {after[-1]:3d}")
        print(f"{kernel:10} {sizes:24} {len(points):4d} configs: {', '.join(text)}")
    for strategy, after in results.items():
        shares = ", ".join(f"{sum(n <= most for n in after)} at {most}" for most in WITHIN)
        print(f"{strategy.value}: the same top config at so many of {len(after)} shapes: {shares}")


if __name__ == "__main__":
    main()
