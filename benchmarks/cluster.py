"""Two GPUs of one host against one: seconds of a sweep of several sizes to the same tables, and
what a killed worker costs. Needs a host with two GPUs and the extra `cluster`.

    python benchmarks/cluster.py --impl tiles --configs 24 --total-s 150 --folder kept --out c.json
    python benchmarks/cluster.py --workload run.workload --trust

Of each size so many configs are measured (--configs), in the order of the sweep. The first part
compiles, on both GPUs' workers; it may be cut off, and what it compiled stays. Each part is written
to --out as it ends, also one that was cut off; a part that ended well is not run again. With
--total-s the parts share that time: compile, two, one, killed.

With --workload a recorded workload is tuned instead. With --stand-in no GPU is needed: each of 88
configs takes 0.3 s of sleep in place of a measurement, which shows the scheduling alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from runs import ROOT, Ended, read_events, run_command, save, say, show

LEAST_GAIN = 1.7  # times as fast with two GPUs
SIZES = ("M=4096,N=4096,K=4096", "M=8192,N=4096,K=4096", "M=4096,N=8192,K=4096",
         "M=8192,N=8192,K=4096")  # fmt: skip
TOY_SIZES = tuple(f"N={1024 * 2**i}" for i in range(8))
SLEEP_S = 0.3  # of a stand-in's config: six of a GPU
TESTS = ROOT / "tests"
# Workers, and whether one of them is killed
PARTS = {"compile": (2, False), "two": (2, False), "one": (1, False), "killed": (2, True)}
LEAST_S = 20.0  # a part needs: processes start and import for about so long


def command(wanted: argparse.Namespace, folder: Path, workers: int) -> list[str]:
    """The command line of one run, with a database, pages and events of its own."""
    program = ["-m", "workbench"]
    if wanted.stand_in:
        program = [str(TESTS / "cluster_program.py")]
    words = [sys.executable, *program]
    own = ["--out", str(folder), "--database", f"sqlite:///{folder}/history.db", "--quiet"]
    own += ["--workers", str(workers)]
    if wanted.workload:
        more = ["--tuned", str(folder / "tuned.json"), "--budget", wanted.budget]
        trust = ["--trust"] if wanted.trust else []
        return [*words, "workload", "tune", wanted.workload, *own, *more, *trust]
    kernel = str(folder / "toy.py") if wanted.stand_in else wanted.kernel
    sizes = [word for text in wanted.sizes for word in ("--sizes", text)]
    more = ["--events-file", str(folder / "events.jsonl")]
    more += ["--budget", str(wanted.configs)] if wanted.configs else []
    more += ["--impl", wanted.impl] if wanted.impl else []
    return [*words, "sweep", wanted.sweep, "--kernel", kernel, *sizes, *own, *more]


def prepare_folder(wanted: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Make the folder of a run. Gives the environment variables that it adds."""
    shutil.rmtree(folder, ignore_errors=True)  # of a part that was cut off
    folder.mkdir(parents=True)
    cache = {"TRITON_CACHE_DIR": str(folder.parent / "triton")}  # compiled once for all runs
    if not wanted.stand_in:
        return cache
    sys.path.insert(0, str(TESTS))
    from nullside import kernel_in

    from workbench.catalog.source import load_kernel

    kernel = kernel_in(folder)
    (folder / "hashes.json").write_text(json.dumps(dict(load_kernel(str(kernel)).hashes)))
    for name in "0123":
        (folder / f"cluster-{name}.json").write_text(json.dumps({"sleep": SLEEP_S}))
    path = os.pathsep.join([str(ROOT), str(TESTS)])
    return {**cache, "STANDIN": str(folder), "PYTHONPATH": path}


def tables(wanted: argparse.Namespace, folder: Path) -> dict[str, list[str]]:
    """Which configs have a time, by sizes; of a workload the entries without their times."""
    if wanted.workload:
        file = folder / "tuned.json"
        entries = json.loads(file.read_text())["entries"] if file.exists() else []
        return {f"{e['function']} {e['key']}": [str(e["config"])] for e in entries}
    from workbench.data.record import Record

    known: dict[str, set[str]] = {}
    for event in read_events(folder / "events.jsonl"):
        if isinstance(event, Record) and event.phase == "first_pass":
            known.setdefault(str(dict(event.case.sizes)), set()).add(event.case.label)
    return {sizes: sorted(labels) for sizes, labels in sorted(known.items())}


def run(
    wanted: argparse.Namespace, folder: Path, workers: int, kill: bool, limit_s: float
) -> dict[str, Any]:
    """One run in a fresh process. With `kill` one worker of it is killed when work is under way."""
    also = prepare_folder(wanted, folder)
    watcher = threading.Thread(target=kill_worker, args=(folder,), daemon=True)
    if kill:
        watcher.start()
    ended: Ended = run_command(command(wanted, folder, workers), limit_s, **also)
    return {
        "workers": workers, "exit": ended.code, "wall_s": ended.wall_s,
        "at_work_s": work_span_s(folder), "tables": tables(wanted, folder), "said": ended.text,
        "lost": [f.case.label for f in failures(folder) if f.cause == "crash"],
    }  # fmt: skip


def failures(folder: Path) -> list[Any]:
    from workbench.data.record import Failure

    return [e for e in read_events(folder / "events.jsonl") if isinstance(e, Failure)]


