"""Page of a sweep: the problem, the selection, four kinds of figure, every config in a table.

Everything here is a pure function of records, and runs without torch and Triton.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from workbench.data.record import (
    Failure,
    Finding,
    Measured,
    Outcome,
    Predicted,
    Profile,
    Record,
    Resources,
    Run,
    group_by,
)
from workbench.data.selection import (
    MODEL_SHARE,
    ConfigKey,
    Selection,
    class_interval,
    comparable_times,
    config_key,
    interval_of,
    members,
    memory_bound,
    ranking,
    rate,
    relevant,
    same_code,
    select,
)
from workbench.data.units import amount, rough, unit_of, whole_percent
from workbench.device import apple_model
from workbench.device.ceilings import clock_words, origin_of, state_of
from workbench.device.error_band import NEVER, expected_s, expected_words
from workbench.reports import render, table_of_profiles
from workbench.reports.figures import limit_lines as ceilings
from workbench.reports.figures import sweep as draw
from workbench.reports.figures.detail import csv_data, final_table, time_parts
from workbench.reports.figures.energy import (
    energy_fact,
    energy_how,
    energy_notes,
    energy_sentence,
    front_of,
    time_and_energy,
)
from workbench.reports.figures.final import lines, rounds
from workbench.reports.figures.sweep import Board
from workbench.reports.figures.table import PHASE_WORDS, columns, knob_names, knob_numbers, row
from workbench.reports.figures.timing import timings_of
from workbench.reports.figures.traffic import assumptions, emulated_words, traffic_table
from workbench.reports.selection_sentence import headline, modes_text, remarks
from workbench.reports.tables import Columns, table
from workbench.spec import knob_text
from workbench.tuner.prediction import FIRST

Look = tuple[str, int, str]  # name, number of the colour and mark of an Impl
_NEAR_CEILING = 0.6  # share of a ceiling from which on it is called the limit
_CLASS_LEGEND = ((0, "not told from the shortest"), (6, "longer, by the model's whole interval"))
_HEAT_LEGEND = ("≤ 1.02x", "1.05x", "1.1x", "1.2x", "1.5x", "2x", "> 2x")


def page(
    run: Run,
    outcomes: Sequence[Outcome],
    seconds: Mapping[str, float] | None = None,
    selection: Selection | None = None,
    profiles: Sequence[Profile] = (),
    findings: Sequence[Finding] = (),
) -> str:
    """Return the page as HTML. A run without records gives a page, too.

    `seconds` is the wall time by part, as the run recorded at its end; `selection` is `select(run,
    outcomes)` where the caller has it; `profiles` are those of the winner; `findings` say what the
    search left out.
    """
    result = select(run, outcomes) if selection is None else selection
    stand = _table_order(ranking(relevant(run, outcomes)), result)
    board = _board(run, stand, result)
    records = [o for o in stand if isinstance(o, Record)]
    hot = [o for o in relevant(run, outcomes) if isinstance(o, Record) and o.phase == "hot"]
    shown = columns(board, records, bool(emulated_words(run, stand)))
    finals = sorted((r for r in records if r.phase == "final"), key=lambda r: r.time_s)
    knobs = knob_names(stand)
    libraries = {o.case.impl for o in stand if o.case.is_baseline}
    first = comparable_times(relevant(run, outcomes))
    return render(
        "sweep.html.j2",
        run=run,
        unit=board.unit[1],
        env=run.environment,
        problem=", ".join(f"{k} {v}" for k, v in run.sizes.items()),
        model=_model(records, stand),
        best_band=bool(result.is_ranked and result.winner and expected_s(result.winner)),
        headline=headline(result),
        remarks=[f"{words[:1].upper()}{words[1:]}." for words in remarks(result) if words],
        result=result,
        emulated=emulated_words(run, stand),
        traffic=traffic_table(stand, result.winner),
        first_five=_first_five(board, records, result),
        facts=_facts(run, board, result, [r for r in hot if _same_config(r, result.winner)]),
        counts=_counts(result),
        legend=list(enumerate(_HEAT_LEGEND)) if result.is_ranked else _CLASS_LEGEND,
        ceiling_words=_ceiling_words(run, result.winner),
        energy_notes=energy_notes(finals, run.environment),
        windows=any(len(t.window_medians) > 1 for t in timings_of(finals)),
        full=final_table(run, board, [*finals, *hot], _words(result)),
        tie_reason=_tie_reason(run, result),
        stopped=[finding.sentence for finding in findings],
        doubts=_doubts(result.winner if result.is_ranked else result.fastest),
        csv=csv_data(run, board, stand),
        spent=time_parts(run, outcomes, seconds),
        profiled=table_of_profiles(profiles, outcomes),
        marks=legend_of(board.impls, stand),
        columns=shown,
        knobs=knobs,
        rows=[
            row(n, o, shown, board, result) | {"numbers": knob_numbers(o, knobs)}
            for n, o in enumerate(stand)
        ],
        folded=any(_is_refused(o) for o in stand) and not all(map(_is_refused, stand)),
        impls=board.impls,
        baselines=[i for i in board.impls if i in libraries],
        ceilings=[_ceiling(k, c) for k, c in _rates(run).items()],
        how=[*_how(run, result, records), *energy_how(finals)],
        **_first_pass_figures(run, *_first_pass_board(board, stand, first)),
        **_final_figures(board, finals, result),
    )


def _is_refused(outcome: Outcome) -> bool:
    """Return whether a config was refused before any work: the table folds these rows."""
    return isinstance(outcome, Failure) and outcome.stage == "refused"


def _first_pass_figures(run: Run, even: Board, pictured: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures of all configs, by their names in the template."""
    compared = [o for o in pictured if isinstance(o, Record)]
    return {
        "maps": _maps(run, even, pictured),
        "ceiling": _roofline_note(run, even, compared),
        **_scatter(even, compared),
    }


