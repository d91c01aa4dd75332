"""The program of `workload record`, `run` and `compare`: its command line, and the variables by
which each of its Python processes imports `workbench/workload/startup`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from workbench.commands.options import OptionError, TakesProgram
from workbench.traces.profilers.running.machine import machine_here
from workbench.traces.profilers.running.workload import Workload, title_of, whole_command
from workbench.workload.errors import WorkloadError
from workbench.workload.startup import sitecustomize


def program_words(program: Sequence[str]) -> list[str]:
    """Return the command line of a program. Raises WorkloadError where there is no such program."""
    machine = machine_here(tuple(program[:1]))
    words = whole_command(Workload(tuple(program), title_of(program)), machine)
    if shutil.which(words[0]) is None and not Path(words[0]).exists():
        raise WorkloadError(f"There is no program {words[0]}; name one that is on the path.")
    return words


def startup_variables(more: Mapping[str, str]) -> dict[str, str]:
    """Return these variables, and the PYTHONPATH with which Python processes heed them."""
    own = str(Path(sitecustomize.__file__).resolve().parent)
    paths = [own, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), **more}


def check_program(options: TakesProgram, usage: str) -> None:
    """Raise OptionError where no program is named, or words before it that the command does not
    take; `usage` is how to write the command."""
    if options.operands:
        raise OptionError(
            f"{options.operands[0]} is one word too many; a program stands behind --: {usage}."
        )
    if not any(options.program[:1]):
        raise OptionError(f"No program is named; write: {usage}.")
