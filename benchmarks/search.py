"""Replay the searches on exhaustive tables: how near the best each comes with a part of the
measurements. No GPU is needed.

    python benchmarks/search.py OUT.json
    python benchmarks/search.py OUT.json --stop --seeds 10
    python benchmarks/search.py OUT.json --runs results/*/events.jsonl

With `--stop` the default search is replayed until it stops: what it measured, what it lost, and how
often a config that is over 1 % faster was left where it stated a chance of that. Configs are given
to the compilers before the times of the `PENDING` before them are known, as on a host of 16 cores,
where compiling takes longer than measuring. Of `several Impls` the tables are made from stored
ones: five Impls, whose times are off their predictions by a factor each and an error for each
config, and the one with the best config is predicted twice as slow as it is.

A search sees what a sweep would show it: a guess for every config, the prediction from real
resources once a config is compiled (`PENDING` wait compiled), and noisy screens of what it asks
for. The best 32 are screened once more and the exact time of the best 8 decides. The budget counts
distinct binaries; a duplicate of a measured one is free. Screens are the table's medians times
lognormal noise of 1 to 2 %, as a seed draws.

The analytic model was fitted to most of these tables, and the search's own constants were chosen
with all of them in view: `full` tells how it does where the model fits, not on another device.
So it is replayed with predictions spoiled, each by a lognormal factor of `SPOILED`, and with none.
The tables are few: the same config is the best in six of the eleven of matmul, at a corner of the
space, where it is found early by any search that learns. Seeds differ in noise and ties alone.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import json
import math
import random
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path

from workbench import catalog
from workbench.backend.offline import prediction
from workbench.backend.protocol import Problem
from workbench.compile import Compiled
from workbench.data.events import read
from workbench.data.record import Record, Run
from workbench.data.stats import quantile
from workbench.device.calibration import resources_of
from workbench.device.cost_model import guess, predict
from workbench.device.hardware import device_named
from workbench.measurement.candidate import Candidate
from workbench.measurement.protocol import Protocol
from workbench.spec import Spec, sizes_text
from workbench.tuner.search import SearchError, StopRule, Strategy, search_of
from workbench.tuner.space import RecordFactory
from workbench.tuner.space import predict as predict_candidates

DATA = Path(__file__).parent / "data"
DEVICE = device_named("h200")
FRACTIONS = (0.05, 0.10, 0.25)
PENDING = 32  # given to the compilers, in two batches, while the times before are not known
SURE = 3  # seeds of which all chances are compared with what was left
QUEUED = 32  # compiled and waiting: what 16 compilers keep in stock, twice
ENTRANTS, FINALISTS = 32, 8  # as in a sweep
NOISE = (0.01, 0.02)
SPOILED = 0.5
SEEDS = range(100, 110)

# No constant of the analytic model was fitted to these; the form of its latency term was settled
# after they had been seen (docs/facts.md).
NOT_FITTED = {"M=3584 N=3584 K=3584", "M=16 N=8192 K=2048", "M=16384 N=512 K=2048"}


class Shown(Enum):
    """What predictions a search sees."""

    FULL = "full"
    SPOILED = "spoiled"
    NONE = "none"


@dataclass(frozen=True)
class Row:
    """One config of a table. `guess_s` is predicted before it is compiled, `predicted_s` after."""

    impl: str
    config: tuple[tuple[str, int], ...]
    binary: str
    guess_s: float
    predicted_s: float
    measured_s: float


Table = tuple[str, str]  # kernel, sizes


def numbers(text: str) -> dict[str, int]:
    return {k: int(v) for k, v in (part.split("=") for part in text.split())}


@cache
def costs(kernel: str, sizes: str) -> tuple[Spec, int, int]:
    """The Spec with the FLOPs and the least bytes at these sizes, the same for a whole table."""
    spec, at = catalog.spec_of(kernel), numbers(sizes)
    return spec, spec.flops(**at), spec.bytes(at, "bf16")


def row_of(kernel: str, sizes: str, row: dict[str, str]) -> Row:
    (spec, flops, bytes_), at = costs(kernel, sizes), numbers(sizes)
    impl, config = catalog.impl_of(spec, row["impl"]), numbers(row["config"])
    (work,) = impl.work_of(impl.config(**config), DEVICE.limits, "bf16", at) or ()
    warps, stages = config.get("num_warps", 4), config.get("num_stages", 1)
    guess_s, predicted_s = (
        predict(
            DEVICE, work, resources, dtype="bf16", flops=flops, bytes_=bytes_, stages=stages,
        ).predicted_s
        for resources in (
            guess(DEVICE, work, "bf16", warps=warps, stages=stages), resources_of(row),
        )
    )  # fmt: skip
    measured_s = float(row["median_us"]) * 1e-6
    return Row(row["impl"], tuple(config.items()), row["binary"], guess_s, predicted_s, measured_s)


@cache
def lines() -> dict[Table, list[dict[str, str]]]:
    """The rows of all tables, as they were written."""
    result = defaultdict(list)
    for path in sorted(DATA.glob("h200_bf16_*.csv.gz")):
        with gzip.open(path, "rt") as file:
            for row in csv.DictReader(file):
                result[row["kernel"], row["sizes"]].append(row)
    return dict(result)


@cache
def table(kernel: str, sizes: str) -> list[Row]:
    return [row_of(kernel, sizes, row) for row in lines()[kernel, sizes]]


def tables() -> dict[Table, list[Row]]:
    return {key: table(*key) for key in lines()}


@cache
def fresh() -> frozenset[Table]:
    """Tables that neither the model's constants nor the search's have seen."""
    result = set()
    for path in DATA.glob("h200_bf16_fresh_*.csv.gz"):
        with gzip.open(path, "rt") as file:
            result |= {(row["kernel"], row["sizes"]) for row in csv.DictReader(file)}
    return frozenset(result)


def budgets(rows: Sequence[Row], fractions: Sequence[float] = FRACTIONS) -> list[int]:
    """Distinct binaries that may be measured, at each fraction of the table's."""
    binaries = len({r.binary for r in rows})
    return [max(1, math.floor(f * binaries)) for f in fractions]


