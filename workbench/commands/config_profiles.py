"""`--also profile` of `sweep`, `measure` and `compare`: profile configs whose times are known.

Each config is called once more, in a process of its own, under the tool that `workbench profile`
would choose. What came back is stored with the run whose time it explains; no time changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench import __version__, catalog
from workbench.commands.console import say
from workbench.commands.field import RunOutput
from workbench.commands.profile import ProfileOptions
from workbench.commands.result import RunResult
from workbench.commands.stored import stored_runs
from workbench.data.clock import folder_of
from workbench.data.events import EventLog
from workbench.data.files import write_file
from workbench.data.interrupts import Interrupts, stop_by
from workbench.data.record import Outcome, Profile, Record, Run
from workbench.data.store import Store
from workbench.spec import Impl, WorkbenchError
from workbench.traces.profilers import ProfilerError, profilers, run_tool
from workbench.traces.profilers.running.call_script import SCRIPT, OneCall, script_of
from workbench.traces.profilers.running.machine import Machine, machine_here
from workbench.traces.profilers.running.workload import (
    CALL_LIMIT_S,
    CALL_STEPS,
    MarkedCalls,
    Workload,
)

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class TimedConfig:
    """A config whose plain time is known, and the file that declares it."""

    kernel: str  # name, dotted module, or path
    record: Record
    impl: Impl

    @property
    def title(self) -> str:
        """Return Impl and config in one line."""
        return f"{self.impl.title} {self.record.case.label.partition(' ')[2]}".rstrip()


def timed_configs(kernel: str, records: Sequence[Outcome], impls: Sequence[Impl]) -> list[
    TimedConfig
]:  # fmt: skip
    """Return the configs of these Impls that have a measured time; no library's."""
    known = {impl.name: impl for impl in impls if impl.backend == "triton"}
    return [
        TimedConfig(kernel, record, known[record.case.impl])
        for record in records
        if isinstance(record, Record) and record.is_measured and record.case.impl in known
    ]


def profile_run(
    configs: Sequence[TimedConfig],
    kept: RunResult,
    options: RunOutput,
    console: Console,
    titles: Mapping[str, str] | None = None,
) -> tuple[tuple[Profile, ...], bool]:
    """Profile configs one after the other, store what came back of each with the run, and print it.
    `titles` are names by the outcomes' keys.

    Returns the profiles, and whether Ctrl-C ended it early. A tool that gives nothing costs its
    config one line on standard error.
    """
    from workbench.commands.profile_command import chosen_tool

    machine, profiles, stopped = machine_here(), [], False
    if not configs:
        return (), False
    tool, sentence = chosen_tool(ProfileOptions(target=(configs[0].kernel,)), machine)
    if sentence:
        console.print(sentence, soft_wrap=True)
    for number, config in enumerate(configs, 1):
        console.print(f"profiling {config.title} with {tool}", soft_wrap=True)
        folder = folder_of(options.out, kept.run.id) / f"profile_{number}"
        try:
            of_config = _profile_config(config, tool, machine, folder, kept.run)
            _store(of_config, kept, options.database)
            profiles += of_config
        except KeyboardInterrupt:
            stopped = True
            break
        except WorkbenchError as error:
            say(f"error: {config.title} is not profiled: {error}", err=True)
    _print(console, profiles, kept.outcomes, titles)
    return tuple(profiles), stopped


def _profile_config(
    config: TimedConfig, tool: str, machine: Machine, folder: Path, run: Run
) -> list[Profile]:
    """Return the profiles of one config by a tool, or by the one that stands in for it. Raises
    ProfilerError, ReadError or ChildError, and KeyboardInterrupt after Ctrl-C."""
    try:
        return _record_profiles(config, tool, machine, folder, run)
    except ProfilerError as error:
        instead = profilers()[tool].instead
        if not instead:
            raise
        say(f"{tool} gave nothing usable ({error}); {instead} records {config.title}.", err=True)
        return _record_profiles(config, instead, machine, folder, run)


def _record_profiles(
    config: TimedConfig, name: str, machine: Machine, folder: Path, run: Run
) -> list[Profile]:
    from workbench.commands.profile_counters import add_default_counters
    from workbench.commands.traces import known_of_calls, profiles_of
    from workbench.traces.trace_summary import summarise

    tool, case = profilers()[name], config.record.case
    call = OneCall(
        catalog.absolute(config.kernel), config.impl.title, config.impl.name, case.config,
        case.sizes, case.dtype, machine.gpu, tool.calls, config.impl.mutates,
    )  # fmt: skip
    write_file(folder / SCRIPT, script_of(call, __version__), make_folder=True)
    marked = MarkedCalls(tool.calls, True)
    words = machine.python, str(folder / SCRIPT)
    workload = Workload(words, config.title, CALL_STEPS, marked)
    workload = add_default_counters(workload, name, machine.gpu)
    result = run_tool(tool, machine, workload, folder, CALL_LIMIT_S, aside=True)
    if result.end.stop_signal:
        stop_by(result.end.stop_signal)
    about = {
        "kernel": case.kernel, "impl": case.impl, "config": case.config, "sizes": case.sizes,
        "dtype": case.dtype, "outcome": config.record.key,
    }  # fmt: skip
    summary = summarise(tool.parse(result))
    known = known_of_calls(summary.trace, [config.record], tool.calls)
    profiles = profiles_of(summary, run, known)
    return [replace(profile, **about) for profile in profiles]  # type: ignore[arg-type]


def _store(profiles: Sequence[Profile], kept: RunResult, database: str | None) -> None:
    if not profiles:
        return
    with (
        stored_runs(database, reading=False) as history,
        Interrupts() as interrupts,
        EventLog(kept.events) as log,
    ):
        Store(history, interrupts, log, kept.run).keep(*profiles)


def _print(
    console: Console,
    profiles: Sequence[Profile],
    outcomes: Sequence[Outcome],
    titles: Mapping[str, str] | None,
) -> None:
    """Print what limits each config, and its metrics, in one table."""
    from workbench.reports.figures.profiled import profiled_table
    from workbench.reports.tables import text_table

    shown = profiled_table(profiles, outcomes, titles)
    if shown is None:
        return
    table = text_table(shown.heads, shown.rows, right=(), whole=shown.heads[:1])
    table.columns[0].style = "dim"
    console.print()
    console.print(table)
    for note in shown.notes:
        console.print(note, soft_wrap=True)
