"""Plant changes that a seed draws, and say which of them the tests do not see, by subsystem.

    python tests/mutants/seeds.py --seed 1 --count 150

A first pass runs the tests of `make test` on a copy in which every drawn function notes the test
that executes it. Each change then meets the tests that execute its function, the quickest first,
and those beside them in their files, up to a minute in all. A change at which they only raise, as a
TypeError does, tells nothing of the tests and is left out of the rates. The exit code is 1 where a
rate is under what is asked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any

import draw
import run
from draw import Change

ASKED, ASKED_EACH = 0.85, 0.70  # of all, and of each subsystem
SECONDS, MOST = 60.0, 250  # of tests that one change meets, and their number
RAISED = ("TypeError", "NameError", "AttributeError", "UnboundLocalError")
GROUPS = ("unit", "compile", "interpret", "emulated", "web")
Tests = dict[str, float]  # and their seconds
# The plugin, which is also what the functions call: it notes who executes which function.
NOTES = """
import os

_known = set()


def note(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if test and (number, test) not in _known and "SEEN" in os.environ:
        _known.add((number, test))
        _write(f"{number}\\t{test}")


def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed and "PYTEST_XDIST_WORKER" in os.environ:
        _write(f"{report.duration:.3f}\\t{report.nodeid}\\ttime")


def _write(line):
    with open(os.environ["SEEN"], "a", encoding="utf-8") as file:
        file.write(line + "\\n")
"""


def noting(tree: Path, changes: Sequence[Change]) -> None:
    """Let the functions of these changes note, in a copy of the tree, that they are executed."""
    (tree / "mutants_seen.py").write_text(NOTES, encoding="utf-8")
    by_file = defaultdict(dict)
    for number, change in enumerate(changes):
        by_file[change.file].setdefault(change.function[1], []).append(number)
    for file, at in by_file.items():
        lines = (tree / file).read_text(encoding="utf-8").splitlines(keepends=True)
        for line in sorted(at, reverse=True):
            statement = lines[line - 1]
            space = statement[: len(statement) - len(statement.lstrip())]
            calls = "; ".join(f"__import__('mutants_seen').note({n})" for n in at[line])
            lines.insert(line - 1, f"{space}{calls}\n")
        (tree / file).write_text("".join(lines), encoding="utf-8")


def executed(changes: Sequence[Change], groups: Sequence[str]) -> dict[int, Tests]:
    """Return the tests that a change meets and their seconds, by the number of the change."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = run.copied(Path(folder, "tree"))
        noting(tree, changes)
        seen = Path(folder, "seen")
        seen.touch()
        for group in groups:
            print(f"who executes what: tests/{group}", flush=True)
            options = ("-p", "mutants_seen", "-n", "2", "--dist", "worksteal")
            pytest(group, tree, (*options, f"tests/{group}"), SEEN=str(seen))
        return by_number(seen.read_text(encoding="utf-8").splitlines())


def pytest(group: str, tree: Path, words: Sequence[str], **more: str) -> None:
    """Run pytest in a copy of the tree, with these variables."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | more
    environment["PYTHONPATH"] = os.pathsep.join((str(tree), str(draw.HERE)))
    environment |= {"TRITON_INTERPRET": "1"} if group == "interpret" else {}
    command = [sys.executable, *(word for word in run.PYTEST if word != "-x"), *words]
    subprocess.run(command, cwd=tree, env=environment, check=False,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip


def by_number(lines: Sequence[str]) -> dict[int, Tests]:
    """Return the tests of each number that pass: those that execute it, the quickest first, then
    the others of their files. A fixture of a module or a cache lets one test execute what others
    assert."""
    rows = [line.split("\t") for line in lines]
    seconds = {row[1]: float(row[0]) for row in rows if len(row) == 3}
    files, direct = defaultdict(list), defaultdict(set)
    for test in sorted(seconds, key=seconds.__getitem__):
        files[test.partition("::")[0]].append(test)
    for row in rows:
        if len(row) == 2 and row[1] in seconds:
            direct[int(row[0])].add(row[1])
    result = {}
    for number, tests in direct.items():
        own = sorted(tests, key=seconds.__getitem__)
        beside = [test for file in {t.partition("::")[0] for t in own} for test in files[file]]
        beside.sort(key=seconds.__getitem__)
        result[number] = within(dict.fromkeys((*own, *beside)), seconds)
    return result


def within(tests: Iterable[str], seconds: dict[str, float]) -> Tests:
    """Return the first tests that take SECONDS together, MOST at most, and one in any case."""
    result: Tests = {}
    for test in islice(tests, MOST):
        if result and sum(result.values()) + seconds[test] > SECONDS:
            break
        result[test] = seconds[test]
    return result


def verdicts_of(
    changes: Sequence[Change], tests: dict[int, Tests], at_once: int, log: Path
) -> list[run.Verdict]:
    """Try each change, group by group as long as it survives. What the log has of an earlier call
    is not tried again."""
    log.touch()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor() as pool:
        trees = [run.copied(Path(folder, str(number))) for number in range(at_once)]
        for group in GROUPS:
            jobs = list(jobs_of(group, changes, tests, logged(log)))
            print(f"{len(jobs)} changes meet tests/{group}", flush=True)
            for done in [pool.submit(attempt, group, tree, jobs[number::at_once], log)
                         for number, tree in enumerate(trees)]:  # fmt: skip
                done.result()
    rows = logged(log)
    return [verdict_of(change, rows) for change in changes]


def logged(log: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the verdicts of a log, by the name of a change and the group of tests."""
    rows = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    return {(row["mutant"], row["group"]): row for row in rows}


def jobs_of(
    group: str, changes: Sequence[Change], tests: dict[int, Tests], rows: Mapping[Any, Any]
) -> Iterator[dict[str, Any]]:
    """Yield what `forked.py` needs of each change that no group before killed."""
    for number, change in enumerate(changes):
        own = {t: s for t, s in tests.get(number, {}).items() if t.startswith(f"tests/{group}/")}
        if own and (change.name, group) not in rows and not verdict_of(change, rows).killed_by:
            yield {"change": asdict(change), "tests": list(own), "seconds": sum(own.values())}


def attempt(group: str, tree: Path, jobs: Sequence[dict[str, Any]], log: Path) -> None:
    """Let pytest try changes in forks of one process."""
    if not jobs:
        return
    path = tree / "changes.json"
    path.write_text(json.dumps(jobs), encoding="utf-8")
    files = sorted({test.partition("::")[0] for job in jobs for test in job["tests"]})
    more = {"CHANGES": str(path), "VERDICTS": str(log), "GROUP": group}
    pytest(group, tree, ("-p", "forked", *files), **more, PYTHONDONTWRITEBYTECODE="1")


def verdict_of(change: Change, rows: Mapping[Any, Any]) -> run.Verdict:
    """Return what all groups say of a change."""
    own = [rows[change.name, group] for group in GROUPS if (change.name, group) in rows]
    killed_by = next((row["killed_by"] for row in own if row["killed_by"]), None)
    unsound = next((row["unsound"] for row in own if row["unsound"]), None)
    return run.Verdict(change, killed_by, sum(row["seconds"] for row in own), unsound)


def summary(verdicts: Sequence[run.Verdict]) -> int:
    """Print the survivors and a table by subsystem. Returns 1 where a rate is too low."""
    told = [v for v in verdicts if not str(v.killed_by).partition(" - ")[2].startswith(RAISED)]
    for verdict in told:
        if verdict.killed_by is None:
            reason = verdict.unsound or ("" if verdict.seconds else "no test executes it")
            print(f"survived: {verdict.mutant.name} {reason}".rstrip())
    print(f"{len(verdicts) - len(told)} only raised, and are left out")
    by_name = defaultdict(list)
    for verdict in told:
        by_name[draw.subsystem_of(verdict.mutant.file)].append(verdict.killed_by is not None)
    for name, dead in sorted(by_name.items()):
        print(f"{name:>12} {sum(dead):3} of {len(dead):3} {sum(dead) / len(dead):7.0%}")
    dead = [v.killed_by is not None for v in told]
    rate = sum(dead) / max(1, len(dead))
    print(f"{'all':>12} {sum(dead):3} of {len(dead):3} {rate:7.0%}; {ASKED:.0%} are asked, "
          f"and {ASKED_EACH:.0%} of each subsystem")  # fmt: skip
    low = any(sum(d) / len(d) < ASKED_EACH for d in by_name.values())
    return int(rate < ASKED or low)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, nargs="+", required=True)
    parser.add_argument("--count", type=int, default=150, help="changes of each seed")
    parser.add_argument("--at-once", type=int, default=2, help="changes tried at a time")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--log", type=Path, help="append each verdict to this file, as JSON; those "
                        "that it has are not tried again")  # fmt: skip
    wanted = parser.parse_args()
    changes = list(dict.fromkeys(chain.from_iterable(
        draw.drawn(seed, wanted.count) for seed in wanted.seed
    )))  # fmt: skip
    tests = executed(changes, wanted.groups)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        log = wanted.log or Path(folder, "log")
        return summary(verdicts_of(changes, tests, wanted.at_once, log))


if __name__ == "__main__":
    sys.exit(main())
