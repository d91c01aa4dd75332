"""What comes from elsewhere, one thing after the other, beside the work that waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    """Takes everything from `source` in a thread of its own, at once; iterating gives it in that
    order, waits for what is still to come, and raises what the source raised."""

    def __init__(self, source: Iterator[T]) -> None:
        self._inbox: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        threading.Thread(target=self._take, args=(source,), daemon=True).start()

    def _take(self, source: Iterator[T]) -> None:
        try:
            for one in source:
                self._inbox.put(("one", one))
            self._inbox.put(("end", None))
        except BaseException as error:
            self._inbox.put(("error", error))

    def __iter__(self) -> Iterator[T]:
        while True:
            kind, what = self._inbox.get()
            if kind == "end":
                return
            if kind == "error":
                raise what
            yield what
