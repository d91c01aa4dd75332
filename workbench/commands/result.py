"""The result of a command as one JSON document, for `--json PATH`.

Every command writes the same head: `schema`, `command`, `version`, `exit_code`, `meaning`. Commands
that obtain outcomes add `runs`, all else stands beside it. docs/commands.md documents the document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import Any

import workbench
from workbench.commands.console import Output, is_stdout, say
from workbench.data import stats
from workbench.data.comparison import ComparisonResult
from workbench.data.exits import COULD_NOT_RUN, FAILED, INTERRUPTED, PASSED, UNDECIDED
from workbench.data.files import finite_numbers, is_stream, write_files
from workbench.data.record import (
    Case,
    Comparison,
    Failure,
    Finding,
    Measured,
    Outcome,
    Profile,
    Record,
    Run,
    encode_plain,
)
from workbench.device.error_band import expected_s

SCHEMA = 1
MEANINGS = {
    PASSED: "passed",
    FAILED: "failed",
    COULD_NOT_RUN: "could not run",
    UNDECIDED: "undecided",
    INTERRUPTED: "interrupted",
}


@dataclass(frozen=True)
class RunResult:
    """A run and all that was obtained in it."""

    run: Run
    outcomes: Sequence[Outcome] = ()
    comparisons: Sequence[Comparison] = ()
    findings: Sequence[Finding] = ()
    profiles: Sequence[Profile] = ()  # kernels of a trace
    state: str | None = None  # None where it is not known, or where it was killed
    page: Path | None = None
    events: Path | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)  # wall time by part, where known

    def plain(self) -> dict[str, Any]:
        """Return the run as plain data; measured and predicted times are two lists."""
        records = [o for o in self.outcomes if isinstance(o, Record)]
        return {
            "run": encode_plain(self.run),
            "state": self.state,
            "measured": [plain_record(r) for r in records if r.is_measured],
            "predicted": [plain_record(r) for r in records if not r.is_measured],
            "failures": [encode_plain(o) for o in self.outcomes if isinstance(o, Failure)],
            "comparisons": encode_plain(self.comparisons),
            "findings": encode_plain(self.findings),
            "profiles": encode_plain(self.profiles),
            "page": _text(self.page),
            "events": _text(self.events),
        }

    def timed_part(self) -> RunResult:
        """Return what a GPU measured in a run by machine code, as a run of times; else all."""
        if self.run.versions is None:
            return self
        timed = [c for c in self.comparisons if c.by == "time"]
        keys = {key for c in timed for key in (c.left_key, c.right_key)}
        outcomes, run = [o for o in self.outcomes if o.key in keys], self.run
        if cases := [o.case for o in outcomes]:
            kernels = ", ".join(dict.fromkeys(case.kernel for case in cases))
            sizes, device = shared_sizes(cases), cases[0].device
            run = replace(run, kind="times", predicted=False, kernel=kernels, sizes=sizes)
            run = replace(run, device=device)
        return replace(self, run=run, outcomes=outcomes, comparisons=timed)


def shared_sizes(cases: Sequence[Case]) -> Mapping[str, int]:
    """Return the sizes of a run's cases where they are all of one kernel at the same sizes."""
    alike = all((c.kernel, c.sizes) == (cases[0].kernel, cases[0].sizes) for c in cases)
    return dict(cases[0].sizes) if cases and alike else {}


@dataclass(frozen=True)
class CommandResult:
    """The result of a command, for a caller in Python: what `--json` writes as a document."""

    command: str
    exit_code: int
    runs: tuple[RunResult, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)  # keys of this command alone

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the command."""
        return document(self.command, self.exit_code, self.runs or None, **self.more)


_COLLECTED: ContextVar[list[CommandResult] | None] = ContextVar("collected", default=None)


@contextmanager
def collecting() -> Iterator[list[CommandResult]]:
    """Return a context manager that collects the results of the commands that run inside it."""
    results: list[CommandResult] = []
    token = _COLLECTED.set(results)
    try:
        yield results
    finally:
        _COLLECTED.reset(token)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path if is_stream(path) else path.resolve())


def plain_record(record: Record) -> dict[str, Any]:
    """Return a record as plain data: a measured one with the `statistics` of its samples, a
    predicted one with `expected_s`, the ends of what a measured time is expected to be, or null
    where the model was never validated on its device."""
    plain: dict[str, Any] = encode_plain(record)
    if isinstance(record.timing, Measured):
        plain["statistics"] = statistics_of(record.timing)
    else:
        plain["expected_s"] = expected_s(record)
    return plain


def statistics_of(timing: Measured) -> dict[str, float]:
    """Return mean, standard deviation, least, largest, p5 and p95 of the samples, in seconds; empty
    where there are none."""
    if not timing.samples_s:
        return {}
    names = ("mean_s", "std_s", "min_s", "max_s")
    ends = {f"p{q}_s": stats.quantile(timing.samples_s, q / 100) for q in (5, 95)}
    return {**{name: getattr(timing, name) for name in names}, **ends}


def document(
    command: str, exit_code: int, runs: Sequence[RunResult] | None = None, **more: Any
) -> dict[str, Any]:
    """Return the document of a command. `more` are the keys of this command alone."""
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "command": command,
        "version": workbench.__version__,
        "exit_code": exit_code,
        "meaning": MEANINGS.get(exit_code, "stopped"),
    }
    if runs is not None:
        head["runs"] = [run.plain() for run in runs]
    return {**head, **more}


def write_result(
    options: Output,
    command: str,
    exit_code: int,
    runs: Sequence[RunResult] | None = None,
    **more: Any,
) -> int:
    """Write the document where `--json` says, if it does, and hand the result to `collecting`.
    Returns the exit code. Raises FileError where the file cannot be written."""
    if (collected := _COLLECTED.get()) is not None:
        collected.append(CommandResult(command, exit_code, tuple(runs or ()), more))
    if options.json is not None:
        write_document(options.json, document(command, exit_code, runs, **more))
    if getattr(options, "annotate", False) or getattr(options, "sarif", None) is not None:
        _annotate(options, document(command, exit_code, **more))
    return exit_code


def write_comparison(
    options: Output,
    command: str,
    result: ComparisonResult,
    runs: Sequence[RunResult] | None = None,
    **more: Any,
) -> int:
    """Write the document of a command that compares. Returns the exit code of the worst word."""
    plain = result.plain()
    return write_result(options, command, result.exit_code, runs, comparison=plain, **more)


def _annotate(options: Any, content: Mapping[str, Any]) -> None:
    """Print and write what a command found as `--annotate` and `--sarif` say."""
    from workbench.commands.annotations import annotations_of, sarif, workflow_command

    every = annotations_of(content)
    if options.sarif is not None:
        write_document(options.sarif, sarif(every))
    for each in every if options.annotate else ():
        say(workflow_command(each), err=is_stdout(options.json))


def write_document(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain data as strict JSON: numbers that are not finite are null. Raises FileError where
    the file cannot be written."""
    write_files([(path, json_text(content))], make_folders=True)


def json_text(content: Any) -> str:
    """Return plain data as strict JSON: numbers that are not finite are null."""
    return (
        json.dumps(finite_numbers(content), indent=1, allow_nan=False, default=_plain_value) + "\n"
    )


def _plain_value(value: Any) -> str | int | float:
    """Return a path as text, and a number of NumPy as one of Python. Raises TypeError for other
    objects: their text is not data."""
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
