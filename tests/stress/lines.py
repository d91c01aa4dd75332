"""Malformed command lines, drawn from the options of every command.

Each must end in time, with an exit code of the table, and in a sentence where it could not run.
"""

from __future__ import annotations

import gzip
import os
import random
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from stress.cases import CODES, ROOT, Case, Ended, Place, Violation
from workbench.commands.new_kernel import write_kernel
from workbench.commands.options import Options, commands

NAME, COUNT, SAMPLE = "lines", 1000, 50
LIMIT_S = 60.0
REAL = 0.08  # share of cases that start Python anew: they cost seconds
STORED = ROOT / "tests" / "golden" / "stored"
PIPE_CLOSED = 141

# Text

LONG = "x" * 5000
TEXTS = (
    "", " ", "-", "--", "---", "-x", "--=", "=", "0", "-1", "nan", "NaN", "inf", "-inf", "1e999",
    "1e-999", "9" * 400, "-" + "9" * 400, "0x10", "1_000", "1,5", "١٢٣", "½", "true", "None",
    "null",
    "\n", "\t", "\r\n", "\x1b[2J\x1b]0;owned\x07", "\x07\x08", "\x7f", "\x9b31m", "a\nb", "🚀",
    "é" * 300,
    "\u202e\u200b", "\ufeffmatmul", "\udcff\udcfe", "mat\udc80mul", LONG, "-" * 3000, "%s%n%d",
    "{0}",
    "{", "}", "$(touch owned)", "`touch owned`", "; touch owned", "'", '"', "\\", "*", "?", "~",
    "@file", "[bold red]x", "[/]", "matmull", "MATMUL", "tiles:", "tiles:block_m",
    "tiles:block_m=x",
    "tiles:=1", "tiles:block_m=1,block_m=2", ":", "a:b:c", "last", "0" * 64, "2026", "HEAD", "..",
    "import os", "os", "sys", "workbench", "workbench.cli", "tests", "__main__", "a.b.c", ".",
    "..x",
)  # fmt: skip
SIZES = (
    "N", "N=", "=1", "N==1", "N=1=2", "N=0", "N=-1", "N=1.5", "N=1e9", "N=nan", "N=٣", "N=1,N=1",
    "N=1,", ",", ",,,", "M=1", "n=1", "N=1;M=2", "N=" + "9" * 400, "N=1 M=1", " N = 0 ", "N=0x10",
    "N=1,M=1,K=1", "N=4611686018427387904", "N=9223372036854775807", "N=\x1b[2J", "N=🚀",
    "N=" + LONG,
    "N=1\x00".replace("\x00", "\x01"), "N=None", "N=True", "N=N", "N=-0", "N=+1",
)  # fmt: skip
BUDGETS = (
    "0",
    "-1",
    "0s",
    "1x",
    "s",
    "1 s",
    "1e999s",
    "nan",
    "infs",
    "-5m",
    "9" * 400 + "s",
    "2h1m",
)
DATABASES = (
    "sqlite:///", "sqlite://", "sqlite:////no/such/place/x.db", "nonsense", "postgresql://",
    "postgresql://127.0.0.1:1/x", "mysql://x", "sqlite:///\x01", "://",
    "sqlite:///" + LONG, "file:x",
    "sqlite:////dev/full", "sqlite:////dev/null", "sqlite:////", "sqlite:///:memory:",
    "http://[::1",
    "sqlite:///x.db?mode=zzz", "postgresql://u:p@127.0.0.1:notaport/x",
)  # fmt: skip
DATES = ("0d", "-1d", "1y", "90", "2026-13-40", "9999-99-99", "0000-00-00", "1e9d", "9" * 30 + "d",
         "nan d", "2999-01-01", "-2026-01-01")  # fmt: skip


# Files


