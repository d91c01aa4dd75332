"""Times of a kernel's configs at drawn sizes, by which a launch with nothing tuned chooses.

    python benchmarks/launch_times.py softmax reduce --count 100 --limit 300    on a GPU
    python benchmarks/launch_times.py matmul --sizes M=96,N=6144,K=4096         on a GPU
    python benchmarks/launch_times.py --check                                   anywhere

The configs are those of the kernel's table, or else those within 12 % of the best at any size of
data/ops_choice_h100.json.xz. All are compiled for every size first, on all cores of the host. Each
is then timed on cold data: of 5 samples of a graph of 0.12 ms the median. After each size the table
is written with what was timed, by default over the one that comes with the workbench; then train
`launch_trees.py` anew. `--check` takes each size out of its table in turn, and compares the config
that the others choose, by their mean, with the best one.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import lzma
import math
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ops_choice import FAR, NEAR, PRODUCTS, Sizes, dtype_of, multiple
from runs import HERE, say, show

from workbench import catalog
from workbench.data.environment import fingerprint
from workbench.device import hardware
from workbench.device.bounds import cache_bytes
from workbench.device.calibration import numbers_text, plain_numbers
from workbench.device.launch_times import FAR as FAR_SIZES
from workbench.device.launch_times import LAUNCHES, LaunchTimes, launch_times
from workbench.spec import Impl
from workbench.tuner.design import halton

SEEN = HERE / "data" / "ops_choice_h100.json.xz"
NEAR_BEST = 1.12
WIDEST = 2**27  # elements of a tensor of rows, at most
GRAPH_S, WINDOW_S, SAMPLES = 1.2e-4, 2e-3, 5
HEADS = ("kernel", "sizes", "within 3 %", "within 10 %", "worst", "mean")
SLOW = 3.0  # times the best so far, and HOST_S: not timed
HOST_S = 3e-4  # that the host's part of a launch may take of a single call
Times = dict[tuple[str, str], float]  # microseconds by Impl and config


def sizes_of(kernel: str, i: int) -> Sizes:
    """Return the i-th sizes of a kernel; they fill a box in octaves evenly (Halton 1960)."""
    at, dice = [halton(i, base) for base in (2, 3, 5, 7)], random.Random(i)

    def geometric_point(least: int, most: int, share: float) -> int:
        return round(least * (most / least) ** share)

    wide = {
        axis: multiple(geometric_point(512, 14336, at[1 + n]), 256) for n, axis in enumerate("NK")
    }
    if kernel in PRODUCTS or kernel == "matvec":
        return {"M": 1 if kernel == "matvec" else geometric_point(1, 8192, at[0]), **wide}
    if kernel in ("lora", "lora_delta"):
        return {"M": geometric_point(16, 8192, at[0]), **wide, "r": (8, 16, 32, 64)[int(4 * at[3])]}
    if kernel in ("wkv6", "wkv7"):
        batch = (1, 2, 4, 8)[int(4 * at[1])]
        heads = {"H": (12, 32)[int(2 * at[2])], "N": 64}
        return {"B": batch, "T": geometric_point(1, 8192 // batch, at[0]), **heads}
    width = multiple(geometric_point(128, 200_000, at[1]), dice.choice((1, 1, 8, 128, 1024)))
    rows = min(geometric_point(1, 16384, at[0]), WIDEST // width)
    return {"M": rows, "V" if kernel == "cross_entropy" else "N": width}


def configs_of(kernel: str) -> list[tuple[str, Mapping[str, int]]]:
    """Return the configs to time, each with its Impl's name."""
    if table := launch_times("sm_90", kernel):
        return list(table.configs)
    configs: dict[tuple[str, str], tuple[str, Mapping[str, int]]] = {}
    for problem in json.loads(lzma.decompress(SEEN.read_bytes())):
        times = [one for one in problem["times"] if one["phase"] == "first_pass"]
        if problem["kernel"] == kernel and times:
            limit = NEAR_BEST * min(one["us"] for one in times)
            for one in times:
                if one["us"] <= limit:
                    configs[one["impl"], numbers_text(one["config"])] = one["impl"], one["config"]
    return [configs[key] for key in sorted(configs)]


