"""`python -m workbench COMMAND` is `workbench COMMAND`.

Worker processes import the main module of the command that started them. Neither this one nor
`workbench.sweep` imports the command line before it is called.
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    with suppress(OSError):  # the folder is gone, which a command says in a sentence
        if sys.path[0] == os.getcwd():  # of `python -m`: a `random.py` there is not the library's
            del sys.path[0]  # the command line puts it last
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback before the command has begun
    from workbench.cli import run

    return run(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
