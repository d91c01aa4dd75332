"""Energy of a call as pages and consoles show it: cells, sentences, and time against energy."""

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from workbench.data.energy import absences, energy_of, energy_ratio, pareto_front, work_per_joule
from workbench.data.record import Energy, Environment, Measured, Outcome, Ratio, Record
from workbench.data.units import amount, duration, three_digits
from workbench.reports import colour, figure, figure_svg
from workbench.reports.figures.drawing import axes, note, one_two_five, plain_ticks
from workbench.reports.figures.sweep import Board, place_points

HEADS = ("energy, mJ", "95 % interval, mJ", "power, W", "per joule")
LOG_FROM = 3  # ratio of the largest to the least value from which an axis is logarithmic


def energy_cells(record: Record, memory: bool) -> list[str]:
    """Return the cells under HEADS, empty where the record has no energy; `memory`: work is bytes,
    not FLOPs."""
    energy = energy_of(record)
    if energy is None:
        return [""] * len(HEADS)
    star = " warm" if energy.regime == "warm" else ""
    work = work_per_joule(record, memory)
    return [
        millijoules(energy.joules) + star,
        f"{millijoules(energy.low_joules)} to {millijoules(energy.high_joules)}",
        f"{energy.power_w:.0f}",
        f"{three_digits(work[0])} {work[1]}" if work else "",
    ]


def millijoules(joules: float) -> str:
    """Return joules in mJ to four digits, zeros at the end included, without the unit."""
    value = 1e3 * joules
    before = math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:.{min(6, max(0, 3 - before))}f}"


def span(ratio: Ratio) -> str:
    """Return the interval of a ratio."""
    return f"{ratio.low:.4f} to {ratio.high:.4f}"


def energy_sentence(records: Sequence[Outcome], winner: Record | None) -> str:
    """Return one sentence: the config with the least energy, and the winner's beside it. Empty
    where no record has an energy. Baselines are not ranked."""
    known = [r for r in records if isinstance(r, Record) and not r.case.is_baseline]
    energies = [(energy.joules, n) for n, r in enumerate(known) if (energy := energy_of(r))]
    if not energies:
        return ""
    least = known[min(energies)[1]]
    text = f"{millijoules(min(energies)[0])} mJ a call"
    fastest = energy_of(winner)
    if winner is None or fastest is None:
        return f"Least energy: {least.case.label}, {text}."
    if least.key == winner.key:
        return f"It also takes the least energy, {text}."
    theirs = f"{millijoules(fastest.joules)} mJ"
    ratio = energy_ratio(fastest, energy_of(least))
    if ratio is None or ratio.high >= 1:
        return (
            f"Least energy: {least.case.label}, {text}; that cannot be told from the winner's "
            f"{theirs}."
        )
    saved = 100 * (1 - ratio.middle)
    slower = 100 * (least.time_s / winner.time_s - 1)
    return (
        f"Least energy: {least.case.label}, {text}: {saved:.2g} % less than the winner's {theirs}, "
        f"in {abs(slower):.2g} % {'more' if slower >= 0 else 'less'} time."
    )


def energy_notes(outcomes: Sequence[Outcome], env: Environment) -> list[str]:
    """Return a sentence for each reason why an energy is absent, and for what else is in it."""
    notes = []
    measured = [o for o in outcomes if energy_of(o)]
    for reason, records in absences(outcomes).items():
        names = ", ".join(dict.fromkeys(r.case.label for r in records))
        who = f" of {names}" if measured else ""
        notes.append(f"No energy{who}: {reason}.")
    if any(energy.regime == "warm" for o in measured if (energy := energy_of(o))):
        notes.append(
            "Energy marked warm: the cache was not flushed between calls, as the flush would be "
            "counted; a call may have had data in the cache."
        )
    if measured and env.others_on_gpu:
        notes.append(
            "Other processes used the GPU, and the counter, which is the whole board's, counts "
            "their energy too."
        )
    return notes


