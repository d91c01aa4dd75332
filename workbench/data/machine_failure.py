"""Tell failures of the machine from those of a config, by the sentence of their reason.

A full disk, a process that the system killed, or a package that cannot be imported says nothing of
a config. Such a failure is shown where it happened, and stands for no later run. The sentence alone
is read, so that those which were stored before are known, too.
"""

import errno
import os
import re
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress

_ERRNOS = ("ENOSPC", "EDQUOT", "EFBIG", "EMFILE", "ENFILE", "ENOMEM", "EIO", "EROFS", "EAGAIN",
           "ESTALE")  # fmt: skip
_SENTENCES = [
    os.strerror(number) for name in _ERRNOS if (number := getattr(errno, name, None)) is not None
]
_ERRORS = (
    "MemoryError", "EOFError", "BrokenPipeError", "ConnectionResetError", "ConnectionRefusedError",
    "ConnectionAbortedError", "BlockingIOError", "ImportError", "ModuleNotFoundError",
)  # fmt: skip
PART = "the machine code was written only in part"
# of a process: killed by the system or by somebody (1, 2, 9, 15), could not begin (1), or its fork
# server was lost (255). A crash of the compiler has other signals.
_EXITS = r"its process died \(exit code (?:-1|-2|-9|-15|1|255|None)\)"
_MACHINE = re.compile(
    "|".join(
        [
            *(rf"(?i:{re.escape(sentence)})" for sentence in _SENTENCES),
            rf"\b(?:{'|'.join(_ERRORS)})\b",
            r"can't start new thread",
            r"std::bad_alloc",
            _EXITS,
            PART,
        ]
    )
)
_ATTRIBUTE = re.compile(r"AttributeError: (?:partially initialized )?module '(\w+)[.\w]*' has no")

LEAST_FREE = 16 << 20  # bytes: what compilers write for some configs at once


def full_folder(folders: Iterable[str]) -> str | None:
    """Return a sentence that names the first of these folders whose disk is full, or nearly full;
    None where there is space. A compiler that cannot write its output may give another reason."""
    for folder in folders:
        with suppress(OSError):  # a folder that is not there yet
            if (free := shutil.disk_usage(folder).free) < LEAST_FREE:
                return f"{os.strerror(errno.ENOSPC)}: {folder} has {free} bytes free"
    return None


def is_of_machine(reason: str) -> bool:
    """Return whether a failure's reason names the machine or the environment, not the config."""
    if _MACHINE.search(reason):
        return True
    module = _ATTRIBUTE.search(reason)  # a file of that name hides the standard library's
    return module is not None and module[1] in sys.stdlib_module_names
