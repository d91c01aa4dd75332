"""Read what a run of a compared program left, and compare runs with and without a tuned table."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from workbench.data import stats
from workbench.data.record import Ratio, Verdict
from workbench.data.verdict import noise_of, verdict

CONFIDENCE = 0.95


@dataclass(frozen=True)
class ProgramRun:
    """One run of the whole program."""

    pinned: bool
    number: int  # of its round, from 0
    wall_s: float  # of the whole process
    first_s: float | None  # from the process' start to the end of its first step, waiting left out
    steps_s: tuple[float, ...]  # of each later step

    @property
    def time_s(self) -> float:
        """Median of the later steps in seconds; the wall time where there is none."""
        return stats.median(self.steps_s) if self.steps_s else self.wall_s


@dataclass(frozen=True)
class NamedOutput:
    """One call of `workbench.workload.output`."""

    name: str
    shape: tuple[int, ...]
    values: Any | None  # an array; None beyond the most bytes that a run keeps


@dataclass(frozen=True)
class OutputDifference:
    """The largest differences of all outputs with one name."""

    name: str
    compared: int
    left_out: int  # calls whose shapes or numbers differ, or that were not kept
    largest: float  # |with - without|
    relative: float  # by the largest magnitude without the table, of the same call
    repeated: float | None = None  # |without - without| of two rounds


def read_marks(folder: Path) -> tuple[tuple[float, ...], float | None, list[NamedOutput]]:
    """Return the times of the steps after the first, that of the first without its wait for its
    turn, in seconds, and the outputs, of the process of rank 0; without ranks of the one with the
    most marks."""
    processes = [rows for path in sorted(folder.glob("*.marks")) if (rows := _rows(path))]
    if not processes:
        return (), None, []
    rows = min(processes, key=lambda of: (of[0].get("rank") or 0, -len(of)))
    ends = [row["step"] for row in rows if "step" in row]
    waited = sum(row["waited"] for row in rows if "waited" in row)  # for its turn, see `gate`
    first = ends[0] - rows[0]["began"] - waited if ends else None
    outputs = [_output(folder, row) for row in rows if "output" in row]
    return tuple(b - a for a, b in pairwise(ends)), first, outputs


def _rows(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _output(folder: Path, row: Mapping[str, Any]) -> NamedOutput:
    import numpy as np

    values = None
    if row["file"] is not None:
        values = np.load(folder / row["file"], allow_pickle=False)
    return NamedOutput(row["output"], tuple(row["shape"]), values)


# Times


def unit_of(runs: Sequence[ProgramRun]) -> str:
    """Return what is compared: `step`, or `run` where a run marked fewer than two steps."""
    return "step" if runs and all(run.steps_s for run in runs) else "run"


def times_of(runs: Sequence[ProgramRun], pinned: bool) -> list[float]:
    """Return the time of each run in seconds, in the order of rounds."""
    step = unit_of(runs) == "step"
    return [run.time_s if step else run.wall_s for run in runs if run.pinned == pinned]


def whole_rounds(runs: Sequence[ProgramRun]) -> list[ProgramRun]:
    """Return the runs of rounds that have both."""
    both = {r.number for r in runs if r.pinned} & {r.number for r in runs if not r.pinned}
    return [run for run in runs if run.number in both]


def verdict_of(runs: Sequence[ProgramRun], threshold: float) -> Verdict | None:
    """Return the verdict on whole rounds; None before the second. The noise floor is the ratio of
    successive runs of the same kind. Undecided are fewer rounds than an interval of 95 % needs, and
    a ratio that is within the noise of the program and not within the threshold."""
    without, pinned = times_of(runs, False), times_of(runs, True)
    if len(without) < 2 or min(*without, *pinned) <= 0:
        return None
    noise = max(noise_of(stats.ratio(x[:-1], x[1:], CONFIDENCE)) for x in (without, pinned))
    ratio = stats.ratio(without, pinned, CONFIDENCE)
    result = verdict(ratio, None, threshold, noise, len(without))
    least = stats.least_for(CONFIDENCE)
    if len(without) < least:
        reason = f"{len(without)} rounds are too few for an interval: {least} are needed"
        return replace(result, word="INCONCLUSIVE", reason=reason)
    inside = 1 / (1 + threshold) <= ratio.low and ratio.high <= 1 + threshold
    if result.word == "SAME" and not inside:
        reason = f"{result.reason}, and not within the {threshold:.2%} that were requested"
        return replace(result, word="INCONCLUSIVE", reason=reason)
    return result


def first_step(runs: Sequence[ProgramRun]) -> Ratio | None:
    """Return the ratio of the first steps, with the table over without; None where a run has
    none."""
    both = [[run.first_s for run in runs if run.pinned == pinned] for pinned in (False, True)]
    known = [[s for s in of if s is not None and s > 0] for of in both]
    if not runs or any(len(a) != len(b) for a, b in zip(both, known, strict=True)):
        return None
    return stats.ratio(known[0], known[1], CONFIDENCE)


# Outputs


def differences(
    without: Sequence[NamedOutput], pinned: Sequence[NamedOutput]
) -> list[OutputDifference]:
    """Return the difference of each name between two runs."""
    names = dict.fromkeys(each.name for each in (*without, *pinned))
    return [
        _difference(name, *([each for each in of if each.name == name] for of in (without, pinned)))
        for name in names
    ]


def _difference(
    name: str, without: Sequence[NamedOutput], pinned: Sequence[NamedOutput]
) -> OutputDifference:
    largest = relative = 0.0
    compared = 0
    for a, b in zip(without, pinned, strict=False):
        if a.values is None or b.values is None or a.shape != b.shape:
            continue
        compared += 1
        off, scale = largest_difference(a.values, b.values)
        largest = max(largest, off)
        relative = max(relative, off / scale if scale else (math.inf if off else 0.0))
    return OutputDifference(
        name, compared, max(len(without), len(pinned)) - compared, largest, relative
    )


def largest_difference(a: Any, b: Any) -> tuple[float, float]:
    """Return the largest |b - a|, and the largest |a|, of two arrays of one shape. NaN equals NaN,
    an infinity itself; what is finite in one alone differs by infinity."""
    import numpy as np

    if not a.size:
        return 0.0, 0.0
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.abs(y - x)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    off = np.where(same, 0.0, np.where(np.isfinite(off), off, np.inf))
    finite = np.abs(x[np.isfinite(x)])
    return float(off.max()), float(finite.max()) if finite.size else 0.0


def worst_of(
    before: Sequence[OutputDifference], more: Sequence[OutputDifference]
) -> list[OutputDifference]:
    """Return the larger of the differences of each name, and the sums of their numbers."""
    result = {each.name: each for each in before}
    for each in more:
        known = result.get(each.name, OutputDifference(each.name, 0, 0, 0.0, 0.0))
        result[each.name] = replace(
            known,
            compared=known.compared + each.compared,
            left_out=known.left_out + each.left_out,
            largest=max(known.largest, each.largest),
            relative=max(known.relative, each.relative),
        )
    return list(result.values())


def add_repeats(
    of: Sequence[OutputDifference], repeats: Sequence[OutputDifference]
) -> list[OutputDifference]:
    """Return differences with those of the program from itself, without the table."""
    largest = {each.name: each.largest for each in repeats if each.compared}
    return [replace(each, repeated=largest.get(each.name)) for each in of]
