"""Limits of measuring, met exactly, a little below and a little above; values by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from metal_shim.rehearsal import RehearsalDriver
from workbench.data import stats, verdict
from workbench.device.hardware import device_named
from workbench.measurement import (
    back_to_back,
    metal_worker,
    mutated,
    reference,
    transfers,
    worker,
)
from workbench.measurement.back_to_back import BackToBack
from workbench.measurement.bench import Bench, BenchTime, _otherwise
from workbench.measurement.candidate import Candidate, Refusal, Untimed
from workbench.measurement.correctness import (
    Checked,
    PreparedProblem,
    _aliasing,
    bits_of,
    compare_values,
)
from workbench.measurement.energy import Clock, Meter, Rules, WentBack
from workbench.measurement.graphs import NotCapturable
from workbench.measurement.halving import survivors
from workbench.measurement.metal_timing import MetalEntrant, MetalProtocol, WarmUp, chain_length
from workbench.measurement.protocol import Protocol
from workbench.measurement.rounds import Window, compare, play, settle, stable
from workbench.measurement.stream import FirstCall
from workbench.measurement.worker import MeasureJob
from workbench.spec import Spec, SpecFault, Tensor, Tolerance

pytestmark = pytest.mark.unit


class Entrant:
    """Gives windows with these medians in turn, the last for ever; `log` notes who began."""

    def __init__(self, *medians, name="", log=None, each=1):
        self.medians, self.name, self.each = list(medians), name, each
        self.log = [] if log is None else log

    def begin(self, seconds, least=1):
        self.log.append(self.name)
        value = self.medians.pop(0) if len(self.medians) > 1 else self.medians[0]
        return SimpleNamespace(window=lambda: Window((value,) * self.each, None, value * self.each))


def ticking(step=1.0):
    """Return a clock that goes on by one step at each look."""
    looks = iter(range(10**6))
    return lambda: step * next(looks)


# Rounds


@pytest.mark.parametrize(
    ("medians", "windows", "settled"),
    [
        ((1.0, 2.0), 2, True),  # 1 is half of 2
        ((2.0, 1.0), 3, True),  # 1 is more than half of 1
        ((1.0, 2.01), 3, True),
        ((1.0, 4.0, 16.0, 64.0, 256.0), 4, False),
    ],
)
def test_a_clock_is_settled_where_two_windows_agree_within_the_share(medians, windows, settled):
    entrant, rules = Entrant(*medians), replace(Protocol(), settled=0.5, settle_s=5.0)
    assert settle(entrant, rules, ticking()) is settled and len(entrant.log) == windows
    assert not settle(Entrant(1.0), replace(rules, settle_s=0.0), lambda: 3.0)


def rounds_of(protocol, *entrants, now=lambda: 0.0, near=math.inf):
    named = dict(enumerate(entrants))
    after = []
    windows = play(named, protocol, lambda: after.append(1), now, near)
    assert len(after) == len(windows[0]) and len({len(w) for w in windows.values()}) == 1
    return len(windows[0])


def noisy(scale=1.0):
    """Return an entrant whose windows never agree."""
    return Entrant(*[scale, 2.0 * scale] * 100)


EXACT = replace(
    Protocol(), rounds=6, most_rounds=20, least_rounds=4, final_s=1e9, precise=0.01, near=0.0,
    least_samples=1, least_s=0.0,
)  # fmt: skip


@pytest.mark.parametrize(("most", "taken"), [(0, 2), (1, 2), (2, 2), (3, 4), (8, 8), (9, 10)])
def test_rounds_end_at_the_most_and_are_pairs(most, taken):
    assert rounds_of(replace(EXACT, most_rounds=most), noisy(), noisy()) == taken


@pytest.mark.parametrize(
    ("least", "final_s", "taken"),
    [(4, 0.0, 4), (5, 0.0, 6), (2, 4.0, 2), (2, 4.1, 4), (2, 7.0, 4), (2, 7.1, 6)],
)
def test_rounds_end_with_their_seconds_after_the_least(least, final_s, taken):
    """One entrant: the clock is looked at twice before the first window ends, at 2 s, then at each
    end, and after each pair of rounds: at 4 and at 7 s."""
    rules = replace(EXACT, least_rounds=least, final_s=final_s)
    assert rounds_of(rules, noisy(), now=ticking()) == taken


@pytest.mark.parametrize(("rounds", "taken"), [(2, 2), (6, 6), (7, 8), (12, 12)])
def test_steady_entrants_take_the_rounds_of_the_protocol(rounds, taken):
    assert rounds_of(replace(EXACT, rounds=rounds), Entrant(1.0), Entrant(2.0)) == taken


@pytest.mark.parametrize(("near", "taken"), [(0.5, 20), (0.499, 6)])
def test_who_is_slower_than_near_need_not_be_precise(near, taken):
    """Its median is 1.5 of the best's 1.0: windows of 1 and 2 in turn."""
    assert rounds_of(EXACT, Entrant(1.0), noisy(), near=near) == taken
    assert rounds_of(EXACT, Entrant(2.0), noisy(2.0), near=near) == taken


