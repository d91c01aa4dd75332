"""The grid of a launch, as `kernel[grid]` takes it."""

from collections.abc import Callable, Sequence
from typing import Any

Grid = Callable[[dict[str, Any]], Sequence[int]] | Sequence[int]
