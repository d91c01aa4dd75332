"""How near the launch that workbench.ops takes comes to the best config of a sweep of all Impls.

    python benchmarks/ops_choice.py --seed 1 --count 60 --out ops_choice.json.xz    on a GPU
    python benchmarks/ops_choice.py --read ops_choice.json.xz                       anywhere

Sizes are drawn by a seed over all kernels that have several Impls: rows from 1 to 16,384, widths
from 128 to 200,000, one in four of them ragged. Each is swept with default options in a new HOME,
so that nothing is tuned. The sweep times what launches without a config run today in its final, in
turns with the others. `--read` asks for the choice once more, as the sources are now, and takes its
time from the stored sweep; a config that was not timed there is counted apart.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runs import run_command, say, show

from workbench import catalog
from workbench.device.hardware import device_named
from workbench.spec import values
from workbench.tuner.choice import LaunchChoice, choices_of

LIMIT_S = 180.0
NEAR, FAR = 1.03, 1.10
ROWS = ("cross_entropy", "cumsum", "fused_add_rms_norm", "layer_norm", "reduce", "rms_norm")
PRODUCTS = ("fp8_block_matmul", "fp8_matmul", "matmul", "q4_k_matmul")
# Kernels of rows stand twice, for their sizes differ most. Not drawn: patch_embed and
# grouped_matmul, whose sizes are those of a model.
KERNELS = (*2 * (*ROWS, "softmax", "softmax"), *PRODUCTS, "matmul", "matmul", "matvec", "lora",
           "lora_delta", "attention", "causal_attention", "wkv6", "wkv7")  # fmt: skip
ELEMENTS = 2**28  # of one tensor, at most
Sizes = dict[str, int]


def draw_problems(seed: int, count: int) -> Iterator[tuple[str, Sizes]]:
    """Yield kernels and sizes, each kernel in its turn, the order drawn by the seed."""
    dice, waiting = random.Random(seed), list[str]()
    for _ in range(count):
        waiting = waiting or dice.sample(KERNELS, len(KERNELS))
        kernel = waiting.pop()
        yield kernel, sizes_of(kernel, dice)


def sizes_of(kernel: str, dice: random.Random) -> Sizes:
    """Return sizes of one kernel, drawn evenly on a logarithmic scale."""
    if kernel in ROWS or kernel == "softmax":
        rows, width = draw_integer(dice, 1, 16384), draw_integer(dice, 128, 200_000)
        width = multiple(width, dice.choice((1, 8, 128, 1024)))
        return {"M": min(rows, ELEMENTS // width), "V" if kernel == "cross_entropy" else "N": width}
    wide = {axis: multiple(draw_integer(dice, 512, 14336), 256) for axis in "NK"}
    if kernel in PRODUCTS:
        return {"M": draw_integer(dice, 1, 8192), **wide}
    if kernel == "matvec":
        return {"M": 1, **wide}
    if kernel in ("lora", "lora_delta"):
        return {"M": draw_integer(dice, 16, 8192), **wide, "r": dice.choice((8, 16, 32, 64))}
    if kernel in ("wkv6", "wkv7"):
        batch = dice.choice((1, 2, 4, 8))
        return {
            "B": batch,
            "T": draw_integer(dice, 1, 8192 // batch),
            "H": dice.choice((12, 32)),
            "N": 64,
        }
    width, length = dice.choice((64, 128, 192, 256)), draw_integer(dice, 128, 16384)
    heads = {"Hkv": dice.choice((4, 8, 16)), "G": dice.choice((1, 4)), "D": width}
    one = {"B": max(1, min(8, 16384 // length)), "S": length, **heads}
    return one if kernel == "causal_attention" else {**one, "T": length}


def draw_integer(dice: random.Random, least: int, most: int) -> int:
    """Return an integer drawn evenly on a logarithmic scale."""
    return round(math.exp(dice.uniform(math.log(least), math.log(most))))


def multiple(number: int, of: int) -> int:
    """Return the nearest positive multiple."""
    return max(round(number / of), 1) * of


def sweep_problem(kernel: str, sizes: Sizes) -> dict[str, Any]:
    """Sweep one problem in a new HOME, and return the times of its configs in microseconds."""
    words = ["tile_size", "--kernel", kernel, "--sizes", text_of(sizes)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "result.json")
        words += ["--dtype", dtype_of(kernel), "--out", folder, "--json", str(path)]
        command = [sys.executable, "-m", "workbench.sweep", *words]
        ended = run_command(command, LIMIT_S, HOME=folder)
        result = {"kernel": kernel, "sizes": sizes, "dtype": dtype_of(kernel), "times": []}
        if ended.code or not path.exists():
            return {**result, "failure": ended.reason}
        run = json.loads(path.read_text(encoding="utf-8"))["runs"][0]
    ours = (record for record in run["measured"] if record["case"]["backend"] == "triton")
    return {**result, "device": run["run"]["device"], "times": list(map(timed_config, ours))}


def timed_config(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a measured record."""
    case, timing = record["case"], record["timing"]
    return {
        "impl": case["impl"],
        "config": case["config"],
        "phase": record["phase"],
        "us": round(timing["median_s"] * 1e6, 3),
    }


