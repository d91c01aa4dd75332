"""The options of every command, each stated once.

A command is a class here and a module of the same name with `run(options) -> exit code`. The
command line (`commands/parameters.py`) is built from the fields: name, type, default and help. The
classes are not in the modules, whose imports take 50 ms to 4 s: `--help` and Tab need the classes
of all commands, and a sweep starts its processes before its module is imported.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal, get_args

from workbench.data.parts import require_part
from workbench.spec import WorkbenchError

DEVICE = "Compile and predict for this target (h200, mi300x, ...) with no GPU."
KERNEL = "A kernel's name, package.module, or path/to/mine.py."
DTYPE = "fp32, fp16 or bf16."
SWEEP = "tile_size"  # unless another is named
# The modules of `reports/` that draw a page of stored runs.
REPORTS = (
    "calibration", "ceilings", "compare", "experiment", "findings", "measure", "roofline", "sweep",
    "trace", "versions",
)  # fmt: skip
SIZES = "M=4096,N=4096,K=4096"
EVENTS = "--events/--no-events"
# Panels of the commands in `workbench --help`, in this order.
PANELS = ("Tune", "Understand", "Check a change", "Look back", "This machine")
# Panels of a command's options: those that most calls need, and then these.
MORE = "More options"
FILES = "Files and output"
PAIR = "tuple[str, str] | None"  # type of an option with two values
# Words of the options that take several of a list.
Also = Literal["energy", "profile"]
Idle = Literal["idle-gpu"]
Sanitizer = Literal["sanitizer"]
Requirement = Literal["same-bits", "sanitizer", "idle-gpu"]
Recorded = Literal["shapes", "memory", "stacks"]


def argument(help: str, default: Any = MISSING, metavar: str | None = None) -> Any:
    """Return a field that declares a positional argument."""
    data = {"help": help, "positional": True, "metavar": metavar, "stored": True}
    return field(default=default, metadata=data)


def option(
    default: Any,
    help: str,
    name: str | None = None,
    *,
    stored: bool = True,
    read: Callable[[Any], Any] | None = None,
    words: tuple[str, ...] = (),
    **limits: Any,
) -> Any:
    """Return a field that declares an option. `name` is its flag if the field's own name is not;
    `limits` are Typer's, such as `min` or the panel of `--help`. `stored` options are part of the
    command that is stored with a run. `read` returns a value as it is kept, or raises OptionError;
    `words` are all that a list may hold."""
    data = {"help": help, "name": name, "positional": False, "stored": stored, "limits": limits}
    return field(default=default, metadata={**data, "read": read, "words": words})


def more(default: Any, help: str, name: str | None = None, **limits: Any) -> Any:
    """Return a field that declares an option that few calls need."""
    return option(default, help, name, rich_help_panel=MORE, **limits)


def file_option(default: Any, help: str, name: str | None = None) -> Any:
    """Return a field that declares an option on files or output: no stored command has it."""
    return option(default, help, name, stored=False, rich_help_panel=FILES)


def flag(help: str, name: str | None = None, *, stored: bool = True, **limits: Any) -> Any:
    """Return a field that declares an option that is on or off, and off by default."""
    return option(False, help, name, stored=stored, **limits)


def out(help: str = "Folder for the page and events.") -> Any:
    """Return a field that declares `--out`."""
    return file_option(Path("results"), help)


def word_list(words: Any, name: str, help: str) -> Any:
    """Return a field that declares the option `name`, which takes several of the `words`, a
    Literal: with commas between, or repeated."""
    known: tuple[str, ...] = get_args(words)
    read = partial(read_words, name, known)
    return more((), help, name, read=read, words=known)


def also(which: str) -> Any:
    """Return a field that declares `--also`; `which` names the configs that a profile is of."""
    text = f"energy: the joules of a call; profile: {which}, by counters. After the times."
    return word_list(Also, "--also", text)


def require_idle() -> Any:
    """Return a field that declares `--require` of a command that measures."""
    return word_list(Idle, "--require", "idle-gpu: refuse while others use the GPU.")


def events() -> Any:
    """Return a field that declares `--events/--no-events`."""
    return file_option(True, "Write dispatches and times as events.", EVENTS)


def quiet(help: str = "Print only the result.") -> Any:
    """Return a field that declares `--quiet`."""
    return file_option(False, help, "--quiet")


def json(help: str = "Write the result to this file; - is standard output.") -> Any:
    """Return a field that declares `--json`."""
    return file_option(None, help, "--json")


def annotate() -> Any:
    """Return a field that declares `--annotate`."""
    return file_option(
        False, "Print `::error file=,line=` of each finding, for GitHub.", "--annotate"
    )


def sarif() -> Any:
    """Return a field that declares `--sarif`."""
    return file_option(None, "Write the findings to this file as SARIF 2.1.0, for code scanning.")


def database() -> Any:
    """Return a field that declares `--database`."""
    return file_option(None, "Database URL; SQLite in the user's data folder by default.")


def fresh() -> Any:
    """Return a field that declares `--fresh`."""
    text = "Obtain again what the database already holds."
    return more(False, text, "--fresh", stored=False)


def workers() -> Any:
    """Return a field that declares `--workers`."""
    text = "Share the work among so many GPUs of this host, or those of a Dask cluster."
    return more(None, text, stored=False, read=read_workers, metavar="N|tcp://HOST:8786")


def config_from() -> Any:
    """Return a field that declares `--config-from`."""
    return option(None, "Take the configs of this function's @triton.autotune: other.py:kernel.")


def threshold() -> Any:
    """Return a field that declares `--threshold`."""
    text = "Share up to which a difference does not count; 0.01 by default."
    return option(0.01, text, read=read_threshold)


DEFAULT_TARGET = "h200"  # where no GPU is present and no device was named


class CommandError(WorkbenchError):
    """A command cannot be carried out: one sentence says why and what to do next."""


class OptionError(WorkbenchError, ValueError):
    """An option has a value that it cannot have; one sentence says which it may have."""


def read_threshold(value: float) -> float:
    """Return a threshold. Raises OptionError for one that is not a share: it is finite, at least 0
    and below 1. At 1 or more a kernel could take twice as long and be the same."""
    if not 0 <= value < 1:  # also not a number
        raise OptionError(f"A threshold of {value:g} is not a share; write one from 0 to below 1.")
    return value


def read_words(flag: str, known: tuple[str, ...], value: str | Iterable[str]) -> tuple[str, ...]:
    """Return the words of a list, each once, without the commas. Raises OptionError for one that
    the option `flag` does not take."""
    texts = (value,) if isinstance(value, str) else value
    parts = (word.strip() for text in texts for word in text.split(","))
    words = tuple(dict.fromkeys(filter(None, parts)))
    if odd := [word for word in words if word not in known]:
        raise OptionError(f"{flag} takes no {odd[0]!r}; write {alternatives(known)}.")
    return words


def alternatives(words: Sequence[str]) -> str:
    """Return words as `tree, trace or inside`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