def work_span_s(folder: Path) -> float | None:
    """From the start of the first run to the last outcome: without the start of the processes."""
    from datetime import datetime

    from workbench.data.record import Failure, Record, Run

    events = read_events(folder / "events.jsonl")
    begun = [e.started for e in events if isinstance(e, Run)]
    ended = [e.at for e in events if isinstance(e, (Record, Failure))]
    if not begun or not ended:
        return None
    first, last = (datetime.fromisoformat(t) for t in (min(begun), max(ended)))
    return (last - first).total_seconds()


def kill_worker(folder: Path) -> None:
    """Kill a Dask worker once some outcomes are stored: a child of the command that has children of
    its own, or one that `spawn_main` began."""
    while not _has_results(folder):
        time.sleep(0.1)
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout
    for line in listed.splitlines():
        pid, _, words = line.strip().partition(" ")
        if "spawn_main" in words and _is_of(int(pid), folder):
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
            say(f"killed the worker {pid}")
            return


def _has_results(folder: Path) -> bool:
    files = [*folder.glob("events.jsonl"), *folder.glob("*/events.jsonl")]
    return any(f.read_bytes().count(b'"type":"Record"') > 5 for f in files)


def _is_of(pid: int, folder: Path) -> bool:
    """Whether a process belongs to the run in this folder: the command line of its ancestors."""
    with suppress(OSError, ValueError, IndexError):
        while pid > 1:
            if str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
            pid = int(re.findall(r"\) \S (\d+)", Path(f"/proc/{pid}/stat").read_text())[0])
    return False


def rows_of(result: dict[str, Any]) -> list[list[Any]]:
    """What it comes to."""
    rows: list[list[Any]] = []
    for name in ("one", "two", "killed"):
        if one := result.get(name):
            many = sum(map(len, one["tables"].values()))
            rows.append(
                [name, one["exit"], one["wall_s"], one["at_work_s"], many, len(one["lost"])]
            )
    return rows


def verdict(result: dict[str, Any]) -> Sequence[str]:
    """One line for each thing that is asked."""
    one, two, killed = (result.get(n) for n in ("one", "two", "killed"))
    if not (one and two):
        return ["no ratio: the runs with one and with two GPUs are needed"]
    if late := [n for n in ("one", "two") if result[n]["exit"] is None]:
        return [f"no ratio: cut off at its limit: {', '.join(late)}"]
    lines = [
        f"wall time: two GPUs are {one['wall_s'] / two['wall_s']:.2f}x as fast; {LEAST_GAIN}x asked"
    ]
    if one["at_work_s"] and two["at_work_s"]:
        ratio = one["at_work_s"] / two["at_work_s"]
        lines.append(f"first run to last outcome: {ratio:.2f}x")
    same = one["tables"] == two["tables"]
    lines.append(f"the same table: {'yes' if same else 'no'}{_common(one, two)}")
    if killed:
        same = killed["tables"] == one["tables"]
        lines.append(f"after a kill the same table: {'yes' if same else 'no'}")
    return lines


def _common(one: Mapping[str, Any], two: Mapping[str, Any]) -> str:
    """How many times the two have of the same configs: with --configs the model ranks, and it knows
    what other sizes gave, which depends on the order in which they end."""
    a, b = ({(n, label) for n, of in each["tables"].items() for label in of} for each in (one, two))
    return f" ({len(a & b)} configs in both, {len(a - b)} and {len(b - a)} in one alone)"


def unfinished_parts(result: Mapping[str, Any], stand_in: bool) -> list[str]:
    """Parts that have not ended well yet, in order. A stand-in compiles nothing."""
    parts = [name for name in PARTS if not (stand_in and name == "compile")]
    return [name for name in parts if result.get(name, {}).get("exit") != 0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernel", default="matmul")
    parser.add_argument("--sweep", default="tile_size")
    parser.add_argument("--sizes", action="append", help="repeated; four of matmul by default")
    parser.add_argument("--impl", help="of the kernel; all by default")
    parser.add_argument("--workload", help="tune this recorded workload instead")
    parser.add_argument("--budget", default="20m", help="of a workload; it must not end it early")
    parser.add_argument("--trust", action="store_true", help="as of `workload tune`")
    parser.add_argument("--stand-in", action="store_true", help="a sleep in place of each GPU")
    parser.add_argument("--configs", type=int, help="of each size; all by default")
    parser.add_argument("--folder", type=Path, help="keeps what was compiled for another call")
    parser.add_argument("--total-s", type=float, help="of all parts together")
    parser.add_argument("--limit-s", type=float, default=1800.0, help="of one run")
    parser.add_argument("--out", default="cluster.json", help="JSON file to write")
    wanted = parser.parse_args()
    wanted.sizes = wanted.sizes or list(TOY_SIZES if wanted.stand_in else SIZES)
    end_s = time.perf_counter() + (wanted.total_s or float("inf"))
    result: dict[str, Any] = {}
    if (out := Path(wanted.out)).exists():
        result = json.loads(out.read_text())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = (wanted.folder or Path(place)).absolute()
        for name in unfinished_parts(result, wanted.stand_in):
            limit_s = min(wanted.limit_s, end_s - time.perf_counter())
            if limit_s < LEAST_S:
                say(f"{name}: left out, {max(limit_s, 0.0):.0f} s are left")
                continue
            result[name] = run(wanted, folder / name, *PARTS[name], limit_s)
            say(f"{name}: exit {result[name]['exit']}, {result[name]['wall_s']:.1f} s")
            save(wanted.out, result)
    heads = ("run", "exit", "wall s", "first run to last outcome s", "times", "lost configs")
    show(heads, rows_of(result))
    for line in verdict(result):
        print(line)


if __name__ == "__main__":
    main()
