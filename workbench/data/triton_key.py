"""Remember between processes what Triton is: the hash of its own files, a part of the key of all
that it compiles.

Each process hashes 500 MB of libraries for it, 0.35 s of CPU and as long in the system, and a
sweep has twenty processes. The hash is kept in the user's cache folder for the names, sizes and
times of change of the same files, so that another Triton, or a changed one, has another.
"""

import hashlib
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from workbench.data.files import FileError, write_file

HASHED = ("_C", "backends", "compiler", "language", "runtime/cache.py")  # of Triton's folder


def remember_key() -> None:
    """Let Triton, which is imported here, take its key from the cache folder, and keep it there."""
    from triton.runtime import cache as module

    if getattr(module.triton_key, "_remembered", False):
        return
    real = module.triton_key

    @cache
    def triton_key() -> str:
        path = _key_file(Path(module.__file__).parent.parent)
        with suppress(OSError, ValueError):
            if key := path.read_text("utf-8"):
                return key
        key = str(real())
        with suppress(FileError):
            write_file(path, key, make_folder=True)
        return key

    triton_key._remembered = True  # type: ignore[attr-defined]
    module.triton_key = triton_key


def key_of_triton() -> str:
    """Return Triton's key. Imports Triton."""
    remember_key()
    from triton.runtime import cache as module

    return str(module.triton_key())


def _key_file(folder: Path) -> Path:
    """Return the path of the file that holds, or will hold, the key of a Triton in this folder."""
    from platformdirs import user_cache_path

    seen: list[Any] = [str(folder)]
    for path in sorted(_hashed_files(folder)):
        status = os.stat(path)
        seen.append((path, status.st_size, status.st_mtime_ns))
    digest = hashlib.sha256(repr(seen).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return user_cache_path("kernel-workbench", appauthor=False) / "triton" / digest


CODE = (".py", ".so", ".pyd", ".dll", ".dylib")


def _hashed_files(folder: Path) -> list[str]:
    """Return the paths of the files that Triton hashes, and of some more of their kind."""
    result = []
    for name in HASHED:
        if (folder / name).is_file():
            result.append(str(folder / name))
        for parent, _, files in os.walk(folder / name):
            result += [os.path.join(parent, f) for f in files if f.endswith(CODE)]
    return result
