"""One sweep from the question to the page: what the `sweep` command does.

Every outcome is in the events file and in the database before the next is looked at, and the page
is written from what is there however the sweep ends.
"""

from __future__ import annotations

import secrets
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench import catalog, hardware
from workbench.answer import answer, sentence
from workbench.backend.protocol import Backend, Problem
from workbench.events import EventLog, KernelDispatched, OpCompleted, RunFinished, RunState
from workbench.history import History, open_history
from workbench.record import Failure, Measured, Outcome, Record, Run
from workbench.report import write_page
from workbench.spec import Impl, Knob, Spec, label, values
from workbench.sweep import Compilation, Earlier, Plan, Sweep, plan, run
from workbench.terminal import Terminal

DEFAULT_TARGET = "h200"  # compiled for where no GPU is present and no device was named
MOST = {True: 208, False: 1000}  # configs tried at most, by default: predicted, measured


class SessionError(Exception):
    """One sentence: what was wrong, where, what to do next."""


@dataclass(frozen=True)
class Question:
    """What the user asked, in the words of the command line."""

    sweep: str
    kernel: str = "matmul"
    impls: tuple[str, ...] = ()
    sizes: str | None = None
    dtype: str = "bf16"
    device: str | None = None
    only: bool = False
    most: int | None = None
    out: Path = Path("results")
    metrics: Path | None = None
    profile: bool = True
    database: str | None = None
    fresh: bool = False

    @property
    def command(self) -> str:
        """The exact command that asks this again."""
        words = ["python", "-m", "workbench.sweep", self.sweep, "--kernel", self.kernel]
        for name in self.impls:
            words += ["--impl", name]
        for option, value in (("sizes", self.sizes), ("dtype", self.dtype), ("device", self.device),
                              ("most", self.most)):  # fmt: skip
            if value is not None:
                words += [f"--{option}", str(value)]
        return shlex.join(words + (["--only"] if self.only else []))


@dataclass
class Session:
    """A sweep under way, and where its outcomes go."""

    question: Question
    terminal: Terminal
    outcomes: list[Outcome] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def go(self) -> int:
        """Run to the end. Returns the exit code: 0, or 130 after Ctrl-C.

        Raises the errors of the parts, each of which is one sentence.
        """
        asked = self.question
        sweep = sweep_named(asked.sweep)
        spec = catalog.spec_of(asked.kernel)
        if asked.dtype not in spec.tolerance:
            raise SessionError(catalog.unknown("dtype", asked.dtype, spec.tolerance))
        problem = Problem(asked.kernel, spec, sizes_of(spec, asked.sizes), asked.dtype)
        impls = [catalog.impl_of(spec, name) for name in asked.impls]
        impls = impls or [i for i in spec.impls if i.backend == "triton"]
        with open_history(asked.database) as history:
            backend = backend_for(asked.device, repository_of(asked.kernel))
            try:
                return self._go(sweep, problem, impls, backend, history)
            finally:
                backend.close()

    def _go(
        self, sweep: Sweep, problem: Problem, impls: list[Impl], backend: Backend, history: History
    ) -> int:
        asked = self.question
        started = new_run(asked, sweep, problem, impls, backend, {})
        most = asked.most if asked.most is not None else MOST[backend.predicts]
        made = plan(
            started, problem, sweep, impls, backend.device, backend.protocol,
            only=asked.only, most=most,
        )  # fmt: skip
        folder = asked.out / started.id
        events = asked.metrics or folder / "events.jsonl"
        log = EventLog(events)
        try:
            self.terminal.begin(started, made, self._earlier_count(made, history))
            measured = self._begin(backend, problem)
            begun = new_run(asked, sweep, problem, impls, backend, measured, started.id)
            made = Plan(
                begun, problem, sweep, made.candidates, made.refused, made.baselines, made.left_out
            )
            history.add_run(begun)
            log.write(begun)
            state = self._obtain(made, backend, history, log)
            log.write(RunFinished(_now(), begun.id, state, dict(self.counts)))
            history.finish_run(begun.id, state)
        finally:
            log.close()
        self._conclude(begun, folder, events)
        return 130 if state == "interrupted" else 0

    def _begin(self, backend: Backend, problem: Problem) -> Mapping[str, Mapping[str, Any]]:
        try:
            return backend.begin(problem)
        except RuntimeError as error:
            raise SessionError(
                f"the GPU could not take {dict(problem.sizes)}: {error}; name other --sizes."
            ) from error

    def _earlier(self, made: Plan, history: History) -> Earlier:
        if self.question.fresh:
            return Earlier()
        keys = [c.key for c in made.candidates]
        finals = [*keys, *(b.key for b in made.baselines)]
        phase = "predict" if made.run.predicted else "screen"
        first = {k: o for k, o in history.find(keys, phase).items() if _lasting(o)}
        return Earlier(first, {} if made.run.predicted else history.find(finals, "final"))

    def _earlier_count(self, made: Plan, history: History) -> int:
        return len(self._earlier(made, history).first)

    def _obtain(self, made: Plan, backend: Backend, history: History, log: EventLog) -> RunState:
        """All outcomes, each stored before the next. Ctrl-C ends it early, with all so far."""
        try:
            for found in run(made, backend, self._earlier(made, history)):
                if isinstance(found, Compilation):
                    self._dispatched(found, made.run, log)
                    continue
                log.write(found)
                history.add(found)
                self._completed(found, log)
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            self.terminal.end()
        return "complete"

    def _dispatched(self, found: Compilation, run_: Run, log: EventLog) -> None:
        self.counts["compiled"] += 1
        self.counts["duplicate"] += found.duplicate
        self.terminal.counted(self.counts)
        if not self.question.profile:
            return
        r, c = found.compiled.resources, found.candidate
        log.write(
            KernelDispatched(
                at=_now(), run=run_.id, kernel=c.impl.title, config=values(c.config),
                grid=found.compiled.grid, threads=r.threads, shared_bytes=r.shared_bytes,
                registers=r.registers, occupancy=r.occupancy,
            )
        )  # fmt: skip

    def _completed(self, found: Outcome, log: EventLog) -> None:
        self.outcomes.append(found)
        self.counts[_kind(found)] += 1
        self.terminal.saw(found, self.counts)
        if not self.question.profile or isinstance(found, Failure):
            return
        case, timing = found.case, found.timing
        path = ["sweep", self.question.sweep, case.kernel, case.impl, label(case.config)]
        log.write(
            OpCompleted(
                at=_now(), run=found.run, op_path="/".join([*path, found.phase]),
                device_us=timing.median_s * 1e6 if isinstance(timing, Measured) else None,
                host_us=None, predicted=not found.measured,
            )
        )  # fmt: skip

    def _conclude(self, begun: Run, folder: Path, events: Path) -> None:
        from workbench.reports.sweep import page

        written = write_page(folder / "report.html", page(begun, self.outcomes))
        said = sentence(answer(begun, self.outcomes))
        self.terminal.conclude(said, self.counts, written, events)


