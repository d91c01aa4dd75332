"""The sweep and `triton.autotune` over the same list of configs, on this GPU, one after the other.

Each side begins as a fresh process with an empty compile cache (cold), then once more with what it
compiled before (warm; the sweep with --fresh, so that it measures everything again). Imports are
in the page cache for both. At last both winners are timed against each other.

    python benchmarks/autotune.py matmul softmax rms_norm copy --out autotune.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runs import LISTS, Ended, Swept, run_command, save, say, show, sweep, task, write_reply

DTYPE = "bf16"
NAMES = ("matmul", "softmax", "rms_norm", "copy")
WARM_UP = """import torch, triton, sqlalchemy, jinja2, matplotlib.figure, time
torch.zeros(1).cuda(); print(time.process_time(), 's of CPU')"""
DUEL_S = 90.0
EVERY_S = 2.0  # between two notes of how far the autotuner is


# In a process of its own: triton.autotune


def configs_of(spec: Any, sizes: Mapping[str, int], limits: Any = None) -> list[Any]:
    """The list of a Spec file as its own configs, in the order of its knobs."""
    (impl,) = spec.impls
    return [
        c for c in impl.space(impl.config()) if impl.refuse(c, limits, itemsize=2, **sizes) is None
    ]


def triton_config(config: Mapping[str, int]) -> Any:
    """The same as `triton.Config`: knobs are in capitals there, warps and stages have names."""
    import triton

    own = {k: v for k, v in config.items() if k in ("num_warps", "num_stages")}
    return triton.Config({k.upper(): v for k, v in config.items() if k not in own}, **own)


def config_values(config: Any) -> dict[str, int]:
    """The inverse of `as_triton`."""
    knobs = {k.lower(): v for k, v in config.kwargs.items()}
    return {**knobs, "num_warps": config.num_warps, "num_stages": config.num_stages}


class Progress:
    """Counts what an autotuner has measured, and writes it down, for it may be ended early."""

    def __init__(self, tuner: Any, answer: str, of: int) -> None:
        self._bench, self._reply, self._noted_s = tuner._bench, answer, 0.0
        self.result: dict[str, Any] = {"of": of, "done": 0, "failed": 0, "began": time.time()}
        tuner._bench = self  # called once a config

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        times = self._bench(*args, **kwargs)
        self.result["done"] += 1
        self.result["failed"] += times[0] == float("inf")
        self.result["at"] = time.time()
        if self.result["at"] - self._noted_s > EVERY_S:
            self._noted_s = self.result["at"]
            write_reply(self._reply, self.result)
        return times


def run_autotuner(kernel: str, answer: str) -> None:
    """Tune over the list as users do: one call of the decorated kernel."""
    import torch
    import triton

    from workbench import catalog
    from workbench.measurement import inputs
    from workbench.spec import values

    module = catalog.module_of(kernel)
    spec, sizes = module.listed, module.listed.bench[0]
    listed = [triton_config(values(c)) for c in configs_of(spec, sizes)]
    tuner = triton.autotune(configs=listed, key=list(spec.axes))(module.kernel)
    progress = Progress(tuner, answer, len(listed))
    given = inputs.make(spec, sizes, DTYPE, "cuda")
    module.launched(tuner, *given)
    torch.cuda.synchronize()
    best = tuner.best_config
    more = {
        "at": time.time(),
        "best": config_values(best),
        "best_s": tuner.configs_timings[best][0] / 1e3,
    }
    write_reply(answer, {**progress.result, **more})


def duel(kernel: str, configs: Sequence[Mapping[str, int]], answer: str) -> None:
    """Medians of configs in one final: in interleaved windows, each answer checked."""
    from workbench import catalog
    from workbench.measurement import worker
    from workbench.measurement.candidate import Candidate, Timed
    from workbench.measurement.protocol import Protocol

    spec = catalog.spec_of(kernel)
    worker.begin(worker.MeasureJob(kernel, dict(spec.bench[0]), DTYPE, Protocol()))
    choices = [Candidate.create(spec.impls[0].name, c) for c in configs]
    results, _ = worker.final(choices, [0.0] * len(choices))
    result = [
        {"median_s": r.timing.median_s, "low_s": r.timing.low_s, "high_s": r.timing.high_s}
        if isinstance(r, Timed)
        else {"reason": r.reason}
        for r in results
    ]
    write_reply(answer, result)


# Here: both sides


def theirs(kernel: str, folder: Path, limit_s: float) -> dict[str, Any]:
    """One tuning by triton.autotune in a fresh process, from the start of that process."""
    result, ended = task("autotune.py", "run_autotuner", limit_s, folder, kernel=kernel)
    return autotuner_times(result, ended)


def autotuner_times(result: dict[str, Any] | None, ended: Ended) -> dict[str, Any]:
    """What an autotuner had done when its process ended. `table_s` is its time from the start of
    the process; where it was not done, that is projected from the configs that it was through."""
    if not result or not result.get("done"):
        return {"why": ended.reason}
    since = result["at"] - ended.started_s
    done, of = result["done"], result["of"]
    if "best" in result:
        return {**result, "table_s": since, "whole": True}
    before = result["began"] - ended.started_s
    projected = before + (since - before) * of / done
    return {**result, "table_s": projected, "whole": False, "why": ended.reason}


def ours(kernel: str, folder: Path, limit_s: float, *more: str) -> Swept:
    """One sweep of the whole list in a fresh process."""
    return sweep("full", kernel, DTYPE, folder, limit_s, *more)


def report_sweep(what: str, result: Swept) -> None:
    """A line on one sweep."""
    if result.table_s is None:
        say(f"  sweep {what}: no table: {result.process.reason}")
        return
    say(
        f"  sweep {what}: {result.configs} configs, {result.binaries} binaries, table after "
        f"{result.table_s:.1f} s, final {result.final_s or 0:.1f} s, end {result.end_s:.1f} s, "
        f"split { ({k: round(v, 1) for k, v in result.split.items()}) }"
    )


def report_autotuner(what: str, result: Mapping[str, Any]) -> None:
    """A line on one tuning by triton.autotune."""
    if "table_s" not in result:
        say(f"  autotune {what}: nothing: {result['why']}")
        return
    whole = "" if result["whole"] else f" (projected: {result['done']} of {result['of']} configs)"
    say(f"  autotune {what}: {result['table_s']:.1f} s{whole}, {result['failed']} refused")


def both(name: str, context: argparse.Namespace, folder: Path, keep: Any) -> None:
    """Fill `keep` with all figures of one list, each as soon as it is known."""
    kernel = str(LISTS / f"{name}.py")
    left, right = folder / name / "sweep", folder / name / "autotune"
    right.mkdir(parents=True)
    runs = {"cold": [], "warm": ["--fresh"]} if context.warm else {"cold": []}
    for what, more in runs.items():
        result = ours(kernel, left, context.sweep_limit_s, *more)
        report_sweep(what, result)
        keep(f"sweep_{what}", result.plain)
    for what in runs if context.autotune_limit_s > 0 else ():
        tuned = theirs(kernel, right, context.autotune_limit_s)
        report_autotuner(what, tuned)
        keep(f"autotune_{what}", tuned)
        if not tuned.get("whole"):
            say("  autotune was not done, so its compile cache is not warm: no second run")
            break


def settle(name: str, result: dict[str, Any], folder: Path, keep: Any) -> None:
    """Both winners against each other."""
    kernel = str(LISTS / f"{name}.py")
    operands = {
        "sweep": result.get("sweep_cold", {}).get("winner"),
        "autotune": result.get("autotune_cold", {}).get("best"),
    }
    operands = {k: v for k, v in operands.items() if v}
    if not operands:
        return
    results, ended = task(
        "autotune.py", "duel", DUEL_S, folder / name / "sweep",
        kernel=kernel, configs=list(operands.values()),
    )  # fmt: skip
    if results is None:
        say(f"  no duel: {ended.reason}")
        return
    keep("duel", dict(zip(operands, results, strict=True)))
    say(f"  duel: {dict(zip(operands, results, strict=True))}")


HEADS = (
    "kernel", "configs", "binaries", "cache", "autotune s", "table s", "x", "final s", "x", "end s",
    "x", "configs/min", "sweep's winner us", "autotune's us",
)  # fmt: skip


def rows_of(name: str, result: Mapping[str, Any]) -> list[list[Any]]:
    """One line for the cold runs, one for the warm ones."""
    rows = []
    for what in ("cold", "warm"):
        mine, other = result.get(f"sweep_{what}", {}), result.get(f"autotune_{what}", {})
        if not mine and not other:
            continue
        base, duel_ = other.get("table_s"), result.get("duel", {})
        marked = None if base is None else f"{'' if other.get('whole') else '~'}{base:.1f}"
        row: list[Any] = [name, mine.get("configs"), mine.get("binaries"), what, marked]
        for key in ("table_s", "final_s", "end_s"):
            seconds = mine.get(key)
            row += [seconds, base / seconds if base and seconds else None]
        table_s = mine.get("table_s")
        row.append(60 * mine["configs"] / table_s if table_s else None)
        for operand in ("sweep", "autotune"):
            median = duel_.get(operand, {}).get("median_s") if what == "cold" else None
            row.append(median * 1e6 if median else None)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "kernels", nargs="*", default=NAMES, help="of benchmarks/lists; all four else"
    )
    parser.add_argument("--out", default="autotune.json", help="JSON file to write")
    parser.add_argument("--sweep-limit-s", type=float, default=150.0, help="of one sweep")
    parser.add_argument("--autotune-limit-s", type=float, default=420.0, help="of one tuning; or 0")
    parser.add_argument("--no-warm", dest="warm", action="store_false", help="cold runs alone")
    parser.add_argument("--task", nargs=2, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.task:
        name, given = wanted.task
        {"run_autotuner": run_autotuner, "duel": duel}[name](**json.loads(given))
        return
    results: dict[str, dict[str, Any]] = {}
    warm = run_command([sys.executable, "-c", WARM_UP], 180)
    say(f"imports once, into the page cache: {warm.reason}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        for name in wanted.kernels:
            say(name)
            mine = results.setdefault(name, {})

            def keep(key: str, value: Any, mine: dict[str, Any] = mine) -> None:
                mine[key] = value
                save(wanted.out, results)

            try:
                both(name, wanted, Path(place), keep)
                settle(name, mine, Path(place), keep)
            except Exception as error:
                keep("error", repr(error))
                say(f"  {name} ended: {error!r}")
    show(HEADS, [row for name, mine in results.items() for row in rows_of(name, mine)])
    print(
        "x: how often the sweep's time goes into triton.autotune's for the same list; ~ projected"
    )


if __name__ == "__main__":
    main()
