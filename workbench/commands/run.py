"""The skeleton of all commands that obtain outcomes.

`resources` opens the database and the backend; `execute` begins a run, keeps each outcome before
the next is obtained, and finishes and draws the run however it ends.
"""

from __future__ import annotations

import errno
import importlib.util
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, TypeVar

from workbench import catalog
from workbench.backend.measuring import GpuGone
from workbench.backend.protocol import Backend, Problem
from workbench.commands.console import is_stdout, say_result
from workbench.commands.field import RunOutput
from workbench.commands.instrumentation import completion_event, dispatch_events
from workbench.commands.options import DEFAULT_TARGET, CommandError, OptionError
from workbench.commands.result import RunResult
from workbench.commands.stored import stored_runs
from workbench.compile import Compiled
from workbench.data.clock import folder_of, run_id, timestamp
from workbench.data.database import Entry, History
from workbench.data.events import EventLog, RunState
from workbench.data.files import STDOUT, real_path
from workbench.data.interrupts import Interrupts
from workbench.data.parts import require_part
from workbench.data.project import project_id
from workbench.data.record import Case, Comparison, Failure, Finding, Outcome, Record, Run
from workbench.data.store import Store
from workbench.device import hardware
from workbench.reports import drawn_at_least

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.backend.prewarm import LiveProcesses
    from workbench.commands.sweep import SweepOptions
    from workbench.commands.workload_tune import WorkloadTuneOptions
    from workbench.measurement.protocol import Protocol as Rules


Opener = Callable[[str | None, Path], Backend]  # `backend_for`, or a test's own


# Resources


@dataclass(frozen=True)
class OpenResources:
    """Resources that a command uses while it runs."""

    history: History
    interrupts: Interrupts
    backend: Backend
    options: RunOutput

    def recorder(self, run: Run) -> Recorder:
        """Return a recorder of this run's outcomes."""
        options = self.options
        file = options.events_file or folder_of(options.out, run.id) / "events.jsonl"
        store = Store(self.history, self.interrupts)
        return Recorder(run, self.backend, store, file, options.events)


@contextmanager
def resources(options: RunOutput, open_backend: Callable[[], Backend]) -> Iterator[OpenResources]:
    """Return a context manager that opens the database and the backend, and closes them at the end.

    Raises CommandError where a place for results cannot be written to, or where an idle
    GPU is required and others use it; HistoryError where the database cannot be opened.
    """
    check_outputs(options)
    with ExitStack() as stack:
        history = stack.enter_context(stored_runs(options.database, reading=False))
        interrupts = stack.enter_context(Interrupts())
        backend = open_backend()
        stack.callback(backend.close)
        give_ceilings(backend, history)
        check_idle(backend, getattr(options, "require", ()))
        yield OpenResources(history, interrupts, backend, options)


def give_ceilings(backend: Backend, history: History) -> None:
    """Give a Mac's backend the stored ceilings of its device. Others measure theirs at the begin of
    a run; here that would take seconds of each."""
    if backend.device.backend == hardware.METAL and not backend.predicts:
        from workbench.backend.metal.metal import MetalLive
        from workbench.experiments.analysis.ceilings import measured_ceilings

        assert isinstance(backend, MetalLive)
        backend.ceilings = measured_ceilings(history, backend.device.name) or {}


def check_outputs(options: RunOutput) -> None:
    """Raise CommandError where `--out`, `--events-file` or `--json` cannot be written to."""
    check_writable(options.out)
    more = {f"--{name}": getattr(options, name, None) for name in ("markdown", "sarif")}
    check_files(options.events_file, options.json, more)


def check_files(
    events: Path | None, json: Path | None, more: Mapping[str, Path | None] | None = None
) -> None:
    """Raise CommandError where the files of `--events-file`, `--json` and `more` options could not
    be written, or two are one: the second would replace the first."""
    named = {"--events-file": events, "--json": json, **(more or {})}
    for flag, file in named.items():
        check_file(file, flag)
    given = [(flag, file) for flag, file in named.items() if file is not None]
    for (flag, file), (other, second) in combinations(given, 2):
        if real_path(file) == real_path(second) or (is_stdout(file) and is_stdout(second)):
            raise CommandError(f"{flag} and {other} both name {second}; give each its own file.")


