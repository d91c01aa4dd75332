"""One sweep from the question to the page: what the `sweep` command does.

Every outcome is in the events file and in the database before the next is looked at, and the page
is written from what is there however the sweep ends.
"""

from __future__ import annotations

import secrets
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from workbench import catalog, hardware
from workbench.answer import answer, sentence
from workbench.backend.protocol import Backend, Problem
from workbench.events import EventLog, KernelDispatched, OpCompleted, RunFinished, RunState
from workbench.history import History, open_history
from workbench.interrupts import Interrupts
from workbench.record import Failure, Measured, Outcome, Record, Run
from workbench.report import write_page
from workbench.spec import Impl, Knob, Spec, label, values
from workbench.sweep import Compilation, Earlier, Plan, Step, Sweep, plan, run
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
    side: Callable[[str | None, Path], Backend] | None = None  # `backend_for`, or a test's own
    outcomes: list[Outcome] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def go(self) -> int:
        """Run to the end. Returns the exit code: 0, or 130 after Ctrl-C.

        Raises the errors of the parts, each of which is one sentence; what can be refused is
        refused before any work.
        """
        asked = self.question
        sweep = sweep_named(asked.sweep)
        problem, impls = problem_of(asked)
        writable(asked.out)
        if asked.metrics is not None:
            writable(asked.metrics.parent, asked.metrics)
        with open_history(asked.database) as history, Interrupts() as interrupts:
            backend = (self.side or backend_for)(asked.device, repository_of(asked.kernel))
            try:
                return self._go(sweep, problem, impls, backend, Store(history, interrupts))
            finally:
                self.terminal.end()
                backend.close()

    def _go(
        self, sweep: Sweep, problem: Problem, impls: list[Impl], backend: Backend, store: Store
    ) -> int:
        asked = self.question
        asking = new_run(asked, sweep, problem, impls, backend)
        most = asked.most if asked.most is not None else MOST[backend.predicts]
        made = plan(
            asking, problem, sweep, impls, backend.device, backend.protocol,
            only=asked.only, most=most,
        )  # fmt: skip
        earlier = Earlier() if asked.fresh else store.earlier(made)
        self.terminal.begin(asking, made, len(earlier.first))
        begun = replace(asking, ceilings={**asking.ceilings, **self._begin(backend, problem)})
        made = replace(made, run=begun)
        folder = asked.out / begun.id
        with EventLog(asked.metrics or folder / "events.jsonl") as log:
            store.begin(begun, log)
            try:
                state = self._obtain(made, backend, earlier, store)
            except BaseException:  # nothing more can be stored; show what there is
                self.terminal.end()
                with suppress(Exception):
                    self._page(begun, folder)
                raise
            store.end(state, self.counts)
        self._conclude(begun, folder)
        return 130 if state == "interrupted" else 0

    def _begin(self, backend: Backend, problem: Problem) -> Mapping[str, Mapping[str, Any]]:
        try:
            return backend.begin(problem)
        except RuntimeError as error:
            why = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            sizes = ",".join(f"{k}={v}" for k, v in problem.sizes.items())
            raise SessionError(
                f"The GPU could not take {sizes} ({why}); name other --sizes."
            ) from None

    def _obtain(self, made: Plan, backend: Backend, earlier: Earlier, store: Store) -> RunState:
        """All outcomes, each stored before the next. Ctrl-C ends it early, with all so far."""
        try:
            for found in run(made, backend, earlier):
                if isinstance(found, Step):
                    self.terminal.step(found)
                elif isinstance(found, Compilation):
                    self._dispatched(found, made.run, store)
                else:
                    store.keep(found)
                    self._completed(found, store)
        except KeyboardInterrupt:
            self.terminal.stopped()
            return "interrupted"
        finally:
            self.terminal.end()
        return "complete"

    def _dispatched(self, found: Compilation, run_: Run, store: Store) -> None:
        self.counts["compiled"] += 1
        self.counts["duplicate"] += found.duplicate
        self.terminal.counted(self.counts)
        if not self.question.profile:
            return
        r, c = found.compiled.resources, found.candidate
        store.log.write(
            KernelDispatched(
                at=_now(), run=run_.id, kernel=c.impl.title, config=values(c.config),
                grid=found.compiled.grid, threads=r.threads, shared_bytes=r.shared_bytes,
                registers=r.registers, occupancy=r.occupancy,
            )
        )  # fmt: skip

    def _completed(self, found: Outcome, store: Store) -> None:
        self.outcomes.append(found)
        self.counts[_kind(found)] += 1
        self.terminal.saw(found, self.counts)
        if not self.question.profile or isinstance(found, Failure):
            return
        case, timing = found.case, found.timing
        path = ["sweep", self.question.sweep, case.kernel, case.impl, label(case.config)]
        store.log.write(
            OpCompleted(
                at=_now(), run=found.run, op_path="/".join([*path, found.phase]),
                device_us=timing.median_s * 1e6 if isinstance(timing, Measured) else None,
                host_us=None, predicted=not found.measured,
            )
        )  # fmt: skip

    def _page(self, begun: Run, folder: Path) -> Path:
        from workbench.reports.sweep import page

        return write_page(folder / "report.html", page(begun, self.outcomes))

    def _conclude(self, begun: Run, folder: Path) -> None:
        events = self.question.metrics or folder / "events.jsonl"
        written = self._page(begun, folder)
        said = sentence(answer(begun, self.outcomes))
        self.terminal.conclude(said, self.counts, written, events)


