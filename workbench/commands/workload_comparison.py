"""Run a program with and without a tuned table in turns, and return a verdict on its step time.

Each run is kept in `runs.jsonl` as it ends, and the page and the document are written after each
round, so that Ctrl-C and kill -9 leave what was measured.
"""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from workbench.commands.console import console_for, note, prints_aside, say_result
from workbench.commands.options import OptionError
from workbench.commands.result import write_result
from workbench.commands.run import check_file, check_writable
from workbench.data.clock import folder_of, run_id, timestamp
from workbench.data.comparison import ComparisonResult, compared_part
from workbench.data.exits import stopped_by
from workbench.data.files import write_file
from workbench.data.record import Ratio, Verdict, encode_plain
from workbench.data.stats import median
from workbench.data.units import duration
from workbench.data.verdict import NO_VERDICT
from workbench.reports import render, write_page
from workbench.reports.tables import Columns, table
from workbench.traces.profilers.running.expected import ending
from workbench.traces.profilers.running.workload import title_of
from workbench.workload.deployed import Deployment, counts_of, counts_text, lookups_in
from workbench.workload.pinned import MissPolicy, check_policy
from workbench.workload.program_runner import ProgramRunner, UngatedError, order_of, program_words
from workbench.workload.program_runs import (
    NamedOutput,
    OutputDifference,
    ProgramRun,
    add_repeats,
    differences,
    first_step,
    read_marks,
    times_of,
    unit_of,
    verdict_of,
    whole_rounds,
    worst_of,
)
from workbench.workload.step_marks import MarkOptions
from workbench.workload.tuned_table import read

if TYPE_CHECKING:
    from workbench.commands.workload_compare import WorkloadCompareOptions


USAGE = "workbench workload compare TABLE -- python train.py"
NAMES = ("without the table", "with the table")
NO_ROUNDS = "No verdict: two whole rounds are needed."


@dataclass
class ProgramComparison:
    """Runs so far, and what they say."""

    table: str
    program: tuple[str, ...]
    threshold: float
    command: str
    concurrency: int = 1  # runs whose imports go on at the same time
    runs: list[ProgramRun] = field(default_factory=list)
    outputs: list[OutputDifference] = field(default_factory=list)
    repeats: list[OutputDifference] = field(default_factory=list)  # without, of two rounds
    lookups: str = ""  # of the last run with the table
    failure: str = ""  # why the comparison ended early
    stop_signal: int = 0  # the signal that ended it
    last: list[NamedOutput] | None = None  # of the last run without the table

    @property
    def rounds(self) -> list[ProgramRun]:
        """Runs of rounds that have both."""
        return whole_rounds(self.runs)

    @property
    def verdict(self) -> Verdict | None:
        """Verdict on whole rounds; None before there are two."""
        return verdict_of(self.rounds, self.threshold)

    @property
    def agreement(self) -> list[OutputDifference]:
        """Differences of outputs, with those of the program from itself."""
        return add_repeats(self.outputs, self.repeats)

    @property
    def exit_code(self) -> int:
        """Exit code of the verdict; of a signal; 2 where a run failed or there is no verdict."""
        return stopped_by(self.stop_signal) if self.stop_signal else self.result.exit_code

    @property
    def sentence(self) -> str:
        """What ended the comparison early, and the verdict."""
        if self.verdict is None:
            return self.failure or NO_ROUNDS
        return " ".join(filter(None, (self.failure, verdict_sentence(self, self.verdict))))

    @property
    def first(self) -> str:
        """Times of the first step and their ratio; empty where a run has none."""
        ratio = first_step(self.rounds)
        return first_text(self.rounds, ratio) if ratio else ""

    @property
    def result(self) -> ComparisonResult:
        """Result of the comparison: of a step or a run, with the ratio of the first steps."""
        verdict = self.verdict
        word = verdict.word if verdict and not self.failure else NO_VERDICT
        reason = verdict.reason if verdict else self.sentence
        first, plain = encode_plain(first_step(self.rounds)), encode_plain(verdict)
        name = f"{unit_of(self.rounds)} of {' '.join(self.program)}"
        part = compared_part(name, word, reason, verdict=plain, first_step=first)
        return ComparisonResult("programs", *NAMES, self.sentence, [part])