class Replay:
    """One search over one table, with the noise of one seed."""

    def __init__(self, rows: Sequence[Row], strategy: Strategy, shown: Shown, seed: int) -> None:
        self._random = random.Random(seed)
        self._noise = self._random.uniform(*NOISE)
        self._rows = {str(i): r for i, r in enumerate(rows)}
        spoil = SPOILED if shown is Shown.SPOILED else 0.0
        self._factor = {k: math.exp(self._random.gauss(0, spoil)) for k in self._rows}
        self._shown = shown
        points = [
            replace(
                Candidate.create(r.impl, dict(r.config)),
                key=k,
                predicted_s=self._shown_s(k, r.guess_s),
            )
            for k, r in self._rows.items()
        ]
        self._search = search_of(strategy, points, seed)
        self._ready: list[Candidate] = []
        self._exact_s: dict[str, float] = {}  # by binary, as are the screens
        self._first_pass_s: dict[str, float] = {}
        self._order: list[int] = []  # indices of the rows that were measured

    def regrets(self, after: Sequence[int]) -> list[float]:
        """How much slower than the table's best its answer is, after so many measurements."""
        best_s = min(r.measured_s for r in self._rows.values())
        results = []
        for budget in after:
            while len(self._first_pass_s) < budget and self._measure():
                pass
            results.append(self._selection_s() / best_s - 1)
        return results

    def first(self, count: int) -> list[int]:
        """The indices of the rows that are measured first, in order."""
        while len(self._order) < count and self._measure():
            pass
        return self._order[:count]

    def _shown_s(self, key: str, seconds: float) -> float:
        return math.inf if self._shown is Shown.NONE else seconds * self._factor[key]

    def _measure(self) -> bool:
        self._compile()
        return self._measure_one()

    def _measure_one(self) -> bool:
        point = self._search.ask(self._ready)
        if point is None:
            return False
        row = self._rows[point.key]
        self._exact_s[row.binary] = row.measured_s
        self._order.append(int(point.key))
        self._first_pass_s[row.binary] = self._first_pass(row.measured_s, self._random)
        for duplicate in [p for p in self._ready if self._rows[p.key].binary == row.binary]:
            self._search.tell(duplicate, self._first_pass_s[row.binary])
            self._ready.remove(duplicate)
        return True

    def _compile(self) -> None:
        while len(self._ready) < QUEUED and (new := self._search.order(QUEUED - len(self._ready))):
            self._came(new)

    def _came(self, compiled: Sequence[Candidate]) -> None:
        for point in compiled:
            row = self._rows[point.key]
            self._search.revise(point, self._shown_s(point.key, row.predicted_s))
            if row.binary in self._first_pass_s:
                self._search.tell(point, self._first_pass_s[row.binary])
            else:
                self._ready.append(point)

    def _first_pass(self, seconds: float, source: random.Random) -> float:
        return seconds * math.exp(source.gauss(0, self._noise))

    def _selection_s(self) -> float:
        """Of the best 32 screened once more, the lesser of both; of the best 8, exactly."""
        source = random.Random(len(self._first_pass_s))
        entrants = sorted(self._first_pass_s, key=lambda b: self._first_pass_s[b])[:ENTRANTS]
        again = {b: self._first_pass(self._exact_s[b], source) for b in entrants}
        entrants.sort(key=lambda b: min(again[b], self._first_pass_s[b]))
        return min(self._exact_s[b] for b in entrants[:FINALISTS])


