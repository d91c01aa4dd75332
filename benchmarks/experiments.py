"""What the experiments and ceilings must reach, on one NVIDIA H200: each figure beside its goal.

Ceilings are measured three times and held against torch's copy and sum and cuBLAS. Every
experiment is run once, as a user runs it, with the wall time of all of them. Kernels whose truth is
known are put to memory_vs_compute again and again in one process, where everything is compiled and
warm after the first: each verdict is of fresh inputs and fresh times. Results are read from the
events files. The JSON is written after each step; where it is there already, only what it lacks or
what failed is run.

    python benchmarks/experiments.py --out experiments.json
    python benchmarks/experiments.py --only planted --times 10 --seconds 500
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runs import Ended, read_events, run_command, save, say, show

REPEATS = 3  # of all ceilings
SPREAD = 1.0  # percent between the repeats
SHARE = 0.98  # of the best yardstick's rate
GIVEN = {"dram_copy": 4.30e12, "dram_read": 4.35e12, "compute_bf16": 0.0}  # B/s; 0: none but beside
HOST = ("launch_eager", "h2d", "d2h")  # ceilings that the CPU and its memory take part in
SUITE_S = 300.0
CEILINGS_S = 46.0  # both states; with the sustained one alone it took 23 to 28 s
TRUTHS = {
    "copy": "memory-bound",
    "compute_only": "compute-bound",
    "matmul_one_stage": "serialised",
    "empty": "latency-bound",
}
MEMORY = "memory_vs_compute"
VARIANTS = {"C": "C, the whole", "A": "A, its memory traffic", "B": "B, its arithmetic"}
SCALES = {"B/s": (1e12, "TB/s"), "FLOP/s": (1e12, "TFLOP/s"), "OP/s": (1e12, "TOP/s"),
          "s": (1e-6, "us")}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One command, or in this process what it does. Its key, such as `planted/copy/7`, is its place
    in the JSON file."""

    key: str
    words: tuple[str, ...]  # of the command; of a planted kernel, its name
    limit_s: float

    @property
    def part(self) -> str:
        """`ceilings`, `suite` or `planted`."""
        return self.key.split("/")[0]


def suite() -> dict[str, str]:
    """All experiments by name, with what the command line calls them: a name, or an example's
    path."""
    from workbench.data.contributed import EXAMPLES
    from workbench.experiments import experiment_names

    names = {name: name for name in experiment_names()}
    files = [p for p in sorted(EXAMPLES.glob("*/*.py")) if p.stem not in names]
    return {**names, **{p.stem: str(p) for p in files if "\nEXPERIMENT =" in p.read_text("utf-8")}}


def steps(times: int, only: Sequence[str] = ()) -> list[Step]:
    """All steps in their order: what they are cut short by, each planted kernel loses alike."""
    every = [Step(f"ceilings/{n}", ("ceilings",), 120.0) for n in range(1, REPEATS + 1)]
    every += [Step(f"suite/{name}", ("experiment", word), 180.0) for name, word in suite().items()]
    every += [
        Step(f"planted/{kernel}/{n}", (kernel,), 120.0)
        for n in range(1, times + 1) for kernel in TRUTHS
    ]  # fmt: skip
    return [s for s in every if not only or any(word in s.key for word in only)]


# One step


