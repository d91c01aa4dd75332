"""Measure the ceilings of this GPU, or print those stated of a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.backend.prewarm import Libraries, Prewarm, prewarmer
from workbench.backend.protocol import Backend
from workbench.backend.workers import LOST, Solo
from workbench.commands.console import say_result
from workbench.commands.experiment_command import (
    Prepared,
    begin,
    compile_all,
    keep_variant,
    prepare,
    timed_in_states,
    variant_problem,
)
from workbench.commands.options import DEFAULT_TARGET
from workbench.commands.result import RunResult, write_result
from workbench.commands.run import (
    OpenResources,
    Recorder,
    check_outputs,
    draw_ended_run,
    execute,
    gpu_present,
    new_run,
    repository_of,
    require_triton,
    resources,
    say_page,
    target_backend,
)
from workbench.data.clock import folder_of, run_id, timestamp
from workbench.data.environment import fingerprint
from workbench.data.events import EventLog, RunFinished
from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED, PASSED
from workbench.data.project import project_id
from workbench.data.record import Case, Failure, Outcome, Record, Run, key_of
from workbench.data.tuned_cache import Tuned
from workbench.device import hardware
from workbench.device.hardware import METAL
from workbench.experiments import Context, VariantResult
from workbench.experiments.analysis import ceilings
from workbench.experiments.analysis.ceilings import CeilingGroup
from workbench.measurement import transfers
from workbench.measurement.protocol import Protocol
from workbench.reports.run_index import write_run_page
from workbench.spec import Limits

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.ceilings import CeilingsOptions


Copies = Callable[[], list[transfers.Copied]]
Results = Mapping[str, VariantResult]

# All ceilings are precise after ten rounds, except the matrix unit under the power cap: there the
# clock of an H200 varies by 10 % a few times a second, and the median over 0.1 s is off by up to
# 2.5 %, over 0.3 s by 0.6 %, so its rounds last for several periods.
RULES = Protocol(rounds=10, most_rounds=40, settle_s=0.3, final_s=1.8)
COPIES_S = 120.0  # the longest that the copies between host and device may take
NEEDS_GPU = (
    "Nothing was measured: that needs a GPU that torch sees. The figures are what makers state and "
    "what follows from them."
)


@dataclass
class CeilingsCommand:
    """Ceilings of one device, measured or looked up."""

    options: CeilingsOptions
    console: Console
    open_backend: Callable[[], Backend] | None = None  # the GPU that is here, or a test's own
    copies: Copies | None = None
    ceilings: dict[str, dict[str, Any]] = field(default_factory=dict)  # measured so far
    recorder: Recorder | None = None  # of the run under way

    def go(self) -> int:
        """Run to the end. Returns the exit code: 0; 2 where a GPU was requested and nothing gave a
        time; 130 after Ctrl-C."""
        options = self.options
        check_outputs(options)
        if options.device is not None:
            return self._look_up(options.device)
        with ExitStack() as stack:
            wanted = self.open_backend is None
            prewarm = stack.enter_context(prewarmer("copy", Libraries.NOBODY, wanted=wanted))
            metal = target_backend(None) == METAL
            if self.open_backend is None and not metal and not gpu_present():
                return self._look_up(DEFAULT_TARGET)
            here = mac if metal else partial(gpu, prewarm)
            opened = stack.enter_context(resources(options, self.open_backend or here))
            if self.copies is None and opened.backend.device.backend != METAL:
                self.copies = of_process = HostCopies()
                stack.callback(of_process.close)
            return self._measure(opened)

    # Without a GPU

    def _look_up(self, name: str) -> int:
        from workbench.reports.ceilings import show, stated_lines

        device = hardware.find_device(name)  # also one that Triton does not compile for
        run = stated_run(device, self.options)
        self.console.print(f"What is stated of {device.title}.", style="bold yellow")
        show(self.console, run)
        self.console.print(NEEDS_GPU, style="bold yellow")
        for line in stated_lines(run) if self.console.quiet else ():
            say_result(self.console, line)
        page = self._write_page(run, [])
        with EventLog(self.options.events_file) as log:
            for event in (run, RunFinished(timestamp(), run.id, "complete", {})):
                log.write(event)
        say_page(self.console, page)
        return write_result(self.options, "ceilings", PASSED, [RunResult(run, page=page)])

    # With one

    def _measure(self, opened: OpenResources) -> int:
        from workbench.reports.ceilings import line, show, state_pairs

        backend = opened.backend
        groups = ceilings.groups_of(backend.device, backend.environment.gpu_memory_bytes)
        problems = [variant_problem(v) for group in groups for v in group.variants]
        run = new_run("ceilings", "all", self.options.command, backend, problems)
        run = replace(run, source="", **run_of(backend.device))
        self.console.print(f"Ceilings of {backend.environment.gpu or backend.device.name}.")

        def obtain(recorder: Recorder) -> None:
            try:
                self._obtain(groups, recorder)
            finally:  # the run is stored once its ceilings are known, however it ended
                recorder.begin(self.ceilings)

        recorder = self.recorder = opened.recorder(run)
        state = execute(recorder, obtain, self._draw)
        show(self.console, recorder.run)
        for pair in state_pairs(recorder.run) if self.console.quiet else ():
            say_result(self.console, line(pair))
        page = draw_ended_run(recorder, self._draw)
        say_page(self.console, page)
        code = PASSED if ceilings.usable(self.ceilings) else COULD_NOT_RUN
        code = INTERRUPTED if state == "interrupted" else code
        return write_result(self.options, "ceilings", code, [recorder.result(page)])

    def _obtain(self, groups: Sequence[CeilingGroup], recorder: Recorder) -> None:
        """Measure every group in turn, then the copies."""
        backend = recorder.backend
        every = [prepare_group(group, recorder.run, backend) for group in groups]
        compile_all(every, backend)
        for group, prepared in zip(groups, every, strict=True):
            begin(prepared, backend)
            sustained, boost = timed_in_states(prepared, recorder.run, backend)
            for result in boost.values():
                recorder.keep(result.outcome, result.variant.name)
            for result in sustained.values():
                keep_variant(result, recorder)
            self._evaluate(group, sustained, boost, backend.device.limits)
        if self.copies is not None:
            self._copies(recorder, self.copies)

    def _evaluate(
        self, group: CeilingGroup, sustained: Results, boost: Results, at: Limits
    ) -> None:
        """Add the ceilings of a group in both states."""
        settled = ceilings.evaluate(group.sought, sustained, at, self.ceilings)
        known, risen = {**self.ceilings, **settled}, {}
        if group.boost:
            without = {name: r for name, r in sustained.items() if r.failure}  # and the reason
            risen = ceilings.evaluate(group.sought, {**without, **boost}, at, known, "boost")
        self._add({**settled, **risen})

    def _copies(self, recorder: Recorder, copy: Copies) -> None:
        reason, copies = "", list[transfers.Copied]()
        try:
            copies = copy()
        except (*LOST, RuntimeError) as error:
            reason = f"the process that copies: {error}"
        for copied in copies:
            recorder.keep(copy_outcome(copied, recorder.run, recorder.backend))
        times = {
            name: {c.bytes: c.timing for c in same if c.timing is not None}
            for name, same in transfers.group_by_name(copies).items()
        }
        self._add(ceilings.link_ceilings(times, reason))

    def _add(self, measured: dict[str, dict[str, Any]]) -> None:
        from workbench.reports.ceilings import line, pairs_of

        self.ceilings |= measured
        for pair in pairs_of(measured):
            self.console.print(line(pair), soft_wrap=True)

    def _draw(self, recorder: Recorder) -> Path:
        run = recorder.run
        whole = replace(run, ceilings={**run.ceilings, **self.ceilings})
        return self._write_page(whole, recorder.outcomes)

    def _write_page(self, run: Run, outcomes: Sequence[Outcome]) -> Path:
        from workbench.reports.ceilings import page

        return write_run_page(folder_of(self.options.out, run.id), page(run, outcomes))


def gpu(prewarm: Prewarm | None) -> Backend:
    """Return this machine's GPU under the rules of ceilings; `prewarm` was started before."""
    from workbench.backend.live import Live

    require_triton()
    return Live(repository_of("copy"), rules=RULES, prewarm=prewarm)


