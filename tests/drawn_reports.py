"""Tables of reports: ceilings in both states, findings, energies, and figures line by line."""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import synthetic
from rich.console import Console
from table_text import text_of

from workbench.data.energy import energy_of
from workbench.data.record import Evidence, Failure, Finding, Measured, Outcome, Record
from workbench.data.selection import config_key
from workbench.reports import ceilings, findings
from workbench.reports import roofline as page
from workbench.reports.figures import ceilings as bars
from workbench.reports.figures import energy, limit_lines, roofline, sweep
from workbench.reports.figures.profiled_traffic import Traffic
from workbench.reports.figures.roofline_points import Arrow, RunWithOutcomes, Sheet, sheet_of
from workbench.reports.figures.room import Room
from workbench.reports.figures.scene import scene_of

Rows = Iterator[str]
DICE = 41


# Figures as they are handed to matplotlib


def parts(fig: Any) -> Rows:
    """Yield axes, lines, boxes and notes of a figure, without what a layout computes."""
    yield f"  figure {text_of(list(fig.get_size_inches()))}"
    for ax in fig.axes:
        place = text_of(list(ax.get_position().bounds))
        yield f"  axes {place} {ax.get_xscale()} {ax.get_yscale()} {ax.get_xlabel()!r}"
        yield f"    {text_of([*ax.get_xlim(), *ax.get_ylim()])} {ax.get_ylabel()!r}"
        for axis in (ax.xaxis, ax.yaxis):
            labels = [label.get_text() for label in axis.get_ticklabels()]
            size = axis.get_ticklabels()[0].get_size() if labels else None
            yield f"    ticks {text_of(list(axis.get_ticklocs()))} {labels} {size}"
        yield f"    spines {[name for name, s in ax.spines.items() if s.get_visible()]}"
        for one in ax.lines:
            data = [list(map(float, one.get_xdata())), list(map(float, one.get_ydata()))]
            look = one.get_color(), one.get_linewidth(), one.get_linestyle(), one.get_zorder()
            yield f"    line {text_of(data)} {look} {one.get_marker()} {one.get_markersize()}"
        for box in ax.patches:
            look = box.get_facecolor(), box.get_edgecolor(), box.get_linewidth(), box.get_zorder()
            yield f"    box {text_of(list(box.get_extents().bounds))} {text_of(look)}"
        for note in ax.texts:
            at = getattr(note, "xy", note.get_position()), getattr(note, "xyann", None)
            look = note.get_color(), note.get_size(), note.get_ha(), note.get_va()
            yield f"    text {note.get_text()!r} {text_of(at)} {look} {note.get_weight()}"


def drawn(call: Callable[..., Any], *arguments: Any, **more: Any) -> list[str]:
    """Return the parts of the figure that a call draws, and what it lays over them."""
    seen: list[str] = []

    def keep(fig: Any, prefix: str, title: str, over: str = "", **_: Any) -> str:
        seen.extend([f"  {prefix} {title}", *parts(fig), *(f"  {over}".split("<use"))])
        return "drawn"

    with ExitStack() as stack:
        for module in (bars, energy, limit_lines, roofline, sweep):
            stack.enter_context(patch.object(module, "figure_svg", keep))
        result = call(*arguments, **more)
    return seen if result == "drawn" else [f"  {result}"]


def records_of(outcomes: list[Outcome], phase: str = "") -> list[Record]:
    return [o for o in outcomes if isinstance(o, Record) and (not phase or o.phase == phase)]


def board_of(outcomes: list[Outcome], best: Record | None, ranked: bool = True) -> sweep.Board:
    """Return what the figures of a page share."""
    impls = list(dict.fromkeys(o.case.impl for o in outcomes))
    others = [i for i in impls if i.startswith("torch")]
    own = frozenset(config_key(o.case) for o in outcomes[:5])
    return sweep.Board({id(o): n for n, o in enumerate(outcomes)}, impls, (1e-6, "µs"), best,
                       {}, None if ranked else own, others)  # fmt: skip


def runs() -> Iterator[tuple[str, list[Outcome]]]:
    """Yield few outcomes of sweeps: measured, predicted, with finals and failures."""
    choices = {"tiles": {"block_m": (64, 128), "block_n": (64,), "block_k": (32, 64),
                         "num_warps": (4,), "num_stages": (3,)}}  # fmt: skip
    for predicted in (False, True):
        yield f"matmul {predicted}", synthetic.matmul(predicted, choices=choices)[1]
        yield f"softmax {predicted}", synthetic.softmax(predicted)[1][:14]
    yield "copy", synthetic.copy()[1][:12]