WORKERS = r"[1-9][0-9]*|(tcp|tls|ucx|wss?)://.+:[0-9]+"  # the schemes of Dask


def read_workers(value: int | str | None) -> str | None:
    """Return the number of GPUs, or the address of a scheduler. Raises OptionError for another
    text."""
    if value is None or re.fullmatch(WORKERS, str(value), re.ASCII):
        return None if value is None else str(value)
    raise OptionError(
        f"--workers {value} is neither a number of GPUs nor the address of a scheduler; write "
        "--workers 2, or --workers tcp://HOST:8786."
    )


def read_steps(value: str | Iterable[int] | None) -> str | None:
    """Return the numbers of steps with commas between. Raises OptionError where they are not
    three, of which the last is 1 or more."""
    if value is None:
        return None
    text = value if isinstance(value, str) else ",".join(map(str, value))
    if not re.fullmatch(r"[0-9]+,[0-9]+,0*[1-9][0-9]*", text, re.ASCII):
        raise OptionError(
            f"--steps {text} is not WAIT,WARMUP,ACTIVE; write --steps 0,1,3 to record three steps "
            "after one warm-up."
        )
    return text


@dataclass(frozen=True)
class Options:
    """Options of a command, in the words of the command line."""

    COMMAND: ClassVar[str]  # two words where the first is a group: `workload tune`
    PANEL: ClassVar[str]  # in which `workbench --help` lists it
    PROGRAM: ClassVar[tuple[str, ...]] = ()  # in the stored command; `workbench COMMAND` else
    TAKES_PROGRAM: ClassVar[bool] = False
    IMPORTS_HERE: ClassVar[bool] = True  # modules of the current folder, after all others

    def __init_subclass__(cls, command: str, panel: str) -> None:
        """Take the name of the command, and its panel of `workbench --help`."""
        cls.COMMAND, cls.PANEL = command, panel

    def __post_init__(self) -> None:
        for f in fields(self):
            if (read := f.metadata.get("read")) is not None:
                object.__setattr__(self, f.name, read(getattr(self, f.name)))

    def resolve_names(self) -> Options:
        """Return the options as `run` of the command takes them."""
        return self

    @property
    def command(self) -> str:
        """Command line that repeats this run, with the defaults written out."""
        words = list(self.PROGRAM or ("workbench", *self.COMMAND.split()))
        for f in fields(self):
            value = getattr(self, f.name)
            if not f.metadata["stored"] or value is None or value is False:
                continue
            many = value if isinstance(value, tuple) else (value,)
            texts = [f"{v:g}" if isinstance(v, float) else str(v) for v in many]
            if f.metadata.get("words") and texts:
                texts = [",".join(texts)]
            name = f.metadata.get("name") or f"--{f.name.replace('_', '-')}"
            if f.metadata["positional"]:
                words += [text for text in texts if text]
            elif f.type == PAIR:
                words += [name, *texts]
            elif value is True:
                words.append(name)
            else:
                words += [word for text in texts for word in (name, text)]
        return shlex.join(words)


