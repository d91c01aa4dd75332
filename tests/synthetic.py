"""Runs that no GPU took part in, shaped like real ones: for tests of whatever reads records.

The numbers are plausible and deterministic; none of them was measured.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.data.record import (
    Case,
    Energy,
    Environment,
    Failure,
    Measured,
    Outcome,
    Phase,
    Predicted,
    Record,
    Resources,
    Run,
    Stage,
    key_of,
)
from workbench.data.stats import median, median_interval
from workbench.spec import Impl, values

AT = "2026-11-21T09:30:00+00:00"
SHARED_LIMIT = 232448  # bytes a block on an H200
CEILINGS: Mapping[str, Mapping[str, Any]] = {
    "dram": {"value": 4.8e12, "unit": "B/s", "source": "H200 datasheet", "kind": "datasheet"},
    "dram_measured": {
        "value": 4.3e12,
        "unit": "B/s",
        "source": "streaming kernel of this run",
        "kind": "measured",
    },
    "cache": {"value": 9.1e12, "unit": "B/s", "source": "microbenchmark", "kind": "measured"},
    "compute": {
        "value": 989e12,
        "unit": "FLOP/s",
        "dtype": "bf16",
        "source": "H200 datasheet",
        "kind": "datasheet",
    },
}
PROMISED = {k: v for k, v in CEILINGS.items() if v["kind"] == "datasheet"}  # when no GPU took part

_MATMUL = {
    "tiles": {
        "block_m": (32, 64, 128, 256),
        "block_n": (64, 128, 256),
        "block_k": (32, 64, 128),
        "num_warps": (4, 8),
        "num_stages": (2, 3, 4),
    },
    "persistent": {
        "block_m": (64, 128, 256),
        "block_n": (64, 128, 256),
        "block_k": (64, 128),
        "num_warps": (4, 8),
        "num_stages": (2, 3, 4),
    },
}
_KNOBS = {"num_warps": "threads", "num_stages": "stages"}


def matmul(
    predicted: bool = False,
    finals: bool = True,
    choices: Mapping[str, Mapping[str, tuple[int, ...]]] = _MATMUL,
) -> tuple[Run, list[Outcome]]:
    """A tile sweep of two Impls, 324 configs: failures of every stage, finals and baselines."""
    sizes = {"M": 4096, "N": 4096, "K": 4096}
    run = _run("tile_size", "matmul", sizes, "bf16", choices, ("tile",), predicted)
    dice = random.Random(7)
    outcomes: list[Outcome] = []
    for impl, own in choices.items():
        for config in _product(own):
            outcomes.append(_matmul_one(run, impl, config, dice))
    if finals and not predicted:
        outcomes += _finals(run, outcomes, dice)
    return run, outcomes


def matmul_with_energy(reason: str = "") -> tuple[Run, list[Outcome]]:
    """The tile sweep with an energy for each finalist: the slower ones need less power, one runs
    out of the front, and with `reason` none could be measured."""
    run, outcomes = matmul()
    finals = [n for n, o in enumerate(outcomes) if isinstance(o, Record) and o.phase == "final"]
    for place, n in enumerate(finals):
        record = outcomes[n]
        assert isinstance(record, Record) and isinstance(record.timing, Measured)
        power_w = 690.0 - 14 * place - (60 if place == 3 else 0)
        energy = None if reason else energy_of(record.time_s, power_w, seed=record.key)
        timing = replace(record.timing, energy=energy, no_energy=reason)
        outcomes[n] = replace(record, timing=timing)
    return run, outcomes


def energy_of(
    time_s: float, power_w: float, windows: int = 6, seed: str = "", noise: float = 0.001
) -> Energy:
    """The energy of a call that takes this long at this power, each window a little off."""
    dice = random.Random(seed)
    each = tuple(time_s * power_w * (1 + noise * dice.gauss(0, 1)) for _ in range(windows))
    low, high = median_interval(each)
    return Energy(
        median(each), low, high, power_w, 100.0, 1000 * windows, windows, 0.4, 0.02, "made up",
        "cold", each,
    )  # fmt: skip


def softmax(predicted: bool = False, device: str = "NVIDIA H200") -> tuple[Run, list[Outcome]]:
    """A memory-bound kernel with one field varied, and most configs the same machine code."""
    choices = {"rows": {"num_warps": (1, 2, 4, 8, 16, 32)}}
    sizes = {"M": 8192, "N": 4096}
    run = _run("block_size", "softmax", sizes, "bf16", choices, ("threads",), predicted, device)
    moved = 2 * 2 * 8192 * 4096
    warp = 64 if device.startswith("MI") else 32
    outcomes: list[Outcome] = []
    dice = random.Random(11)
    for config in _product(choices["rows"]):
        warps = config["num_warps"]
        created = _resources(
            config, 24 + 96 // warps, 0, 512, min(1.0, 0.3 + warps / 12), "threads"
        )
        created = replace(created, threads=warps * warp)
        time_s = moved / 4.1e12 * (1 + 0.15 * abs(warps.bit_length() - 3.2))
        case = Case("softmax", "rows", "triton", config, sizes, "bf16", run.device)
        outcomes.append(
            _record(run, case, time_s, 5 * 8192 * 4096, moved, created, dice, default=warps == 4)
        )
    return run, outcomes


def copy(finals: bool = True) -> tuple[Run, list[Outcome]]:
    """No arithmetic at all: flops 0, two fields varied, neither of them a tile edge of a matrix."""
    choices = {"blocks": {"num_warps": (2, 4, 8, 16), "num_stages": (1, 2, 3)}}
    sizes = {"N": 1 << 28}
    run = _run("pipeline", "copy", sizes, "fp32", choices, ("threads", "stages"), False)
    dice = random.Random(3)
    moved = 2 * 4 << 28
    outcomes: list[Outcome] = []
    for config in _product(choices["blocks"]):
        created = _resources(config, 20, 0, 0, 1.0, "threads")
        time_s = moved / 4.2e12 * (1 + 0.02 * abs(config["num_warps"].bit_length() - 4))
        case = Case("copy", "blocks", "triton", config, sizes, "fp32", run.device)
        default = config == {"num_warps": 4, "num_stages": 1}
        outcomes.append(_record(run, case, time_s, 0, moved, created, dice, default=default))
    if finals:
        outcomes += _finals(run, outcomes, dice)
    return run, outcomes


def of_kernel(
    impls: Sequence[tuple[Impl, Sequence[Any]]], predicted: bool
) -> tuple[Run, list[Outcome]]:
    """A full sweep of a real kernel: of each Impl these configs, the first one its default. Every
    ninth failed; where times are measured, the best are in a final."""
    spec = impls[0][0].spec
    sizes, dtype = dict(spec.bench[0]), next(iter(spec.tolerance))
    choices = {impl.name: impl.choices() for impl, _ in impls}
    run = _run("full", spec.name, sizes, dtype, choices, ("tile", "threads", "stages", "among"),
               predicted)  # fmt: skip
    knobs = {i.name: {"choices": i.choices(), "knobs": i.knobs()} for i, _ in impls}
    run = replace(run, impls=knobs)
    dice = random.Random(spec.name)
    flops, moved = spec.flops(**sizes), spec.bytes(sizes, dtype)
    outcomes: list[Outcome] = []
    for impl, configs in impls:
        for number, config in enumerate(configs):
            own = values(config)
            case = Case(spec.name, impl.name, "triton", own, sizes, dtype, run.device)
            created = _resources(own, 40 + number % 90, 0, 512 * number, 0.5, "registers")
            time_s = max(moved / 4.8e12, 2e-6) * (1.1 + dice.random())
            record = _record(run, case, time_s, flops, moved, created, dice, default=number == 0)
            failed = number % 9 == 8
            outcomes.append(failure(run, record, "check", "y is wrong") if failed else record)
    if not predicted and any(isinstance(o, Record) for o in outcomes):
        outcomes += _finals(run, outcomes, dice)
    return run, outcomes


def all_failed() -> tuple[Run, list[Outcome]]:
    """A sweep in which no config gave a time."""
    run, outcomes = matmul(finals=False)
    return run, [failure(run, o, "compile", "PassManager::run failed") for o in outcomes[:12]]


def empty() -> tuple[Run, list[Outcome]]:
    """A sweep that was stopped before its first outcome."""
    return matmul(finals=False)[0], []


def failure(run: Run, of: Outcome, stage: Stage, reason: str) -> Failure:
    """The same config with a reason where its time would be."""
    return Failure(of.case, of.key, run.id, AT, stage, reason, of.resources, of.default)


def measured(time_s: float, n: int = 40, noise: float = 0.002, seed: int = 0) -> Measured:
    """A clock's time around `time_s` seconds, with `n` samples and a real interval."""
    dice = random.Random(seed)
    samples = tuple(time_s * (1 + noise * dice.gauss(0, 1)) for _ in range(n))
    low, high = median_interval(samples)
    protocol = "cold-sustained/1"
    return Measured(
        median(samples), low, high, samples, "cold", "graph", protocol, 6, 1755.0, 51.0, 644.0
    )


