"""The `new-kernel` command: write a working kernel file to start from."""

from __future__ import annotations

import io
import keyword
import shlex
import tokenize
from pathlib import Path

from workbench.commands.options import NewKernelOptions
from workbench.spec import WorkbenchError

STARTER = Path(__file__).parent / "kernel.py.txt"


class TemplateError(WorkbenchError):
    """One sentence: why no file was written, and what to do."""


def run(options: NewKernelOptions) -> int:
    """Run the command. Returns its exit code."""
    path = write_kernel(options.name, options.folder)
    kernel = shlex.quote(str(path))
    print(f"wrote   {path}\ntry it  python -m workbench.sweep tile_size --kernel {kernel}")
    return 0


def write_kernel(name: str, folder: Path) -> Path:
    """Write `folder/name.py`. Raises TemplateError; never overwrites."""
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
    """Every name that a Python source uses, comments and strings aside."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}
