"""Pin a table in each process of a program that `workbench workload run` started, or that was
started with the variable WORKBENCH_TUNED, and keep each lookup in a file.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from workbench.data.plain import read_as
from workbench.spec import WorkbenchError
from workbench.workload.errors import WorkloadError
from workbench.workload.pinned import STALE, MissPolicy, TableLookup, pin_table

# What misses are called in the line at the end.
REASONS = {
    "absent": "not in the table",
    "other device": "only for another GPU",
    "changed": "stale, the function has changed",
    "other triton": "stale, of another Triton",
    "refused": "a config that the function cannot have",
}
GIVEN = {
    "nearest": "the nearest measured key",
    "first": "the first config",
    "tune": "tuned by Triton",
    "error": "an error",
}


@dataclass(frozen=True)
class Deployment:
    """A table to pin in the processes of a program."""

    table: str
    policy: MissPolicy = "tune"
    verify: bool = False  # compare the choices of ranks
    folder: str | None = None  # for a file of lookups a process

    def text(self) -> str:
        """Return the value of WORKBENCH_TUNED."""
        return json.dumps(asdict(self))

    @staticmethod
    def parse(text: str) -> Deployment:
        """Return the deployment of a value of WORKBENCH_TUNED: a JSON object, or the table's path
        alone. Raises WorkloadError where it is neither."""
        if not text.lstrip().startswith("{"):
            return Deployment(text)
        try:
            deployment: Deployment = read_as(Deployment, json.loads(text), "it")
        except (ValueError, RecursionError) as error:
            raise WorkloadError(
                f"WORKBENCH_TUNED is neither a path nor an object with table and policy ({error})."
            ) from None
        return deployment


def begin(text: str) -> None:
    """Pin in this process, by a value of WORKBENCH_TUNED. What goes wrong is a note, and the
    program runs without the table. Raises SystemExit, with code 2, under the policy `error`."""
    policy = "tune"
    try:
        deployment = Deployment.parse(text)
        policy = deployment.policy
        on_lookup = None if deployment.folder is None else LookupFile(Path(deployment.folder)).keep
        table = pin_table(deployment.table, deployment.policy, None, on_lookup)
        if deployment.verify:
            from workbench.workload.ranks import verify_often

            verify_often(table)
    except WorkbenchError as error:
        print(f"note: no config is pinned: {error}", file=sys.stderr)
        if policy == "error":
            raise SystemExit(2) from None


class LookupFile:
    """Lookups of this process, each a line, which a kill -9 leaves. A forked process has a file of
    its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failed = False

    def keep(self, lookup: TableLookup) -> None:
        """Add a lookup. A file that cannot be written is a note, once."""
        if self._failed:
            return
        try:
            with (self._folder / f"{os.getpid()}.lookups").open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(lookup)) + "\n")
        except OSError as error:
            self._failed = True
            print(f"note: lookups are not counted ({error}).", file=sys.stderr)


def lookups_in(folder: Path) -> dict[str, list[TableLookup]]:
    """Return the lookups of each process by the name of its file. A half-written last line of a
    killed process is left out."""
    processes: dict[str, list[TableLookup]] = {}
    for path in sorted(folder.glob("*.lookups")):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        processes[path.stem] = [read_as(TableLookup, row, "the lookup") for row in rows]
    return processes


@dataclass(frozen=True)
class LookupCounts:
    """Keys that a program looked up, each once in each process."""

    keys: int
    hits: int
    misses: dict[str, int]  # by reason
    given: dict[str, int]  # what the misses got
    processes: int

    @property
    def stale(self) -> int:
        """Number of keys whose entry is stale."""
        return sum(self.misses.get(REASONS[result], 0) for result in STALE)


def counts_of(processes: Iterable[Sequence[TableLookup]]) -> LookupCounts:
    """Return the counts of all processes that looked anything up."""
    several = [of for of in processes if of]
    lookups = [lookup for of in several for lookup in of]
    missed = [lookup for lookup in lookups if lookup.result != "hit"]
    return LookupCounts(
        len(lookups),
        len(lookups) - len(missed),
        _count_names(REASONS[cast(str, lookup.result)] for lookup in missed),
        _count_names(GIVEN[cast(str, lookup.given)] for lookup in missed),
        len(several),
    )


def _count_names(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items(), key=lambda pair: (-pair[1], pair[0])))


def counts_text(counts: LookupCounts) -> str:
    """Return the counts as one line."""
    if not counts.keys:
        return "no key of an autotuned function was looked up"
    where = f" in {counts.processes} processes" if counts.processes > 1 else ""
    misses = sum(counts.misses.values())
    text = f"{counts.keys:,} keys looked up{where}: {counts.hits:,} hits, {misses:,} misses"
    if misses:
        text += f" ({_list_numbers(counts.misses)}; got {_list_numbers(counts.given)})"
    return f"{text}, {counts.stale:,} stale entries"


def _list_numbers(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in numbers.items())
