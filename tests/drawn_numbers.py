"""Tables of statistics, verdicts, limits, selections, corrections and workloads, of drawn data."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import synthetic
from table_text import text_of

from workbench.catalog import spec_of
from workbench.data import stats, verdict
from workbench.data.record import Outcome, Ratio, Record, Run
from workbench.data.selection import (
    bit_classes,
    class_interval,
    interval_of,
    members,
    ranking,
    rate,
    select,
)
from workbench.device.calibration import calibration_of
from workbench.device.ceilings import CeilingSet, Load, ceiling_of, diagnose
from workbench.device.correction import best_estimate
from workbench.device.hardware import find_device
from workbench.device.occupancy import occupancy, waves
from workbench.reports.selection_sentence import class_sentence, modes_text, sentence
from workbench.revisions.change_points import episodes, levels, noise_of, steps
from workbench.spec import values
from workbench.tuner.held_back import error_range, held_sizes, summary_of
from workbench.tuner.portfolio import portfolio
from workbench.workload import between, plan, table
from workbench.workload import file as workload_file
from workbench.workload import signature as S
from workbench.workload.grids import grids_of, neighbours

Rows = Iterator[str]
GPUS = ("h200", "b200", "a100", "rtx4090", "mi300x", "rx7900xtx", "mi250x")


def series(dice: random.Random, n: int, noise: float = 0.01) -> list[float]:
    """Return times near 30 us, with at most two steps."""
    places = sorted(dice.randrange(1, n) for _ in range(dice.randrange(3) if n > 1 else 0))
    by = [1.0, dice.choice((1.02, 1.05, 0.9)), dice.choice((1.0, 1.1))]
    return [3e-5 * by[sum(p <= i for p in places)] * math.exp(noise * dice.gauss(0, 1))
            for i in range(n)]  # fmt: skip


def statistics() -> Rows:
    dice = random.Random(1)
    for n in (1, 2, 3, 5, 6, 8, 9, 12, 17, 20, 25, 26, 40, 60, 61):
        one, other = series(dice, n), series(dice, n)
        rounded = [float(f"{x:.2g}") for x in one]  # has ties
        yield f"{n} {text_of(one)}"
        for q in (0.0, 0.05, 0.25, 0.5, 0.9, 1.0):
            yield f"  quantile {q} {text_of(stats.quantile(one, q))}"
        for call in (stats.median_interval, stats.interval, stats.bootstrap_interval):
            found = [call(one, level) for level in (0.8, 0.95, 0.99)] if n > 1 else []
            yield f"  {call.__name__} {text_of(found)}"
        halves = [one[: n // 2], one[n // 2 :]] if n > 3 else [one]
        yield f"  windows {text_of(stats.windowed_interval(halves))}"
        yield f"  {text_of((stats.summary(one), stats.geomean(one)))}"
        if n > 2:
            yield f"  {text_of((stats.autocorrelation(one), stats.rank_autocorrelation(one)))}"
            yield f"  {text_of((stats.spearman(one, other), stats.spearman(rounded, other)))}"
            yield f"  {text_of(stats.ratio(one, other))}"
    for n, rho in itertools.product((5, 20, 100, 1000), (-0.3, 0.0, 0.2, 0.5, 0.9)):
        yield f"block {n} {rho} {stats.block_length(n, rho)}"
    for _ in range(20):
        ps = [dice.choice((0.001, 0.01, 0.0125, 0.0166, 0.025, 0.05, 0.051)) for _ in range(4)]
        yield f"holm {ps} {stats.holm(ps)}"
    yield f"least {[stats.least_for(level) for level in (0.5, 0.8, 0.9, 0.95, 0.99)]}"


def change_points() -> Rows:
    dice = random.Random(2)
    for n in (3, 5, 8, 12, 20, 30, 40, 40, 40, 60, 60, 60):
        times = series(dice, n, 0.004)
        if n == 60:  # an excursion, and a drift
            at = dice.randrange(10, 40)
            times[at : at + 3] = [1.2 * t for t in times[at : at + 3]]
            times = [t * (1 + 0.002 * max(0, i - 45)) for i, t in enumerate(times)]
        found = steps(times)
        yield f"{n} {text_of(found)} {text_of(episodes(times))}"
        yield f"  {text_of((noise_of(times), levels(times, [s.index for s in found])))}"


def ratios(dice: random.Random) -> Ratio:
    """Return a ratio whose ends lie at a threshold of 1 % or beside it."""
    at = (0.95, 1 / 1.01, 0.9901, 0.995, 1.0, 1.005, 1.0099, 1.01, 1.0101, 1.05)
    low, middle, high = sorted(dice.choices(at, k=3))
    return Ratio(middle, low, high)


def verdicts() -> Rows:
    dice = random.Random(3)
    found = []
    for _ in range(200):
        time, cycles = ratios(dice), dice.choice((None, ratios(dice)))
        result = verdict.verdict(time, cycles, 0.01, dice.choice((0.0, 0.005, 0.02)), 7)
        found.append(result)
        yield text_of(result)
        yield f"  {verdict.sentence(result, 'left', 'right')}"
        yield f"  {text_of([verdict.p_value(result, looks) for looks in (1, 3)])}"
    for n in range(0, 200, 5):
        several = found[n : n + 5]
        words = [v.word for v in verdict.holm(several, 2)]
        codes = [verdict.exit_code([v.word for v in some]) for some in (several, several[:1])]
        yield f"{words} exit {codes[0]} {codes[1]}"


def suspicions() -> Rows:
    dice = random.Random(4)
    for _ in range(80):
        left, right = (
            synthetic.measured(3e-5 * dice.choice((1, 1.01, 1.2)), seed=dice.randrange(9))
            for _ in range(2)
        )
        clocks = dice.choice(((None, None), (1700.0, 1700.0), (1500.0, 1800.0)))
        left, right = replace(left, sm_mhz=clocks[0]), replace(right, sm_mhz=clocks[1])
        result = verdict.suspicion(left, right, 0.01, dice.choice((0.0, 0.05)))
        word = f"{verdict.SUSPECTED}{result.word}"
        yield f"{text_of(result)} {word} {verdict.exit_code([word])}"


def places_on_cores() -> Rows:
    dice = random.Random(5)
    for _ in range(400):
        device = find_device(dice.choice(GPUS))
        threads = dice.choice((32, 64, 96, 128, 256, 512, 1024))
        registers = dice.choice((0, 1, 16, 32, 33, 64, 128, 168, 255))
        shared = dice.choice((0, 1, 1024, 16_384, 49_152, 65_536, 100_000, 163_840, 232_448))
        at = occupancy(device, threads=threads, registers=registers, shared_bytes=shared)
        blocks = getattr(at, "blocks_per_core", 1)
        programs = dice.choice((1, 131, 132, 133, 264, 10_000))
        yield f"{device.name} {threads} {registers} {shared}: {text_of(at)}"
        yield f"  {programs}: {text_of(waves(device, programs, blocks))}"


def limits_of_calls() -> Rows:
    dice = random.Random(6)

    def one(name: str, value: float, unit: str, **more: Any) -> Any:
        text = {"value": value, "unit": unit, "source": "here", "kind": "measured", **more}
        return ceiling_of("h200", name, text)

    known = [
        one("dram_copy_measured", 4e12, "B/s", low=3.9e12, high=4.1e12),
        one("dram_read_measured", 4.4e12, "B/s", low=4.3e12, high=4.5e12),
        one("cache_measured", 8e12, "B/s"), one("bf16_measured", 8e14, "FLOP/s", dtype="bf16"),
        one("launch_measured", 1e-6, "s"), one("launch_eager_measured", 4e-6, "s"),
        one("dram", 4.8e12, "B/s", kind="datasheet"),
        one("compute", 9.8e14, "FLOP/s", dtype="bf16", kind="datasheet"),
    ]  # fmt: skip
    for _ in range(300):
        some = [c for c in known if c is not None and dice.random() < 0.8]
        ceilings = CeilingSet("h200", tuple(some), dice.choice((None, 60e6)))
        moved, flops = dice.choice((0, 4_000_000, 60_000_000, 400_000_000)), dice.choice(
            (0, 10**6, 8 * 10**9, 8 * 10**11))  # fmt: skip
        time_s = dice.choice((5e-7, 1e-6, 4e-6, 1e-5, 1e-4, 9.8e-5, 9.2e-5, 1e-3))
        regime = dice.choice(("cold", "hot", "predicted"))
        span = dice.choice(((0.9e-4, 1.1e-4), (1e-5, 1e-3))) if regime == "predicted" else None
        load = Load(time_s, time_s * dice.choice((1.0, 1.05)), flops, moved, "bf16", regime,
                    dice.random() < 0.3, dice.choice(("sustained", "boost")),
                    dice.choice((None, span)))  # fmt: skip
        held = diagnose(load, ceilings)
        yield f"{text_of(load)} of {[c.name for c in some]}"
        yield f"  {held.word} {held.ceiling.name if held.ceiling else None} {held.sentence}"
        yield f"  {text_of((held.share, held.gain_s, held.excess_reason))}"


def runs() -> Iterator[tuple[str, Run, list[Outcome]]]:
    """Yield runs of several kinds, whole and with parts left out."""
    for make in (synthetic.matmul, synthetic.softmax, synthetic.copy):
        run, outcomes = make()
        yield make.__name__, run, outcomes
        for n in range(8):
            dice = random.Random(n)
            yield (
                f"{make.__name__} {n}",
                run,
                [o for o in outcomes if dice.random() < 0.15 * (n % 5)],
            )
    for predicted in (synthetic.matmul, synthetic.softmax):
        yield f"{predicted.__name__} predicted", *predicted(predicted=True)
    yield "failed", *synthetic.all_failed()
    yield "empty", *synthetic.empty()


def selections() -> Rows:
    for name, run, outcomes in runs():
        result = select(run, outcomes)
        yield f"{name}: {sentence(result)}"
        if result.winner is None:
            continue
        own = members(result)
        if interval_of(result.winner):
            yield f"  {class_sentence(result)} {text_of(class_interval(result))}"
        yield f"  {[r.case.label for r in own]} {text_of([interval_of(r) for r in own])}"
        yield f"  {[f'{rate(r)} {r.case.label}' for r in own[:3]]} {text_of(result.edges)}"
        yield f"  {[o.case.label for o in ranking(outcomes)][:40]}"
        records = [o for o in outcomes if isinstance(o, Record)]
        yield f"  {sorted(bit_classes(records).values())}"
        yield f"  {[modes_text(r.timing) for r in records if r.is_measured and r.timing.modes][:3]}"


def portfolios() -> Rows:
    dice = random.Random(8)
    for _ in range(60):
        each = (1.0, 1.02, 1.03, 1.05, 1.2, math.inf)
        times = {
            f"M={m}": {"always": 1.1, **{f"c{n}": dice.choice(each) for n in range(6)}}
            for m in range(dice.randrange(1, 6))
        }
        for within in (0.02, 0.05):
            yield f"{times} {within}"
            yield f"  {text_of(portfolio(times, within))}"


def corrections() -> Rows:
    """Yield what the shipped calibrations choose at sizes that were not measured."""
    dice = random.Random(9)
    for name, dtype in (("softmax", "bf16"), ("rms_norm", "bf16"), ("matmul", "fp16")):
        spec = spec_of(name)
        for device, impl in itertools.product(("h200", "h100"), spec.impls):
            if impl.backend != "triton":
                continue
            for sizes in spec.bench[:1]:
                near = spec.nearest_sizes(
                    {a: e // dice.choice((1, 2, 3)) or 1 for a, e in sizes.items()}
                )
                found = best_estimate(impl, find_device(device), dtype, near)
                text = found and (values(found.config), text_of(replace(found, config=None)))
                yield f"{impl.title} {device} {dtype} {near}: {text}"


def held_back() -> Rows:
    """Yield the errors of the shipped calibration at sizes that it holds back."""
    device = find_device("h100")
    known = calibration_of("h100")
    assert known is not None
    for name, dtype in list(known.kernels)[:1]:
        times = known.times_of(name, dtype)
        held = held_sizes(spec_of(name), dtype, device, times)
        yield f"{name} {dtype} {text_of(held)}"
        yield f"  {text_of(summary_of(held))} {text_of(error_range(spec_of(name), device, times))}"


# A recorded program: two functions, each with two families and one launch that has none


def tensor(shape: tuple[int, ...], dtype: str = "bfloat16", storage: int = 0) -> S.TensorArgument:
    stride = tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))
    return S.TensorArgument(dtype, shape, stride, 16, storage)


def launch(function: str, m: int, n: int, **more: Any) -> S.LaunchSignature:
    made = S.KernelFunction(function, "mine", "mine.py", f"{len(function):016}", ("x", "i", "n"))
    arguments = {
        "x": tensor((m, n)), "y": tensor((m, n), storage=0),
        "i": tensor((m,), "int64", 1), "n": S.PlainArgument("int", n),
        "scale": S.PlainArgument("float", "0.5"),
    }  # fmt: skip
    config = {"BLOCK_M": S.PlainArgument("int", 64), "num_warps": S.PlainArgument("int", 4)}
    shapes = {(block,): (-(-m // block), 1, 1) for block in (32, 64, 128)}
    grids = S.ConfigGrids(("BLOCK_M",), shapes)
    given = {"origin": "autotune", "choices": 3, "key": (str(m), str(n)), "config": config,
             "grids": grids, **more}  # fmt: skip
    return S.LaunchSignature(made, arguments, (-(-m // 64), 1, 1), **given)


def workloads() -> Iterator[workload_file.RecordedWorkload]:
    """Yield two processes' workloads, with GPU times and without."""
    sizes = ((1024, 64), (2048, 64), (4096, 64), (1024, 128), (96, 80))
    for timed in (True, False):
        some = [workload_file.CountedSignature(launch(f, m, n), 7 * (6 - k) + len(f))
                for f in ("add", "scale_rows") for k, (m, n) in enumerate(sizes)]  # fmt: skip
        some.append(workload_file.CountedSignature(launch("add", 8, 8, origin="call", config={},
                                                          grids=None, key=None), 100))  # fmt: skip
        process = workload_file.RecordedProcess(
            "train.py", 1, "gpu", "NVIDIA H200", synthetic.AT, 2.5, True, {"torch": "2.11.0"}
        )
        times = [
            workload_file.KernelTime(c.signature.function.name, c.signature.grid, (128, 1, 1),
                                     c.launches, 1e-5 * c.launches * (1 + n % 3))
            for n, c in enumerate(some)
        ]  # fmt: skip
        window = workload_file.GpuTimes("steps 3 to 5", 0.01, tuple(times), (("gemm", 0.002),))
        beyond = [(launch("add", 1, 1).function, 11)]
        yield workload_file.RecordedWorkload(
            [process], some, [window] if timed else [], beyond, ["a note"]
        )


