"""Ceilings from the question to the page: the `ceilings` command."""

from __future__ import annotations

import secrets
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.backend.prewarm import Ahead, begin_ahead
from workbench.backend.protocol import Backend
from workbench.backend.workers import LOST, Solo
from workbench.commands.comparison import opened_run
from workbench.commands.experiment import Trial, arm_problem, begin, compile_ahead, made, timed
from workbench.commands.options import (
    DEFAULT_TARGET,
    SessionError,
    gpu_present,
    ready,
    repository_of,
    undisturbed,
    writable,
)
from workbench.data.database import open_history
from workbench.data.environment import fingerprint
from workbench.data.events import EventLog, RunState
from workbench.data.interrupts import Interrupts
from workbench.data.record import Case, Failure, Outcome, Record, Run, key_of
from workbench.data.store import Store
from workbench.device import hardware
from workbench.experiments import Asked
from workbench.experiments.analysis import ceilings
from workbench.experiments.analysis.ceilings import Group, Plain
from workbench.measurement import transfers
from workbench.measurement.protocol import Protocol
from workbench.reports import drawn_at_least, write_page
from workbench.tuner import tuned

if TYPE_CHECKING:
    from rich.console import Console

Opened = Callable[[], Backend]  # the GPU that is here, or a test's own
Copies = Callable[[], list[transfers.Copied]]

# What is precise after ten rounds is done, and all is but the matrix unit under the power cap. An
# H200's clock swings there by 10 % a few times a second, and the median over 0.1 s is off by up to
# 2.5 %, over 0.3 s by 0.6 %: its rounds go on for some swings.
RULES = Protocol(rounds=10, most_rounds=40, settle_s=0.3, final_s=1.8)
COPIES_S = 120.0  # the longest that the copies between host and device may take
NEEDS_GPU = (
    "Nothing was measured: that needs a GPU that torch sees. The figures are what makers state and "
    "what follows from them."
)


@dataclass(frozen=True)
class Question:
    """What `ceilings` was asked, in the words of the command line."""

    device: str | None = None  # a named one is looked up and not measured
    out: Path = Path("results")
    database: str | None = None
    strict: bool = False  # refuse where others use the GPU

    @property
    def command(self) -> str:
        """The exact command that asks this again."""
        words = ["workbench", "ceilings"]
        return shlex.join(words + (["--device", self.device] if self.device else []))


@dataclass
class Gauging:
    """The ceilings of one device, measured or looked up."""

    question: Question
    console: Console
    opened: Opened | None = None
    copies: Copies | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def go(self) -> int:
        """Run to the end. Returns the exit code: 0; 2 where a GPU was asked and nothing gave a
        time; 130 after Ctrl-C. Raises the errors of the parts, each of which is one sentence."""
        asked = self.question
        writable(asked.out)
        if asked.device is not None:
            return self._look_up(asked.device)
        with ExitStack() as stack:
            ahead = begin_ahead("copy") if self.opened is None else None  # before slow imports
            if ahead is not None:
                stack.callback(ahead.close)
            if self.opened is None and not gpu_present():
                return self._look_up(DEFAULT_TARGET)
            history = stack.enter_context(open_history(asked.database))
            interrupts = stack.enter_context(Interrupts())
            backend = (self.opened or partial(gpu, ahead))()
            stack.callback(backend.close)
            undisturbed(backend, asked.strict)
            if self.copies is None:
                self.copies = of_process = HostCopies()
                stack.callback(of_process.close)
            return self._measure(backend, history, interrupts)

    # Without a GPU

    def _look_up(self, name: str) -> int:
        from workbench.reports.ceilings import show

        try:
            device = hardware.described(name)  # also one that Triton does not compile for
        except hardware.UnknownDevice as error:
            raise SessionError(str(error)) from error
        run = stated_run(device, self.question)
        self.console.print(f"What is stated of {device.title}.", style="bold yellow")
        show(self.console, run)
        self.console.print(NEEDS_GPU, style="bold yellow")
        self._draw(run)
        return 0

    # With one

    def _measure(self, backend: Backend, history: Any, interrupts: Interrupts) -> int:
        from workbench.reports.ceilings import show

        groups = ceilings.groups_of(backend.device, backend.environment.gpu_memory_bytes)
        problems = [arm_problem(arm) for group in groups for arm in group.arms]
        begun = opened_run("ceilings", "all", self.question.command, backend, problems)
        begun = replace(
            begun, id=identity(backend.device), kernel="ceilings", dtype="", sizes={}, source="",
            ceilings=ceilings.stated(backend.device),
        )  # fmt: skip
        self.console.print(f"Ceilings of {backend.environment.gpu or backend.device.name}.")
        folder = self.question.out / begun.id
        with (
            EventLog(folder / "events.jsonl") as log,
            drawn_at_least(lambda: self._draw(self._whole(begun))),
        ):
            state, run = self._obtain(groups, begun, backend, Store(history, interrupts, log))
        show(self.console, run)
        self._draw(run)
        if state == "interrupted":
            return 130
        return 0 if ceilings.usable(self.found) else 2

    def _whole(self, run: Run) -> Run:
        return replace(run, ceilings={**run.ceilings, **self.found})

    def _obtain(
        self, groups: Sequence[Group], run: Run, backend: Backend, store: Store
    ) -> tuple[RunState, Run]:
        """Every group in turn, then the copies. The run is stored behind its outcomes, once its
        ceilings are known; whoever stops it gets those so far."""
        state: RunState = "complete"
        try:
            trials = [trial_of(group, run, backend) for group in groups]
            compile_ahead(trials, backend)
            for group, trial in zip(groups, trials, strict=True):
                self._group(group, trial, run, backend, store)
            self._links(run, backend, store)
        except KeyboardInterrupt:
            state = "interrupted"
        run = self._whole(run)
        store.begin(run, store.log)
        counts = Counter[str](o.phase if isinstance(o, Record) else o.stage for o in self.outcomes)
        store.end(state, counts, dict(backend.spent))
        return state, run

    def _group(self, group: Group, trial: Trial, run: Run, backend: Backend, store: Store) -> None:
        begin(trial, backend)
        found = timed(trial, run, backend)
        for each in found.values():
            self._keep(each.outcome, store)
        plain = ceilings.judged(group.sought, found, backend.device.limits, self.found)
        self.found |= plain
        for one in plain.values():
            self._say(one)

    def _links(self, run: Run, backend: Backend, store: Store) -> None:
        why, copies = "", []
        try:
            copies = self.copies() if self.copies is not None else []
        except (*LOST, RuntimeError) as error:
            why = f"the process that copies: {error}"
        for copied in copies:
            self._keep(copy_outcome(copied, run, backend), store)
        times = {
            name: {c.bytes: c.timing for c in same if c.timing is not None}
            for name, same in transfers.by_name(copies).items()
        }
        plain = ceilings.link_ceilings(times, why)
        self.found |= plain
        for one in plain.values():
            self._say(one)

    def _keep(self, outcome: Outcome, store: Store) -> None:
        store.keep(outcome)
        self.outcomes.append(outcome)

    def _say(self, one: Plain) -> None:
        from workbench.reports.ceilings import line

        self.console.print(line(one), soft_wrap=True)

    def _draw(self, run: Run) -> None:
        from workbench.reports.ceilings import page

        path = write_page(self.question.out / run.id / "report.html", page(run, self.outcomes))
        self.console.print(f"report  {path.resolve()}", soft_wrap=True)


