"""Tune the kernels of a workload, and write the table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.adapted.write import numbers_of
from workbench.commands.comparison import Pair, compare_pair, draw_comparisons, placed_candidate
from workbench.commands.console import (
    SweepConsole,
    aloud,
    console_for,
    note,
    prints_aside,
    say_result,
)
from workbench.commands.options import DEFAULT_TARGET, OptionError
from workbench.commands.problem import problems_of
from workbench.commands.result import write_result
from workbench.commands.run import (
    Opener,
    any_backend,
    check_file,
    check_writable,
    execute,
    gpu_present,
    new_run,
    repository_of,
    require_triton,
    resources,
    wants_cluster,
)
from workbench.commands.tune_function import sweep_adapted_kernel, take_over
from workbench.commands.tune_options import TuneOptions
from workbench.data.clock import folder_of
from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED, PASSED
from workbench.data.record import Outcome, Record, Verdict
from workbench.data.selection import TIE_SHARE, comparable_times
from workbench.device import hardware
from workbench.device.error_band import device_words, devices_words
from workbench.reports import write_page
from workbench.reports.tables import text_table
from workbench.spec import WorkbenchError, label
from workbench.tuner.search import Budget
from workbench.tuner.space import RecordFactory
from workbench.workload.engine import SweptLaunch, WorkloadTuning
from workbench.workload.entries import add_middles, entries_of
from workbench.workload.file import RecordedWorkload, read_all
from workbench.workload.plan import WorkItem, configs_in_use, groups_of, signature_text, work_list
from workbench.workload.rebuilt import RebuiltLaunch
from workbench.workload.tuned_table import read as read_table
from workbench.workload.tuned_table import write as write_table
from workbench.workload.tuning import Tuned, TuningJournal
from workbench.workload.tuning_text import (
    DONE_HEADINGS,
    PLAN_HEADINGS,
    RIGHT,
    done_cells,
    plain_item,
    plan_cells,
    plan_line,
    result_sentence,
    weight_of,
)

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.backend.cluster.cluster import ClusterGpu
    from workbench.backend.cluster.spread import Job, Spread
    from workbench.backend.prewarm import KeptProcesses
    from workbench.backend.workers import Pool
    from workbench.code.compared_pair import ComparedPair
    from workbench.commands.sweep import SweepOptions
    from workbench.commands.workload_tune import WorkloadTuneOptions


def tune_workload(options: WorkloadTuneOptions, open_backend: Opener | None = None) -> int:
    """Run the command. Returns its exit code. `open_backend` replaces the backend of the machine,
    for tests."""
    seconds, on_cluster = check_tuning(options), wants_cluster(options)
    workload = read_all(options.files)
    if not on_cluster:
        named = options.device is not None
        predicts = named if open_backend is not None else named or not gpu_present()
        sweeper = LaunchSweeper(options, predicts, open_backend)
        return _tune(sweeper, workload, seconds, device_of(options), None)
    from workbench.backend.cluster.spread import Spread, cluster_of
    from workbench.commands.gpu_lines import GpuLines

    require_triton()
    lines = GpuLines(options.quiet, prints_aside(options))
    with cluster_of(str(options.workers), note) as cluster:
        spread = Spread(cluster, lines.say)
        sweeper = LaunchSweeper(replace(options, out=options.out.absolute()), False)
        return _tune(sweeper, workload, seconds, spread.first().gpu.device, spread)


def check_tuning(options: WorkloadTuneOptions) -> float:
    """Return the seconds of the budget. Raises OptionError where an option does not fit, and
    CommandError where a place cannot be written to."""
    budget = Budget.parse(options.budget)
    if budget.seconds == float("inf"):
        raise OptionError("--budget is shared as time; write seconds, minutes or hours: 30s, 10m.")
    if not 0 < options.cover <= 1:
        raise OptionError("--cover is a share of the time above 0 and at most 1; write 0.95.")
    check_file(options.tuned, "--tuned")
    check_file(options.json, "--json")
    if not options.dry_run:
        check_writable(options.out)
    return budget.seconds


def device_of(options: WorkloadTuneOptions) -> hardware.Device:
    """Return the device that is tuned for."""
    if options.device is None and (live := hardware.live()) is not None:
        return live
    return hardware.device_named(options.device or DEFAULT_TARGET)


@dataclass(frozen=True)
class LaunchSweeper:
    """Sweeps and compares the configs of a launch, which becomes an adapted kernel."""

    options: WorkloadTuneOptions
    predicts: bool  # no GPU takes part
    open_backend: Opener | None = None
    processes: KeptProcesses | None = None  # of this machine's GPU
    gpu: ClusterGpu | None = None

    def sweep(self, launch: RebuiltLaunch, seconds: float) -> SweptLaunch:
        """Return a launch with its configs' times. Raises WorkbenchError where none has one."""
        options: TuneOptions = {"out": self.options.out, "quiet": True}
        if self.options.device is not None:
            options["device"] = self.options.device
        path, call, _ = take_over(
            launch.kernel,
            launch.arguments,
            launch.grid,
            list(launch.configs),
            options,
            recorded=True,
            pool=self._aside(),
        )
        if self.processes is not None:
            self.processes.prepare(str(path))
        if not self.predicts:
            options["budget"] = f"{seconds:.1f}s"
        if self.options.database is not None:
            options["database"] = self.options.database
        console = SweepConsole(True, stderr=True)
        command = sweep_adapted_kernel(path, call, options, console, self._opener(path))
        records = {label(r.case.config): r for r in comparable_times(command.outcomes).values()}
        assert command.page is not None  # the sweep has ended
        if not records:
            raise WorkbenchError(f"No config gave a right result in time; see {command.page}.")
        labels = [label(numbers) for numbers in numbers_of(launch.configs)]
        compare = partial(self._compare, command.options, records)
        gpu = self.gpu.title if self.gpu is not None else ""
        return SweptLaunch(
            launch, records, labels, not call.unchecked, command.page, self.predicts, gpu, compare
        )

    def _compare(
        self, sweep: SweepOptions, records: dict[str, Record], used: str, best: str
    ) -> tuple[Verdict | None, Outcome | None, Outcome | None]:
        """Compare two configs of a sweep in interleaved rounds, and store the comparison."""
        (problem, *_), (impl, *_) = problems_of(sweep)
        opener = self._opener(Path(sweep.kernel))
        with resources(sweep, lambda: opener(None, repository_of(sweep.kernel))) as opened:
            run = new_run("compare", "workload", sweep.command, opened.backend, [problem])
            factory = RecordFactory(run, problem, opened.backend.protocol)
            left, right = (
                placed_candidate(factory, impl, impl.config(**records[name].case.config), place)
                for name, place in ((used, "left"), (best, "right"))
            )
            pair = Pair(problem, left, right, (used, best))
            pairs: list[ComparedPair] = []
            state = execute(
                opened.recorder(run),
                lambda recorder: pairs.append(compare_pair(pair, recorder, TIE_SHARE)),
                lambda recorder: draw_comparisons(recorder, folder_of(self.options.out, run.id)),
            )
        if state == "interrupted":
            raise KeyboardInterrupt
        return pairs[0].verdict, pairs[0].before, pairs[0].after

    def _opener(self, kernel: Path) -> Opener:
        """Return what opens the backend of a kernel."""
        if (gpu := self.gpu) is None:
            return self.open_backend or partial(any_backend, prewarm=self.processes)
        from workbench.backend.cluster.remote import ClusterLive

        return lambda device, repository: ClusterLive(gpu, str(kernel), repository)

    def _aside(self) -> Pool | None:
        """Return the pool for the first launch of a function, on the GPU that it is timed on; None:
        a process of this machine."""
        if self.gpu is None:
            return self.processes
        from workbench.backend.cluster.remote import AsidePool

        return AsidePool(self.gpu)