class TakesProgram:
    """What options classes share whose command takes `--` and a program: the parser hands both on
    in `target`."""

    TAKES_PROGRAM: ClassVar[bool] = True
    target: tuple[str, ...]

    @property
    def operands(self) -> tuple[str, ...]:
        """Words before the program."""
        return self.target[: self._program_at]

    @property
    def program(self) -> tuple[str, ...]:
        """Command line of the program, or empty."""
        return self.target[self._program_at + 1 :]

    def check_program(self, usage: str) -> None:
        """Raise OptionError where no program is named, or words before it that the command does
        not take; `usage` is how to write the command."""
        if self.operands:
            raise OptionError(
                f"{self.operands[0]} is one word too many; a program stands behind --: {usage}."
            )
        if not any(self.program[:1]):
            raise OptionError(f"No program is named; write: {usage}.")

    @property
    def _program_at(self) -> int:
        """Place of `--` among the words, or their number."""
        return self.target.index("--") if "--" in self.target else len(self.target)


@dataclass(frozen=True, kw_only=True)
class RunOutput:
    """Options of a command whose run is stored: what it writes and prints."""

    out: Path = out()
    events_file: Path | None = file_option(
        None, "Events file (JSONL) to append to, not the run's own.", "--events-file"
    )
    events: bool = events()
    quiet: bool = quiet()
    json: Path | None = json()
    database: str | None = database()


@dataclass(frozen=True)
class SweepOptions(RunOutput, Options, command="sweep", panel="Tune"):
    """Try the configs of a kernel, reject wrong results, time the others, write a page."""

    PROGRAM: ClassVar[tuple[str, ...]] = ("python", "-m", "workbench.sweep")

    name: str = argument(
        "A kernel, for the sweep tile_size. Or a sweep: tile_size, block_size, pipeline or full.",
        "",
        "KERNEL|SWEEP",
    )
    kernel: str = option("", "The kernel, where the first word is a sweep. Default: matmul.")
    impl: tuple[str, ...] = option((), "This Impl only; may be repeated. Default: all Triton.")
    sizes: tuple[str, ...] = option(
        (), "M=4096,N=4096,K=4096; repeated: tuned jointly for all of them."
    )
    dtype: str = option("bf16", DTYPE)
    device: str | None = option(None, DEVICE)
    only: bool = more(False, "Keep the knobs to tune at their default.", "--only")
    budget: str | None = option(None, "30s, 2m, or 200 (configs): stop then with the best so far.")
    search: str | None = more(None, "Which configs come first: exhaustive, model, random, tpe.")
    also: tuple[Also, ...] = also("the winner")
    require: tuple[Requirement, ...] = word_list(
        Requirement,
        "--require",
        "same-bits: as the default's; sanitizer: racecheck and memcheck pass; idle-gpu: refuse "
        "while others use the GPU.",
    )
    workers: str | None = workers()
    fresh: bool = fresh()

    def resolve_names(self) -> SweepOptions:
        """Return the options with the sweep as `name` and the kernel as `kernel`. Raises
        OptionError where the first word is neither, or where one of the two is given twice."""
        from workbench import catalog  # `--help` does not need it

        word, sweeps = self.name, catalog.names_in("workbench.sweeps")
        if word and word not in sweeps:
            if not catalog.is_kernel(word):
                require_part("kernels")
                known = [*sweeps, *catalog.known_kernels()]
                hint = catalog.example("kernel", word, "")
                raise OptionError(hint or catalog.name_hint("sweep or kernel", word, known))
            if self.kernel:
                raise OptionError(
                    f"The kernel is given twice, as {word} and as --kernel {self.kernel}; leave "
                    "one out."
                )
            return replace(self, name=SWEEP, kernel=word)
        return replace(self, name=word or SWEEP, kernel=self.kernel or "matmul")


@dataclass(frozen=True)
class FunctionOptions(Options, command="tune", panel="Tune"):
    """Tune a @triton.jit function of a file, without a Spec, for arguments that are described."""

    function: str = argument("The function: path/to/mine.py:kernel.", MISSING, "FUNCTION")
    arg: tuple[str, ...] = option(
        (), "x=bf16[8192,4096], i=int64[4096]<32000 or n=4096; repeated, once an argument."
    )
    grid: str = option("", "'cdiv(M, BM), cdiv(N, BN)': of arguments and of a config's values.")
    config: tuple[str, ...] = option(
        (), "BM=64,BN=128,num_warps=4; repeated. Default: those of @triton.autotune."
    )
    config_from: str | None = config_from()
    outputs: tuple[str, ...] = option(
        (), "A tensor that the function writes; repeated. Default: found by running it.", "--output"
    )
    inputs: tuple[str, ...] = option(
        (), "One of them whose values the launch needs, too; repeated.", "--input"
    )
    partial: tuple[str, ...] = option(
        (),
        "One that holds a partial result for each of a config's blocks: the sum is compared.",
    )
    device: str | None = option(None, DEVICE)
    budget: str | None = option(None, "30s, 2m, or 200 (configs): stop then with the best so far.")
    fresh: bool = fresh()
    out: Path = out("Folder for pages and events.")
    quiet: bool = quiet()
    database: str | None = database()
    json: Path | None = json()


