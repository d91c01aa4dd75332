"""A copy of the tree to which what CONTRIBUTING.md or a tutorial explains is added."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"\s*```(\w*)$")
NAMED = re.compile(r"`(workbench/[\w/]+\.(?:py|toml))`")
LEFT_OUT = (".git", ".venv", ".ci", "__pycache__", ".*_cache", ".hypothesis", "build", "dist")


@dataclass(frozen=True)
class Block:
    """A fenced block: the heading that it stands under, its file and its text."""

    heading: str
    path: str | None
    text: str


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page that have a language. A block belongs to the file that the text
    above it names last."""
    result: list[Block] = []
    heading, path, language, lines = "", None, None, []
    for line in page.splitlines(keepends=True):
        if fence := FENCE.match(line):
            if language is None:
                language, lines = fence[1], []
                continue
            if language:
                result.append(Block(heading, path, dedent("".join(lines))))
                path = None  # the next block has its own file
            language = None
        elif language is not None:
            lines.append(line)
        elif line.startswith("## ") or line.startswith("### "):
            heading, path = line.strip("# \n"), None
        else:
            names = [name for name in NAMED.findall(line) if Path(name).stem != "NAME"]
            path = names[-1] if names else path
    return result


PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def copied(folder: Path) -> Path:
    """Copy the whole tree, tests and pages with it. Returns the copy."""
    return Path(shutil.copytree(ROOT, folder / "tree", ignore=shutil.ignore_patterns(*LEFT_OUT)))


def python(tree: Path, *arguments: object, limit_s: float = 120, **environment: str) -> str:
    """Return what Python prints with a copy as the workbench that it imports. Raises AssertionError
    where it does not end well."""
    places = os.pathsep.join(map(str, (tree, tree / "tests", ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=tree, check=False,
        env={**os.environ, "PYTHONPATH": places, **environment},
        capture_output=True, text=True, timeout=limit_s,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    return done.stdout