def environment(predicted: bool = False) -> Environment:
    """The machine behind a synthetic run."""
    versions = {"workbench": "0.1.0", "torch": "2.11.0", "triton": "3.6.0", "ptxas": "13.0"}
    return Environment(
        gpu=None if predicted else "NVIDIA H200",
        driver=None if predicted else "580.65",
        gpu_memory_bytes=None if predicted else 150754820096,
        power_limit_w=None if predicted else 700.0,
        clock_policy="unknown" if predicted else "default",
        others_on_gpu=None if predicted else 0,
        os="Linux 6.8",
        cpu="Xeon Platinum 8480C",
        python="3.12.4",
        versions=versions,
        settings={},
        commit="3f2a9c1d7be0",
        dirty=False,
    )


def _run(
    name: str,
    kernel: str,
    sizes: Mapping[str, int],
    dtype: str,
    choices: Mapping[str, Mapping[str, tuple[int, ...]]],
    vary: tuple[str, ...],
    predicted: bool,
    device: str = "NVIDIA H200",
) -> Run:
    impls = {
        impl: {"choices": fields, "knobs": {f: _KNOBS.get(f, "tile") for f in fields}}
        for impl, fields in choices.items()
    }
    where = " --device h200 --predict" if predicted else ""
    return Run(
        id=f"20261121-093000-{name}-{kernel}-3f2a",
        engine="sweep",
        name=name,
        command=f"python -m workbench.sweep {name} --kernel {kernel}{where}",
        started=AT,
        kernel=kernel,
        sizes=sizes,
        dtype=dtype,
        device="h200" if predicted else device,
        predicted=predicted,
        vary=vary,
        tune=("threads", "stages") if vary == ("tile",) else (),
        impls=impls,
        ceilings=PROMISED if predicted else CEILINGS,
        environment=environment(predicted),
        source=f"workbench/kernels/{kernel}.py",
    )