def limits_drawn() -> Rows:
    """Yield rooflines and bandwidths under several ceilings."""
    dice = random.Random(DICE)
    every = {
        "dram": {"value": 4.8e12, "unit": "B/s", "kind": "datasheet"},
        "dram_measured": {"value": 4.3e12, "unit": "B/s", "kind": "measured", "state": "sustained"},
        "dram_boost_measured": {"value": 4.4e12, "unit": "B/s", "kind": "measured",
                                "state": "boost"},
        "cache": {"value": 9.1e12, "unit": "B/s", "kind": "measured"},
        "cache_slow": {"value": 1.2e12, "unit": "B/s", "kind": "measured"},
        "none": {"value": 0, "unit": "B/s"},
        "compute": {"value": 989e12, "unit": "FLOP/s", "dtype": "bf16", "kind": "datasheet"},
        "compute_measured": {"value": 7e14, "unit": "FLOP/s", "dtype": "bf16", "kind": "measured"},
        "launch_measured": {"value": 1e-6, "unit": "s", "kind": "measured"},
    }  # fmt: skip
    for name, outcomes in runs():
        for _ in range(3):
            some = {n: every[n] for n in every if dice.random() < 0.6} or {"dram": every["dram"]}
            records = records_of(outcomes)[:6]
            board = board_of(outcomes, dice.choice((records[0], None)))
            yield f"{name} {list(some)} {board.best is not None}"
            for record in records[:2]:
                yield f"  {text_of([s[:2] for s in limit_lines.shares_of(some, record)])}"
            if records[0].flops:
                yield from drawn(limit_lines.roofline, board, records, some, "r")
            yield from drawn(limit_lines.bandwidth, board, records, some, "b")


def sweeps_drawn() -> Rows:
    """Yield the figures of a sweep's page."""
    for (name, outcomes), ranked in itertools.product(runs(), (True, False)):
        records = records_of(outcomes)
        best = min(records, key=lambda r: r.time_s)
        board = board_of(outcomes, best, ranked)
        yield f"{name} {ranked} {text_of([board.ratio_to_best(r) for r in records[:9]])}"
        times = [board.text(s) for s in (1e-6, 99.996e-6, 1e-4, 0.01, 9e-7)]
        yield f"  {[board.time_text(r) for r in records[:9]]} {times}"
        fields = [f for f in ("block_m", "block_k", "num_warps") if f in records[0].case.config]
        if len(fields) > 1:
            impl = records[0].case.impl
            mine = [o for o in outcomes if o.case.impl == impl]
            yield f"  {sorted(sweep.blanks(mine, tuple(fields[:2])))}"
            yield from drawn(sweep.heat_map, board, outcomes, tuple(fields[:2]), impl, "h")
        own = [r for r in records if fields and fields[0] in r.case.config]
        if own:
            yield from drawn(sweep.one_field, board, own, fields[0], "o")
        yield from drawn(
            sweep.resource_figure, board, records[:7], lambda r: r.registers, "registers", "a"
        )
        if not any(r.is_measured for r in records):
            continue
        last = (records_of(outcomes, "final") or records)[:5]
        words = {id(last[0]): "winner", id(last[-1]): "default"}
        yield from drawn(sweep.finals, board, last, "f", words)
    yield text_of([sweep.heat_step(r) for r in (1.0, 1.02, 1.021, 1.05, 1.3, 2.0, 2.01)])
    for low, high in ((1, 19.9), (1, 20), (2, 399), (2, 400), (0.7, 0.7), (3, 1e4)):
        yield f"{low} {high} {text_of(sweep.one_two_five(low, high))}"
    yield text_of([sweep.jitter(n) for n in (0, 1, 2, 50)])
    yield text_of(sweep.marks_of([*"abcdefghijklmn", *"vwxyz"], "vwxyz"))


