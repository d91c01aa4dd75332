"""The gate between TTGIR and LLVM: configs that are alike once Triton has optimised them are
recognised there, before the two thirds of the time that LLVM and ptxas take."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import CodeType, FunctionType
from typing import Any

Claim = Callable[[str], bool]  # whether the caller is the first to ask for this key


class Stop(Exception):
    """Ends Triton's pipeline after TTGIR."""


class Gate:
    """Stands between TTGIR and LLVM: names what comes by, and lets through what nobody claimed."""

    def __init__(self, claim: Claim | None = None) -> None:
        self._claim = claim
        self._about = ""
        self._passed = False
        self.key = ""  # of all launches so far, in order
        self.skipped = 0  # launches that were stopped
        self.stopped = False  # the last launch was

    def begin(self, arguments: str, grid: tuple[int, ...]) -> None:
        """A launch with these arguments begins."""
        self._about, self._passed, self.stopped = repr((arguments, grid)), False, False

    def meet(
        self, module: Any, metadata: Mapping[str, Any], backend: Any, options: Any,
        later: Sequence[str],
    ) -> None:  # fmt: skip
        """Its TTGIR and what goes with it are known, and the stages `later` come next. Raises Stop
        where the key is claimed."""
        text = module.str_nodebug()
        if "tt.assert" in text:  # its source location becomes part of the machine code
            text = str(module)
        known = vars(options)
        # target, versions, settings that change code, and what the stages so far noted
        more = {k: v for k, v in metadata.items() if k not in known and k != "hash"}
        told = json.dumps(more, sort_keys=True, default=vars)  # as Triton itself stores it
        self._extend(text, _read_later(type(backend), known, tuple(later)), told)
        if self._claim is not None and not self._claim(self.key):
            self.skipped, self.stopped = self.skipped + 1, True
            raise Stop

    def end(self, kernel: Any) -> None:
        """It is compiled. One that met nobody was in Triton's cache."""
        if not self._passed:
            self._extend("cached", kernel.hash)

    def _extend(self, *parts: str) -> None:
        self._passed = True
        told = "\0".join((self.key, self._about, *parts))
        self.key = hashlib.sha256(told.encode()).hexdigest()[:32]


# Which pipeline depth was asked for is worked into TTGIR. Where no later stage asks again (AMD's
# does in Triton 3.6) it is no part of a key: a kernel without a loop is the same at every depth.
_DEPTH = "num_stages"
_WHOLE = ("__dict__", "asdict", "vars", "fields", "hash")  # how code reads options it does not name


def _read_later(backend: type, options: Mapping[str, Any], later: tuple[str, ...]) -> str:
    """All options but those that only earlier stages read."""
    early = () if _mentioned(backend, later, (_DEPTH, *_WHOLE)) else (_DEPTH,)
    return repr(sorted((k, v) for k, v in options.items() if k not in early))


@cache
def _mentioned(backend: type, stages: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Whether code of these stages, or a function of the same package that it calls, names one of
    `words`. True where the code of a stage is not found."""
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
    """The function inside `functools.cache`."""
    return getattr(function, "__wrapped__", function)


def _package(function: Any) -> str:
    return str(function.__module__).partition(".")[0]


def _names(code: CodeType) -> Iterator[str]:
    """Attributes, globals and texts that a function names, with the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str):
            yield constant
