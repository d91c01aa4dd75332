"""The `profile` command: record a kernel or a program with a profiler, and read the trace."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from workbench import __version__, catalog
from workbench.commands.console import console_for, prints_aside, say
from workbench.commands.operators import operator_table, read_operators, write_operators
from workbench.commands.options import OptionError, ProfileOptions
from workbench.commands.result import RunResult, write_result
from workbench.data.clock import folder_of, run_id
from workbench.data.exits import PASSED, stopped_by
from workbench.data.files import write_file
from workbench.data.units import counted
from workbench.profilers import Profiler, ToolRun, preflight, profilers, run_tool
from workbench.profilers.running.call_script import SCRIPT, script_of
from workbench.profilers.running.expected import ending
from workbench.profilers.running.machine import Machine, machine_here
from workbench.profilers.running.torch_recording import OPERATORS
from workbench.profilers.running.workload import MarkedCalls, StepSchedule, Workload, title_of
from workbench.spec import WorkbenchError

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.profiled_kernel import PreparedKernel
    from workbench.commands.traces import KeptTrace
    from workbench.data.trace_summary import TraceSummary

DEFAULT_TOOL = "trace"
DEFAULT_STEPS = StepSchedule(wait=0, warmup=1, active=3)  # of what is left out, where one is given
KERNEL_LIMIT_S = 600.0  # of the calls of one kernel under a profiler
OF_A_KERNEL = ("impl", "sizes", "dtype")
OF_STEPS = ("wait", "warmup", "active")
OF_TRACE = ("shapes", "memory", "stacks")
DATA = ("tree", "trace", "inside")


def run(options: ProfileOptions) -> int:
    """Run the command. Returns its exit code. Raises the errors of the parts."""
    return ProfileCommand(options, console_for(options)).go()


@dataclass
class ProfileCommand:
    """Record one workload with one tool."""

    options: ProfileOptions
    console: Console
    machine: Machine | None = None  # None: this one
    written: list[Path] = field(default_factory=list)

    def go(self) -> int:
        """Run to the end. Returns the exit code: that of the program where it fails; 2 where
        nothing usable was recorded. Raises OptionError, ProfilerError and others, each of which is
        one sentence."""
        check_options(self.options)
        self.machine = self.machine or machine_here(self.options.program[:1])
        if self.options.dry_run:
            return self._dry_run()
        name = self.options.tool or DEFAULT_TOOL
        tool = profilers()[name]
        if self.options.kernel is not None:
            return self._profile_kernel(tool)
        return self._profile_program(tool)

    # A program of the user's

    def _profile_program(self, tool: Profiler) -> int:
        from workbench.commands.run import check_outputs

        assert self.machine is not None
        workload = program_workload(self.options)
        preflight(tool, self.machine, workload)
        tool.argv(self.machine, workload, self.options.out)  # refuses a program that is not there
        check_outputs(self.options)
        folder = folder_of(self.options.out, run_id("profile", workload.title))
        return self._record(tool, workload, folder)

    def _record(
        self,
        tool: Profiler,
        workload: Workload,
        folder: Path,
        prepared: PreparedKernel | None = None,
    ) -> int:
        """Run a tool, read what it left, show and store that. Returns the exit code."""
        assert self.machine is not None
        folder.mkdir(parents=True, exist_ok=True)
        limit_s = KERNEL_LIMIT_S if workload.marked else None
        aside = prints_aside(self.options)
        runs: list[RunResult] = []
        try:
            result = run_tool(tool, self.machine, workload, folder, limit_s, aside)
            try:
                runs.append(self._show(tool, result, prepared))
            except WorkbenchError as error:
                if not result.end.stopped:
                    raise
                say(f"error: {error}", err=True)
        finally:
            if not any(folder.iterdir()):
                folder.rmdir()
        return write_result(self.options, "profile", self._exit_code(result), runs)

    def _show(self, tool: Profiler, result: ToolRun, prepared: PreparedKernel | None) -> RunResult:
        """Print and store what was recorded. Returns the run."""
        from workbench.commands.run import say_page
        from workbench.commands.trace_tables import print_trace
        from workbench.commands.traces import keep
        from workbench.data.trace_summary import summarise

        summary = summarise(tool.parse(result))
        kept = self._kept(summary, result, prepared)
        self.console.print()
        for line in recorded_lines(tool, result):
            self.console.print(line, soft_wrap=True)
        print_trace(self.console, summary, kept.findings)
        operators = result.folder / OPERATORS
        if operators in result.files:
            rows = read_operators(operators)
            more = {"--shapes", "--memory"} & set(result.workload.options)
            if rows and (more or summary.devices or not summary.operations):  # else shown above
                self.console.print(operator_table(rows))
            self.written.append(write_operators(operators, rows))
        for path in (*result.files, *self.written):
            self.console.print(f"written  {path}", soft_wrap=True)
        options = self.options
        page = keep(kept, summary, options.out, options.database, options.metrics)
        say_page(self.console, page)
        return RunResult(kept.run, kept.records, (), kept.findings, kept.profiles, "complete", page)

    def _kept(
        self, summary: TraceSummary, result: ToolRun, prepared: PreparedKernel | None
    ) -> KeptTrace:
        """Return the trace as a run: that of the plain time, where a kernel has one."""
        from workbench.commands.traces import as_run, of_kernel

        if prepared is not None and prepared.run is not None and prepared.begun:
            return of_kernel(summary, prepared.run, prepared.records, prepared.marked.kernel)
        title, command = result.workload.title, self.options.command
        return as_run(summary, "profile", title, command, result.folder.name)

    def _exit_code(self, result: ToolRun) -> int:
        end, title = result.end, result.workload.title
        if end.stopped:
            return stopped_by(end.stopped)
        if end.code:
            status = result.status
            of = f" ({status.exception})" if status is not None and status.exception else ""
            say(
                f"error: {title} ended with {ending(end.code)}{of}; its trace up to there is in "
                f"{result.folder}.",
                err=True,
            )
        return end.code

    # A kernel

    def _profile_kernel(self, tool: Profiler) -> int:
        from workbench.commands.profiled_kernel import prepare_kernel

        assert self.machine is not None
        marked = MarkedCalls(self.options.calls, bool(self.machine.gpu))
        preflight(tool, self.machine, Workload((), str(self.options.kernel), marked=marked))
        prepared = prepare_kernel(self.options, self.machine, self.console)
        if isinstance(prepared, int):
            return prepared
        assert prepared.run is not None
        folder = folder_of(self.options.out, prepared.run.id)
        workload = self._kernel_workload(prepared, folder)
        write_file(folder / SCRIPT, script_of(prepared.call, __version__), make_folder=True)
        self.written.append(folder / SCRIPT)
        self.console.print(prepared.sentence, soft_wrap=True)
        return self._record(tool, workload, folder, prepared)

    def _kernel_workload(self, prepared: PreparedKernel, folder: Path) -> Workload:
        assert self.machine is not None
        return Workload(
            (self.machine.python, str(folder / SCRIPT)),
            prepared.call.title,
            StepSchedule(wait=1, warmup=1, active=1),
            prepared.marked,
            tuple(f"--{name}" for name in OF_TRACE if getattr(self.options, name)),
            self.options.data or "tree",
        )

    # What would be run

    def _dry_run(self) -> int:
        """Print the command line of the tool, or of every tool, and the files that it leaves."""
        assert self.machine is not None
        known = profilers()
        names = [self.options.tool] if self.options.tool else list(known)
        folder = self.options.out / "RUN"
        script = None
        if self.options.kernel is not None:
            from workbench.commands.profiled_kernel import planned_kernel

            prepared = planned_kernel(self.options, self.machine)
            workload = self._kernel_workload(prepared, folder)
            script = script_of(prepared.call, __version__)
        else:
            workload = program_workload(self.options)
        for name in names:
            for line in dry_lines(name, known[name], self.machine, workload, folder):
                self.console.print(line, soft_wrap=True)
        if script is not None:
            self.console.print(f"{folder / SCRIPT}:", style="bold")
            self.console.print(script.rstrip(), soft_wrap=True)
        return PASSED


def check_options(options: ProfileOptions) -> None:
    """Raise OptionError where options contradict each other or name nothing."""
    kernel, program = options.kernel, options.program
    if kernel is not None and program:
        raise OptionError(f"Both the kernel {kernel} and a program are named; name one of them.")
    if kernel is None and not program:
        raise OptionError(
            "Nothing is named to profile; name a kernel (workbench profile softmax), or a program "
            "behind -- (workbench profile -- python step.py)."
        )
    if not all(program[:1]):
        raise OptionError("The program behind -- has no name; write: -- python step.py.")
    for value, name, known in (
        (options.tool, "tool", tuple(profilers())),
        (options.data, "data", DATA),
    ):
        if value is not None and value not in known:
            raise OptionError(catalog.unknown(name, value, known))
    _check_fit(options)


def _check_fit(options: ProfileOptions) -> None:
    """Raise OptionError for an option that has no meaning for this workload or this tool."""
    defaults = {f.name: f.default for f in fields(options)}
    given = [name for name, value in defaults.items() if getattr(options, name) != value]
    tool = options.tool or DEFAULT_TOOL

    def refuse(names: Sequence[str], reason: str) -> None:
        for name in names:
            if name in given:
                raise OptionError(f"--{name} {reason}; leave it out.")

    if options.kernel is None:
        refuse((*OF_A_KERNEL, "calls"), "is of a kernel, and a program is named")
    else:
        refuse(OF_STEPS, "is of a program with steps, and a kernel is named")
    if tool == "proton":
        refuse((*OF_TRACE, *OF_STEPS), "is of torch.profiler, and the tool is proton")
    else:
        refuse(("data",), f"is of proton, and the tool is {tool}")


def program_workload(options: ProfileOptions) -> Workload:
    """Return the workload of a program."""
    schedule = None
    if any(getattr(options, name) is not None for name in OF_STEPS):
        known = {n: v for n in OF_STEPS if (v := getattr(options, n)) is not None}
        schedule = replace(DEFAULT_STEPS, **known)
    return Workload(
        options.program,
        title_of(options.program),
        schedule,
        options=tuple(f"--{name}" for name in OF_TRACE if getattr(options, name)),
        data=options.data or "tree",
    )


def dry_lines(
    name: str, tool: Profiler, machine: Machine, workload: Workload, folder: Path
) -> list[str]:
    """Return what `--dry-run` says of one tool. Raises ProgramError."""
    lines = [f"{name} ({tool.title})"]
    lines.append(f"  runs   {shlex.join(tool.argv(machine, workload, folder))}")
    lines += [f"  reads  {path}" for path in tool.reads(workload, folder)]
    try:
        preflight(tool, machine, workload)
    except WorkbenchError as error:
        lines.append(f"  not here: {error}")
    return lines


def recorded_lines(tool: Profiler, result: ToolRun) -> list[str]:
    """Return which part of the workload was recorded, in at most one line."""
    status, workload = result.status, result.workload
    if status is None:
        return []
    if workload.marked:
        return [f"recorded: {counted(workload.marked.calls, 'call')} of {workload.title}"]
    if status.recorded == "steps" and workload.schedule is not None:
        first = workload.schedule.wait + workload.schedule.warmup
        last = min(status.steps, first + workload.schedule.active - 1)
        end = ", in which it ended" if last == status.steps else ""
        return [f"recorded: steps {first} to {last} of {max(status.steps, last + 1)}{end}"]
    never = "; it never called workbench.step()" if workload.schedule is not None else ""
    extent = f"{workload.title} until it was stopped" if result.end.stopped else workload.title
    whole = "" if result.end.stopped else "the whole of "
    return [f"recorded: {whole}{extent}{never}"]
