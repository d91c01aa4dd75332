"""The grid of a launch, as `kernel[grid]` takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Grid = Callable[[dict[str, Any]], Sequence[int]] | Sequence[int]