def _final_figures(board: Board, finals: Sequence[Record], result: Selection) -> dict[str, Any]:
    """Return the figures of the final benchmark, by their names in the template."""
    in_turns = [r for r in finals if r.winner_s is None]  # others had rounds of their own
    lined = lines(in_turns, result.winner)
    return {
        "finals": draw.finals(board, finals, "finals", _words(result)) if finals else None,
        "rounds": rounds(board, in_turns, lined, "rounds"),
        "energy": _energy(board, finals, result),
        "library": lined.library.case.impl if lined.library else "",
    }


def _first_five(board: Board, records: Sequence[Record], result: Selection) -> dict[str, Any]:
    """Return the table of the fastest predicted configs of different machine code, the winner
    first; empty where times are measured, unordered, or of no more configs than these."""
    if not (result.is_predicted and result.is_ranked and result.winner):
        return {}
    distinct: list[Record] = []
    for record in records:  # the winner stands first
        if not any(same_code(record, other) for other in distinct):
            distinct.append(record)
        if len(distinct) > FIRST:
            break
    else:
        return {}
    unit, winner_s = board.unit[1], result.winner.time_s
    columns: Columns = (
        ("config", lambda r: r.case.label),
        ("predicted", lambda r: f"~{board.text(r.time_s)} {unit}"),
        ("over the first", lambda r: f"{r.time_s / winner_s:.2f}x"),
        ("if measured", expected_words),
        ("bound by", lambda r: r.timing.bound if isinstance(r.timing, Predicted) else ""),
    )
    return table(columns, distinct[:FIRST], text=(3, 4))


def _model(records: Sequence[Record], stand: Sequence[Outcome]) -> str:
    """Return the names of the models that predicted, or that of the one that would have."""
    metal = any(o.case.backend == "metal" for o in stand)
    named = {t.model for r in records if isinstance(t := r.timing, Predicted)}
    return " and ".join(sorted(named)) or (apple_model.MODEL if metal else "analytic")


def _board(run: Run, stand: Sequence[Outcome], result: Selection) -> Board:
    swept = [o.case.impl for o in stand if not o.case.is_baseline]
    extra = sorted({o.case.impl for o in stand if o.case.is_baseline} - {*swept})
    order = [i for i in run.impls if i in swept]
    order += sorted({*swept} - {*order})
    unit = unit_of(result.winner.time_s if result.winner else 1e-6)
    numbers = {id(o): n for n, o in enumerate(stand)}
    names, kind = [*order, *extra], run.launch_kind
    if result.is_ranked:
        return Board(numbers, names, unit, result.winner, result.times, None, extra, kind)
    alike = frozenset(config_key(r.case) for r in members(result))
    return Board(numbers, names, unit, None, {}, alike, extra, kind)


