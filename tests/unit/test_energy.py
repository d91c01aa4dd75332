"""Joules of a call from a counter that moves in steps: on a simulated board, for any step."""

import math
import random
import sys
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import energy_of as made_up

from workbench.data.energy import energy_ratio, pareto_front
from workbench.data.record import Energy, dumps, loads
from workbench.measurement import energy_counter
from workbench.measurement.energy import (
    Clock,
    Counter,
    EnergyError,
    EnergyWindow,
    Meter,
    Rules,
    WentBack,
    done_at,
    energies,
    energy_of,
    step_of,
)
from workbench.measurement.energy_counter import NvmlCounter, open_counter
from workbench.reports.figures.energy import millijoules

pytestmark = pytest.mark.unit

POLL_S = 2e-4  # of simulated time: every look at the counter and every pause


class Board:
    """A board whose time passes when it is looked at. Its counter shows the joules up to the last
    update; `falls_s` are the moments at which it begins again from 0. With `uneven`, updates come
    early or late by that share of a step, and the power wanders by it."""

    source = "simulated"

    def __init__(
        self, step_s=0.02, idle_w=100.0, start_mj=10**9, falls_s=(), poll_s=POLL_S, uneven=0.0
    ):
        self.uneven, self.dice = uneven, random.Random(0)
        self.wander, self.next_s = 1.0, step_s
        self.step_s, self.idle_w, self.start_mj = step_s, idle_w, start_mj
        self.falls_s, self.poll_s = list(falls_s), poll_s
        self.now_s, self.joules, self.shown_mj = 0.0, 0.0, start_mj
        self.power_w, self.updates, self.looks = idle_w, 0, 0
        self.clock = Clock(lambda: self.now_s, lambda: self.passes(poll_s))

    def passes(self, seconds):
        end = self.now_s + seconds
        while (at := self.next_s) <= end:
            self.joules += self.power_w * self.wander * (at - self.now_s)
            self.now_s, self.updates = at, self.updates + 1
            late = self.uneven * self.dice.uniform(-1, 1)
            self.next_s = (self.updates + 1 + late) * self.step_s
            self.wander = 1 + self.uneven * self.dice.uniform(-1, 1)
            self.shown_mj = self.start_mj + int(self.joules * 1e3)
        self.joules += self.power_w * self.wander * (end - self.now_s)
        self.now_s = end
        while self.falls_s and self.now_s >= self.falls_s[0]:
            self.falls_s.pop(0)
            self.joules, self.start_mj = 0.0, 0

    def millijoules(self):
        self.looks += 1
        self.passes(self.poll_s)
        return self.shown_mj


class Call:
    """A call that takes this long at this power, back to back while it is fed."""

    regime = "cold"

    def __init__(self, board, estimate_s, power_w):
        self.board, self.estimate_s, self.power_w = board, estimate_s, power_w
        self.begun_s, self.drained = None, 0

    def feed(self):
        if self.begun_s is None:
            self.begun_s, self.board.power_w = self.board.now_s, self.power_w
        return int((self.board.now_s - self.begun_s) / self.estimate_s)

    def drain(self):
        self.begun_s, self.board.power_w = None, self.board.idle_w
        self.drained += 1


steps = st.floats(0.005, 0.12)
calls_s = st.floats(5e-5, 0.05)
watts = st.floats(120.0, 900.0)


@given(step_s=steps, call_s=calls_s, power_w=watts, idle_w=st.floats(20.0, 110.0))
def test_a_call_takes_its_power_times_its_time(step_s, call_s, power_w, idle_w):
    board = Board(step_s, idle_w)
    result = energies({0: Call(board, call_s, power_w)}, board, 2, clock=board.clock)[0]
    assert result.joules == pytest.approx(power_w * call_s, rel=0.02)
    assert result.low_joules <= result.joules <= result.high_joules
    assert result.idle_w == pytest.approx(idle_w, rel=0.02)
    assert result.power_w == pytest.approx(power_w, rel=0.02)
    assert result.step_s == pytest.approx(step_s, rel=0.1)
    assert result.window_s >= 19.5 * step_s and result.source == "simulated"
    assert result.calls == pytest.approx(2 * result.window_s / call_s, rel=0.05, abs=2)
    assert result.active_joules == pytest.approx((power_w - idle_w) * call_s, rel=0.1)


