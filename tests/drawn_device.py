"""Tables of the models of a device, its ceilings and its files, of drawn data."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from table_text import text_of

from workbench.catalog import spec_of
from workbench.data.record import Resources
from workbench.device import (
    apple_model,
    bounds,
    ceilings,
    code_model,
    cost_model,
    error_band,
    hardware,
)
from workbench.device.calibration import calibration_of
from workbench.device.ceilings import Ceiling, CeilingSet, Load
from workbench.device.code_model import LaunchWork, RegionWork
from workbench.device.correction import (
    _move,
    _octaves,
    _power_of_two,
    _step,
    best_of,
    calibrated_kernel,
    left_out,
    measured_config,
    same_architecture,
)
from workbench.device.hardware import UNCOMPILED, find_device
from workbench.spec import Work

Rows = Iterator[str]
GPUS = ("h200", "h100", "b200", "a100", "rtx4090", "mi300x", "rx7900xtx")
TERMS = ("predicted_s", "compute_s", "dram_s", "cache_s", "latency_s", "launch_s", "bound")


def attempt(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or its error as a text."""
    try:
        return call()
    except (ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}"


def figures(predicted: Any) -> str:
    """Return the terms of a prediction, or the error that stands in its place."""
    if isinstance(predicted, str):
        return predicted
    return " ".join(text_of(getattr(predicted, term)) for term in TERMS)


def resources(dice: random.Random, programs: int) -> Resources:
    """Return resources of a launch; spills fit near a core, or do not."""
    return Resources(
        binary="", registers=dice.choice((32, 64, 168, 255)),
        spill_bytes=dice.choice((0, 0, 0, 16, 120, 1000)),
        shared_bytes=dice.choice((0, 0, 49_152, 100_000, 230_000)),
        threads=32 * dice.choice((1, 2, 4, 8, 16)), blocks_per_core=dice.choice((0, 1, 2, 3, 8)),
        occupancy=0.5, limiter="", programs=programs, waves=0.0, tail=0.0,
        load_bits=dice.choice((0, 8, 16, 31, 32, 64, 128)),
        matrix_unit=dice.choice((None, "wgmma", "mma", "tcgen05", "mfma")), compile_s=0.0,
        copy_engine=dice.random() < 0.3,
    )  # fmt: skip


KINDS = (
    "flops", "load_bytes", "load_whole_bytes", "load_apart_bytes", "copy_bytes", "shared_bytes",
    "copy_apart_bytes", "store_apart_bytes", "atomic_apart_bytes", "load_instructions",
    "store_instructions", "copy_instructions", "vector", "shuffles", "special", "load_lines",
    "store_lines", "copy_lines", "store_bytes", "atomic_lines", "barriers", "chain", "hot",
    "descriptors",
)  # fmt: skip
MOST = {"barriers": 6, "descriptors": 3, "hot": 3, "chain": 900, "flops": 4_000_000,
        "load_whole_bytes": 400_000}  # fmt: skip


def region(dice: random.Random, kinds: tuple[str, ...]) -> RegionWork:
    amounts = {kind: float(dice.randint(1, MOST.get(kind, 60_000))) for kind in kinds}
    peak = dice.choice(("bf16", "fp16", "fp32", "fp8")) if "flops" in kinds else ""
    return RegionWork(amounts, dice.choice((1.0, 3.0, 17.5)), dice.random() < 0.6,
                      dice.randrange(3), dice.random() < 0.4, peak)  # fmt: skip


