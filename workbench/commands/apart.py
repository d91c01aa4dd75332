"""Do a part of a command in a child process, which imports the user's code, and read what it sends.

The process that decides imports none of that code: nothing it patches, and no way in which it ends
its process, changes more than what it sends.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from tempfile import TemporaryFile
from typing import Any

from workbench.backend.supervisor import supervise
from workbench.commands.console import say
from workbench.commands.options import CommandError
from workbench.data.exits import PASSED
from workbench.spec import WorkbenchError


def apart(task: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """Return the plain data that a task returned in a child process, or None where that ended
    without it, which is said then. Raises CommandError with the sentence of its error."""
    with TemporaryFile() as file:

        def send() -> int:
            try:
                sent: dict[str, Any] = {"result": task()}
            except WorkbenchError as error:
                sent = {"error": str(error)}
            file.write(json.dumps(sent).encode())
            file.flush()
            return PASSED

        supervise(send, partial(say, err=True))
        file.seek(0)
        try:
            plain = json.loads(file.read())
        except ValueError:
            return None
    if not isinstance(plain, dict) or not isinstance(plain.get("result", {}), dict):
        return None
    if "error" in plain:
        raise CommandError(" ".join(str(plain["error"]).split()))
    result: dict[str, Any] | None = plain.get("result")
    return result