@dataclass(frozen=True)
class PredictOptions(Options, command="predict", panel="Tune"):
    """Name the fastest configs of a kernel by predicted time, without a GPU and without a sweep."""

    kernel: str = argument(f"{KERNEL} Or a function: path/to/mine.py:kernel.", MISSING, "KERNEL")
    impl: tuple[str, ...] = option((), "This Impl only; may be repeated. Default: all Triton.")
    sizes: str | None = option(None, f"{SIZES}. Default: the kernel's first.")
    dtype: str = option("bf16", DTYPE)
    device: str | None = option(None, "Predict for this device; by default for the GPU here.")
    arg: tuple[str, ...] = option(
        (), "Of a function: x=bf16[8192,4096], i=int64[4096]<32000 or n=4096; once an argument."
    )
    grid: str = option("", "Of a function: 'cdiv(M, BM), cdiv(N, BN)'.")
    config: tuple[str, ...] = option(
        (), "Of a function: BM=64,num_warps=4; repeated. Default: those of @triton.autotune."
    )
    config_from: str | None = config_from()
    quiet: bool = quiet()
    json: Path | None = json()


@dataclass(frozen=True)
class TunedOptions(Options, command="tuned", panel="Tune"):
    """List the tuned configs, which launches without a config use."""

    kernel: str | None = argument("This kernel only: its name, or path/to/mine.py.", None)
    impl: str | None = option(None, "This Impl only.")
    device: str | None = option(None, "This device only.")
    file: Path | None = option(None, "Tuned cache; in the user's data folder by default.")
    export: Path | None = option(None, "Write what is listed to this file.")
    load: Path | None = option(None, "Import this file; equal keys: the newer is kept.", "--import")
    code: bool = flag("Print triton.Config lists to paste.", "--code")
    forget: bool = flag("Drop the kernel's entries.", "--forget")
    quiet: bool = quiet("Print only the entries.")
    json: Path | None = json("Write what is listed to this file; - is standard output.")


@dataclass(frozen=True)
class CompareOptions(RunOutput, Options, command="compare", panel="Check a change"):
    """Compare two operands: is the right one slower? SLOW, FAST, SAME, CLOCK, INCONCLUSIVE."""

    left: str = argument("tiles, tiles:block_m=128, a git revision, a run.", "")
    right: str = argument("The same; WORKING is the file as it is.", "")
    triton: tuple[str, str] | None = option(
        None, "Two versions of Triton, or their folders, in place of LEFT and RIGHT."
    )
    kernel: tuple[str, ...] = option((), f"{KERNEL} With --triton it may be repeated.")
    device: tuple[str, ...] = option(
        (),
        "With --triton: compile for it (or all, the default); may be repeated. An Apple GPU: "
        "emulate both and predict.",
    )
    impl: str | None = option(None, "Of revisions or runs: this Impl, or tiles:block_m=128.")
    sizes: str | None = option(None, SIZES)
    dtype: str = option("bf16", DTYPE)
    threshold: float = threshold()
    expect: str | None = option(
        None, "Of two files of ncu: mbarrier, direct_store, tmem_ahead or prefetch."
    )
    also: tuple[Also, ...] = also("both operands")
    require: tuple[Idle, ...] = require_idle()
    trust: bool = flag("Of stored runs: execute the kernel's file that they name.", "--trust")


@dataclass(frozen=True)
class GateOptions(RunOutput, Options, command="gate", panel="Check a change"):
    """Compare every kernel of a suite with a baseline; the exit code is that of the worst."""

    IMPORTS_HERE: ClassVar[bool] = False  # it decides on what lies there

    baseline: str = argument("A git revision to compare the files with.")
    kernel: tuple[str, ...] = option((), "This kernel; may be repeated. Default: what changed.")
    device: tuple[str, ...] = option(
        (), "Compile for this device, or all, and run nothing; may be repeated."
    )
    dtype: str = option("bf16", DTYPE)
    threshold: float = threshold()
    require: tuple[Idle, ...] = require_idle()
    markdown: Path | None = option(
        None, "Write the result as Markdown, for a comment on a pull request.", stored=False
    )
    annotate: bool = annotate()
    sarif: Path | None = sarif()


@dataclass(frozen=True)
class MeasureOptions(RunOutput, Options, command="measure", panel="Understand"):
    """Time Impls at their tuned or default configs over sizes and dtypes, beside baselines."""

    kernel: str = argument("A kernel's name, package.module, or file.")
    impl: tuple[str, ...] = option(
        (), "tiles or tiles:block_m=128; may be repeated. Default: all Triton."
    )
    sizes: tuple[str, ...] = option(
        (), "M=4096,N=4096,K=4096; may be repeated. Default: all to time."
    )
    dtype: tuple[str, ...] = option(
        ("bf16",), "fp32, fp16 or bf16; may be repeated. Default: bf16."
    )
    device: str | None = option(None, DEVICE)
    wide: bool = option(
        False, "Print all columns; 80 characters otherwise.", "--wide", stored=False
    )
    also: tuple[Also, ...] = also("every Impl of ours")
    require: tuple[Idle, ...] = require_idle()