def _tune(
    sweeper: LaunchSweeper,
    workload: RecordedWorkload,
    seconds: float,
    device: hardware.Device,
    spread: Spread | None,
) -> int:
    """Print the work list, tune it and print the results. Returns the exit code."""
    options = sweeper.options
    if device.dram is None:
        raise OptionError(
            f"The bandwidth of {device.title} is not known, and signatures are ordered by it; name "
            "another with --device."
        )
    items = work_list(workload, options.cover, device.dram.value)
    console = console_for(options)
    with aloud(console):
        print_plan(console, items, device.title)
    if options.dry_run:
        return write_result(options, "workload", PASSED, plan=[plain_item(i) for i in items])
    require_triton()
    about = [device.name, sweeper.predicts, options.widen, options.trust]
    text = json.dumps([about, sorted(item.digest for item in items)])
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    journal = TuningJournal(options.out / "workload" / f"{name}.jsonl")
    journal.load()
    tuning = WorkloadTuning(
        items,
        journal,
        seconds,
        partial(console.print, soft_wrap=True),
        note,
        trust=options.trust,
        widen=options.widen,
        gpus=(lambda: 1) if spread is None else (lambda: spread.gpus),
    )
    code = tune_groups(tuning, sweeper, spread)
    used = configs_in_use(workload, device.title, device.dram.value)
    return TuningResult(options, tuning, device, sweeper.predicts, used).write(console, code)