class Runner:
    """Runs steps: a command in a process of its own, a planted kernel in this one. No step raises
    an error, but says `why` it gave nothing."""

    def __init__(self, folder: Path, device: str | None) -> None:
        """`folder` holds the runs, their database and the compile cache."""
        self._folder, self._device = folder, device
        # nobody's tuned configs, and one cache for all: only the first of equals compiles
        self._also = {"TRITON_CACHE_DIR": str(folder / "triton"), "XDG_DATA_HOME": str(folder)}
        self._database = f"sqlite:///{folder.resolve()}/history.db"
        self._kept: Any = None

    def __call__(self, step: Step) -> dict[str, Any]:
        out = self._folder / f"{step.key.replace('/', '-')}-{time.time_ns()}"
        ended = self._analyse(step, out) if step.part == "planted" else self._launch(step, out)
        events = [e for path in sorted(out.glob("*/events.jsonl")) for e in read_events(path)]
        return text(ended, events, self._device is not None)

    def _launch(self, step: Step, out: Path) -> Ended:
        command = [
            sys.executable, "-m", "workbench", *step.words, "--out", str(out),
            "--database", self._database, *(["--device", self._device] if self._device else []),
        ]  # fmt: skip
        return run_command(command, step.limit_s, **self._also)

    def _analyse(self, step: Step, out: Path) -> Ended:
        """What the `experiment` command does with a planted kernel, but for the page."""
        os.environ.update(self._also)
        from rich.console import Console

        from workbench.commands.experiment import ExperimentOptions
        from workbench.commands.experiment_command import ExperimentCommand

        class Unseen(ExperimentCommand):
            def _draw(self, recorder: Any) -> Path:
                return out

        began, clock = time.time(), time.perf_counter()
        wanted = ExperimentOptions(
            MEMORY, kernel=step.words[0], device=self._device, out=out, database=self._database
        )
        code, sentence = 2, ""
        try:
            code = Unseen(wanted, Console(quiet=True), self._open_backend).go()
        except Exception as error:  # of one step, and no reason to lose the others
            sentence = f"{type(error).__name__}: {error}"
        if code == 130:
            raise KeyboardInterrupt
        return Ended(code, began, time.perf_counter() - clock, sentence)

    def _open_backend(self, device: str | None, repository: Path) -> Any:
        """The GPU that is here, which stays open from one step to the next."""
        from workbench.backend.live import Live
        from workbench.commands.experiment_command import RULES
        from workbench.commands.run import backend_for, gpu_present

        if device is not None or not gpu_present():
            return backend_for(device, repository)

        class Kept(Live):
            def close(self) -> None:
                """Not yet."""

        if self._kept is None:
            self._kept = Kept(repository, rules=RULES)
        return self._kept

    def close(self) -> None:
        """Let go of the GPU."""
        from workbench.backend.live import Live

        if self._kept is not None:
            with suppress(OSError):
                Live.close(self._kept)
        self._kept = None


def text(ended: Ended, events: Sequence[Any], predicts: bool = False) -> dict[str, Any]:
    """A command as it stands in the JSON file. `why` it gave nothing is None where it did; where
    nobody asked for predictions, they are nothing."""
    from workbench.data.record import Failure, Finding, Record, Run

    run = next((e for e in reversed(events) if isinstance(e, Run)), None)
    results = [finding(e) for e in events if isinstance(e, Finding)]
    ceilings = ceilings_of(run) if run is not None and run.engine == "ceilings" else {}
    gave = bool(results or any("value" in c for c in ceilings.values()))
    failures = [e for e in events if isinstance(e, Failure)]
    cause = None if gave else "it measured nothing"
    if not predicts and any(isinstance(e, Record) and not e.is_measured for e in events):
        cause = "its times are predicted: no GPU is here"
    if ended.code != 0:  # the last line is often the page's: the first reason says more
        cause = "; ".join([ended.reason, *(first.reason for first in failures[:1])])
    return {
        "exit": ended.code, "wall_s": ended.wall_s, "why": cause,
        "run": run.id if run is not None else None, "on": machine(run),
        "findings": results, "ceilings": ceilings,
        "failures": [
            f"{e.case.kernel}.{e.case.impl}: {e.stage}: {e.reason}"
            for e in failures
        ],
    }  # fmt: skip


def machine(run: Any) -> dict[str, Any] | None:
    """Where a run took place."""
    if run is None:
        return None
    at = run.environment
    return {
        "device": run.device, "predicted": run.predicted, "gpu": at.gpu, "driver": at.driver,
        "versions": dict(at.versions), "others": at.others_on_gpu, "commit": at.commit,
    }  # fmt: skip


def finding(result: Any) -> dict[str, Any]:
    """A Finding: its word, and the times of arms as median, low and high."""
    named = {e.name: e for e in result.evidence if e.group == "times"}
    return {
        "kernel": result.kernel, "word": result.word, "sentence": result.sentence,
        "times": {
            variant: [e.value, e.low, e.high]
            for variant, name in VARIANTS.items() if (e := named.get(name)) is not None
        },
    }  # fmt: skip


