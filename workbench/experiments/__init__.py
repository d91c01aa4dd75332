"""Experiments: variants that are timed against each other, and the analysis of their times.

One experiment is one file, which exports `EXPERIMENT`: in this folder, in `examples/experiments/`
of a clone, or named by its path. The variants are Impls of kernels, each checked before it is
timed, so an experiment has no clock and no correctness check of its own: it lists what to time and
analyses the results.
`commands/experiment_command.py` runs it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from workbench import catalog
from workbench.backend.libraries import library_impls
from workbench.data.contributed import example_folders
from workbench.data.record import (
    Chart,
    Evidence,
    Finding,
    Kind,
    Measured,
    Outcome,
    Predicted,
    Record,
    State,
)
from workbench.device.error_band import device_words
from workbench.device.hardware import METAL, Device
from workbench.spec import Impl, Sizes, Spec, WorkbenchError

if TYPE_CHECKING:  # a compiler and a database, which `--help` does not need
    from workbench.compile import Compiled
    from workbench.data.database import Row

EXPERIMENTS = "workbench.experiments"
__path__.extend(example_folders(EXPERIMENTS))

Regime = Literal["cold", "hot"]


class ExperimentError(WorkbenchError):
    """A kernel cannot be examined; one sentence says why, and what to do."""


@dataclass(frozen=True)
class Variant:
    """One variant that an experiment times: an Impl at one config, sizes and dtype."""

    name: str  # "traffic": its name on the page, unique in its experiment
    kernel: str  # in `kernels/` or `variants/`, a dotted module, or a file
    impl: str
    sizes: Sizes
    dtype: str
    config: Mapping[str, int] | None = None  # None: tuned for this device, else the default
    regime: Regime = "cold"
    # "host": from the call until the GPU is idle, including all launches by the CPU
    clock: Literal["device", "host"] = "device"


@dataclass(frozen=True)
class Context:
    """The kernel that is examined, empty if the experiment names its own, and on what."""

    kernel: str
    sizes: Sizes | None  # None: the kernel's first to time
    dtype: str
    device: Device
    predicts: bool  # no GPU takes part: times come from the model
    # as `hardware.ceilings` writes them, measured ones too; known once variants were timed
    ceilings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    given_s: float | None = None  # a time that the user wants compared with the expected one
    earlier: Sequence[Row] = ()  # stored outcomes of the kernel, where nothing is run

    @property
    def metal(self) -> bool:
        """Whether Metal kernels run: on a Mac they are measured, elsewhere they are emulated, and
        predicted as intervals."""
        return self.device.backend == METAL

    @property
    def intervals(self) -> bool:
        """Whether times are predicted as intervals: those of Metal kernels without a Mac."""
        return self.metal and self.predicts

    def own(self, spec: Spec) -> list[Impl]:
        """Return the Impls that run on the device: Metal kernels on an Apple GPU, else Triton's."""
        backend = "metal" if self.metal else "triton"
        return [impl for impl in spec.impls if impl.backend == backend]

    def libraries(self, spec: Spec) -> list[Impl]:
        """Return the libraries' versions to time beside them: MLX's on a Mac, else torch's."""
        return library_impls(spec, self.device, self.predicts)

    @property
    def state(self) -> State:
        """State of the clock that its times are of: variants take turns once it has settled, and
        the model takes the boost clock."""
        return "boost" if self.predicts else "sustained"


@dataclass(frozen=True)
class VariantResult:
    """Result of a variant."""

    variant: Variant
    outcome: Outcome
    compilation: Compiled | None = None  # with the facts of its machine code; None for a library
    kernels: int | None = None  # launched by one call
    peak_bytes: int | None = None  # of the GPU's memory, beyond inputs, during one call

    @property
    def time_s(self) -> float | None:
        """Seconds of one call, measured or predicted; None where it failed."""
        return self.outcome.time_s if isinstance(self.outcome, Record) else None

    @property
    def timing(self) -> Measured | None:
        """Measured time; None if nothing was measured."""
        timing = self.outcome.timing if isinstance(self.outcome, Record) else None
        return timing if isinstance(timing, Measured) else None

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """95 % interval of the median in seconds, or the interval that the model states; None if it
        has none."""
        if self.timing:
            return self.timing.low_s, self.timing.high_s
        timing = self.outcome.timing if isinstance(self.outcome, Record) else None
        return timing.interval_s if isinstance(timing, Predicted) else None

    @property
    def failure(self) -> str:
        """Why there is no time; empty if there is one."""
        return "" if isinstance(self.outcome, Record) else self.outcome.reason

    def evidence(self, name: str, group: str = "", target: str = "") -> Evidence | None:
        """Return its time as a row of evidence; None if it has none."""
        if not isinstance(self.outcome, Record):
            return None
        low, high = self.interval_s or (None, None)
        kind: Kind = "measured" if self.outcome.is_measured else "predicted"
        return Evidence(name, self.outcome.time_s, "s", kind, low, high, group, target)