def _table_order(stand: Sequence[Outcome], result: Selection) -> list[Outcome]:
    """Return outcomes in the order of the table: the winner, and then as ranked; of a class its
    members by name and then the others by name, as their times rank neither."""
    if result.is_ranked and not result.front:
        return sorted(stand, key=lambda outcome: outcome is not result.winner)
    first = {id(r) for r in result.front or members(result)}

    def place(o: Outcome) -> tuple[Any, ...]:
        failed = isinstance(o, Failure) and o.stage != "measure"
        return (
            failed,
            id(o) not in first,
            not isinstance(o, Record),
            o.case.impl,
            *o.case.config.values(),
        )

    return sorted(stand, key=place)


def _first_pass_board(
    board: Board, stand: Sequence[Outcome], first: Mapping[ConfigKey, Record]
) -> tuple[Board, list[Outcome]]:
    """Return the outcomes of the figures: each config's first-pass time, even where it has a final
    one. The points keep their rows."""
    pictured = [first.get(config_key(o.case), o) if isinstance(o, Record) else o for o in stand]
    rows = {id(shown): board.rows[id(o)] for o, shown in zip(stand, pictured, strict=True)}
    best = first.get(config_key(board.best.case), board.best) if board.best else None
    return replace(board, rows=rows, best=best), pictured


def legend_of(impls: Sequence[str], outcomes: Sequence[Outcome]) -> list[Look]:
    """Return the look of each Impl."""
    libraries = {o.case.impl for o in outcomes if o.case.is_baseline}
    marks = draw.marks_of(impls, libraries)
    return [(impl, n % 4, marks[impl]) for n, impl in enumerate(impls)]


# The head of the page.


def _facts(
    run: Run, board: Board, result: Selection, hot: Sequence[Record]
) -> list[tuple[str, str, str]]:
    """Return the winner's numbers: a value, its name, and its basis."""
    winner = result.winner
    if winner is None:
        return []
    unit = board.unit[1]
    if not result.is_ranked:
        return _class_facts(result)
    about = "" if winner.is_measured else "~"
    basis = "from least bytes" if memory_bound(winner, result.ridge) else "from FLOPs"
    facts = [
        (f"{about}{board.text(winner.time_s)} {unit}", "one call", _interval_words(board, winner)),
        (about + rate(winner, result.ridge), "rate", basis),
    ]
    for baseline in result.baselines[:2]:
        theirs = f"{board.text(baseline.record.time_s)} {unit}"
        name = baseline.record.case.impl
        if baseline.ratio < 1:
            facts.append((whole_percent(baseline.ratio), f"of {name}", theirs))
        else:
            facts.append((f"{baseline.ratio:.2f}x", f"vs {name}", theirs))
    if result.default is not None and not winner.default:
        default = result.default
        theirs = f"{board.text(default.record.time_s)} {unit}, {PHASE_WORDS[default.phase]}"
        facts.append((f"{result.default.ratio:.2f}x", f"vs the {result.launch_kind}", theirs))
    if nearest := nearest_ceiling(run, winner):
        facts.append(
            (about + whole_percent(nearest[0]), "of the ceiling", _share_words(winner, nearest))
        )
    for record in hot[:1]:
        facts.append((f"{board.text(record.time_s)} {unit}", "hot", "inputs left in the cache"))
    return [*facts, *energy_fact(winner)]


def _share_words(winner: Record, nearest: tuple[float, str, bool]) -> str:
    """Return the name of a ceiling, with the shares of it that a measured time would reach where
    the winner's is predicted."""
    share, name, _ = nearest
    if winner.is_measured or (ends := expected_s(winner)) is None:
        return name if winner.is_measured else f"{name}; {NEVER}"
    low, high = (whole_percent(share * winner.time_s / end) for end in reversed(ends))
    reached = f"{low} or more" if share * winner.time_s > ends[0] else f"{low} to {high}"
    return f"{name}; {reached} if measured"


def _class_facts(result: Selection) -> list[tuple[str, str, str]]:
    """Return the numbers of a class of configs: how many, and the two ends of its intervals."""
    low, high = class_interval(result)
    many = result.configs - sum(result.failures.values())
    if result.front:
        on = f"{len(result.front)} of {result.emulated_configs}"
        front = [(on, "configs on the front", "Pareto front of the counts, for each Impl")]
    else:
        front = []
    return [
        *front,
        (f"{len(members(result))} of {many}", "configs not told apart", "intervals overlap"),
        (rough(low), "shortest lower end", "for the least bytes, all else cached"),
        (rough(high), "longest upper end", "for the counted sectors, uncached"),
    ]


def _same_config(record: Record, other: Record | None) -> bool:
    return other is not None and config_key(record.case) == config_key(other.case)


