"""Does the loop of `workbench workload` hold on whole programs? Record, tune, pin and compare each.

    python benchmarks/workload_loop.py --out FOLDER --only fla_layers --budget 3m

It needs a GPU, and what the programs of examples/workloads need. For each program it asks:

- seen: of the launches that CUPTI lists under names that Triton compiled, how many were recorded;
- recording: time of a step with recording over that without, in turns;
- tune: what `workload tune` saves, and the share of signatures that have an answer to check by;
- first step: what it takes beyond a later one with a pinned table, over that of stock Triton, with
  all code compiled before, so that the rest is benchmarks;
- pinned: choices and loss of two runs with the table;
- compare: the verdict of `workload compare`.

Each part is written to FOLDER/loop.json as it ends; a part that fails says how.
"""

from __future__ import annotations

import argparse
import json
import runpy
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from runs import HERE, ROOT, Ended, launched

PROGRAMS = ("liger_llama", "fla_layers", "compiled_block")
EXAMPLES = ROOT / "examples" / "workloads"
LIMIT_S = 300.0
STEPS, ROUNDS = 12, 3  # steps of a run whose time counts, and pairs of runs


def program(name: str, steps: int) -> list[str]:
    """The command of a program."""
    return [sys.executable, str(EXAMPLES / f"{name}.py"), "--steps", str(steps)]


def workbench(action: str, *more: str, limit_s: float = LIMIT_S, cache: Path) -> Ended:
    """Run `workbench workload ACTION`, with a folder for Triton's compiled kernels."""
    command = [sys.executable, "-m", "workbench", "workload", action, *more]
    return launched(command, limit_s, TRITON_CACHE_DIR=str(cache))


def observed(
    name: str, steps: int, folder: Path, cache: Path, *words: str, profile: bool = False
) -> dict[str, Any]:
    """What a program tells of itself in a fresh process; see `observe`. `words` stand before its
    command, as `workload run` does."""
    answer = folder / f"{name}-{time.time_ns()}.json"
    inner = [sys.executable, str(HERE / "workload_loop.py"), "--observe", str(answer)]
    command = [*words, *inner, "--only", name, "--steps", str(steps)]
    command += ["--profile"] if profile else []
    ended = launched(command, LIMIT_S, TRITON_CACHE_DIR=str(cache))
    if not answer.exists():
        raise RuntimeError(ended.reason)
    return json.loads(answer.read_text())


# In the program's own process


def observe(name: str, steps: int, answer: Path, profile: bool) -> None:
    """Run a program here and write the ends of its steps, the bits of its losses, the digest of the
    pinned table, and, with `profile`, kernels by name of all steps but the first: by CUPTI and as
    recorded."""
    import torch

    from workbench.workload.step_hooks import on_step

    sys.path.insert(0, str(EXAMPLES))
    ends, losses = [time.perf_counter()], []
    counts = Counting(answer.with_suffix(".workload")) if profile else None

    def step() -> None:
        torch.cuda.synchronize()
        ends.append(time.perf_counter())
        if counts is not None and len(ends) == 2:
            counts.begin()

    def output(_: str, value: Any) -> None:
        losses.append(float(value).hex())

    import workbench.workload

    workbench.workload.output = output
    on_step(step)
    sys.argv = [f"{name}.py", "--steps", str(steps)]
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    result: dict[str, Any] = {"ends": ends, "losses": losses}
    pinned = sys.modules.get("workbench.workload.pinned")
    if pinned is not None and pinned.PinnedTable.active is not None:
        result["digest"] = pinned.PinnedTable.active.digest()
    if counts is not None:
        result |= counts.end()
    answer.write_text(json.dumps(result))


class Counting:
    """Kernels by name, by CUPTI and as recorded, from `begin` to `end`."""

    def __init__(self, file: Path) -> None:
        from triton import knobs

        self._file, self.compiled = file, set()
        before = knobs.runtime.jit_post_compile_hook

        def compiled(*args: Any, **named: Any) -> Any:
            self.compiled.add(named["fn"].name.split(".")[-1])
            return before(*args, **named) if before is not None else None

        knobs.runtime.jit_post_compile_hook = compiled

    def begin(self) -> None:
        import torch

        import workbench.workload

        self._recording = workbench.workload.record(self._file, profile_steps=0)
        self._recording.__enter__()
        self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        self._profiler.__enter__()

    def end(self) -> dict[str, Any]:
        from workbench.workload.file import read

        self._profiler.__exit__(None, None, None)
        self._recording.__exit__(None, None, None)
        kernels = Counter(e.name for e in self._profiler.events() if e.device_type.name == "CUDA")
        recorded: Counter[str] = Counter()
        for each in read(self._file).signatures:
            recorded[each.signature.function.name] += each.launches
        named = self.compiled | set(recorded) | {k for k in kernels if k.startswith("triton_")}
        listed = {name: count for name, count in kernels.items() if name in named}
        return {"cupti": listed, "recorded": dict(recorded)}


# Parts


def seen(name: str, folder: Path, cache: Path) -> dict[str, Any]:
    """Launches by CUPTI and by the recording."""
    told = observed(name, 4, folder, cache, profile=True)
    missed = Counter(told["cupti"]) - Counter(told["recorded"])
    total = sum(told["cupti"].values())
    return {**told, "share": 1 - sum(missed.values()) / total if total else None}