@pytest.mark.parametrize(
    ("least", "least_s", "is_stable"),
    [(24, 0.0, True), (25, 0.0, False), (24, 24.0, True), (24, 24.1, False)],
)
def test_a_time_is_stable_from_the_least_samples_and_seconds_on(least, least_s, is_stable):
    windows = [Window((1.0,) * 4) for _ in range(6)]
    rules = replace(EXACT, least_samples=least, least_s=least_s)
    assert stable(windows, rules) is is_stable and not stable([], rules)
    assert stable([replace(w, lasted_s=8.0) for w in windows], rules) is (least == 24)


def test_an_interval_as_wide_as_the_protocol_allows_is_narrow():
    windows = [Window((1.0, 3.0) * 4) for _ in range(8)]
    low, high = stats.windowed_interval([w.samples_s for w in windows])
    middle = stats.median([1.0, 3.0])
    exactly = (high - low) / 2 / middle
    assert exactly > 0.1
    assert stable(windows, replace(EXACT, precise=exactly))
    assert not stable(windows, replace(EXACT, precise=exactly * 0.99))


@pytest.mark.parametrize("step", [0.0, 1.0])
def test_a_comparison_ends_at_its_seconds_after_the_fewest_pairs(step: float) -> None:
    """Pairs of the right operand are half and twice the left one's in turn: nothing is decided."""
    protocol = replace(Protocol(), compare_rounds=48, doublings=2, compare_s=1.0, settle_s=0.0)
    fewest = 2 * stats.least_for(verdict.confidence_of(3))
    right = Entrant(*[0.5, 0.5, 2.0, 2.0] * 60)
    times = compare(Entrant(1.0), Entrant(1.0), right, protocol, None, ticking(step))
    assert len(times.left) == len(times.again) == len(times.right) == (fewest if step else 192)
    assert times.verdict.word == "INCONCLUSIVE"


def test_who_is_not_surely_slower_stays_in_a_race():
    """The fastest is between 1 and 3; 3 to 5 meets it, 3.1 to 5 does not."""
    windows = {"a": [Window((1.0,)), Window((3.0,))] * 4, "b": [Window((3.0,)), Window((5.0,))] * 4,
               "c": [Window((3.1,)), Window((5.0,))] * 4}  # fmt: skip
    high = stats.windowed_interval([w.samples_s for w in windows["a"]])[1]
    low = stats.windowed_interval([w.samples_s for w in windows["b"]])[0]
    assert (low, high) == (3.0, 3.0)
    assert survivors(["c", "b", "a"], windows, 3) == ["b", "a"]
    assert survivors(["c", "b", "a"], windows, 1) == ["a"]


# Energy


def metered(*looks, **more):
    """Return a meter whose counter shows these pairs of seconds and millijoules in turn."""
    shown = list(looks)
    at = [0.0]

    def value():
        at[0], millijoules = shown.pop(0)
        return millijoules

    counter = SimpleNamespace(millijoules=value, source="x")
    return Meter(counter, Clock(lambda: at[0], lambda: None), Rules(**more))


@pytest.mark.parametrize(("gap_s", "sharp"), [(0.0009, True), (0.001, True), (0.0011, False)])
def test_an_update_is_placed_where_two_looks_lie_close(gap_s, sharp):
    """A fifth of a step of 4 ms is less than the millisecond that is always allowed."""
    meter = metered((0.0, 10), (gap_s, 20), (1.0, 20), (1.0005, 30), wait_s=5.0)
    meter.step_s = 0.004
    edge = meter.edge()
    assert edge.millijoules == (20 if sharp else 30)
    assert edge.clock_s == pytest.approx(gap_s / 2 if sharp else 1.00025)
    assert edge.gap_s == pytest.approx(gap_s if sharp else 0.0005)


