"""Profile a kernel or a program with a tool, and store and print what it recorded."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from workbench import __version__, catalog
from workbench.commands.console import prints_aside, say
from workbench.commands.field import alternatives
from workbench.commands.operators import operator_table, read_operators, write_operators
from workbench.commands.options import OptionError
from workbench.commands.profile_counters import (
    add_default_counters,
    checks_table,
    counter_groups,
    ncu_counters,
    print_counters,
)
from workbench.commands.profiled_kernel import capture, capture_workload, trace_path, words_of
from workbench.commands.result import RunResult, write_result
from workbench.data.clock import folder_of, run_id
from workbench.data.exits import COULD_NOT_RUN, PASSED, stopped_by
from workbench.data.files import write_file
from workbench.data.units import amount, duration
from workbench.spec import WorkbenchError
from workbench.traces.profilers import (
    Profiler,
    ProfilerError,
    RecordingStatus,
    ToolRun,
    preflight,
    profilers,
    refusal,
    run_tool,
)
from workbench.traces.profilers.gputrace import NAME as GPUTRACE
from workbench.traces.profilers.ncu import SETS, explain_set
from workbench.traces.profilers.running.call_script import SCRIPT, script_of
from workbench.traces.profilers.running.expected import ending
from workbench.traces.profilers.running.machine import CAPTURE, Machine, machine_here
from workbench.traces.profilers.running.torch_recording import OPERATORS
from workbench.traces.profilers.running.workload import (
    CALL_LIMIT_S,
    CALL_STEPS,
    MarkedCalls,
    ProgramError,
    StepSchedule,
    Workload,
    title_of,
)
from workbench.traces.profilers.sanitizer import results_of
from workbench.traces.profilers.xctrace import INSTRUMENTS, calls_of_kernel, record_line
from workbench.traces.readers.inputs.source import ReadError

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.profile import ProfileOptions
    from workbench.commands.profiled_kernel import PreparedKernel
    from workbench.commands.traces import KeptTrace
    from workbench.traces.trace import Trace
    from workbench.traces.trace_summary import TraceSummary


DEFAULT_TOOL = "trace"
KERNEL_OPTIONS = ("--impl", "--sizes", "--dtype", "--calls")
# Options that some tools alone have.
TOOLS_BY_OPTION = {"--with": ("trace",), "--steps": ("trace",), "--metrics": ("ncu", "rocprofv3")}
# Keys of --tool-option, with the tool and its values.
TOOL_OPTIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "data": ("proton", ("tree", "trace", "inside")),
    "set": ("ncu", SETS),
    "checks": ("sanitizer", ("all",)),
    "instrument": ("xctrace", tuple(INSTRUMENTS)),
}
LEAST_STEPS = 2  # with and without the profiler, to compare their times
TITLES = {"trace": "torch.profiler"}


@dataclass
class ProfileCommand:
    """Record one workload with one tool."""

    options: ProfileOptions
    console: Console
    machine: Machine | None = None  # None: this one
    output_files: list[Path] = field(default_factory=list)
    name: str = DEFAULT_TOOL
    trace: Trace | None = None  # that was shown
    sentences: set[str] = field(default_factory=set)

    def go(self) -> int:
        """Run to the end. Returns the exit code: that of the program where it fails; 2 where
        nothing usable was recorded. Raises OptionError, ProfilerError and others, each of which is
        one sentence."""
        check_options(self.options)
        if self.options.list_metrics:
            return print_counters(self.options, self.console)
        self.machine = self.machine or machine_here(self.options.program[:1])
        if self.options.dry_run:
            return self._dry_run()
        self.name, sentence = chosen_tool(self.options, self.machine)
        if sentence:
            self.console.print(sentence, soft_wrap=True)
        tool = profilers()[self.name]
        if self.options.kernel is not None and self.name == GPUTRACE:
            return capture(self.options, self.machine, self.console)
        if self.options.kernel is not None:
            return self._profile_kernel(tool)
        return self._profile_program(tool)

    # A program of the user's

    def _profile_program(self, tool: Profiler) -> int:
        from workbench.commands.run import check_outputs

        assert self.machine is not None
        workload = self._tool_workload(program_workload(self.options), self.name)
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
        limit_s = CALL_LIMIT_S if workload.marks else None
        aside = prints_aside(self.options)
        runs: list[RunResult] = []
        try:
            result = run_tool(tool, self.machine, workload, folder, limit_s, aside)
            try:
                runs.append(self._show(tool, result, prepared))
            except WorkbenchError as error:
                if not result.end.stop_signal:
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
        from workbench.traces.trace_summary import summarise

        self.trace = tool.parse(result)
        summary = summarise(self.trace)
        one = self._trace_run(summary, result, prepared)
        self.console.print()
        for line in [*recorded_lines(tool, result), *unreadable_lines(result.status)]:
            self.console.print(line, soft_wrap=True)
        print_trace(self.console, summary, one.findings)
        if tool.code is not None:
            self.console.print(checks_table(results_of(result.folder)))
        operators = result.folder / OPERATORS
        if operators in result.files:
            rows = read_operators(operators)
            more = {"--shapes", "--memory"} & set(result.workload.options)
            if rows and (more or summary.devices or not summary.operations):  # else shown above
                self.console.print(operator_table(rows))
            self.output_files.append(write_operators(operators, rows))
        for path in (*result.files, *self.output_files):
            self.console.print(f"written  {path}", soft_wrap=True)
        options = self.options
        if prepared is not None:  # printed before; the page has to say it, too
            summary.trace.notes.insert(0, prepared.sentence)
        page = keep(one, summary, options.out, options.database, options.events_file)
        say_page(self.console, page)
        return RunResult(one.run, one.records, (), one.findings, one.profiles, "complete", page)

    def _trace_run(
        self, summary: TraceSummary, result: ToolRun, prepared: PreparedKernel | None
    ) -> KeptTrace:
        """Return the trace as a run: that of the plain time, where a kernel has one."""
        from workbench.commands.traces import kernel_run, trace_run

        if prepared is not None and prepared.run is not None and prepared.has_begun:
            marked = prepared.marks
            call = marked.kernel, marked.calls, marked.launches
            return kernel_run(summary, prepared.run, prepared.records, *call)
        title, command = result.workload.title, self.options.command
        return trace_run(summary, "profile", title, command, result.folder.name)

    def _exit_code(self, result: ToolRun) -> int:
        end, title = result.end, result.workload.title
        if end.stop_signal:
            return stopped_by(end.stop_signal)
        verdict = profilers()[self.name].code
        if verdict is not None and self.trace is not None:
            return verdict(result)
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
        assert self.machine is not None
        calls = self.options.calls or tool.calls
        prepared = self._prepare(tool, calls)
        if isinstance(prepared, int):
            return prepared
        self.console.print(prepared.sentence, soft_wrap=True)
        try:
            return self._record_calls(tool, prepared.change_calls(calls))
        except (ProfilerError, ReadError) as error:
            if not tool.instead:
                raise
            say(f"error: {error}", err=True)
        say(f"{self.name} gave nothing usable, so {tool.instead} records the kernel.", err=True)
        self.name = tool.instead
        tool = profilers()[self.name]
        code = self._record_calls(tool, prepared.change_calls(self.options.calls or tool.calls))
        return COULD_NOT_RUN if self.options.tool else code

    def _prepare(self, tool: Profiler, calls: int) -> PreparedKernel | int:
        """Return the kernel, checked and timed without a tool, or an exit code after Ctrl-C."""
        from workbench.backend.prewarm import Libraries, prewarmer

        assert self.machine is not None
        with prewarmer(str(self.options.kernel), Libraries.NOBODY) as prewarm:
            from workbench.commands.profiled_kernel import prepare_kernel

            marked = MarkedCalls(calls, bool(self.machine.gpu))
            first = Workload((), str(self.options.kernel), marks=marked)
            preflight(tool, self.machine, self._tool_workload(first, self.name))
            return prepare_kernel(self.options, self.machine, self.console, prewarm)

    def _record_calls(self, tool: Profiler, prepared: PreparedKernel) -> int:
        """Write the script of one call, and record it."""
        assert prepared.run is not None
        folder = folder_of(self.options.out, prepared.run.id)
        workload = self._kernel_workload(prepared, folder, self.name)
        write_file(folder / SCRIPT, script_of(prepared.call, __version__), make_folder=True)
        self.output_files = [folder / SCRIPT]
        return self._record(tool, workload, folder, prepared)

    def _kernel_workload(self, prepared: PreparedKernel, folder: Path, name: str) -> Workload:
        assert self.machine is not None
        workload = Workload(
            (self.machine.python, str(folder / SCRIPT)),
            prepared.call.title,
            CALL_STEPS,
            prepared.marks,
            tuple(f"--{name}" for name in self.options.with_),
            self.options.tool_value("data") or "tree",
        )
        return self._tool_workload(workload, name)

    def _tool_workload(self, workload: Workload, name: str) -> Workload:
        """Return the workload with what is asked of one tool. Raises CounterError."""
        options = self.options
        if name == "sanitizer":
            return replace(workload, every=options.tool_value("checks") == "all")
        if name == "ncu":
            counters = ncu_counters(options, self._say_once) if options.metrics else ()
            sections = options.tool_value("set")
            if sentence := explain_set(sections or None):
                self._say_once(sentence)
            extended = replace(workload, counters=counters, selection=sections)
            return add_default_counters(extended, name, self._gpu())
        if name == "xctrace":
            return replace(workload, instruments=options.tool_values("instrument"))
        if name == "rocprofv3" and options.metrics:
            return replace(workload, counters=counter_groups(options.metrics))
        return add_default_counters(workload, name, self._gpu())

    def _gpu(self) -> str:
        return self.machine.gpu if self.machine is not None else ""

    def _say_once(self, sentence: str) -> None:
        if sentence not in self.sentences:
            self.sentences.add(sentence)
            self.console.print(sentence, soft_wrap=True)

    # What would be run

    def _dry_run(self) -> int:
        """Print the command line of the tool, or of every tool, and the files that it leaves."""
        assert self.machine is not None
        tools = profilers()
        names = [self.options.tool] if self.options.tool else list(tools)
        folder = self.options.out / "RUN"
        prepared = None
        if self.options.kernel is not None and names != [GPUTRACE]:
            from workbench.commands.profiled_kernel import planned_kernel

            prepared = planned_kernel(self.options, self.machine)
        for name in names:
            tool = tools[name]
            try:
                lines = dry_lines(name, tool, self.machine, self._dry_workload(
                    name, tool, prepared, folder), folder)  # fmt: skip
            except ProgramError as error:
                if self.options.tool:
                    raise
                lines = [f"{name} ({tool.title})", f"  not here: {error}"]
            for line in lines:
                self.console.print(line, soft_wrap=True, markup=False, highlight=False)
        if prepared is not None:
            calls = self.options.calls or tools[names[0]].calls
            self.console.print(f"{folder / SCRIPT}:", style="bold")
            script = script_of(prepared.change_calls(calls).call, __version__)
            self.console.print(script.rstrip(), soft_wrap=True)
        return PASSED

    def _dry_workload(
        self, name: str, tool: Profiler, prepared: PreparedKernel | None, folder: Path
    ) -> Workload:
        if self.options.kernel is not None and name == GPUTRACE:
            assert self.machine is not None
            trace = trace_path(str(self.options.kernel), datetime.now(UTC).date())
            return capture_workload(self.options, self.machine, trace)
        if prepared is None:
            return self._tool_workload(program_workload(self.options), name)
        calls = self.options.calls or tool.calls
        return self._kernel_workload(prepared.change_calls(calls), folder, name)


def check_options(options: ProfileOptions) -> None:
    """Raise OptionError where options contradict each other or name nothing."""
    kernel, program = options.kernel, options.program
    if options.list_metrics:
        return
    if kernel is not None and program:
        raise OptionError(f"Both the kernel {kernel} and a program are named; name one of them.")
    if kernel is None and not program:
        raise OptionError(
            "Nothing is named to profile; name a kernel (workbench profile softmax), or a program "
            "behind -- (workbench profile -- python step.py)."
        )
    if not all(program[:1]):
        raise OptionError("The program behind -- has no name; write: -- python step.py.")
    if options.tool is not None and options.tool not in profilers():
        raise OptionError(catalog.name_hint("tool", options.tool, tuple(profilers())))
    _check_fit(options)
    _check_tool_options(options)


def _check_fit(options: ProfileOptions) -> None:
    """Raise OptionError for an option that has no meaning for this workload or this tool."""

    def refuse(flags: Iterable[str], reason: str) -> None:
        for flag in flags:
            name = "with_" if flag == "--with" else flag[2:]
            if getattr(options, name) not in (None, ()):
                raise OptionError(f"{flag} {reason}; leave it out.")

    if options.kernel is None:
        refuse(KERNEL_OPTIONS, "is of a kernel, and a program is named")
    else:
        refuse(["--steps"], "counts the steps of a program, but a kernel is named")
    for flag, tools in TOOLS_BY_OPTION.items():
        if options.tool is not None and options.tool not in tools:
            title = " and ".join(TITLES.get(each, each) for each in tools)
            refuse([flag], f"is of {title}, and the tool is {options.tool}")


def _check_tool_options(options: ProfileOptions) -> None:
    """Raise OptionError for a `--tool-option` that the tool does not take."""
    for text in options.tool_option:
        key, _, value = text.partition("=")
        if key not in TOOL_OPTIONS:
            raise OptionError(catalog.name_hint("tool option", key, tuple(TOOL_OPTIONS)))
        tool, known = TOOL_OPTIONS[key]
        if options.tool != tool and (options.tool or tool != "ncu"):  # a kernel's default is ncu
            named = options.tool or f"{DEFAULT_TOOL} or ncu, unless --tool names another"
            raise OptionError(
                f"--tool-option {text} is of {tool}, and the tool is {named}; leave it out."
            )
        if value not in known:
            raise OptionError(f"--tool-option {key} takes {alternatives(known)}, not {value!r}.")


def program_workload(options: ProfileOptions) -> Workload:
    """Return the workload of a program."""
    steps = options.steps
    return Workload(
        options.program,
        title_of(options.program),
        StepSchedule(*map(int, steps.split(","))) if steps else None,
        options=tuple(f"--{name}" for name in options.with_),
        data=options.tool_value("data") or "tree",
    )


def chosen_tool(options: ProfileOptions, machine: Machine) -> tuple[str, str]:
    """Return the name of the tool, and in one sentence why it is not the one of this GPU; empty
    where it is. A kernel's counters come before its trace."""
    of_gpu = {"cuda": "ncu", "hip": "rocprofv3"}.get(machine.gpu)
    if options.tool is not None:
        return options.tool, ""
    if options.metrics or options.tool_value("set"):
        return of_gpu or "ncu", ""
    has_options = bool(options.with_)
    if options.kernel is not None and machine.system == "darwin" and not has_options:
        return GPUTRACE, _capture_sentence(options, machine)
    if options.kernel is None or of_gpu is None or has_options:
        return DEFAULT_TOOL, ""
    workload = Workload((), str(options.kernel), marks=MarkedCalls(1, True))
    reason = refusal(profilers()[of_gpu], machine, workload)
    if reason is None:
        return of_gpu, ""
    return DEFAULT_TOOL, f"The tool is trace (torch.profiler), without counters: {reason}"