def ceilings_of(run: Any) -> dict[str, dict[str, Any]]:
    """What a run measured, by the names without their ending."""
    kept = ("value", "low", "high", "unit", "title", "library", "unchecked", "failed", "reason")
    return {
        name.removesuffix("_measured"): {k: one[k] for k in kept if k in one}
        for name, one in run.ceilings.items() if name.endswith("_measured")
    }  # fmt: skip


# What it comes to

VariantResult = Mapping[str, Mapping[str, Any]]  # by the keys of steps


def part_results(result: VariantResult, part: str) -> dict[str, Mapping[str, Any]]:
    """The commands of one part, by the rest of their keys."""
    return {k.partition("/")[2]: one for k, one in result.items() if k.startswith(f"{part}/")}


def spread(values: Sequence[float]) -> float | None:
    """Percent between the largest and the least; None of fewer than all repeats."""
    return 100 * (max(values) / min(values) - 1) if len(values) >= REPEATS else None


def reference_share(name: str, one: Mapping[str, Any]) -> float | None:
    """A rate over the best of its yardsticks, the one beside it and the one given; for a launch the
    yardstick's time over its own. None where there is none."""
    beside = (one.get("library") or {}).get("value", 0.0)
    if one["unit"] == "s":
        return beside / one["value"] if beside else None
    best = max(beside, GIVEN.get(name, 0.0))
    return one["value"] / best if best else None


CEILING_HEADS = (
    "ceiling", "unit", *map(str, range(1, REPEATS + 1)), "spread %", "library", "least share",
    "",
)  # fmt: skip


def ceiling_rows(result: VariantResult) -> list[list[Any]]:
    """One line a ceiling; a command that gave none is a line that says why."""
    runs = part_results(result, "ceilings")
    lines: list[list[Any]] = []
    for name in dict.fromkeys(n for run in runs.values() for n in run["ceilings"]):
        each = [run["ceilings"].get(name, {}) for run in runs.values()]
        known = [one for one in each if "value" in one]
        unit = next((one["unit"] for one in each if "unit" in one), "")
        scale, shown = SCALES.get(unit, (1.0, unit))
        shares = [s for one in known if (s := reference_share(name, one)) is not None]
        reason = [w for one in each for w in (one.get("why"), one.get("unchecked")) if w]
        cells = [one["value"] / scale if "value" in one else None for one in each]
        yard = next((one["library"]["name"] for one in known if one.get("library")), None)
        lines.append([
            name, shown, *(cells + [None] * REPEATS)[:REPEATS], spread([o["value"] for o in known]),
            yard, min(shares, default=None), "; ".join(dict.fromkeys(reason)),
        ])  # fmt: skip
    blank = [None] * (len(CEILING_HEADS) - 2)
    return lines + [[f"run {n}", *blank, run["why"]] for n, run in runs.items() if run["why"]]


MEMORY_HEADS = ("kernel", "verdict", "C us", "A/C", "B/C", "C + noise >= A, B", "")


def holds(times: Mapping[str, Sequence[Any]]) -> bool | None:
    """Whether no part is slower than the whole beyond the intervals; None without intervals."""
    if set(times) != set(VARIANTS) or any(x is None for one in times.values() for x in one):
        return None
    return bool(times["C"][2] >= max(times["A"][1], times["B"][1]))


def memory_rows(result: VariantResult) -> list[list[Any]]:
    """One line a kernel of memory_vs_compute."""
    run = part_results(result, "suite").get(MEMORY)
    if run is None:
        return []
    rows = []
    for each in run["findings"]:
        times = {variant: span[0] for variant, span in each["times"].items()}
        whole = times.get("C")
        parts = [times[p] / whole if whole and p in times else None for p in "AB"]
        reason = each["sentence"] if each["word"] == "refused" else ""
        rows.append([each["kernel"], each["word"], whole and whole * 1e6, *parts,
                     yes(holds(each["times"])), reason])  # fmt: skip
    return rows + ([[MEMORY, None, None, None, None, None, run["why"]]] if run["why"] else [])


