"""Call functions at each `workbench.step()` of this process."""

import sys
import types
from collections.abc import Callable
from typing import Any

MEETING = "workbench_recorder"  # name in sys.modules; `workbench.step` calls its `step`


def add_step_hook(then: Callable[[], object]) -> None:
    """Call a function at each step, after those that were added before."""
    meeting: Any = sys.modules.setdefault(MEETING, types.ModuleType(MEETING))
    before: Callable[[], object] = getattr(meeting, "step", lambda: None)

    def step() -> None:
        before()
        then()

    meeting.step = step
