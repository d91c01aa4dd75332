"""Run every group of tests that this machine can run, and say which ones it could not, and why.

    python tests/run.py                   what `make test` runs
    python tests/run.py unit compile      these groups only
    python tests/run.py --all             what `make test-all` runs: `nightly` tests, too
    KERNELS=softmax python tests/run.py interpret compile    the tests of one kernel

Two groups run at the same time, for each begins with seconds of one core that collect its tests.
The linters are the first group.
Interpreted and compiled tests run on both ends of the supported range of Triton: on the venv's own
and on those that `make test` puts beside it (`.venv/triton-3.6.0`). On the older, `make test` runs
those that are marked `smoke`; `--all` and KERNELS run all but those that are marked `newest`.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parent
# The longest first, but for lint, whose faults a contributor sees within a minute.
GROUPS = ("lint", "unit", "compile", "interpret", "web", "emulated", "gpu", "metal")
LINT = (
    ("-m", "ruff", "check", "."),
    ("-m", "ruff", "format", "--check", "."),
    ("-m", "mypy"),
    ("benchmarks/line_budget.py",),
)
OF_A_DEVICE = ("gpu", "metal")  # nothing runs beside these
TRITON_ENDS = ("3.6", "3.9")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
AT_ONCE = 2
# Four forks on the two cores of continuous integration: many tests wait for processes that they
# started.
FORKS = max(2, os.cpu_count() or 2)
NOTHING_COLLECTED = 5  # pytest's exit code
# Images of containers tell Python to write no bytecode. Then each worker compiles all tests again,
# 13 s of CPU for those of tests/unit, and each of some hundred commands that they start the
# workbench, 0.5 s.
NOT_HANDED_ON = ("TRITON_INTERPRET", "PYTHONDONTWRITEBYTECODE")


@dataclass(frozen=True)
class Job:
    """One call of pytest: a group, and what its surroundings must be."""

    group: str
    title: str
    environment: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()


def obstacle(group: str) -> str | None:
    """Why a group cannot run on this machine, in a few words; None when it can."""
    if group == "lint":
        return None
    if not any((TESTS / group).rglob("test_*.py")):
        return "no tests"
    if group == "web" and not any(map(shutil.which, BROWSERS)):
        return "no Chromium on the path"
    if group == "gpu" and not gpu_visible():
        return "no GPU visible to torch"
    if group == "emulated" and not succeeds(ASK_COMPILER):
        return "no clang++ 19 or later: apt-get install clang-19, or pip install ziglang"
    if group == "metal" and not succeeds(ASK_METAL):
        return "no Metal device"
    if group in ("interpret", "compile") and own_triton() is None:
        return "no Triton for this system"
    return None


ASK_GPU = "import sys, torch; sys.exit(not torch.cuda.is_available())"
ASK_METAL = "import sys, mlx.core as mx; sys.exit(not mx.metal.is_available())"
ASK_COMPILER = "from metal_shim.compiler import find_compiler; find_compiler()"


def gpu_visible() -> bool:
    """Whether torch finds a GPU."""
    return succeeds(ASK_GPU)


def succeeds(ask: str) -> bool:
    """Whether a line of Python ends well; in another process, so that this one stays small."""
    command = [sys.executable, "-c", ask]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, check=False)
    return done.returncode == 0


def own_triton() -> str | None:
    """Version of the Triton in this venv."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None


def triton_path(minor: str) -> str | None:
    """What PYTHONPATH needs for a Triton of this minor version; None when there is none here."""
    if (own_triton() or "").startswith(minor + "."):
        return ""
    beside = sorted(Path(sys.prefix).glob(f"triton-{minor}.*"))
    return str(beside[-1]) if beside else None


def jobs(group: str, everything: bool = False) -> Iterator[Job | str]:
    """The calls of pytest that a group needs; a sentence for each that cannot be made."""
    reason = obstacle(group)
    if reason:
        yield f"{group} ({reason})"
    elif group in ("interpret", "compile"):
        for minor in TRITON_ENDS:
            path, title = triton_path(minor), f"{group} on Triton {minor}"
            if path is None:
                yield f"{title} (not installed; `make test` installs it)"
                continue
            environment = {"TRITON_INTERPRET": "1"} if group == "interpret" else {}
            if path:
                environment["PYTHONPATH"] = path
            older = minor != TRITON_ENDS[-1] and triton_path(TRITON_ENDS[-1]) is not None
            options = ("--forks", str(FORKS), *chosen(everything, older))
            yield Job(group, title, environment, options)
    elif group == "lint":
        yield Job(group, group)
    else:
        forks = () if group in OF_A_DEVICE else ("--forks", str(FORKS))
        yield Job(group, group, options=(*forks, *chosen(everything)))


