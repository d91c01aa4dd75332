"""Nine faults among forty good configs: what each costs the sweep, and `triton.autotune` beside it.

The sweep runs once without the faults and once with them, each with an empty compile cache and a
database of its own. All nine must be lost, each by its own reason, and the winner be the same.

    python benchmarks/faults.py --out faults.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune import Progress, configs_of
from runs import HERE, Swept, epoch_s, save, say, show, sweep, task, write_reply

KERNEL = str(HERE / "faulty_kernel.py")
DTYPE = "bf16"
# What a reason must hold to name its fault; one of these.
TELLING = {
    1: ("shared memory",),
    2: ("illegal memory access", "illegal address"),
    3: ("misaligned address",),
    4: ("longer than",),
    5: ("device-side assert", "assert"),
    6: ("no block is this small",),
    7: ("died",),
    8: ("died",),
    9: ("NaN",),
}


# In a process of its own: triton.autotune


def tuned_space(faults: Sequence[int], good: int, answer: str) -> None:
    """Tune over the good configs (the first `good` of them; 0: all) and these faults, in the order
    of the sweep's space."""
    import torch
    import triton

    from workbench import catalog
    from workbench.measurement import inputs

    module = catalog.module_of(KERNEL)
    sizes = dict(module.faulty.bench[0])
    space = configs_of(module.faulty, sizes)
    kept = [c for c in space if not c.fault][: good or None]
    listed = [faulty_config(module, c) for c in space if c.fault in faults or c in kept]
    tuner = triton.autotune(configs=listed, key=["N"])(module._doubled)
    progress = Progress(tuner, answer, len(listed))
    write_reply(answer, progress.result)
    (x,) = inputs.make(module.faulty, sizes, DTYPE, "cuda")
    y = torch.empty_like(x)
    tuner[lambda meta: (triton.cdiv(sizes["N"], meta["BLOCK_N"]),)](x, y, sizes["N"])
    torch.cuda.synchronize()
    right = bool(torch.equal(y, x + x))
    best = str(tuner.best_config)
    write_reply(answer, {**progress.result, "best": best, "right": right})


def faulty_config(module: Any, config: Any) -> Any:
    """A config as `triton.Config`. What the launcher does at one becomes its hook or its option."""
    import ctypes

    import triton

    knobs = {"BLOCK_N": config.block_n, "FAULT": config.fault}
    if config.fault == 5:
        knobs["debug"] = True
    hook = (lambda given: ctypes.string_at(0)) if config.fault == module.SEGFAULT else None
    stages = module.DEEP if config.fault == 1 else 3
    return triton.Config(knobs, num_warps=config.num_warps, num_stages=stages, pre_hook=hook)


# Here


def fault_failures(result: Swept) -> dict[int, dict[str, Any]]:
    """Each fault's failure, with the seconds from the outcome before it to its own. The recovery
    from a fault falls to what comes next, so that faults in a row pay for each other."""
    moments = sorted({epoch_s(o.at) for o in outcomes(result)})
    rows: dict[int, dict[str, Any]] = {}
    for failure in result.failures:
        fault = failure.case.config.get("fault", 0)
        at = epoch_s(failure.at)
        before = [m for m in moments if m < at]
        rows[fault] = {
            "stage": failure.stage, "reason": failure.reason,
            "seconds": at - before[-1] if before else None,
            "named": any(word in failure.reason for word in TELLING.get(fault, ())),
        }  # fmt: skip
    return rows


def outcomes(result: Swept) -> list[Any]:
    """What the sweep obtained of its configs, refused ones left out."""
    return [
        e for e in result.events if hasattr(e, "case") and getattr(e, "stage", None) != "refused"
    ]


def winner_of(result: Swept) -> str | None:
    """The winning config in words."""
    return result.winner.case.label if result.winner else None


def fate(result: Mapping[str, Any] | None, ended: Any) -> dict[str, Any]:
    """What became of triton.autotune."""
    result = result or {}
    whole = "best" in result
    how = "chose " + result["best"] + (", right" if result["right"] else ", a WRONG answer") \
        if whole else ended.reason  # fmt: skip
    return {
        "done": result.get("done"), "of": result.get("of"), "failed": result.get("failed"),
        "seconds": ended.wall_s, "whole": whole, "how": how,
    }  # fmt: skip