@dataclass(frozen=True)
class Analysis:
    """Analysis of one kernel by an experiment, before it has a run and a date: see `Finding`."""

    word: str
    sentence: str
    evidence: Sequence[Evidence] = ()
    charts: Sequence[Chart] = ()
    caveats: Sequence[str] = ()
    sizes: Sizes | None = None  # the sizes it is about, if the experiment chose them

    def finding(self, run: str, at: str, experiment: str, context: Context) -> Finding:
        """Return the finding of this analysis, with its run, date, kernel and sizes."""
        sizes = dict(self.sizes or context.sizes or {})
        about = experiment, kernel_name(context.kernel), sizes, context.dtype
        predicted = any(each.kind == "predicted" for each in self.evidence)
        words = device_words(context.device.name, kernel_name(context.kernel))
        error = (f"Predicted times: {words}",) if predicted else ()
        lists = tuple(self.evidence), tuple(self.charts), (*error, *self.caveats)
        return Finding(run, at, *about, self.word, self.sentence, *lists)


@dataclass(frozen=True)
class Experiment:
    """One experiment on kernels.

    `variants(context)` lists what is timed, all against each other; it may raise ExperimentError.
    `analyse(context, results)` gets the result of each variant, by name, also of those without a
    time. With `kernels`, the experiment runs on each of those, or on the one that the user names.
    """

    summary: str  # one line
    variants: Callable[[Context], Sequence[Variant]]
    analyse: Callable[[Context, Mapping[str, VariantResult]], Sequence[Analysis]]
    kernels: tuple[str, ...] = ()
    dtype: str = "bf16"  # unless the user names one
    runs: bool = True  # False: arithmetic alone, for devices without a compiler too
    # True: it takes an Apple GPU: a Mac's is measured, and of one that is not present the
    # intervals of `apple-2` are compared
    is_emulated: bool = False


_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
_TIME = re.compile(r"\s*((?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*([a-zµμ]+)\s*", re.ASCII)


def seconds(text: str) -> float:
    """Return `0.5ms`, `12 us` or `3 s` in seconds. Raises ExperimentError on 0 or anything else."""
    matched = _TIME.fullmatch(text.lower())
    value = float(matched[1]) * _UNITS.get(matched[2], math.nan) if matched else math.nan
    if not 0 < value < math.inf:
        raise ExperimentError(
            f"{text!r} is not a time; write a number above 0 and its unit, s, ms, us or ns: 0.5ms."
        )
    return value


def experiment_names() -> list[str]:
    """Return the names of the experiments, without importing them."""
    return catalog.names_in(EXPERIMENTS)


def find_experiment(name: str) -> Experiment:
    """Return the experiment of that file name, or of the file at that path.

    Raises ExperimentError with the nearest names, or where the file is missing or has no
    experiment.
    """
    if catalog.is_path(name):
        return _read_experiment(Path(name))
    if name not in experiment_names():
        hint = catalog.example("experiment", name, "workbench experiment ")
        raise ExperimentError(hint or catalog.name_hint("experiment", name, experiment_names()))
    experiment = import_module(f"{EXPERIMENTS}.{name}").EXPERIMENT
    assert isinstance(experiment, Experiment)
    return experiment


def title_of(name: str) -> str:
    """Return the name of an experiment in results: of a path, the name of its file."""
    return Path(name).stem if catalog.is_path(name) else name


def kernel_name(kernel: str) -> str:
    """Return the name of a kernel in results: of a path, the name of its Spec."""
    return catalog.spec_of(kernel).name if catalog.is_path(kernel) else kernel


_HOW = "docs/extending.md shows how to write one"


def _read_experiment(path: Path) -> Experiment:
    if not path.is_file():
        raise ExperimentError(f"There is no experiment file {path}; {_HOW}.")
    experiment = getattr(catalog.module_at(path), "EXPERIMENT", None)
    if not isinstance(experiment, Experiment):
        raise ExperimentError(f"{path} has no EXPERIMENT = Experiment(...); {_HOW}.")
    folder = path.resolve().parent

    def variants(context: Context) -> list[Variant]:
        given = experiment.variants(context)
        return [replace(variant, kernel=_kernel_path(folder, variant.kernel)) for variant in given]

    kernels = tuple(_kernel_path(folder, kernel) for kernel in experiment.kernels)
    return replace(experiment, kernels=kernels, variants=variants)


def _kernel_path(folder: Path, kernel: str) -> str:
    """Return a kernel's path in an experiment's file, resolved from the file's folder."""
    there = folder / kernel
    return str(there) if catalog.is_path(kernel) and there.is_file() else kernel
