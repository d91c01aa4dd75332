"""Run commands inside the user's process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hide_main() -> Iterator[None]:
    """Return a context manager that keeps new workers from importing the user's script, as they
    would import any parent's: an interpreting worker must set Triton's mode before it is imported,
    and a script may have no guard."""
    main = vars(sys.modules["__main__"])
    before: dict[str, Any] = {n: main[n] for n in ("__file__", "__spec__") if n in main}
    main.pop("__file__", None)
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(before)
