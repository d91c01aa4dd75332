"""One sweep from the question to the page: what the `sweep` command does.

Every outcome is in the events file and in the database before the next is looked at, and the page
is written from what is there however the sweep ends.
"""

from __future__ import annotations

import json
import math
import secrets
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from workbench import catalog, hardware, tuned
from workbench.answer import answer, on_one_footing, sentence
from workbench.backend.protocol import Backend, Problem
from workbench.events import EventLog, KernelDispatched, OpCompleted, RunFinished, RunState
from workbench.history import History, open_history
from workbench.interrupts import Interrupts
from workbench.portfolio import PortfolioError, portfolio
from workbench.record import Failure, Measured, Outcome, Record, Run
from workbench.report import write_page
from workbench.search import Budget, Strategy
from workbench.spec import Impl, Knob, Spec, label, values
from workbench.sweep import Compilation, Earlier, Engine, Hunt, Plan, Split, Step, Sweep, plan
from workbench.terminal import Terminal

if TYPE_CHECKING:
    from workbench.backend.ahead import Ahead

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
    sizes: tuple[str, ...] = ()
    dtype: str = "bf16"
    device: str | None = None
    only: bool = False
    budget: str | None = None
    search: str | None = None
    strict: bool = False
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
        for text in self.sizes:
            words += ["--sizes", text]
        for option, value in (("dtype", self.dtype), ("device", self.device),
                              ("budget", self.budget), ("search", self.search)):  # fmt: skip
            if value is not None:
                words += [f"--{option}", value]
        flags = {"--only": self.only, "--strict": self.strict}
        return shlex.join(words + [flag for flag, on in flags.items() if on])