def energy_how(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """Return how the energies were measured, as a term and its text; empty where none was."""
    energies = [energy for o in outcomes if (energy := energy_of(o))]
    if not energies:
        return []
    e = energies[0]
    source = {"nvml": "the driver's counter of the board (NVML)"}.get(e.source, e.source)
    words = (
        f"{source}, updated every {duration(e.step_s)}; {amount(e.windows, 'window')} of "
        f"{duration(e.window_s)} each, in turns after all times; idle power included: "
        f"{e.idle_w:.0f} W just before"
    )
    return [("Energy", words)]


def energy_fact(record: Record) -> list[tuple[str, str, str]]:
    """Return the energy of a record as a fact of a page's head, if it has one."""
    energy = energy_of(record)
    if energy is None:
        return []
    basis = f"95 %: {millijoules(energy.low_joules)} to {millijoules(energy.high_joules)}; "
    basis += f"{energy.power_w:.0f} W, {energy.idle_w:.0f} W of it idle"
    return [(f"{millijoules(energy.joules)} mJ", "energy of a call", basis)]


# The figure.


def front_of(records: Sequence[Record]) -> list[Record]:
    """Return the configs that no other beats in both time and energy, the fastest first. Library
    baselines cannot be selected, so they are not on it."""
    known = [(r, e) for r in records if (e := energy_of(r)) and not r.case.is_baseline]
    points = [(r.time_s, energy.joules) for r, energy in known]
    return [known[n][0] for n in pareto_front(points)]


def time_and_energy(board: Board, records: Sequence[Record], prefix: str) -> Markup | None:
    """Return energy against time with both intervals, and the Pareto front as a line. None where
    fewer than two records have an energy."""
    known = [(r, energy) for r in records if (energy := energy_of(r))]
    if len(known) < 2:
        return None
    fig = figure(590, 340)
    ax = axes(fig, 66, 16, 504, 268, "both")
    _scale(ax, "x", [t for r, _ in known for t in _times(board, r)])
    _scale(ax, "y", [1e3 * v for _, e in known for v in (e.low_joules, e.joules, e.high_joules)])
    scales = {"x": ax.get_xscale(), "y": ax.get_yscale()}
    logs = {a: " (log)" if scale == "log" else "" for a, scale in scales.items()}
    ax.set(xlabel=f"time of one call, {board.unit[1]}{logs['x']}")
    ax.set(ylabel=f"energy of one call, mJ{logs['y']}")
    for record, energy in known:
        _whiskers(ax, board, record, energy)
    _front(ax, board, front_of([r for r, _ in known]))
    points = [(r, board.time(r.time_s), 1e3 * e.joules) for r, e in known]
    return figure_svg(fig, prefix, "Time and energy", place_points(ax, board, points))


def _times(board: Board, record: Record) -> list[float]:
    t = record.timing
    ends = (t.low_s, t.high_s) if isinstance(t, Measured) else ()
    return [board.time(s) for s in (record.time_s, *ends)]


def _scale(ax: Any, which: str, values: Sequence[float]) -> None:
    """Set the limits of an axis, and a logarithmic scale where the values differ much."""
    low, high = min(values), max(values)
    axis = ax.xaxis if which == "x" else ax.yaxis
    if high > LOG_FROM * low > 0:
        ax.set(**{f"{which}scale": "log", f"{which}lim": (low / 1.15, high * 1.15)})
        axis.set_ticks(one_two_five(low / 1.15, high * 1.15))
        axis.set_ticks([], minor=True)
    else:
        room = (high - low) * 0.1 or 0.05 * high
        ax.set(**{f"{which}lim": (low - room, high + room)})
        axis.get_major_locator().set_params(nbins=6)
    plain_ticks(axis)


def _whiskers(ax: Any, board: Board, record: Record, energy: Energy) -> None:
    look = {"color": colour("muted"), "linewidth": 1.2}
    x, y = board.time(record.time_s), 1e3 * energy.joules
    times = _times(board, record)
    ax.plot([min(times), max(times)], [y, y], **look)
    ax.plot([x, x], [1e3 * energy.low_joules, 1e3 * energy.high_joules], **look)


def _front(ax: Any, board: Board, front: Sequence[Record]) -> None:
    """Draw the Pareto front as steps: what lies above and to the right is beaten in both."""
    if not front:
        return
    steps = [(board.time(r.time_s), 1e3 * e.joules) for r in front if (e := energy_of(r))]
    right, top = ax.get_xlim()[1], ax.get_ylim()[1]
    xs, ys = [steps[0][0]], [top]
    for (x, y), (after, _) in zip(steps, [*steps[1:], (right, 0.0)], strict=True):
        xs += [x, after]
        ys += [y, y]
    ax.plot(xs, ys, color=colour("accent"), linewidth=1.6, linestyle=(0, (5, 3)), zorder=1)
    note(ax, "Pareto front", (xs[-1], ys[-1]), (-4, -14), "accent", ha="right")