def _kind(found: Outcome) -> str:
    if isinstance(found, Record):
        kinds = {"screen": "measured", "predict": "predicted"}
        return kinds.get(found.phase, found.phase)
    return {"refused": "refused", "check": "wrong"}.get(found.stage, "failed")


def _lasting(found: Outcome) -> bool:
    """Whether an earlier outcome stands: a process that was lost may not be lost again."""
    return isinstance(found, Record) or found.stage in ("refused", "compile", "check")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def sweep_named(name: str) -> Sweep:
    """The sweep of that file name. Raises SessionError with the nearest names."""
    from importlib import import_module

    known = catalog.names_in("workbench.sweeps")
    if name not in known:
        raise SessionError(catalog.unknown("sweep", name, known))
    found = import_module(f"workbench.sweeps.{name}").SWEEP
    assert isinstance(found, Sweep)
    return found


def sizes_of(spec: Spec, text: str | None) -> dict[str, int]:
    """`M=4096,N=4096,K=4096` as sizes; the Spec's first size to time where nothing is said.

    Raises SessionError when an axis is unknown, missing, or not a positive whole number.
    """
    if text is None:
        return dict(spec.bench[0])
    example = ",".join(f"{k}={v}" for k, v in spec.bench[0].items())
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, extent = part.strip().partition("=")
        if axis not in spec.axes:
            raise SessionError(catalog.unknown(f"axis of {spec.name}", axis, spec.axes))
        if not extent.isdigit() or int(extent) < 1:
            raise SessionError(
                f"{axis}={extent} is not a positive whole number; write --sizes {example}."
            )
        sizes[axis] = int(extent)
    if missing := [axis for axis in spec.axes if axis not in sizes]:
        raise SessionError(f"--sizes {text} lacks {', '.join(missing)}; write --sizes {example}.")
    if spec.bytes(sizes, "fp32") * 3 > 1 << 42:
        raise SessionError(f"--sizes {text} needs terabytes; no device holds that.")
    return sizes


def repository_of(kernel: str) -> Path:
    """The folder whose commit a result belongs to: the kernel file's."""
    file = catalog.module_of(kernel).__file__
    return Path(file).parent if file else Path.cwd()


def backend_for(device: str | None, repository: Path) -> Backend:
    """A named device is compiled for and predicted, whatever GPU is here. With none named it is
    the GPU that is here, and `h200` where there is none. Raises SessionError."""
    from workbench.backend.live import Live
    from workbench.backend.offline import Offline

    ready()
    if device is None and gpu_present():
        return Live(repository)
    try:
        return Offline(hardware.device_named(device or DEFAULT_TARGET), repository)
    except hardware.UnknownDevice as error:
        raise SessionError(str(error)) from error


def gpu_present() -> bool:
    """Whether torch sees a GPU; asks the driver, and starts nothing on it."""
    import torch

    return bool(torch.cuda.is_available())


def ready() -> None:
    """Raises SessionError where there is no compiler for Triton kernels."""
    import importlib.util

    if importlib.util.find_spec("triton") is None:
        raise SessionError(
            "Triton is not installed, so nothing can be compiled; it has wheels for Linux only: "
            "pip install 'triton>=3.6'."
        )


def new_run(
    asked: Question, sweep: Sweep, problem: Problem, impls: list[Impl], backend: Backend,
    measured: Mapping[str, Mapping[str, Any]], id_: str | None = None,
) -> Run:  # fmt: skip
    """The run that this question opens."""
    now = datetime.now(UTC)
    name = Path(problem.spec.name).name
    stamp = f"{now:%Y%m%d-%H%M%S}-{asked.sweep}-{name}-{secrets.token_hex(2)}"
    knobs: tuple[Knob, ...] = tuple(sweep.tune) if not asked.only else ()
    return Run(
        id=id_ or stamp,
        engine="sweep",
        name=asked.sweep,
        command=asked.command,
        started=now.isoformat(timespec="seconds"),
        kernel=problem.spec.name,
        sizes=dict(problem.sizes),
        dtype=problem.dtype,
        device=backend.device.name,
        predicted=backend.predicts,
        vary=tuple(k.__name__ for k in sweep.vary),
        tune=tuple(k.__name__ for k in knobs),
        impls={i.name: {"choices": i.choices(), "knobs": i.knobs()} for i in impls},
        ceilings=hardware.ceilings(backend.device, problem.dtype) | dict(measured),
        environment=backend.environment,
        source=asked.kernel,
    )


