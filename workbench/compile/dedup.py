"""Deduplicate configs between TTGIR and LLVM.

Configs that are equal after Triton's optimisation are recognised before LLVM and ptxas, which take
two thirds of the time.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

Claim = Callable[[str], bool]  # true where the caller is the first to claim this key


class Stop(Exception):
    """Ends Triton's pipeline after TTGIR."""


@dataclass(frozen=True)
class SkippedLaunch:
    """A launch that was stopped at TTGIR: what Triton's cache needs to hold it, too, once the same
    code was compiled for another config."""

    code: str  # key of its TTGIR
    hash: str  # that Triton's cache knows it by
    metadata: Mapping[str, Any]  # after TTGIR


class Dedup:
    """Computes the key of each launch between TTGIR and LLVM, and skips claimed launches."""

    def __init__(self, claim: Claim | None = None, compiled: Path | None = None) -> None:
        """With a folder `compiled`, note there which folder of Triton's cache has which code."""
        self._claim, self._compiled = claim, compiled
        self._arguments = ""
        self._code: str | None = None  # the key of the launch's TTGIR, once it is known
        self._metadata: Mapping[str, Any] = {}  # after TTGIR
        self.key = ""  # of all launches so far, in order
        self.skipped: list[SkippedLaunch] = []  # launches that were stopped
        self.is_stopped = False  # the last launch was

    def begin(self, arguments: str, grid: tuple[int, ...]) -> None:
        """Begin a launch with these arguments and this grid."""
        self._arguments, self._code, self.is_stopped = repr((arguments, grid)), None, False

    def meet(
        self,
        module: Any,
        metadata: Mapping[str, Any],
        backend: Any,
        options: Any,
        later: Sequence[str],
    ) -> None:
        """Compute the key from the launch's TTGIR, metadata and options, before the stages `later`.
        Raises Stop where another config has claimed the key."""
        text = module.str_nodebug()
        if "tt.assert" in text:  # its source location becomes part of the machine code
            text = str(module)
        fields = vars(options)
        # target, versions, settings that change code, and notes of the stages so far
        more = {k: v for k, v in metadata.items() if k not in fields and k != "hash"}
        message = json.dumps(more, sort_keys=True, default=vars)  # as Triton itself stores it
        self._code = _hash(text, _read_later(type(backend), fields, tuple(later)), message)
        self._metadata = json.loads(json.dumps(metadata, default=vars))
        if not self._first(self._code):
            self.skipped.append(SkippedLaunch(self._code, metadata["hash"], self._metadata))
            self.is_stopped = True
            raise Stop

    def end(self, kernel: Any) -> None:
        """End a launch that was compiled, and store its key beside the kernel in Triton's cache;
        read the key from there where the kernel came from the cache."""
        note = _note_of(kernel)
        code = self._code
        if code is not None:
            _write(note, code)
            _write(note.with_name(LATER), json.dumps(_changes(self._metadata, note.parent)))
        elif (code := _read(note)) is not None:
            self._first(code)
        else:  # compiled by another program: its duplicates are unknown
            self._first(f"cached {kernel.hash}")
        if code is not None and self._compiled is not None:
            _write(self._compiled / f"{code}.folder", str(note.parent))

    def _first(self, code: str) -> bool:
        self.key = _hash(self.key, self._arguments, code)
        return self._claim is None or self._claim(self.key)


LATER = "workbench-later.json"  # what the stages after TTGIR changed in a kernel's metadata


def _changes(before: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return what differs in the metadata of a kernel in Triton's cache."""
    (file,) = (f for f in folder.glob("*.json") if not f.name.startswith(("__grp__", "workbench-")))
    after = json.loads(file.read_text())
    return {k: v for k, v in after.items() if k not in before or before[k] != v}


def store_skipped(launch: SkippedLaunch, compiled: Path) -> bool:
    """Store a skipped launch in Triton's cache with the machine code that was compiled for another
    config, so that a real launch compiles nothing. Returns whether it is stored: the folder
    `compiled` must name a kernel of the same code, whose files are all there."""
    from triton.runtime.cache import get_cache_manager

    source = _read(compiled / f"{launch.code}.folder")
    later = _read(Path(source) / LATER) if source else None
    if source is None or later is None:
        return False
    manager = get_cache_manager(launch.hash)
    group = {}
    for file in Path(source).iterdir():
        if file.name.startswith(("__grp__", "workbench-")) or not file.is_file():
            continue
        own = manager.get_file(file.name)  # up to TTGIR, with its own source lines
        data: Any = file.read_bytes()
        if file.suffix == ".json":
            own, data = None, json.dumps({**launch.metadata, **json.loads(later)})
        group[file.name] = own or manager.put(data, file.name)
    name = next(name for name in group if name.endswith(".json"))
    manager.put_group(name, group)
    _write(_note_in(Path(group[name]).parent), launch.code)
    return True


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _note_of(kernel: Any) -> Path:
    """Return the key's file beside a kernel in Triton's cache; its name holds this file's hash."""
    return _note_in(next(Path(path).parent for path in kernel.metadata_group.values()))


def _note_in(folder: Path) -> Path:
    return folder / f"workbench-{_version()}.key"


@cache
def _version() -> str:
    return _hash(Path(__file__).read_text(encoding="utf-8"))[:8]


def _read(note: Path) -> str | None:
    try:
        return note.read_text()
    except OSError:
        return None


def _write(note: Path, code: str) -> None:
    whole = note.with_suffix(f".{os.getpid()}")
    with suppress(OSError):  # a read-only cache: its duplicates will not be recognised
        whole.write_text(code)
        whole.replace(note)


# The pipeline depth is already applied in TTGIR. Unless a later stage reads it again (AMD's does
# in Triton 3.6) it is not part of a key: a kernel without a loop is the same at every depth.
_DEPTH = "num_stages"
_WHOLE = ("__dict__", "asdict", "vars", "fields", "hash")  # how code reads options it does not name


def _read_later(backend: type, options: Mapping[str, Any], later: tuple[str, ...]) -> str:
    """Return all options but those that only earlier stages read."""
    early = () if _mentions_words(backend, later, (_DEPTH, *_WHOLE)) else (_DEPTH,)
    return repr(sorted((k, v) for k, v in options.items() if k not in early))


@cache
def _mentions_words(backend: type, stages: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Return whether code of these stages, or a function of the same package that it calls, names
    one of `words`. True where the code of a stage is not found."""
    todo = [getattr(backend, f"make_{stage}", None) for stage in stages]
    if not all(isinstance(_plain(f), FunctionType) for f in todo):
        return True
    seen: set[Any] = set()
    while todo:
        function = _plain(todo.pop())
        if function in seen:
            continue
        seen.add(function)
        names = set(_names(function.__code__))
        if names & set(words):
            return True
        near = [getattr(backend, n, None) or function.__globals__.get(n) for n in names]
        todo += [f for f in near if isinstance(_plain(f), FunctionType) and _package(f) == "triton"]
    return False


def _plain(function: Any) -> Any:
    """Return the function inside `functools.cache`."""
    return getattr(function, "__wrapped__", function)


def _package(function: Any) -> str:
    return str(function.__module__).partition(".")[0]


def _names(code: CodeType) -> Iterator[str]:
    """Yield attributes, globals and texts that a function names, with the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str):
            yield constant