def launches(kernel: str, sizes: Sizes) -> Iterator[tuple[tuple[str, str], Impl, Any]]:
    """Yield the key, the Impl and the config of each launch that takes these sizes here."""
    spec, device = catalog.spec_of(kernel), hardware.live()
    assert device is not None
    for name, numbers in configs_of(kernel):
        impl = next((i for i in spec.impls if i.name == name and i.backend == "triton"), None)
        if impl is None or impl.choices().keys() != numbers.keys():
            continue
        config = impl.config(**numbers)
        if impl.rejection_reason(config, device.limits, dtype_of(kernel), sizes) is None:
            yield (name, numbers_text(numbers)), impl, config


def compile_all(job: tuple[str, Sizes]) -> str:
    """Launch every config of a kernel once, for its machine code, which can depend on every size.
    Returns the first error."""
    import torch

    from workbench.measurement import inputs

    kernel, sizes = job
    message = ""
    try:
        given = inputs.make(catalog.spec_of(kernel), sizes, dtype_of(kernel), "cuda", 0)
        for _, impl, config in launches(kernel, sizes):
            try:
                impl(*given, config=config)
            except Exception as error:
                message = message or repr(error)[:200]
        torch.cuda.synchronize()
    except Exception as error:
        message = repr(error)[:200]
    torch.cuda.empty_cache()
    return message


def time_configs(kernel: str, sizes: Sizes) -> Times:
    """Return the times of all configs at these sizes, but of those that are far slower."""
    import torch

    from workbench.measurement.bench import Bench
    from workbench.measurement.protocol import Protocol

    spec, device = catalog.spec_of(kernel), hardware.live()
    assert device is not None
    bench = Bench(spec, sizes, dtype_of(kernel), cache_bytes(device), 0.0, Protocol())
    result, best_s = Times(), math.inf
    for key, impl, config in launches(kernel, sizes):
        rotation = bench.calls(impl, config)
        rotation.restored_call()
        torch.cuda.synchronize()
        estimate_s = min(rotation.samples(3))
        if estimate_s <= SLOW * best_s + HOST_S:
            entrant = bench.choose_method(rotation, estimate_s, GRAPH_S)
            samples = sorted(entrant.window(WINDOW_S, SAMPLES).samples_s)
            median_s = samples[len(samples) // 2]
            result[key], best_s = round(median_s * 1e6, 3), min(best_s, median_s)
        rotation.forget()
    del bench
    torch.cuda.empty_cache()
    return result


def write_table(
    path: Path, about: Mapping[str, str], lines: Sequence[tuple[Sizes, str, Times]]
) -> None:
    """Write a kernel's table, whole or not at all. Equal tables are equal files."""
    from workbench.data.files import write_file

    keys = sorted({key for *_, times in lines for key in times})
    text = io.StringIO()
    text.writelines(f"# {name}: {words}\n" for name, words in about.items())
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["sizes", "dtype", *(" ".join(key) for key in keys)])
    for sizes, dtype, times in lines:
        cells = [f"{times[key]:.4g}" if key in times else "" for key in keys]
        table.writerow([numbers_text(sizes), dtype, *cells])
    write_file(path, gzip.compress(text.getvalue().encode(), mtime=0), make_folder=True)


def read_table(kernel: str) -> tuple[dict[str, str], list[tuple[Sizes, str, Times]]]:
    """Return the head of a kernel's table, and its lines."""
    table = launch_times("sm_90", kernel)
    if table is None:
        return {}, []
    keys = [(name, numbers_text(numbers)) for name, numbers in table.configs]
    rows = zip(table.sizes, table.dtypes, table.us.tolist(), strict=True)
    return dict(table.metadata), [
        (dict(sizes), dtype, {k: us for k, us in zip(keys, times, strict=True) if us == us})
        for sizes, dtype, times in rows
    ]


