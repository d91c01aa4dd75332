"""What passes between two kernels of a graph? Short kernels, one after the other in one process.

Each line is one kernel's median per call; the same kernel comes up several times. Where all lines
of a kernel agree, a graph has one state. With `--torch`, torch captures the graphs and not the
driver: then they have two on an H200 (docs/facts.md).

    python benchmarks/gap.py --out gap.json
    python benchmarks/gap.py --torch --out gap_torch.json
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


def time_default(kernel: str, impl: str, sizes: dict[str, int]) -> dict[str, Any]:
    """One final of the default config alone."""
    from workbench.measurement import worker
    from workbench.measurement.candidate import Candidate, Refusal
    from workbench.measurement.protocol import Protocol

    worker.begin(worker.MeasureJob(kernel, sizes, "bf16", Protocol()))
    (result,), _ = worker.final([Candidate.create(impl, {})], [0.0])
    if isinstance(result, Refusal):
        return {"reason": result.reason}
    t = result.timing
    return {"median_s": t.median_s, "method": t.method, "sm_mhz": t.sm_mhz}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch", action="store_true", help="torch captures the graphs")
    parser.add_argument("--out", default="gap.json", help="JSON file to write")
    wanted = parser.parse_args()
    if wanted.torch:
        from workbench.measurement import bench, graphs

        bench.graphs = graphs.TorchGraphs
    rows: list[dict[str, Any]] = []
    for kernel, impl, sizes in ORDER:
        name = f"{kernel} {'x'.join(map(str, sizes.values()))}"
        rows.append({"case": name, **time_default(kernel, impl, sizes)})
        say(f"{name}: {rows[-1]}")
        save(wanted.out, rows)
    show(["case", "us"], [[r["case"], r.get("median_s", 0) * 1e6] for r in rows])


if __name__ == "__main__":
    main()
