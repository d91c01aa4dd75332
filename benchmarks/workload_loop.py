"""Does the loop of `workbench workload` hold on whole programs? Record, tune, pin and compare each.

    python benchmarks/workload_loop.py --out FOLDER --only fla_layers --budget 3m

It needs a GPU, and what the programs of examples/workloads need. For each program it asks:

- compile: all configs of its autotuners, in parallel, so that what follows is no compiling;
- stock: of the launches that CUPTI lists under names that Triton compiled, how many are recorded;
  the time of a step with recording over that without, in turns in one process; the first step;
- tune: what `workload record` and `workload tune` say;
- pinned: choices, losses and the first step of two runs with the table, over the first step of
  stock Triton: of both what the first step takes beyond a later one;
- compare: the verdict of `workload compare`.

Each part is written to FOLDER/loop.json as it ends, and one that is there is not run again; a part
that fails says how, and is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runs import HERE, ROOT, Ended, launched, say
from workload_observed import medians

PROGRAMS = ("fla_layers", "liger_llama", "compiled_block")
PARTS = ("compile", "stock", "tune", "pinned", "compare")
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
        self.steps, self.rounds, self.budget = given.steps, given.rounds, given.budget
        self.cache = self.folder / f"triton-{name}"
        self.table = self.folder / f"{name}.json"

    def run(self, part: str) -> dict[str, Any]:
        """The result of a part; of one that fails, how."""
        began = time.perf_counter()
        every: Mapping[str, Callable[[], dict[str, Any]]] = {
            "compile": self.compile, "stock": self.stock, "tune": self.tune,
            "pinned": self.pinned, "compare": self.compare,
        }  # fmt: skip
        try:
            result = every[part]()
        except (RuntimeError, OSError, ValueError, KeyError, ZeroDivisionError) as error:
            result = {"failed": f"{type(error).__name__}: {error}"}
        return {**result, "took_s": round(time.perf_counter() - began, 1)}

    def workbench(self, action: str, *more: str, limit_s: float = LIMIT_S) -> Ended:
        command = [sys.executable, "-m", "workbench", "workload", action, *more]
        return launched(command, limit_s, TRITON_CACHE_DIR=str(self.cache))

    def program(self, steps: int) -> list[str]:
        return [sys.executable, str(EXAMPLES / f"{self.name}.py"), "--steps", str(steps)]

    def observed(self, *more: str, words: tuple[str, ...] = ()) -> dict[str, Any]:
        """What a run in a fresh process tells. `words` stand before its command."""
        answer = self.folder / f"{self.name}-{time.time_ns()}.json"
        script = [sys.executable, str(HERE / "workload_observed.py"), self.name]
        watch = ["--watch"] if self.name in AUTOTUNED else []
        command = [*words, *script, "--answer", str(answer), *watch, *more]
        ended = launched(command, LIMIT_S, TRITON_CACHE_DIR=str(self.cache))
        if not answer.exists():
            raise RuntimeError(f"{ended.reason}\n{ended.text}")
        return json.loads(answer.read_text())

    # Parts

    def compile(self) -> dict[str, Any]:
        if self.name not in AUTOTUNED:
            return {}
        script = [sys.executable, str(HERE / "workload_observed.py"), self.name]
        ended = launched(
            [*script, "--compile", str(len(os.sched_getaffinity(0)))],
            LIMIT_S,
            TRITON_CACHE_DIR=str(self.cache),
            FLA_CACHE_RESULTS="0",  # it would keep which config "was fastest"
        )
        return {"exit": ended.code, "text": ended.text[-300:]}

    def stock(self) -> dict[str, Any]:
        from workbench.data.stats import ratio

        told = self.observed("--seen", str(SEEN), "--turns", str(TURNS))
        missed = Counter(told["cupti"]) - Counter(told["recorded"])
        total, pairs = sum(told["cupti"].values()), medians(told["turns"])
        cost = ratio(*zip(*pairs, strict=True))
        return {
            "cupti": told["cupti"], "recorded": told["recorded"], "others": told["others"],
            "seen": 1 - sum(missed.values()) / total if total else None,
            "launches": total,
            "cost": [cost.middle, cost.low, cost.high], "pairs": pairs,
            "first_s": beyond(told["steps_s"]), "steps_s": told["steps_s"][:8],
        }  # fmt: skip

    def tune(self) -> dict[str, Any]:
        """Record the program and tune it."""
        file, answer = (self.folder / f"{self.name}.{end}" for end in ("workload", "tune.json"))
        first = self.workbench(
            "record", "--values", "--out", str(file), "--", *self.program(RECORDED)
        )
        more = ["--tuned", str(self.table), "--out", str(self.folder / "results"), "--widen"]
        more += ["--budget", f"{self.budget}s", "--json", str(answer)]
        more += ["--database", f"sqlite:///{self.folder}/history.db"]
        ended = self.workbench("tune", str(file), *more, limit_s=self.budget + 90.0)
        if not answer.exists():
            raise RuntimeError(f"record: {first.text}\ntune: {ended.text}")
        document = json.loads(answer.read_text())
        results = document["results"]
        return {
            "recorded": first.text,
            "sentence": document["sentence"],
            "entries": document["entries"],
            "statuses": Counter(r["status"] for r in results),
            "failed": [r["reason"] for r in results if r["status"] == "failed"],
            "said": ended.text,
            "wall_s": [first.wall_s, ended.wall_s],
        }

    def pinned(self) -> dict[str, Any]:
        if self.name not in AUTOTUNED:
            return {}
        command = [sys.executable, "-m", "workbench", "workload", "run", "--tuned", str(self.table)]
        runs = [self.observed("--seen", "0", words=(*command, "--")) for _ in range(2)]
        first = [beyond(run["steps_s"]) for run in runs]
        return {
            "same_configs": runs[0].get("digest") == runs[1].get("digest") is not None,
            "same_bits": runs[0]["losses"] == runs[1]["losses"],
            "losses": runs[0]["losses"],
            "lookups": runs[0].get("lookups"),
            "first_s": first,
            "of_stock": first[1] / self.known["stock"]["first_s"],  # the second has all compiled
        }

    def compare(self) -> dict[str, Any]:
        answer = self.folder / f"{self.name}.compare.json"
        more = [str(self.table), "--rounds", str(self.rounds), "--json", str(answer)]
        more += ["--out", str(self.folder / "results"), "--", *self.program(self.steps)]
        ended = self.workbench("compare", *more, limit_s=2 * LIMIT_S)
        if not answer.exists():
            raise RuntimeError(ended.text)
        document = json.loads(answer.read_text())
        names = ("verdict", "first_step", "outputs", "lookups", "failure")
        return {**{n: document[n] for n in names}, "said": ended.text[-1500:]}


def beyond(steps_s: list[float]) -> float:
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
    parser.add_argument("--budget", type=float, default=180.0, help="seconds of each tune")
    parser.add_argument("--steps", type=int, default=20, help="of each run that is compared")
    parser.add_argument("--rounds", type=int, default=6, help="of compare")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "loop.json"
    results: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    for name in given.only:
        known = results.setdefault(name, {})
        loop = Loop(name, given, known)
        for part in given.parts:
            if "took_s" in known.get(part, {}) and "failed" not in known[part]:
                continue
            known[part] = loop.run(part)
            file.write_text(json.dumps(results, indent=1) + "\n")
            say(f"{name} {part}: {json.dumps(known[part])[:1500]}")


if __name__ == "__main__":
    main()
