"""Import files of the user by the bytes that were read before any of their code ran.

Code under test has the rights of the user: it can rewrite the file of the Spec that judges it, or
lay bytecode beside either file, which Python would run in place of the text.
"""

import linecache
import sysconfig
from collections.abc import Mapping
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

_frozen: dict[str, bytes] = {}  # by the path of the file


@cache
def import_from_text() -> None:
    """Let imports of this process compile the text of each file that is not installed: bytecode
    beside it is neither read nor written."""
    real = SourceFileLoader.get_code

    def get_code(self: Any, name: str) -> Any:
        path = self.get_filename(name)
        if path.startswith(_installed_prefixes()):
            return real(self, name)
        return self.source_to_code(self.get_data(path), path)

    real_data = SourceFileLoader.get_data

    def get_data(self: Any, path: str) -> bytes:
        return _frozen[path] if path in _frozen else real_data(self, path)

    setattr(SourceFileLoader, "get_code", get_code)  # noqa: B010  # mypy takes it for a mistake
    setattr(SourceFileLoader, "get_data", get_data)  # noqa: B010


def freeze(sources: Mapping[str, bytes]) -> None:
    """Give this process the content of files, by their absolute paths: later imports and look-ups
    of source lines get it, whatever the files hold by then. No bytecode of the user is read from
    now on."""
    from importlib.util import decode_source

    import_from_text()

    for path, data in sources.items():
        _frozen[path] = data
        lines = decode_source(data).splitlines(keepends=True)
        # without a time it is never read again
        linecache.cache[path] = len(data), None, lines, path


@cache
def _installed_prefixes() -> tuple[str, ...]:
    """Return the beginnings of the paths of installed files: the standard library, packages and the
    workbench itself."""
    named = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {Path(sysconfig.get_path(name)) for name in named}
    folders |= {folder.resolve() for folder in folders} | {Path(__file__).resolve().parents[1]}
    return tuple(f"{folder}/" for folder in folders)