def check_file(file: Path | None, flag: str) -> None:
    """Raise CommandError where a file that the option `flag` names could not be written."""
    if file is not None and file != STDOUT:
        check_writable(file.parent, file, flag)


def check_writable(folder: Path, file: Path | None = None, flag: str = "--events-file") -> None:
    """Raise CommandError where results could not be written into `folder`, or not to `file`, which
    the option `flag` names. Leaves nothing behind: a missing folder is not created."""
    try:
        if file is not None and file.is_dir():
            what = "events file" if flag == "--events-file" else "file"
            raise CommandError(f"{file} is a folder; name the {what} in it: {flag} FILE.")
        if file is not None and file.exists():
            if not os.access(file, os.W_OK):
                raise PermissionError(errno.EACCES, "permission denied")
            return
        there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        flag, place = ("--out", folder) if file is None else (flag, file)
        reason = (error.strerror or type(error).__name__).lower()
        raise CommandError(
            f"{place} cannot be written to ({reason}); name another place with {flag}."
        ) from None


def check_idle(backend: Backend, require: Sequence[str]) -> None:
    """Raise CommandError if an idle GPU is required, and it is in use, or none takes part."""
    if "idle-gpu" not in require:
        return
    if backend.predicts:
        raise CommandError(
            f"Times for {backend.device.name} are predicted, and no GPU takes part; leave out "
            "--require idle-gpu."
        )
    if others := backend.environment.others_on_gpu:
        raise CommandError(
            f"{others} other process{'es use' if others > 1 else ' uses'} this GPU, so times would "
            "not be its own; end them, or leave out --require idle-gpu to have them counted in the "
            "result."
        )


def check_also(backend: Backend, also: Sequence[str]) -> None:
    """Raise CommandError if energy or a profile is requested where times are predicted, as nothing
    runs, and MissingPart where the part that profiles is not installed."""
    if "energy" in also and backend.predicts:
        raise CommandError(
            f"Times for {backend.device.name} are predicted, and energy has no prediction; leave "
            "out --also energy, or run it where the GPU is."
        )
    if "profile" in also and backend.predicts:
        raise CommandError(
            f"Times for {backend.device.name} are predicted, and nothing runs that could be "
            "profiled; leave out --also profile, or run it where the GPU is. Without a GPU "
            "`workbench diagnose KERNEL` reads the machine code."
        )
    if "profile" in also:
        require_part("traces")


def check_emulator(backend: Backend) -> None:
    """Raise CompilerMissing if Metal kernels are about to be emulated for the device, and no
    compiler for that is installed."""
    if backend.predicts and backend.device.backend == hardware.METAL:
        from workbench.backend.metal.emulated import require_emulator

        require_emulator()


def check_sanitizer(require: Sequence[str], device: str | None) -> None:
    """Raise CommandError if compute-sanitizer is required and cannot run here, or if a `device` is
    named, on which nothing runs."""
    if "sanitizer" not in require:
        return
    if device is not None:
        raise CommandError(
            f"--require sanitizer runs the kernel, and with --device {device} nothing runs; leave "
            "one of them out."
        )
    from workbench.backend.sanitizing import sanitizer_refusal

    if (reason := sanitizer_refusal()) is not None:
        raise CommandError(f"--require sanitizer is not possible here: {reason}")


def wants_cluster(options: SweepOptions | WorkloadTuneOptions) -> bool:
    """Return whether a cluster was asked for. Raises OptionError where the options exclude it."""
    if options.workers is None:
        return False
    if options.device is not None:
        raise OptionError("With --device nothing is measured; leave out --device or --workers.")
    for flag, word in (("require", "sanitizer"), ("also", "profile")):
        if word in getattr(options, flag, ()):
            option = f"--{flag} {word}"
            raise OptionError(f"{option} uses this machine's GPU; leave out {option} or --workers.")
    return True


# Backends


