"""Bind a verdict to what was judged: digests of the files, and of all that takes part."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.data.environment import fingerprint
from workbench.evaluation.plan import digest

FORMAT = 1  # of plans and rules: raised where equal files may be judged in another way


def files_digests(spec: Mapping[str, bytes], own: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the digests of the files of a Spec and of a kernel under test, with the versions of
    what trusted them. Files of the workbench are part of its version."""
    return {
        "format": FORMAT,
        "submission": _files_digest(own),
        "spec": _files_digest(spec),
        "versions": dict(fingerprint(None, None).versions),
    }


def _files_digest(files: Mapping[str, bytes]) -> str | None:
    """Return one digest of the names and contents of files, the first of which names the others."""
    if not files:
        return None
    held = [[Path(path).name, hashlib.sha256(data).hexdigest()] for path, data in files.items()]
    return digest(held)