@dataclass(frozen=True)
class EvaluateOptions(Options, command="evaluate", panel="Check a change"):
    """Judge one kernel: is it correct, how fast is it, and which rule does it break?"""

    kernel: str | None = argument("A kernel's name, package.module, or file.", None)
    spec: str | None = option(
        None, "Kernel whose Spec it is held to. Default: the one in the file, which is trusted."
    )
    impl: str | None = option(None, "tiles or tiles:block_m=128. Default: the file's first.")
    sizes: str | None = option(None, f"Sizes to time: {SIZES}. Default: the Spec's first.")
    dtype: str | None = option(None, "fp32, fp16 or bf16. Default: bf16, or the task's.")
    device: str | None = option(None, DEVICE)
    task: Path | None = option(
        None, "Judge a submission to a task of KernelBench, GPU MODE or flashinfer-bench."
    )
    require: tuple[Sanitizer, ...] = word_list(
        Sanitizer, "--require", "sanitizer: one call passes racecheck and memcheck."
    )
    accept_claims: bool = flag("`plausible` is exit code 0.", "--accept-claims")
    verify: Path | None = option(None, "Judge again what this verdict's JSON file is of.")
    reuse: Path | None = option(None, "Give this file's verdict if it is of the same contents.")
    events_file: Path | None = file_option(
        None, "Events file (JSONL) to append to.", "--events-file"
    )
    events: bool = events()
    quiet: bool = quiet()
    json: Path | None = json("Write the verdict to this file; - is standard output.")
    annotate: bool = annotate()
    sarif: Path | None = sarif()


@dataclass(frozen=True)
class ServeOptions(Options, command="serve", panel="Check a change"):
    """Answer programs over the Model Context Protocol, or judge submissions in a folder in turn."""

    mcp: bool = flag("Tools for programs, over standard input and output.", "--mcp")
    jobs: Path | None = option(None, "Judge each submission of this folder, and store verdicts.")
    spec: str | None = option(None, "Of jobs: kernel whose Spec judges.")
    task: Path | None = option(None, "Of jobs: task of another format that judges.")
    dtype: str | None = option(None, "Of jobs: fp32, fp16 or bf16.")
    device: str | None = option(None, f"Of jobs: {DEVICE[0].lower()}{DEVICE[1:]}")
    limit: float = option(600.0, "Of jobs: seconds of one submission.", min=1.0)
    wait: bool = flag("Of jobs: go on for submissions that come later, until Ctrl-C.", "--wait")
    quiet: bool = quiet()
    database: str | None = database()
    json: Path | None = json("Write the verdicts to this file; - is standard output.")


@dataclass(frozen=True)
class DiagnoseOptions(Options, command="diagnose", panel="Understand"):
    """Say what the time is lost to: a stored run, files of a profiler, a kernel's machine code."""

    targets: tuple[str, ...] = argument(
        "last or a run's id; files of a profiler; a kernel or file of machine code.",
        (),
        "last|RUN|FILE...|KERNEL",
    )
    impl: str | None = option(None, "Of a kernel: tiles or tiles:block_m=128. Default: the first.")
    sizes: str | None = option(None, f"Of a kernel: {SIZES}. Default: the Spec's first.")
    dtype: str | None = option(None, "Of a kernel: fp32, fp16 or bf16, which is the default.")
    device: str | None = option(None, "Of a kernel: compile for h200, mi300x, ... or for all.")
    rules: bool = flag("List all rules with thresholds, needs and sources.", "--rules")
    all: bool = flag("Also list each rule that could not be evaluated.", "--all")
    quiet: bool = quiet("Print only the rules that hold.")
    json: Path | None = json()
    annotate: bool = annotate()
    sarif: Path | None = sarif()
    database: str | None = database()


TOOLS = (
    "ncu, trace, proton, sanitizer, nsys, rocprofv3, rocprof, rocprof-compute, xctrace, gputrace"
)


