"""What comes from elsewhere, one thing after the other, beside the work that waits for it."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    """Takes everything from `source` in a thread of its own, at once; iterating gives it in that
    order, waits for what is still to come, and raises what the source raised. Once nobody iterates
    any more, the source is closed after its next item."""

    def __init__(self, source: Generator[T, None, None]) -> None:
        self._inbox: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._left = False
        threading.Thread(target=self._take, args=(source,), daemon=True).start()

    def _take(self, source: Generator[T, None, None]) -> None:
        try:
            for one in source:
                self._inbox.put(("one", one))
                if self._left:
                    source.close()
            self._inbox.put(("end", None))
        except BaseException as error:
            self._inbox.put(("error", error))

    def __iter__(self) -> Iterator[T]:
        try:
            while True:
                kind, what = self._inbox.get()
                if kind == "end":
                    return
                if kind == "error":
                    raise what
                yield what
        finally:
            self._left = True