def energies() -> Rows:
    """Yield what pages say of energies: cold and warm, told apart and not, and none."""
    dice = random.Random(DICE)
    for value in (0.0, 9.9e-8, 1e-6, 1e-4, 0.0123456, 0.999, 1.0, 12.345, 1e4):
        yield f"{value} {energy.millijoules(value)}"
    run, outcomes = synthetic.matmul_with_energy()
    finals = records_of(outcomes, "final")
    none = synthetic.matmul_with_energy("the driver has no counter")[1]
    for number in range(24):
        some: list[Any] = dice.sample(finals, min(len(finals), dice.choice((1, 2, 3, 6))))
        for n, record in enumerate(some):
            known = energy_of(record)
            if known is None or not isinstance(record.timing, Measured):
                continue
            by = dice.choice((0.8, 1.0, 1.0, 1.2))
            changed = replace(
                known,
                joules=by * known.joules,
                low_joules=by * known.low_joules,
                high_joules=by * known.high_joules,
                step_s=0.02,
                regime=dice.choice(("cold", "warm")),
                source=dice.choice(("nvml", "x")),
                window_joules=tuple(by * j for j in known.window_joules),
            )
            some[n] = replace(record, timing=replace(record.timing, energy=changed))
        some += records_of(none, "final")[: number % 3]
        winner = dice.choice((*some, None))
        env = replace(run.environment, others_on_gpu=number % 2)
        yield f"{energy.energy_sentence(some, winner)} {energy.energy_notes(some, env)}"
        yield f"  {energy.energy_how(some)} {[r.case.label for r in energy.front_of(some)]}"
        for record in some:
            cells = [energy.energy_cells(record, memory) for memory in (True, False)]
            yield f"  {cells} {energy.energy_fact(record)}"
        if number % 4 == 0:
            yield from drawn(energy.time_and_energy, board_of(some, winner), some, "e")


def plain(dice: random.Random, name: str, level: str, unit: str, value: float) -> dict[str, Any]:
    """Return a ceiling of a run, measured or stated, which may have failed."""
    value *= dice.choice((0.95, 1.0, 1.015, 1.03, 30.0))
    one: dict[str, Any] = {"title": f"title of {name}", "level": level, "unit": unit,
                           "kind": "measured" if "measured" in name else
                           dice.choice(("datasheet", "measured", "computed")),
                           "source": "here", "low": 0.97 * value, "high": 1.02 * value}  # fmt: skip
    if "measured" in name:
        one["state"] = "boost" if "boost" in name else dice.choice(("sustained", ""))
    if dice.random() < 0.85 or "measured" not in name:
        one["value"] = value
    else:
        one["reason"] = "no kernel runs"
    for key, known, chance in (
        ("clock_mhz", 1755.4, 0.6), ("stated", {"value": 1.1 * value, "kind": "measured"}, 0.5),
        ("library", {"name": "cuBLAS", "value": 0.9 * value}, 0.5), ("unchecked", "no time", 0.15),
        ("failed", True, 0.15),
    ):  # fmt: skip
        one |= {key: known} if dice.random() < chance else {}
    return one | ({"reason": "it is too wide"} if "failed" in one else {})