def gpu(ahead: Ahead | None) -> Backend:
    """The GPU that is here, measured by the rules of ceilings; `ahead` are processes that were
    started before."""
    from workbench.backend.live import Live

    ready()
    return Live(repository_of("copy"), rules=RULES, ahead=ahead)


class HostCopies:
    """Copies between host and device, timed in a process of their own, which opens the GPU and
    fills its memory while the kernels are compiled."""

    def __init__(self) -> None:
        self._process = Solo()
        self._process.begin(transfers.prepare)

    def __call__(self) -> list[transfers.Copied]:
        """Raises TimeoutError or ChildProcessError where the process is lost, and what it
        raised."""
        asked = transfers.host_copies
        found: list[transfers.Copied] = self._process.ask(asked, timeout_s=COPIES_S)
        return found

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):
            self._process.end()


def identity(device: hardware.Device) -> str:
    """Of a run that begins now: `20261121-214153-ceilings-h200-0f5b`."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-ceilings-{device.name}-{secrets.token_hex(2)}"


def stated_run(device: hardware.Device, asked: Question) -> Run:
    """A run in which nothing ran: what is stated of a device."""
    now = datetime.now(UTC)
    return Run(
        id=identity(device),
        engine="ceilings", name="stated", command=replace(asked, device=device.name).command,
        started=now.isoformat(timespec="milliseconds"), kernel="ceilings", sizes={}, dtype="",
        device=device.name, predicted=True, vary=(), tune=(), impls={},
        ceilings=ceilings.stated(device), environment=fingerprint(None, repository_of("copy")),
    )  # fmt: skip


def trial_of(group: Group, run: Run, backend: Backend) -> Trial:
    """The parts of a group."""
    asked = Asked("", None, "", backend.device, backend.predicts)
    return made(asked, group.arms, run, backend, tuned.Tuned())


def copy_outcome(copied: transfers.Copied, run: Run, backend: Backend) -> Outcome:
    """A copy between host and device as an outcome like any other."""
    case = Case("host_copy", copied.name, "torch", {}, {"B": copied.bytes}, "uint8", run.device)
    versions: Mapping[str, str] = run.environment.versions
    key = key_of(
        case, protocol=transfers.RULES.id, torch=versions.get("torch", ""),
        driver=run.environment.driver or "",
    )  # fmt: skip
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    if copied.timing is None:
        return Failure(case, key, run.id, at, "check", "what arrived is not what was sent")
    return Record(
        case, key, run.id, at, "hot", copied.timing, 0, copied.bytes, "gpu", 0.0
    )  # fmt: skip
