"""Figures of `workbench site`, on a CPU alone. Nothing here was measured on a GPU.

    python benchmarks/history_site.py steps --histories 2000
    python benchmarks/history_site.py site --outcomes 100000

`steps` makes histories of 60 commits with 1 % noise of several kinds, without a step and with one
of 3 % at least 10 commits from either end, and counts false alarms and what was located. `site`
makes a database, writes the site of it and prints seconds, megabytes and what was listed.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import synthetic

from workbench.data.database import open_history
from workbench.data.record import Case, Outcome, Run, key_of
from workbench.revisions.change_points import steps

COMMITS, NOISE, STEP, FROM_END = 60, 0.01, 0.03, 10
KINDS = ("Gaussian", "Student's t, 3 degrees", "Laplace", "5 % of points with 5-fold noise",
         "autocorrelation 0.2", "autocorrelation 0.3", "autocorrelation 0.4")  # fmt: skip


def noise_of(kind: str, dice: Any, many: int = COMMITS) -> Any:
    """Return the noise of a history, in logs, with a deviation of 1 %; that of the fourth kind
    without its outliers."""
    normal = dice.standard_normal(many)
    if kind.startswith("Student"):
        normal = dice.standard_t(3, many) / np.sqrt(3)
    elif kind.startswith("Laplace"):
        normal = dice.laplace(size=many) / np.sqrt(2)
    elif kind.startswith("5 %"):
        normal *= np.where(dice.random(many) < 0.05, 5, 1)
    elif kind.startswith("auto"):
        rho = float(kind.split()[-1])
        for n in range(1, many):
            normal[n] = rho * normal[n - 1] + np.sqrt(1 - rho * rho) * normal[n]
    return NOISE * normal


def count_steps(histories: int, seed: int) -> None:
    """Print false alarms, and steps located, of each kind of noise."""
    print(f"{histories} histories of {COMMITS} commits a figure, {NOISE:.0%} noise, seed {seed}")
    print(f"{'noise':34} A/A with a step   3 % step: found   within 1 commit")
    for kind in KINDS:
        dice = np.random.default_rng(seed)
        alarms = sum(bool(steps(np.exp(noise_of(kind, dice)))) for _ in range(histories))
        detected = near = 0
        for _ in range(histories):
            place = int(dice.integers(FROM_END, COMMITS - FROM_END + 1))
            series = noise_of(kind, dice)
            series[place:] += np.log1p(STEP) * dice.choice((-1, 1))
            results = steps(np.exp(series))
            detected += bool(results)
            near += any(abs(step.index - place) <= 1 for step in results)
        shares = [100 * n / histories for n in (alarms, detected, near)]
        print(f"{kind:34} {shares[0]:12.2f} % {shares[1]:15.1f} % {shares[2]:15.1f} %", flush=True)


def runs(outcomes: int, seed: int = 1) -> Iterator[tuple[Run, list[Outcome]]]:
    """Yield sweeps of 30 kernels on two devices, commit by commit, until there are this many
    outcomes; three kernels have a step of 3 % at the 31st commit."""
    dice = np.random.default_rng(seed)
    run, some = synthetic.matmul()
    first = [o for o in some if getattr(o, "phase", "") == "first_pass"][:20]
    finals = [o for o in some if getattr(o, "phase", "") in ("final", "hot")]
    finals = [f for f in finals if f.case.impl != "torch.compile"]
    left = outcomes
    for commit in range(10**6):
        for kernel in range(30):
            for device in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"):
                steps_here = kernel % 10 == 9 and commit >= 30
                machine, own = np.exp(NOISE * dice.standard_normal(2))
                factor = (1 + STEP * steps_here) * machine * own
                created = _run(run, [*first, *finals], kernel, device, commit, (factor, machine))
                yield created[0], created[1][:left]
                left -= len(created[1])
                if left <= 0:
                    return


def _run(
    run: Run, outcomes: list[Any], kernel: int, device: str, commit: int, by: tuple[float, float]
) -> tuple[Run, list[Outcome]]:
    name, dtype = f"kernel_{kernel:02}", ("bf16", "fp16", "fp32")[kernel % 3]
    at = f"2026-{1 + commit // 28:02}-{1 + commit % 28:02}T09:30:00+00:00"
    env = replace(run.environment, commit=hashlib.sha1(b"%d" % commit).hexdigest(), gpu=device)
    new = replace(run, id=f"2026-{commit:03}-{kernel:02}-{len(device)}", kernel=name, dtype=dtype,
                  device=device, environment=env, started=at)  # fmt: skip
    created: list[Outcome] = []
    for outcome in outcomes:
        case = Case(name, outcome.case.impl, outcome.case.backend, outcome.case.config,
                    outcome.case.sizes, dtype, device)  # fmt: skip
        factor = by[case.is_baseline]
        timing = outcome.timing
        scaled = {n: getattr(timing, n) * factor for n in ("median_s", "low_s", "high_s")}
        many = 6 if outcome.phase != "first_pass" else 1  # as many as a real final has, 8 kB
        samples = tuple(s * factor for s in timing.samples_s) * many
        timing = replace(timing, samples_s=samples, **scaled)
        created.append(
            replace(outcome, case=case, key=key_of(case), run=new.id, at=at, timing=timing)
        )
    return new, created


def time_site(outcomes: int) -> None:
    """Make a database, write its site, and print how long that took and how large it is."""
    from workbench.commands.site import SiteOptions
    from workbench.commands.site import run as write_site

    with TemporaryDirectory() as folder:
        place, begun = Path(folder), time.perf_counter()
        url = f"sqlite:///{place / 'history.db'}"
        with open_history(url) as history:
            for run, created in runs(outcomes):
                history.import_run([run, *created])
        size = (place / "history.db").stat().st_size / 1e6
        took = time.perf_counter() - begun
        print(f"database of {outcomes} outcomes: {size:.0f} MB, made in {took:.0f} s")
        begun, cpu = time.perf_counter(), time.process_time()
        write_site(SiteOptions(place / "site", database=url, repository=place))
        took = time.perf_counter() - begun
        files = [f for f in (place / "site").rglob("*") if f.is_file()]
        held = sum(f.stat().st_size for f in files) / 1e6
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(f"site: {took:.1f} s ({time.process_time() - cpu:.1f} s of processor), {held:.1f} MB")
        print(f"{len(files)} files; the process took {memory:.0f} MB at most")


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("steps", "site"))
    parser.add_argument("--histories", type=int, default=2000)
    parser.add_argument("--outcomes", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.what == "steps":
        count_steps(given.histories, given.seed)
    else:
        time_site(given.outcomes)


if __name__ == "__main__":
    main()
