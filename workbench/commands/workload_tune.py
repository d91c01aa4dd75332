"""`workbench workload tune`: tune the kernels of a recorded program, the longest first."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.adapted.write import numbers_of
from workbench.backend.cluster.joining import WorkerRefused
from workbench.backend.measuring import GpuGone
from workbench.backend.protocol import Problem
from workbench.commands.comparison import Pair, compare_pair, draw_comparisons
from workbench.commands.console import (
    SweepConsole,
    aloud,
    console_for,
    note,
    prints_aside,
    say_result,
)
from workbench.commands.options import (
    DEFAULT_TARGET,
    OptionError,
    SweepOptions,
    WorkloadTuneOptions,
)
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
)
from workbench.commands.spread import GpuLines, Job, Spread, cluster_of, wants_cluster
from workbench.commands.sweep import SweepCommand
from workbench.commands.tune import TuneOptions, take_over
from workbench.data.clock import folder_of, timestamp
from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED, PASSED
from workbench.data.record import Measured, Record, key_of
from workbench.data.units import counted, duration, percent
from workbench.device import hardware
from workbench.device.error_band import band_of, device_words, devices_words
from workbench.reports import write_page
from workbench.spec import WorkbenchError, label
from workbench.tuner.search import Budget
from workbench.tuner.selection import MODEL_SHARE, TIE_SHARE, comparable_times
from workbench.tuner.space import RecordFactory
from workbench.workload.families import Middle, gaps, measured_families
from workbench.workload.file import RecordedWorkload, merged, read
from workbench.workload.identity import text_hash
from workbench.workload.plan import (
    WorkItem,
    configs_in_use,
    signature_digest,
    signature_text,
    time_for,
    work_list,
)
from workbench.workload.rebuilt import RebuiltLaunch, limited, rebuilt, widened
from workbench.workload.table import config_text
from workbench.workload.tuned_table import PREDICTED, MeasuredTime, PinnedEntry, argument_texts
from workbench.workload.tuned_table import read as read_table
from workbench.workload.tuned_table import write as write_table
from workbench.workload.tuning import (
    Status,
    TunedSignature,
    TuningJournal,
    family_choices,
    in_use,
    saving,
)

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.backend.cluster.cluster import ClusterGpu
    from workbench.backend.prewarm import KeptProcesses
    from workbench.backend.workers import Pool

LEAST_S = 20.0  # of a signature on a GPU: inputs of 1.6 GB take 6 s of it
MOVES = (GpuGone, WorkerRefused)  # end no signature
_ADOPTING = threading.Lock()  # imports the program's modules
LEAST_TIME = "launches x least time to move the tensors"  # stands for GPU time that is not recorded
PLAN_HEADINGS = ("kernel", "signature", "launches", "share", "to win", "config now", "family")
DONE_HEADINGS = ("kernel", "signature", "share", "result", "config", "before", "after")


def run(options: WorkloadTuneOptions, open_backend: Opener | None = None) -> int:
    """Run the command. Returns its exit code. Raises OptionError, WorkloadError and others, each of
    which is one sentence. `open_backend` replaces the backend of the machine, for tests."""
    seconds, on_cluster = check_tuning(options), wants_cluster(options)
    workload = merged([read(Path(name)) for name in options.files])
    if not on_cluster:
        return _tuned(options, workload, seconds, device_of(options), None, open_backend)
    require_triton()
    lines = GpuLines(options.quiet, prints_aside(options))
    with cluster_of(options) as cluster:
        spread = Spread(cluster, lines.say)
        device = spread.first().gpu.device
        return _tuned(options, workload, seconds, device, spread, open_backend)


def _tuned(
    options: WorkloadTuneOptions,
    workload: RecordedWorkload,
    seconds: float,
    device: hardware.Device,
    spread: Spread | None,
    open_backend: Opener | None,
) -> int:
    """Print the work list and tune it. Returns the exit code."""
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
    used = configs_in_use(workload, device.title, device.dram.value)
    tuning = WorkloadTuning(options, items, device, console, seconds, open_backend, spread, used)
    return tuning.go()


def check_tuning(options: WorkloadTuneOptions) -> float:
    """Return the seconds of the budget. Raises OptionError where an option does not fit, and
    CommandError where a place cannot be written to."""
    budget = Budget.parse(options.budget)
    if budget.seconds == float("inf"):
        raise OptionError("--budget is shared as time; write seconds, minutes or hours: 30s, 10m.")
    if not 0 < options.cover <= 1:
        raise OptionError("--cover is a share of the time above 0 and at most 1; write 0.95.")
    check_file(options.tuned, "--tuned")
    if not options.dry_run:
        check_writable(options.out)
    return budget.seconds


def device_of(options: WorkloadTuneOptions) -> hardware.Device:
    """Return the device that is tuned for."""
    if options.device is None and (live := hardware.live()) is not None:
        return live
    return hardware.device_named(options.device or DEFAULT_TARGET)


def digest_of(item: WorkItem) -> str:
    """Return a digest of the signature of an item."""
    return signature_digest(item.signature)


@dataclass
class SweptSignature:
    """A signature after its sweep: the launch, the file of its kernel, and comparable times."""

    item: WorkItem
    launch: RebuiltLaunch
    kernel: Path
    dtype: str
    times_s: dict[str, float]  # by config label
    records: dict[str, Record]
    labels: list[str]  # of the configs, that in use first
    checked: bool
    page: Path


@dataclass
class WorkloadTuning:
    """Tune the items one after the other, each stored as it is known."""

    options: WorkloadTuneOptions
    items: Sequence[WorkItem]
    device: hardware.Device
    console: Console
    seconds: float
    open_backend: Opener | None = None
    spread: Spread | None = None  # over the GPUs of a cluster
    used: Sequence[WorkItem] = ()  # whose config Triton chose on a GPU of this model
    gpu: ClusterGpu | None = None  # that one of them; see `_on_gpu`
    kept: KeptProcesses | None = None  # of this machine's GPU
    journal: TuningJournal = field(init=False)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        about = [self.device.name, self.predicts, self.options.widen, self.options.trust]
        text = json.dumps([about, sorted(map(digest_of, self.items))])
        name = hashlib.sha256(text.encode()).hexdigest()[:12]
        self.journal = TuningJournal(self.out / "workload" / f"{name}.jsonl")

    @property
    def out(self) -> Path:
        """Folder of pages and of the journal."""
        folder = self.options.out
        return folder if self.spread is None else folder.absolute()

    @property
    def predicts(self) -> bool:
        """Whether times are predicted: no GPU takes part."""
        if self.spread is not None:
            return False
        if self.open_backend is not None:
            return self.options.device is not None
        return self.options.device is not None or not gpu_present()

    def go(self) -> int:
        """Run to the end, or to Ctrl-C. Returns the exit code."""
        self.journal.load()
        code = PASSED
        if self.spread is None and self.open_backend is None and not self.predicts:
            from workbench.backend.prewarm import KeptProcesses

            self.kept = KeptProcesses()
        try:
            if self.spread is not None:
                self.spread.run([self._job(group) for group in self._groups()])
            else:
                for group in self._groups():
                    self._tune_in_budget(group)
            if self._is_spent and self._left:
                note("the budget is spent; the same command continues with what is stored")
        except KeyboardInterrupt:
            code = INTERRUPTED
            note("stopped; the same command continues with what is stored")
        finally:
            if self.kept is not None:
                self.kept.end()
        return self._conclude(code)

    @property
    def _left(self) -> list[WorkItem]:
        return [i for i in self.items if digest_of(i) not in self.journal.results]

    @property
    def _is_spent(self) -> bool:
        return time.monotonic() - self.started >= self.seconds

    def _tune_in_budget(self, group: Sequence[WorkItem]) -> None:
        if not self._is_spent:
            self._tune_group(group)

    def _job(self, group: Sequence[WorkItem]) -> Job:
        """Return a group as a job for one GPU: its sweeps and its comparisons."""
        first = group[0].signature
        more = f" and {len(group) - 1} more of its family" if len(group) > 1 else ""
        title = f"{first.function.name} {signature_text(first)}{more}"

        def on_gpu(gpu: ClusterGpu) -> None:
            view = copy(self)  # shares the journal
            view.gpu = gpu
            assert self.spread is not None
            if not self._is_spent:
                self.spread.say(f"{title} on {gpu.title}")
            view._tune_in_budget(group)

        return Job(title, on_gpu)

    def _opener(self, kernel: Path) -> Opener | None:
        """Return what opens the backend of a kernel; None: the usual one of this machine."""
        if (kept := self.kept) is not None:
            from workbench.backend.live import Live

            return lambda device, repository: Live(repository, prewarm=kept)
        if (gpu := self.gpu) is None:
            return self.open_backend
        from workbench.backend.cluster.remote import ClusterLive

        return lambda device, repository: ClusterLive(gpu, str(kernel), repository)

    def _groups(self) -> Iterator[list[WorkItem]]:
        """Yield the items of each family, and each of the others alone, in their order."""
        done: set[str] = set()
        for item in self.items:
            if item.family is None:
                yield [item]
            elif item.family not in done:
                done.add(item.family)
                yield [each for each in self.items if each.family == item.family]

    def _tune_group(self, group: Sequence[WorkItem]) -> None:
        """Tune a family, or a signature alone; then the sizes between those of the family."""
        if not all(digest_of(item) in self.journal.results for item in group):
            self._tune_members(group)
        for gap in gaps(group, self.journal.results):
            if gap.middle is not None:
                self._tune_middle(gap.middle)
            elif gap.reason:
                name = gap.first.signature.function.name
                note(f"no size of {name} between two tuned ones is measured: {gap.reason}")

    def _tune_middle(self, between: Middle) -> None:
        """Measure the configs of both sizes, and the one in use, at the size between them."""
        item = between.item
        if digest_of(item) in self.journal.results:
            return
        try:
            with _ADOPTING:
                launch = limited(rebuilt(item.signature, self.options.trust), between.configs)
            swept = self._swept(item, launch, LEAST_S)
            best = min(swept.times_s, key=swept.times_s.__getitem__)
            self._keep(self._decided(swept, best), item)
        except MOVES:  # to another GPU of the cluster
            raise
        except WorkbenchError as error:
            self._keep(TunedSignature(digest_of(item), "failed", str(error)), item)

    def _tune_members(self, group: Sequence[WorkItem]) -> None:
        swept = []
        for item in group:
            try:
                swept.append(self._sweep(item, self._time_for(item)))
            except MOVES:  # to another GPU of the cluster
                raise
            except WorkbenchError as error:
                self._keep(TunedSignature(digest_of(item), "failed", str(error)), item)
        names = {digest_of(each.item): each for each in swept}
        chosen = family_choices(
            {name: each.times_s for name, each in names.items()},
            {name: each.labels[0] for name, each in names.items()},
        )
        for name, each in names.items():
            try:
                self._keep(self._decided(each, chosen[name]), each.item)
            except MOVES:  # to another GPU of the cluster
                raise
            except WorkbenchError as error:
                self._keep(TunedSignature(name, "failed", str(error)), each.item)

    def _time_for(self, item: WorkItem) -> float:
        left = self._left
        remaining = self.seconds - (time.monotonic() - self.started)
        gpus = self.spread.gpus if self.spread is not None else 1
        return max(LEAST_S, min(remaining, gpus * time_for(item, left, remaining)))

    def _keep(self, result: TunedSignature, item: WorkItem) -> None:
        self.journal.add(result)
        self.console.print(f"{kernel_cell(item)}: {result.reason}", soft_wrap=True)

    # One signature

    def _sweep(self, item: WorkItem, seconds: float) -> SweptSignature:
        """Adopt the launch and sweep its configs. Raises WorkbenchError where that fails."""
        with _ADOPTING:
            launch = rebuilt(item.signature, self.options.trust)
        swept = self._swept(item, launch, seconds)
        if self.options.widen and swept.times_s:
            best = min(swept.times_s, key=swept.times_s.__getitem__)
            more = widened(launch, launch.configs[swept.labels.index(best)])
            if more is not None:
                swept = self._swept(item, more, seconds)
        return swept

    def _swept(self, item: WorkItem, launch: RebuiltLaunch, seconds: float) -> SweptSignature:
        wanted: TuneOptions = {"out": self.out, "quiet": True}
        if self.options.device is not None:
            wanted["device"] = self.options.device
        path, call, _ = take_over(
            launch.kernel,
            launch.given,
            launch.grid,
            list(launch.configs),
            wanted,
            recorded=True,
            pool=self._aside(),
        )
        if self.kept is not None:
            self.kept.prepare(str(path))
        budget = str(len(call.entries)) if self.predicts else f"{seconds:.1f}s"
        sweep = self._sweep_options(path, call.dtype, budget)
        command = SweepCommand(sweep, SweepConsole(True, stderr=True), self._opener(path))
        if command.go() == INTERRUPTED:
            raise KeyboardInterrupt
        times = {label(r.case.config): r for r in comparable_times(command.outcomes).values()}
        assert command.page is not None  # the sweep has ended
        if not times:
            raise WorkbenchError(f"No config gave a right result in time; see {command.page}.")
        return SweptSignature(
            item,
            launch,
            path,
            call.dtype,
            {name: record.time_s for name, record in times.items()},
            times,
            [label(numbers) for numbers in numbers_of(launch.configs)],
            not call.unchecked,
            command.page,
        )

    def _aside(self) -> Pool | None:
        """Return the pool for the first launch of a function, on the GPU that it is timed on; None:
        a process of this machine."""
        if self.gpu is None:
            return self.kept
        from workbench.backend.cluster.remote import AsidePool

        return AsidePool(self.gpu)

    def _sweep_options(self, path: Path, dtype: str, budget: str) -> SweepOptions:
        return SweepOptions(
            "full",
            str(path),
            dtype=dtype,
            device=self.options.device,
            out=self.out,
            budget=budget,
            database=self.options.database,
        )

    def _decided(self, swept: SweptSignature, chosen: str) -> TunedSignature:
        """Return the result of a signature: the config in use, unless the chosen one is faster."""
        used = swept.labels[0]
        if chosen == used:
            return self._result(swept, used, "kept", f"the config in use, {used}, stays")
        if used not in swept.records:
            reason = f"the config in use, {used}, has no time to compare with; see {swept.page}"
            return self._result(swept, used, "kept", reason)
        if self.predicts:
            return self._predicted(swept, used, chosen)
        return self._measured(swept, used, chosen)

    def _predicted(self, swept: SweptSignature, used: str, chosen: str) -> TunedSignature:
        before, after = swept.times_s[used], swept.times_s[chosen]
        if before <= after * (1 + MODEL_SHARE):
            reason = f"the config in use, {used}, stays: {chosen} is predicted within 2 %"
            return self._result(swept, used, "kept", reason)
        reason = f"{chosen} is predicted {before / after:.2f}x as fast as {used}"
        times = tuple(MeasuredTime(t, t, t) for t in (before, after))
        result = self._result(swept, chosen, "predicted", reason)
        return replace(result, before_s=times[0], after_s=times[1])

    def _measured(self, swept: SweptSignature, used: str, chosen: str) -> TunedSignature:
        """Compare the two in interleaved rounds; only a verdict FAST replaces the config in use."""
        sweep = self._sweep_options(swept.kernel, swept.dtype, f"{LEAST_S}s")
        (problem, *_), impls = problems_of(sweep)
        opener = self._opener(swept.kernel) or any_backend
        with resources(sweep, lambda: opener(None, repository_of(str(swept.kernel)))) as opened:
            backend = opened.backend
            run = new_run("compare", "workload", sweep.command, backend, [problem])
            pair = _pair(RecordFactory(run, problem, backend.protocol), impls[0], swept, chosen)
            kept: list[Any] = []
            state = execute(
                opened.recorder(run),
                lambda recorder: kept.append(compare_pair(pair, recorder, TIE_SHARE)),
                lambda recorder: draw_comparisons(recorder, folder_of(self.out, run.id)),
            )
        if state == "interrupted":
            raise KeyboardInterrupt
        compared = kept[0]
        verdict = compared.comparison.verdict
        if verdict is None or verdict.word != "FAST":
            text = "did not run again" if verdict is None else f"gave {verdict.word}"
            reason = f"the config in use, {used}, stays: against it {chosen} {text}"
            return self._result(swept, used, "kept", reason)
        times = [_time_of(record) for record in (compared.left, compared.right)]
        reason = f"{chosen} takes {percent(verdict.time.middle)} of the time of {used}"
        result = self._result(swept, chosen, "faster", reason)
        protocol = _source_of(compared.right)
        return replace(result, before_s=times[0], after_s=times[1], protocol=protocol)

    def _result(
        self, swept: SweptSignature, name: str, status: Status, reason: str
    ) -> TunedSignature:
        config = swept.launch.configs[swept.labels.index(name)].all_kwargs()
        plain = {n: v for n, v in config.items() if isinstance(v, (int, str, type(None)))}
        record = swept.records.get(name)
        middle = _time_of(record) if record is not None else None
        return TunedSignature(
            digest_of(swept.item),
            status,
            reason,
            tuple(sorted(plain.items())),
            middle,
            middle,
            self._protocol(record),
            text_hash(swept.launch.kernel),
            swept.checked,
            timestamp(),
            str(swept.page),
            self.gpu.title if self.gpu is not None else "",
            _band_of(record),
        )

    def _protocol(self, record: Record | None) -> str:
        if record is None:
            return ""
        source = _source_of(record)
        return f"{PREDICTED} by {source}" if self.predicts else source

    # Output

    def _conclude(self, code: int) -> int:
        """Write the table and the page, and print the results. Returns the exit code."""
        done = [
            (item, self.journal.results[digest_of(item)])
            for item in self.items
            if digest_of(item) in self.journal.results
        ]
        served = self._served(done)
        entries = self._entries(served)
        table = self.options.tuned
        if entries or not self.predicts:  # an empty one pins nothing, and says so
            known = read_table(table) if table.exists() else []
            write_table(table, [*known, *entries])
        sentence = self._sentence(done, len(entries))
        shown = [*done, *((item, result) for item, result in served if not item.launches)]
        page = self._page(shown, sentence)
        with aloud(self.console):
            print_done(self.console, shown)
            for line in devices_words((self.device.name, k) for k in self._timed(shown)):
                self.console.print(f"Predicted times of {line}", soft_wrap=True)
        say_result(self.console, sentence, "bold", whole=False)
        if entries or not self.predicts:
            say_result(self.console, f"table  {table.resolve()}")
        say_result(self.console, f"page  {page.resolve()}")
        if done and all(result.status == "failed" for _, result in done):
            code = code or COULD_NOT_RUN
        return write_result(
            self.options,
            "workload",
            code,
            plan=[plain_item(item) for item in self.items],
            results=[asdict(result) for _, result in done],
            entries=len(entries),
            sentence=sentence,
            page=str(page.resolve()),
        )

    def _served(
        self, done: Sequence[tuple[WorkItem, TunedSignature]]
    ) -> list[tuple[WorkItem, TunedSignature]]:
        """Return the results and those of the sizes between members of families, each with its
        family in a table. A family that is not complete is none yet."""
        results = self.journal.results
        whole = [
            group
            for group in self._groups()
            if group[0].family is not None and all(digest_of(i) in results for i in group)
        ]
        members = {digest_of(item) for group in whole for item in group}
        served = [(replace(i, family=None), r) for i, r in done if digest_of(i) not in members]
        for group in whole:
            every = measured_families(group, results)
            served += [(item, results[digest_of(item)]) for item in every]
        return served

    def _entries(self, done: Sequence[tuple[WorkItem, TunedSignature]]) -> list[PinnedEntry]:
        """Return the entries of the table: what is faster; keys whose config in use stays, so that
        nothing is timed at a program's start; and of keys that were not tuned the config that
        Triton chose in the recording. Predicted are what is faster, and the families of that."""
        status = "predicted" if self.predicts else "faster"
        if self.predicts and not self.options.predicted:
            return []
        families = {i.family for i, r in done if r.status == status and i.family is not None}
        entries = [
            self._entry(item, result)
            for item, result in done
            if item.signature.key is not None
            and result.before_s is not None
            and result.after_s is not None
            and (
                result.status == status
                or (result.status == "kept" and (not self.predicts or item.family in families))
            )
        ]
        return entries if self.predicts else [*entries, *self._recorded(entries)]

    def _recorded(self, entries: Sequence[PinnedEntry]) -> list[PinnedEntry]:
        """Return entries of what Triton chose in the recording, of keys that have no other one."""
        known = {(e.module, e.function, e.key) for e in entries}
        entries = []
        for item in self.used:
            function, key = item.signature.function, item.signature.key
            if (function.module, function.name, key) not in known:
                entries.append(self._entry(item, in_use(item)))
        return entries

    def _entry(self, item: WorkItem, result: TunedSignature) -> PinnedEntry:
        import torch
        import triton

        assert result.before_s is not None and result.after_s is not None
        function = item.signature.function
        return PinnedEntry(
            self.device.limits.arch,
            self.device.title,
            str(triton.__version__),
            str(torch.__version__),
            function.module,
            function.name,
            result.text_hash,
            item.signature.key or (),
            result.config,
            result.before_s,
            result.after_s,
            item.family,
            result.protocol,
            result.at,
            arguments=argument_texts(item.signature.arguments),
        )

    def _sentence(self, done: Sequence[tuple[WorkItem, TunedSignature]], written: int) -> str:
        share = saving([(item.share, result) for item, result in done])
        word, tilde = ("Predicted", "~") if self.predicts else ("Measured", "")
        better = sum(result.speedup > 1 for _, result in done)
        failed = sum(result.status == "failed" for _, result in done)
        have = "has" if better == 1 else "have"
        text = (
            f"{word} for {self.device.title}: {better} of {len(self.items)} signatures {have} a "
            f"faster config, which saves {tilde}{percent(share)} of {weight_of(self.items)}"
        )
        if (step := sum((i.launch_s or 0.0) * i.launches for i in self.items)) > 0:
            text += f", {tilde}{duration(share * step)} of {duration(step)}"
        lost = f"; {failed} could not be tuned" if failed else ""
        left = len(self.items) - len(done)
        more = f"; {left} {'is' if left == 1 else 'are'} left" if left else ""
        if self.predicts and not self.options.predicted:
            return f"{text}{lost}{more}. Nothing was measured, so no table is written."
        entries = "entry is" if written == 1 else "entries are"
        return f"{text}{lost}{more}. {written} {entries} in the table."

    def _timed(self, done: Sequence[tuple[WorkItem, TunedSignature]]) -> list[str]:
        """Return the functions that have predicted times."""
        return [i.signature.function.name for i, r in done if self.predicts and r.before_s]

    def _page(self, done: Sequence[tuple[WorkItem, TunedSignature]], sentence: str) -> Path:
        from workbench.reports.workload import page

        rows = [done_cells(item, result) for item, result in done]
        notes = [
            (
                f"{kernel_cell(i)}, {signature_text(i.signature)}",
                f"{r.reason}; on {r.gpu}" if r.gpu else r.reason,
            )
            for i, r in done
        ]
        error = device_words(self.device.name, ", ".join(self._timed(done)))
        predicted = error if self.predicts else ""
        order = f"In the order of their share of {weight_of(self.items)}."
        html = page(self.device.title, predicted, sentence, order, DONE_HEADINGS, rows, notes)
        return write_page(self.journal.path.with_suffix(".html"), html)


def _pair(factory: RecordFactory, impl: Any, swept: SweptSignature, chosen: str) -> Pair:
    problem: Problem = factory.problem
    picked = []
    for name, place in ((swept.labels[0], "left"), (chosen, "right")):
        config = impl.config(**swept.records[name].case.config)
        candidate = factory.candidate(impl, config, False)
        key = key_of(candidate.case, of=candidate.key, operand=place)
        picked.append(replace(candidate, key=key))
    return Pair(problem, picked[0], picked[1], (swept.labels[0], chosen))


def _band_of(record: Record | None) -> tuple[float, float] | None:
    band = None if record is None or record.measured else band_of(record)
    return None if band is None else (band.low, band.high)


def _source_of(record: Record) -> str:
    """Return the protocol or the model of a time."""
    timing = record.timing
    return timing.protocol if isinstance(timing, Measured) else timing.model


def _time_of(record: Record) -> MeasuredTime:
    timing = record.timing
    if isinstance(timing, Measured):
        middle = timing.median_s
        return MeasuredTime(middle, min(timing.low_s, middle), max(timing.high_s, middle))
    return MeasuredTime(record.time_s, record.time_s, record.time_s)


def plain_item(item: WorkItem) -> dict[str, Any]:
    """Return an item of the work list as plain data."""
    signature = item.signature
    return {
        "kernel": signature.function.name,
        "signature": signature_text(signature),
        "launches": item.launches,
        "share": item.share,
        "launch_s": item.launch_s,
        "least_s": item.least_s,
        "to_win": item.to_win,
        "family": item.family,
    }


def is_timed(items: Sequence[WorkItem]) -> bool:
    """Return whether the recording has GPU times, by which items have their shares."""
    return any(item.launch_s is not None for item in items)


def weight_of(items: Sequence[WorkItem]) -> str:
    """Return what the shares of items are parts of."""
    time = "the recorded kernels' time"
    return time if is_timed(items) else f"{time}, taken as {LEAST_TIME}"


def print_plan(console: Console, items: Sequence[WorkItem], device: str) -> None:
    """Print the work list."""
    source = "GPU time" if is_timed(items) else f"{LEAST_TIME}, not measured"
    console.print(f"{counted(len(items), 'signature')} for {device}, by {source}:", soft_wrap=True)
    rows = [
        (
            item.signature.function.name,
            signature_text(item.signature),
            f"{item.launches:,}",
            percent(item.share),
            percent(item.to_win),
            config_text(item.signature) or "-",
            item.family or "-",
        )
        for item in items
    ]
    _print(console, PLAN_HEADINGS, rows)


def print_done(console: Console, done: Sequence[tuple[WorkItem, TunedSignature]]) -> None:
    """Print the results, a line a signature, and below it the reason of each that failed."""
    _print(console, DONE_HEADINGS, [done_cells(item, result) for item, result in done])
    for item, result in done:
        if result.status == "failed":
            console.print(f"not tuned: {kernel_cell(item)}: {result.reason}", soft_wrap=True)


def kernel_cell(item: WorkItem) -> str:
    """Return the name of an item's kernel; of a size that no launch had, with its key."""
    name = item.signature.function.name
    return name if item.launches else f"{name}, between: {', '.join(item.signature.key or ())}"


def done_cells(item: WorkItem, result: TunedSignature) -> tuple[str, ...]:
    """Return the cells of a result. A predicted time has a tilde."""
    mark = "~" if PREDICTED in result.protocol or result.status == "predicted" else ""
    times = (result.before_s, result.after_s)
    options = ("num_warps", "num_stages")  # last, in the order of other tables
    numbers: dict[str, Any] = dict(result.config)
    shown = {n: numbers.pop(n) for n in options if n in numbers}
    shown = {n: v for n, v in (numbers | shown).items() if v is not None and n != "num_ctas"}
    config = label(shown) if shown else ""
    status = result.status if result.checked else f"{result.status}, not checked here"
    return (
        kernel_cell(item),
        signature_text(item.signature),
        percent(item.share) if item.launches else "-",
        status,
        config or "-",
        *(f"{mark}{duration(t.median)}" if t is not None else "-" for t in times),
    )


def _print(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in headings:
        right = heading in ("launches", "share", "to win", "before", "after")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
