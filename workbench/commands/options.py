"""What the options classes of all commands share, and where the commands are found.

A command is a file of this folder: its help, its options class, and `run(options) -> exit code`.
The command line (`parameters.py`) is built from the fields, which `field.py` declares. `--help`
imports these files, so they import what does the work inside `run`.
"""

import shlex
import sys
from dataclasses import dataclass, fields
from importlib import import_module
from types import ModuleType
from typing import ClassVar, dataclass_transform

from workbench.spec import WorkbenchError

# The commands by their panel of `workbench --help`, in its order. A dash or a space is an
# underscore in the name of the file.
PANELS = {
    "Tune": ("sweep", "tune", "predict", "tuned", "calibrate", "workload", "new-kernel"),
    "Understand": ("measure", "diagnose", "profile", "experiment", "ceilings", "read", "code"),
    "Check a change": ("compare", "gate", "evaluate", "serve", "bisect"),
    "Look back": ("report", "history", "site"),
    "This machine": ("devices", "doctor"),
}
# The second words of commands that have two, and the help of the first.
GROUPS = {"workload": ("record", "show", "merge", "tune", "run", "compare", "export")}
GROUP_HELP = {
    "workload": "Record which Triton kernels a program launches, tune them, run it with them, and "
    "compare."
}
# The modules of `reports/` that draw a page of stored runs.
REPORTS = (
    "calibration", "ceilings", "compare", "experiment", "findings", "measure", "roofline", "sweep",
    "trace", "versions",
)  # fmt: skip
PAIR = "tuple[str, str] | None"  # type of an option with two values
DEFAULT_TARGET = "h200"  # where no GPU is present and no device was named


class CommandError(WorkbenchError):
    """A command cannot be carried out: one sentence says why and what to do next."""


class OptionError(WorkbenchError, ValueError):
    """An option has a value that it cannot have; one sentence says which it may have."""


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Options:
    """Options of a command, in the words of the command line. A subclass is a dataclass, too."""

    COMMAND: ClassVar[str]  # two words where the first is a group: `workload tune`
    PROGRAM: ClassVar[tuple[str, ...]] = ()  # in the stored command; `workbench COMMAND` else
    TAKES_PROGRAM: ClassVar[bool] = False
    IMPORTS_HERE: ClassVar[bool] = True  # modules of the current folder, after all others

    def __init_subclass__(cls) -> None:
        """Make the class a dataclass; the command's name and help are those of its file."""
        cls.COMMAND = _NAMES[cls.__module__.rpartition(".")[2]]
        cls.__doc__ = sys.modules[cls.__module__].__doc__
        dataclass(frozen=True)(cls)

    def __post_init__(self) -> None:
        for f in fields(self):
            if (read := f.metadata.get("read")) is not None:
                object.__setattr__(self, f.name, read(getattr(self, f.name)))

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
    """What options of commands share that take `--` and a program: both are in `target`."""

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


_UNDERSCORES = str.maketrans("- ", "__")
COMMANDS = tuple(
    f"{first} {second}".strip()
    for names in PANELS.values()
    for first in names
    for second in GROUPS.get(first, ("",))
)
_NAMES = {name.translate(_UNDERSCORES): name for name in COMMANDS}


def module_of(command: str) -> ModuleType:
    """Return the module of a command."""
    return import_module(f"workbench.commands.{command.translate(_UNDERSCORES)}")


def options_of(command: str) -> type[Options]:
    """Return the options class of a command."""
    module_of(command)
    return next(each for each in Options.__subclasses__() if command == each.COMMAND)


def commands() -> dict[str, type[Options]]:
    """Return the options class of every command by its name."""
    return {name: options_of(name) for name in COMMANDS}
