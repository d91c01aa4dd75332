"""A copy of the tree to which what the guide, its reference or a tutorial explains is added."""

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
NAMED = re.compile(r"`((?:workbench|tests/properties)/[\w/]+\.(?:py|toml))`")
NOT_RUN = re.compile(r"<!-- not run: .+ -->$")
LEFT_OUT = (".git", ".venv", ".ci", "__pycache__", ".*_cache", ".hypothesis", "build", "dist")


@dataclass(frozen=True)
class Block:
    """A fenced block: the heading that it stands under, its file, its text and its language."""

    heading: str
    path: str | None
    text: str
    language: str
    is_run: bool  # False where the line above it says why not


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page that have a language. A block of code belongs to the file that
    the text above it names last, a block of commands to none."""
    result: list[Block] = []
    heading, path, language, is_run, lines = "", None, None, True, []
    for line in page.splitlines(keepends=True):
        if fence := FENCE.match(line):
            if language is None:
                language, lines = fence[1], []
                continue
            if language == "sh":
                result.append(Block(heading, None, dedent("".join(lines)), language, is_run))
            elif language:
                result.append(Block(heading, path, dedent("".join(lines)), language, is_run))
                path = None  # the next block has its own file
            language, is_run = None, True
        elif language is not None:
            lines.append(line)
        elif line.startswith("## ") or line.startswith("### "):
            heading, path = line.strip("# \n"), None
        elif NOT_RUN.match(line):
            is_run = False
        else:
            names = [name for name in NAMED.findall(line) if Path(name).stem != "NAME"]
            path = names[-1] if names else path
    return result


# The guide and its reference, by their file.
PAGES = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in (
        "CONTRIBUTING.md",
        "docs/kernel_file.md",
        "docs/extending.md",
        "docs/testing.md",
        "docs/releases.md",
    )
}
GUIDE = PAGES["CONTRIBUTING.md"]


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


def shell(tree: Path, line: str, limit_s: float = 120, **environment: str) -> str:
    """Return what a line of commands prints in a copy, whose workbench it runs. Raises
    AssertionError where it does not end well."""
    own = f'workbench() {{ "{sys.executable}" -m workbench "$@"; }}; '
    places = os.pathsep.join(map(str, (tree, tree / "tests")))
    first = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-ec", own + line], cwd=tree, check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": places, "PATH": first, **environment}, timeout=limit_s,
    )  # fmt: skip
    assert done.returncode == 0, f"{line}\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    return done.stdout
