"""Memory and time of reading a large trace of torch.profiler beside `json.load`; damaged files.

    python benchmarks/reading.py streaming --mb 300 --out reading.json
    python benchmarks/reading.py damaged --count 1000 --out damaged.json

`streaming` writes a trace of that size into a temporary file, and reads it in fresh processes, one
after the other: with `workbench.traces.readers`, with and without msgspec, and with `json.load`.
`damaged` reads mutations of every file of `tests/golden/traces`, each in the same process, and
counts those that end in neither a result nor one sentence with the name of the file, or in a KPI
that cannot be.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "traces"
SLOWEST_S = 20.0

HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
"""
OPERATION = """  {
    "ph": "X", "cat": "cpu_op", "name": "aten::%s", "pid": 1033, "tid": 1033,
    "ts": %.3f, "dur": 31.250,
    "args": {
      "External id": %d, "Record function id": 0, "Ev Idx": %d
    }
  }"""
CALL = """  {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1033, "tid": 1033,
    "ts": %.3f, "dur": 4.250,
    "args": {
      "External id": %d, "cbid": 211, "correlation": %d
    }
  }"""
KERNEL = """  {
    "ph": "X", "cat": "kernel", "name": "%s_kernel_%d", "pid": 0, "tid": 7,
    "ts": %.3f, "dur": 5.120,
    "args": {
      "External id": %d, "device": 0, "context": 1, "stream": 7, "correlation": %d,
      "registers per thread": 32, "shared memory": 0, "blocks per SM": 3.878788,
      "grid": [512, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %%": 24
    }
  }"""
OPERATIONS = 6  # of the host for one kernel, as in traces of models


def events(count: int) -> Iterator[str]:
    """Yield the text of the events of `count` kernels."""
    names = ("add", "mul", "copy_", "linear", "softmax")
    for n in range(count):
        at = 4383623168006.237 + 20.0 * n
        for i in range(OPERATIONS):
            yield OPERATION % (names[(n + i) % 5], at + i, OPERATIONS * n + i, n)
        yield CALL % (at + 8, n, n)
        yield KERNEL % (names[n % 5], n % 40, at + 14, n, n)


def write_trace(path: Path, megabytes: float) -> int:
    """Write a trace of about this size. Returns the number of its kernels."""
    one = sum(len(text) + 2 for text in events(1))
    count = max(1, int(megabytes * 1e6 / one))
    with path.open("w", encoding="utf-8") as file:
        file.write(HEAD)
        for number, text in enumerate(events(count)):
            file.write(text if number == 0 else f",\n{text}")
        file.write('\n  ],\n  "traceName": "trace.json"\n}\n')
    return count


READ = """
import resource, sys, time
sys.path[:0] = {paths!r}
if {block!r}:
    sys.modules["msgspec"] = None
begin = time.perf_counter()
from workbench.traces.timeline import device_times
from workbench.traces.readers import read
trace = read([{path!r}])
done = time.perf_counter() - begin
cpu = time.process_time()
kernels = device_times(trace, "0").kernel_count if {whole!r} else len(trace.activities) // 2
whole = time.perf_counter() - begin
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(done, cpu, whole, rss, kernels)
"""
LOAD = """
import json, resource, time
begin = time.perf_counter()
with open({path!r}, encoding="utf-8") as file:
    trace = json.load(file)
done = time.perf_counter() - begin
cpu = time.process_time()
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(done, cpu, done, rss, sum(e.get("cat") == "kernel" for e in trace["traceEvents"]))
"""


def measure_reading(code: str) -> dict[str, float]:
    """Run code in a fresh process. Returns seconds of reading, by the wall and of the CPU with the
    start of Python, seconds with the timeline, peak bytes, and kernels."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=3600
    )
    read_s, cpu_s, whole_s, rss, kernels = map(float, done.stdout.split())
    return {
        "read_s": read_s,
        "cpu_s": cpu_s,
        "whole_s": whole_s,
        "peak_bytes": rss,
        "kernels": kernels,
    }


def least(old: dict[str, float] | None, new: dict[str, float]) -> dict[str, float]:
    """Return the least seconds and the most bytes of two rounds."""
    if old is None:
        return new
    return {k: max(old[k], v) if k == "peak_bytes" else min(old[k], v) for k, v in new.items()}


def streaming(megabytes: float, with_load: bool, rounds: int) -> dict[str, Any]:
    """Return memory and least time of each way to read one trace; the ways take turns."""
    paths = [str(Path(__file__).parents[1])]
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="workbench-reading-") as folder:
        path = Path(folder) / "trace.json"
        kernels = write_trace(path, megabytes)
        result["bytes"], result["kernels"] = path.stat().st_size, kernels
        known: dict[str, Any] = {"paths": paths, "path": str(path), "whole": True}
        codes = {
            "workbench, standard library": READ.format(block=True, **known),
            "workbench, msgspec": READ.format(block=False, **known),
        }
        if with_load:
            codes["json.load"] = LOAD.format(path=str(path))
        for _ in range(rounds):
            for name, code in codes.items():
                result[name] = least(result.get(name), measure_reading(code))
        for name in codes:
            print(f"{name}: {result[name]}", flush=True)
    return result


def cut(data: bytes, chance: random.Random) -> bytes:
    """Return the data up to a place."""
    return data[: chance.randrange(len(data) + 1)]


def flip_bits(data: bytes, chance: random.Random) -> bytes:
    """Return the data with a few bits flipped."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def swap_pieces(data: bytes, chance: random.Random) -> bytes:
    """Return the data with two pieces swapped."""
    a, b, c, d = sorted(chance.randrange(len(data) + 1) for _ in range(4))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def repeat_piece(data: bytes, chance: random.Random) -> bytes:
    """Return the data with a piece repeated."""
    start = chance.randrange(len(data))
    piece = data[start : start + chance.randint(1, 200)]
    return data[:start] + piece * chance.randint(2, 50) + data[start:]