def replay_strategy(strategy: Strategy, shown: Shown, seeds: Sequence[int] = SEEDS) -> list[dict]:
    """One entry a table, with the regrets by fraction, each a list over seeds."""
    return [
        {
            "kernel": kernel, "sizes": sizes, "strategy": strategy.value, "shown": shown.value,
            "fitted": sizes not in NOT_FITTED and (kernel, sizes) not in fresh(),
            "fresh": (kernel, sizes) in fresh(), "configs": len(rows),
            "binaries": len({r.binary for r in rows}), "budgets": (at := budgets(rows)),
            "regrets": [Replay(rows, strategy, shown, seed).regrets(at) for seed in seeds],
        }
        for (kernel, sizes), rows in tables().items()
    ]  # fmt: skip


class StoppingReplay(Replay):
    """The default search over one table, with the noise of one seed."""

    stated_chance: float | None = None  # the chance at its stop; None where it tried all

    def run(self, stop: StopRule) -> dict:
        """Measure until the rule stops it."""
        for chance in self._chances(stop):
            if chance <= stop.chance:
                self.stated_chance = chance
                break
        return {
            "measured": len(self._first_pass_s), "binaries": self._binaries,
            "given": self._given, "regret": self._selection_s() / self._least_s() - 1,
            "stated": self.stated_chance,
        }  # fmt: skip

    def calibration(self, stop: StopRule) -> list[tuple[float, bool]]:
        """Return each chance that was stated, until it is under 1 %, and whether a config was left
        that is faster by more than the rule's share."""
        result: list[tuple[float, bool]] = []
        for chance in self._chances(stop):
            if not result or result[-1][0] != chance:
                left = self._least_s() < min(self._exact_s.values()) * (1 - stop.share)
                result.append((chance, left))
            if chance < 0.01:
                break
        return result

    def _chances(self, stop: StopRule) -> Iterator[float]:
        under_way: deque[list[Candidate]] = deque()
        self._given, self._binaries = 0, len({r.binary for r in self._rows.values()})
        while True:
            while len(under_way) < 2 and (batch := self._search.order(PENDING // 2)):
                under_way.append(batch)
                self._given += len(batch)
            if not under_way:
                return
            self._came(under_way.popleft())
            while self._ready:
                self._measure_one()
                if len(self._first_pass_s) >= stop.least:
                    yield self._search.chance_left(stop.share)

    def _least_s(self) -> float:
        return min(r.measured_s for r in self._rows.values())


def rows_of_run(path: Path) -> tuple[Table, list[Row]]:
    """The table of an exhaustive sweep, from its events file: each config's first-pass time, with
    what that sweep predicted of it before and after it was compiled."""
    known = read(path).events
    (run,) = (e for e in known if isinstance(e, Run))
    spec, device = catalog.spec_of(run.kernel), device_named(run.device)
    problem = Problem(run.kernel, spec, run.sizes, run.dtype)
    factory = RecordFactory(run, problem, Protocol().id)
    records = [e for e in known if isinstance(e, Record) and e.phase == "first_pass"]
    candidates = []
    for record in records:
        impl = catalog.impl_of(spec, record.case.impl)
        candidates.append(factory.candidate(impl, impl.config(**record.case.config), False))
    guessed = predict_candidates(candidates, problem, device)
    rows = []
    for record, candidate in zip(records, guessed, strict=True):
        compiled = Compiled(record.resources, "", (), 1)
        known_s = prediction(problem, candidate, compiled, device).predicted_s
        config = tuple(record.case.config.items())
        binary = record.resources.binary
        times = candidate.predicted_s, known_s, record.time_s
        rows.append(Row(record.case.impl, config, binary, *times))
    return (run.kernel, sizes_text(run.sizes)), rows


def several_impls(rows: Sequence[Row], seed: int, impls: int = 5) -> list[Row]:
    """Return a table of several Impls, each with a share of the configs of a stored one."""
    source = random.Random(seed)
    factors = [math.exp(source.uniform(-0.35, 0.35)) for _ in range(impls)]
    few = [source.sample(list(rows), min(len(rows), 210)) for _ in range(impls)]
    result = [
        replace(
            row, impl=f"impl{at}", binary=f"{at} {row.binary}",
            measured_s=row.measured_s * factor * math.exp(source.gauss(0, 0.05)),
        )
        for at, (factor, some) in enumerate(zip(factors, few, strict=True))
        for row in some
    ]  # fmt: skip
    best = min(result, key=lambda r: r.measured_s).impl
    return [
        replace(r, guess_s=2 * r.guess_s, predicted_s=2 * r.predicted_s) if r.impl == best else r
        for r in result
    ]


def replay_stopping(
    shown: Shown,
    seeds: Sequence[int],
    mixes_impls: bool = False,
    given: dict[Table, list[Row]] | None = None,
) -> list[dict]:
    """One entry a table that is not measured whole, with what the search did and stated."""
    results = []
    for (kernel, sizes), rows in (given or tables()).items():
        if len(rows) <= StopRule.least or (mixes_impls and len(rows) < 800):
            continue
        at = {seed: several_impls(rows, seed) if mixes_impls else rows for seed in seeds}
        replays = [(at[s], Strategy.MODEL, shown, s) for s in seeds]
        entry = {"kernel": kernel, "sizes": sizes, "shown": shown.value, "made": mixes_impls}
        entry["runs"] = [StoppingReplay(*of).run(StopRule()) for of in replays]
        entry["calibration"] = [
            StoppingReplay(*of).calibration(StopRule()) for of in replays[:SURE]
        ]
        results.append(entry)
        print(stop_line(entry), flush=True)
    return results


def stop_line(entry: dict) -> str:
    runs = entry["runs"]
    share = sum(r["measured"] / r["binaries"] for r in runs) / len(runs)
    spread = [r["measured"] for r in runs]
    stated = [r["stated"] for r in runs if r["stated"] is not None]
    name = f"{entry['kernel']} {entry['sizes']}"
    return (
        f"  {name:34} {min(spread):4}-{max(spread):4} of {runs[0]['binaries']:4} ({share:4.0%})  "
        f"regret mean {sum(r['regret'] for r in runs) / len(runs):6.2%} "
        f"worst {max(r['regret'] for r in runs):6.2%}  "
        f"stated {max(stated, default=0):5.1%} at most"
    )


def show_stops(title: str, entries: Sequence[dict]) -> None:
    """Print the means over all tables, and the stated chances beside what was left."""
    runs = [r for e in entries for r in e["runs"]]
    mean = math.exp(sum(math.log1p(r["regret"]) for r in runs) / len(runs)) - 1
    print(
        f"{title}: {sum(r['measured'] for r in runs) / len(runs):.0f} measured in the mean, "
        f"regret {mean:.2%} (geometric mean), {max(r['regret'] for r in runs):.2%} at the worst"
    )
    every = [pair for e in entries for one in e["calibration"] for pair in one]
    for low, high in itertools.pairwise((0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.01)):
        met = [left for chance, left in every if low <= chance < high]
        if met:
            print(f"  stated {low:4.0%} to {high:4.0%}: left in {sum(met)} of {len(met)}")


def line(name: str, regrets: Sequence[Sequence[float]]) -> str:
    parts = []
    for at in zip(*regrets, strict=True):
        within = sum(r <= 0.01 for r in at) / len(at)
        parts.append(f"{within:5.0%} {quantile(at, 0.9):7.2%} {max(at):7.2%}")
    return f"  {name:34}" + "  |".join(parts)


def show(entries: Sequence[dict]) -> None:
    first = entries[0]
    heads = "  |".join(f"{f'{f:.0%}: in 1%, p90, worst':>22}" for f in FRACTIONS)
    print(f"\n{first['strategy']}, predictions {first['shown']}\n{'':36}{heads}")
    for e in entries:
        mark = " **" if e["fresh"] else "" if e["fitted"] else " *"
        print(line(f"{e['kernel']} {e['sizes']}{mark}", e["regrets"]))
    print(line("all", [r for e in entries for r in e["regrets"]]))
    print(
        line("* model not fitted to", [r for e in entries if not e["fitted"] for r in e["regrets"]])
    )
    if unseen := [r for e in entries if e["fresh"] for r in e["regrets"]]:
        print(line("** seen by nobody before", unseen))


def stops(seeds: Sequence[int]) -> list[dict]:
    """Replay the default search in all ways, print what came of it, and return it."""
    results = []
    for shown, mixes_impls in (
        (Shown.FULL, False), (Shown.FULL, True), (Shown.SPOILED, False), (Shown.NONE, False),
    ):  # fmt: skip
        title = f"predictions {shown.value}{', several Impls' if mixes_impls else ''}"
        print(f"\n{title}")
        entries = replay_stopping(shown, seeds, mixes_impls)
        show_stops(title, entries)
        results += entries
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--stop", action="store_true", help="replay the default search")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--runs", nargs="*", default=[], type=Path, help="events of whole tables")
    args = parser.parse_args()
    if args.runs:
        seeds = range(100, 100 + args.seeds)
        given = dict(map(rows_of_run, args.runs))
        entries = replay_stopping(Shown.FULL, seeds, given=given)
        show_stops("exhaustive sweeps", entries)
        Path(args.out).write_text(json.dumps(entries))
        return
    if args.stop:
        Path(args.out).write_text(json.dumps(stops(range(100, 100 + args.seeds))))
        return
    cases = [(s, Shown.FULL) for s in Strategy]
    cases += [(Strategy.MODEL, Shown.SPOILED), (Strategy.MODEL, Shown.NONE)]
    cases += [(Strategy.EXHAUSTIVE, Shown.SPOILED)]
    results = []
    for strategy, shown in cases:
        try:
            entries = replay_strategy(strategy, shown)
        except SearchError as error:
            print(f"\n{strategy.value}: {error}")
            continue
        show(entries)
        results += entries
        Path(args.out).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