def sweeps(folder: Path, limit_s: float, keep: Any) -> dict[str, Swept]:
    """Without and with the faults."""
    results = {}
    for what, name in (("clean", "tile_size"), ("faulty", "full")):
        results[what] = sweep(name, KERNEL, DTYPE, folder / what, limit_s)
        keep(what, results[what].plain)
        table_s, code = results[what].table_s, results[what].process.code
        text = f"table after {table_s:.1f} s" if table_s else results[what].process.reason
        say(
            f"{what}: exit {code}, {results[what].configs} configs, {text}, "
            f"{winner_of(results[what])}"
        )
    return results


def show_table(result: Mapping[str, Swept], names: Mapping[int, str], keep: Any) -> None:
    """The table, and what it comes to."""
    rows = fault_failures(result["faulty"])
    keep("faults", rows)
    keep("winners", {what: winner_of(one) for what, one in result.items()})
    lines = []
    for fault, name in names.items():
        row = rows.get(fault, {})
        named = "yes" if row.get("named") else "NO"
        lines.append([name, row.get("stage", "NOT LOST"), named, row.get("seconds"),
                      str(row.get("reason", ""))[:90]])  # fmt: skip
    show(("fault", "lost at", "named", "seconds", "reason"), lines)
    others = sorted(set(rows) - set(names))
    clean, faulty = result["clean"].table_s, result["faulty"].table_s
    print(f"lost {len(set(rows) & set(names))} of {len(names)}; good configs lost: {len(others)}")
    if clean and faulty:
        more = faulty - clean
        print(f"table {clean:.1f} s without, {faulty:.1f} s with: {more / len(names):.2f} s each")
    same = winner_of(result["clean"]) == winner_of(result["faulty"])
    text = ", ".join(f"{what} {winner_of(one)}" for what, one in result.items())
    print(f"winners: {text}: {'the same' if same else 'NOT the same'}")


def compare_autotune(
    context: argparse.Namespace, names: Mapping[int, str], folder: Path, keep: Any
) -> None:
    """triton.autotune over the same space; with --each also over one fault at a time."""
    asks: dict[str, tuple[list[int], int, float]] = {}
    if context.autotune_limit_s > 0:
        asks["all nine"] = (list(names), 0, context.autotune_limit_s)
    if context.each:
        asks |= {name: ([fault], 4, context.each_limit_s) for fault, name in names.items()}
    fates = {}
    for what, (faults, good, limit_s) in asks.items():
        result, ended = task(
            "faults.py", "tuned_space", limit_s, folder, faults=faults, good=good
        )  # fmt: skip
        fates[what] = fate(result, ended)
        say(f"autotune with {what}: {fates[what]}")
        keep("autotune", fates)
    heads = ("triton.autotune with", "configs done", "of", "seconds", "end")
    show(heads, [[w, f["done"], f["of"], f["seconds"], f["how"][:100]] for w, f in fates.items()])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweep-limit-s", type=float, default=120.0, help="of one sweep")
    parser.add_argument("--autotune-limit-s", type=float, default=60.0, help="of its tuning; or 0")
    parser.add_argument("--each", action="store_true", help="autotune each fault by itself too")
    parser.add_argument("--each-limit-s", type=float, default=20.0)
    parser.add_argument("--out", default="faults.json", help="JSON file to write")
    parser.add_argument("--task", nargs=2, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.task:
        tuned_space(**json.loads(wanted.task[1]))
        return
    from workbench import catalog

    names = catalog.module_of(KERNEL).FAULTS
    results: dict[str, Any] = {}

    def keep(key: str, value: Any) -> None:
        results[key] = value
        save(wanted.out, results)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place)
        both: dict[str, Swept] = {}
        try:
            both = sweeps(folder, wanted.sweep_limit_s, keep)
        except Exception as error:
            say(f"the sweeps ended: {error!r}")
        try:
            compare_autotune(wanted, names, folder, keep)
        except Exception as error:
            say(f"autotune ended: {error!r}")
        if len(both) == 2:
            show_table(both, names, keep)


if __name__ == "__main__":
    main()
