"""Two places keep a run, the events file and the database, and Ctrl-C never falls between them."""

import signal
from contextlib import contextmanager
from datetime import datetime

import pytest
import synthetic

from workbench.data import clock
from workbench.data.database import open_history
from workbench.data.events import EventLog, RunFinished, read
from workbench.data.interrupts import Interrupts
from workbench.data.record import Evidence, Failure, Finding
from workbench.data.store import Store
from workbench.tuner.resume import _lasting

RUN, OUTCOMES = synthetic.softmax()
FAILED = synthetic.failure(RUN, OUTCOMES[0], "check", "wrong")
FINDING = Finding(
    RUN.id, synthetic.AT, "block_size", "softmax", RUN.sizes, "bf16", "seen", "It is seen.",
    (Evidence("time", 1.0, "s", "measured"),),
)  # fmt: skip


class Hit(EventLog):
    """A log whose user presses Ctrl-C while a line is written."""

    pressed = False

    def write(self, event):
        super().write(event)
        if self.pressed:
            signal.raise_signal(signal.SIGINT)


def begin(store, log):
    store.log = log
    store.begin(RUN)


STEPS = {
    "begin": (begin, RUN, lambda h: h.run(RUN.id)),
    "record": (lambda store, log: store.keep(OUTCOMES[1]), OUTCOMES[1],
               lambda h: h.outcomes(RUN.id)[-1]),
    "failure": (lambda store, log: store.keep(FAILED), FAILED, lambda h: h.outcomes(RUN.id)[-1]),
    "finding": (lambda store, log: store.keep(FINDING), FINDING,
                lambda h: h.findings(RUN.id)[-1]),
    "end": (lambda store, log: store.end("complete", {"measured": 1}, {"idle": 0.5}), "complete",
            lambda h: h.state(RUN.id)),
}  # fmt: skip


@pytest.mark.parametrize("pressed", [False, True], ids=["whole", "interrupted"])
@pytest.mark.parametrize("step", STEPS)
def test_both_places_have_it_or_none(tmp_path, step, pressed):
    act, kept, ask = STEPS[step]
    path, ended = tmp_path / "events.jsonl", []
    with open_history(f"sqlite:///{tmp_path / 'h.db'}") as history, Hit(path) as log:
        try:
            with Interrupts() as interrupts:
                store = Store(history, interrupts)
                if step != "begin":
                    begin(store, log)
                log.pressed = pressed
                act(store, log)
                ended.append("not interrupted")
        except KeyboardInterrupt:
            ended.append("interrupted")
        assert ended == ["interrupted" if pressed else "not interrupted"], "and told at its end"
        assert ask(history) == kept
    last = read(path).events[-1]
    if isinstance(last, RunFinished):
        assert (last.state, dict(last.counts), dict(last.seconds)) == (
            "complete", {"measured": 1}, {"idle": 0.5},
        )  # fmt: skip
    else:
        assert last == kept


def refused(_):
    raise OSError("no space left")


@pytest.mark.parametrize("place", ["history", "log"])
def test_what_one_place_refuses_is_in_the_other(tmp_path, monkeypatch, place):
    """So is what a kill between the two leaves: the database has it first."""
    path = tmp_path / "events.jsonl"
    with open_history(f"sqlite:///{tmp_path / 'h.db'}") as history, EventLog(path) as log:
        with Interrupts() as interrupts:
            store = Store(history, interrupts)
            begin(store, log)
            store.keep(OUTCOMES[0])
            monkeypatch.setattr(getattr(store, place), "add" if place == "history" else "write",
                                refused)  # fmt: skip
            with pytest.raises(OSError, match="no space"):
                store.keep(OUTCOMES[1])
        in_log = OUTCOMES[1] in read(path).events
        assert (OUTCOMES[1] in history.outcomes(RUN.id), in_log) == (
            place == "log",
            place == "history",
        )


@pytest.mark.parametrize(
    ("stage", "stands"),
    [("refused", False), ("compile", True), ("check", True), ("launch", True), ("measure", False)],
)
def test_what_the_process_was_lost_by_is_tried_again(stage, stands):
    assert _lasting(Failure(FAILED.case, "k", RUN.id, synthetic.AT, stage, "why")) == stands


class Deferring:
    """Interrupts that know whether Ctrl-C is deferred."""

    deferred = False

    @contextmanager
    def later(self):
        self.deferred = True
        yield
        self.deferred = False


@pytest.mark.parametrize(
    "entry", [OUTCOMES[1], FAILED, FINDING], ids=["record", "failure", "finding"]
)
def test_ctrl_c_is_deferred_over_both_places(tmp_path, monkeypatch, entry):
    interrupts, seen = Deferring(), []
    with open_history(f"sqlite:///{tmp_path / 'h.db'}") as history:
        log = EventLog(tmp_path / "events.jsonl")
        begin(store := Store(history, interrupts), log)
        for owner, name in ((history, "add"), (log, "write")):
            monkeypatch.setattr(owner, name, lambda *_: seen.append(interrupts.deferred))
        store.keep(entry)
        store.keep(entry, entry)
    assert len(seen) == 5 and all(seen)


def test_no_two_runs_of_a_process_have_one_id(monkeypatch):
    """A second holds 65,536 ids of one name."""
    drawn = iter(("0f5b", "0f5b", "0f5c"))
    monkeypatch.setattr(clock.secrets, "token_hex", lambda size: next(drawn))
    monkeypatch.setattr(clock, "datetime", Stopped)
    assert [clock.run_id("toy")[-8:] for _ in range(2)] == ["toy-0f5b", "toy-0f5c"]


class Stopped(datetime):
    """A clock that stands."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 27, tzinfo=tz)
