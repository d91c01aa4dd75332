"""What passes between two kernels of a graph? Short kernels, one after the other in one process.

Each line is one kernel's median per call; the same kernel comes up several times. Where all lines
of a kernel agree, a graph has one state; docs/facts.md tells of an H200 where it had two, 0.35 us
apart. `--nodes` bounds how many calls one graph holds, `--one` captures all graphs by one stream
and from one pool of memory.

    python benchmarks/gap.py --nodes 64 --one --out gap.json
"""

from __future__ import annotations

import argparse
from typing import Any

from runs import save, say, show

COPY = ("copy", "blocks", {"N": 1 << 20})
RMS = ("rms_norm", "rows", {"M": 128, "N": 4096})
SOFTMAX = ("softmax", "rows", {"M": 256, "N": 1024})
EMPTY = ("copy", "blocks", {"N": 1})
ORDER = (COPY, EMPTY, RMS, SOFTMAX, COPY, EMPTY, RMS, SOFTMAX, COPY)


def restricted(nodes: int, one: bool) -> None:
    """Bound the calls of a graph, and capture all of them alike, for this process."""
    from workbench.measure import bench

    if nodes:
        bench.MOST_CALLS = nodes
    if one:
        made: list[Any] = []
        real = bench.Graphs

        def shared() -> Any:
            if not made:
                made.append(real())
            return made[0]

        bench.Graphs = shared


def timed(kernel: str, impl: str, sizes: dict[str, int]) -> dict[str, Any]:
    """One final of the default config alone."""
    from workbench.measure import worker
    from workbench.measure.protocol import Protocol

    worker.begin(worker.Job(kernel, sizes, "bf16", Protocol()))
    (found,), _ = worker.final([worker.Choice(impl, {})], [0.0])
    if found.timing is None:
        return {"reason": found.reason}
    t = found.timing
    return {"median_s": t.median_s, "method": t.method, "sm_mhz": t.sm_mhz}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=0, help="most calls in a graph; 0: as usual")
    parser.add_argument("--one", action="store_true", help="one stream and one pool for all graphs")
    parser.add_argument("--out", default="gap.json", help="JSON file to write")
    asked = parser.parse_args()
    restricted(asked.nodes, asked.one)
    rows: list[dict[str, Any]] = []
    for kernel, impl, sizes in ORDER:
        name = f"{kernel} {'x'.join(map(str, sizes.values()))}"
        rows.append({"case": name, **timed(kernel, impl, sizes)})
        say(f"{name}: {rows[-1]}")
        save(asked.out, rows)
    show(["case", "us"], [[r["case"], r.get("median_s", 0) * 1e6] for r in rows])


if __name__ == "__main__":
    main()
