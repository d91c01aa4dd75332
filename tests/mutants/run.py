"""Plant known bugs, one at a time, and say which of them the tests do not see.

    python tests/mutants/run.py                    all that a CPU can show
    python tests/mutants/run.py kernels softmax    of one list, or whose name or file has the word
    python tests/mutants/run.py --gpu              those that a GPU alone can show, on one

Each mutant of `kernels.toml`, `engine.toml` and `metal.toml` replaces one passage of one file in a
copy of the tree. The tests named `first` run before the others; the first failure kills it. What
survives ran all tests of `make test` that could see its file, and is printed with the fault that a
user would meet. The exit code is 1 where a kill rate is under what is asked, 2 where
nothing could be tried, and 130 after Ctrl-C; verdicts in --log up to then stay.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ASKED = {"kernels": 0.97, "engine": 0.95, "metal": 0.95}  # of those that a CPU can show
LIMIT_S = 1500  # for one call of pytest: a mutant that hangs is seen, too
NOTHING_COLLECTED = 5  # pytest's exit code
STOPPED = 130  # as shells say it: 128 + SIGINT
COPIED = (
    "workbench", "metal_shim", "tests", "benchmarks", "docs", "examples", "pyproject.toml",
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "AGENTS.md", "SKILL.md", "LICENSE", "Makefile",
    "constraints.txt", ".gitignore", ".github",
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A bug to plant: `old`, which stands once in `file`, becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    says: str  # the fault that a user would see
    suite: str  # the list that it is from
    shown_by: str = "cpu"  # or "gpu", where no CPU can show it
    first: Sequence[str] = field(default_factory=tuple)  # tests that run before the others

    def planted(self, tree: Path) -> None:
        """Write it into a copy of the tree. Raises ValueError where `old` is not there once."""
        path = tree / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: its old text stands {count} times in {self.file}")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


class UnsoundTest(Exception):
    """A test fails without any mutant, and so says nothing of one."""


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    killed_by: str | None  # the first test that failed; None: it survived
    seconds: float
    unsound: str | None = None  # why nothing can be said of it, which counts as survival

    def __str__(self) -> str:
        text = f"killed by {self.killed_by}" if self.killed_by else "SURVIVED"
        return f"{self.mutant.name}: {self.unsound or text}"


def mutants() -> list[Mutant]:
    """All that the lists hold. Raises ValueError where two have one name."""
    results: list[Mutant] = []
    for suite in ASKED:
        path = HERE / f"{suite}.toml"
        plain = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        results += [Mutant(suite=suite, **one) for one in plain.get("mutant", [])]
    names = [m.name for m in results]
    if twice := {n for n in names if names.count(n) > 1}:
        raise ValueError(f"two mutants have the name {min(twice)}")
    return results


def chosen(words: Sequence[str], gpu: bool) -> list[Mutant]:
    """Those of a list, or whose name or file has one of the words; all where there are none."""
    kind = "gpu" if gpu else "cpu"
    return [
        m
        for m in mutants()
        if m.shown_by == kind
        and (not words or any(w == m.suite or w in m.name or w in m.file for w in words))
    ]


# The tests that see a file

COMPILED = ("tests/compile/test_kernels.py", "tests/compile/test_addresses.py")
# These see that a text changed, not that it is wrong.
NOT_OF_CODE = (
    "--ignore=tests/unit/test_mutants.py",
    "--deselect=tests/unit/test_docs.py::test_the_pages_of_the_kernels_are_what_their_files_say",
)


PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-m", "not nightly")
RACECHECK = ("benchmarks/sanitize.py", "--tools", "racecheck", "--only")


@dataclass(frozen=True)
class Step:
    """One call of pytest, or of another program: what to run, and its surroundings."""

    tests: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    program: tuple[str, ...] = PYTEST


StepsOf = Callable[[Mutant], Iterator[Step]]


def _sharing(kernel: str) -> list[str]:
    """Return the kernels whose files take their device code from this one's."""
    word = f"from workbench.kernels import {kernel} "
    files = sorted((ROOT / "workbench" / "kernels").glob("*.py"))
    return [path.stem for path in files if word in path.read_text(encoding="utf-8")]


def steps(mutant: Mutant) -> Iterator[Step]:
    """The calls that `make test` would make and that can see the mutant, the likely ones first. A
    kernel's file is seen by the tests of that kernel and of those that share its device code, by
    those of the parts of an experiment, which launch it, and by the unit tests."""
    interpret = ("TRITON_INTERPRET", "1")
    kernel = Path(mutant.file).stem
    of_kernel = mutant.file.startswith("workbench/kernels/")
    only = (("KERNELS", ",".join([kernel, *_sharing(kernel)])),) if of_kernel else ()
    if mutant.file.startswith("metal_shim/"):
        only = (("KERNELS", kernel),) if "/kernels/" in mutant.file else ()
        yield from (Step(tests, only) for tests in (tuple(mutant.first), ("tests/emulated",)))
        yield Step(("tests/unit", *NOT_OF_CODE))
        return
    if mutant.first:
        interpreted = any("interpret" in test for test in mutant.first)
        yield Step(tuple(mutant.first), (*only, *((interpret,) if interpreted else ())))
    if mutant.shown_by == "gpu":
        yield Step(("tests/gpu/test_kernels.py",), only)
        if of_kernel and shutil.which("compute-sanitizer"):
            yield Step((f"{kernel}.",), program=RACECHECK)
        return
    if of_kernel:
        yield Step(("tests/interpret/test_kernels.py",), (interpret, *only))
        yield Step(COMPILED, only)
        yield Step(
            ("tests/interpret/test_arms.py", "tests/interpret/test_mutates.py"), (interpret,)
        )
    yield Step(("tests/unit", *NOT_OF_CODE))
    if not of_kernel:
        yield Step(("tests/compile", *(f"--ignore={path}" for path in COMPILED)))
        yield Step(("tests/interpret", "--ignore=tests/interpret/test_kernels.py"), (interpret,))
        if any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
            yield Step(("tests/web",))


