"""Stops: one signal interrupts a command, a second one does nothing, and every stop ends."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from types import SimpleNamespace

import pytest
from null_backend import Fate
from nullside import Place

from workbench.data.events import RunFinished, read
from workbench.data.interrupts import STOPS, CtrlC, Interrupts
from workbench.data.record import Failure, Record

pytestmark = pytest.mark.unit
NUMBERS = [getattr(signal, name) for name in STOPS]
SUPERVISED = """
import os, signal, sys, time
from workbench.backend import supervisor
supervisor.ENDING_S = {ending}
def command():
    {code}
raise SystemExit(supervisor.supervise(command, lambda text: print(text, file=sys.stderr)))
"""


class Struck:
    """A lock that gets a signal as soon as it is held, and another one before it is given back."""

    def __init__(self, number):
        self.number, self.lock = number, threading.Lock()

    def __enter__(self):
        assert self.lock.acquire(timeout=2.0), "the thread waits for itself"
        signal.raise_signal(self.number)
        return True

    def __exit__(self, *_):
        signal.raise_signal(self.number)
        self.lock.release()

    def acquire(self, blocking=True, timeout=-1):
        if not blocking:  # a Condition asks so whether it is held
            return self.lock.acquire(blocking)
        return self.__enter__()

    def release(self):
        signal.raise_signal(self.number)
        self.lock.release()


def setting(lock):
    event = threading.Event()
    event._cond = threading.Condition(lock)
    return event.set


def logged(lock):
    handler = logging.NullHandler()
    handler.handle = lambda record: logging.Handler.handle(handler, record)
    handler.lock = lock
    return lambda: handler.handle(logging.makeLogRecord({}))


@pytest.fixture(autouse=True)
def not_ignored():
    """Under nohup, or in the background of a script, tests inherit signals that are ignored."""
    before = [signal.signal(number, signal.SIG_DFL) for number in NUMBERS]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("use", [setting, logged])
def test_the_first_signal_leaves_no_lock_behind(use, number):
    lock = Struck(number)
    with pytest.raises(CtrlC), Interrupts(STOPS) as stops:
        use(lock)()
        time.sleep(10.0)  # it comes shortly after the lock was given back
    assert lock.lock.acquire(timeout=0.0) and stops.number == number


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("use", [setting, logged])
def test_a_second_signal_in_a_lock_of_the_cleanup_does_nothing(use, number):
    """The sweep that hung: its `finally` waited for a lock that the same thread had taken."""
    lock, done = Struck(number), []
    with Interrupts(STOPS) as stops:
        try:
            try:
                signal.raise_signal(signal.SIGTERM)
            except KeyboardInterrupt:
                use(lock)()
                done.append("stopped")
                raise
            finally:
                use(lock)()
                done.append("ended")
        except KeyboardInterrupt:
            done.append("kept")
    assert done == ["stopped", "ended", "kept"] and stops.exit_code == 128 + signal.SIGTERM


def test_a_signal_of_a_deferred_stop_does_not_interrupt_twice():
    done = []
    with pytest.raises(CtrlC), Interrupts(STOPS) as stops:
        try:
            with stops.later():
                signal.raise_signal(signal.SIGHUP)
                signal.raise_signal(signal.SIGTERM)
                done.append("whole")
        finally:
            signal.raise_signal(signal.SIGINT)
            with stops.later():
                done.append("the end of the run")
    assert done == ["whole", "the end of the run"] and stops.exit_code == 128 + signal.SIGHUP


@pytest.mark.parametrize("number", NUMBERS)
def test_a_stop_in_an_import_comes_after_it(number, tmp_path, monkeypatch):
    """Packages drop exceptions of what they import: torch those of numpy's import, in C++."""
    body = (
        "import signal\ntry: signal.raise_signal({})\nexcept BaseException: pass\nelse: whole = 1"
    )
    (tmp_path / f"dropping{number}.py").write_text(body.format(int(number)))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CtrlC), Interrupts(STOPS) as stops:
        assert import_module(f"dropping{number}").whole == 1
        time.sleep(10.0)
    assert stops.number == number


def test_an_import_under_way_before_the_command_defers_nothing(tmp_path, monkeypatch):
    """A script may be imported, and call the workbench meanwhile."""
    body = "from tests_stops_call import call\ncall()\n"
    (tmp_path / "imported_script.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)

    def call():
        with pytest.raises(CtrlC), Interrupts():
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("it was deferred")

    monkeypatch.setitem(sys.modules, "tests_stops_call", SimpleNamespace(call=call))
    import_module("imported_script")


def test_a_stop_that_does_not_end_can_be_interrupted_again(monkeypatch):
    with Interrupts(), pytest.raises(CtrlC):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr("workbench.data.interrupts.ENDING_S", 0.0)
        signal.raise_signal(signal.SIGINT)


def test_handlers_are_put_back_and_those_of_others_stay():
    before = {number: signal.getsignal(number) for number in NUMBERS}
    own = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts(STOPS) as outer, Interrupts() as inner:
            assert inner is outer and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, own)
    assert {number: signal.getsignal(number) for number in NUMBERS} == before