def recorded() -> Rows:
    both = list(workloads())
    for workload in [
        *both,
        workload_file.merge_workloads(both),
        workload_file.merge_workloads([both[0], both[0]]),
    ]:
        yield f"{workload.launches} launches"
        yield from table.head_lines(workload)
        yield from map(text_of, table.rows_of(workload))
        yield text_of((table.seconds_by_signature(workload), table.mean_seconds(workload)))
        for cover, bandwidth in ((0.5, 4e12), (0.9, 4e12), (1.0, 1e9)):
            items = plan.work_list(workload, cover, bandwidth)
            for item in items:
                numbers = plan.numbers_of(item.signature), plan.signature_text(item.signature)
                figures = (item.share, item.launch_s, item.least_s, item.winnable_share)
                yield f"  {item.signature.function.name} {numbers} {item.launches} {item.family}"
                yield f"    {text_of(figures)} {text_of(plan.time_for(item, items, 60.0))}"
        again = workload_file.parse(workload_file.text_of(workload).encode(), "w.json")
        yield f"read again: {again == workload}"
        yield text_of(len(plan.configs_in_use(workload, "NVIDIA H200", 4e12)))


def middles() -> Rows:
    for (m, n), (other, same) in itertools.product(
        ((1024, 64), (96, 80), (64, 64)), ((4096, 64), (2048, 64), (384, 80), (65, 64), (64, 256))
    ):
        try:
            found = between.middle(launch("add", m, n), launch("add", other, same))
        except between.NoMiddle as error:
            yield f"{m}x{n} {other}x{same}: {error}"
            continue
        yield f"{m}x{n} {other}x{same}: {text_of(found)}"