def _product(choices: Mapping[str, tuple[int, ...]]) -> Iterator[dict[str, int]]:
    for point in itertools.product(*choices.values()):
        yield dict(zip(choices, point, strict=True))


def _matmul_one(run: Run, impl: str, config: dict[str, int], dice: random.Random) -> Outcome:
    m, n, k = config["block_m"], config["block_n"], config["block_k"]
    warps, stages = config["num_warps"], config["num_stages"]
    case = Case("matmul", impl, "triton", config, run.sizes, run.dtype, run.device)
    shared = 2 * k * (m + n) * stages
    if shared > SHARED_LIMIT:
        reason = f"needs {shared} bytes of shared memory a block; the device allows {SHARED_LIMIT}"
        return Failure(case, key_of(case), run.id, AT, "refused", reason)
    registers = min(255, 40 + m * n // (32 * warps))
    spill = max(0, 40 + m * n // (32 * warps) - 255) * 4
    occupancy = min(
        1.0, max(1, min(SHARED_LIMIT // shared, 65536 // (registers * 32 * warps))) / 16
    )
    limiter = "shared memory" if SHARED_LIMIT // shared < 3 else "registers"
    created = _resources(config, registers, spill, shared, occupancy * warps / 4, limiter)
    failed = _misfortune(config, impl)
    if failed:
        kept = created if failed[0] in ("check", "launch", "measure") else None
        return Failure(case, key_of(case), run.id, AT, *failed, kept)
    share = 1 - 0.06 * (warps == 4) - 0.05 * abs(stages - 3) - 0.35 * (spill > 0)
    share -= sum(
        weight * abs(math.log2(edge / best))
        for weight, edge, best in ((0.13, m, 128), (0.1, n, 256), (0.06, k, 64))
    )
    reach = 722e12 * max(share, 0.08) * (0.985 if impl == "persistent" else 1.0)
    reach *= 1 - 0.01 * dice.random()
    flops, moved = 2 * 4096**3, 3 * 2 * 4096**2
    default = (m, n, k, warps, stages) == (128, 128, 64, 4, 3)
    return _record(run, case, flops / reach, flops, moved, created, dice, default=default)


def _misfortune(config: Mapping[str, int], impl: str) -> tuple[Stage, str] | None:
    m, n, warps = config["block_m"], config["block_n"], config["num_warps"]
    if m == 32 and n == 256 and impl == "tiles":
        return "compile", "ptxas stopped after 60 s: the compile time-out"
    if m == 32 and warps == 8 and config["num_stages"] == 4:
        return "compile", "the compiler aborted: 'PassManager::run failed' in TritonGPUToLLVM"
    if impl == "persistent" and (m, n, config["block_k"], warps) == (64, 256, 128, 4):
        return "check", "wrong at [17, 240] of out: 3.1e2 times the tolerance, seed 1"
    if impl == "persistent" and (m, n, warps, config["num_stages"]) == (256, 64, 8, 4):
        return "launch", "illegal memory access"
    if impl == "tiles" and (m, n, warps, config["num_stages"]) == (256, 64, 4, 4):
        return "measure", "no sample in 10 s: the time-out"
    return None


def _resources(
    config: Mapping[str, int], registers: int, spill: int, shared: int, occ: float, limiter: str
) -> Resources:
    code = key_of(Case("", "", "", {k: v for k, v in config.items()}, {}, "", ""))[:12]
    programs = 4096 * 4096 // (config.get("block_m", 128) * config.get("block_n", 256))
    places = 132 * max(1, round(16 * occ))
    waves = programs / places
    return Resources(
        binary=code,
        registers=registers,
        spill_bytes=spill,
        shared_bytes=shared,
        threads=32 * config.get("num_warps", 4),
        blocks_per_core=max(1, round(16 * occ)),
        occupancy=min(1.0, occ),
        limiter=limiter,
        programs=programs,
        waves=waves,
        tail=(-programs % places) / places,
        load_bits=128,
        matrix_unit="wgmma" if "block_k" in config else None,
        compile_s=0.8 + registers / 80,
    )


def _record(
    run: Run,
    case: Case,
    time_s: float,
    flops: int,
    moved: int,
    compiled: Resources | None,
    dice: random.Random,
    phase: Phase = "first_pass",
    default: bool = False,
) -> Record:
    timing: Measured | Predicted
    if run.predicted:
        phase = "predict"
        compute, dram = flops / 989e12, moved / 4.8e12
        timing = Predicted(
            time_s,
            "roofline/1",
            compute,
            dram,
            dram * 0.6,
            time_s * 0.1,
            2.1e-6,
            "compute" if compute > dram else "dram",
        )
    else:
        n = 40
        noise = 0.004 if phase == "first_pass" else 0.002
        timing = measured(time_s, n=n, noise=noise, seed=dice.randrange(1 << 30))
    checked = "library" if case.is_baseline else "interpreter" if run.predicted else "gpu"
    return Record(
        case=case,
        key=key_of(case),
        run=run.id,
        at=AT,
        phase=phase,
        timing=timing,
        flops=flops,
        bytes=moved,
        checked=checked,  # type: ignore[arg-type]
        error=0.0 if case.is_baseline else 0.1 + 0.3 * dice.random(),
        resources=compiled,
        default=default,
    )


def _finals(run: Run, first_pass: list[Outcome], dice: random.Random) -> list[Outcome]:
    """The best seven, the default and the library once more, longer; the winner hot as well."""
    records = sorted((o for o in first_pass if isinstance(o, Record)), key=lambda r: r.time_s)
    best = records[0]
    chosen = [*records[:7], *(r for r in records[7:] if r.default)]
    again: list[Record] = []
    for number, r in enumerate(chosen):
        time_s = best.time_s * (1 + 0.0035 * number) if number < 7 else r.time_s
        again.append(
            _record(run, r.case, time_s, r.flops, r.bytes, r.resources, dice, "final", r.default)
        )
    for name, share in (("cublas", 0.93), ("torch.compile", 1.04)):
        case = Case(run.kernel, name, "torch", {}, run.sizes, run.dtype, run.device)
        again.append(
            _record(run, case, best.time_s * share, best.flops, best.bytes, None, dice, "final")
        )
    again = [_in_windows(r, dice) for r in again]
    hot = replace(measured(best.time_s * 0.97, seed=5), regime="hot")
    top = again[0]
    return [*again, replace(top, phase="hot", timing=hot)]


def _in_windows(record: Record, dice: random.Random) -> Record:
    """A final as it is taken: eight windows, a settled clock that wanders, a power cap, and the
    default never stable."""
    timing = record.timing
    assert isinstance(timing, Measured)
    samples = timing.samples_s
    sizes = (len(samples) // 8,) * 8
    timing = replace(
        timing,
        state="sustained",
        rounds=8,
        window_sizes=sizes,
        window_mhz=tuple(1755.0 + 40 * dice.gauss(0, 1) for _ in sizes),
        throttle=("power cap",) if record.case.is_baseline else (),
        stable=not record.default,
        left_out=5 if record.default else 0,
    )
    return replace(record, timing=timing)