def backend_for(
    device: str | None,
    repository: Path,
    prewarm: LiveProcesses | None = None,
    rules: Rules | None = None,
) -> Backend:
    """Return the backend. A named device is compiled for and predicted, even if a GPU is present.
    Without one it is the GPU of this machine, measured by `rules` (None: the usual ones), or a
    prediction for `h200` if there is none. Raises UnknownDevice, or CommandError where Triton is
    missing."""
    from workbench.backend.live import Live

    require_triton()
    if device is None and (prewarm is not None or gpu_present()):
        return Live(repository, rules=rules, prewarm=prewarm)
    return _offline(hardware.device_named, device, repository)


def any_backend(
    device: str | None,
    repository: Path,
    prewarm: LiveProcesses | None = None,
    rules: Rules | None = None,
) -> Backend:
    """Return the backend of commands that also take Apple's GPUs: a named one is emulated and
    predicted, that of this Mac is measured through MLX. As `backend_for` for any other device."""
    if device is None and target_backend(None) == hardware.METAL:
        from workbench.backend.metal.metal import MetalLive

        return MetalLive(repository)
    if device is not None and hardware.backend_of(device) == hardware.METAL:
        return _offline(hardware.find_device, device, repository)
    return backend_for(device, repository, prewarm, rules)


def paper_backend(device: str | None, repository: Path) -> Backend:
    """Return the backend of commands that only predict: for any known device, also one that Triton
    does not compile for. Raises UnknownDevice."""
    if device is None and gpu_present():
        return backend_for(None, repository)
    return _offline(hardware.find_device, device, repository)


def _offline(
    find: Callable[[str], hardware.Device], device: str | None, repository: Path
) -> Backend:
    from workbench.backend.offline import Offline

    return Offline(find(device or DEFAULT_TARGET), repository)


def target_backend(device: str | None) -> str:
    """Return the backend of a named device, or of the GPU of this machine: "cuda", "hip" or
    "metal"; "" where it is not known, or where there is none."""
    if device is None and hardware.metal_device() and not gpu_present():
        return hardware.METAL
    return hardware.backend_of(device)


def gpu_present() -> bool:
    """Return whether torch sees a GPU; asks the driver, and starts nothing on it."""
    import torch

    return bool(torch.cuda.is_available())


def require_triton() -> None:
    """Raise CommandError where there is no compiler for Triton kernels."""
    if importlib.util.find_spec("triton") is None:
        raise CommandError(
            "Triton is not installed, so nothing can be compiled; it has wheels for Linux only: "
            "pip install 'triton>=3.6'."
        )


def repository_of(kernel: str) -> Path:
    """Return the folder whose commit a result belongs to: that of the kernel's file."""
    file = catalog.module_of(kernel).__file__
    return Path(file).parent if file else Path.cwd()


# Runs


def new_run(
    engine: str,
    name: str,
    command: str,
    backend: Backend,
    problems: Sequence[Problem],
    tag: str | None = None,
) -> Run:
    """Return the run of an engine over these problems. Sizes are left empty if there are several;
    `tag` replaces the engine in the run's id."""
    kernels = list(dict.fromkeys(p.spec.name for p in problems))
    dtypes = list(dict.fromkeys(p.dtype for p in problems))
    alike = all(dict(p.sizes) == dict(problems[0].sizes) for p in problems)
    return Run(
        project=project_id(),
        id=run_id(tag or engine, kernels[0] if len(kernels) == 1 else "suite"),
        engine=engine,
        name=name,
        command=command,
        started=timestamp(),
        kernel=", ".join(kernels),
        sizes=dict(problems[0].sizes) if alike and len(kernels) == 1 else {},
        dtype=", ".join(dtypes),
        device=backend.device.name,
        predicted=backend.predicts,
        ceilings=_stated_ceilings(backend, dtypes),
        environment=backend.environment,
        source=", ".join(dict.fromkeys(p.kernel for p in problems)),
        gpu=backend.place.gpu,
        references=backend.place.references,
    )


