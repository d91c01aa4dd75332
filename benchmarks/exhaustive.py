"""Measure every legal config of a kernel at several sizes, for as long as one asks: the table
that a sweep's winner and the analytic model are judged against.

    python benchmarks/exhaustive.py matmul bf16 OUT.json --seconds 0.01 --sizes M=4096,N=4096,K=4096
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from concurrent.futures import as_completed
from contextlib import closing

from workbench import catalog
from workbench.backend.measuring import Lost, Measuring
from workbench.backend.workers import Workers, cpu_count
from workbench.compile import CompileError, compile_config
from workbench.measurement import worker
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.measurement.protocol import Protocol
from workbench.spec import stages, threads, tile, values


def compile_resources(kernel, impl, config, sizes, dtype, device):
    created = catalog.impl_of(catalog.spec_of(kernel), impl)
    try:
        return compile_config(created, created.config(**config), sizes, dtype, device).resources
    except CompileError as error:
        return str(error)


def legal(kernel, sizes, dtype, device):
    for impl in catalog.spec_of(kernel).impls:
        if impl.backend == "triton":
            default = impl.default(device.limits, dtype, sizes)
            for config in impl.space(default, (tile, threads, stages)):
                if impl.rejection_reason(config, device.limits, dtype, sizes) is None:
                    yield impl.name, values(config)


def table(kernel, sizes, dtype, device, pool, gpu, seconds):
    protocol = Protocol(first_pass_s=seconds, give_up=1e9)
    job = worker.MeasureJob(kernel, sizes, dtype, protocol)
    futures = {
        pool.submit(compile_resources, kernel, i, c, sizes, dtype, device, timeout_s=60): (i, c)
        for i, c in legal(kernel, sizes, dtype, device)
    }
    gpu.begin(job)
    ceilings = gpu.self_test()
    rows, seen = [], {}
    for done in as_completed(futures):
        impl, config = futures[done]
        row = {"impl": impl, "config": config}
        try:
            row["resources"] = done.result()
        except Exception as error:
            row["resources"] = str(error)
        if isinstance(row["resources"], str):
            rows.append(row)
            continue
        resources = row["resources"]
        row["resources"] = dataclasses.asdict(resources)
        if resources.binary not in seen:
            choice = Candidate.create(impl, config)
            try:
                seen[resources.binary] = gpu.ask(worker.first_pass, choice, None, timeout_s=60)
            except Lost as error:
                seen[resources.binary] = Refusal("measure", str(error))
            if isinstance(seen[resources.binary], Refusal) and seen[resources.binary].is_poisoned:
                gpu.replace()
        got = seen[resources.binary]
        if isinstance(got, Refusal):
            row |= {"reason": got.reason, "error": None, "median_s": None}
        else:
            row |= {"reason": None, "error": got.error, "median_s": got.timing.median_s}
        rows.append(row)
    names = [i.name for i in catalog.spec_of(kernel).impls if i.backend == "torch"]
    final = [Candidate.create(n, {}) for n in names]
    timed = sorted((r for r in rows if r.get("median_s")), key=lambda r: r["median_s"])[:12]
    final += [Candidate.create(r["impl"], r["config"]) for r in timed]
    results = gpu.ask(
        worker.final, final, [0.0] * len(names) + [r["median_s"] for r in timed], timeout_s=120
    )
    best = [
        {"impl": c.case.impl, "config": c.case.config, "reason": None,
         "median_s": r.timing.median_s, "low_s": r.timing.low_s, "high_s": r.timing.high_s,
         "n": len(r.timing.samples_s),
         "sm_mhz": r.timing.sm_mhz, "power_w": r.timing.power_w, "rounds": r.timing.rounds}
        if isinstance(r, Timed)
        else {"impl": c.case.impl, "config": c.case.config, "reason": r.reason}
        for c, r in zip(final, results, strict=True)
    ]  # fmt: skip
    return {"sizes": sizes, "dtype": dtype, "ceilings": ceilings, "rows": rows, "final": best}


def show(kernel, result, seconds):
    rows = result["rows"]
    timed = sorted((r for r in rows if r.get("median_s")), key=lambda r: r["median_s"])
    print(kernel, result["sizes"], f"{len(rows)} configs, {len(timed)} timed, {seconds:.1f} s")
    print("  ", result["ceilings"])
    for r in timed[:5]:
        print("  ", f"{r['median_s'] * 1e6:9.2f} us", r["impl"], r["config"])
    for r in result["final"]:
        time_us = (r.get("median_s") or 0) * 1e6
        print("   final", f"{time_us:9.2f} us", r["impl"], r["config"], r["reason"])
    bad = {}
    for r in rows:
        if r.get("reason") or isinstance(r["resources"], str):
            reason = r.get("reason") or r["resources"]
            bad.setdefault(reason[:100], []).append((r["impl"], r["config"]))
    for reason, which in list(bad.items())[:6]:
        print("   bad", len(which), reason, which[0], flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel")
    parser.add_argument("dtype")
    parser.add_argument("out")
    parser.add_argument("--seconds", type=float, default=0.01)
    parser.add_argument("--sizes", action="append", default=[])
    args = parser.parse_args()
    spec = catalog.spec_of(args.kernel)
    shapes = [{p.split("=")[0]: int(p.split("=")[1]) for p in s.split(",")} for s in args.sizes]
    tables = []
    with Workers(max(1, cpu_count() - 1)) as pool, closing(Measuring()) as gpu:
        device, *_ = gpu.describe(None)
        for sizes in shapes or spec.bench:
            started = time.time()
            tables.append(table(args.kernel, sizes, args.dtype, device, pool, gpu, args.seconds))
            show(args.kernel, tables[-1], time.time() - started)
            with open(args.out, "w") as file:
                json.dump({"kernel": args.kernel, "device": device.name, "tables": tables}, file)


if __name__ == "__main__":
    main()