def step_s(ends: Sequence[float]) -> float:
    """Median of the steps but the first."""
    return statistics.median(b - a for a, b in pairwise(ends[1:]))


def recording(name: str, folder: Path, cache: Path) -> dict[str, Any]:
    """Times of a step without and with recording, in turns."""
    record = [sys.executable, "-m", "workbench", "workload", "record", "--profile-steps", "0"]
    record += ["--out", str(folder / f"{name}-cost.workload"), "--"]
    times: dict[str, list[float]] = {"without": [], "with": []}
    for turn in range(ROUNDS):
        for which in ("without", "with") if turn % 2 == 0 else ("with", "without"):
            words = record if which == "with" else []
            times[which].append(step_s(observed(name, STEPS, folder, cache, *words)["ends"]))
    ratios = [b / a for a, b in zip(times["without"], times["with"], strict=True)]
    return {**times, "ratio": statistics.median(ratios)}


def tune(name: str, folder: Path, cache: Path, budget: str, limit_s: float) -> dict[str, Any]:
    """What recording and tuning say."""
    file, table, answer = (folder / f"{name}.{end}" for end in ("workload", "json", "tune.json"))
    first = workbench("record", "--out", str(file), "--", *program(name, 6), cache=cache)
    more = ["--tuned", str(table), "--out", str(folder / "results"), "--json", str(answer)]
    more += ["--budget", budget, "--database", f"sqlite:///{folder}/history.db"]
    ended = workbench("tune", str(file), *more, limit_s=limit_s, cache=cache)
    if not answer.exists():
        raise RuntimeError(f"record: {first.reason}; tune: {ended.reason}")
    document = json.loads(answer.read_text())
    results = document["results"]
    return {
        "table": first.text,
        "sentence": document["sentence"],
        "entries": document["entries"],
        "statuses": Counter(r["status"] for r in results),
        "failed": [r["reason"] for r in results if r["status"] == "failed"],
        "wall_s": ended.wall_s,
    }


def pinned_words(name: str, folder: Path) -> list[str]:
    """The words that run a program with its table."""
    table = str(folder / f"{name}.json")
    command = [sys.executable, "-m", "workbench", "workload", "run", "--tuned", table]
    return [*command, "--policy", "nearest", "--"]


def first_step(name: str, folder: Path, cache: Path) -> dict[str, Any]:
    """Seconds of the first step beyond a later one: stock, and pinned. Each runs twice, and the
    second time counts, when all its code is compiled."""
    result: dict[str, Any] = {}
    for which, words in (("stock", []), ("pinned", pinned_words(name, folder))):
        own = cache.with_name(f"{cache.name}-{which}")
        for _ in range(2):
            ends = observed(name, STEPS, folder, own, *words)["ends"]
        result[which] = (ends[1] - ends[0]) - step_s(ends)
    return {**result, "ratio": result["pinned"] / result["stock"]}


def pinned(name: str, folder: Path, cache: Path) -> dict[str, Any]:
    """Choices and losses of two pinned runs."""
    runs = [observed(name, 4, folder, cache, *pinned_words(name, folder)) for _ in range(2)]
    return {
        "same_configs": runs[0].get("digest") == runs[1].get("digest") is not None,
        "same_bits": runs[0]["losses"] == runs[1]["losses"],
        "losses": [run["losses"] for run in runs],
    }


def compare(name: str, folder: Path, cache: Path) -> dict[str, Any]:
    """The verdict on the program."""
    answer = folder / f"{name}.compare.json"
    more = [str(folder / f"{name}.json"), "--policy", "nearest", "--json", str(answer)]
    more += ["--out", str(folder / "results"), "--", *program(name, STEPS)]
    ended = workbench("compare", *more, limit_s=2 * LIMIT_S, cache=cache)
    if not answer.exists():
        raise RuntimeError(ended.reason)
    return json.loads(answer.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="folder for results")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--budget", default="3m", help="of tune, for each program")
    parser.add_argument("--observe", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=STEPS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.observe is not None:
        observe(given.only[0], given.steps, given.observe, given.profile)
        return
    if given.out is None:
        parser.error("--out names the folder for results")
    given.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, Any]] = {}
    for name in given.only:
        results[name] = {}
        for part, result in parts(name, given.out, given.budget):
            results[name][part] = result
            (given.out / "loop.json").write_text(json.dumps(results, indent=1) + "\n")
            print(f"{name} {part}: {json.dumps(result)[:400]}", flush=True)


def parts(name: str, folder: Path, budget: str) -> Any:
    """Yield each part's name and result."""
    cache = folder / f"triton-{name}"
    every: dict[str, Callable[[], dict[str, Any]]] = {
        "seen": lambda: seen(name, folder, cache),
        "recording": lambda: recording(name, folder, cache),
        "tune": lambda: tune(name, folder, cache, budget, 2 * LIMIT_S),
        "first step": lambda: first_step(name, folder, cache),
        "pinned": lambda: pinned(name, folder, cache),
        "compare": lambda: compare(name, folder, cache),
    }
    for part, run in every.items():
        try:
            yield part, run()
        except (RuntimeError, OSError, ValueError, KeyError, ZeroDivisionError) as error:
            yield part, {"failed": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
