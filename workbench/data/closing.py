"""A base of classes that the end of a `with` block closes."""

from typing import Self


class Closing:
    """An object with a method `close`, which the end of a `with` block calls."""

    def close(self) -> None:
        """Give up what the object holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