def _interval_words(board: Board, record: Record) -> str:
    timing = record.timing
    if isinstance(timing, Predicted):
        expected = expected_words(record)
        expected += "" if expected == NEVER else " if measured"
        return f"predicted, bound by {timing.bound}; {expected}"
    low, high = board.text(timing.low_s), board.text(timing.high_s)
    names = f"{record.phase}, {timing.regime}, {timing.state}"
    return f"{names}; 95 %: {low} to {high}" + ("" if timing.stable else ", unstable")


def _words(result: Selection) -> dict[int, str]:
    """Return the tags of records by id."""
    words = {id(record): "tie" for record in result.ties}
    return words | {id(result.winner): "winner"} if result.winner else words


def _tie_reason(run: Run, result: Selection) -> str:
    """Return why the tie rule preferred the winner to the fastest; empty if it did not."""
    winner, fastest = result.winner, result.fastest
    if winner is None or fastest is None or winner is fastest or not result.is_ranked:
        return ""
    if dict(run.previous_best.get(winner.case.impl, {})) == dict(winner.case.config):
        reason = "was the best in an earlier run and is kept"
    else:
        lean = "needs fewer spills, registers or warps"
        reason = f"is the {result.launch_kind}" if winner.default else lean
    other = fastest.case.label
    if result.is_predicted:
        within = f"by less than {100 * MODEL_SHARE:.0f} %"
        return f"{other} is predicted to be faster than the winner {within}; the winner {reason}."
    return f"{other} does not differ measurably from the winner, which {reason}."


def _doubts(winner: Record | None) -> list[str]:
    """Return warnings about the winner's samples."""
    timing = winner.timing if winner else None
    if winner is not None and interval_of(winner):
        return [apple_model.INTERVALS]
    if not isinstance(timing, Measured):
        return []
    text = []
    if timing.modes:
        text.append(f"The winner's time has {modes_text(timing)}.")
    elif not timing.stable:
        wide = (timing.high_s - timing.low_s) / timing.median_s / 2
        text.append(
            f"The winner's time is unstable: its interval, ± {100 * wide:.2g} %, is wider than the "
            "protocol requires."
        )
    if timing.throttle:
        text.append(f"The driver lowered the clock in its samples: {', '.join(timing.throttle)}.")
    if timing.left_out:
        text.append(
            f"{amount(timing.left_out, 'sample')} of it taken at under 3/4 of the run's usual "
            "clock are left out."
        )
    return text


def _counts(result: Selection) -> str:
    words = amount(result.configs, "config")
    if result.binaries:
        words += f", {result.binaries} distinct "
        words += "binary" if result.binaries == 1 else "binaries"
    stages = {**result.failures}
    refused = stages.pop("refused", 0)
    if result.unpredicted_configs:
        stages["measure"] -= result.unpredicted_configs
        words += f"; {result.unpredicted_configs} emulated, without a prediction"
        stages = {stage: n for stage, n in stages.items() if n}
    if refused:
        words += f"; {refused} refused beforehand"
    if stages:
        words += f"; {sum(stages.values())} failed "
        words += "(" + ", ".join(f"{n} {stage}" for stage, n in stages.items()) + ")"
    return words


