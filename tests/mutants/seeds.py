"""Plant changes that a seed draws, and say which of them the tests do not see, by subsystem.

    python tests/mutants/seeds.py --seed 1 --count 150

A first pass runs the tests of `make test` on a copy in which every drawn function notes the test
that executes it. Each change then meets the tests that execute its function, the quickest first, up
to a minute of them. A change at which they only raise, as a TypeError does, tells nothing of the
tests and is left out of the rates. The exit code is 1 where a rate is under what is asked.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import draw
import run
from draw import Change

ASKED, ASKED_EACH = 0.85, 0.70  # of all, and of each subsystem
SECONDS, MOST = 60.0, 250  # of tests that one change meets, and their number
RAISED = ("TypeError", "NameError", "AttributeError", "UnboundLocalError")
GROUPS = ("unit", "compile", "interpret", "emulated")
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


def executed(changes: Sequence[Change], groups: Sequence[str]) -> dict[int, list[str]]:
    """Return the tests that execute the function of each change, by its number, the quickest
    first."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = run.copied(Path(folder, "tree"))
        noting(tree, changes)
        seen = Path(folder, "seen")
        seen.touch()
        for group in groups:
            environment = {**os.environ, "SEEN": str(seen), "PYTHONPATH": str(tree)}
            environment |= {"TRITON_INTERPRET": "1"} if group == "interpret" else {}
            command = [sys.executable, *run.PYTEST, "-p", "mutants_seen", "-n", "2"]
            command.remove("-x")
            print(f"who executes what: tests/{group}", flush=True)
            subprocess.run(
                [*command, "--dist", "worksteal", f"tests/{group}"],
                cwd=tree, env=environment, check=False, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        return by_number(seen.read_text(encoding="utf-8").splitlines())


def by_number(lines: Sequence[str]) -> dict[int, list[str]]:
    """Return the tests of each number, the quickest first and of those that passed."""
    rows = [line.split("\t") for line in lines]
    seconds = {row[1]: float(row[0]) for row in rows if len(row) == 3}
    result = defaultdict(set)
    for row in rows:
        if len(row) == 2 and row[1] in seconds:
            result[int(row[0])].add(row[1])
    return {number: within(sorted(tests, key=seconds.__getitem__), seconds)
            for number, tests in result.items()}  # fmt: skip


def within(tests: Sequence[str], seconds: dict[str, float]) -> list[str]:
    """Return the first tests that take SECONDS together, MOST at most, and one in any case."""
    result, whole = [], 0.0
    for test in tests[:MOST]:
        whole += seconds[test]
        if result and whole > SECONDS:
            break
        result.append(test)
    return result


def steps_of(tests: Sequence[str]) -> Iterator[run.Step]:
    """Yield a call of pytest for the tests of each group."""
    for group in GROUPS:
        if own := tuple(test for test in tests if test.startswith(f"tests/{group}/")):
            yield run.Step(own, (("TRITON_INTERPRET", "1"),) if group == "interpret" else ())


def summary(verdicts: Sequence[run.Verdict]) -> int:
    """Print the survivors and a table by subsystem. Returns 1 where a rate is too low."""
    told = [v for v in verdicts if not str(v.killed_by).partition(" - ")[2].startswith(RAISED)]
    for verdict in told:
        if verdict.killed_by is None:
            print(f"survived: {verdict.mutant.name}")
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
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--at-once", type=int, default=2, help="changes tried at a time")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--log", type=Path, help="append each verdict to this file, as JSON")
    wanted = parser.parse_args()
    changes = draw.drawn(wanted.seed, wanted.count)
    tests = executed(changes, wanted.groups)
    numbers = {change.name: number for number, change in enumerate(changes)}
    verdicts = run.run(
        changes, wanted.at_once, wanted.log, lambda m: steps_of(tests.get(numbers[m.name], ()))
    )
    return summary(verdicts)


if __name__ == "__main__":
    sys.exit(main())