def grids() -> Rows:
    configs = [{"BLOCK_M": m, "BLOCK_N": n, "num_warps": 4} for m in (32, 64) for n in (64, 128)]
    for m, n in ((100, 200), (4096, 64), (1, 1)):
        calls: list[Callable[[dict[str, int]], tuple[int, ...]]] = [
            lambda at, m=m: (-(-m // at["BLOCK_M"]),),
            lambda at, m=m, n=n: (-(-m // at["BLOCK_M"]), -(-n // at["BLOCK_N"])),
            lambda at, m=m: (-(-m // at["BLOCK_M"]) * at["num_warps"], 1, 1),
            lambda at: (at["missing"],),
        ]
        for number, call in enumerate(calls):
            yield f"{m} {n} {number}: {text_of(grids_of(call, {'m': m}, configs))}"
        yield text_of((grids_of((3, 4), {}, configs), grids_of(7, {}, [])))
    yield text_of(
        [neighbours(k, v) for k in ("BLOCK_M", "num_warps", "BM", "GROUP") for v in (1, 8)]
    )


TABLES: dict[str, Callable[[], Rows]] = {
    "statistics": statistics, "change_points": change_points, "verdicts": verdicts,
    "suspicions": suspicions, "occupancy": places_on_cores, "limits": limits_of_calls,
    "selections": selections, "portfolios": portfolios, "corrections": corrections,
    "held_back": held_back, "recorded": recorded, "middles": middles, "grids": grids,
}  # fmt: skip


# What reading says of damaged files


def damage_lines(lines: dict[str, list[str]]) -> list[str]:
    """Return what was said of each place, a line each."""
    return [f"{place}: {' | '.join(said)}" for place, said in lines.items()]


def stored_damage(name: str) -> list[str]:
    """Return the stored lines of a kind of file."""
    path = Path(__file__).parent / "golden" / "damage" / f"{name}.txt"
    return path.read_text(encoding="utf-8").splitlines()
