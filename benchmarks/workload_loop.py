"""Does the loop of `workbench workload` hold on whole programs? Record, tune, pin and compare each.

    python benchmarks/workload_loop.py --out FOLDER --only fla_layers --budget 3m

With nine minutes of one GPU, the figures first that were missed on 25 November 2026 (what recording
costs, `tune --widen` of fla_layers, verdicts of compare):

    python benchmarks/workload_loop.py --out FOLDER --missed --limit-s 520 --budget 100 --steps 40

It needs a GPU, and what the programs of examples/workloads need. For each program it asks:

- ahead: all configs of its autotuners compiled in parallel, so that what follows is not a
compiling;
  of programs without autotuners the recording. All programs at once;
- stock: of the launches that CUPTI lists under names that Triton compiled, how many are recorded;
  the time of a step with recording over that without, in turns in one process; the first step;
- record, tune: what `workload record` and `workload tune` say;
- pinned: choices, losses and the first step of two runs with the table, over the first step of
  stock Triton: of both what the first step takes beyond a later one;
- compare: the verdict of `workload compare`.

Each part is written to FOLDER/loop.json as it ends, and one that is there is not run again; a part
that fails says how, and is. --limit-s ends a part that is under way, and begins none that takes
longer.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from runs import HERE, ROOT, Ended, run_command, say
from workload_observed import medians

PROGRAMS = ("fla_layers", "liger_llama", "compiled_block")
PARTS = ("ahead", "stock", "record", "tune", "pinned", "compare")
NEEDS_S = {
    "ahead": 60.0,
    "stock": 40.0,
    "record": 30.0,
    "tune": 40.0,
    "pinned": 30.0,
    "compare": 90.0,
}
# The figures that were missed come first, then what they leave time for
MISSED = (
    ("fla_layers", "stock"),
    ("fla_layers", "record"),
    ("fla_layers", "tune"),
    ("fla_layers", "compare"),
    ("compiled_block", "compare"),
    ("liger_llama", "compare"),
    ("liger_llama", "stock"),
    ("compiled_block", "stock"),
)
AT_ONCE = 12  # runs of compare that import together, on a machine with as many cores
AUTOTUNED = ("fla_layers",)  # the others have nothing to compile ahead, and no key to pin
EXAMPLES = ROOT / "examples" / "workloads"
LIMIT_S = 240.0  # of one process
RECORDED = 6  # steps of a recording
SEEN, TURNS = 3, 6


class Loop:
    """The parts of one program."""

    def __init__(self, name: str, given: argparse.Namespace, known: Mapping[str, Any]) -> None:
        self.name, self.known = name, known
        self.folder: Path = given.out.absolute()
        self.steps, self.rounds = given.steps, given.rounds
        self.budget = given.budget[given.only.index(name) % len(given.budget)]
        self.end_s, self.widen = given.end_s, given.missed or name not in AUTOTUNED
        self.cache = self.folder / f"triton-{name}"
        self.table = self.folder / f"{name}.json"
        self.file = self.folder / f"{name}.workload"

    def limit_s(self, usual: float = LIMIT_S) -> float:
        """Seconds that a process may take."""
        return max(1.0, min(usual, self.end_s - time.perf_counter()))

    def run(self, part: str) -> dict[str, Any]:
        """The result of a part; of one that fails, how."""
        began = time.perf_counter()
        every: Mapping[str, Callable[[], dict[str, Any]]] = {
            "ahead": self.compile_all, "stock": self.stock, "record": self.record,
            "tune": self.tune, "pinned": self.run_pinned, "compare": self.compare,
        }  # fmt: skip
        try:
            result = every[part]()
        except (RuntimeError, OSError, ValueError, KeyError, ZeroDivisionError) as error:
            result = {"failed": f"{type(error).__name__}: {error}"}
        return {**result, "took_s": round(time.perf_counter() - began, 1)}

    def workbench(self, action: str, *more: str, limit_s: float = LIMIT_S) -> Ended:
        command = [sys.executable, "-m", "workbench", "workload", action, *more]
        return run_command(command, self.limit_s(limit_s), TRITON_CACHE_DIR=str(self.cache))

    def program(self, steps: int) -> list[str]:
        return [sys.executable, str(EXAMPLES / f"{self.name}.py"), "--steps", str(steps)]

    def observe_run(self, *more: str, words: tuple[str, ...] = ()) -> dict[str, Any]:
        """What a run in a fresh process tells. `words` stand before its command."""
        answer = self.folder / f"{self.name}-{time.time_ns()}.json"
        script = [sys.executable, str(HERE / "workload_observed.py"), self.name]
        watch = ["--watch"] if self.name in AUTOTUNED else []
        command = [*words, *script, "--answer", str(answer), *watch, *more]
        ended = run_command(command, self.limit_s(), TRITON_CACHE_DIR=str(self.cache))
        if not answer.exists():
            raise RuntimeError(f"{ended.reason}\n{ended.text}")
        return json.loads(answer.read_text())

    # Parts

    def compile_all(self) -> dict[str, Any]:
        if self.name not in AUTOTUNED:
            return self.record()
        script = [sys.executable, str(HERE / "workload_observed.py"), self.name]
        ended = run_command(
            [*script, "--compile", str(min(12, len(os.sched_getaffinity(0))))],
            self.limit_s(),
            TRITON_CACHE_DIR=str(self.cache),
            FLA_CACHE_RESULTS="0",  # it would keep which config "was fastest"
        )
        return {"exit": ended.code, "text": ended.text[-300:]}

    def stock(self) -> dict[str, Any]:
        from workbench.data.stats import ratio

        report = self.observe_run("--seen", str(SEEN), "--turns", str(TURNS))
        missed = Counter(report["cupti"]) - Counter(report["recorded"])
        total, pairs = sum(report["cupti"].values()), medians(report["turns"])
        cost = ratio(*zip(*pairs, strict=True))
        return {
            "cupti": report["cupti"], "recorded": report["recorded"], "others": report["others"],
            "seen": 1 - sum(missed.values()) / total if total else None,
            "launches": total,
            "cost": [cost.middle, cost.low, cost.high], "pairs": pairs,
            "first_s": first_step_excess_s(report["steps_s"]), "steps_s": report["steps_s"][:8],
        }  # fmt: skip

    def record(self) -> dict[str, Any]:
        """Record the program, once."""
        if "text" in (known := self.known.get("ahead", {})) and self.file.exists():
            return dict(known)
        ended = self.workbench(
            "record", "--values", "--out", str(self.file), "--", *self.program(RECORDED)
        )
        if not self.file.exists():
            raise RuntimeError(ended.text)
        return {"exit": ended.code, "text": ended.text}

    def tune(self) -> dict[str, Any]:
        """Tune the recording; a run that was ended goes on."""
        answer = self.folder / f"{self.name}.tune.json"
        answer.unlink(missing_ok=True)
        more = ["--tuned", str(self.table), "--out", str(self.folder / "results")]
        more += ["--widen"] if self.widen else []  # lists of up to 48 are wide
        more += ["--budget", f"{self.budget}s", "--json", str(answer)]
        more += ["--database", f"sqlite:///{self.folder}/history.db"]
        ended = self.workbench("tune", str(self.file), *more, limit_s=self.budget + 90.0)
        if not answer.exists():
            raise RuntimeError(ended.text)
        document = json.loads(answer.read_text())
        results = document["results"]
        return {
            "sentence": document["sentence"],
            "entries": document["entries"],
            "statuses": Counter(r["status"] for r in results),
            "failed": [r["reason"] for r in results if r["status"] == "failed"],
            "said": ended.text,
        }

    def run_pinned(self) -> dict[str, Any]:
        if self.name not in AUTOTUNED:
            return {}
        command = [sys.executable, "-m", "workbench", "workload", "run", "--tuned", str(self.table)]
        runs = [self.observe_run("--seen", "0", words=(*command, "--")) for _ in range(2)]
        first = [first_step_excess_s(run["steps_s"]) for run in runs]
        return {
            "same_configs": runs[0].get("digest") == runs[1].get("digest") is not None,
            "same_bits": runs[0]["losses"] == runs[1]["losses"],
            "losses": runs[0]["losses"],
            "lookups": runs[0].get("lookups"),
            "first_s": first,
            "of_stock": first[1] / self.known["stock"]["first_s"],  # the second has all compiled
        }

    def compare(self) -> dict[str, Any]:
        from workbench.workload.tuned_table import write

        answer = self.folder / f"{self.name}.compare.json"
        answer.unlink(missing_ok=True)
        if not self.table.exists():  # nothing to pin: the program against itself
            write(self.table, [])
        more = [str(self.table), "--rounds", str(self.rounds), "--json", str(answer)]
        more += ["--at-once", str(min(AT_ONCE, len(os.sched_getaffinity(0))))]
        more += ["--out", str(self.folder / "results"), "--", *self.program(self.steps)]
        ended = self.workbench("compare", *more, limit_s=2 * LIMIT_S)
        if not answer.exists():
            raise RuntimeError(ended.text)
        document = json.loads(answer.read_text())
        names = ("verdict", "first_step", "outputs", "lookups", "failure")
        return {**{n: document[n] for n in names}, "said": ended.text[-1500:]}


def queue_of(programs: Sequence[str], missed: bool) -> list[tuple[str, str]]:
    """Programs and parts in the order in which they run, after what is done ahead."""
    if missed:
        return [(name, part) for name, part in MISSED if name in programs]
    return [(name, part) for name in programs for part in PARTS[1:]]


def first_step_excess_s(steps_s: list[float]) -> float:
    """Seconds of the first step beyond a later one."""
    from workbench.data.stats import median

    return steps_s[0] - median(steps_s[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--missed", action="store_true", help="the missed figures first")
    parser.add_argument("--budget", type=float, nargs="+", default=[180.0], help="s, of tune")
    parser.add_argument("--steps", type=int, default=20, help="of each run that is compared")
    parser.add_argument("--rounds", type=int, default=6, help="of compare")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="of all")
    given = parser.parse_args()
    given.end_s = time.perf_counter() + given.limit_s
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "loop.json"
    results: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    loops = {n: Loop(n, given, results.setdefault(n, {})) for n in given.only}

    def one(name: str, part: str) -> None:
        if part not in given.parts or "failed" not in results[name].get(part, {"failed": ""}):
            return
        needed = NEEDS_S[part] + (loops[name].budget if part == "tune" else 0.0)
        if given.end_s - time.perf_counter() < needed:
            say(f"{name} {part}: left out, it needs {needed:.0f} s")
            return
        results[name][part] = result = loops[name].run(part)
        file.write_text(json.dumps(results, indent=1) + "\n")
        say(f"{name} {part}: {json.dumps(result)[:1500]}")

    with ThreadPoolExecutor() as pool:
        first = AUTOTUNED if given.missed else given.only
        list(pool.map(lambda name: one(name, "ahead"), [n for n in given.only if n in first]))
    for name, part in queue_of(given.only, given.missed):
        one(name, part)


if __name__ == "__main__":
    main()