@dataclass
class Session:
    """A sweep under way, at one size after the other, and where its outcomes go."""

    question: Question
    terminal: Terminal
    side: Callable[[str | None, Path], Backend] | None = None  # `backend_for`, or a test's own
    started: float = field(default_factory=time.monotonic)
    outcomes: list[Outcome] = field(default_factory=list)  # of the size under way
    counts: Counter[str] = field(default_factory=Counter)
    split: Split = field(default_factory=Split)
    tables: dict[str, list[Outcome]] = field(default_factory=dict)  # by sizes, of those that ended
    tuned_file: Path | None = None  # where winners are remembered; None: the user's own
    ahead: Ahead | None = None  # processes that get ready meanwhile; closed by `go`

    def go(self) -> int:
        """Run to the end. Returns the exit code: 0, or 130 after Ctrl-C.

        Raises the errors of the parts, each of which is one sentence; what can be refused is
        refused before any work.
        """
        try:
            return self._asked()
        finally:
            if self.ahead is not None:
                self.ahead.close()

    def _asked(self) -> int:
        asked = self.question
        sweep = sweep_named(asked.sweep)
        problems, impls = problems_of(asked)
        hunt = hunt_of(asked, self.started)
        writable(asked.out)
        if asked.metrics is not None:
            writable(asked.metrics.parent, asked.metrics)
        with open_history(asked.database) as history, Interrupts() as interrupts:
            opened = self.side or partial(backend_for, ahead=self.ahead)
            backend = opened(asked.device, repository_of(asked.kernel))
            try:
                undisturbed(backend, asked.strict)
                for at, problem in enumerate(problems):
                    store = Store(history, interrupts)
                    share = hunt.share(len(problems) - at) if hunt else None
                    if code := self._one(sweep, problem, impls, backend, store, share):
                        return code
                if len(problems) > 1:
                    self._together(problems)
                return 0
            finally:
                self.terminal.end()
                backend.close()

    def _one(
        self, sweep: Sweep, problem: Problem, impls: list[Impl], backend: Backend, store: Store,
        hunt: Hunt | None,
    ) -> int:  # fmt: skip
        self.outcomes, self.counts = [], Counter()
        asked = self.question
        asking = new_run(asked, sweep, problem, impls, backend)
        asking = replace(asking, incumbents=self._incumbents(asking))
        most = most_of(asked, hunt) if backend.predicts else 0
        made = plan(
            asking, problem, sweep, impls, backend.device, backend.protocol,
            only=asked.only, most=most,
        )  # fmt: skip
        earlier = Earlier() if asked.fresh else store.earlier(made)
        earlier = replace(earlier, incumbent=incumbents_in(made))
        hunt = replace(hunt, final_s=0.0) if hunt and backend.predicts else hunt
        engine = Engine(made, backend, earlier, hunt or default_hunt(made, backend))
        if engine.finished and (old := store.whole(made, earlier)):
            return self._told_again(old, store)
        self.terminal.begin(asking, made, len(earlier.first))
        found = self._begin(backend, problem, engine, store, earlier)
        begun = replace(asking, ceilings={**asking.ceilings, **found})
        self.split.begin(backend)
        folder = asked.out / begun.id
        with EventLog(asked.metrics or folder / "events.jsonl") as log:
            store.begin(begun, log)
            try:
                state = self._obtain(engine, backend, begun, store)
            except BaseException:  # nothing more can be stored; show what there is
                self.terminal.end()
                with suppress(Exception):
                    self._page(begun, folder)
                raise
            store.end(state, self.counts, self.split.seconds)
        self._conclude(begun, folder)
        self.tables[sizes_text(problem.sizes)] = self.outcomes
        if state == "interrupted":
            return 130
        self._remember(begun, problem)
        return 0

    def _incumbents(self, asking: Run) -> dict[str, dict[str, int]]:
        """By Impl, the config that was found best before for just this."""
        try:
            known = tuned.Tuned.load(self.tuned_file or tuned.default_path())
        except tuned.TunedError as error:
            self.terminal.warn(str(error))
            return {}
        found = known.matching(asking.kernel, None, asking.device)
        return {
            e.impl: dict(e.config)
            for e in sorted(found, key=lambda e: e.at)
            if (dict(e.sizes), e.dtype, e.predicted)
            == (dict(asking.sizes), asking.dtype, asking.predicted)
        }

    def _remember(self, begun: Run, problem: Problem) -> None:
        """For launches that name no config. A file that cannot be written costs no answer."""
        try:
            tuned.remember(begun, self.outcomes, problem.spec, self.tuned_file)
        except tuned.TunedError as error:
            self.terminal.warn(str(error))

    def _begin(
        self, backend: Backend, problem: Problem, engine: Engine, store: Store, earlier: Earlier
    ) -> Mapping[str, Mapping[str, Any]]:
        if engine.finished:  # nothing will be measured: the ceilings are those of what is known
            return store.ceilings(earlier)
        try:
            return backend.begin(problem, engine.first)
        except RuntimeError as error:
            why = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise SessionError(
                f"The GPU could not take {sizes_text(problem.sizes)} ({why}); name other --sizes."
            ) from None

    def _obtain(self, engine: Engine, backend: Backend, begun: Run, store: Store) -> RunState:
        """All outcomes, each stored before the next. Ctrl-C ends it early, with all so far."""
        try:
            for found in engine.outcomes():
                if isinstance(found, Step):
                    self.split.table(self.counts, self.started)
                    self.terminal.step(found)
                elif isinstance(found, Compilation):
                    self._dispatched(found, begun, store)
                else:
                    store.keep(found)
                    self._completed(found, store)
        except KeyboardInterrupt:
            self.terminal.stopped()
            return "interrupted"
        finally:
            self.terminal.end()
            self.split.end(backend, engine.wait_s, self.started)
        return "complete"

    def _told_again(self, old: Run, store: Store) -> int:
        """All was obtained by an earlier run: its answer and its page once more."""
        self.outcomes = store.history.outcomes(old.id)
        self.counts = Counter(_kind(o) for o in self.outcomes)
        self.tables[sizes_text(old.sizes)] = self.outcomes
        self.terminal.again(old)
        if self.question.metrics is not None:
            with EventLog(self.question.metrics) as log:
                for event in (old, *self.outcomes):
                    log.write(event)
                log.write(RunFinished(_now(), old.id, "complete", dict(self.counts)))
        page = self.question.out / old.id / "report.html"
        if not page.is_file():
            self._page(old, page.parent)
        said = sentence(answer(old, self.outcomes))
        self.terminal.conclude(said, self.counts, self.split, page, None)
        return 0

    def _together(self, problems: Sequence[Problem]) -> None:
        """The fewest configs that serve all sizes, where several were asked for."""
        try:
            found = portfolio(screened_times(self.tables))
        except PortfolioError as error:
            self.terminal.warn(str(error))
            return
        stamp = f"{problems[0].spec.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        file = self.question.out / f"portfolio-{stamp}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(found), indent=1) + "\n")
        self.terminal.portfolio(found, file)

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

        return write_page(
            folder / "report.html", page(begun, self.outcomes, self.split.seconds or None)
        )

    def _conclude(self, begun: Run, folder: Path) -> None:
        events = self.question.metrics or folder / "events.jsonl"
        written = self._page(begun, folder)
        said = sentence(answer(begun, self.outcomes))
        self.terminal.conclude(said, self.counts, self.split, written, events)


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

    def whole(self, made: Plan, earlier: Earlier) -> Run | None:
        """The earlier run that holds an outcome for every config of this plan; None where they are
        spread over several."""
        runs = {earlier.first[c.key].run for c in made.candidates}
        if not made.run.predicted:
            runs |= {earlier.final[b.key].run for b in made.baselines if b.key in earlier.final}
        if len(runs) != 1:
            return None
        found = self.history.run(runs.pop())
        same = (found.vary, found.tune) == (made.run.vary, made.run.tune)
        return found if same and self.history.state(found.id) == "complete" else None

    def ceilings(self, earlier: Earlier) -> Mapping[str, Mapping[str, Any]]:
        """Those that were measured for the run that earlier outcomes are of."""
        old = next((o for known in (earlier.final, earlier.first) for o in known.values()), None)
        if old is None:
            return {}
        found = self.history.run(old.run).ceilings
        return {name: found[name] for name in found if name.endswith("_measured")}

    def end(self, state: RunState, counts: Mapping[str, int], seconds: Mapping[str, float]) -> None:
        """How the run ended, and where its seconds went."""
        assert self.run is not None
        with self.interrupts.later():
            self.log.write(RunFinished(_now(), self.run.id, state, dict(counts), dict(seconds)))
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