@dataclass(frozen=True)
class ProfileOptions(TakesProgram, RunOutput, Options, command="profile", panel="Understand"):
    """Profile a kernel or your own program with a tool, and read what it leaves."""

    tool: str | None = option(None, f"{TOOLS}. Default: ncu of a kernel on NVIDIA, else trace.")
    impl: str | None = option(None, "Of a kernel: tiles or tiles:block_m=128. Default: the first.")
    sizes: str | None = option(None, f"Of a kernel: {SIZES}.")
    dtype: str | None = option(None, "Of a kernel: fp32, fp16 or bf16, which is the default.")
    calls: int | None = option(None, "Of a kernel: calls to record.", min=1, max=100_000)
    steps: str | None = more(
        None,
        "Of a program that calls workbench.step(): steps to skip, to warm up and to record, 0,1,3.",
        read=read_steps,
        metavar="WAIT,WARMUP,ACTIVE",
    )
    with_: tuple[Recorded, ...] = word_list(
        Recorded, "--with", "trace: shapes of inputs, memory of operators, Python's stacks."
    )
    metrics: str | None = option(None, "ncu, rocprofv3: counters to add, A,B.")
    tool_option: tuple[str, ...] = more(
        (),
        "ncu: set=detailed; proton: data=trace; sanitizer: checks=all; xctrace: "
        "instrument=Allocations. Repeated.",
        metavar="KEY=VALUE",
    )
    list_metrics: bool = more(False, "Print ncu's counters that hold a pattern.", "--list-metrics")
    device: str | None = more(None, "Of --list-metrics, --metrics: names valid there.")
    dry_run: bool = flag("Print what would be run and read.", "--dry-run", stored=False)
    target: tuple[str, ...] = argument("A kernel; or -- and a program.", (), "KERNEL|-- PROGRAM")

    @property
    def require(self) -> tuple[str, ...]:
        """Nothing: the time without a profiler counts other processes on the GPU."""
        return ()

    def tool_values(self, key: str) -> tuple[str, ...]:
        """Return the values of a key of `--tool-option`."""
        pairs = (text.partition("=") for text in self.tool_option)
        return tuple(value for name, _, value in pairs if name == key)

    def tool_value(self, key: str) -> str:
        """Return the last value of a key of `--tool-option`, or an empty text."""
        return "".join(self.tool_values(key)[-1:])

    @property
    def kernel(self) -> str | None:
        """Kernel as named, or None. Raises OptionError where there are several."""
        words = self.operands
        if len(words) > 1:
            raise OptionError(
                f"{words[1]} is one word too many; a program stands behind --: workbench profile "
                f"-- {shlex.join(words)[:200]}."
            )
        return words[0] if words else None


@dataclass(frozen=True)
class ExperimentOptions(RunOutput, Options, command="experiment", panel="Understand"):
    """Run an experiment on kernels, such as memory_vs_compute, and report a finding."""

    name: str | None = argument("A name, or path/to/mine.py; without it, list the names.", None)
    kernel: str | None = option(None, KERNEL)
    sizes: str | None = option(None, SIZES)
    dtype: str | None = option(None, DTYPE)
    device: str | None = option(None, DEVICE)
    time: str | None = option(None, "For `expected`: a time to compare with the bound, 0.5ms.")
    require: tuple[Idle, ...] = require_idle()


@dataclass(frozen=True)
class CeilingsOptions(RunOutput, Options, command="ceilings", panel="Understand"):
    """Measure what this GPU reaches: bandwidths, rates, launches, copies; each checked against a
    library."""

    device: str | None = option(None, "Print the stated ceilings of this device; measure nothing.")
    require: tuple[Idle, ...] = require_idle()


@dataclass(frozen=True)
class CalibrateOptions(RunOutput, Options, command="calibrate", panel="Tune"):
    """Time configs of each kernel over many sizes, by which launches without a config choose."""

    kernel: tuple[str, ...] = option((), "A kernel of the workbench; repeated. Default: nine.")
    dtype: str | None = option(None, "fp32, fp16 or bf16; by default that of the kernel's models.")
    measure: int = option(12, "Sizes of each kernel to measure.", min=4)
    check: int = option(8, "More sizes, which only check the result.", min=0)
    configs: int = option(24, "Configs to time at each size.", min=1)
    budget: str = option("30m", "90s, 30m: stop then; the same command continues.", stored=False)
    device: str | None = option(
        None, "Print the sizes and the calibration of this device; measure nothing."
    )
    to: Path | None = option(None, "File to write in place of the user's own.", stored=False)
    require: tuple[Idle, ...] = require_idle()


@dataclass(frozen=True)
class ReportOptions(Options, command="report", panel="Look back"):
    """Draw a page of stored runs: of one run again, or the roofline of any number of runs."""

    name: str = argument("sweep, compare, measure, experiment, ceilings, trace, roofline, ...")
    runs: tuple[str, ...] = argument(
        "A run's id or its start, or an events file. Default: last.", (), "[RUN]..."
    )
    kernel: str | None = option(None, "Roofline: all runs of this kernel, in place of RUN.")
    device: str | None = option(None, "Roofline: all runs on this device, in place of RUN.")
    everything: bool = flag("Roofline: every config of a sweep, every part of a kernel.", "--all")
    out: Path | None = option(None, "File to write.")
    csv: Path | None = option(None, "Roofline: also write every number drawn, as CSV.")
    json: Path | None = json("Also write what is drawn; - is standard output.")
    figure: Path | None = option(None, "Roofline: also a figure for papers: .png, .svg or .pdf.")
    quiet: bool = quiet("Print nothing; errors stay.")
    database: str | None = database()


@dataclass(frozen=True)
class ReadOptions(Options, command="read", panel="Understand"):
    """Read the files of any profiler: KPIs with their targets, and one row a kernel."""

    files: tuple[str, ...] = argument("Files of one run, folders, .gz, .zip, or -.")
    range: str | None = option(None, "Only what was launched in host ranges of this name.")
    json: Path | None = json("Write all of it to this file; - is standard output.")
    csv: Path | None = option(None, "Write the kernels to this file.", stored=False)
    perfetto: Path | None = option(
        None, "Write a timeline for ui.perfetto.dev to this file.", stored=False
    )
    quiet: bool = quiet("Print only KPIs, findings and the page's path.")
    out: Path = out()
    database: str | None = database()


