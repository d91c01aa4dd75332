"""The `new-kernel` command: write a working kernel file to start from."""

from __future__ import annotations

import io
import keyword
import shlex
import tokenize
from pathlib import Path

from workbench.commands.console import say
from workbench.commands.options import NewKernelOptions
from workbench.spec import WorkbenchError

STARTER = Path(__file__).parent / "kernel.py.txt"


class TemplateError(WorkbenchError):
    """No file was written; one sentence says why, and what to do."""


def run(options: NewKernelOptions) -> int:
    """Run the command. Returns its exit code."""
    path = write_kernel(options.name, options.folder)
    kernel = shlex.quote(str(path))
    say(f"wrote   {path}\ntry it  python -m workbench.sweep tile_size --kernel {kernel}")
    return 0


def write_kernel(name: str, folder: Path) -> Path:
    """Write a starter kernel to `folder/name.py`, which must not exist. Returns its path. Raises
    TemplateError where the name is not usable or the file cannot be written."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise TemplateError(
            f"{name!r} is not a Python name; take letters, digits and _, as in my_gelu."
        )
    starter = STARTER.read_text(encoding="utf-8")
    if name in words_of(starter):
        raise TemplateError(
            f"{name!r} already means something in a kernel file; take another name."
        )
    path = folder / f"{name}.py"
    text = starter.replace("NAME", name)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise TemplateError(f"{path} exists; choose another name or --folder.") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TemplateError(
            f"{path} cannot be written ({reason}); choose another --folder."
        ) from None
    return path


def words_of(source: str) -> set[str]:
    """Return every name that a Python source uses, except in comments and strings."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}