def ceilings_shown() -> Rows:
    """Yield the sentences, cells, bars and lines of drawn ceilings in both states."""
    dice = random.Random(DICE)
    stems = (
        ("dram_read", "dram", "B/s", 4.4e12),
        ("dram_copy", "dram", "B/s", 4.1e12),
        ("cache", "cache", "B/s", 9e12),
        ("shared", "shared", "B/s", 3e13),
        ("compute_bf16", "compute", "FLOP/s", 8e14),
        ("compute_int8", "compute", "OP/s", 1.5e15),
        ("launch", "launch", "s", 1.1e-6),
        ("h2d_pinned", "link", "B/s", 5.5e10),
    )
    run, outcomes = synthetic.copy()
    record = records_of(outcomes)[0]
    for value in (0.0123456, 0.99999, 1.0, 12.3456, 999.94, 1000.0, 12345.6):
        yield f"{ceilings.digits(value)} {ceilings.digits_with_zeros(value)}"
    for number in range(40):
        known = {}
        for stem, level, unit, value in dice.sample(stems, dice.randrange(len(stems) + 1)):
            for name in (stem, f"{stem}_measured", f"{stem}_boost_measured"):
                if dice.random() < 0.6:
                    known[name] = plain(dice, name, level, unit, value)
        here = replace(run, ceilings=known, device="h200")
        yield f"{ceilings.sentence(here)} {ceilings.stated_lines(here)}"
        pairs = ceilings.state_pairs(here)
        for pair in pairs:
            yield f"  {ceilings._cells(pair)}"
            yield f"  {ceilings.line(pair)}"
        yield f"  {[ceilings._stated_cells(c) for c in ceilings.stated_of(here)]}"
        for panel in ceilings.panels(pairs):
            yield f"  {text_of(panel)} {text_of(panel.reach)}"
        text = io.StringIO()
        console = Console(file=text, width=(100, 170)[number % 2], force_terminal=number % 3 > 0,
                          color_system=None)  # fmt: skip
        ceilings.show(console, here)
        yield from text.getvalue().splitlines()
        if number % 5 == 0 and pairs:
            yield from drawn(bars.bars, ceilings.panels(pairs), "c")
    copies: list[Outcome] = []
    for impl, size in itertools.product(
        ("h2d_pinned", "d2h_pageable"), (1023, 1024, 1 << 19, 1 << 20, 3 << 20)
    ):
        case = replace(record.case, kernel="host_copy", impl=impl, sizes={"B": size})
        copies.append(replace(record, case=case, timing=synthetic.measured(2e-6 + size / 5e10, 8)))
    yield text_of(ceilings._copies(copies[:-1]))
    yield text_of(ceilings._copies(outcomes))
    some: list[Outcome] = [*copies[:2], record, replace(record, timing=replace(
        synthetic.measured(1e-5, 8), stable=False, sm_mhz=1700.0, state="boost")),
        *records_of(synthetic.copy()[1])[:1], *records_of(synthetic.softmax(True)[1])[:1],
        Failure(record.case, "f", run.id, synthetic.AT, "launch", "it broke.")]  # fmt: skip
    yield from (text_of(ceilings._variant(o)) for o in some)
    yield text_of((ceilings._how(some), ceilings._how([])))


def evidence(dice: random.Random, name: str, group: str) -> Evidence:
    low, high = dice.choice(((None, None), (0.2, 0.4), (None, 0.4)))
    return Evidence(name, dice.choice((0.25, 3e-5, 12.0)),
                    dice.choice(("1", "s", "B", "B/s", "kernels")),
                    dice.choice(("measured", "predicted", "profiled")), low, high, group,
                    dice.choice(("", "> 80 %")), dice.choice((None, True, False)))  # fmt: skip


NAMES = (
    *findings.BASELINE,
    "GEMM share",
    "products, share",
    "copies: host to device",
    "DRAM",
    "peak memory without inputs",
    "idle: host wait",
    "largest error, in tolerances",
)


def finding(dice: random.Random, n: int) -> Finding:
    groups = ("", "eager", "graph", findings.IMPACT, findings.GAINS)
    some = tuple(evidence(dice, name, dice.choice(groups))
                 for name in dice.sample(NAMES, dice.randrange(7)))  # fmt: skip
    rule = dice.choice(("", "", "spills"))
    return Finding("r", synthetic.AT, "launch_overhead", dice.choice(("", "softmax", "a`b")),
                   dice.choice(({}, {"M": 4, "N": 8})), dice.choice(("", "bf16")),
                   dice.choice(("launch-bound", findings.COUNTERS, "mixed")),
                   f"It_is *number* {n % 4} | so.", some, (), ("a ~ caveat",) * (n % 3), rule,
                   dice.choice((None, 0, 1e-5, 4e-5)) if rule else None, "Do it.",
                   dice.choice(("small", "large")), ("k.py:3", "k.py:5")[: n % 3])  # fmt: skip


def findings_written() -> Rows:
    """Yield files of findings of runs of each engine, with evidence and without."""
    dice = random.Random(DICE)
    yield from findings.markdown([]).splitlines()
    for number, make in zip(range(18), itertools.cycle(
            (synthetic.matmul, synthetic.softmax, synthetic.copy)), strict=False):  # fmt: skip
        run, outcomes = (
            make()
            if number % 6 < 3
            else (make(predicted=True) if make is not synthetic.copy else make(finals=False))
        )
        env = replace(
            run.environment,
            power_limit_w=dice.choice((None, 700.0)),
            others_on_gpu=number % 2,
            clock_policy=dice.choice(("unknown", "free")),
            dirty=number % 3 > 0,
            driver=dice.choice(("", "580.1")),
            commit=dice.choice(("", "abc")),
        )
        memory = {"memory": {"value": 4e12, "unit": "B/s"}} if number % 2 else {}
        files = ({"name": "a.json", "sha256": "0123456789abcdef"},) if number % 5 == 4 else ()
        here = replace(
            run,
            environment=env,
            ceilings=memory,
            files=files,
            started=f"20{10 + number}",
            engine=dice.choice(("sweep", "measure")),
        )
        few = dice.choice(([], outcomes[:7], outcomes[-9:], records_of(outcomes)[:41]))
        made = [finding(dice, n) for n in range(dice.randrange(5))]
        yield from findings.markdown([(here, few, made), (here, few[:1], made[:1])]).splitlines()