PLANTED_HEADS = ("planted", "truth", "n", "right", "what was said else", "median s")


def planted_rows(result: VariantResult) -> list[list[Any]]:
    """One line a kernel whose truth is known. A command without a verdict counts, as wrong."""
    runs = part_results(result, "planted")
    rows = []
    for kernel, truth in TRUTHS.items():
        mine = [run for key, run in runs.items() if key.startswith(f"{kernel}/")]
        good = [run["findings"] for run in mine if not run["why"]]
        words = Counter(f["word"] for findings in good for f in findings)
        other = [f"{count} {word}" for word, count in words.items() if word != truth]
        lost = Counter(run["why"] for run in mine if run["why"])
        other += [f"{count} without an answer ({reason})" for reason, count in lost.items()]
        other += dict.fromkeys(
            f"({f['sentence']})" for findings in good for f in findings if f["word"] == "refused"
        )
        walls = [run["wall_s"] for run in mine]
        rows.append([kernel, truth, len(mine), words[truth], ", ".join(other),
                     statistics.median(walls) if walls else None])  # fmt: skip
    return rows


SUITE_HEADS = ("command", "wall s", "said", "arms without a time")


def suite_rows(result: VariantResult) -> list[list[Any]]:
    """One line a command, and all experiments together."""
    rows: list[list[Any]] = [
        [f"ceilings {n}", run["wall_s"], run["why"] or "", len(run["failures"])]
        for n, run in part_results(result, "ceilings").items()
    ]
    suite = part_results(result, "suite")
    for name, run in suite.items():
        words = ", ".join(f"{w} {n}x" if n > 1 else w for w, n in
                          Counter(f["word"] for f in run["findings"]).items())  # fmt: skip
        rows.append([name, run["wall_s"], run["why"] or words, len(run["failures"])])
    if suite:
        rows.append(["all experiments", sum(run["wall_s"] for run in suite.values()), "", None])
    return rows


GOAL_HEADS = ("goal", "found", "met")


def goals(result: VariantResult, names: Sequence[str], times: int) -> Iterator[list[Any]]:
    """Each goal, what was found, and whether it is met: `-` where that is not known yet.

    `names` are all experiments, `times` how often each planted kernel must be judged."""
    lines = {row[0]: row for row in ceiling_rows(result)}
    runs, suite = part_results(result, "ceilings"), part_results(result, "suite")
    failed = {n for run in runs.values() for n, one in run["ceilings"].items() if one.get("failed")}
    for name in GIVEN:
        share = lines[name][-2] if name in lines else None
        met = None if share is None else share >= SHARE and name not in failed
        yield [f"{name}: at least {SHARE:g} of its yardsticks", share, yes(met)]
    spreads = {n: row[2 + REPEATS] for n, row in lines.items() if row[1] is not None}
    by_cpu = {n: s for n, s in spreads.items() if n.startswith(HOST)}
    alone = {n: s for n, s in spreads.items() if n not in by_cpu}
    yield [f"{REPEATS} runs of each ceiling within {SPREAD:g} %", *steady(alone)]
    yield ["... of those that hang on the CPU too", *steady(by_cpu)]
    walls = [run["wall_s"] for run in runs.values() if not run["why"]]
    longest = max(walls, default=None)
    yield [f"ceilings under {CEILINGS_S:g} s", longest,
           yes(None if longest is None else longest < CEILINGS_S)]  # fmt: skip
    whole = [row[5] for row in memory_rows(result)]
    count = whole.count("yes")
    met = False if "no" in whole else True if whole and count == len(whole) else None
    words = f"{count} of {len(whole)}" if count or "no" in whole else None
    yield ["C + noise >= max(A, B)", words, yes(met)]
    for kernel, truth, n, right, *_ in planted_rows(result):
        # one wrong word settles it; all right are not enough while some are missing
        met = False if right < n else True if n >= times else None
        yield [f"{kernel} is {truth}, {times} times", f"{right} of {n}" if n else None,
               yes(met if n else None)]  # fmt: skip
    took = sum(run["wall_s"] for run in suite.values())
    all_ran = set(names) <= {n for n, run in suite.items() if not run["why"]}
    yield [f"all experiments under {SUITE_S:g} s", took or None,
           yes(took < SUITE_S if all_ran else None)]  # fmt: skip


