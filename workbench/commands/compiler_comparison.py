"""Compare what two versions of Triton make of tuned and default configs, for `compare --triton`.

No GPU is needed: each version compiles in processes of its own. Where one is here, what is
suspected to be worse on it is measured.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
from workbench.backend.version_timing import NoVersionTimes, VersionTimer, VersionTimes
from workbench.code.code_pair import ORDER, CodePair
from workbench.commands.code_configs import ChosenConfig, ConfigChooser, NotCompiled, devices_of
from workbench.commands.code_run import CodeRun, new_code_run, stored_code
from workbench.commands.code_table import finish
from workbench.commands.console import say
from workbench.commands.operands import Operand, config_operand
from workbench.commands.options import CommandError, CompareOptions
from workbench.commands.result import write_comparison
from workbench.commands.run import check_outputs, gpu_present, require_triton
from workbench.commands.stored import stored_runs
from workbench.commands.version_verdicts import VersionVerdicts, run_of_verdicts
from workbench.data.compiled_code import CodeVersions
from workbench.data.database import History
from workbench.data.events import RunState
from workbench.data.tuned_cache import Tuned, default_path
from workbench.data.units import amount
from workbench.device.hardware import Device
from workbench.reports.versions import code_result, measured_text

if TYPE_CHECKING:
    from rich.console import Console


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
        return _installed(text, places[-1])
    raise CommandError(
        f"Triton {text} is not here (installed is {installed_version() or 'none'}); get it with: "
        f"pip install --no-deps --target {places[0]} triton=={text}"
    )


def _is_version(text: str) -> bool:
    return text[:1].isdigit() and all(c.isalnum() or c in ".+" for c in text)


def _agrees(version: str, folder: Path) -> bool:
    say(f"Triton {version} is not here. Install it into {folder} (some 600 MB)? [y/N]", err=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _installed(version: str, folder: Path) -> Path:
    """Install a version into a folder of its own. Raises CommandError where pip fails."""
    words = ["-m", "pip", "install", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command = [sys.executable, *words, "--target", str(folder), f"triton=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise CommandError(f"pip cannot install triton=={version} ({last.rstrip('.')}).")
    return folder


def is_interactive() -> bool:
    """Return whether a person can answer: both streams are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


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

    def go(self) -> int:
        """Run to the end. Returns the exit code of the worst: 1 where something was measured to be
        slower, 2 where something does not compile any more, 3 where something is suspected to be
        worse, 0, or 130 after Ctrl-C. Raises CommandError, CompilerError, CatalogError or
        UnknownDevice."""
        options = self.options
        if len(options.kernel) != 1 and (options.impl or options.sizes):
            raise CommandError("--impl and --sizes are of one kernel; name it with --kernel.")
        devices = devices_of(options.device)
        chooser = self._chooser()
        check_outputs(options)
        require_triton()
        assert options.triton is not None
        folders = [folder_of_version(text, is_interactive()) for text in options.triton]
        with Compilers(folders) as pools:
            compilers = pools.versions()
            if compilers[0].key == compilers[1].key:
                raise CommandError(
                    f"{options.triton[0]} and {options.triton[1]} are one compiler, "
                    f"{compilers[0].title}; name two."
                )
            with stored_runs(options.database, reading=False) as history:
                return self._go(pools, compilers, chooser, devices, history)

    def _chooser(self) -> ConfigChooser:
        options = self.options
        operand: Operand | None = None
        if options.impl:
            operand = config_operand(options.impl, catalog.spec_of(options.kernel[0]))
        tuned = Tuned.load(self.tuned_path or default_path())
        return ConfigChooser(options.dtype, tuned, options.sizes, operand)

    def _go(
        self,
        pools: Compilers,
        compilers: Sequence[Compiler],
        chooser: ConfigChooser,
        devices: Sequence[Device],
        history: History,
    ) -> int:
        options = self.options
        kernels = list(options.kernel) or catalog.kernel_names()
        every = [config for kernel in kernels for config in chooser.kernel_configs(kernel, devices)]
        configs = [each for each in every if isinstance(each, ChosenConfig)]
        self._say_begin(compilers, configs, devices)
        versions = CodeVersions(
            compilers[0].title, compilers[1].title, tuple(device.name for device in devices),
            options.threshold, len(configs), left_out=tuple(left_out(every)),
        )  # fmt: skip
        cases = [each.job.case for each in configs]
        with stored_code(
            options, new_code_run(options, "compare", cases, versions, compilers), history
        ) as stored:
            self._compare(stored, pools, compilers, configs)
        changes, run = finish(self.console, stored)
        return write_comparison(options, "compare", code_result(changes), [run])

    def _compare(
        self,
        stored: CodeRun,
        pools: Compilers,
        compilers: Sequence[Compiler],
        configs: Sequence[ChosenConfig],
    ) -> None:
        """Compare each config when both versions have compiled it; then measure what is suspected
        on the GPU that is here."""
        tasks = [
            (
                CompileTask(0, compilers[0], each.job, each.device),
                CompileTask(1, compilers[1], each.job, each.device),
            )
            for each in configs
        ]
        known = stored.find_known([task for both in tasks for task in both])
        if known:
            many = f"{len(known)} of {2 * len(tasks)} are compiled already"
            self.console.print(f"{many}, by {stored.store.history.name}", soft_wrap=True)
        pairs: list[CodePair] = []
        jobs: dict[str, FactsJob] = {}
        for n, pair in stored.pairs(pools, tasks, known):
            pairs.append(pair)
            jobs[pair.after.key] = configs[n].job
            self._say_progress(pairs, configs)
        worse = [pair for pair in pairs if pair.word == "WORSE"]
        if worse and self.has_gpu():
            self._measure(stored, worse, jobs, compilers)

    def _measure(
        self,
        stored: CodeRun,
        worse: Sequence[CodePair],
        jobs: Mapping[str, FactsJob],
        compilers: Sequence[Compiler],
    ) -> None:
        """Store the verdict of the GPU that is here on each pair of its device, at once. After
        Ctrl-C those so far stay."""
        folders = [compiler.folder for compiler in compilers]
        with self.timer(folders, lambda text: say(text, err=True)) as timer:
            device = timer.device()
            todo = [pair for pair in worse if device and pair.case.device == device.name]
            if device is None or timer.environment is None or not todo:
                return
            mine = [jobs[pair.after.key] for pair in todo]
            run = run_of_verdicts(self.options, device, timer.environment, mine, compilers)
            own = replace(stored.store)  # for the second run: `begin` puts its run into the store
            verdicts = VersionVerdicts(own, run, compilers)
            state: RunState = "interrupted"
            try:
                for pair, job in zip(todo, mine, strict=True):
                    result = timer.compare(job, self.options.threshold)
                    verdicts.keep(pair, job, result)
                    known = _with_result(pair, result)
                    stored.keep_verdict(pair, known.measured, known.unmeasured)
                    self._say_measured(known)
                state = "complete"
            finally:
                verdicts.end(state)
                self._say_stored(verdicts)

    def _say_measured(self, pair: CodePair) -> None:
        name = f"{pair.case.kernel}.{pair.case.impl}"
        self.console.print(f"measured  {name}: {measured_text(pair)}", soft_wrap=True)

    def _say_stored(self, verdicts: VersionVerdicts) -> None:
        if verdicts.comparisons:
            many = amount(len(verdicts.comparisons), "verdict")
            again = f"`workbench report compare {verdicts.run.id}` draws them again"
            self.console.print(f"{many} stored; {again}", soft_wrap=True)

    def _say_begin(
        self,
        compilers: Sequence[Compiler],
        configs: Sequence[ChosenConfig],
        devices: Sequence[Device],
    ) -> None:
        tuned = sum(bool(each.job.tuning_date) for each in configs)
        self.console.print(
            f"{compilers[0].title} and {compilers[1].title}: {amount(len(configs), 'config')} "
            f"({tuned} tuned), {amount(len(devices), 'device')}; nothing runs without a GPU",
            style="bold",
            soft_wrap=True,
        )

    def _say_progress(self, pairs: Sequence[CodePair], configs: Sequence[ChosenConfig]) -> None:
        """Print a line when all configs of a kernel are compiled."""
        kernel = pairs[-1].case.kernel
        mine = [pair for pair in pairs if pair.case.kernel == kernel]
        if len(mine) == sum(each.job.case.kernel == kernel for each in configs):
            counts = Counter(pair.word for pair in mine)
            words = ", ".join(f"{counts[word]} {word}" for word in ORDER if counts[word])
            self.console.print(f"{len(pairs)} of {len(configs)}  {kernel}: {words}", soft_wrap=True)


def _with_result(pair: CodePair, result: VersionTimes | NoVersionTimes) -> CodePair:
    if isinstance(result, NoVersionTimes):
        return replace(pair, unmeasured=result.reason)
    return replace(pair, measured=result.verdict)


def left_out(every: Sequence[ChosenConfig | NotCompiled]) -> list[str]:
    """Return what is not compiled, with its reason."""
    return [f"{each.what}: {each.reason}" for each in every if isinstance(each, NotCompiled)]
