"""Numbers of values, of which each is stored once."""

from collections.abc import Callable
from typing import Any


class NameTable(dict[Any, int]):
    """Numbers of values, each value stored once; to ask for an unknown one adds it. `entries` holds
    the values in order of their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Any] = []

    def __missing__(self, value: Any) -> int:
        number = self[value] = len(self.entries)
        self.entries.append(value)
        return number

    def rename(self, change: Callable[[Any], Any]) -> None:
        """Replace each value by what `change` returns for it, which must differ for each."""
        self.entries = [change(value) for value in self.entries]
        self.clear()
        self.update({value: number for number, value in enumerate(self.entries)})