def killed_by(mutant: Mutant, tree: Path, steps_of: StepsOf = steps) -> str | None:
    """The first test that fails on the tree where the mutant is planted, and passes where it is
    not, with its error; None where none does. Raises UnsoundTest where a test fails either way."""
    original = (tree / mutant.file).read_bytes()
    for step in steps_of(mutant):
        mutant.planted(tree)
        try:
            failed = first_failure(step, tree)
        finally:
            (tree / mutant.file).write_bytes(original)
        if failed is None:
            continue
        name = failed.split(" - ")[0]
        alone = replace(step, tests=(name,)) if "::" in failed else step
        if first_failure(alone, tree):
            raise UnsoundTest(f"{name} fails without any mutant; mend it first")
        return failed
    return None


def first_failure(step: Step, tree: Path) -> str | None:
    """The first test of a step that fails and its error, or what else ended it; None where all
    pass."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    # a file that is written twice in one second would find its own stale bytecode
    environment |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["BUILD_NUMBER"] = "1"  # pytest then cuts no line before its error
    environment |= dict(step.environment)
    command = [sys.executable, *step.program, *step.tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, timeout=LIMIT_S,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_S} s"
    if done.returncode in (0, NOTHING_COLLECTED):
        return None
    if step.program is RACECHECK:
        return "racecheck"
    lines = [n for n in done.stdout.splitlines() if n.startswith(("FAILED ", "ERROR "))]
    result = lines[0].split(" ", 1)[1] if lines else ""
    return result or f"pytest ended with {done.returncode}"


# Running them


def copied(tree: Path) -> Path:
    """A copy of what tests need."""
    tree.mkdir()
    for name in COPIED:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.is_file():
            shutil.copy2(path, tree / name)
    me = ["-c", "user.name=mutants", "-c", "user.email=mutants@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*me, "commit", "-q", "-m", "a copy"]):
        subprocess.run(["git", *words], cwd=tree, check=True, capture_output=True)
    return tree


def tried(mutant: Mutant, trees: SimpleQueue[Path], steps_of: StepsOf = steps) -> Verdict:
    """Run the tests on it in one of the free trees."""
    tree, started = trees.get(), time.monotonic()
    try:
        return Verdict(mutant, killed_by(mutant, tree, steps_of), time.monotonic() - started)
    except UnsoundTest as error:
        return Verdict(mutant, None, time.monotonic() - started, str(error))
    finally:
        trees.put(tree)


def run(
    some: Sequence[Mutant], at_once: int, log: Path | None, steps_of: StepsOf = steps
) -> list[Verdict]:
    """Try them all, so many at a time; each verdict is printed, and logged, when it is known."""
    trees: SimpleQueue[Path] = SimpleQueue()
    results: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for number in range(at_once):
            trees.put(copied(Path(folder, str(number))))
        with ThreadPoolExecutor(at_once) as pool:
            try:
                for done in as_completed([pool.submit(tried, m, trees, steps_of) for m in some]):
                    results.append(verdict := done.result())
                    where = f"{len(results)}/{len(some)}"
                    print(f"{where:>8} {verdict.seconds:6.0f} s {verdict}", flush=True)
                    if log is not None:
                        kept(verdict, log)
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                if not isinstance(error, KeyboardInterrupt):
                    raise
                print(f"stopped after {len(results)} of {len(some)}", flush=True)
    return results


def kept(verdict: Verdict, log: Path) -> None:
    """Append a verdict to a file, as a line of JSON."""
    with log.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(verdict) | {"mutant": verdict.mutant.name}) + "\n")


def summary(result: Sequence[Verdict]) -> int:
    """Print survivors and kill rates. Returns 1 where one is under what is asked."""
    code = 0
    for suite, wanted in ASKED.items():
        own = [v for v in result if v.mutant.suite == suite]
        if not own:
            continue
        alive = [v.mutant for v in own if v.killed_by is None]
        for m in alive:
            print(f"survived: {m.name} ({m.file}): {m.says}")
        rate = 1 - len(alive) / len(own)
        code |= rate < wanted
        print(f"{suite}: {len(own) - len(alive)} of {len(own)} killed, {100 * rate:.1f} %; "
              f"{100 * wanted:.0f} % are asked")  # fmt: skip
    return int(code)


def gpu_visible() -> bool:
    """Whether torch finds a GPU."""
    ask = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", ask], check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="a list, or parts of names or files")
    parser.add_argument("--gpu", action="store_true", help="those that a GPU alone can show")
    parser.add_argument("--at-once", type=int, default=2, help="mutants tried at a time")
    parser.add_argument("--log", type=Path, help="append each verdict to this file, as JSON")
    wanted = parser.parse_args()
    try:
        some = chosen(wanted.words, wanted.gpu)
        if not some:
            print("no mutant has such a word in its name or file")
            return 2
        if wanted.gpu and not gpu_visible():
            print("torch sees no GPU here, and nothing else shows these mutants")
            return 2
        result = run(some, wanted.at_once, wanted.log)
    except (OSError, TypeError, ValueError) as error:  # a full disk; a list that does not fit
        print(f"error: {error}")
        return 2
    return summary(result) if len(result) == len(some) else STOPPED


if __name__ == "__main__":
    sys.exit(main())