def _capture_sentence(options: ProfileOptions, machine: Machine) -> str:
    """Return the sentence before a capture on a Mac. Raises ProfilerError with the command line of
    xctrace where the environment does not allow a capture."""
    if machine.variables.get(CAPTURE) == "1":
        return f"The tool is {GPUTRACE}, as {CAPTURE} is set; a capture has no times in it."
    words = catalog.absolute(str(options.kernel)), *words_of(options)
    program = calls_of_kernel(machine.python, words)
    raise ProfilerError(
        f"Set {CAPTURE}=1 for a capture that Xcode reads, or record the GPU's intervals: "
        f"`workbench profile --tool xctrace -- {shlex.join(program)}`, which runs "
        f"`{record_line(machine, program)}`."
    )


def dry_lines(
    name: str, tool: Profiler, machine: Machine, workload: Workload, folder: Path
) -> list[str]:
    """Return what `--dry-run` says of one tool. Raises ProgramError."""
    lines = [f"{name} ({tool.title})"]
    lines.append(f"  runs   {shlex.join(tool.argv(machine, workload, folder))}")
    for variable, value in tool.variables.items():
        lines.append(f"  with   {variable}={value}")
    for command in tool.further(machine, workload, folder):
        into = f" > {shlex.quote(str(command.output))}" if command.output else ""
        lines.append(f"  then   {shlex.join(command.argv)}{into}")
    lines += [f"  reads  {path}" for path in tool.reads(workload, folder)]
    try:
        preflight(tool, machine, workload)
    except WorkbenchError as error:
        lines.append(f"  not here: {error}")
    return lines