def test_a_counter_that_shows_the_same_is_not_one_that_fell():
    meter = metered((0.0, 10), (0.1, 10), (0.2, 11), (0.3, 10))
    assert [meter._look()[1] for _ in range(3)] == [10, 10, 11]
    with pytest.raises(WentBack):
        meter._look()


def test_idle_power_is_taken_until_its_span_is_over():
    """Updates each 0.2 s from 0.05 on, 10 J each: the third ends the span of 0.4 s exactly."""
    looks, joules = [], 0
    for n in range(20):
        looks += [(0.2 * n, joules), (0.2 * n + 0.1, joules + 10_000)]
        joules += 10_000
    meter = metered(*looks, steps=2, least_s=0.4, wait_s=5.0)
    meter.step_s = 0.0
    assert meter.idle_w() == pytest.approx(10.0 / 0.2)


@pytest.mark.parametrize(
    ("call_s", "calls", "most"), [(1e-6, 1, None), (1.0, 1, 2), (0.01, 1, None)]
)
def test_pieces_are_kept_pending_up_to_their_most(monkeypatch, call_s, calls, most):
    done, launched = [], []

    class Event:
        def record(self):
            self.number = len(launched)

        def query(self):
            return self.number <= len(done)

    stream = SimpleNamespace(synchronize=lambda: done.extend(launched[len(done) :]))
    cuda = SimpleNamespace(Event=Event, current_stream=lambda: stream)
    monkeypatch.setattr(back_to_back, "torch", SimpleNamespace(cuda=cuda))
    rotation = SimpleNamespace(copies=None, flush=None, call=lambda: launched.append(1))
    timed = SimpleNamespace(
        rotation=rotation, estimate_s=call_s, calls=calls, graph=None, method="events"
    )
    load = BackToBack(timed)
    wanted = most or min(
        back_to_back.MOST_PIECES, max(2, math.ceil(back_to_back.PENDING_S / call_s))
    )
    assert load.feed() == 0 and len(launched) == wanted
    done.append(1)
    assert load.feed() == calls and len(launched) == wanted + 1
    load.drain()
    assert load.feed() == 0


# Links to the host


@pytest.mark.parametrize(
    ("seconds", "least", "count"),
    [(0.0, 1, 2), (3.05e-4, 1, 3), (3.05e-4, 5, 5), (1.0, 1, 64), (1.0, 80, 80), (3.9e-4, 1, 3)],
)
def test_a_window_of_copies_has_two_to_sixty_four(monkeypatch, seconds, least, count):
    def taken(step, many):
        step.call()
        return [1e-3 * (n + 1) for n in range(many)]

    monkeypatch.setattr("workbench.measurement.stream.host_samples", taken)
    target = torch.zeros(4)
    copy = transfers._Copy(torch.ones(4), target)
    window = copy.begin(seconds, least).window()
    assert len(window.samples_s) == count and target.tolist() == [1.0] * 4
    assert copy.estimate_s == pytest.approx(1e-3 * (count + 1) / 2)


def test_copies_are_listed_by_kind_from_the_smallest_on():
    some = [transfers.Copied(d, True, n, None, True) for n, d in
            ((8, "h2d"), (4, "d2h"), (2, "h2d"), (1, "d2h"))]  # fmt: skip
    found = transfers.group_by_name(some)
    assert {name: [c.bytes for c in each] for name, each in found.items()} == {
        "d2h_pinned": [1, 4], "h2d_pinned": [2, 8]}  # fmt: skip


# Values


@pytest.mark.parametrize(("off", "is_right"), [(0.25, True), (0.2500001, False), (0.0, True)])
def test_an_error_of_one_tolerance_is_right(off, is_right):
    """Relative to 1.0 a quarter is allowed; fp64, whose least error beside zero is 2e-308."""
    tolerance = {"fp64": Tolerance(relative=0.25, rms_share=0.0)}
    expected = torch.ones(4, dtype=torch.float64)
    actual = expected.clone()
    actual[2] += off
    checked = compare_values("y", actual, expected, tolerance, "fp64")
    assert checked.error == pytest.approx(4 * off) and (checked.wrong is None) is is_right
    if not is_right:
        assert "y is wrong in 25 % of its elements" in checked.wrong and "[2]" in checked.wrong