def dtype_of(kernel: str) -> str:
    """Return the dtype that a kernel is swept in."""
    return "fp8" if kernel.startswith("fp8") else "bf16"


def text_of(sizes: Mapping[str, int]) -> str:
    """Return sizes as the command line takes them."""
    return ",".join(f"{axis}={extent}" for axis, extent in sizes.items())


def untuned_choices(problem: Mapping[str, Any]) -> list[LaunchChoice]:
    """Return the Impls that take a problem's sizes with the configs that they are launched with
    where nothing is tuned, the one that `workbench.ops` takes first."""
    spec, device = catalog.spec_of(problem["kernel"]), device_named(problem["device"])
    nothing = Path(tempfile.gettempdir(), "nothing-is-tuned", "tuned.json")
    at = problem["dtype"], problem["sizes"]
    return choices_of(spec, device, *at, path=nothing, versions={})


def ratio(problem: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return the Impls taken and best, and the time of the choice over the best one's; None where
    the choice was not timed. Times of a final are compared where both have one."""
    ours = [one for one in problem["times"] if one["phase"] != "hot"]
    finals = [one for one in ours if one["phase"] == "final"]
    choices = untuned_choices(problem)
    if not ours or not choices:
        return "nothing was timed", None
    impl, config = choices[0].impl.name, dict(values(choices[0].config))
    best = min(finals or ours, key=lambda one: one["us"])
    words = f"{impl} for {best['impl']}" if impl != best["impl"] else impl
    taken = [o for o in (*finals, *ours) if o["impl"] == impl and o["config"] == config]
    if not taken:
        return words, None
    if taken[0]["phase"] != "final":
        best = min(ours, key=lambda one: one["us"])
    return words, taken[0]["us"] / best["us"]


def read(problems: Sequence[Mapping[str, Any]]) -> None:
    """Print each problem's ratio, and the shares of all."""
    rows, known = [], []
    for problem in problems:
        words, over = ratio(problem)
        rows.append((problem["kernel"], text_of(problem["sizes"]), words, over and f"{over:.3f}"))
        known += [] if over is None else [over]
    show(("kernel", "sizes", "Impl taken, best", "over the best"), rows)
    if known:
        near, far = (sum(one <= limit for one in known) for limit in (NEAR, FAR))
        say(f"{len(known)} of {len(problems)}: within 3 % {near}, within 10 % {far}, "
            f"worst {max(known):.2f}")  # fmt: skip


def main(given: Sequence[str] | None = None) -> int:
    """Sweep the problems and keep their times, or read kept ones; print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="leave out so many of them")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds, of all")
    parser.add_argument("--out", default="ops_choice.json.xz")
    parser.add_argument("--read", type=Path)
    options = parser.parse_args(given)
    if options.read:
        read(json.loads(lzma.decompress(options.read.read_bytes())))
        return 0
    problems, until = [], time.monotonic() + options.limit
    for kernel, sizes in list(draw_problems(options.seed, options.count))[options.first :]:
        if time.monotonic() > until:
            break
        problems.append(sweep_problem(kernel, sizes))
        last = problems[-1]
        say(f"{kernel} {text_of(sizes)} {last.get('failure', '')}")
        Path(options.out).write_bytes(lzma.compress(json.dumps(problems).encode()))
    read([one for one in problems if one["times"]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