def slowdown_lines(status: RecordingStatus) -> list[str]:
    """Return how long a step took with and without the profiler, where two of each are known."""
    recorded, plain = status.recorded_step_s, status.plain_step_s
    if min(len(recorded), len(plain)) < LEAST_STEPS:
        return []
    with_s, without_s = statistics.median(recorded), statistics.median(plain)
    return [
        f"a recorded step took {duration(with_s)} and one without the profiler "
        f"{duration(without_s)}, by the host's clock (medians of {len(recorded)} and {len(plain)})"
    ]


def unreadable_lines(status: RecordingStatus | None) -> list[str]:
    """Return how many events the profiler gave without a name that is text, if it gave any."""
    if status is None or not status.unreadable:
        return []
    return [
        f"note: {amount(status.unreadable, 'event')} had names that are not UTF-8 text; the table "
        "of operators is without them"
    ]


def recorded_lines(tool: Profiler, result: ToolRun) -> list[str]:
    """Return which part of the workload was recorded, and how much the profiler slowed it."""
    status, workload = result.status, result.workload
    if workload.marks:
        return [f"recorded: {amount(workload.marks.calls, 'call')} of {workload.title}"]
    if status is None:
        return []
    if status.recorded == "steps" and workload.schedule is not None:
        first = workload.schedule.wait + workload.schedule.warmup
        last = min(status.steps, first + workload.schedule.active - 1)
        end = ", in which it ended" if last == status.steps else ""
        steps = f"recorded: steps {first} to {last} of {max(status.steps, last + 1)}{end}"
        return [steps, *slowdown_lines(status)]
    never = "; it never called workbench.step()" if workload.schedule is not None else ""
    extent = f"{workload.title} until it was stopped" if result.end.stop_signal else workload.title
    whole = "" if result.end.stop_signal else "the whole of "
    return [f"recorded: {whole}{extent}{never}"]
