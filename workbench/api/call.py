"""Call a command from Python: its own code, with its output and its result collected."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from workbench.api.progress import progress_display
from workbench.commands.options import Options, module_of
from workbench.commands.progress import redirect
from workbench.commands.result import CommandResult, collecting
from workbench.data.exits import INTERRUPTED
from workbench.data.interrupts import Interrupts
from workbench.data.parts import named_parts
from workbench.data.user_code import hide_main
from workbench.spec import WorkbenchError


@dataclass(frozen=True)
class Called:
    """The result of a command, and the text that it printed."""

    result: CommandResult
    text: str
    options: Options

    @property
    def place(self) -> dict[str, Any]:
        """Folder and database of the results, as arguments of another call."""
        names = ("out", "database")
        return {n: getattr(self.options, n) for n in names if hasattr(self.options, n)}


def call(options: Options, progress: bool | None) -> Called:
    """Run the command of these options in this process, and return its result.

    Raises WorkbenchError where the command line prints an error, and KeyboardInterrupt after
    Ctrl-C: the outcomes so far are stored.
    """
    name = options.COMMAND
    return call_in_process(options, name, lambda: module_of(name).run(options), progress)


def call_in_process(
    options: Options, title: str, run: Callable[[], int], progress: bool | None
) -> Called:
    """Call `run`, which returns an exit code, and return the result that it writes for the command
    of these options. `title` stands beside the progress. Raises KeyboardInterrupt after Ctrl-C, and
    WorkbenchError where it writes no result."""
    command, output = options.COMMAND, io.StringIO()
    with ExitStack() as stack:
        stack.enter_context(Interrupts())  # a second Ctrl-C disturbs no end of what is below
        results = stack.enter_context(collecting())
        stack.enter_context(redirect(output, progress_display(title, progress)))
        stack.enter_context(hide_main())
        stack.enter_context(named_parts())
        code = run()
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    named = [result for result in results if result.command == command]
    if not named:
        raise WorkbenchError(
            f"`{command}` has no result with these options; it printed: "
            f"{' '.join(output.getvalue().split())[:300]}"
        )
    return Called(named[-1], output.getvalue(), options)
