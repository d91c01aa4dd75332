"""A working kernel file to start from: what `workbench new-kernel NAME` writes."""

from __future__ import annotations

import keyword
from pathlib import Path

STARTER = Path(__file__).parent / "templates" / "kernel.py.txt"


class TemplateError(Exception):
    """One sentence: why no file was written, and what to do."""


def write_kernel(name: str, folder: Path) -> Path:
    """Write `folder/name.py`. Raises TemplateError; never overwrites."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise TemplateError(f"{name!r} is not a Python name; take letters, digits and _, as in my_gelu.")
    path = folder / f"{name}.py"
    text = STARTER.read_text().replace("NAME", name)
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        raise TemplateError(f"{path} exists; choose another name or --folder.") from None
    except OSError as error:
        why = error.strerror or error
        raise TemplateError(f"{path} cannot be written ({why}); choose another --folder.") from None
    return path