def sheets() -> Iterator[tuple[str, Sheet]]:
    """Yield sheets of one device and of two, with arrows between their points and bytes that a
    profiler counted."""
    dice = random.Random(DICE)
    made = {
        "measured": [synthetic.matmul(), synthetic.softmax(), synthetic.copy()],
        "two devices": [synthetic.matmul(), synthetic.matmul(predicted=True)],
        "one": [synthetic.softmax()], "bandwidth": [synthetic.copy()],
        "predicted": [synthetic.softmax(predicted=True)],
    }  # fmt: skip
    for (name, runs_), everything in itertools.product(made.items(), (False, True)):
        stored = []
        for n, (run, outcomes) in enumerate(runs_):
            few = outcomes[:9] + outcomes[-9:]
            device = "mi300x" if name == "two devices" and n else "h200"
            few = [replace(o, case=replace(o.case, device=device)) for o in few]
            stored.append(RunWithOutcomes(replace(run, device=device), few))
        sheet = sheet_of(stored, (), everything)
        points = [
            replace(p, traffic=tuple(
                Traffic(level, p.load.bytes * by, p.load.flops or 1e9, "ncu")
                for level, by in (("dram", 1.3), ("cache", 2.5)) if dice.random() < 0.5))
            for p in sheet.points
        ]  # fmt: skip
        pairs = [dice.sample(range(len(points)), 2) for _ in range(5) if len(points) > 1]
        arrows = [
            Arrow(a, b, points[b].load.time_s / points[a].load.time_s - 1, "left to right")
            for a, b in pairs
        ]
        yield f"{name} {everything}", replace(sheet, points=tuple(points), arrows=tuple(arrows))


def rooflines() -> Rows:
    """Yield what a page of rooflines says and draws."""
    for name, sheet in sheets():
        scene = scene_of(sheet)
        yield f"{name}: {page.sentence(sheet)}"
        for part in (
            page._scope,
            page._ceilings,
            page._kernel_diagnoses,
            page._pair,
            page._protocols,
        ):
            yield f"  {text_of(part(sheet))}"  # type: ignore[operator]
        yield f"  {text_of(page._switches(scene))} {text_of(scene.looks())}"
        heads = page._heads(sheet)
        yield f"  {[(h.name, h.css, h.falls) for h in heads]}"
        for n, point in enumerate(sheet.points):
            yield f"  {text_of(page._row(n, point, heads))} {page.time_text(point)}"
        if scene.placed_points:
            yield from drawn(roofline.chart, scene, "roof")
        if scene.strip:
            yield from drawn(roofline.strip, scene, "strip")


def rooms() -> Rows:
    """Yield the places that are left for texts beside points, lines and rings."""
    dice = random.Random(DICE)
    for number in range(60):
        room = Room(300, 200, *((10, 20) if number % 2 else (0, 0)))
        room.dots = [(dice.randrange(320), dice.randrange(220)) for _ in range(number % 7 * 3)]
        start, end = ((dice.randrange(300), dice.randrange(200)) for _ in range(2))
        if number % 3:
            room.cross(start, end)
        else:
            room.ring(start, end)
        yield text_of((room.dots, room.line_dots[:4], room.line_dots[-1:]))
        for at in range(5):
            x, y = dice.choice((0, 40, 150, 295)), dice.choice((5, 100, 195))
            spot = room.find((x, y), "text " * at, dice.choice((6, 8, 12)), dice.random() < 0.5)
            yield f"  {x} {y} {text_of(spot)}"
            if spot and at == 2:
                room.take(*spot, "taken")


TABLES: dict[str, Callable[[], Rows]] = {
    "report_limits": limits_drawn, "report_sweeps": sweeps_drawn, "report_energies": energies,
    "report_ceilings": ceilings_shown, "report_findings": findings_written,
    "report_rooflines": rooflines, "report_rooms": rooms,
}  # fmt: skip
