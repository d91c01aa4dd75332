"""Declare the options of a command: one field, or those that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass
from dataclasses import field as new_field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from workbench.commands.options import OptionError

DEVICE = "Compile and predict for this target (h200, mi300x, ...) with no GPU."
KERNEL = "A kernel's name, package.module, or path/to/mine.py."
DTYPE = "fp32, fp16 or bf16."
SIZES = "M=4096,N=4096,K=4096"
# Panels of a command's options: those that most calls need, and then these.
MORE = "More options"
FILES = "Files and output"
# Words of the options that take several of a list.
Also = Literal["energy", "profile"]
Idle = Literal["idle-gpu"]


def argument(help: str, default: Any = MISSING, metavar: str | None = None) -> Any:
    """Return a field that declares a positional argument."""
    data = {"help": help, "positional": True, "metavar": metavar, "stored": True}
    return new_field(default=default, metadata=data)


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
    return new_field(default=default, metadata={**data, "read": read, "words": words})


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
    return file_option(True, "Write dispatches and times as events.", "--events/--no-events")


def quiet(help: str = "Print only the result.") -> Any:
    """Return a field that declares `--quiet`."""
    return file_option(False, help, "--quiet")


def json(help: str = "Write the result to this file; - is standard output.") -> Any:
    """Return a field that declares `--json`."""
    return file_option(None, help, "--json")


def annotate() -> Any:
    """Return a field that declares `--annotate`."""
    return file_option(
        False, "Print `::error file=,line=` for each finding, for GitHub.", "--annotate"
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
    """Return the number of GPUs, or a scheduler's address. Raises OptionError for another text."""
    if value is None or re.fullmatch(WORKERS, str(value), re.ASCII):
        return None if value is None else str(value)
    raise OptionError(
        f"--workers {value} is neither a number of GPUs nor the address of a scheduler; write "
        "--workers 2, or --workers tcp://HOST:8786."
    )


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
