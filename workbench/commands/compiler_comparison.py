"""Compare what two versions of Triton make of tuned and default configs, for `compare --triton`.

No GPU is needed: each version compiles in processes of its own. Where one is here, what is
suspected to be worse on it is measured.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench import catalog
from workbench.backend.compilers import (
    Compiler,
    Compilers,
    CompileTask,
    FactsJob,
    folders_beside,
    installed_version,
)
from workbench.backend.protocol import Problem
from workbench.backend.version_timing import RULES, NoVersionTimes, VersionTimer, VersionTimes
from workbench.code.compared_pair import ORDER, ComparedPair, compiled_change
from workbench.commands.code_configs import ChosenConfig, ConfigChooser, NotCompiled, devices_of
from workbench.commands.code_run import CodeRun, new_code_run, stored_code
from workbench.commands.code_table import finish
from workbench.commands.comparison import comparison_of
from workbench.commands.console import say
from workbench.commands.operands import Operand, config_operand
from workbench.commands.options import CommandError
from workbench.commands.pair_results import code_result
from workbench.commands.result import write_comparison
from workbench.commands.run import check_outputs, gpu_present, require_triton
from workbench.commands.stored import stored_runs
from workbench.data.compiled_code import CodeVersions
from workbench.data.database import History
from workbench.data.record import Run, key_of
from workbench.data.tuned_cache import Tuned, default_path
from workbench.data.units import amount
from workbench.device import hardware
from workbench.device.hardware import Device
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.reports.pair_texts import measured_text
from workbench.tuner.space import RecordFactory

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.compare import CompareOptions


# The versions


def folder_of_version(text: str, interactive: bool = False) -> Path | None:
    """Return the folder that holds a version of Triton, given by its number or by that folder; None
    for the installed one. An `interactive` user is asked whether to install one that is not there.
    Raises CommandError where there is none."""
    path = Path(text)
    if "/" in text or (text and (path / "triton").is_dir()):
        if not (path / "triton" / "__init__.py").is_file():
            raise CommandError(
                f"{text} holds no triton/__init__.py; name the folder that `pip install --no-deps "
                "--target DIR triton==VERSION` fills."
            )
        return path.resolve()
    if not _is_version(text):
        raise CommandError(
            f"{text!r} is not a version; write --triton 3.6.0 3.9.0, or two folders."
        )
    if text == installed_version():
        return None
    places = folders_beside(text)
    for place in places:
        if (place / "triton" / "__init__.py").is_file():
            return place.resolve()
    if interactive and _agrees(text, places[-1]):
        return _install(text, places[-1])
    raise CommandError(
        f"Triton {text} is not here (installed is {installed_version() or 'none'}); get it with: "
        f"pip install --no-deps --target {places[0]} triton=={text}"
    )


def _is_version(text: str) -> bool:
    return text[:1].isdigit() and all(c.isalnum() or c in ".+" for c in text)


def _agrees(version: str, folder: Path) -> bool:
    say(f"Triton {version} is not here. Install it into {folder} (some 600 MB)? [y/N]", err=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _install(version: str, folder: Path) -> Path:
    """Install a version into a folder of its own. Raises CommandError where pip fails."""
    words = ["-m", "pip", "install", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command = [sys.executable, *words, "--target", str(folder), f"triton=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise CommandError(f"pip cannot install triton=={version} ({last.rstrip('.')}).")
    return folder


# The command


def compare_compilers(options: CompareOptions, console: Console) -> int:
    """Compare the versions of `--triton`. Returns the exit code; see `CompilerComparison.go`."""
    return CompilerComparison(options, console).go()


@dataclass
class CompilerComparison:
    """One comparison of two compilers from the options to the page."""

    options: CompareOptions
    console: Console
    tuned_path: Path | None = None  # None: the default tuned cache
    has_gpu: Callable[[], bool] = gpu_present
    timer: Callable[..., VersionTimer] = VersionTimer
    devices: Sequence[Device] = ()
    compilers: Sequence[Compiler] = ()
    configs: Sequence[ChosenConfig] = ()

    def go(self) -> int:
        """Run to the end. Returns the exit code of the worst: 1 where something was measured to be
        slower, 2 where something does not compile any more, 3 where something is suspected to be
        worse, 0, or 130 after Ctrl-C. Raises CommandError, CompilerError, CatalogError or
        UnknownDevice."""
        options = self.options
        if len(options.kernel) != 1 and (options.impl or options.sizes):
            raise CommandError("--impl and --sizes are of one kernel; name it with --kernel.")
        self.devices = devices_of(options.device)
        chooser = self._chooser()
        check_outputs(options)
        require_triton()
        assert options.triton is not None
        interactive = sys.stdin.isatty() and sys.stderr.isatty()  # a person can answer
        folders = [folder_of_version(text, interactive) for text in options.triton]
        with Compilers(folders) as pools:
            self.compilers = pools.versions()
            if self.compilers[0].key == self.compilers[1].key:
                raise CommandError(
                    f"{options.triton[0]} and {options.triton[1]} are one compiler, "
                    f"{self.compilers[0].title}; name two."
                )
            with (
                stored_runs(options.database, reading=False) as history,
                self.timer(folders, lambda text: say(text, err=True)) as timer,
            ):
                return self._go(pools, chooser, history, timer)

    def _chooser(self) -> ConfigChooser:
        options = self.options
        operand: Operand | None = None
        if options.impl:
            operand = config_operand(options.impl, catalog.spec_of(options.kernel[0]))
        tuned = Tuned.load(self.tuned_path or default_path())
        return ConfigChooser(options.dtype, tuned, options.sizes, operand)

    def _go(
        self, pools: Compilers, chooser: ConfigChooser, history: History, timer: VersionTimer
    ) -> int:
        kernels = list(self.options.kernel) or catalog.kernel_names()
        every = [each for name in kernels for each in chooser.kernel_configs(name, self.devices)]
        self.configs = [each for each in every if isinstance(each, ChosenConfig)]
        self._say_begin()
        names = [device.name for device in self.devices]
        gpu = timer.device() if self.has_gpu() else None
        if timer.environment is None or (gpu and gpu.name not in names):
            gpu = None
            timer.close()
        with stored_code(self.options, self._run(left_out(every), gpu, timer), history) as stored:
            pairs = self._compare(stored, pools)
            if gpu:
                worse = [p for p in pairs if p.word == "WORSE" and p.case.device == gpu.name]
                self._measure(stored, worse, timer)
        changes, result = finish(self.console, stored)
        return write_comparison(self.options, "compare", code_result(changes), [result])

    def _run(self, reasons: Sequence[str], gpu: Device | None, timer: VersionTimer) -> Run:
        """Return the run; with the environment and the ceilings of the GPU that is to measure."""
        options, jobs = self.options, [each.job for each in self.configs]
        before, after = (compiler.title for compiler in self.compilers)
        names = tuple(device.name for device in self.devices)
        at = options.threshold, len(jobs)
        versions = CodeVersions(before, after, names, *at, left_out=tuple(reasons))
        about = options, "compare", [job.case for job in jobs], versions, self.compilers
        run = new_code_run(*about, environment=timer.environment if gpu else None)
        source = ", ".join(dict.fromkeys(job.kernel for job in jobs))
        ceilings = hardware.ceilings(gpu, options.dtype) if gpu else {}
        return replace(run, ceilings=ceilings, source=source)

    def _compare(self, stored: CodeRun, pools: Compilers) -> list[ComparedPair]:
        """Return the pair of each config, which is stored when both versions have compiled it."""
        before, after = self.compilers
        tasks = [
            (
                CompileTask(0, before, each.job, each.device),
                CompileTask(1, after, each.job, each.device),
            )
            for each in self.configs
        ]
        known = stored.find_known([task for both in tasks for task in both])
        if known:
            many = f"{len(known)} of {2 * len(tasks)} are compiled already"
            self.console.print(f"{many}, by {stored.store.history.name}", soft_wrap=True)
        pairs: list[ComparedPair] = []
        for _, pair in stored.pairs(pools, tasks, known):
            pairs.append(pair)
            self._say_progress(pairs)
        return pairs

    def _measure(self, stored: CodeRun, todo: Sequence[ComparedPair], timer: VersionTimer) -> None:
        """Store the verdict of the GPU on each of these pairs at once. After Ctrl-C those so far
        stay."""
        jobs = {key_of(each.job.case): each.job for each in self.configs}
        many = 0
        try:
            for pair in todo:
                job = jobs[key_of(pair.case)]
                result = timer.compare(job, self.options.threshold)
                timed = keep_times(stored, pair, job, result, self.compilers)
                many += 1
                name = f"{pair.case.kernel}.{pair.case.impl}"
                text = measured_text(replace(pair, timed_pair=timed))
                self.console.print(f"measured  {name}: {text}", soft_wrap=True)
        finally:
            if many:
                again = f"`workbench report compare {stored.run.id}` draws them again"
                self.console.print(f"{amount(many, 'verdict')} stored; {again}", soft_wrap=True)

    def _say_begin(self) -> None:
        titles = " and ".join(compiler.title for compiler in self.compilers)
        tuned = sum(bool(each.job.tuning_date) for each in self.configs)
        self.console.print(
            f"{titles}: {amount(len(self.configs), 'config')} ({tuned} tuned), "
            f"{amount(len(self.devices), 'device')}; nothing runs without a GPU",
            style="bold",
            soft_wrap=True,
        )

    def _say_progress(self, pairs: Sequence[ComparedPair]) -> None:
        """Print a line when all configs of a kernel are compiled."""
        kernel, of = pairs[-1].case.kernel, len(self.configs)
        mine = [pair for pair in pairs if pair.case.kernel == kernel]
        if len(mine) == sum(each.job.case.kernel == kernel for each in self.configs):
            counts = Counter(pair.word for pair in mine)
            words = ", ".join(f"{counts[word]} {word}" for word in ORDER if counts[word])
            self.console.print(f"{len(pairs)} of {of}  {kernel}: {words}", soft_wrap=True)


def keep_times(
    stored: CodeRun,
    pair: ComparedPair,
    job: FactsJob,
    result: VersionTimes | NoVersionTimes,
    compilers: Sequence[Compiler],
) -> ComparedPair:
    """Store the times of both versions, with the resources of their code, and the verdict on them.
    Returns them."""
    problem = Problem(job.kernel, catalog.spec_of(job.kernel), job.case.sizes, job.case.dtype)
    factory = RecordFactory(stored.run, problem, RULES.id)
    both = []
    for place, compiled in enumerate(pair.outcomes):
        key = key_of(job.case, compiler=compilers[place].key, protocol=RULES.id)
        candidate = Candidate(job.case, key, None, None)  # type: ignore[arg-type]
        outcome = factory.outcome(candidate, _operand_result(result, place), "compare", None)
        both.append(stored.keep(replace(outcome, resources=compiled.resources)))
    timed, reason = (
        (result.verdict, "") if isinstance(result, VersionTimes) else (None, result.reason)
    )
    operands = list(zip(both, pair.names, strict=True))
    entry = replace(comparison_of(stored.run, operands, timed, RULES.looks), reason=reason)
    stored.keep_comparison(entry)
    return ComparedPair(entry, both[0], both[1], compiled_change(both[0], both[1]))


def _operand_result(result: VersionTimes | NoVersionTimes, place: int) -> Timed | Refusal:
    """Return what became of one version."""
    if isinstance(result, VersionTimes):
        return (result.before, result.after)[place]
    if result.place in (None, place):
        return Refusal("measure", result.reason)
    return Refusal("measure", "the other version could not run", own=False)


def left_out(every: Sequence[ChosenConfig | NotCompiled]) -> list[str]:
    """Return what is not compiled, with its reason."""
    return [f"{each.what}: {each.reason}" for each in every if isinstance(each, NotCompiled)]
