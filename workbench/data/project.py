"""Identity of the project that a run belongs to: its repository, or else the working folder."""

import hashlib
from pathlib import Path


def project_id(folder: Path | None = None) -> str:
    """Return twelve hex digits for the Git repository that holds a folder, by default the working
    one; all work trees of a repository are one project. Outside a repository they stand for the
    folder. The digits are a hash, since a path may hold a user's name."""
    start = (folder or Path.cwd()).resolve()
    places = (_repository(each / ".git") for each in (start, *start.parents))
    place = next((p for p in places if p is not None), start)
    return hashlib.sha256(str(place).encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _repository(git: Path) -> Path | None:
    """Return the folder that all work trees of a repository share; None where there is none."""
    try:
        if git.is_dir():
            return git
        head, _, place = git.read_text(encoding="utf-8").partition("gitdir:")
        if head.strip() or not place.strip():
            return None
        own = (git.parent / place.strip()).resolve()
        common = own / "commondir"  # in a work tree; a submodule has none
        shared = common.read_text(encoding="utf-8").strip() if common.is_file() else "."
        return (own / shared).resolve()
    except (OSError, ValueError):
        return None