def mac() -> Backend:
    """Return this Mac's GPU. Raises NoMetal where times on it would mislead."""
    from workbench.backend.metal.metal import MetalLive

    return MetalLive(repository_of("copy"))


class HostCopies:
    """Time copies between host and device in a separate process, which opens the GPU and fills its
    memory while the kernels are compiled."""

    def __init__(self) -> None:
        self._process = Solo()
        self._process.begin(transfers.prepare)

    def __call__(self) -> list[transfers.Copied]:
        """Return the timed copies. Raises TimeoutError or ChildProcessError where the process is
        lost, and any error that it raised."""
        task = transfers.host_copies
        copied: list[transfers.Copied] = self._process.ask(task, timeout_s=COPIES_S)
        return copied

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):
            self._process.end()


def run_of(device: hardware.Device) -> dict[str, Any]:
    """Return the fields of a run of ceilings: it has no kernel of its own, and stated ceilings."""
    named = {"id": run_id("ceilings", device.name), "kernel": "ceilings", "dtype": "", "sizes": {}}
    return {**named, "ceilings": ceilings.stated_ceilings(device)}


def stated_run(device: hardware.Device, options: CeilingsOptions) -> Run:
    """Return a run without outcomes, with the stated ceilings of a device."""
    return Run(
        project=project_id(),
        **run_of(device),
        engine="ceilings",
        name="stated",
        command=replace(options, device=device.name).command,
        started=timestamp(),
        device=device.name,
        predicted=True,
        environment=fingerprint(None, repository_of("copy")),
    )


def prepare_group(group: CeilingGroup, run: Run, backend: Backend) -> Prepared:
    """Return the timing tasks of a group, in both states if it has them."""
    context = Context("", None, "", backend.device, backend.predicts)
    prepared = prepare(context, group.variants, run, backend, Tuned())
    tasks = {name: replace(task, boost=group.boost) for name, task in prepared.tasks.items()}
    return replace(prepared, tasks=tasks)


def copy_outcome(copied: transfers.Copied, run: Run, backend: Backend) -> Outcome:
    """Return the outcome of a copy between host and device."""
    case = Case("host_copy", copied.name, "torch", {}, {"B": copied.bytes}, "uint8", run.device)
    env, at = run.environment, timestamp()
    software = {"torch": env.versions.get("torch", ""), "driver": env.driver or ""}
    key = key_of(case, protocol=transfers.RULES.id, **software)
    if copied.timing is None:
        return Failure(case, key, run.id, at, "check", "the copy differs from its source")
    return Record(case, key, run.id, at, "hot", copied.timing, 0, copied.bytes, "gpu", 0.0)
