"""What a user asked, checked before any work: kernels, sizes, budgets, places to write."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from workbench import catalog
from workbench.backend.protocol import Backend, Problem
from workbench.device import hardware
from workbench.spec import Impl, Spec, sizes_text
from workbench.sweeps import Sweep
from workbench.tuner.first_pass import Hunt
from workbench.tuner.search import Budget, Strategy
from workbench.tuner.space import Plan

if TYPE_CHECKING:
    from workbench.backend.prewarm import Ahead
    from workbench.measurement.protocol import Protocol

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
    example = sizes_text(spec.bench[0])
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
    if why := spec.refuse(sizes):
        raise SessionError(f"{why}; write --sizes {example}.")
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


def backend_for(
    device: str | None, repository: Path, ahead: Ahead | None = None, rules: Protocol | None = None
) -> Backend:
    """A named device is compiled for and predicted, whatever GPU is here. With none named it is
    the GPU that is here, measured by `rules` (None: the usual ones), and `h200` where there is
    none. Raises SessionError."""
    from workbench.backend.live import Live
    from workbench.backend.offline import Offline

    ready()
    if device is None and (ahead is not None or gpu_present()):
        return Live(repository, rules=rules, ahead=ahead)
    try:
        return Offline(hardware.device_named(device or DEFAULT_TARGET), repository)
    except hardware.UnknownDevice as error:
        raise SessionError(str(error)) from error


def on_paper(device: str | None, repository: Path) -> Backend:
    """For what is only worked out: any device that is known by its figures, one that Triton does
    not compile for too. Raises SessionError."""
    from workbench.backend.offline import Offline

    if device is None and gpu_present():
        return backend_for(None, repository)
    try:
        return Offline(hardware.described(device or DEFAULT_TARGET), repository)
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
