"""Say where the time goes: a stored run, files of a profiler, a kernel's machine code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.commands import field
from workbench.commands.console import aloud, console_for
from workbench.commands.field import SIZES, argument, flag, option
from workbench.commands.options import OptionError, Options
from workbench.data.exits import COULD_NOT_RUN, PASSED
from workbench.data.files import is_stream

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.diagnosed import DiagnosisReport
    from workbench.traces.rules import AnyRule


class DiagnoseOptions(Options):
    targets: tuple[str, ...] = argument(
        "last or a run's id; files of a profiler; a kernel or file of machine code.",
        (),
        "last|RUN|FILE...|KERNEL",
    )
    impl: str | None = option(None, "For a kernel: tiles or tiles:block_m=128. Default: the first.")
    sizes: str | None = option(None, f"For a kernel: {SIZES}. Default: the Spec's first.")
    dtype: str | None = option(None, "For a kernel: fp32, fp16 or bf16, which is the default.")
    device: str | None = option(None, "For a kernel: compile for h200, mi300x, ... or for all.")
    rules: bool = flag("List all rules with thresholds, needs and sources.", "--rules")
    all: bool = flag("Also list each rule that could not be evaluated.", "--all")
    quiet: bool = field.quiet("Print only the rules that hold.")
    json: Path | None = field.json()
    annotate: bool = field.annotate()
    sarif: Path | None = field.sarif()
    database: str | None = field.database()


CODE_FILES = (".cubin", ".hsaco", ".amdgcn", ".ptx")
KERNEL_OPTIONS = ("impl", "sizes", "dtype", "device")
NEEDED = {"timeline": "a timeline", "counters": "", "machine code": "machine code"}
TITLES = {
    "timeline": "Rules of timelines",
    "counters": "Rules of counters, by metric",
    "machine code": "Rules of machine code",
}


def run(options: DiagnoseOptions) -> int:
    """Run the command. Returns its exit code. Raises OptionError, and the errors of files, runs and
    kernels that are not there, one sentence each."""
    from workbench.commands.run import check_files

    console = console_for(options)
    check_files(None, options.json, {"--sarif": options.sarif})
    if options.rules:
        return _list_rules(options, console)
    target = _target(options)
    if target == "run":
        return _say(options, console, _diagnose_run(options))
    if target == "files":
        return _say(options, console, _diagnose_files(options))
    return _diagnose_kernel(options, console)


def _say(options: DiagnoseOptions, console: Console, report: DiagnosisReport) -> int:
    from workbench.commands.diagnosed import say_report
    from workbench.commands.result import write_result

    say_report(console, report, options.all)
    code = PASSED if report.rule_count or report.results else COULD_NOT_RUN
    return write_result(options, "diagnose", code, **report.plain())


def _target(options: DiagnoseOptions) -> str:
    """Return what is named: `run`, `files` or `kernel`. Raises OptionError where the words do not
    go together."""
    if not options.targets:
        raise OptionError(
            "Name a run (last), the files of a profiler, or a kernel: workbench diagnose last."
        )
    first = options.targets[0]
    several = len(options.targets) > 1
    kind = "files" if several else _kind(first)
    if several and any(_kind(each) == "run" for each in options.targets):
        raise OptionError("One run is diagnosed at a time; name one.")
    given = [f"--{name}" for name in KERNEL_OPTIONS if getattr(options, name) is not None]
    if kind != "kernel" and given:
        raise OptionError(f"{given[0]} is an option of a kernel; leave it out, or name a kernel.")
    return kind


def _kind(target: str) -> str:
    from workbench.catalog import kernel_names
    from workbench.commands.operands import is_run
    from workbench.commands.stored import LAST

    if target == LAST or is_run(target):
        return "run"
    if target in kernel_names() or target.endswith(".py"):
        return "kernel"
    path = Path(target)
    if target.endswith(CODE_FILES) or "/" in target or is_stream(path) or path.exists():
        return "files"
    return "files" if path.suffix in (".json", ".csv", ".gz", ".zip", ".sqlite") else "kernel"


def _diagnose_run(options: DiagnoseOptions) -> DiagnosisReport:
    from workbench.commands.diagnose_code import predicted_report
    from workbench.commands.diagnose_trace import run_report
    from workbench.commands.report_pages import stored_run
    from workbench.commands.stored import WITH_PROFILE, RunKind

    kind = RunKind(
        "run with a profile or predicted times",
        lambda history, run: (
            run.kind != "code" and (run.predicted or WITH_PROFILE.test(history, run))
        ),
    )
    kept = stored_run(options.targets[0], options.database, kind)
    return predicted_report(kept) if kept.run.predicted else run_report(kept)


def _diagnose_files(options: DiagnoseOptions) -> DiagnosisReport:
    codes = [name for name in options.targets if name.endswith(CODE_FILES)]
    if codes:
        from workbench.commands.diagnose_code import file_report

        if len(options.targets) > 1:
            raise OptionError(
                f"{codes[0]} is machine code, which is diagnosed by itself; name only it."
            )
        return file_report(Path(codes[0]))
    from workbench.commands.diagnose_trace import trace_report
    from workbench.traces.readers import read
    from workbench.traces.trace_summary import summarise

    trace = read(options.targets)
    names = ", ".join(file.name for file in trace.files[:5])
    return trace_report(summarise(trace), f"{trace.title}: {names}")


def _diagnose_kernel(options: DiagnoseOptions, console: Console) -> int:
    from workbench.commands.code_configs import ALL
    from workbench.commands.diagnose_code import kernel_report, say_devices
    from workbench.commands.diagnosed import say_report
    from workbench.commands.result import write_result

    report, every = kernel_report(options, options.targets[0])
    if options.device == ALL:
        say_devices(console, report, every)
    else:
        say_report(console, report, options.all)
    return write_result(options, "diagnose", PASSED, **report.plain())


# Rules


def _list_rules(options: DiagnoseOptions, console: Console) -> int:
    """Print every rule with its thresholds, needs and source. Returns the exit code."""
    from workbench.commands.result import write_result
    from workbench.traces.rules import code_rules, kernel_rules, rules

    if options.targets:
        raise OptionError("--rules lists all rules; leave out what else is named.")
    kinds: dict[str, Mapping[str, AnyRule]] = {
        "timeline": rules(),
        "counters": kernel_rules(),
        "machine code": code_rules(),
    }
    listed = [
        _plain_rule(name, kind, rule)
        for kind, known in kinds.items()
        for name, rule in known.items()
    ]
    with aloud(console):
        for kind in kinds:
            console.print(_rule_table(kind, [each for each in listed if each["kind"] == kind]))
    return write_result(options, "diagnose", PASSED, rules=listed)


def _plain_rule(name: str, kind: str, rule: AnyRule) -> dict[str, Any]:
    from workbench.commands.diagnosed import counters_of
    from workbench.traces.rules import KernelRule

    return {
        "rule": name,
        "word": rule.word,
        "kind": kind,
        "thresholds": dict(rule.thresholds),
        "needs": _needs(kind, rule),
        "counters": [counters_of(n) for n in rule.needs] if isinstance(rule, KernelRule) else [],
        "source": rule.source,
    }


def _needs(kind: str, rule: AnyRule) -> list[str]:
    from workbench.data.code_facts import FACTS
    from workbench.traces.rules import CodeRule, KernelRule

    if isinstance(rule, KernelRule):
        return list(rule.needs)
    if isinstance(rule, CodeRule):
        return [NEEDED[kind], *dict.fromkeys(FACTS[need] for need in rule.needs)]
    return [NEEDED[kind], *rule.needs]


def _rule_table(kind: str, listed: Sequence[dict[str, Any]]) -> Any:
    """Return one row per rule: word, thresholds, needs, source."""
    from workbench.reports.tables import text_table

    heads = ("rule", "word", "thresholds", "needs", "source")
    table = text_table(heads, right=(), whole=heads[:1])
    table.title, table.title_justify, table.title_style = TITLES[kind], "left", "bold"
    for each in listed:
        limits = ", ".join(f"{name} {value:g}" for name, value in each["thresholds"].items())
        needs = ", ".join(need for need in each["needs"] if need != NEEDED[kind])
        table.add_row(each["rule"], each["word"], limits, needs, each["source"])
    return table