def test_the_tolerance_of_the_rms_counts_all_elements():
    """The rms of 0, 0, 0 and 4 is 2; half of it is allowed beside zero."""
    tolerance = {"fp64": Tolerance(relative=0.0, rms_share=0.5)}
    expected = torch.tensor([0.0, 0.0, 0.0, 4.0], dtype=torch.float64)
    actual = expected + torch.tensor([1.0, -0.5, 0.0, 0.0], dtype=torch.float64)
    assert compare_values("y", actual, expected, tolerance, "fp64").error == pytest.approx(1.0)
    actual[3] = 5.5
    assert compare_values("y", actual, expected, tolerance, "fp64").error == pytest.approx(1.5)


def spec_of_two(**more):
    return Spec(
        "k", {"x": Tensor("N")}, {"y": Tensor("N"), "z": Tensor("N")}, None, lambda N: 0, [], [],
        **more,
    )  # fmt: skip


def test_whose_memory_an_output_has_is_said():
    spec = spec_of_two()
    ours = spec.impl(name="ours")(lambda x: x)
    library = spec.impl(name="library", backend="torch")(lambda x: x)
    changing = spec.impl(name="changing", mutates=("x",))(lambda x: x)
    x, y, z = (torch.arange(4.0) + n for n in range(3))
    wide = torch.ones(1).expand(4)
    assert _aliasing((y, z), (x,), ours) is None
    assert "y shares memory with an input" in _aliasing((x, z), (x,), ours).reason
    assert "z shares memory with another output" in _aliasing((y, y), (x,), ours).reason
    assert "z is expanded" in _aliasing((y, wide), (x,), ours).reason
    turned = torch.ones(4, 4).T
    assert "y has the strides (1, 4)" in _aliasing((turned, z), (x,), ours).reason
    assert _aliasing((x, x), (x,), library) is None and _aliasing((x, z), (x,), changing) is None
    assert "another output" in _aliasing((x, x), (x,), changing).reason
    assert _aliasing((turned, z), (x,), changing) is None
    assert _aliasing((y, "text"), (x,), ours) is None  # that is a fault of its form
    parameter = torch.nn.Parameter(torch.ones(4))
    assert _aliasing((y, parameter), (x,), ours).rule == "form"
    empty = torch.ones(0)
    assert _aliasing((empty, empty), (empty,), ours) is None