def _stated_ceilings(backend: Backend, dtypes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the ceilings of the datasheet; `compute` has its dtype's name appended if there are
    several."""
    stated: dict[str, dict[str, Any]] = {}
    for dtype in dtypes:
        for name, ceiling in hardware.ceilings(backend.device, dtype).items():
            several = name == "compute" and len(dtypes) > 1
            stated[f"compute_{dtype}" if several else name] = ceiling
    return stated


def measured_peaks(
    history: History, backend: Backend, dtypes: Sequence[str]
) -> dict[str, Mapping[str, Any]]:
    """Return the arithmetic ceilings of these dtypes, in both states, that the latest complete
    `workbench ceilings` measured on this device; none for a prediction."""
    from workbench.experiments.analysis.ceilings import measured_ceilings

    measured = {} if backend.predicts else measured_ceilings(history, backend.device.name) or {}
    return {
        name: c
        for name, c in measured.items()
        if c.get("level") == "compute" and c.get("dtype") in dtypes
    }


@dataclass
class Recorder:
    """Record one run. Every outcome is in the events file and in the database before the next is
    obtained, and is kept here for the page and the JSON document."""

    run: Run
    backend: Backend
    store: Store
    file: Path  # of the events
    events: bool = True  # write an event for each dispatch and each time
    outcomes: list[Outcome] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    seconds: Mapping[str, float] | None = None  # wall time by part; None: the backend's own
    has_begun: bool = False
    state: RunState | None = None  # None before the end

    def begin(self, ceilings: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Store the run, once, with the ceilings that were measured for it."""
        if not self.has_begun:
            self.run = replace(self.run, ceilings={**self.run.ceilings, **(ceilings or {})})
            self.store.begin(self.run)
            self.has_begun = True

    def write_dispatches(self, case: Case, compiled: Compiled | None, part: str = "") -> None:
        """Write an event for each kernel that a config launches, if it was compiled. `part` is the
        operand or the variant that it is; see `op_path`."""
        if self.events and compiled is not None:
            for event in dispatch_events(self.run, case, compiled, part):
                self.store.log.write(event)

    def keep(self, entry: Entry, part: str = "") -> None:
        """Store an outcome, a comparison or a finding; of a time also the event."""
        self.store.keep(entry)
        if self.events and isinstance(entry, Record):
            self.store.log.write(completion_event(self.run, entry, part))
        if isinstance(entry, Comparison):
            self.comparisons.append(entry)
        elif isinstance(entry, Finding):
            self.findings.append(entry)
        elif isinstance(entry, Record | Failure):
            self.outcomes.append(entry)

    @property
    def has_times(self) -> bool:
        """Whether any outcome has a time."""
        return any(isinstance(o, Record) for o in self.outcomes)

    def result(self, page: Path | None = None) -> RunResult:
        """Return the run with all that was stored of it, for the JSON document."""
        kept = self.outcomes, self.comparisons, self.findings
        return RunResult(self.run, *kept, state=self.state, page=page, events=self.file)

    def end(self, state: RunState) -> None:
        """Store how the run ended."""
        self.begin()
        self.state = state
        stages: Counter[str] = Counter(
            o.phase if isinstance(o, Record) else o.stage for o in self.outcomes
        )
        spent = dict(self.backend.seconds) if self.seconds is None else self.seconds
        self.store.end(state, self.counts or stages, spent)


def execute(
    recorder: Recorder, obtain: Callable[[Recorder], None], draw: Callable[[Recorder], object]
) -> RunState:
    """Obtain the outcomes of a run, and finish it. Returns "complete", or "interrupted" after
    Ctrl-C. The outcomes so far are drawn also if an error ends the run."""
    state: RunState = "complete"
    with EventLog(recorder.file) as log, drawn_at_least(lambda: draw(recorder)):
        recorder.store.log = log
        try:
            obtain(recorder)
        except KeyboardInterrupt:
            state = "interrupted"
        except GpuGone:  # another run goes on from what this one stored
            recorder.end("interrupted")
            raise
        recorder.end(state)
    return state


_Page = TypeVar("_Page")


def draw_ended_run(recorder: Recorder, draw: Callable[[Recorder], _Page]) -> _Page:
    """Return what `draw` draws of a run that has ended. Ctrl-C is deferred until then: the page
    takes seconds, and shows all that was obtained."""
    with recorder.store.interrupts.later():
        return draw(recorder)


def say_page(console: Console, page: Path) -> None:
    """Print the path of the page, whole, so that it can be copied."""
    say_result(console, f"report  {page.resolve()}")