def chosen(everything: bool, older: bool = False) -> tuple[str, ...]:
    """The options of pytest that choose tests by their markers, on the older Triton or another."""
    markers = [] if everything else ["not nightly"]
    if older:
        markers.append("not newest" if everything or os.environ.get("KERNELS") else "smoke")
    examples = ("--hypothesis-profile=night",) if everything else ()
    return (*(("-m", " and ".join(markers)) if markers else ()), *examples)


def run(job: Job) -> dict[str, int]:
    """Passed, failed and skipped of one job."""
    return linted() if job.group == "lint" else tested(job)


def linted() -> dict[str, int]:
    """How many of the linters passed and failed."""
    codes = [printed("lint", [sys.executable, *words], dict(os.environ)) for words in LINT]
    return {"passed": codes.count(0), "failed": len(codes) - codes.count(0), "skipped": 0}


def tested(job: Job) -> dict[str, int]:
    """Passed, failed and skipped of one call of pytest. A call that broke down is one failure."""
    environment = {k: v for k, v in os.environ.items() if k not in NOT_HANDED_ON}
    before = environment.get("PYTHONPATH", "")
    environment |= job.environment
    if before and "PYTHONPATH" in job.environment:
        environment["PYTHONPATH"] += os.pathsep + before
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", *job.options, f"--junitxml={report}"]
        code = printed(job.title, [*command, *files_of(job)], environment)
        counts = counted(report)
    if code == NOTHING_COLLECTED and os.environ.get("KERNELS"):
        print(f"{job.title}: no test of the kernels that KERNELS names")
    elif code == NOTHING_COLLECTED:
        print(f"{job.title}: the folder has test files, and pytest found no test in them")
    if code and not counts["failed"]:
        counts["failed"] = 1
    return counts


def printed(title: str, command: list[str], environment: dict[str, str]) -> int:
    """Print each line of a command behind a title, and return its exit code."""
    with subprocess.Popen(
        command,
        cwd=TESTS.parent,
        env=environment,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        for line in process.stdout or ():
            print(f"{title} | {line.rstrip()}", flush=True)
    return process.returncode


def files_of(job: Job) -> list[str]:
    """Return the folder of a group, or for the smoke set its files: others are not imported."""
    folder = TESTS / job.group
    if not any("smoke" in option for option in job.options):
        return [str(folder)]
    return [str(p) for p in sorted(folder.glob("test_*.py")) if "smoke" in p.read_text("utf-8")]


def counted(report: Path) -> dict[str, int]:
    """pytest's own counts, from the report that it wrote; zeros when it wrote none."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    if not report.exists():
        return counts
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        number = {k: int(suite.get(k, 0)) for k in ("tests", "failures", "errors", "skipped")}
        bad = number["failures"] + number["errors"]
        counts["failed"] += bad
        counts["skipped"] += number["skipped"]
        counts["passed"] += max(number["tests"] - bad - number["skipped"], 0)
    return counts


def results(asked: Sequence[Job]) -> Iterator[dict[str, int]]:
    """Run the jobs, two at a time, those of a device last and alone, and yield their counts."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(run, [job for job in asked if job.group not in OF_A_DEVICE])
    yield from map(run, [job for job in asked if job.group in OF_A_DEVICE])


def main(words: list[str]) -> int:
    everything, groups = "--all" in words, [word for word in words if word != "--all"]
    unknown = sorted(set(groups) - set(GROUPS))
    if unknown:
        print(f"no such group: {', '.join(unknown)}; there are {', '.join(GROUPS)}")
        return 2
    asked = [job for group in groups or GROUPS for job in jobs(group, everything)]
    left_out = [reason for reason in asked if isinstance(reason, str)]
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for counts in results([job for job in asked if isinstance(job, Job)]):
        for outcome, number in counts.items():
            total[outcome] += number
    print(f"\nnot run here: {', '.join(left_out) or 'nothing'}")
    print(", ".join(f"{number} {outcome}" for outcome, number in total.items()))
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