@dataclass
class Store:
    """Both places that keep a run: the events file and the database. Ctrl-C never falls between
    them."""

    history: History
    interrupts: Interrupts
    log: EventLog = field(default_factory=lambda: EventLog(None))
    run: Run | None = None

    def earlier(self, made: Plan) -> Earlier:
        """What is known of a plan's configs and need not be obtained again."""
        keys = [c.key for c in made.candidates]
        phase = "predict" if made.run.predicted else "screen"
        first = {k: o for k, o in self.history.find(keys, phase).items() if _lasting(o)}
        if made.run.predicted:
            return Earlier(first)
        finals = self.history.find([*keys, *(b.key for b in made.baselines)], "final")
        return Earlier(first, finals, self.history.find(keys, "hot"))

    def begin(self, begun: Run, log: EventLog) -> None:
        """The run itself, before its first outcome."""
        self.log, self.run = log, begun
        with self.interrupts.later():
            log.write(begun)
            self.history.add_run(begun)

    def keep(self, found: Outcome) -> None:
        """One outcome, in both places when this returns."""
        with self.interrupts.later():
            self.log.write(found)
            self.history.add(found)

    def end(self, state: RunState, counts: Mapping[str, int]) -> None:
        """How the run ended."""
        assert self.run is not None
        with self.interrupts.later():
            self.log.write(RunFinished(_now(), self.run.id, state, dict(counts)))
            self.history.finish_run(self.run.id, state)


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


def problem_of(asked: Question) -> tuple[Problem, list[Impl]]:
    """What is to be swept, and with which Impls. Raises SessionError or CatalogError."""
    spec = catalog.spec_of(asked.kernel)
    if asked.dtype not in spec.tolerance:
        raise SessionError(catalog.unknown("dtype", asked.dtype, spec.tolerance))
    sizes = sizes_of(spec, asked.sizes)
    try:
        spec.flops(**sizes)
    except Exception as error:
        raise SessionError(
            f"`flops` of {spec.name} fails ({type(error).__name__}: {error}); it must take the "
            f"axes {', '.join(spec.axes)} as keywords."
        ) from error
    impls = [catalog.impl_of(spec, name) for name in dict.fromkeys(asked.impls)]
    for impl in impls:
        if impl.backend != "triton":
            mine = ", ".join(i.name for i in spec.impls if i.backend == "triton")
            raise SessionError(
                f"{impl.title} is no Triton kernel and has nothing to sweep; name one of: {mine}."
            )
    return Problem(asked.kernel, spec, sizes, asked.dtype), impls or [
        i for i in spec.impls if i.backend == "triton"
    ]


def sizes_of(spec: Spec, text: str | None) -> dict[str, int]:
    """`M=4096,N=4096,K=4096` as sizes; the Spec's first size to time where nothing is said.

    Raises SessionError when an axis is unknown, missing, or not a positive whole number.
    """
    if text is None:
        return dict(spec.bench[0])
    example = ",".join(f"{k}={v}" for k, v in spec.bench[0].items())
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, extent = (word.strip() for word in part.partition("="))
        if axis not in spec.axes:
            raise SessionError(catalog.unknown(f"axis of {spec.name}", axis, spec.axes))
        if not (extent.isascii() and extent.isdecimal() and int(extent[:40])):
            raise SessionError(
                f"{axis}={extent} is not a positive whole number; write --sizes {example}."
            )
        sizes[axis] = int(extent[:40])  # forty digits are more than any device holds
    if missing := [axis for axis in spec.axes if axis not in sizes]:
        raise SessionError(f"--sizes {text} lacks {', '.join(missing)}; write --sizes {example}.")
    if spec.bytes(sizes, "fp32") * 3 > 1 << 42:
        raise SessionError(f"--sizes {text} needs terabytes, which no device holds; name smaller.")
    return sizes


def writable(folder: Path, file: Path | None = None) -> None:
    """Raises SessionError when nothing could be written into `folder` after the work, or not to
    `file`. Leaves nothing behind: a folder that is not there yet is not made here."""
    try:
        if file is not None and file.is_dir():
            raise SessionError(f"{file} is a folder; name the events file in it: --metrics FILE.")
        there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        option, thing = ("--out", folder) if file is None else ("--metrics", file)
        why = (error.strerror or type(error).__name__).lower()
        raise SessionError(
            f"{thing} cannot be written to ({why}); name another place with {option}."
        ) from None


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
    asked: Question, sweep: Sweep, problem: Problem, impls: list[Impl], backend: Backend
) -> Run:
    """The run that this question opens."""
    now = datetime.now(UTC)
    stamp = f"{now:%Y%m%d-%H%M%S}-{asked.sweep}-{problem.spec.name}-{secrets.token_hex(2)}"
    knobs: tuple[Knob, ...] = () if asked.only else tuple(sweep.tune)
    whole = replace(  # said in full: defaults may change, and another machine may have a GPU
        asked,
        sizes=",".join(f"{k}={v}" for k, v in problem.sizes.items()),
        device=backend.device.name if backend.predicts else None,
    )
    return Run(
        id=stamp,
        engine="sweep",
        name=asked.sweep,
        command=whole.command,
        started=now.isoformat(timespec="seconds"),
        kernel=problem.spec.name,
        sizes=dict(problem.sizes),
        dtype=problem.dtype,
        device=backend.device.name,
        predicted=backend.predicts,
        vary=tuple(k.__name__ for k in sweep.vary),
        tune=tuple(k.__name__ for k in knobs),
        impls={i.name: {"choices": i.choices(), "knobs": i.knobs()} for i in impls},
        ceilings=hardware.ceilings(backend.device, problem.dtype),
        environment=backend.environment,
        source=asked.kernel,
    )
