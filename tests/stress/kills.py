"""Sweeps that are killed at random moments, and run again until they are complete.

Nothing that was obtained may be lost or obtained again, the outcomes at the end are those of a
sweep that nobody disturbed, a killed worker costs no config, and nothing is left behind.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mistaken_kernels import BLOCK, text_of

from stress.cases import CODES, Case, Ended, Place, Violation, left_of, session
from workbench.data import exits
from workbench.data.database import open_history
from workbench.data.events import read
from workbench.data.record import Failure, Outcome, Record

NAME, COUNT, SAMPLE = "kills", 100, 2
LIMIT_S = 120.0
AGAIN = 3  # runs after the kill until the sweep must be complete
KERNEL = text_of({BLOCK: "tile(64, 2048, default=256)"})  # six configs with --only
SIGNALS = {
    "parent": ("SIGKILL", "SIGINT", "SIGTERM", "SIGHUP"),
    "child": ("SIGKILL", "SIGINT", "SIGTERM", "SIGHUP"),
    "worker": ("SIGKILL", "SIGKILL", "SIGTERM"),
    "group": ("SIGKILL", "SIGINT", "SIGTERM", "SIGHUP"),
}
WHOM = ("parent", "parent", "child", "worker", "worker", "group", "group")

_undisturbed: tuple[dict[str, str], float] | None = None
_lock = threading.Lock()


@dataclass(frozen=True)
class Kill:
    """Which signal goes to whom, and when."""

    whom: str
    signal: str
    after: int | None  # outcomes that are stored before; None: before the first
    share: float  # of the seconds of an undisturbed sweep to wait, beyond that
    cpus: int  # 1: one worker of each kind; 0: one for each CPU


def kill_of(rng: random.Random) -> Kill:
    """A kill."""
    whom = rng.choice(WHOM)
    after = rng.choice((None, None, 1, 2, 3, 4, 5, 6))
    share = rng.uniform(0.0, 1.1) if after is None else rng.uniform(0.0, 0.05)
    return Kill(whom, rng.choice(SIGNALS[whom]), after, share, rng.choice((0, 1, 1)))


def words_of(place: Place, events: Path) -> list[str]:
    """The sweep."""
    return [
        "sweep", "tile_size", "--kernel", str(place.here / "mine.py"), "--only", "--device", "h200",
        "--database", place.database, "--out", str(place.folder / "out"),
        "--events-file", str(events),
    ]  # fmt: skip


def undisturbed(place: Place) -> tuple[dict[str, str], float]:
    """The outcomes of the sweep when nobody disturbs it, and its seconds. Taken once."""
    global _undisturbed
    with _lock:
        if _undisturbed is None:
            other = Place(place.folder / "undisturbed", place.server)
            (other.here / "mine.py").write_text(KERNEL, encoding="utf-8")
            ended = other.real(words_of(other, other.folder / "events.jsonl"), LIMIT_S)
            outcomes = {label(o): words(o) for o in stored(other)}
            assert ended.code == 0 and len(outcomes) == 6, (ended, outcomes)
            _undisturbed = outcomes, ended.seconds
        return _undisturbed


def label(outcome: Outcome) -> str:
    """The config in words."""
    return outcome.case.label


def words(outcome: Outcome) -> str:
    """What an outcome says, without when it was obtained."""
    if isinstance(outcome, Record):
        return f"{outcome.phase} {outcome.time_s!r}"
    return f"{outcome.stage}: {outcome.reason}"


def run(case: Case, place: Place) -> list[Violation]:
    """Run a case; gives what is wrong."""
    rng = case.random()
    kill = kill_of(rng)
    outcomes, usual_s = undisturbed(place)
    (place.here / "mine.py").write_text(KERNEL, encoding="utf-8")
    place.ran.append(f"# {kill.signal} to the {kill.whom}, {kill.after} outcomes, {kill.share:.2f}")
    events = place.folder / "first.jsonl"
    first = struck(place, kill, events, usual_s, rng)
    codes = CODES | {exits.stopped_by(n) for n in (1, 2, 15)} | {-1, -2, -9, -15}
    faults = first.faults(codes)
    faults = [f for f in faults if "no sentence" not in f.text or kill.signal != "SIGKILL"]
    logged = outcomes_in(events)
    if kill.whom == "worker" and first.code != exits.PASSED:
        faults.append(Violation("lost", f"a lost worker ended the sweep: {first.code} {first.err}"))
    for number in range(AGAIN):
        again = place.forked(words_of(place, place.folder / f"again{number}.jsonl"), LIMIT_S)
        faults += again.faults()
        if again.code == 0 and {label(o) for o in newest(place)} == set(outcomes):
            break
    faults += compared(place, logged, outcomes)
    if names := place.temporary():
        faults.append(Violation("leftover", f"temporary files: {', '.join(names)}"))
    return faults


def compared(place: Place, logged: Sequence[Outcome], outcomes: dict[str, str]) -> list[Violation]:
    """What was lost, what was obtained twice, and what is another outcome than it should be."""
    faults = []
    last = {label(o): o for o in newest(place)}
    for name, right in outcomes.items():
        outcome = last.get(name)
        if outcome is None:
            faults.append(Violation("lost", f"{name} has no outcome at the end"))
        elif isinstance(outcome, Failure):
            faults.append(Violation("false failure", f"{name}: {outcome.reason}"))
        elif words(outcome) != right:
            faults.append(Violation("lost", f"{name} is {words(outcome)}, and not {right}"))
    known = {(o.key, o.at) for o in stored(place)}
    for outcome in logged:
        if (outcome.key, outcome.at) not in known:
            faults.append(Violation("lost", f"{label(outcome)} is in the events file alone"))
    times = [(o.key, o.at) for o in stored(place) if isinstance(o, Record)]
    if twice := {key for key, _ in times if len({at for k, at in times if k == key}) > 1}:
        faults.append(Violation("twice", f"{len(twice)} configs were obtained twice"))
    return faults


def struck(place: Place, kill: Kill, events: Path, usual_s: float, rng: random.Random) -> Ended:
    """Run the sweep and send the signal; gives how it ended."""
    place.note(words_of(place, events))
    line = [sys.executable, "-m", "workbench", *words_of(place, events)]
    files = [place.folder / "killed.out", place.folder / "killed.err"]
    began = time.monotonic()
    with files[0].open("wb") as out, files[1].open("wb") as err:
        process = subprocess.Popen(
            line, cwd=place.here, env=place.environment(), stdin=subprocess.DEVNULL, stdout=out,
            stderr=err, start_new_session=True, preexec_fn=lambda: _prepare(kill.cpus),
        )  # fmt: skip
    wait_for(kill, process, events, began, usual_s)
    for pid in targets(kill.whom, process.pid, rng) if process.poll() is None else []:
        with suppress(ProcessLookupError):
            os.kill(pid, getattr(signal, kill.signal))
    hung = False
    try:
        code = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        hung, code = True, -9
    seconds = time.monotonic() - began
    left = left_of(process.pid, 0.0 if hung else 10.0)
    process.wait()
    text = [f.read_bytes().decode("utf-8", "replace") for f in files]
    return Ended(code, text[0], text[1], seconds, hung, () if hung else tuple(left))


def _prepare(cpus: int) -> None:
    if cpus:
        known = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {known[os.getpid() % len(known)]})
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def wait_for(
    kill: Kill, process: subprocess.Popen[bytes], events: Path, began: float, usual_s: float
) -> None:
    """Wait for the moment of the kill, or for the end of the sweep."""
    while kill.after and process.poll() is None and time.monotonic() - began < LIMIT_S:
        if events.exists() and events.read_bytes().count(b'{"type":"Record"') >= kill.after:
            break
        time.sleep(0.02)
    with suppress(subprocess.TimeoutExpired):
        process.wait(kill.share * usual_s)


def targets(whom: str, parent: int, rng: random.Random) -> list[int]:
    """The processes that the signal goes to; none where there is no such process yet."""
    every = session(parent)
    child = [pid for pid in children(parent) if pid in every]
    if whom == "parent":
        return [parent]
    if whom == "child":
        return child
    if whom == "group":
        return sorted(every)  # as a terminal does, and a system that ends a whole job
    servers = {parent, *child, *(pid for one in child for pid in children(one))}
    workers = sorted(set(every) - servers)  # the children of a fork server
    return [rng.choice(workers)] if workers else []


def children(pid: int) -> list[int]:
    """The child processes of a process."""
    with suppress(OSError):
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def stored(place: Place) -> list[Outcome]:
    """All outcomes in the database."""
    if not (place.folder / "runs.db").is_file():
        return []
    with open_history(place.database, reading=True) as history:
        return [o for run in history.runs(limit=100) for o in history.outcomes(run.id)]


def newest(place: Place) -> list[Outcome]:
    """The newest outcome of each config."""
    known: dict[str, Outcome] = {}
    for outcome in sorted(stored(place), key=lambda o: o.at):
        known[outcome.key] = outcome
    return list(known.values())


def outcomes_in(events: Path) -> list[Outcome]:
    """The outcomes in an events file."""
    if not events.exists():
        return []
    return [e for e in read(events).events if isinstance(e, (Record, Failure))]