def program_runner(
    options: WorkloadCompareOptions, marks: MarkOptions, words: list[str]
) -> ProgramRunner:
    """Return what runs the program with and without the table."""
    policy = cast(MissPolicy, options.policy)
    deployment = Deployment(str(options.table.absolute()), policy, options.verify)
    many = options.rounds, options.at_once
    return ProgramRunner(words, marks, deployment, *many, prints_aside(options), note)


def compare_programs(options: WorkloadCompareOptions) -> int:
    """Compare. Returns the exit code of the verdict."""
    marks = check_options(options)
    words = program_words(options.program)
    check_writable(options.out)
    folder = folder_of(options.out, run_id("workload-compare", title_of(options.program)))
    folder.mkdir(parents=True)
    comparison = ProgramComparison(
        str(options.table), options.program, options.threshold, options.command, options.at_once
    )
    console = console_for(options)
    try:
        with program_runner(options, marks, words) as runner:
            for number in range(options.rounds):
                if not one_round(comparison, runner, folder, number):
                    break
                console.print(progress(comparison, options.rounds), soft_wrap=True)
    except KeyboardInterrupt:  # between two runs
        comparison.stop_signal = signal.SIGINT
    except UngatedError as error:
        comparison.failure = str(error)
    page = draw(folder, comparison)
    for line in result_lines(comparison):
        say_result(console, line)
    say_result(console, f"page  {page.resolve()}")
    return write_result(options, "workload", comparison.exit_code, **document(comparison, page))


def check_options(options: WorkloadCompareOptions) -> MarkOptions:
    """Return what marks a step. Raises OptionError, and WorkloadError where the table cannot be
    read or there is no such policy."""
    if str(options.table) == "--":
        raise OptionError(f"No table is named; write: {USAGE}.")
    options.check_program(USAGE)
    check_policy(options.policy)
    check_file(options.json, "--json")
    read(options.table)
    return mark_of(options.step_mark)


def mark_of(text: str | None) -> MarkOptions:
    """Return what marks a step, `KERNEL` or `KERNEL:N`, without folder. Raises OptionError."""
    if text is None:
        return MarkOptions("")
    name, colon, number = text.partition(":")
    if not name or (colon and not (number.isascii() and number.isdecimal() and int(number))):
        raise OptionError("--step-mark is KERNEL or KERNEL:N, with N launches of it in a step.")
    return MarkOptions("", name, int(number or 1))


# Runs


def one_round(
    comparison: ProgramComparison, runner: ProgramRunner, folder: Path, number: int
) -> bool:
    """Run the program without and with the table; the order alternates. Returns whether the
    comparison can go on."""
    for pinned in order_of(number):
        ended = one_run(comparison, runner, number, pinned)
        keep(folder, comparison)
        if not ended:
            return False
    draw(folder, comparison)
    return True


def one_run(
    comparison: ProgramComparison, runner: ProgramRunner, number: int, pinned: bool
) -> bool:
    """Run the program once, and add what it left. Returns whether the comparison can go on."""
    with runner.once(number, pinned) as (folder, end, wall_s):
        if end.stop_signal:
            comparison.stop_signal = end.stop_signal
            return False
        if end.code:
            comparison.failure = (
                f"The program {NAMES[pinned]} ended with {ending(end.code)} in round {number + 1}."
            )
            return False
        steps_s, first_s, outputs = read_marks(folder)
        if pinned:
            comparison.lookups = counts_text(counts_of(lookups_in(folder).values()))
    comparison.runs.append(ProgramRun(pinned, number, wall_s, first_s, steps_s))
    add_outputs(comparison, outputs, pinned)
    return True


def add_outputs(comparison: ProgramComparison, outputs: list[NamedOutput], pinned: bool) -> None:
    """Compare the outputs of a run with those of the last one without the table."""
    last = comparison.last
    if pinned:
        # In every second round the run with the table comes first, and meets the round before.
        if last is not None:
            comparison.outputs = worst_of(comparison.outputs, differences(last, outputs))
        return
    if last is not None:
        comparison.repeats = worst_of(comparison.repeats, differences(last, outputs))
    comparison.last = outputs


def keep(folder: Path, comparison: ProgramComparison) -> None:
    """Write the file of runs."""
    if comparison.runs:
        kept = [json.dumps(asdict(run)) for run in comparison.runs]
        write_file(folder / "runs.jsonl", "\n".join(kept) + "\n")