def compile_and_time(jobs: Sequence[tuple[str, Sizes]], limit_s: float) -> Iterator[Times]:
    """Yield the times of one job after the other, until the time is over."""
    with multiprocessing.get_context("spawn").Pool(max(1, os.cpu_count() or 2)) as pool:
        for message in filter(None, pool.imap_unordered(compile_all, jobs)):
            say(message)
    until = time.monotonic() + limit_s
    for kernel, sizes in jobs:
        if time.monotonic() > until:
            say("the time is over")
            return
        times = time_configs(kernel, sizes)
        say(f"{kernel} {numbers_text(sizes)}: {len(times)} configs")
        yield times


def measure(jobs: Sequence[tuple[str, Sizes]], limit_s: float, folder: Path, command: str) -> None:
    """Time the kernels of the jobs at their sizes, and add the times to their tables."""
    import torch

    environment = fingerprint(None, None)
    about = {
        "gpu": torch.cuda.get_device_name(), "date": time.strftime("%Y-%m-%d"),
        "versions": ", ".join(f"{n} {environment.versions[n]}" for n in ("torch", "triton")),
        "unit": "microseconds, median of cold calls in a graph",
    }  # fmt: skip
    known = {kernel: read_table(kernel) for kernel, _ in jobs}
    tables = {kernel: lines for kernel, (_, lines) in known.items()}
    for (kernel, sizes), times in zip(jobs, compile_and_time(jobs, limit_s), strict=False):
        if times:
            others = [line for line in tables[kernel] if line[:2] != (sizes, dtype_of(kernel))]
            tables[kernel] = [*others, (sizes, dtype_of(kernel), times)]
            before = known[kernel][0]
            sources = [before.get("source"), f"benchmarks/launch_times.py {command}"]
            head = {**about, "source": "; ".join(filter(None, sources))}
            head |= {"defaults": before["defaults"]} if "defaults" in before else {}
            write_table(folder / f"{kernel}.csv.gz", head, tables[kernel])


def left_out(table: LaunchTimes) -> list[float]:
    """Return, of each size, the time of the config that the mean of the others chooses over the
    best."""
    ratios = []
    for n, (sizes, dtype) in enumerate(zip(table.sizes, table.dtypes, strict=True)):
        mean, octaves = table.mean(dtype, sizes, without={n})
        if octaves <= FAR_SIZES:
            expected = np.where(np.isnan(table.us[n]), np.inf, mean)
            ratios.append(float(table.us[n, expected.argmin()] / np.nanmin(table.us[n])))
    return ratios


def shares(ratios: Sequence[float]) -> tuple[int, int, int, str, str]:
    """Return the number of sizes, how many are near the best and not far, the worst, the mean."""
    near, far = (sum(one <= limit for one in ratios) for limit in (NEAR, FAR))
    mean = sum(map(math.log, ratios)) / max(1, len(ratios))
    return len(ratios), near, far, f"{max(ratios, default=1.0):.2f}", f"{mean:.1%}"


def main(given: Sequence[str] | None = None) -> int:
    """Measure tables, or check those that are there."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kernels", nargs="*")
    parser.add_argument("--first", type=int, default=1, help="number of the first drawn size")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--sizes", nargs="*", default=[], help="time these, not drawn ones")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds of timing")
    parser.add_argument("--out", type=Path, default=LAUNCHES / "sm_90", help="folder of tables")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(given)
    there = sorted(path.name.partition(".")[0] for path in LAUNCHES.glob("sm_90/*.csv.gz"))
    kernels = options.kernels or there
    if options.check:
        known = {kernel: launch_times("sm_90", kernel) for kernel in kernels}
        rows = [(name, *shares(left_out(table))) for name, table in known.items() if table]
        show(HEADS, rows)
    else:
        named = [plain_numbers(text) for text in options.sizes]
        drawn = [] if named else range(options.first, options.first + options.count)
        jobs = [(kernel, sizes) for sizes in named for kernel in kernels]
        jobs += [(kernel, sizes_of(kernel, n)) for n in drawn for kernel in kernels]
        command = " ".join(given if given is not None else sys.argv[1:])
        measure(jobs, options.limit, options.out, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
