"""One program of examples/workloads in this process: seconds of its steps, its losses, the kernels
that CUPTI lists beside those that a recording has, and steps with and without recording.

`workload_loop.py` starts it:

    python benchmarks/workload_observed.py fla_layers --answer told.json --seen 3 --turns 6

With --compile N the configs of its autotuners are compiled in N processes, and nothing is launched.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from runs import ROOT

EXAMPLES = ROOT / "examples" / "workloads"
BLOCK, SETTLE = 10, 2  # steps of one turn, and those of them that do not count
MARGIN = 3  # steps between two parts


class Observer:
    """Hears of the program's steps, and changes what runs beside the next one."""

    def __init__(self, file: Path, seen: int, turns: int) -> None:
        self.steps_s: list[float] = []
        self.losses: list[str] = []
        self.kernel_counts: dict[str, Any] = {}
        self._began = time.perf_counter()
        self._file, self._seen = file, seen
        self._counts = Counting(file) if seen else None
        self._recording: Any = None
        first = 1 + seen + MARGIN
        self._turns = [(first + BLOCK * i, i % 4 in (1, 2)) for i in range(2 * turns)]  # A B B A
        self.steps = first + BLOCK * 2 * turns + MARGIN

    def watch(self) -> None:
        """Begin the clock at the first call of a module, after imports and the making of the model.
        Not of a program that uses torch.compile, which compiles again once the hook is gone."""
        from torch.nn.modules.module import register_module_forward_pre_hook

        def note_start(*_: Any) -> None:
            hook.remove()
            self._began = time.perf_counter()

        hook = register_module_forward_pre_hook(note_start)

    def step(self) -> None:
        """Hear that a step is over. What is done here is not part of the next one."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.steps_s.append(time.perf_counter() - self._began)
        done = len(self.steps_s)
        if self._counts is not None and done == 1:
            self._counts.begin()
        if self._counts is not None and done == 1 + self._seen:
            self.kernel_counts |= self._counts.end()
        if done in dict(self._turns) or (self._turns and done == self._turns[-1][0] + BLOCK):
            self._turn(dict(self._turns).get(done, False))
        self._began = time.perf_counter()

    def _turn(self, recorded: bool) -> None:
        import workbench.workload

        if self._recording is not None:
            self._recording.__exit__(None, None, None)
            self._recording = None
        if recorded:
            self._recording = workbench.workload.record(self._file, profile_steps=0)
            self._recording.__enter__()

    def answer(self) -> dict[str, Any]:
        """What was heard; `turns` are the steps of each turn that count."""
        turns = [
            {"recorded": on, "steps_s": self.steps_s[at + SETTLE : at + BLOCK]}
            for at, on in self._turns
        ]
        return {
            "steps_s": self.steps_s,
            "losses": self.losses,
            "turns": turns,
            **self.kernel_counts,
        }


class Counting:
    """Kernels by name, by CUPTI and as recorded, from `begin` to `end`."""

    def __init__(self, file: Path) -> None:
        from triton import knobs

        self._file, self.compiled = file, set()
        before = knobs.runtime.jit_post_compile_hook

        def note_compilation(*args: Any, **named: Any) -> Any:
            self.compiled.add(named["fn"].name.split(".")[-1])
            return before(*args, **named) if before is not None else None

        knobs.runtime.jit_post_compile_hook = note_compilation

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
        others = {name[:80]: n for name, n in kernels.items() if name not in named}
        return {"cupti": listed, "recorded": dict(recorded), "others": others}


def observe(name: str, observer: Observer, answer: Path, watch: bool) -> None:
    """Run the program here, and write what was heard; with `watch` see `Observer.watch`."""
    import workbench.workload
    from workbench.workload.step_hooks import add_step_hook

    def output(_: str, value: Any) -> None:
        observer.losses.append(float(value.detach()).hex())

    workbench.workload.output = output
    add_step_hook(observer.step)
    if watch:
        observer.watch()
    run(name, observer.steps)
    result = observer.answer()
    pinned = sys.modules.get("workbench.workload.pinned")
    if pinned is not None and pinned.PinnedTable.active is not None:
        table = pinned.PinnedTable.active
        result["digest"] = table.digest()
        result["lookups"] = dict(Counter(f"{x.result}, {x.given}" for x in table.lookups))
    answer.write_text(json.dumps(result))


def run(name: str, steps: int) -> None:
    """Run a program of the examples as its own command would."""
    sys.path.insert(0, str(EXAMPLES))
    sys.argv = [f"{name}.py", "--steps", str(steps)]
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


# Compiling


def compile_share(name: str, share: int, shares: int) -> None:
    """Compile every `shares`-th config of each autotuner of the program, and launch nothing."""
    import triton.runtime.autotuner as autotuner

    number = 0

    def compile_configs(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal number
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        for config in self.prune_configs(kwargs):
            number += 1
            if number % shares == share:
                with suppress(Exception):  # a config that cannot be compiled here
                    kernel = self.fn.run(*args, **{**kwargs, **config.all_kwargs(), "warmup": True})
                    kernel._init_handles()  # the launcher, in C

    autotuner.Autotuner.run = compile_configs  # type: ignore[method-assign]
    run(name, 1)
    print(f"{name}: share {share} of {shares}, {number} configs in all", flush=True)


def compile_all(name: str, processes: int) -> int:
    """Compile in this many processes at once. Returns the worst exit code."""
    own = [sys.executable, str(Path(__file__).resolve()), name, "--shares", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    every = [subprocess.Popen([*own, "--share", str(i)], env=environment) for i in range(processes)]
    return max(each.wait() for each in every)


# What the answers say


def medians(turns: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """Seconds of a step without and with recording, of each two turns next to each other."""
    from workbench.data.stats import median

    result = []
    for a, b in pairwise(turns):
        if a["recorded"] != b["recorded"]:
            off, on = (b, a) if a["recorded"] else (a, b)
            result.append((median(off["steps_s"]), median(on["steps_s"])))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="a program of examples/workloads, without .py")
    parser.add_argument("--answer", type=Path, help="JSON file to write")
    parser.add_argument("--seen", type=int, default=0, help="steps that CUPTI lists")
    parser.add_argument("--turns", type=int, default=0, help="pairs of turns with and without")
    parser.add_argument("--watch", action="store_true", help="leave out what precedes step 1")
    parser.add_argument("--compile", type=int, default=0, help="processes that compile alone")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--shares", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.compile:
        raise SystemExit(compile_all(given.name, given.compile))
    if given.share is not None:
        compile_share(given.name, given.share, given.shares)
        return
    if given.answer is None:
        parser.error("--answer names the file for what is observed")
    observer = Observer(given.answer.with_suffix(".workload"), given.seen, given.turns)
    observe(given.name, observer, given.answer, given.watch)


if __name__ == "__main__":
    main()