@settings(max_examples=10, deadline=None)
@given(step_s=steps, ratio=st.floats(0.8, 1.25))
def test_two_calls_differ_by_the_ratio_of_their_energies(step_s, ratio):
    board = Board(step_s)
    loads_ = {"left": Call(board, 1e-3, 400.0), "right": Call(board, 1e-3, 400.0 * ratio)}
    taken = energies(loads_, board, 6, clock=board.clock)
    result = energy_ratio(taken["left"], taken["right"])
    assert result.middle == pytest.approx(ratio, rel=0.02)
    assert result.low <= result.middle <= result.high
    assert all(len(e.window_joules) == e.windows == 6 for e in taken.values())


@settings(max_examples=15, deadline=None)
@given(step_s=steps, uneven=st.floats(0.0, 0.2), power_w=watts)
def test_uneven_updates_and_a_wandering_power_average_out(step_s, uneven, power_w):
    board = Board(step_s, uneven=uneven)
    result = energies({0: Call(board, 1e-3, power_w)}, board, 6, clock=board.clock)[0]
    assert result.joules == pytest.approx(power_w * 1e-3, rel=0.01 + 0.2 * uneven)
    assert result.step_s == pytest.approx(step_s, rel=0.1 + uneven)


def test_windows_take_turns_in_reversed_orders_and_every_call_is_drained():
    board, order = Board(), []

    class Named(Call):
        def drain(self):
            super().drain()
            order.append(self.power_w)

    three = {w: Named(board, 1e-3, w) for w in (200.0, 300.0, 400.0)}
    energies(three, board, 4, clock=board.clock)
    rounds = [order[n : n + 3] for n in range(0, 12, 3)]
    assert rounds[1] == rounds[0][::-1] and rounds[3] == rounds[2][::-1]
    assert all(call.drained == 4 for call in three.values())


@settings(max_examples=15, deadline=None)
@given(at_s=st.floats(1.0, 4.0))
def test_a_counter_that_begins_again_costs_a_window_and_no_joule(at_s):
    board = Board(falls_s=[at_s])
    result = energies({0: Call(board, 1e-3, 500.0)}, board, 6, clock=board.clock)[0]
    assert result.windows == 6
    assert all(j == pytest.approx(0.5, rel=0.02) for j in result.window_joules)


def test_a_counter_that_falls_without_end_is_an_error():
    board = Board(falls_s=[0.3 * n for n in range(1, 400)])
    with pytest.raises(WentBack, match="began again"):
        energies({0: Call(board, 1e-3, 500.0)}, board, 6, clock=board.clock)
    assert board.power_w == board.idle_w


def test_a_counter_that_stands_still_is_an_error_after_a_wait():
    board = Board(step_s=1e9)
    with pytest.raises(EnergyError, match=r"not updated within 5 s.*leave out --also energy"):
        energies({0: Call(board, 1e-3, 500.0)}, board, clock=board.clock)
    assert board.now_s == pytest.approx(5.0, abs=0.1)


def test_without_calls_the_counter_is_left_alone():
    board = Board()
    assert energies({}, board, clock=board.clock) == {} and board.looks == 0


@given(step_s=steps)
def test_an_edge_is_placed_at_the_update(step_s):
    board = Board(step_s)
    meter = Meter(board, board.clock, Rules())
    assert meter.find_step() == pytest.approx(step_s, rel=0.1)
    for _ in range(3):
        edge = meter.edge()
        assert abs(edge.clock_s / step_s - round(edge.clock_s / step_s)) * step_s <= edge.gap_s
        assert edge.gap_s <= max(0.2 * step_s, 1e-3)


def test_an_update_that_was_seen_late_is_no_edge():
    board = Board(step_s=0.05)
    meter = Meter(board, board.clock, Rules(), step_s=0.05)
    slow = iter([0.06, 0.0, 0.06])  # two looks that come late, the first over an update

    edge = meter.edge(lambda: board.passes(next(slow, 0.0)))
    assert edge.gap_s <= 0.01 and board.updates >= 3


@given(st.lists(st.tuples(st.floats(1e-4, 1.0), st.integers(1, 9)), min_size=1, max_size=20),
       st.floats(-1.0, 25.0), st.floats(0.0, 5.0))  # fmt: skip
def test_calls_done_rise_with_time_and_meet_every_look(jumps, at_s, later_s):
    progress = [(0.0, 0)]
    for seconds, calls in jumps:
        progress.append((progress[-1][0] + seconds, progress[-1][1] + calls))
    assert all(done_at(progress, t) == pytest.approx(n) for t, n in progress)
    assert 0 <= done_at(progress, at_s) <= done_at(progress, at_s + later_s) <= progress[-1][1]


