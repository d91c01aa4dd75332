"""A made repository and a database of made runs of its commits, with planted steps."""

from __future__ import annotations

import math
import random
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import synthetic

from workbench.data.database import History
from workbench.data.record import Case, Outcome, Record, Run, key_of

SIZES = {"M": 8192, "N": 4096}
KERNEL_FILE = "kernels/toy.py"


def repository(folder: Path, many: int, branch_at: int | None = None, on_branch: int = 12) -> None:
    """Make a repository of `many` commits on main, and a branch `feature` that leaves it; every
    third commit changes the kernel's file. Commit n of main has the subject `main n`."""
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    lines: list[str] = []

    def commit(ref: str, mark: int, text: str, parent: int | None, n: int) -> None:
        when = 1767225600 + 86400 * mark
        lines.append(f"commit refs/heads/{ref}\nmark :{mark}\n"
                     f"author a <a@example.org> {when} +0000\n"
                     f"committer a <a@example.org> {when} +0000\n"
                     f"data {len(text)}\n{text}")  # fmt: skip
        if parent is not None:
            lines.append(f"from :{parent}")
        content = f"factor = {n}\n"
        path = KERNEL_FILE if n % 3 == 0 else "notes.txt"
        lines.append(f"M 644 inline {path}\ndata {len(content)}\n{content}")

    for n in range(many):
        commit("main", n + 1, f"main {n}", n or None, n)
    if branch_at is not None:
        for n in range(on_branch):
            parent = many + n if n else branch_at + 1
            commit("feature", many + n + 1, f"feature {n}", parent, 3 * n)
    subprocess.run(
        ["git", "-C", str(folder), "fast-import", "--quiet"], check=True, text=True,
        input="\n".join(lines) + "\n",
    )  # fmt: skip
    subprocess.run(["git", "-C", str(folder), "reset", "-q", "--hard"], check=True)


def commits(folder: Path, branch: str = "main") -> list[str]:
    """The hashes of a branch, the oldest first."""
    wanted = ["git", "-C", str(folder), "rev-list", "--reverse", branch]
    return subprocess.run(wanted, check=True, capture_output=True, text=True).stdout.split()


def measured_run(
    n: int, commit: str | None, time_s: float, *, kernel: str = "toy", device: str = "NVIDIA H200",
    dtype: str = "bf16", library_s: float | None = None, dirty: bool = False, triton: str = "3.6.0",
    phase: str = "final", protocol: str = "p4-000001", source: str = "", impl: str = "rows",
    config: dict[str, int] | None = None,
) -> tuple[Run, list[Outcome]]:  # fmt: skip
    """One run with one final time of an Impl, and one of a library if that is given."""
    run, outcomes = synthetic.softmax()
    at = f"2026-{1 + n // 28 % 12:02}-{1 + n % 28:02}T09:{n // 336:02}:00+00:00"
    env = replace(run.environment, commit=commit, dirty=dirty, gpu=device)
    env = replace(env, versions={**env.versions, "triton": triton})
    name = f"run-{n:04}-{kernel}-{dtype}-{len(device)}"
    run = replace(run, id=name, kernel=kernel, device=device,
                  dtype=dtype, environment=env, started=at, source=source)  # fmt: skip
    record = next(o for o in outcomes if isinstance(o, Record))
    made: list[Outcome] = []
    for name, backend, time in ((impl, "triton", time_s), ("torch", "torch", library_s)):
        if time is None:
            continue
        knobs = {"num_warps": 4} if config is None else config
        case = Case(
            kernel, name, backend, knobs if backend == "triton" else {}, SIZES, dtype, device
        )
        timing = replace(synthetic.measured(time, n=12, seed=n), median_s=time,
                         low_s=time * 0.999, high_s=time * 1.001, protocol=protocol,
                         state="sustained")  # fmt: skip
        made.append(replace(record, case=case, key=key_of(case, of=f"{n}"), run=run.id, at=at,
                            timing=timing, phase=phase, default=False))  # fmt: skip
    return run, made


def noisy(level_s: float, n: int, noise: float = 0.01, seed: int = 0) -> float:
    """A time around a level, in seconds; the same for the same arguments."""
    return level_s * math.exp(noise * random.Random(f"{seed} {n}").gauss(0, 1))


def fill(
    history: History, hashes: Sequence[str | None], time_of: Callable[[int], float], first: int = 0,
    **more: object,
) -> None:  # fmt: skip
    """Store a run of each commit; `time_of` is the time of commit n, in seconds."""
    for n, commit in enumerate(hashes):
        run, made = measured_run(first + n, commit, time_of(n), **more)  # type: ignore[arg-type]
        history.import_run([run, *made])
