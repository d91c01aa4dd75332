"""Where the result of a command goes."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from workbench.data.files import is_output


class Output(Protocol):
    """Options that say where a command's result goes."""

    @property
    def json(self) -> Path | None:
        """File for the JSON document; `-` is standard output."""

    @property
    def quiet(self) -> bool:
        """Whether to print only the result."""


def is_stdout(path: Path | None) -> bool:
    """Return whether an option names standard output, which then is for its content alone."""
    return path is not None and is_output(path)