def _writes(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _half(name: str) -> Callable[[Path], object]:
    """Write the first half of a stored file."""

    def write(path: Path) -> None:
        whole = gzip.decompress((STORED / f"{name}.gz").read_bytes())
        path.write_bytes(whole[: len(whole) // 2])

    return write


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _locked(path: Path) -> None:
    path.write_text("secret")
    path.chmod(0)


SPEC = b"from workbench.spec import Spec, Tensor\n"
FILES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "empty": _writes(b""),
    "nul": _writes(b"\0" * 4096),
    "binary": _writes(bytes(range(256)) * 64),
    "latin": _writes("é = 'ÿ'\n".encode("latin-1") * 40),
    "utf16": _writes("x = 1\n".encode("utf-16")),
    "deep_json": _writes(b"[" * 200_000),
    "deep_object": _writes(b'{"type":"Run","id":' * 20_000),
    "huge_number": _writes(b'{"type":"Record","flops":' + b"9" * 5000 + b"}\n"),
    "nan_json": _writes(b'{"type":"Record","flops":NaN,"bytes":Infinity}\n' * 3),
    "other_type": _writes(b'{"type":"__reduce__"}\n{"type":[]}\n{"type":null}\n5\n"x"\n[]\nnull\n'),
    "long_line": _writes(b'{"type":"Run","id":"' + b"x" * 2_000_000 + b'"}\n'),
    "half_events": _half("sweep_predicted.jsonl"),
    "half_measured": _half("sweep_measured.jsonl"),
    "half_database": _half("history.db"),
    "no_database": _writes(b"SQLite format 3\0" + b"\xff" * 5000),
    "fifo": lambda path: os.mkfifo(path),
    "loop": _loop,
    "endless": _endless,
    "locked": _locked,
    "syntax.py": _writes(b"def broken(:\n"),
    "nul.py": _writes(b"x = 1\0\n"),
    "deep.py": _writes(b"x = " + b"(" * 5000 + b")" * 5000),
    "deep_minus.py": _writes(b"x = " + b"-" * 100_000 + b"1"),
    "no_spec.py": _writes(b"x = 1\n"),
    "no_impl.py": _writes(SPEC + b"s = Spec(name='s', inputs={'x': Tensor('N')}, outputs={'y': "
                          b"Tensor('N')}, reference=abs, flops=lambda N: N, check=[{'N': 1}], "
                          b"bench=[{'N': 1}])\n"),
    "encoding.py": _writes(b"# -*- coding: no-such-thing -*-\nx = 1\n"),
    "folder.py": lambda path: path.mkdir(),
    "fifo.py": lambda path: os.mkfifo(path),
    "endless.py": _endless,
    "missing.py": lambda path: None,
    "new\nline.py": _writes(b"raise ValueError('line\\nline \\x1b[2J')\n"),
    "n" * 250 + ".py": _writes(b"x = 1\n"),
}  # fmt: skip
DEVICES = ("/dev/full", "/dev/null", "/dev/zero", "/dev/stdin", "/dev/stdout", "/",
           "/proc/self/mem",
           "/no/such/folder/file", "/" + LONG, "/dev/full/x", "/etc/passwd/x")  # fmt: skip

# Options


@dataclass(frozen=True)
class Parameter:
    """An option or argument of a command, as its options class declares it."""

    flag: str
    name: str
    kind: Any
    positional: bool

    @property
    def takes(self) -> bool:
        """Whether a value follows it."""
        return self.kind is not bool


def parameters(command: type[Options]) -> list[Parameter]:
    """The options and arguments of a command."""
    kinds = get_type_hints(command)
    return [
        Parameter(
            (f.metadata.get("name") or f"--{f.name.replace('_', '-')}").partition("/")[0],
            f.name, kinds[f.name], f.metadata["positional"],
        )
        for f in fields(command)
    ]  # fmt: skip


PATHS = {"out", "metrics", "load", "csv", "json", "figure", "file", "export", "folder", "summary"}
KERNELS = {"kernel"}


@dataclass
class Draw:
    """The random choices of one case."""

    rng: random.Random
    place: Place
    made: dict[str, str] = field(default_factory=dict)

    def file(self) -> str:
        """The path of an odd file, which is written at its first use."""
        if self.rng.random() < 0.15:
            return self.rng.choice(DEVICES)
        name = self.rng.choice(list(FILES))
        if name not in self.made:
            FILES[name](self.place.here / name)
            self.made[name] = name
        return name if self.rng.random() < 0.5 else str(self.place.here / name)

    def value(self, parameter: Parameter) -> str:
        """A value that the parameter should not have, most of the time."""
        name, rng = parameter.name, self.rng
        if rng.random() < 0.25:
            return rng.choice(TEXTS)
        if name == "database":
            odd = rng.choice(DATABASES)
            return odd if rng.random() < 0.5 else f"sqlite:///{self.file()}"
        if name == "sizes":
            return rng.choice(SIZES)
        if name in ("budget", "time"):
            return rng.choice(BUDGETS)
        if name == "older_than":
            return rng.choice(DATES)
        if name in PATHS or name in KERNELS or name == "runs":
            return self.file()
        return rng.choice(TEXTS)


def base(command: str, kernel: str) -> list[str]:
    """The words of a command that is right, and that ends in seconds."""
    tiny = ["--device", "h200"]
    known: dict[str, list[str]] = {
        "sweep": ["tile_size", "--kernel", kernel, "--only", "--budget", "1", *tiny],
        "compare": ["blocks", "blocks:block_n=512", "--kernel", kernel, "--sizes", "N=1024"],
        "gate": ["HEAD"],
        "measure": [kernel, "--sizes", "N=1024", *tiny],
        "experiment": ["expected", "--kernel", kernel, *tiny],
        "ceilings": tiny,
        "report": ["sweep"],
        "new-kernel": ["another"],
        "profile": [kernel, "--sizes", "N=1024", "--dry-run"],
        "workload show": ["run.workload"],
        "workload merge": ["run.workload"],
        "workload tune": ["run.workload", "--dry-run", *tiny],
        "workload compare": ["tuned.json", "--", "true"],
        "workload export": ["tuned.json", "written", "--to", "python"],
        "workload run": ["--tuned", "tuned.json", "--", "true"],
        "workload record": ["--", "true"],
    }
    return [*command.split(), *known.get(command, [])]


def words_of(draw: Draw) -> list[str]:
    """A command line with one to three things wrong with it."""
    rng = draw.rng
    every = commands()
    # `sweep`, `measure` and `compare` have most options, and most users
    name = rng.choice([*every, "sweep", "measure", "compare", "report", "history"])
    known = parameters(every[name])
    words = base(name, str(draw.place.here / "mine.py"))
    if rng.random() < 0.7 and any(p.name == "database" for p in known):
        words += ["--database", draw.place.database]
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        words = rng.choice(MUTATIONS)(draw, words, known)
    return [word.replace("\0", "") for word in words]


Mutation = Callable[[Draw, list[str], list[Parameter]], list[str]]


def _odd_value(draw: Draw, words: list[str], known: list[Parameter]) -> list[str]:
    """Give an option an odd value, in place of its own where it has one."""
    given = [p for p in known if p.takes and not p.positional]
    if not given:
        return [*words, draw.rng.choice(TEXTS)]
    parameter = draw.rng.choice(given)
    value = draw.value(parameter)
    if parameter.flag in words:
        at = words.index(parameter.flag)
        return [*words[: at + 1], value, *words[at + 2 :]]
    if draw.rng.random() < 0.3:
        return [*words, f"{parameter.flag}={value}"]
    return [*words, parameter.flag, value]


def _odd_argument(draw: Draw, words: list[str], known: list[Parameter]) -> list[str]:
    """Replace an argument, or add one too many."""
    words = words or ["sweep"]
    places = [p for p in known if p.positional]
    value = draw.value(draw.rng.choice(places)) if places else draw.rng.choice(TEXTS)
    if places and len(words) > 1 and not words[1].startswith("-"):
        return [words[0], value, *words[2:]]
    return [words[0], value, *words[1:]]


def _unknown(draw: Draw, words: list[str], known: list[Parameter]) -> list[str]:
    """Add an option that no command has."""
    odd = ("--nonsense", "--kernell", "-q", "-", "---", "--=x", "--🚀", "--\udcff", "--" + LONG,
           "--no-quiet", "--Kernel", "--\x1b[2J", "--sizes=", "-vvvv", "--nonsense=\n")  # fmt: skip
    at = draw.rng.randrange(len(words) + 1)
    return [*words[:at], draw.rng.choice(odd), *words[at:]]


def _without_value(draw: Draw, words: list[str], known: list[Parameter]) -> list[str]:
    """End in an option whose value is missing."""
    return [*words, draw.rng.choice([p.flag for p in known if p.takes] or ["--out"])]


def _twice(draw: Draw, words: list[str], known: list[Parameter]) -> list[str]:
    """Give one option several times, with different values."""
    given = [p for p in known if p.takes and not p.positional] or [
        Parameter("--out", "out", Path, False)
    ]
    parameter = draw.rng.choice(given)
    many = draw.rng.choice((2, 2, 3, 500))
    return [*words, *(w for _ in range(many) for w in (parameter.flag, draw.value(parameter)))]


def _contradiction(draw: Draw, words: list[str], known: list[Parameter]) -> list[str]:
    """Add several switches, and values that a switch does not take."""
    flags = [p.flag for p in known if not p.takes]
    some = draw.rng.sample(flags, min(len(flags), 3))
    if some and draw.rng.random() < 0.3:
        some[0] += "=" + draw.rng.choice(TEXTS)
    return [*words, *some]


def _less(draw: Draw, words: list[str], known: list[Parameter]) -> list[str]:
    """Drop a word. The device stays: another command would measure on a GPU."""
    if not words:
        return words
    at = draw.rng.randrange(len(words))
    keep = {"--device", "h200", "--budget", "1"}
    return words if words[at] in keep else [*words[:at], *words[at + 1 :]]


def _another_command(draw: Draw, words: list[str], known: list[Parameter]) -> list[str]:
    """Name no command, or one that there is not."""
    return [draw.rng.choice(TEXTS), *words[1:]]


def _misplaced(draw: Draw, words: list[str], known: list[Parameter]) -> list[str]:
    """Put the end of options, a help or a version somewhere."""
    at = draw.rng.randrange(len(words) + 1)
    return [*words[:at], draw.rng.choice(("--", "--help", "--version", "--", "")), *words[at:]]


MUTATIONS: Sequence[Mutation] = (
    _odd_value, _odd_value, _odd_value, _odd_value, _odd_argument, _odd_argument, _unknown,
    _without_value, _twice, _contradiction, _less, _another_command, _misplaced,
)  # fmt: skip

# Surroundings


@dataclass(frozen=True)
class Around:
    """What surrounds a command, and the exit codes that it may have besides the usual."""

    name: str
    how: dict[str, Any] = field(default_factory=dict)
    codes: frozenset[int] = frozenset()
    silent: bool = False  # what it says cannot be seen


PLAIN = Around("plain")
ODD = (
    Around("deleted folder", {"gone": True}),
    Around("closed stdout", {"closed": [1]}, silent=True),  # a help is printed there
    Around("closed stderr", {"closed": [2]}, silent=True),
    Around("closed outputs", {"closed": [1, 2]}, silent=True),
    Around("full disk", {"output": "/dev/full"}),
    Around("no home", {"variables": {"HOME": None, "XDG_DATA_HOME": None}}),
    Around("home that is a file", {"variables": {"HOME": "/dev/null", "XDG_DATA_HOME": None}}),
    Around("data folder that is a file", {"variables": {"XDG_DATA_HOME": "/dev/null/x"}}),
    Around("one column", {"variables": {"COLUMNS": "1", "LINES": "1"}}),
    Around("odd columns", {"variables": {"COLUMNS": "-5", "TERM": "\x1b"}}),
    Around("no variables", {"variables": {"PATH": None, "HOME": None, "TERM": None, "LANG": None}}),
)
ASCII = Around("ASCII", {"variables": {"LC_ALL": "C", "PYTHONUTF8": "0",
                                       "PYTHONCOERCECLOCALE": "0"}})  # fmt: skip


def run(case: Case, place: Place) -> list[Violation]:
    """Run a case; gives what is wrong."""
    rng = case.random()
    write_kernel("mine", place.here)
    words = words_of(Draw(rng, place))
    real = rng.random() < REAL
    around = PLAIN if rng.random() < 0.7 else rng.choice((*ODD, *((ASCII,) if real else ())))
    place.ran.append(f"# {around.name}{', a process of its own' if real else ''}")
    start = place.real if real else place.forked
    ended = start(words, LIMIT_S, **around.how)
    faults = ended.faults(CODES | around.codes | {PIPE_CLOSED})
    if around.silent or around.name == "full disk":
        faults = [f for f in faults if not f.text.startswith("no sentence")]
    ran_program = words[:1] == ["profile"] and "--" in words  # whose temporary files are its own
    return faults + _behind(place, ended, ran_program)


def _behind(place: Place, ended: Ended, ran_program: bool) -> list[Violation]:
    """What a command left where it should not."""
    faults = []
    if (names := place.temporary()) and not ended.hung and not ran_program:
        faults.append(Violation("leftover", f"temporary files: {', '.join(names)}"))
    for name in ("owned",):
        if (place.here / name).exists():
            faults.append(Violation("accepted", "an argument was executed by a shell"))
    with suppress(OSError):
        shutil.rmtree(place.folder / "gone", ignore_errors=True)
    return faults