# Output


def progress(comparison: ProgramComparison, rounds: int) -> str:
    """Return the last round as a line."""
    done = comparison.rounds
    both = [duration(times_of(done, pinned)[-1]) for pinned in (False, True)]
    number, unit = done[-1].number + 1, unit_of(done)
    return f"round {number} of {rounds}: {both[0]} a {unit} without, {both[1]} with"


def result_lines(comparison: ProgramComparison) -> list[str]:
    """Return the result as lines of text."""
    result = comparison.verdict
    words = f"{result.word}. {verdict_sentence(comparison, result)}" if result else NO_ROUNDS
    lines = [*filter(None, (comparison.failure,)), words]
    if comparison.first:
        lines.append(f"first step: {comparison.first}")
    lines += [f"output {each.name}: {difference_text(each)}" for each in comparison.agreement]
    return lines + [f"table: {comparison.lookups}"] * bool(comparison.lookups)


def verdict_sentence(comparison: ProgramComparison, result: Verdict) -> str:
    """Return the verdict on the time of a step or a run as a sentence."""
    unit = unit_of(comparison.rounds)
    times = [median(times_of(comparison.rounds, pinned)) for pinned in (False, True)]
    return (
        f"A {unit} takes {duration(times[0])} without the table and {duration(times[1])} with it: "
        f"{result.reason}."
    )


def first_text(rounds: list[ProgramRun], ratio: Ratio) -> str:
    """Return the times of the first step and their ratio, with over without the table."""
    times = [
        median([run.first_s for run in rounds if run.pinned == pinned and run.first_s is not None])
        for pinned in (False, True)
    ]
    return (
        f"{duration(times[0])} without the table, {duration(times[1])} with it, from the process' "
        f"start; ratio {ratio.middle:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    )


def difference_text(each: OutputDifference) -> str:
    """Return the largest difference of an output, and whether the program repeats itself."""
    if not each.compared:
        return f"not compared: {each.left_out} calls differ in shape, are not recorded or missing"
    text = f"largest difference {each.largest:.3g} (relative {each.relative:.3g})"
    text += f" in {each.compared} calls"
    if each.left_out:
        text += f", {each.left_out} not compared"
    if each.repeated is not None:
        text += f"; between runs without the table {each.repeated:.3g}"
    return text


def document(comparison: ProgramComparison, page: Path) -> dict[str, Any]:
    """Return the keys of the JSON document."""
    return {
        "action": "compare",
        "comparison": comparison.result.plain(),
        "table": comparison.table,
        "program": comparison.program,
        "unit": unit_of(comparison.rounds),
        "outputs": [asdict(each) for each in comparison.agreement],
        "process_runs": [asdict(each) for each in comparison.runs],
        "lookups": comparison.lookups,
        "failure": comparison.failure or None,
        "page": str(page.resolve()),
    }


def draw(folder: Path, comparison: ProgramComparison) -> Path:
    """Write the page and the document `result.json` of the runs so far. Returns the page's path."""
    from workbench.commands.result import document as whole
    from workbench.commands.result import write_document

    page = folder / "report.html"
    plain = document(comparison, page)
    write_document(folder / "result.json", whole("workload", comparison.exit_code, **plain))
    html = render(
        "workload_compare.html.j2",
        title="A program with and without tuned configs",
        command=comparison.command,
        comparison=comparison,
        word=comparison.verdict.word if comparison.verdict else "",
        sentence=comparison.sentence,
        unit=unit_of(comparison.rounds),
        first=comparison.first,
        runs=table(RUNS, comparison.runs, text=(1,)),
        outputs=table(OUTPUTS, comparison.agreement, text=(1,)),
        at=timestamp(),
    )
    return write_page(page, html)


OUTPUTS: Columns = (("output", lambda each: each.name), ("agreement", difference_text))
RUNS: Columns = (
    ("round", lambda run: f"{run.number + 1}"),
    ("table", lambda run: "with" if run.pinned else "without"),
    ("step", lambda run: duration(run.time_s) if run.steps_s else "-"),
    ("first step", lambda run: duration(run.first_s) if run.first_s is not None else "-"),
    ("wall time", lambda run: duration(run.wall_s)),
    ("steps", lambda run: f"{len(run.steps_s)}"),
)