def code_models() -> Rows:
    """Yield predictions of code: of each kind of amount by itself and of drawn mixtures."""
    dice = random.Random(31)
    single = [(kind,) for kind in KINDS] + [("flops", "vector"), ("load_bytes", "load_whole_bytes")]
    for kinds in [*single, *(tuple(dice.sample(KINDS, dice.randint(3, 20))) for _ in range(140))]:
        device = find_device(dice.choice(GPUS))
        programs = dice.choice((1, 7, 132, 133, 400, 1056, 5000))
        regions = tuple(region(dice, kinds) for _ in range(dice.choice((1, 1, 2, 3))))
        work = LaunchWork(programs, dice.choice((1, 2, 4, 8)), dice.choice((1, 2, 3, 4)), regions,
                          dice.choice((0.0, 1e5, 3e7)), 1e5,
                          dice.choice((None, None, 1.5, 3.0)))  # fmt: skip
        created = resources(dice, programs)
        result = attempt(lambda d=device, w=work, c=created: code_model.predict_launch(d, w, c))
        yield f"{device.name} {'+'.join(kinds)} {programs}: {figures(result)}"
        yield f"  {text_of(work.flops)} {code_model.resident_programs(device, programs, created)}"
        if not isinstance(result, str):
            both = code_model.predict_each(device, [work, work], [created, created])
            yield f"  twice {figures(both)}"


def drawn_work(dice: random.Random) -> Work:
    dot = dice.choice((None, None, (16, 16, 16), (32, 64, 16), (64, 64, 32), (128, 128, 64),
                       (63, 256, 64), (256, 64, 64)))  # fmt: skip
    return Work(
        tiles=dice.choice((1, 64, 131, 132, 133, 264, 1000, 4096)),
        steps=dice.choice((0, 1, 2, 32)),
        load_bytes=dice.choice((0, 2048, 32_768)) if dot is None else sum(dot[:2]) * dot[2] * 2,
        store_bytes=dice.choice((0, 1024, 65_536)),
        dot=dot,
        band=dice.choice((1, 4, 8)),
        vector_ops=dice.choice((0, 0, 5000, 100_000)),
        special_ops=dice.choice((0, 0, 900, 50_000)),
        overlapped=dice.random() < 0.4,
        stages=dice.choice((None, None, 1, 2, 3)),
        products=dice.choice((1, 1, 2)),
        barriers=dice.choice((0, 2)),
        waits=dice.choice((0, 1, 3)),
        hits=dice.choice((0, 0, 4)),
        passed_bytes=dice.choice((0, 10**6, 10**9)),
        memory_bytes=dice.choice((0, 10**6)),
    )


