"""What the benchmark scripts share: sweeps and peers in processes of their own, and tables.

A part that fails, hangs or dies is a row that says so; the other parts go on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # scripts run from a bare checkout too

LISTS = HERE / "lists"
WORDS = 2000  # last characters kept of what a process said


@dataclass(frozen=True)
class Ended:
    """A process that is over. `code` is None where it was ended at its limit."""

    code: int | None
    started_s: float  # since the epoch
    wall_s: float
    text: str

    @property
    def reason(self) -> str:
        """One line: how it ended, for a process that gave no answer."""
        last = next((x for x in reversed(self.text.splitlines()) if x.strip()), "said nothing")
        how = f"ended after {self.wall_s:.0f} s" if self.code is None else f"exit {self.code}"
        return f"{how}: {last.strip()[:200]}"


def run_command(command: Sequence[str], limit_s: float, **also: str) -> Ended:
    """Run a command with these environment variables added; end it and its children at the limit.

    It has a process group of its own, for a sweep has children.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, **also}
    with tempfile.TemporaryFile() as text:  # not a pipe: a child that lingers would hold it open
        started, clock = time.time(), time.perf_counter()
        process = subprocess.Popen(
            list(command), cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=text,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        wall_s = time.perf_counter() - clock
        kill_group(process.pid)  # also what it left behind
        process.wait()
        return Ended(code, started, wall_s, _last(text))


def kill_group(pid: int) -> None:
    """End a process group now."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _last(text: IO[bytes]) -> str:
    size = text.seek(0, os.SEEK_END)
    text.seek(max(0, size - WORDS))
    return text.read().decode(errors="replace")


def task(script: str, name: str, limit_s: float, folder: Path, **given: Any) -> tuple[Any, Ended]:
    """The answer of `script --task name` in a fresh process, and how that ended. The answer is
    what the task had written by then, or None."""
    answer = folder / f"{name}-{time.time_ns()}.json"
    wanted = json.dumps({**given, "answer": str(answer)})
    also = {"TRITON_CACHE_DIR": str(folder / "triton")}
    ended = run_command(
        [sys.executable, str(HERE / script), "--task", name, wanted], limit_s, **also
    )
    try:
        return json.loads(answer.read_text()), ended
    except (OSError, ValueError):
        return None, ended


def write_reply(path: str, result: Any) -> None:
    """Write a task's answer, whole or not at all; may be called again with more."""
    whole = Path(path + ".part")
    whole.write_text(json.dumps(result))
    whole.replace(path)


@dataclass(frozen=True)
class Swept:
    """One run of the `sweep` command, and what its events file says. Seconds since its process
    started; None where it did not get that far."""

    process: Ended
    events: Sequence[Any]
    configs: int
    binaries: int
    failures: Sequence[Any]  # without those that were refused
    table_s: float | None
    final_s: float | None
    stored_s: float | None  # until the last outcome and the end were stored; then comes the page
    winner: Any  # the Record that the sweep names: the fastest, or by rule inside a tie
    split: Mapping[str, float] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        """Until the page was written and the process was gone."""
        return self.process.wall_s

    @property
    def plain(self) -> dict[str, Any]:
        """For a JSON file."""
        won = self.winner
        return {
            "exit": self.process.code, "configs": self.configs, "binaries": self.binaries,
            "table_s": self.table_s, "final_s": self.final_s,
            "stored_s": self.stored_s, "end_s": self.end_s,
            "split": dict(self.split), "said": self.process.text,
            "winner": dict(won.case.config) if won else None,
            "winner_s": won.time_s if won else None,
            "failures": [
                {"config": dict(f.case.config), "stage": f.stage, "reason": f.reason}
                for f in self.failures
            ],
        }  # fmt: skip


def sweep_command(name: str, kernel: str, dtype: str, folder: Path, events: Path) -> list[str]:
    """The `sweep` command with a database, pages and events of its own in `folder`."""
    return [
        sys.executable, "-m", "workbench.sweep", name, "--kernel", kernel, "--dtype", dtype,
        "--quiet", "--out", str(folder), "--events-file", str(events),
        "--database", f"sqlite:///{folder}/history.db",
    ]  # fmt: skip


def sweep(
    name: str, kernel: str, dtype: str, folder: Path, limit_s: float, *more: str
) -> Swept:  # fmt: skip
    """Run a sweep in `folder`, whose `triton` is its compile cache, and read its events."""
    folder.mkdir(parents=True, exist_ok=True)
    events = folder / f"events-{time.time_ns()}.jsonl"
    command = [*sweep_command(name, kernel, dtype, folder, events), *more]
    ended = run_command(command, limit_s, TRITON_CACHE_DIR=str(folder / "triton"))
    return sweep_course(ended, read_events(events))


def read_events(path: Path) -> list[Any]:
    """The good lines of an events file; none where there is no file."""
    from workbench.data.events import read

    return list(read(path).events) if path.exists() else []


def sweep_course(ended: Ended, events: Sequence[Any]) -> Swept:
    """What a run's events say of its course."""
    from workbench.data.events import RunFinished
    from workbench.data.record import Failure, Record

    tried = [e for e in events if isinstance(e, (Record, Failure)) and not _apart(e)]
    firsts: dict[str, Any] = {}
    for outcome in tried:
        firsts.setdefault(outcome.key, outcome)
    finals = [e for e in events if isinstance(e, Record) and e.phase == "final"]
    known = [o for o in firsts.values() if isinstance(o, Record)]
    ends = [e for e in events if isinstance(e, RunFinished)]
    over = bool(finals or ends)  # only then is the table known to be complete
    return Swept(
        ended, events,
        configs=len(firsts), binaries=len({o.resources.binary for o in known if o.resources}),
        failures=[o for o in tried if isinstance(o, Failure)],
        table_s=_elapsed_s(ended, [o.at for o in firsts.values()]) if over else None,
        final_s=_elapsed_s(ended, [o.at for o in finals]),
        stored_s=_elapsed_s(ended, [e.at for e in ends]),
        winner=_winner(events),
        split=dict(getattr(ends[-1], "seconds", {})) if ends else {},
    )  # fmt: skip


def _winner(events: Sequence[Any]) -> Any:
    from workbench.data.record import Failure, Record, Run
    from workbench.data.selection import select

    run = next((e for e in events if isinstance(e, Run)), None)
    return run and select(run, [e for e in events if isinstance(e, (Record, Failure))]).winner


def _apart(outcome: Any) -> bool:
    """Refused before any work, or of a library: not part of the table."""
    stage, phase = getattr(outcome, "stage", None), getattr(outcome, "phase", "first_pass")
    return stage == "refused" or outcome.case.is_baseline or phase not in ("first_pass", "predict")


def _elapsed_s(ended: Ended, at: Sequence[str]) -> float | None:
    return max(epoch_s(text) for text in at) - ended.started_s if at else None


def epoch_s(at: str) -> float:
    """Seconds since the epoch of a time as events hold it."""
    return datetime.fromisoformat(at).timestamp()


def say(text: str) -> None:
    """A line of progress, at once, with the time since the script began."""
    print(f"[{time.perf_counter() - _BEGAN_S:7.1f} s] {text}", flush=True)


_BEGAN_S = time.perf_counter()


def show(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table on standard output; None is a dash."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(c) for c in column) for column in zip(heads, *cells, strict=True)]
    for row in (list(heads), ["-" * w for w in widths], *cells):
        print("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip(), flush=True)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def save(path: str, result: Any) -> None:
    """Write what is known so far; called again as more becomes known."""
    write_reply(path, result)


@dataclass(frozen=True)
class Compile:
    """The default config of one Impl, to be compiled for the GPU that is here."""

    kernel: str
    impl: str
    sizes: Mapping[str, int]
    dtype: str


def fill_cache(context: Sequence[Compile], processes: int, limit_s: float) -> None:
    """Fill Triton's cache from many processes, so that one that measures need not compile. What
    fails or takes too long is left to that one, which says why."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, wait

    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))
    wait([pool.submit(_compile, one) for one in context], limit_s)
    workers = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.kill()


def _compile(context: Compile) -> None:
    from workbench import catalog
    from workbench.compile import CompileError, compile_config
    from workbench.device import hardware

    device = hardware.live()
    if device is None:
        return
    with suppress(catalog.CatalogError, CompileError):
        impl = catalog.impl_of(catalog.spec_of(context.kernel), context.impl)
        config = impl.default(device.limits, context.dtype, context.sizes)
        if impl.rejection_reason(config, device.limits, context.dtype, context.sizes) is None:
            compile_config(impl, config, context.sizes, context.dtype, device)