def program() -> Any:
    """Return a field that declares `--` and a program."""
    return argument("-- and the program.", (), "-- PROGRAM")


def workload_files() -> Any:
    """Return a field that declares workload files as arguments."""
    return argument("Workload files, which `record` writes.", metavar="FILE...")


def policy() -> Any:
    """Return a field that declares `--policy`."""
    return option("tune", "For a key that the table lacks: nearest, first, tune or error.")


def verify() -> Any:
    """Return a field that declares `--verify`."""
    return more(False, "Compare the choices of all ranks.", "--verify")


@dataclass(frozen=True)
class WorkloadRecordOptions(TakesProgram, Options, command="workload record", panel="Tune"):
    """Run a program, and record which Triton kernels it launches."""

    out: Path = file_option(Path("run.workload"), "The workload file.")
    profile_steps: int = more(3, "Steps whose GPU time is recorded; 0 for none.", min=0)
    values: bool = more(False, "Keep the values of small integer tensors.", "--values")
    device: str | None = option(None, "The device that stands in for a missing GPU: h200.")
    quiet: bool = quiet("Print only the table.")
    json: Path | None = json()
    target: tuple[str, ...] = program()


@dataclass(frozen=True)
class WorkloadShowOptions(Options, command="workload show", panel="Tune"):
    """Print the kernels of a workload file, or of several as one."""

    files: tuple[str, ...] = workload_files()
    quiet: bool = quiet("Print only the table.")
    json: Path | None = json()


@dataclass(frozen=True)
class WorkloadMergeOptions(Options, command="workload merge", panel="Tune"):
    """Write several workload files as one."""

    files: tuple[str, ...] = workload_files()
    out: Path = file_option(Path("run.workload"), "The workload file to write.")
    quiet: bool = quiet("Print only the table.")
    json: Path | None = json()


@dataclass(frozen=True)
class WorkloadTuneOptions(Options, command="workload tune", panel="Tune"):
    """Tune the kernels of a workload, and write a tuned table."""

    files: tuple[str, ...] = workload_files()
    tuned: Path = option(Path("tuned.json"), "The tuned table to write.")
    budget: str = option("10m", "Time for all signatures: 30s, 10m, 2h.")
    cover: float = more(0.95, "Share of the kernels' time that is tuned.")
    device: str | None = option(None, DEVICE)
    dry_run: bool = flag("Print what would be tuned, and stop.", "--dry-run")
    workers: str | None = workers()
    widen: bool = more(
        False, "Add configs one step beyond, where the best is at an end.", "--widen"
    )
    predicted: bool = more(False, "Write predicted entries, which no pin uses.", "--predicted")
    trust: bool = more(False, "Import source files that differ from the record.", "--trust")
    out: Path = out()
    database: str | None = database()
    quiet: bool = quiet()
    json: Path | None = json()


@dataclass(frozen=True)
class WorkloadRunOptions(TakesProgram, Options, command="workload run", panel="Tune"):
    """Run a program with the configs of a tuned table."""

    tuned: Path = option(MISSING, "The tuned table.")
    policy: str = policy()
    verify: bool = verify()
    quiet: bool = quiet()
    json: Path | None = json()
    target: tuple[str, ...] = program()


@dataclass(frozen=True)
class WorkloadCompareOptions(TakesProgram, Options, command="workload compare", panel="Tune"):
    """Compare a program's step time with and without a tuned table."""

    table: Path = argument("The tuned table.", metavar="TABLE")
    policy: str = policy()
    verify: bool = verify()
    rounds: int = more(6, "Runs with and without the table, each; 6 can decide.", min=2)
    at_once: int = more(1, "Runs that import at once, then take turns.", min=1)
    step_mark: str | None = more(None, "KERNEL or KERNEL:N, a step's launches.")
    threshold: float = threshold()
    out: Path = out("Folder for the page and the runs.")
    quiet: bool = quiet()
    json: Path | None = json()
    target: tuple[str, ...] = program()


@dataclass(frozen=True)
class WorkloadExportOptions(Options, command="workload export", panel="Tune"):
    """Write a tuned table as Triton, vLLM or a Python program reads it."""

    table: Path = argument("The tuned table.", metavar="TABLE")
    out: Path = argument("File or folder to write.", metavar="OUT")
    to: str = option(MISSING, "triton-cache, vllm-moe or python.")
    trust: bool = flag("Import the modules that the table names.", "--trust")
    quiet: bool = quiet()
    json: Path | None = json()