def cost_models() -> Rows:
    """Yield predictions of declared work: of single launches, of calls of several, and guesses."""
    dice = random.Random(32)
    for _ in range(260):
        device = find_device(dice.choice(GPUS))
        works = [drawn_work(dice) for _ in range(dice.choice((1, 1, 1, 2, 3)))]
        dtype = dice.choice(("bf16", "fp16", "fp32"))
        each = tuple(
            resources(dice, dice.choice((w.tiles, w.tiles, max(1, w.tiles // 3)))) for w in works
        )
        costs = dict(
            dtype=dtype,
            flops=dice.choice((0, 10**6, 10**10)),
            stages=dice.choice((1, 2, 3)),
            bytes_=dice.choice((10**5, 10**7, 10**8, 10**9)),
        )
        result = attempt(
            lambda d=device, w=works, e=each, c=costs: cost_model.predict_call(d, w, e, **c)
        )
        yield f"{device.name} {dtype} {works[0].tiles} {works[0].dot}: {figures(result)}"
        launches = dice.choice((1, 2, 3))
        known = cost_model.LaunchResources(each[0], launches, each)
        declared = dice.choice((works, works, None))
        result = attempt(
            lambda d=device, w=declared, k=known, c=costs: cost_model.predict_launches(d, w, k, **c)
        )
        yield f"  {len(declared or ())} of {launches}: {figures(result)}"
        warps, stages = dice.choice((1, 4, 6, 8)), dice.choice((1, 2, 3))
        guess = cost_model.guess(device, works[0], dtype, warps=warps, stages=stages)
        yield f"  {warps} {stages} {text_of(guess)}"


def model_sizes() -> Rows:
    """Yield bounds of a call, with figures and without."""
    for name in (*GPUS, "m2max"):
        device = find_device(name)
        bare = replace(device, dram=None, cache_bandwidth=None, peaks={})
        for one, dtype in itertools.product((device, bare), ("bf16", "fp32", "fp8", "int8")):
            each = [
                call(one, 10**8, 10**11, dtype) for call in (bounds.bound_s, bounds.hot_bound_s)
            ]
            alone = bounds.arithmetic_s(one, 10**9, dtype)
            yield f"{name} {dtype} {text_of(each)} {text_of(alone)}"
        for some in ({"tf32": 1.0, "fp32": 3.0}, {"fp32": 3.0}, {"fp32_matrix": 2.0}):
            peaks = {n: hardware.Quantity(1e12 * v, "FLOP/s", "here") for n, v in some.items()}
            found = bounds.arithmetic_s(replace(device, peaks=peaks), 10**12, "fp32")
            yield f"  {some} {text_of(found)}"


def apple_models() -> Rows:
    dice = random.Random(33)
    for name, _ in itertools.product(sorted(UNCOMPILED), range(12)):
        device = UNCOMPILED[name]
        work = apple_model.MetalWork(
            float(dice.choice((10**5, 10**7, 10**9))), dice.choice((10**5, 10**7)),
            dice.choice((0, 1_300_000, 10**9, 10**12)), dice.choice((1, 1024, 38_912, 10**6)),
            dice.choice((1, 2)),
        )  # fmt: skip
        dtype = dice.choice(("fp32", "fp16", "fp64"))
        result = attempt(lambda d=device, w=work, t=dtype: apple_model.predict(d, w, t))
        yield f"{name} {dtype} {text_of(work)}: {text_of(result)}"
        if not isinstance(result, str):
            yield f"  {text_of(apple_model.term_intervals(device, result, work.least_bytes))}"
    at = replace(UNCOMPILED["m2max"], peaks={})
    for flops in (12_999_999, 13_000_000, 13_000_001):
        work = apple_model.MetalWork(10.0**6, 10**6, flops, 1024)
        yield f"{flops} {text_of(attempt(lambda w=work: apple_model.predict(at, w, 'fp32')))}"


def corrections() -> Rows:
    """Yield parts of the correction: steps, octaves, moved configs, sizes left out."""
    yield text_of([_step((1, 4, 2), v) for v in (None, 0, 1, 2, 3, 4, 5)] + [_step((), 3)])
    yield text_of([_power_of_two(n) for n in (0, 1, 2, 3, 4, 5, 64, 65)])
    yield text_of([_octaves({"M": m, "N": n}, {"M": 64, "N": 1})
                   for m, n in ((64, 1), (32, 1), (64, 4), (640, 3))])  # fmt: skip
    for name in GPUS:
        yield f"{name}: {[d.name for d in same_architecture(find_device(name))]}"
    for kernel, name, dtype in (("softmax", "h100", "bf16"), ("matmul", "h100", "bf16")):
        device, spec = find_device(name), spec_of(kernel)
        known = calibration_of(name)
        assert known is not None
        times = known.times_of(kernel, dtype)
        chosen = {tuple(t.sizes.items()) for t in times}
        some = sorted(chosen)[:6]
        picked = [t for t in times if tuple(t.sizes.items()) in some][::7]
        yield f"{kernel} {len(times)} {len(chosen)} {len(picked)}"
        for aligned, part in itertools.product((True, False), (picked, picked[:2])):
            fitted = calibrated_kernel(part, spec, device, aligned)
            yield f"  {aligned} {len(part)} {fitted and (sorted(fitted.impls), len(fitted.places))}"
            if fitted is None:
                continue
            yield f"  {text_of(left_out(fitted))}"
            yield f"  {text_of(fitted.factors(fitted.places[:5]))}"
            for impl in spec.impls:
                for sizes in [dict(s) for s in some[:3]] + [{a: 777 for a in spec.axes}]:
                    found = best_of(fitted, impl, device, dtype, sizes)
                    yield f"  {impl.name} {sizes} {text_of(found and found.seconds)}"
        for time in picked[:4]:
            place = measured_config(spec, time)
            assert place is not None
            yield f"  {text_of(place.seconds(device, dtype))} {text_of(place.resources)}"
            lacking = (replace(time, impl="none"), replace(time, config={}),
                       replace(time, sizes={"Q": 1}))  # fmt: skip
            yield f"  {[measured_config(spec, one) for one in lacking]}"
            works = place.impl.work_of(place.config, device.limits, dtype, place.sizes)
            assert works
            tiles = works[0].tiles
            for programs in (tiles - 1, tiles, tiles + 1):
                here = replace(place, resources=replace(place.resources, programs=programs))
                for now in (tiles - 2, tiles, 3 * tiles):
                    moved = _move(here, place.sizes, [replace(works[0], tiles=now)], works[:1])
                    yield f"  {programs - tiles} {now}: {moved.resources.programs} {moved.each}"


def plain_ceilings() -> Rows:
    """Yield ceilings from plain data: levels, origins, states, texts and units."""
    dice = random.Random(34)
    names = ("dram", "dram_copy_measured", "dram_read_boost_measured", "cache_measured", "l2",
             "shared_measured", "l1", "pcie", "compute_bf16_measured", "int8", "fp32_matrix",
             "compute_fp64_boost_measured", "launch", "launch_eager_measured", "other")  # fmt: skip
    for name, unit in itertools.product(names, ("B/s", "FLOP/s", "OP/s", "s", "m")):
        text: dict[str, Any] = {"value": dice.choice((3, 2.5e12, 0, -1.0, float("inf"), "many")),
                                "unit": unit}  # fmt: skip
        text |= {"kind": kind} if (kind := dice.choice((None, "measured", "computed"))) else {}
        text |= {"state": state} if (state := dice.choice((None, "boost", ""))) else {}
        text |= {"low": 1.0, "high": 4.0} if dice.random() < 0.4 else {}
        text |= {"failed": True} if dice.random() < 0.1 else {}
        text |= {"dtype": "int8"} if dice.random() < 0.2 else {}
        for own in (False, True):
            found = ceilings.ceiling_of("h200", name, text, "r1", own)
            yield f"{name} {text} {own}: {text_of(found)}"
            if found:
                yield f"  {found.text} {found.unit} {found.what} {found.stem} {found.is_measured}"


def one(name: str, level: Any, value: float, **more: Any) -> Ceiling:
    fields: dict[str, Any] = {"origin": "measured", "source": "here", **more}
    return Ceiling("h200", name, level, value, **fields)


def sets_of_ceilings() -> Rows:
    """Yield what sets of drawn ceilings choose and draw."""
    dice = random.Random(35)
    every = [
        one(
            f"{stem}{'_boost' if state == 'boost' else ''}_measured",
            level,
            value * by,
            state=state,
            dtype=dtype,
        )
        for stem, level, value, dtype in (
            ("dram_copy", "dram", 4e12, ""),
            ("dram_read", "dram", 4.4e12, ""),
            ("dram", "dram", 3.9e12, ""),
            ("dram_triad", "dram", 4.1e12, ""),
            ("cache", "cache", 8e12, ""),
            ("shared", "shared", 3e13, ""),
            ("compute_bf16", "compute", 8e14, "bf16"),
            ("compute_fp8", "compute", 1.6e15, "fp8"),
            ("launch", "launch", 1e-6, ""),
            ("launch_graph", "launch", 1.2e-6, ""),
            ("launch_eager", "launch", 4e-6, ""),
            ("mine", "dram", 3e12, ""),
        )
        for state, by in (
            ("sustained", 1.0),
            ("boost", 1.01 if stem == "dram_copy" else 1.2),
            ("", 0.9),
        )
    ]
    every += [
        one("dram", "dram", 4.8e12, origin="datasheet"),
        one("compute_bf16", "compute", 9.9e14, origin="datasheet", dtype="bf16", state="boost"),
        one("cache", "cache", 7e12, origin="published"),
    ]
    for _ in range(120):
        some = tuple(dice.sample(every, dice.randint(1, 14)))
        known = CeilingSet("h200", some, None, (), dice.choice(("sustained", "boost")))
        yield f"{known.state} {[(c.name, c.state) for c in some]}"
        for level, dtype in (("dram", ""), ("cache", ""), ("compute", "bf16"), ("compute", "fp8")):
            best, highest = known.best(level, dtype), known.highest(level)
            yield f"  {level} {best and best.name} {highest and (highest.name, highest.state)}"
        launches = [known.launch(host) for host in (True, False)]
        yield f"  {[c and c.name for c in launches]} {[(c.name, c.state) for c in known.lines()]}"
        yield f"  {text_of([known.ridge(c) for c in some])} {[known.alike(c) for c in some]}"


def limits_of_loads() -> Rows:
    """Yield the diagnosis of calls exactly at, just below and just above each limit."""
    shares = (0.0999, 0.1, 0.1101, 0.2499, 0.25, 0.275, 0.2751, 0.3, 0.3334, 0.45, 0.55, 0.5999,
              0.6, 0.6001, 0.98, 1.0, 1.0001, 1.04, 1.06, 1.2)  # fmt: skip
    base = [
        one("dram_copy_measured", "dram", 1e12, high=1.05e12, state="sustained"),
        one("dram_read_measured", "dram", 1.1e12, state="sustained"),
        one("compute_bf16_measured", "compute", 1e14, dtype="bf16", state="sustained"),
        one("cache_measured", "cache", 2e12, state="boost"),
        one("launch_measured", "launch", 25e-6),
        one("launch_eager_measured", "launch", 40e-6),
    ]
    stated = [one("dram", "dram", 1e12, origin="datasheet"),
              one("compute_bf16", "compute", 1e14, origin="datasheet", dtype="bf16")]  # fmt: skip
    for some, share, regime in itertools.product(
        (base, stated), shares, ("cold", "hot", "predicted")
    ):
        known = CeilingSet("h200", tuple(some), 60e6)
        for moved, flops, state, host in (
            (share * 1e8, 0, "sustained", False),
            (share * 5e7, share * 1e10, "boost", True),
            (share * 1e8, share * 5e9, "boost", False),
            (share * 1e8, 1e10 * share, "sustained", True),
        ):
            load = Load(1e-4, 1.02e-4, int(flops), int(moved), "bf16", regime, host, state)
            held = ceilings.diagnose(load, known)
            yield f"{share} {text_of(load)} {held.word} {text_of((held.share, held.gain_s))}"
            yield f"  {held.sentence} {held.excess_reason}"


def error_bands() -> Rows:
    """Yield the words and ends of error bands of all devices."""
    for name in (*sorted(hardware.DEVICES), *sorted(UNCOMPILED), "none"):
        yield f"{name} {error_band.device_words(name)}"
        for kernels in ("matmul", "attention, softmax", "mine", "copy, mine"):
            yield f"  {kernels}: {error_band.device_words(name, kernels)}"
        device = error_band._find_device(name)
        plain = resources(random.Random(1), 1)
        for found in (
            error_band.estimate_band(device) if device else None,
            *(
                error_band.code_band(device, replace(plain, matrix_unit=unit), f"code-{n}")
                if device
                else None
                for unit, n in (("wgmma", 1), (None, 1), (None, 2))
            ),
        ):
            yield f"  {text_of(found)} {error_band.ends_of(found, 2e-6)}"
            yield f"  {error_band.ends_of(found, 2e-6, 1.9e-6)}"
    yield from error_band.devices_words(
        [("h200", "matmul"), ("h100", "copy"), ("h200", "softmax"), ("none", "copy")]
    )
    for seconds, model in itertools.product(
        (3.9e-6, 4e-6, 4.1e-6), ("analytic-4", "code-1", "code-2")
    ):
        with_unit = resources(random.Random(1), 1)
        kinds = [
            error_band._kind(seconds, r, model)
            for r in (
                None,
                replace(with_unit, matrix_unit=None),
                replace(with_unit, matrix_unit="mma"),
            )
        ]
        yield f"{seconds} {model} {kinds}"  # fmt: skip


def live_gpus() -> Rows:
    """Yield devices as drivers describe them: with figures left out, doubled and unheard of."""
    dice = random.Random(36)
    names = {
        "sm_90": ("NVIDIA H200", "NVIDIA H20"),
        "sm_100": ("NVIDIA B200", "NVIDIA B300"),
        "sm_75": ("Tesla T4",),
        "sm_121": ("NVIDIA  Spark (x)",),
        "gfx942": ("AMD Instinct MI300X", "AMD Instinct MI308X"),
        "gfx1100": ("AMD Radeon RX 7900 XTX", "AMD Radeon PRO"),
        "gfx803": ("Fiji",),
    }
    for arch, _ in itertools.product(names, range(8)):
        cuda = arch.startswith("sm_")
        figures = {
            "multi_processor_count": dice.choice((48, 66, 96, 132, 304)),
            "warp_size": 32 if cuda else 64, "L2_cache_size": dice.choice((0, 50 << 20)),
            "clock_rate": dice.choice((0, 1_980_000)), "memory_bus_width": dice.choice((0, 6144)),
            "memory_clock_rate": dice.choice((0, 3_201_000)),
            "max_threads_per_multi_processor": dice.choice((1024, 2048)),
            "regs_per_multiprocessor": dice.choice((0, 32_768, 65_536)),
            "shared_memory_per_block": 49_152,
            "shared_memory_per_block_optin": dice.choice((0, 232_448)),
            "shared_memory_per_multiprocessor": dice.choice((0, 233_472)),
        }  # fmt: skip
        some = {
            k: v for k, v in figures.items() if k == "multi_processor_count" or dice.random() < 0.8
        }
        number = int(arch.removeprefix("sm_")) if cuda else 0
        driver = SimpleNamespace(
            name=dice.choice(names[arch]),
            major=number // 10,
            minor=number % 10,
            gcnArchName=f"{arch}:xnack-",
            **some,
        )
        assert hardware._arch(driver, hip=not cuda) == arch
        kin = [d for d in hardware.DEVICES.values() if d.limits.arch == arch]
        known = next((d for d in kin if d.has_name(driver.name)), None)
        found = hardware._refresh(known, driver) if known else hardware._describe(driver, arch)
        yield f"{driver.name} {some}: {text_of(replace(found, bands=(), limits_source=''))}"


def stated_figures() -> Rows:
    """Yield what pages show of each device, by dtype."""
    for name in (*sorted(hardware.DEVICES), *sorted(UNCOMPILED)):
        device = find_device(name)
        yield f"{name} {device.backend} {device.peak_state()} {text_of(device.limits)}"
        yield f"  {text_of({k: q.value for k, q in device.peaks.items()})}"
        yield f"  {text_of(hardware.ceilings(device, 'bf16'))}"
        parts = hardware.parts_peak(device)
        yield f"  {text_of(parts and parts.value)} {text_of(hardware.ceilings(device, 'fp32'))}"
        stated = ceilings.stated_ceilings(name, device)
        yield f"  {[(c.name, text_of(c.value), c.state) for c in stated]}"
    for text in ("H 200", "h-300", "zzz", "m2max", "rtx"):
        for find in (hardware.device_named, find_device):
            found = attempt(lambda t=text, f=find: f(t).name)
            yield f"{text} {found} {hardware.backend_of(text)!r}"


TABLES: dict[str, Callable[[], Rows]] = {
    "code_models": code_models, "cost_models": cost_models, "model_bounds": model_sizes,
    "apple_models": apple_models, "correction_parts": corrections,
    "plain_ceilings": plain_ceilings, "sets_of_ceilings": sets_of_ceilings,
    "limits_of_loads": limits_of_loads, "error_bands": error_bands, "live_gpus": live_gpus,
    "stated_figures": stated_figures,
}  # fmt: skip