@pytest.mark.parametrize("count", [1, 2, 7, 4095, 4096, 4097, 8192 + 3])
def test_bits_tell_any_element_and_any_two_that_changed_places(count):
    x = torch.arange(count, dtype=torch.int32) * 7 + 1
    all_bits = {bits_of([x])}
    for at in {0, count // 2, count - 1}:
        other = x.clone()
        other[at] += 1
        all_bits.add(bits_of([other]))
    assert len(all_bits) == 1 + len({0, count // 2, count - 1})
    assert bits_of([x]) == bits_of([x.clone()]) and bits_of([x, x]) != bits_of([x])
    if count > 1:
        assert bits_of([x.flip(0)]) not in all_bits
    apart = torch.zeros(count + 1, dtype=torch.int32)[1:].copy_(x)  # 4 bytes off
    assert bits_of([apart]) == bits_of([apart.clone()]) or count % 2 == 0


def test_a_reference_gives_what_the_spec_declares():
    x = torch.ones(3, dtype=torch.float64)

    def given(outputs):
        spec = replace(spec_of_two(), reference=lambda x: outputs)
        return reference.reference_outputs(spec, (x,), {"N": 3})

    assert len(given((x, x))) == 2
    for outputs, words in (
        ((x,), "returned 1 outputs where 2 were expected"), ((x, x, x), "returned 3 outputs"),
        ((x, x.float()), "float32"), ((x, torch.ones(4, dtype=torch.float64)), "(4,)"),
        ("text", "returned 1 outputs"),
    ):  # fmt: skip
        with pytest.raises(SpecFault) as error:
            given(outputs)
        assert words in str(error.value)


# Bench


@pytest.mark.parametrize(
    ("seen", "copies", "restores", "graph", "otherwise"),
    [
        (1.1, 1, None, True, False),
        (1.11, 1, None, True, True),
        (1.11, 0, None, True, False),
        (1.11, 1, "restores", True, False),
        (1.11, 1, None, False, False),
        (9.0, 3, None, True, True),
    ],
)
def test_a_graph_that_copies_slower_is_not_used(seen, copies, restores, graph, otherwise):
    timed = SimpleNamespace(graph=SimpleNamespace(copies=copies) if graph else None,
                            restores=restores)  # fmt: skip
    assert _otherwise(timed, seen, 1.0) is otherwise


class Rotating:
    """A rotation over four sets of a call that takes 10 us."""

    def __init__(self, waits=False, flush=None, copies=None):
        self.waits, self.flush, self.copies, self.sets = waits, flush, copies, [1, 2, 3, 4]
        self.forgotten = 0
        self.impl = SimpleNamespace(mutates=())

    def forget(self):
        self.forgotten += 1

    def call(self):
        return None

    restored_call = call


@pytest.fixture
def timing(monkeypatch):
    """Returns a bench whose graphs give these samples, and what it captured."""
    captured = []

    def made(*samples, fails=False):
        def capture(calls, call):
            captured.append(calls)
            if fails:
                raise NotCapturable("no")
            return SimpleNamespace(replay=None, copies=1)

        one = Bench.__new__(Bench)
        one.protocol, one.clock, one._restore_flush = Protocol(), None, None
        one._graphs = SimpleNamespace(capture=capture)
        left = list(samples)
        monkeypatch.setattr(BenchTime, "samples", lambda self, count: [
            left.pop(0) for _ in range(count)])  # fmt: skip
        return one

    monkeypatch.setattr("workbench.measurement.bench.timer_step_s", lambda: 32e-9)
    return made, captured


def test_each_call_has_the_method_that_suits_it(timing):
    made, captured = timing
    below = Protocol().graph_below_s
    assert made().choose_method(Rotating(waits=True), 1e-5).method == "host"
    assert made().choose_method(Rotating(), below).method == "events"
    taken = made(2e-5).choose_method(Rotating(), below * 0.99)
    assert (taken.method, taken.estimate_s) == ("graph", 2e-5)
    del captured[:]
    for seen, estimate in ((9e-6, 9e-6), (1.05e-5, 1e-5), (0.0, 1e-5), (-1.0, 1e-5)):
        assert made(seen).choose_method(Rotating(), 1e-5, 2e-4).estimate_s == estimate
    assert made(1.2e-5).choose_method(Rotating(), 1e-5, 2e-4).method == "events"
    assert captured == [20] * 5  # 0.2 ms in calls of 10 us, in rounds of four sets
    rotation = Rotating()
    failed = made(fails=True)
    assert failed.choose_method(rotation, 1e-5, 2e-4).method == "host"
    assert rotation.forgotten == 2 and failed._graphs is None
    del captured[:]
    flushed = made(1e-5).choose_method(Rotating(flush="flush"), 1e-5, 2e-4)
    assert captured == [4] and flushed.calls == 4  # each set once between two flushes


@pytest.mark.parametrize(
    ("median", "regime", "possible"),
    [
        (97e-6, "cold", True),
        (96.9e-6, "cold", False),
        (9.7e-6, "hot", True),
        (9.6e-6, "hot", False),
    ],
)
def test_a_time_below_the_bound_of_its_regime_is_impossible(median, regime, possible):
    one = Bench.__new__(Bench)
    one.protocol, one.bound_s, one.hot_bound_s = Protocol(bound=0.97), 1e-4, 1e-5
    timed = SimpleNamespace(method="graph", rotation=SimpleNamespace(issued_s=3e-6))
    windows = [Window((median * 1.0000001,), 1500.0 + n) for n in range(6)]
    try:
        result = one.summarise(timed, windows, regime, "sustained", power_w=7.0)
    except Exception as error:
        assert not possible and "not a time" in str(error)
        return
    assert possible and result.sm_mhz == 1502.5 and result.power_w == 7.0 and result.rounds == 6
    assert result.window_mhz == tuple(1500.0 + n for n in range(6)) and result.host_s == 3e-6
    assert result.window_sizes == (1,) * 6 and result.stable is False  # of 30 samples six are there
    assert one.summarise(timed, windows, regime, "boost").stable is True
    assert one.summarise(timed, windows, regime, "sustained", brief=True).stable is True
    odd = [*windows[:5], replace(windows[5], sm_mhz=None)]
    assert one.summarise(timed, odd, regime).window_mhz == ()


@pytest.mark.parametrize(
    ("graph", "copies", "restores", "seconds"),
    [
        (None, None, None, 40e-6 + 8e-6 / 4),  # one of four calls is after a flush
        ("graph", None, None, 40e-6 + 8e-6),
        (None, "copies", None, 40e-6 + 8e-6 + 3e-6),
        ("graph", "copies", "restores", 40e-6 + 8e-6 + 3e-6 * 2 * 4),
    ],
)
def test_a_sample_lasts_with_its_flushes_and_restores(graph, copies, restores, seconds):
    held = SimpleNamespace(seconds=3e-6) if copies else None
    rotation = SimpleNamespace(flush=SimpleNamespace(seconds=8e-6), copies=held, sets=[1, 2, 3, 4])
    timed = BenchTime("graph", rotation, 4, 10e-6, None, graph, restores)
    assert timed.sample_s == pytest.approx(seconds)
    rotation.flush = None
    assert timed.sample_s == pytest.approx(seconds - (2e-6 if seconds < 45e-6 else 8e-6))


def test_copies_that_are_there_are_not_made_again(monkeypatch):
    """Room for three: two thousand bytes, of which half may be taken, hold them of 512 bytes."""
    free, made = [2 * 3 * 512], []
    monkeypatch.setattr(mutated, "free_bytes", lambda: free[0])
    monkeypatch.setattr(mutated, "first_call", lambda step: FirstCall(1e-6, 2e-6, False))
    real = mutated.stack_copies
    monkeypatch.setattr(mutated, "stack_copies", lambda x, n: made.append(n) or real(x, n))
    working = mutated.Working({"x": torch.ones(4)})
    assert working.copies(("x",), 8).count == 3
    free[0] = 1 << 20
    assert working.copies(("x",), 3).count == 3 and made == [3]
    assert working.copies(("x",), 4).count == 4 and made == [3, 4]


# Tasks


@pytest.fixture
def process(monkeypatch):
    spec = Spec("k", {"x": Tensor("N")}, {"y": Tensor("N")}, None, lambda N: 0, [], [])
    for name in "abcd":
        spec.impl(name=name)(lambda x: x)

    def first_time(rotation):
        if rotation == "b":
            raise Untimed("b cannot be timed")
        return 1e-5

    bench = SimpleNamespace(
        calls=lambda impl, config, regime="cold": impl.name, first_time=first_time,
        choose_method=lambda rotation, s: SimpleNamespace(name=rotation, estimate_s=s),
    )  # fmt: skip
    protocol = Protocol(far=0.5)
    job = MeasureJob("k", {"N": 1}, "bf16", protocol)
    state = worker._State(job, spec, bench, device_named("h200"), None, {0: None})
    monkeypatch.setattr(worker, "_now", state)
    return [Candidate.create(n, {}) for n in "abcd"]


def test_entrants_behind_one_that_fails_or_is_left_out_are_made(process):
    entrants, failed = worker._entrants(process, [0.0, 0.0, 3e-5, 0.0])
    assert {i: (e.name, e.estimate_s) for i, e in entrants.items()} == {
        0: ("a", 1e-5), 2: ("c", 3e-5), 3: ("d", 1e-5)}  # fmt: skip
    assert failed == {1: Refusal("check", "b cannot be timed")}
    entrants, failed = worker._entrants(process, [0.0] * 4, only=[2, 3])
    assert list(entrants) == [2, 3] and not failed


def test_who_is_slower_than_the_best_of_its_own_by_more_than_far_is_far(process):
    times = {0: 1e-5, 1: 1.5e-5, 2: 1.51e-5, 3: 9e-5}
    entrants = {i: SimpleNamespace(estimate_s=s) for i, s in times.items()}
    assert worker._far(process, entrants) == {2, 3}
    default = [*process[:3], replace(process[3], default=True)]
    assert worker._far(default, entrants) == {2} and worker._far(process, {}) == set()
    windows = {0: [Window((2.0,)), Window((4.0,))], 1: [Window((4.0, 5.0))], 2: [Window((3.0,))]}
    assert [worker._slowdown_share(windows, i) for i in range(3)] == [0.0, 0.5, 0.0]


# Metal


@pytest.mark.parametrize(
    ("call_s", "calls"),
    [
        (1e-3, 20),
        (1.999e-3, 20),
        (2e-3, 3),
        (5e-3, 1),
        (1.0, 1),
        (1e-5, 500),
        (1e-9, 1000),
        (0, 1000),
    ],
)
def test_a_short_call_is_chained(call_s, calls):
    assert chain_length(call_s, MetalProtocol()) == calls


class Chain:
    def __init__(self, call_s, dispatches=1):
        self.call_s, self.dispatches, self.log = call_s, dispatches, []

    def seconds(self, calls):
        self.log.append(calls)
        return calls * self.call_s


def test_a_chain_of_one_and_a_half_times_its_twin_is_timed():
    """Of two dispatches a call has an empty twin of twice as many."""
    rules = MetalProtocol(least_share=1.5)
    for share, timed in ((1.5, True), (1.499, False)):
        empty = Chain(1e-3)
        call = Chain(2e-3 * share, 2)
        try:
            entrant = MetalEntrant.warm_up(call, empty, rules)
        except Untimed:
            assert not timed
            continue
        assert timed and entrant.warm.calls == 2 and entrant.warm.has_settled
        assert set(empty.log) == {4} and entrant.warm.windows == 2
        assert entrant.pair() == (pytest.approx(6e-3), pytest.approx(4e-3))
        window = entrant.begin(0.036, 1).window()
        assert len(window.samples_s) == 3 and window.samples_s[0] == pytest.approx(1e-3)
        assert window.lasted_s == pytest.approx(3 * 10e-3)
        assert len(entrant.begin(9.0).window().samples_s) == 32
        assert len(entrant.begin(0.0, 5).window().samples_s) == 5


@pytest.mark.parametrize(("share", "windows"), [(0.5, 2), (0.49, 3)])
def test_a_call_is_warm_where_two_medians_agree(share, windows):
    from workbench.measurement.metal_timing import warm_up

    times = iter([1.0] * 6 + [2.0] * 20)
    call = SimpleNamespace(seconds=lambda calls: next(times))
    rules = MetalProtocol(agree=share, warm_samples=5, warm_most=9)
    assert warm_up(call, rules) == WarmUp(2.0, 1, windows, True)


@pytest.mark.parametrize(("most", "cases"), [(None, 4), (9, 4), (4, 4), (2, 2), (1, 1), (0, 0)])
def test_a_kernel_s_check_counts_its_cases_and_what_is_wrong(monkeypatch, most, cases):
    impl = SimpleNamespace(spec="spec")
    four = [SimpleNamespace(impl=impl, sizes=n, dtype="fp32", config=n) for n in range(4)]
    monkeypatch.setattr(
        metal_worker, "import_module", lambda name: SimpleNamespace(cases=lambda spec: iter(four))
    )
    monkeypatch.setattr(metal_worker, "load_kernel", lambda kernel: SimpleNamespace(spec="spec"))
    monkeypatch.setattr(PreparedProblem, "make", lambda *given: None)

    def checked(impl, config, problem):
        if config == 3:
            raise RuntimeError("the driver fails")
        return Checked([0.25, 3.0, 0.5][config], "off" if config == 1 else None)

    monkeypatch.setattr(metal_worker, "check", checked)
    found = metal_worker.check_kernel("k", most, None, 0)
    assert (found.cases, found.wrong) == (cases, (0, 0, 1, 1, 2)[cases])
    assert found.error == (0.0, 0.25, 3.0)[min(cases, 2)]
    if cases < 2:
        assert found.sentence == f"Cases at sizes to check, in each dtype: {cases}."
    else:
        assert found.sentence.endswith(": off")


def test_a_rehearsal_takes_twenty_microseconds_and_a_second_for_100_gb():
    driver = RehearsalDriver()
    empty = driver.empty()
    assert (empty.call_s, empty.name, driver.info()) == (0.0, "empty", {})
    spec = Spec("k", {"x": Tensor("N")}, {"y": Tensor("N")}, None, lambda N: 0, [], [])
    impl = spec.impl(name="a")(lambda x: x)
    call = driver.prepare(impl, impl.config(), [torch.ones(250), torch.ones(125).double()], 0)
    assert call.call_s == pytest.approx(2e-5 + 2000 / 1e11)
    first, second = call.seconds(10), call.seconds(10)
    assert first != second and call.chains == 2
    assert driver.now() == pytest.approx(first + second)
    longer = call.seconds(1010) - call.seconds(10)
    each = longer / 1000 - call.call_s
    assert each == pytest.approx(driver.empty().seconds(1001) / 1000 - empty.seconds(1) / 1000,
                                 rel=0.3)  # fmt: skip