def tune_groups(tuning: WorkloadTuning, sweeper: LaunchSweeper, spread: Spread | None) -> int:
    """Tune each family and each other signature, on this machine or on the GPUs of a cluster, to
    the end or to Ctrl-C. Returns the exit code."""
    processes = None
    if spread is None and sweeper.open_backend is None and not sweeper.predicts:
        from workbench.backend.prewarm import KeptProcesses

        processes = KeptProcesses()
    try:
        if spread is not None:
            jobs = [_job(tuning, sweeper, spread, group) for group in groups_of(tuning.items)]
            spread.run(jobs)
        else:
            own = replace(sweeper, processes=processes)
            for group in groups_of(tuning.items):
                tuning.tune(group, own.sweep)
        if tuning.is_spent and tuning.open_items:
            note("the budget is spent; the same command continues with what is stored")
    except KeyboardInterrupt:
        note("stopped; the same command continues with what is stored")
        return INTERRUPTED
    finally:
        if processes is not None:
            processes.end()
    return PASSED


def _job(
    tuning: WorkloadTuning, sweeper: LaunchSweeper, spread: Spread, group: Sequence[WorkItem]
) -> Job:
    """Return a group as a job for one GPU: its sweeps and its comparisons."""
    from workbench.backend.cluster.spread import Job

    first = group[0].signature
    more = f" and {len(group) - 1} more of its family" if len(group) > 1 else ""
    title = f"{first.function.name} {signature_text(first)}{more}"

    def tune_on(gpu: ClusterGpu) -> None:
        if not tuning.is_spent:
            spread.say(f"{title} on {gpu.title}")
        tuning.tune(group, replace(sweeper, gpu=gpu).sweep)

    return Job(title, tune_on)


@dataclass(frozen=True)
class TuningResult:
    """What a tuning gave: its table, its page and what is printed."""

    options: WorkloadTuneOptions
    tuning: WorkloadTuning
    device: hardware.Device
    predicts: bool
    used_items: Sequence[WorkItem]  # whose config Triton chose on a GPU of this model

    def write(self, console: Console, code: int) -> int:
        """Write the table and the page, and print the results. Returns the exit code."""
        options, done, items = self.options, self.tuning.tuned_items, self.tuning.items
        tuned = add_middles(items, self.tuning.journal.results)
        writes = options.predicted or not self.predicts
        entries = entries_of(tuned, self.used_items, self.device, self.predicts) if writes else []
        if entries or not self.predicts:  # an empty one pins nothing, and says so
            known = read_table(options.tuned) if options.tuned.exists() else []
            write_table(options.tuned, [*known, *entries])
        written = len(entries) if writes else None
        sentence = result_sentence(items, done, self.device.title, self.predicts, written)
        shown = [*done, *((item, result) for item, result in tuned if not item.launches)]
        page = self._page(shown, sentence)
        with aloud(console):
            print_results(console, shown)
            for line in devices_words((self.device.name, name) for name in self._functions(shown)):
                console.print(f"Predicted times of {line}", soft_wrap=True)
        say_result(console, sentence, "bold", whole=False)
        if entries or not self.predicts:
            say_result(console, f"table  {options.tuned.resolve()}")
        say_result(console, f"page  {page.resolve()}")
        if done and all(result.status == "failed" for _, result in done):
            code = code or COULD_NOT_RUN
        return write_result(
            options,
            "workload",
            code,
            plan=[plain_item(item) for item in items],
            results=[asdict(result) for _, result in done],
            entries=len(entries),
            sentence=sentence,
            page=str(page.resolve()),
        )

    def _functions(self, done: Sequence[Tuned]) -> list[str]:
        """Return the functions that have predicted times."""
        return [i.signature.function.name for i, r in done if self.predicts and r.before_s]

    def _page(self, done: Sequence[Tuned], sentence: str) -> Path:
        from workbench.reports.workload import page

        rows = [done_cells(item, result) for item, result in done]
        notes = [
            (
                f"{i.title}, {signature_text(i.signature)}",
                f"{r.reason}; on {r.gpu}" if r.gpu else r.reason,
            )
            for i, r in done
        ]
        error = device_words(self.device.name, ", ".join(self._functions(done)))
        predicted = error if self.predicts else ""
        order = f"In the order of their share of {weight_of(self.tuning.items)}."
        html = page(self.device.title, predicted, sentence, order, DONE_HEADINGS, rows, notes)
        return write_page(self.tuning.journal.path.with_suffix(".html"), html)


def print_plan(console: Console, items: Sequence[WorkItem], device: str) -> None:
    """Print the work list."""
    console.print(plan_line(items, device), soft_wrap=True)
    console.print(text_table(PLAN_HEADINGS, map(plan_cells, items), RIGHT))


def print_results(console: Console, done: Sequence[Tuned]) -> None:
    """Print the results, a line a signature, and below it the reason of each that failed."""
    cells = [done_cells(item, result) for item, result in done]
    console.print(text_table(DONE_HEADINGS, cells, RIGHT))
    for item, result in done:
        if result.status == "failed":
            console.print(f"not tuned: {item.title}: {result.reason}", soft_wrap=True)
