"""The command line: `workbench COMMAND`, or `python -m workbench COMMAND`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="workbench",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Database = Annotated[
    str | None, typer.Option(help="Database URL; SQLite in the user's data folder by default.")
]
Threshold = Annotated[
    float | None,
    typer.Option(min=0, help="Differences up to this share do not count; 0.01 unless named."),
]


Strict = Annotated[
    bool, typer.Option("--strict", help="Refuse to measure while others use the GPU.")
]


def _say_version(asked: bool) -> None:
    if asked:
        from workbench import __version__

        typer.echo(f"workbench {__version__}")
        raise typer.Exit


@app.callback()
def workbench(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    """Which configuration, how far from the limit, why, and did my change help?"""


@app.command()
def sweep(
    name: Annotated[str, typer.Argument(help="tile_size, block_size, pipeline or full.")],
    kernel: Annotated[
        str, typer.Option(help="A kernel's name, package.module, or path/to/mine.py.")
    ] = "matmul",
    impl: Annotated[
        list[str] | None, typer.Option(help="This Impl only; may be repeated. Default: all Triton.")
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(help="M=4096,N=4096,K=4096; repeated: tuned jointly for all of them."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="fp32, fp16 or bf16.")] = "bf16",
    device: Annotated[
        str | None,
        typer.Option(help="Compile and predict for this target (h200, mi300x, ...) with no GPU."),
    ] = None,
    only: Annotated[
        bool, typer.Option("--only", help="Hold the knobs that would be tuned for each value.")
    ] = False,
    budget: Annotated[
        str | None, typer.Option(help="30s, 2m, or 200 (configs): stop there with the best so far.")
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="Which configs come first: exhaustive, model, random, tpe.")
    ] = None,
    strict: Strict = False,
    out: Annotated[Path, typer.Option(help="Folder for pages and events.")] = Path("results"),
    metrics: Annotated[
        Path | None, typer.Option(help="Events file (JSONL) to write instead of the run's own.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say the answer alone.")] = False,
    profile: Annotated[
        bool, typer.Option(help="Write an event for each dispatch and each completed launch.")
    ] = True,
    database: Database = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Obtain again what the database already holds.")
    ] = False,
) -> None:
    """Try the configs of a kernel, refuse wrong answers, time what is right, write a page."""
    from workbench.backend.prewarm import begin_ahead

    ahead = begin_ahead(kernel) if device is None else None  # before the slow imports
    from workbench.commands.console import Terminal
    from workbench.commands.options import Question
    from workbench.commands.sweep import Session

    asked = Question(
        sweep=name, kernel=kernel, impls=tuple(impl or ()), sizes=tuple(sizes or ()),
        dtype=dtype, device=device, only=only, budget=budget, search=search, strict=strict,
        out=out, metrics=metrics, profile=profile, database=database, fresh=fresh,
    )  # fmt: skip
    raise typer.Exit(Session(asked, Terminal(quiet), ahead=ahead).go())


@app.command()
def report(
    name: Annotated[
        str,
        typer.Argument(help="sweep, compare, measure, experiment, ceilings, roofline or findings."),
    ],
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...", help="A run's id or its start, or an events file. Default: last."
        ),
    ] = None,
    kernel: Annotated[
        str | None, typer.Option(help="Roofline: all runs of this kernel, in place of RUN.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Roofline: all runs on this device, in place of RUN.")
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Roofline: every config of a sweep, every part of a kernel."),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File to write.")] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Roofline: also write every number drawn, as CSV.")
    ] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", help="Roofline: the same and the ceilings, as JSON.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Roofline: also a figure for papers: .png, .svg or .pdf.")
    ] = None,
    database: Database = None,
) -> None:
    """Draw a page of stored runs: of one run again, or the roofline of any number of runs."""
    from workbench.commands.report import Wanted, make

    wanted = Wanted(
        name, tuple(runs or ()), kernel, device, everything, out, csv, as_json, figure, database
    )
    for written in make(wanted):
        typer.echo(f"report  {written}")


@app.command()
def history(
    kernel: Annotated[str | None, typer.Argument(help="This kernel only.")] = None,
    impl: Annotated[str | None, typer.Option(help="This Impl only.")] = None,
    device: Annotated[str | None, typer.Option(help="This device only.")] = None,
    dtype: Annotated[str | None, typer.Option(help="This dtype only.")] = None,
    failures: Annotated[bool, typer.Option("--failures", help="Failures alone.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Rows at most, newest first.")] = 50,
    load: Annotated[
        Path | None, typer.Option(help="Take the good lines of this events file in first.")
    ] = None,
    database: Database = None,
) -> None:
    """List what earlier runs found."""
    from rich.console import Console

    from workbench.data.database import open_history, show_history

    console = Console()
    if not console.is_terminal:  # a pipe has no width: nothing is left out
        console = Console(width=240)
    with open_history(database) as opened:
        if load is not None:
            taken = opened.import_events(load)
            typer.echo(f"{taken.kept} events taken in, {len(taken.bad)} lines unreadable")
            for line in taken.bad[:5]:
                typer.echo(f"  line {line.number}: {line.why}")
        show_history(
            opened, console, kernel=kernel, device=device, impl=impl, dtype=dtype,
            failures=failures, limit=limit,
        )  # fmt: skip


@app.command()
def doctor(database: Database = None) -> None:
    """Say what this machine can do, and what to install for the rest."""
    from rich.console import Console

    from workbench.commands.doctor import examine, show

    show(examine(database), Console())


@app.command("new-kernel")
def new_kernel(
    name: Annotated[str, typer.Argument(help="What the kernel is called: a Python name.")],
    folder: Annotated[Path, typer.Option(help="Where to write NAME.py.")] = Path("."),
) -> None:
    """Write a working kernel file to start from."""
    from workbench.commands.new_kernel import write_kernel

    path = write_kernel(name, folder)
    named = shlex.quote(str(path))
    typer.echo(f"wrote   {path}\ntry it  python -m workbench.sweep tile_size --kernel {named}")


@app.command()
def tuned(
    kernel: Annotated[str | None, typer.Argument(help="This kernel only.")] = None,
    impl: Annotated[str | None, typer.Option(help="This Impl only.")] = None,
    device: Annotated[str | None, typer.Option(help="This device only.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="File of tuned configs; in the user's data folder else.")
    ] = None,
    export: Annotated[Path | None, typer.Option(help="Write what is listed to this file.")] = None,
    load: Annotated[
        Path | None, typer.Option("--import", help="Take this file in; newer of equals stands.")
    ] = None,
    code: Annotated[
        bool, typer.Option("--code", help="Print triton.Config lists to paste.")
    ] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Drop the kernel's entries.")] = False,
) -> None:
    """List the winners of sweeps, which launches without a config use."""
    from rich.console import Console

    from workbench.tuner.tuned import Wanted, use

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:  # a pipe has no width: nothing is left out
        console = Console(highlight=False, markup=False, emoji=False, width=240)
    use(Wanted(kernel, impl, device, file, export, load, code, forget), console)


@app.command()
def compare(
    left: Annotated[str, typer.Argument(help="tiles, tiles:block_m=128, a git revision, a run.")],
    right: Annotated[str, typer.Argument(help="The same; WORKING is the file as it is.")],
    kernel: Annotated[
        str | None, typer.Option(help="A kernel's name, package.module, or path/to/mine.py.")
    ] = None,
    impl: Annotated[
        str | None, typer.Option(help="Of revisions or runs: this Impl, or tiles:block_m=128.")
    ] = None,
    sizes: Annotated[str | None, typer.Option(help="M=4096,N=4096,K=4096")] = None,
    dtype: Annotated[str, typer.Option(help="fp32, fp16 or bf16.")] = "bf16",
    threshold: Threshold = None,
    out: Annotated[Path, typer.Option(help="Folder for the page and events.")] = Path("results"),
    strict: Strict = False,
    database: Database = None,
) -> None:
    """Say whether the right side is slower than the left: SLOW, FAST, SAME, CLOCK, INCONCLUSIVE."""
    from workbench.commands.compare import Match, Question

    share = _share(threshold)
    asked = Question(left, right, kernel, impl, sizes, dtype, share, out, database, strict)
    raise typer.Exit(Match(asked, _console()).go())


@app.command()
def gate(
    baseline: Annotated[str, typer.Argument(help="A git revision that the files must not lag.")],
    kernel: Annotated[
        list[str] | None, typer.Option(help="This kernel; may be repeated. Default: what changed.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="fp32, fp16 or bf16.")] = "bf16",
    threshold: Threshold = None,
    out: Annotated[Path, typer.Option(help="Folder for the page and events.")] = Path("results"),
    summary: Annotated[
        Path | None, typer.Option("--json", help="Write a summary to this file.")
    ] = None,
    strict: Strict = False,
    database: Database = None,
) -> None:
    """Compare every kernel of a suite with a baseline; the exit code is that of the worst."""
    from workbench.commands.gate import Gate, Question

    share = _share(threshold)
    asked = Question(baseline, tuple(kernel or ()), dtype, share, out, summary, database, strict)
    raise typer.Exit(Gate(asked, _console()).go())


@app.command()
def measure(
    kernel: Annotated[str, typer.Argument(help="A kernel's name, package.module, or file.")],
    impl: Annotated[
        list[str] | None,
        typer.Option(help="tiles or tiles:block_m=128; may be repeated. Default: all Triton."),
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(help="M=4096,N=4096,K=4096; may be repeated. Default: all to time."),
    ] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="fp32, fp16 or bf16; may be repeated. Default: bf16.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Compile and predict for this target (h200, mi300x, ...) with no GPU."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the page and events.")] = Path("results"),
    strict: Strict = False,
    database: Database = None,
) -> None:
    """Time Impls at their tuned or default configs over sizes and dtypes, beside baselines."""
    from workbench.commands.measure import Question, Timing

    asked = Question(
        kernel, tuple(impl or ()), tuple(sizes or ()), tuple(dtype or ("bf16",)), device, out,
        database, strict,
    )  # fmt: skip
    raise typer.Exit(Timing(asked, _console()).go())


@app.command()
def experiment(
    name: Annotated[str | None, typer.Argument(help="Which; none named lists them.")] = None,
    kernel: Annotated[
        str | None, typer.Option(help="A kernel's name, package.module, or path/to/mine.py.")
    ] = None,
    sizes: Annotated[str | None, typer.Option(help="M=4096,N=4096,K=4096")] = None,
    dtype: Annotated[str | None, typer.Option(help="fp32, fp16 or bf16.")] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Compile and predict for this target (h200, mi300x, ...) with no GPU."),
    ] = None,
    time: Annotated[
        str | None, typer.Option(help="Of `expected`: a time to set against the floor, 0.5ms.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the page and events.")] = Path("results"),
    strict: Strict = False,
    database: Database = None,
) -> None:
    """Put one question to kernels, such as memory_vs_compute, and get a verdict in words."""
    from workbench.commands.experiment import Question, Trials
    from workbench.experiments import experiment_named, experiment_names

    if name is None:
        for each in experiment_names():
            typer.echo(f"{each:22s}{experiment_named(each).summary}")
        return
    asked = Question(name, kernel, sizes, dtype, device, out, database, strict, time=time)
    raise typer.Exit(Trials(asked, _console()).go())


@app.command("ceilings")
def ceilings_(
    device: Annotated[
        str | None, typer.Option(help="Say what is stated of this device, and measure nothing.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the page and events.")] = Path("results"),
    strict: Strict = False,
    database: Database = None,
) -> None:
    """What this GPU reaches: bandwidths, rates, launches, copies; each held against a yardstick."""
    from workbench.commands.ceilings import Gauging, Question

    raise typer.Exit(Gauging(Question(device, out, database, strict), _console()).go())


def _share(threshold: float | None) -> float:
    from workbench.measurement.protocol import Protocol

    return Protocol().asked if threshold is None else threshold


def _console() -> Console:
    """Whole lines for a file or a pipe; words of a compiler's are never taken for markup."""
    from rich.console import Console

    made = Console(highlight=False, markup=False, emoji=False)
    if not made.is_terminal:  # a pipe has no width: nothing is left out
        made = Console(highlight=False, markup=False, emoji=False, width=240)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit code: 2 after an error, which is told in one sentence, and
    130 after Ctrl-C."""
    if "" not in sys.path and (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # `--kernel package.module` may lie where the user stands
    try:
        code = typer.main.get_command(app).main(
            args=list(sys.argv[1:] if arguments is None else arguments),
            prog_name="workbench",
            standalone_mode=False,
        )
    except KeyboardInterrupt:
        code = _stopped()
    except Exception as error:
        code = _told(error)
    if code == STOPPED:
        # Where Ctrl-C once came up through an `exec` of a string (any dataclass is made by one),
        # CPython ends itself by SIGINT in place of this exit code, unless another `exec` follows.
        exec("")
    return int(code or 0)


def _stopped() -> int:
    print("stopped", file=sys.stderr)
    return STOPPED


def _told(error: Exception) -> int:
    """Errors that are sentences are said; a mistake of ours is shown with its traceback."""
    # Typer's errors are click's in older releases and its own in newer ones: known by what they do.
    if type(error).__name__ == "Abort":
        return _stopped()
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error)  # the help itself
        return 2
    if (sentence := getattr(error, "format_message", None)) is not None:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "workbench"
        said = " ".join(sentence().split()).rstrip(".")
        print(f"error: {said}; see `{command} --help`", file=sys.stderr)
        return 2
    if type(error).__name__ in SENTENCES:
        print(f"error: {error}", file=sys.stderr)
        return 2
    raise error


STOPPED = 130  # as shells say it: 128 + SIGINT

# Named, not imported: importing them would load torch and SQLAlchemy for --help.
SENTENCES = {
    "AdaptedError", "CatalogError", "ContestError", "EventsError", "ExperimentError", "GpuBusy",
    "HistoryError", "Incomparable", "NoGpu", "NothingToSweep", "PortfolioError", "ReportError",
    "ResolveError", "SearchError", "SessionError", "SideError", "TemplateError", "TunedError",
    "UnknownDevice", "WorktreeError",
}  # fmt: skip