def test_a_second_signal_at_every_call_of_a_stop_harms_nothing(tmp_path, monkeypatch):
    """From the first signal to the end of the command, each function that is called gets one."""
    monkeypatch.setattr("workbench.reports.sweep.page", lambda *given, **more: "<p>page</p>")
    context, seen, calls = Place(tmp_path), [], 0

    def strike(frame, event, argument):
        nonlocal calls
        if event == "call" and stops.number is not None and not stops._is_due:
            calls += 1
            signal.raise_signal(NUMBERS[calls % 3])

    def fate(candidate):
        if threading.current_thread() is threading.main_thread():
            seen.append(candidate)
            if len(seen) == 4:
                sys.setprofile(strike)
                signal.raise_signal(signal.SIGTERM)
        return Fate()

    with Interrupts(STOPS) as stops:
        try:
            outcomes = context.sweep(fate)
        finally:
            sys.setprofile(None)
    assert context.code == 130 and stops.number == signal.SIGTERM and calls > 1000
    assert context.stored() == outcomes and sum(isinstance(o, Record) for o in outcomes) >= 3
    (events,) = context.out.glob("*/events.jsonl")
    *_, end = found = read(events).events
    assert isinstance(end, RunFinished) and end.state == "interrupted"
    assert [e for e in found if isinstance(e, Record | Failure)] == outcomes
    assert list(context.out.glob("*/report.html"))


def started(code, ending=20.0):
    script = SUPERVISED.format(code=code, ending=ending)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
        preexec_fn=lambda: [signal.signal(number, signal.SIG_DFL) for number in NUMBERS],
    )  # fmt: skip
    assert process.stdout.readline() == "begun\n"
    return process


@pytest.mark.parametrize("number", NUMBERS)
def test_a_command_that_outlives_its_stop_is_killed(number, tmp_path, monkeypatch):
    """It never hears the signal; its temporary folder goes with it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ignore = "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]"
    process = started(f"{ignore}; print('begun', flush=True); time.sleep(1000)", 0.5)
    assert list(tmp_path.iterdir())
    process.send_signal(number)
    _, text = process.communicate(timeout=30)
    assert process.returncode == 128 + number and not list(tmp_path.iterdir())
    assert text.startswith("stopped: the command went on for") and number.name in text
    assert text.endswith("run it again for the rest.\n") and text.count("\n") == 1


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_to_the_command_alone_stops_it_once(number):
    code = "\n    ".join(
        ["from workbench.data.interrupts import Interrupts",
         "try: print('begun', flush=True); time.sleep(1000)",
         "except KeyboardInterrupt: time.sleep(1.5); print('kept')",
         "return Interrupts._current.exit_code"]
    )  # fmt: skip
    process = started(code)
    for _ in range(10):
        process.send_signal(number)
        time.sleep(0.02)
    text, complained = process.communicate(timeout=30)
    assert (process.returncode, text, complained) == (128 + number, "kept\n", "")


def test_a_program_that_is_waited_for_has_its_own_time(tmp_path):
    """It writes its trace after the signal, for longer than a command may take to end."""
    program = (
        "import signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: None)\n"
        "print('begun', flush=True)\ntime.sleep(1.2)\nprint('written')"
    )
    code = (
        "from workbench.traces.profilers.running.child import run_child; "
        f"return run_child([sys.executable, '-c', {program!r}], own=False).stop_signal"
    )
    process = started(code, 0.3)
    os.kill(process.pid, signal.SIGTERM)
    text, complained = process.communicate(timeout=30)
    assert (process.returncode, text, complained) == (signal.SIGTERM, "written\n", "")


def test_a_stop_while_the_page_is_drawn_waits_for_it(tmp_path, monkeypatch):
    """All was obtained by then, and the page is what the user waited for."""
    context, drawing = Place(tmp_path), []

    def page(*given, **more):
        if threading.current_thread() is threading.main_thread():  # not the one drawn ahead
            drawing.append(given)
            signal.raise_signal(signal.SIGTERM)
        return "<p>page</p>"

    monkeypatch.setattr("workbench.reports.sweep.page", page)
    with Interrupts(STOPS) as stops, pytest.raises(CtrlC):
        context.sweep()
    assert len(drawing) == 1 and list(context.out.glob("*/report.html"))
    assert stops.exit_code == 128 + signal.SIGTERM