def steady(spreads: Mapping[str, float | None]) -> list[str | None]:
    """The largest of some spreads in percent, and whether all keep to the goal: none where one is
    not known."""
    known = {name: s for name, s in spreads.items() if s is not None}
    if not known:
        return [None, None]
    worst = max(known, key=lambda name: known[name])
    met = False if known[worst] > SPREAD else True if len(known) == len(spreads) else None
    return [f"{known[worst]:.2f} % at most ({worst})", yes(met)]


def yes(met: bool | None) -> str | None:
    """In a cell."""
    return None if met is None else "yes" if met else "no"


# The script


def earlier(path: str, device: str | None) -> dict[str, Any]:
    """What the JSON file holds already. Raises ValueError where it is of another kind."""
    if not Path(path).exists():
        return {"device": device, "steps": {}}
    try:
        result = json.loads(Path(path).read_text())
        there, _ = result["device"], result["steps"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is not a file of this script; name another with --out") from None
    if there != device:
        raise ValueError(f"{path} is of --device {there}, not {device}; name another with --out")
    return dict(result)


def course(
    todo: Sequence[Step], end_s: float, once: Callable[[Step], dict[str, Any]],
    keep: Callable[[str, dict[str, Any]], None],
) -> None:  # fmt: skip
    """Every step, until `end_s` on the process' clock."""
    for step in todo:
        if time.perf_counter() > end_s:
            say("its time is over; the same command goes on")
            return
        result = once(step)
        keep(step.key, result)
        words = ", ".join(f["word"] for f in result["findings"])
        say(f"{step.key}: {result['why'] or words or 'done'}, {result['wall_s']:.1f} s")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="*", default=[],
        help="steps whose keys hold these words: ceilings, suite, planted, suite/e2e",
    )  # fmt: skip
    parser.add_argument("--times", type=int, default=20, help="verdicts on each planted kernel")
    parser.add_argument("--seconds", type=float, default=1500.0, help="no step is begun after")
    parser.add_argument("--device", help="predict for this device, to try the script without a GPU")
    parser.add_argument("--folder", help="for runs, database and compile cache; else a passing one")
    parser.add_argument("--out", default="experiments.json", help="JSON file to write")
    wanted = parser.parse_args()
    try:
        wanted.result = earlier(wanted.out, wanted.device)
    except ValueError as error:
        parser.error(str(error))
    return wanted


def report(result: VariantResult, times: int, device: str | None) -> None:
    """All tables. No goal is met by what was predicted for a device."""
    text = list(goals(result, list(suite()), times))
    if device:
        text = [[goal, words, None] for goal, words, _ in text]
    for heads, rows in (
        (CEILING_HEADS, ceiling_rows(result)), (MEMORY_HEADS, memory_rows(result)),
        (PLANTED_HEADS, planted_rows(result)), (SUITE_HEADS, suite_rows(result)),
        (GOAL_HEADS, text),
    ):  # fmt: skip
        if rows:
            show(heads, rows)
            print()


def main() -> None:
    wanted = parse_options()
    results = wanted.result
    known_steps: dict[str, Any] = results["steps"]

    def keep(key: str, result: dict[str, Any]) -> None:
        known_steps[key] = result
        save(wanted.out, results)

    end_s = time.perf_counter() + wanted.seconds
    todo = [
        s for s in steps(wanted.times, wanted.only) if known_steps.get(s.key, {"why": 1})["why"]
    ]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as passing:
        folder = Path(wanted.folder or passing).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        with closing(Runner(folder, wanted.device)) as runner:
            course(todo, end_s, runner, keep)
    report(known_steps, wanted.times, wanted.device)
    if wanted.device:
        print(f"predicted for {wanted.device}: no kernel was timed, so no goal is met or missed")


if __name__ == "__main__":
    main()