def _how(run: Run, result: Selection, records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return how the winner's time was obtained, term by term."""
    winner = result.winner
    if winner is None:
        return []
    timing, place = winner.timing, _place(run, winner, records)
    if isinstance(timing, Predicted):
        more = assumptions() if timing.model == apple_model.MODEL else []
        bound = "Winner bound by" if result.is_ranked else "Bound by"
        return [("Model", timing.model), (bound, timing.bound), *more]
    shown = [
        ("Regime", f"{timing.regime}: {_REGIMES[timing.regime]}"),
        ("Clock state", f"{timing.state}: {_STATES[timing.state]}"),
        ("Method", f"{timing.method}: {_METHODS[timing.method]}"),
        ("Protocol", timing.protocol),
        ("Winner's samples", f"{len(timing.samples_s)} in {amount(timing.rounds, 'window')}"),
        ("SM clock", _unit_text(timing.sm_mhz, "MHz")),
        ("Temperature", _unit_text(timing.temperature_c, "°C")),
        ("Power", _unit_text(timing.power_w, "W")),
    ]
    if launch := run.ceilings.get("launch_measured"):
        shown.append(("Empty launch", f"{launch['value'] * 1e6:.2f} µs, {launch['source']}"))
    phases = {p: sum(r.phase == p for r in records) for p in ("final", "first_pass")}
    words = ", ".join(f"{n} by {phase} time" for phase, n in phases.items() if n)
    return [*shown, *place, ("Ranked", words + ", finals first" if phases["final"] else words)]


def _place(run: Run, winner: Record, records: Sequence[Record]) -> list[tuple[str, str]]:
    """Return the GPU of a cluster that gave the times, and its library references."""
    if not run.gpu:
        return []
    others = sorted({r.gpu for r in records if r.gpu} - {winner.gpu or run.gpu})
    more = f"; other configs on {', '.join(others)}" if others else ""
    units = {"copy": "TB/s", "product": "TFLOP/s"}
    figures = ", ".join(f"{n} {v / 1e12:.3g} {units.get(n, '')}" for n, v in run.references.items())
    rule = "times of GPUs that differ from it by more than 3 % are not ranked here"
    return [
        ("Measured on", f"{winner.gpu or run.gpu}{more}"),
        ("Library references", f"{figures}; {rule}"),
    ]


_REGIMES = {
    "cold": "the last-level cache holds none of the inputs when a call begins",
    "hot": "the same buffers back to back",
}
_STATES = {
    "boost": "the device was idle before, so its clock was high",
    "sustained": "taken after the clock had settled under load",
}
_METHODS = {
    "events": "device events around each call",
    "graph": "a graph of calls, divided by their number",
    "host": "the host's clock, launch included",
    "eval": "chained calls evaluated by MLX, by the host's clock, less the same of empty kernels",
    "command buffer": "the Metal device's own clock",
}


def _unit_text(value: float | None, unit: str) -> str:
    return "not recorded" if value is None else f"{value:.0f} {unit}"


# The figures.


def _maps(run: Run, board: Board, stand: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figure of the varied fields: for each Impl a heat map, or dots for one field."""
    panels: list[dict[str, Any]] = []
    blanks: set[str] = set()
    for n, impl in enumerate(board.impls):
        swept = [o for o in stand if o.case.impl == impl and not o.case.is_baseline]
        fields = _varied_fields(run, swept)
        if not fields or not any(isinstance(o, Record) for o in swept):
            continue
        if len(fields) == 1:
            records = [o for o in swept if isinstance(o, Record)]
            namer = _namer(fields[0], swept)
            svg = draw.one_field(board, records, fields[0], f"one{n}", namer)
        else:
            svg = draw.heat_map(board, swept, (fields[0], fields[1]), impl, f"heat{n}")
            blanks |= draw.blanks(swept, (fields[0], fields[1]))
        named = tuple(fields[:2])
        panels.append({"impl": impl, "fields": named, "rest": fields[2:], "svg": svg})
    if not panels:
        return {}
    *most, last = dict.fromkeys(f for p in panels for f in p["fields"])
    title = f"{', '.join(most)} and {last}" if most else last
    alike = len({p["fields"] for p in panels}) == 1
    for panel in panels:
        panel["caption"] = panel["impl"]
        if not alike:
            panel["caption"] += f": {' and '.join(panel['fields'])}"
    rest = list(dict.fromkeys(f for p in panels for f in p["rest"]))
    heat = any(len(p["fields"]) > 1 for p in panels)
    what = "Predicted" if board.members is not None else "Best"
    shown = {"heat": heat, "panels": panels, "rest": rest, "blanks": blanks}
    return {"title": f"{what} time for each {title}", **shown}


def _varied_fields(run: Run, swept: Sequence[Outcome]) -> list[str]:
    """Return the fields that took several values: requested ones first, then tuned ones, and
    `block_m`, `block_n` before all."""
    values = group_by((field for o in swept for field in o.case.config.items()), lambda f: f[0])
    moving = [name for name, seen in values.items() if len({*seen}) > 1]
    knobs = {f: k for impl in run.impls.values() for f, k in impl.get("knobs", {}).items()}
    fields = [f for f in moving if knobs.get(f) in run.vary]
    ordered = fields + [f for f in moving if f not in fields]
    if {"block_m", "block_n"} <= {*fields}:
        first = ["block_m", "block_n"]
        ordered = first + [f for f in ordered if f not in first]
    return ordered


def _namer(field: str, swept: Sequence[Outcome]) -> Callable[[int], str]:
    """Return the text of ticks; those of warps have their number of threads, too."""
    threads = {
        o.case.config[field]: o.resources.threads
        for o in swept
        if o.resources and field in o.case.config
    }
    if field != "num_warps" or not threads:
        return partial(knob_text, field)
    open_ = partial(knob_text, field)
    return lambda v: f"{open_(v)}\n{threads[v]} threads" if v in threads else open_(v)


def _roofline_note(run: Run, board: Board, records: Sequence[Record]) -> dict[str, Any]:
    if not records:
        return {}
    if any(r.flops for r in records):
        some = [r for r in records if r.flops and r.bytes]
        return {"kind": "roofline", "svg": ceilings.roofline(board, some, _rates(run), "roof")}
    return {"kind": "bandwidth", "svg": ceilings.bandwidth(board, records, _rates(run), "roof")}


def _ceilings(run: Run, record: Record) -> list[tuple[float, str, bool]]:
    """Return the share of each ceiling that a record reaches, its name, and if it is memory's."""
    shares = ceilings.shares_of(run.ceilings, record)
    return [(share, _ceiling(name, c)[2], c["unit"] == "B/s") for share, name, c in shares]


def nearest_ceiling(run: Run, record: Record) -> tuple[float, str, bool] | None:
    """Return the ceiling of which this record reaches the largest share."""
    return max(_ceilings(run, record), default=None)


def _ceiling_words(run: Run, winner: Record | None) -> str:
    nearest = nearest_ceiling(run, winner) if winner else None
    if winner is None or nearest is None or interval_of(winner):
        return ""
    share, name, memory = nearest
    verb = "is predicted to reach" if not winner.is_measured else "reaches"
    words = f"The winner {verb} {whole_percent(share)} of its nearest ceiling, {name}"
    others = [(s, n) for s, n, m in _ceilings(run, winner) if m == memory and n != name]
    words += "".join(f", and {whole_percent(s)} of {n}" for s, n in others)
    if share > 1:
        return f"{words}: more than the ceiling allows, so a cache served it or the ceiling is low."
    if share < _NEAR_CEILING:
        return f"{words}: that ceiling does not limit it yet."
    if isinstance(winner.timing, Predicted):
        return f"{words}. The model's longest term is {winner.timing.bound}."
    return f"{words}: {'memory' if memory else 'arithmetic'} limits it."


def _energy(board: Board, finals: Sequence[Record], result: Selection) -> dict[str, Any]:
    """Return the figure of time and energy, its sentence and the names on the front; {} where
    fewer than two finalists have an energy."""
    svg = time_and_energy(board, finals, "energy")
    if svg is None:
        return {}
    front = [r.case.label for r in front_of(finals)]
    return {"svg": svg, "sentence": energy_sentence(finals, result.winner), "front": front}


def _rates(run: Run) -> dict[str, Any]:
    """Return the ceilings that are rates; a launch is a time, and shown elsewhere."""
    return {k: dict(c) for k, c in run.ceilings.items() if c.get("unit") != "s"}


def _ceiling(name: str, ceiling: Any) -> tuple[str, bool, str, str]:
    """Return how a ceiling is drawn (kind of limit, whether dashed), its words and its source."""
    what = ceilings.what_of(name, ceiling)
    kind = origin_of(name, ceiling)
    value, unit = ceiling.get("value", 0), ceiling.get("unit", "")
    shown = f"{value / 1e12:.4g} T{unit}" if value >= 1e11 else f"{value / 1e9:.4g} G{unit}"
    drawn = "compute" if unit == "FLOP/s" else "cache" if name.startswith("cache") else "memory"
    origin = ", ".join(filter(None, (kind, clock_words(state_of(name, ceiling)))))
    words = f"{what} at {shown} ({origin})"
    return drawn, kind != "measured", words, ceiling.get("source", "source not stated")


# Of compiled code: a resource, the figure's axis, and the prefix of its ids
RESOURCES: tuple[tuple[Callable[[Resources], float], str, str], ...] = (
    (lambda m: m.occupancy * 100, "occupancy, %", "occ"),
    (lambda m: m.registers, "registers per thread", "reg"),
    (lambda m: m.spill_bytes, "spilled bytes per thread", "spill"),
)


def _scatter(board: Board, records: Sequence[Record]) -> dict[str, Any]:
    """Return a figure of the time against each resource, and as words those that do not differ
    between the configs: `spilled bytes per thread 0`."""
    compiled = [r for r in records if r.resources is not None]
    figures, same = [], []
    for value, axis, prefix in RESOURCES:
        values = {value(r.resources) for r in compiled if r.resources is not None}
        if len(values) == 1:
            same.append(f"{axis} {values.pop():g}")
        elif values:
            figures.append(draw.resource_figure(board, compiled, value, axis, prefix))
    return {"scatter": figures, "resources": ", ".join(same)}