@dataclass(frozen=True)
class CodeOptions(Options, command="code", panel="Understand"):
    """Show the machine code of a kernel or file: resources, loops, control flow, live registers."""

    target: str = argument("A kernel; or a .cubin, .hsaco, .amdgcn, .ptx or .ncu-rep file.")
    impl: str | None = option(None, "tiles or tiles:block_m=128. Default: the first.")
    sizes: str | None = option(None, f"{SIZES}. Default: the Spec's first.")
    dtype: str = option("bf16", DTYPE)
    device: str | None = option(None, "Compile for this target (h200, mi300x, ...) with no GPU.")
    against: str | None = option(None, "Compare with this config, file or git revision.")
    find: str | None = option(None, "List instructions by PTX word or opcode: tcgen05.ld, LDSM.")
    samples: Path | None = option(None, "Show the stall samples of this ncu file at their lines.")
    launch: int | None = option(None, "Of a profile: the launch to show, from 0.")
    text: bool = flag("Print the whole listing.", "--text")
    dot: Path | None = option(None, "Write the control flow for Graphviz.", stored=False)
    out: Path = out("Folder for the page.")
    quiet: bool = quiet()
    json: Path | None = json()


@dataclass(frozen=True)
class HistoryOptions(Options, command="history", panel="Look back"):
    """List the outcomes of earlier runs."""

    kernel: str | None = argument("This kernel only: its name, or path/to/mine.py.", None)
    impl: str | None = option(None, "This Impl only.")
    device: str | None = option(None, "This device only.")
    dtype: str | None = option(None, "This dtype only.")
    failures: bool = flag("Failures alone.", "--failures")
    limit: int = option(50, "Rows at most, newest first.", min=1)
    wide: bool = flag("Print all columns; otherwise those that fit.", "--wide")
    load: Path | None = option(None, "Import the good lines of this events file first.")
    prune: bool = flag("Delete old runs; asks before.", "--prune")
    older_than: str | None = option(None, "Prune: runs older than 90d, 12w, or a date.")
    keep: int | None = option(None, "Prune: the newest runs to keep, whatever their age.", min=0)
    yes: bool = flag("Prune without asking.", "--yes")
    quiet: bool = quiet("Print only the outcomes.")
    json: Path | None = json("Write the outcomes to this file; - is standard output.")
    export: tuple[str, ...] = file_option(
        (), "Write a file for others: parquet=FILE, benchmark-json=FILE or bencher=FILE; repeated."
    )
    database: str | None = database()


@dataclass(frozen=True)
class SiteOptions(Options, command="site", panel="Look back"):
    """Write the history as a folder of pages: curves over commits, steps, regressions."""

    out: Path = argument("Folder to write; one that `site` wrote before is replaced.")
    repository: Path | None = option(
        None, "Folder in the repository of the commits. Default: the current one."
    )
    results: Path = option(Path("results"), "Folder with the runs' pages, to link to them.")
    quiet: bool = quiet("Print only the path of the site.")
    json: Path | None = json("Write the steps to this file; - is standard output.")
    database: str | None = database()


@dataclass(frozen=True)
class BisectOptions(RunOutput, Options, command="bisect", panel="Check a change"):
    """Find the commit that made a kernel slower, by git bisect and interleaved comparisons."""

    kernel: str = argument("A kernel's name, package.module, or file.")
    good: str = argument("A git revision at which it is fast.")
    bad: str = argument("A later one at which it is slow.")
    impl: str | None = option(None, "tiles or tiles:block_m=128. Default: the first Triton Impl.")
    sizes: str | None = option(None, f"{SIZES}. Default: the Spec's first.")
    dtype: str = option("bf16", DTYPE)
    device: str | None = option(
        None, "Run nothing: compare the machine code for this device with that of GOOD and BAD."
    )
    threshold: float = threshold()
    require: tuple[Idle, ...] = require_idle()


@dataclass(frozen=True)
class DevicesOptions(Options, command="devices", panel="This machine"):
    """List the devices that --device can name: name, architecture, title."""

    quiet: bool = quiet("Print only the names.")
    json: Path | None = json("Write all figures to this file; - is standard output.")


@dataclass(frozen=True)
class DoctorOptions(Options, command="doctor", panel="This machine"):
    """Check the database and what this machine can do, and what to install for the rest."""

    quiet: bool = quiet("Print only what is missing.")
    json: Path | None = json("Write the checks to this file; - is standard output.")
    database: str | None = database()


@dataclass(frozen=True)
class NewKernelOptions(Options, command="new-kernel", panel="Tune"):
    """Write a working kernel file to start from."""

    name: str = argument("Name of the kernel: a Python name.")
    folder: Path = option(Path("."), "Where to write NAME.py.")
    like: str | None = option(
        None, "elements, rows, tiles, matmul or attention; what its name says otherwise."
    )


# Commands whose name has two words, by the first of them, with the line of `--help`.
GROUPS = {
    "workload": "Record which Triton kernels a program launches, tune them, run it with them, and "
    "compare."
}


def module_of(options: Options) -> ModuleType:
    """Return the module of a command, which has its `run`; it is imported only then."""
    return import_module(f"workbench.commands.{options.COMMAND.translate(_UNDERSCORES)}")


_UNDERSCORES = str.maketrans("- ", "__")


def commands() -> dict[str, type[Options]]:
    """Return the options of every command by its name, in the order of this file."""
    return {cls.COMMAND: cls for cls in Options.__subclasses__()}