def texts(data: bytes, chance: random.Random) -> bytes:
    """Return the data with text, a huge number or nothing in place of some numbers."""
    import re

    places = [match.span() for match in re.finditer(rb"\d+", data)]
    changed = data
    for start, end in sorted(chance.sample(places, min(len(places), 3)), reverse=True):
        new = chance.choice([b"abc", b"1e999", b"9" * 40, b"", b"-1", b"NaN", b"0.5.5", b"null"])
        changed = changed[:start] + new + changed[end:]
    return changed


MUTATIONS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": cut,
    "flipped": flip_bits,
    "swapped": swap_pieces,
    "widened": repeat_piece,
    "text for numbers": texts,
}


def contents(most: int | None = None) -> dict[str, bytes]:
    """Return the unpacked content of every golden file by its name, at most of a size in bytes."""
    result = {}
    for path in sorted(GOLDEN.rglob("*")):
        if not path.is_file() or path.name in ("SOURCES.tsv", "GOLDEN.json.gz"):
            continue
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        if data and (most is None or len(data) <= most):
            result[path.relative_to(GOLDEN).as_posix().removesuffix(".gz")] = data
    return result


def outcome(name: str, data: bytes, folder: Path) -> str:
    """Return how reading a file ends: a result, a sentence, or else the fault."""
    from workbench.commands.read import summarise
    from workbench.commands.traces import trace_run
    from workbench.data.plain import check_fields
    from workbench.data.record import dumps, loads
    from workbench.reports.trace import page
    from workbench.traces.readers import read
    from workbench.traces.readers.inputs.source import ReadError
    from workbench.traces.trace_export import json_text, kernels_csv, summary_json

    path = folder / Path(name).name
    path.write_bytes(data)
    begin = time.perf_counter()
    try:
        trace = read([path])
        summary = summarise(trace)
        json_text(summary_json(summary))
        kernels_csv(trace, summary.rows)
        kept = trace_run(summary, "read", path.name, "workbench read")
        stored = [loads(dumps(each)) for each in (kept.run, *kept.findings, *kept.profiles)]
        page(check_fields(stored[0]), (), kept.findings, kept.profiles, summary)
        for each in stored[1:]:
            check_fields(each)
        end = impossible(summary) or "result"
    except ReadError as error:
        sentence = str(error)
        is_one = path.name in sentence and sentence.endswith(".") and "\n" not in sentence
        end = "sentence" if is_one else f"bad sentence: {sentence}"
    except Exception:
        end = traceback.format_exc()
    spent = time.perf_counter() - begin
    return end if spent <= SLOWEST_S else f"took {spent:.1f} s"


def impossible(summary: Any) -> str:
    """Return what no KPI can be and one is, or empty: a share beyond 1, a negative time or count,
    busy and idle time that do not make up the window."""
    for each in summary.devices:
        times = each.times
        if times.busy.length + sum(times.idle().values()) != times.window:
            return f"busy and idle are not the window of device {each.device}"
        for kpi in each.kpis:
            most = 1 if kpi.unit == "1" else float("inf")
            least = -float("inf") if kpi.name == "launch delay, median" else 0
            if kpi.value is not None and not least <= kpi.value <= most:
                return f"{kpi.name} is {kpi.value}"
    return ""


def read_damaged(
    count: int, seed: int, most: int | None = None, folder: str = ""
) -> dict[str, Any]:
    """Return how `count` mutations end, over all golden files and kinds in turn; of the files of
    one folder if it is named."""
    import resource

    files = {name: data for name, data in contents(most).items() if name.startswith(folder)}
    chance = random.Random(seed)
    ends: Counter[str] = Counter()
    faults: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="workbench-damaged-") as place:
        for number in range(count):
            name = list(files)[number % len(files)]
            kind = chance.choice(list(MUTATIONS))
            end = outcome(name, MUTATIONS[kind](files[name], chance), Path(place))
            ends[end if end in ("result", "sentence") else "fault"] += 1
            if end not in ("result", "sentence"):
                faults.append({"number": number, "file": name, "kind": kind, "end": end})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"ends": dict(ends), "faults": faults, "files": len(files), "peak_bytes": peak}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["streaming", "damaged"])
    parser.add_argument("--mb", type=float, default=300.0, help="size of the trace, MB")
    parser.add_argument("--rounds", type=int, default=3, help="of all ways in turns")
    parser.add_argument("--no-load", action="store_true", help="leave json.load out")
    parser.add_argument("--count", type=int, default=1000, help="mutations")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutations")
    parser.add_argument("--folder", default="", help="of tests/golden/traces, whose files alone")
    parser.add_argument("--most", type=int, help="largest file, bytes")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    if options.part == "streaming":
        result = streaming(options.mb, not options.no_load, options.rounds)
    else:
        result = read_damaged(options.count, options.seed, options.most, options.folder)
        for fault in result["faults"]:
            print(fault["file"], fault["kind"], fault["end"], sep="\n")
        print(result["ends"], f"{result['files']} files, peak {result['peak_bytes'] / 1e6:.0f} MB")
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