def problems_of(asked: Question) -> tuple[list[Problem], list[Impl]]:
    """What is to be swept, one problem for each size, and with which Impls. Raises SessionError
    or CatalogError."""
    spec = catalog.spec_of(asked.kernel)
    if asked.dtype not in spec.tolerance:
        raise SessionError(catalog.unknown("dtype", asked.dtype, spec.tolerance))
    every = [sizes_of(spec, text) for text in asked.sizes] or [sizes_of(spec, None)]
    try:
        for sizes in every:
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
    each = {sizes_text(sizes): Problem(asked.kernel, spec, sizes, asked.dtype) for sizes in every}
    return list(each.values()), impls or [i for i in spec.impls if i.backend == "triton"]


def incumbents_in(made: Plan) -> frozenset[str]:
    """Keys of the plan's candidates that are their Impl's incumbent."""
    best = made.run.incumbents
    return frozenset(c.key for c in made.candidates if best.get(c.impl.name) == values(c.config))


def screened_times(tables: Mapping[str, Sequence[Outcome]]) -> dict[str, dict[str, float]]:
    """Seconds by sizes and config, all obtained alike: of the screen, or predicted."""
    return {
        sizes: {r.case.label: r.time_s for r in on_one_footing(outcomes).values()
                if not r.case.is_baseline}
        for sizes, outcomes in tables.items()
    }  # fmt: skip


def sizes_text(sizes: Mapping[str, int]) -> str:
    """`M=4096,N=4096,K=4096`: as `--sizes` takes them."""
    return ",".join(f"{k}={v}" for k, v in sizes.items())


def hunt_of(asked: Question, started: float) -> Hunt | None:
    """What `--budget` and `--search` say; None where neither does. Raises SearchError."""
    if asked.budget is None and asked.search is None:
        return None
    budget = Budget.parse(asked.budget) if asked.budget else Budget()
    return Hunt(strategy_named(asked.search or "model"), budget, started)


def strategy_named(name: str) -> Strategy:
    """Raises SessionError with the nearest names."""
    known = [s.value for s in Strategy]
    if name not in known:
        raise SessionError(catalog.unknown("search", name, known))
    return Strategy(name)


def default_hunt(made: Plan, backend: Backend) -> Hunt:
    """All of a space of usual size; of a larger one as many, led by the model."""
    if backend.predicts or len(made.candidates) <= MOST[False]:
        return Hunt()
    return Hunt(Strategy.MODEL, Budget(configs=MOST[False]))


def most_of(asked: Question, hunt: Hunt | None) -> int:
    """How many configs are predicted: nothing measured leads the search on, so the model's best
    are taken at once. All of them where 0."""
    if hunt is None:
        return MOST[True]
    return 0 if math.isinf(hunt.budget.configs) else int(hunt.budget.configs)


def undisturbed(backend: Backend, strict: bool) -> None:
    """Raises SessionError where `strict` and another process uses the GPU."""
    others = backend.environment.others_on_gpu
    if strict and others:
        raise SessionError(
            f"{others} other process{'es use' if others > 1 else ' uses'} this GPU, so times would "
            "not be its own; end them, or leave out --strict to have them counted in the result."
        )


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


def backend_for(device: str | None, repository: Path, ahead: Ahead | None = None) -> Backend:
    """A named device is compiled for and predicted, whatever GPU is here. With none named it is
    the GPU that is here, and `h200` where there is none. Raises SessionError."""
    from workbench.backend.live import Live
    from workbench.backend.offline import Offline

    ready()
    if device is None and (ahead is not None or gpu_present()):
        return Live(repository, ahead=ahead)
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
        sizes=(sizes_text(problem.sizes),),
        device=backend.device.name if backend.predicts else None,
    )
    return Run(
        id=stamp,
        engine="sweep",
        name=asked.sweep,
        command=whole.command,
        started=now.isoformat(timespec="milliseconds"),
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