@given(steps, st.integers(3, 20), st.integers(1, 19))
def test_one_missed_update_leaves_the_step(step_s, count, missed):
    at = [n * step_s for n in range(count + 3) if n != missed]
    assert step_of(at) == pytest.approx(step_s)


@given(st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(1.0, 9e3)), min_size=1, max_size=12))
def test_the_interval_holds_the_median_and_the_calls_add_up(pairs):
    windows = [EnergyWindow(joules, 0.5, calls) for joules, calls in pairs]
    result = energy_of(windows, 90.0, 0.02, "simulated", "cold")
    assert result.low_joules <= result.joules <= result.high_joules
    assert result.calls == round(math.fsum(c for _, c in pairs))
    assert loads(dumps(result)) == result


# The Pareto front


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_the_front_is_what_nothing_beats(points):
    front = pareto_front(points)

    def beats(a, b):
        return a[0] <= b[0] and a[1] <= b[1] and a != b

    best = {p for p in points if not any(beats(q, p) for q in points)}
    assert {points[n] for n in front} == best and len(front) == len(best)
    assert [points[n] for n in front] == sorted(points[n] for n in front)


@given(st.floats(1e-6, 100.0))
def test_millijoules_keep_four_digits(joules):
    text = millijoules(joules)
    assert float(text) == pytest.approx(1e3 * joules, rel=6e-4)
    assert len(text.replace(".", "").lstrip("0")) >= 3 and "e" not in text


def test_windows_of_other_rounds_have_no_ratio():
    one, other = made_up(1e-3, 500.0, 6), made_up(1e-3, 500.0, 12)
    assert energy_ratio(one, other) is None and energy_ratio(None, one) is None
    assert energy_ratio(one, one).middle == 1


# NVML


class NVMLError(Exception):
    pass


class NVMLErrorNotSupported(NVMLError):
    pass


def nvml(**queries):
    """A pynvml that says this; a query that raises is not supported."""

    def refused(error):
        def query(*args):
            raise error

        return query

    library = ModuleType("pynvml")
    library.NVMLError, library.NVMLError_NotSupported = NVMLError, NVMLErrorNotSupported
    usual = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByUUID": "gpu",
        "nvmlDeviceGetMigMode": NVMLErrorNotSupported(),
        "nvmlDeviceGetTotalEnergyConsumption": 1234,
    }
    for name, value in {**usual, **queries}.items():
        error = isinstance(value, Exception)
        setattr(library, name, refused(value) if error else lambda *a, value=value: value)
    return library


def test_the_counter_of_a_board_is_read_in_millijoules():
    assert NvmlCounter(nvml(), "GPU-1").millijoules() == 1234
    assert NvmlCounter(nvml(nvmlDeviceGetMigMode=(0, 0)), "GPU-1").millijoules() == 1234


@pytest.mark.parametrize(
    ("queries", "words"),
    [
        ({"nvmlDeviceGetTotalEnergyConsumption": NVMLErrorNotSupported()}, "needs Volta or newer"),
        ({"nvmlDeviceGetTotalEnergyConsumption": NVMLError("lost")}, r"cannot be read \(lost\)"),
        ({"nvmlDeviceGetMigMode": (1, 1)}, "MIG slice"),
        ({"nvmlDeviceGetHandleByUUID": NVMLError("no such UUID")}, "MIG slice"),
        ({"nvmlInit": NVMLError("no driver")}, r"does not open \(no driver\); see"),
    ],
)
def test_an_absent_counter_is_a_sentence(queries, words):
    with pytest.raises(EnergyError, match=words):
        NvmlCounter(nvml(**queries), "GPU-1")


def test_a_missing_package_and_another_maker_are_sentences(monkeypatch):
    torch = SimpleNamespace(version=SimpleNamespace(hip=None))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(EnergyError, match="pip install nvidia-ml-py"):
        open_counter(0)
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    monkeypatch.setattr(energy_counter, "uuid_of", lambda index: f"GPU-{index}")
    counter: Counter = open_counter(0)
    assert counter.millijoules() == 1234
    torch.version.hip = "6.4"
    with pytest.raises(EnergyError, match="AMD GPUs is not read yet"):
        open_counter(0)


def test_an_energy_without_power_is_all_active():
    zero = Energy(1.0, 1.0, 1.0, 0.0, 0.0, 1, 1, 1.0, 0.1, "simulated")
    assert zero.active_joules == 1.0
