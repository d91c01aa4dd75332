"""A working kernel file to start from: what `workbench new-kernel NAME` writes."""

from __future__ import annotations

import io
import keyword
import tokenize
from pathlib import Path

STARTER = Path(__file__).parent / "kernel.py.txt"


class TemplateError(Exception):
    """One sentence: why no file was written, and what to do."""


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
        why = (error.strerror or str(error)).lower()
        raise TemplateError(f"{path} cannot be written ({why}); choose another --folder.") from None
    return path


def words_of(source: str) -> set[str]:
    """Every name that a Python source uses, comments and strings aside."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.string for token in tokens if token.type == tokenize.NAME}
