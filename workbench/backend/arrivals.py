"""Read an iterator in a background thread."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    """Iterator over `source`, which a background thread reads ahead without a limit.

    Items keep their order, iterating blocks until the next item is there, and an exception of the
    source is raised again here. Once iteration is abandoned, the source is closed after its next
    item.
    """

    def __init__(self, source: Generator[T, None, None]) -> None:
        self._inbox: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._left = False
        self._reading = threading.Thread(target=self._take, args=(source,), daemon=True)
        self._reading.start()

    def wait(self) -> None:
        """Wait until all items are there, or an exception is."""
        self._reading.join()

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
