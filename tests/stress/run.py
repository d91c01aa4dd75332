"""Run malformed command lines, hostile kernel files, kills and stops, and count what must not be.

    python tests/stress/run.py                     all of it: 1,000, 400, 100 and 200 cases
    python tests/stress/run.py --sample            a few of each
    python tests/stress/run.py --seed 7 lines      one generator, with another seed
    python tests/stress/run.py --seed 7 --only lines/12 --keep case    one case, and its folder

The exit code is 0 where nothing is wrong, 1 where something is, and 130 after Ctrl-C, which prints
the counts so far. Each violation prints the words that repeat its case.
"""

from __future__ import annotations

import argparse
import queue
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]  # of `stress` and of `workbench`
sys.path.remove(str(HERE)) if str(HERE) in sys.path else None

from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: E402
from rich.table import Table  # noqa: E402

from stress import hostile, kills, lines, stops  # noqa: E402
from stress.cases import KINDS, Case, Place, Violation  # noqa: E402
from stress.server import Server  # noqa: E402

SUITES = {module.NAME: module for module in (lines, hostile, kills, stops)}
PROCESSES = 2
SHOWN = 800  # letters of a violation
STOPPED = 130


@dataclass
class Result:
    """What became of a case."""

    case: Case
    violations: list[Violation]
    ran: list[str]  # command lines
    seconds: float = 0.0


@dataclass
class Counts:
    """What became of the cases of a generator."""

    cases: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)  # cases with a violation of this kind

    def add(self, result: Result) -> None:
        self.cases += 1
        self.seconds += result.seconds
        self.kinds.update({v.kind for v in result.violations})


def run_case(case: Case, server: Server, keep: Path | None = None) -> Result:
    """Run one case in a folder of its own, which `keep` replaces and which stays then."""
    began = time.monotonic()
    folder = keep or Path(tempfile.mkdtemp(prefix="stress-"))
    place = Place(folder, server)
    try:
        violations = SUITES[case.suite].run(case, place)
        return Result(case, violations, place.ran, time.monotonic() - began)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def cases_of(suites: Sequence[str], seed: int, sample: bool, only: str | None) -> list[Case]:
    """The cases to run. Raises ValueError for an unknown one."""
    if only is not None:
        suite, _, number = only.partition("/")
        if suite not in SUITES or not number.isdecimal():
            raise ValueError(f"there is no case {only}; one is called lines/12")
        return [Case(suite, int(number), seed)]
    counts = {n: m.SAMPLE if sample else m.COUNT for n, m in SUITES.items() if n in suites}
    cases = [Case(name, n, seed) for name, count in counts.items() for n in range(count)]
    random.Random(seed).shuffle(cases)  # so that the counts after Ctrl-C are of all generators
    return cases


def results_of(cases: Sequence[Case], processes: int, keep: Path | None) -> Iterator[Result]:
    """Run the cases in threads, each with a server of its own; yield each result as it comes."""
    todo: queue.SimpleQueue[Case] = queue.SimpleQueue()
    done: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
    for case in cases:
        todo.put(case)
    stop = threading.Event()

    def work() -> None:
        with Server() as server:
            while not stop.is_set():
                try:
                    case = todo.get_nowait()
                except queue.Empty:
                    return
                try:
                    done.put(run_case(case, server, keep))
                except Exception as error:  # a fault of the generator: it ends the run
                    done.put(error)
                    return

    for _ in range(min(processes, len(cases))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in cases:
            result = done.get()
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        stop.set()


def table(counts: dict[str, Counts]) -> Table:
    """The counts of each generator."""
    result = Table("", "cases", *KINDS, "seconds", box=None, padding=(0, 1, 0, 0))
    for column in result.columns[1:]:
        column.justify = "right"
    for name, one in counts.items():
        result.add_row(name, str(one.cases), *(str(one.kinds[k]) for k in KINDS),
                       f"{one.seconds:.0f}")  # fmt: skip
    return result


def say(console: Console, result: Result) -> None:
    """Print the violations of a case, and the words that repeat it."""
    case = result.case
    heading = f"{case.name} (--seed {case.seed} --only {case.name})"
    texts = [f"{v.kind}: {v.text[-SHOWN:]!a}" for v in result.violations]
    for text, style in ((heading, "bold red"), *((t, None) for t in texts)):
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
    for line in result.ran:
        console.print(ascii(line[:SHOWN]), style="dim", markup=False, soft_wrap=True)


def main(context: Sequence[str] | None = None) -> int:
    options = _options(context)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    console = Console()
    try:
        cases = cases_of(options.suites or list(SUITES), seed, options.sample, options.only)
    except ValueError as error:
        console.print(f"error: {error}.", markup=False)
        return 2
    console.print(f"{len(cases)} cases, seed {seed}")
    counts = {name: Counts() for name in dict.fromkeys(c.suite for c in cases)}
    stopped = False
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        tasks = {name: progress.add_task(name, total=sum(c.suite == name for c in cases))
                 for name in counts}  # fmt: skip
        try:
            for result in results_of(cases, options.processes, options.keep):
                counts[result.case.suite].add(result)
                if not console.is_terminal and sum(c.cases for c in counts.values()) % 50 == 0:
                    console.print(f"{sum(c.cases for c in counts.values())} cases are done")
                progress.advance(tasks[result.case.suite])
                if result.violations:
                    say(progress.console, result)
        except KeyboardInterrupt:
            stopped = True
    console.print(table(counts))
    if stopped:
        done = sum(one.cases for one in counts.values())
        console.print(f"stopped after {done} of {len(cases)} cases")
        return STOPPED
    return 1 if any(one.kinds for one in counts.values()) else 0


def _options(context: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], metavar="GENERATOR",
                        help=f"{', '.join(SUITES)}; all by default")  # fmt: skip
    parser.add_argument("--seed", type=int, help="of all choices; a random one by default")
    parser.add_argument("--sample", action="store_true", help="the few cases that CI runs")
    parser.add_argument("--only", metavar="CASE", help="this case alone, such as lines/12")
    parser.add_argument("--keep", type=Path, help="with --only: run in this folder, which stays")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="cases at a time")
    return parser.parse_args(context)


if __name__ == "__main__":
    sys.exit(main())
