"""Calls kept running back to back on a stream that is not there, and the task that times them."""

from types import SimpleNamespace

import pytest

from workbench.data.record import Energy
from workbench.measurement import back_to_back, energy_counter, worker
from workbench.measurement.back_to_back import BackToBack
from workbench.measurement.candidate import Candidate, Refusal
from workbench.measurement.energy import Clock, EnergyError, energies

BUSY_W, IDLE_W, STEP_S = 500.0, 100.0, 0.02


class Stream:
    """A host and one stream in virtual time, on a board with a counter: 500 W while calls run."""

    source = "simulated"

    def __init__(self):
        self.now_s = self.drained_s = self.joules = 0.0
        self.shown_mj, self.next_s, self.launched, self.starved_s = 10**6, STEP_S, 0, 0.0
        self.clock = Clock(lambda: self.now_s, lambda: self.passes(1e-4))

    def passes(self, seconds):
        end = self.now_s + seconds
        while self.now_s < end:
            at = min(end, self.next_s)
            busy_s = max(0.0, min(at, self.drained_s) - self.now_s)
            self.joules += busy_s * BUSY_W + (at - self.now_s - busy_s) * IDLE_W
            self.now_s = at
            if at >= self.next_s:
                self.shown_mj = 10**6 + round(self.joules * 1e3)
                self.next_s += STEP_S

    def millijoules(self):
        self.passes(2e-4)
        return self.shown_mj

    def launch(self, device_s):
        self.passes(5e-6)
        self.launched += 1
        self.drained_s = max(self.now_s, self.drained_s) + device_s

    def synchronize(self):
        self.passes(max(0.0, self.drained_s - self.now_s))

    def event(self):
        event = SimpleNamespace(at_s=0.0)
        event.record = lambda: setattr(event, "at_s", self.drained_s)
        event.query = lambda: self.now_s >= event.at_s
        return event


@pytest.fixture
def stream(monkeypatch):
    created = Stream()
    cuda = SimpleNamespace(
        current_stream=lambda: created, Event=created.event, synchronize=created.synchronize,
        current_device=lambda: 0,
    )  # fmt: skip
    monkeypatch.setattr(back_to_back.torch, "cuda", cuda)
    return created


def entrant(stream, call_s, calls=1, method="events", flush=None, copies=None):
    """What `Bench.timed` gives: a graph of so many calls, or calls one by one."""
    graph = SimpleNamespace(replay=lambda: stream.launch(call_s * calls))
    rotation = SimpleNamespace(call=lambda: stream.launch(call_s), flush=flush, copies=copies)
    return SimpleNamespace(
        estimate_s=call_s, calls=calls, method=method, rotation=rotation,
        graph=graph if method == "graph" else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("call_s", "calls", "method"),
    [(1e-6, 1000, "graph"), (2e-4, 5, "graph"), (5e-3, 1, "events"), (0.08, 1, "events")],
)
def test_the_stream_never_starves_and_each_call_is_counted(stream, call_s, calls, method):
    load = BackToBack(entrant(stream, call_s, calls, method))
    result = energies({0: load}, stream, 2, clock=stream.clock)[0]
    assert result.power_w == pytest.approx(BUSY_W, rel=0.005), "no pause between two calls"
    assert result.joules == pytest.approx(BUSY_W * call_s, rel=0.02)
    assert result.idle_w == pytest.approx(IDLE_W, rel=0.005) and result.regime == "cold"
    assert stream.now_s >= stream.drained_s, "nothing is left running"


def test_a_call_that_waits_runs_one_after_the_other(stream):
    load = BackToBack(entrant(stream, 1e-3, 1, "host"))
    assert [load.feed() for _ in range(3)] == [1, 2, 3]
    assert stream.now_s >= stream.drained_s
    load.drain()
    assert load.feed() == 1


def test_a_flush_is_left_out_and_said(stream):
    assert BackToBack(entrant(stream, 1e-6, 256, "graph", flush=object())).regime == "warm"


def test_a_call_that_changes_its_inputs_has_no_energy(stream):
    with pytest.raises(EnergyError, match="changes its inputs"):
        BackToBack(entrant(stream, 1e-3, copies=object()))


def candidates(count):
    return [Candidate.create(f"impl{n}", {}) for n in range(count)]


@pytest.fixture
def measuring(stream, monkeypatch):
    """The measuring process with three configs: one that runs, one that mutates, one that fails."""
    made = {0: entrant(stream, 1e-3), 1: entrant(stream, 1e-3, copies=object())}
    failed = {2: Refusal("measure", "no graph can hold it")}
    monkeypatch.setattr(worker, "_now", SimpleNamespace(spent=None))
    monkeypatch.setattr(worker, "_entrants", lambda *given: (made, failed))
    monkeypatch.setattr(energy_counter, "open_counter", lambda index: stream)
    usual = energies
    monkeypatch.setattr(
        "workbench.measurement.energy.energies",
        lambda loads, counter, windows: usual(loads, counter, windows, clock=stream.clock),
    )
    return stream


def test_each_config_has_its_energy_or_its_reason(measuring):
    (first, second, third), spent = worker.energy(candidates(3), 6)
    assert isinstance(first, Energy) and first.windows == 6 and spent.total > 0
    assert "changes its inputs" in second and third == "no graph can hold it"


def test_without_a_counter_all_have_its_reason(measuring, monkeypatch):
    def absent(index):
        raise EnergyError("no counter here")

    monkeypatch.setattr(energy_counter, "open_counter", absent)
    assert worker.energy(candidates(3), 6)[0] == ["no counter here"] * 3


def test_a_gpu_that_fails_meanwhile_is_a_reason(measuring, monkeypatch):
    def broken(*given):
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(worker, "_entrants", broken)
    monkeypatch.setattr(worker, "_is_gpu_lost", lambda: False)
    (reason, _, _), _ = worker.energy(candidates(3), 6)
    assert "illegal memory access" in reason
