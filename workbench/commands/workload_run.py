"""Run a program with the configs of a tuned table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

from workbench.commands import field
from workbench.commands.console import console_for, prints_aside, say_result
from workbench.commands.field import option
from workbench.commands.options import Options, TakesProgram
from workbench.data.exits import COULD_NOT_RUN, stopped_by

if TYPE_CHECKING:
    from workbench.workload.pinned import TableLookup


class WorkloadRunOptions(TakesProgram, Options):
    tuned: Path = option(MISSING, "The tuned table.")
    policy: str = field.policy()
    verify: bool = field.verify()
    quiet: bool = field.quiet()
    json: Path | None = field.json()
    target: tuple[str, ...] = field.program()


USAGE = "workbench workload run --tuned TABLE -- python serve.py"


def run(options: WorkloadRunOptions) -> int:
    """Run the program. Returns its exit code; 2 where it ended well and `--verify` sees that its
    processes chose differently."""
    import tempfile

    from workbench.commands.result import write_result
    from workbench.traces.profilers.running.child import run_child
    from workbench.workload.deployed import Deployment, counts_of, counts_text, lookups_in
    from workbench.workload.pinned import MissPolicy
    from workbench.workload.program_runner import program_words, startup_variables
    from workbench.workload.startup import sitecustomize

    check_options(options)
    table = options.tuned
    words = program_words(options.program)
    with tempfile.TemporaryDirectory(prefix="workbench-run-") as folder:
        deployment = Deployment(
            str(table.absolute()), cast(MissPolicy, options.policy), options.verify, folder
        )
        more = startup_variables({sitecustomize.TUNED: deployment.text()})
        end = run_child(words, own=False, aside=prints_aside(options), more=more)
        processes = lookups_in(Path(folder))
    code = stopped_by(end.stop_signal) if end.stop_signal else end.code
    counts = counts_of(processes.values())
    problem = differing(list(processes.values())) if options.verify else ""
    console = console_for(options)
    say_result(console, f"{table.name}: {counts_text(counts)}.")
    if problem:
        say_result(console, problem)
        code = code or COULD_NOT_RUN
    return write_result(
        options,
        "workload",
        code,
        action="run",
        table=str(table),
        lookups=asdict(counts),
        stale=counts.stale,
        difference=problem or None,
    )


def check_options(options: WorkloadRunOptions) -> None:
    """Raise OptionError where no program is named, and WorkloadError where the table cannot be read
    or there is no such policy."""
    from workbench.commands.run import check_file
    from workbench.workload.pinned import check_policy
    from workbench.workload.tuned_table import read

    options.check_program(USAGE)
    check_policy(options.policy)
    read(options.tuned)
    check_file(options.json, "--json")


def differing(processes: Sequence[Sequence[TableLookup]]) -> str:
    """Return the first difference between the choices of processes of this machine as a sentence;
    empty where there is none."""
    from workbench.workload.ranks import difference

    choices = [
        {f"{each.function} {list(each.key)}": each.config for each in of if each.config}
        for of in processes
    ]
    return difference(choices, "Processes")
