"""Sweeps that are stopped at random moments, by one signal or two, and then run again.

A stop ends in time with the exit code of its signal, all that was stored is in both places, the
same command takes it over, and no process and no temporary file is left.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from stress.cases import POLL_S, Case, Ended, Place, Violation, end_session, left_of
from workbench.data import exits
from workbench.data.database import open_history
from workbench.data.events import read
from workbench.data.record import Failure, Record

NAME, COUNT, SAMPLE = "stops", 200, 2
END_S = 25.0  # from the last signal to the end of the command
LAST_S = 5.0  # of a sweep that ends before it hears of the stop
LIMIT_S = 180.0  # of a sweep that nobody stops
SWEEP = ["tile_size", "--kernel", "copy", "--device", "h200"]
KINDS = ("SIGTERM", "SIGTERM SIGTERM", "SIGINT", "SIGINT SIGINT", "SIGHUP", "SIGHUP SIGTERM")


@dataclass(frozen=True)
class Stop:
    """Which signals come, whether to the whole group as from a terminal, and when."""

    signals: tuple[str, ...]
    group: bool
    outcomes: int  # that are in the events file before, and the seconds beyond that
    after_s: float
    apart_s: float  # between two signals
    again: bool  # whether the same command is then run to its end, which takes most of the time


def stop_of(rng: random.Random) -> Stop:
    """A stop."""
    signals = tuple(rng.choice(KINDS).split())
    group = signals[0] == "SIGINT" and rng.random() < 0.5
    apart_s = rng.choice((0.0, rng.uniform(0.0, 0.1), rng.uniform(0.0, 2.0)))
    outcomes = rng.choice((0, 0, 0, 1, 2, 5, 10, 20, 30))
    after_s = rng.uniform(0.0, 1.0 if outcomes else 12.0)
    return Stop(signals, group, outcomes, after_s, apart_s, rng.random() < 0.25)


def run(case: Case, place: Place) -> list[Violation]:
    """Run a case; gives what is wrong."""
    stop = stop_of(case.random())
    stopped, before = struck(place, stop)
    number = getattr(signal, stop.signals[0])
    codes = {exits.PASSED, exits.stopped_by(number)}
    if not before and "configs to try" not in stopped.out:
        codes.add(-number)  # before the command itself had begun
    if "KeyboardInterrupt" in stopped.err and "workbench" not in stopped.err:
        stopped = replace(stopped, code=-number, err="")  # Python's own start was interrupted
    faults = stopped.faults(codes)
    if stopped.code == exits.PASSED and stopped.seconds > LAST_S:
        faults.append(Violation("hang", f"it went on for {stopped.seconds:.0f} s to its end"))
    logged, stored = in_files(place), in_database(place)
    if lost := before - logged:
        faults.append(Violation("lost", f"{len(lost)} outcomes have left the events file"))
    if logged != stored:
        faults.append(Violation("lost", f"{len(logged)} in the events file, {len(stored)} stored"))
    if stored and not list(place.folder.glob("out/*/report.html")):
        faults.append(Violation("lost", "no page shows what was obtained"))
    if stop.again:
        faults += again(place, stored)
    if names := place.temporary():
        faults.append(Violation("leftover", f"temporary files: {', '.join(names)}"))
    return faults


def struck(place: Place, stop: Stop) -> tuple[Ended, set[tuple[str, str]]]:
    """Start the sweep and stop it. Gives how it ended, counted from the last signal, and the
    outcomes that were in the events file before the first."""
    words = [*SWEEP, "--out", str(place.folder / "out"), "--fresh"]
    place.note(["sweep", *words])
    place.ran.append(f"# {stop}")
    files = [place.folder / "stopped.out", place.folder / "stopped.err"]
    with files[0].open("wb") as out, files[1].open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "workbench.sweep", *words], cwd=place.here,
            env=place.environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True, preexec_fn=_prepare,
        )  # fmt: skip
    while process.poll() is None and len(in_files(place)) < stop.outcomes:
        time.sleep(POLL_S)
    with suppress(subprocess.TimeoutExpired):
        process.wait(stop.after_s)
    before = in_files(place)
    for at, name in enumerate(stop.signals):
        time.sleep(stop.apart_s if at else 0.0)
        if process.poll() is None:
            (os.killpg if stop.group else os.kill)(process.pid, getattr(signal, name))
    began, hung = time.monotonic(), False
    try:
        code = process.wait(END_S)
    except subprocess.TimeoutExpired:
        hung, code = True, -9
        end_session(process.pid)
        process.wait()
    seconds = time.monotonic() - began
    place.ran.append(f"# ended {seconds:.1f} s after the last signal, with {len(before)} outcomes")
    left = left_of(process.pid)
    text = [f.read_bytes().decode("utf-8", "replace") for f in files]
    return Ended(code, text[0], text[1], seconds, hung, () if hung else tuple(left)), before


def _prepare() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # a job in the background ignores some


def again(place: Place, stored: set[tuple[str, str]]) -> list[Violation]:
    """Run the same command to its end; gives what it obtained again, or did not take over."""
    ended = place.forked(["sweep", *SWEEP, "--out", str(place.folder / "out")], LIMIT_S)
    faults = ended.faults({exits.PASSED})
    known = re.search(r"(\d+) known from earlier runs", ended.out)
    many = len({key for key, _ in stored})
    if "Nothing was left to obtain" not in ended.out and int(known[1] if known else 0) != many:
        faults.append(Violation("lost", f"{known and known[0]}, and {many} were stored"))
    keys = [key for key, _ in in_database(place)]
    if len(keys) != len(set(keys)):
        faults.append(Violation("twice", f"{len(keys) - len(set(keys))} outcomes"))
    return faults


def in_files(place: Place) -> set[tuple[str, str]]:
    """Key and time of all outcomes in the events files."""
    return {
        (event.key, event.at)
        for path in place.folder.glob("out/*/events.jsonl")
        for event in read(path).events
        if isinstance(event, Record | Failure) and not refused(event)
    }


def in_database(place: Place) -> set[tuple[str, str]]:
    """Key and time of all outcomes in the database."""
    path = place.folder / "data" / "kernel-workbench" / "history.db"
    if not path.is_file():
        return set()
    with open_history(f"sqlite:///{path}", reading=True) as history:
        outcomes = [o for run in history.runs(limit=100) for o in history.outcomes(run.id)]
    return {(o.key, o.at) for o in outcomes if not refused(o)}


def refused(outcome: Record | Failure) -> bool:
    """Whether a config was refused before it was compiled, which each run says anew."""
    return isinstance(outcome, Failure) and outcome.stage == "refused"
