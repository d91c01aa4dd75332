"""The blocks of the pages that users learn from: each runs here, or says above it why it does not.

A block of `sh` is run line by line, a block of `python` as a program, all blocks of a page in their
order in one folder, in which the folders of a clone are found. Sweeps run on a backend without a
compiler, which predicts, and draw no figures; everything else is the real thing. `text` is what a
command printed.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from null_backend import Null

from workbench import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(ROOT / "docs").glob("start.md"),
        *(ROOT / "docs").glob("troubleshooting.md"),
        *(ROOT / "docs").glob("glossary.md"),
        *(ROOT / "docs").glob("gallery.md"),
        *(ROOT / "docs" / "tutorials").glob("*.md"),
        *(ROOT / "docs" / "howto").glob("*.md"),
    ]
)
BLOCK = re.compile(
    r"^(<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    flags=re.M | re.S,
)
FILE = re.compile(r"# ([\w/]+\.\w+)\n")

pytestmark = pytest.mark.newest


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder that looks like a clone, with data of its own; sweeps have no compiler."""
    for name in ("benchmarks", "docs", "examples", "tests", "workbench"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.setattr(
        "workbench.commands.sweep_command.any_backend",
        lambda device, folder, prewarm=None: Null(predicts=True, device=device or "h200"),
    )
    return tmp_path


def run_line(line):
    """Run one line of `sh`: a command of the workbench here, any other by the shell."""
    if line.startswith("workbench "):
        words = shlex.split(line, comments=True)[1:]
        with pytest.MonkeyPatch.context() as patch:
            if words[0] == "sweep":
                patch.setattr("workbench.reports.sweep.page", lambda *given, **more: "<p>page</p>")
            assert cli.main(words) == 0, line
    else:
        subprocess.run(["bash", "-ec", line], check=True, timeout=60)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_blocks_of_a_page_run(page, clone):
    text = page.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert len(re.findall(r"^```", text, flags=re.M)) == 2 * len(blocks), "a fence is not closed"
    for block in blocks:
        language, lines = block["language"], block["text"]
        if language == "python":
            compile(lines, page.name, "exec")
        if block["reason"] or language == "text":
            continue
        if language == "sh":
            for line in filter(None, lines.splitlines()):
                run_line(line)
        elif named := FILE.match(lines):
            Path(named[1]).write_text(lines, encoding="utf-8")
        else:
            assert language == "python", f"{page.name} has a block of {language!r} without a reason"
            subprocess.run([sys.executable, "-c", lines], check=True, timeout=120)
    shutil.rmtree(clone / "results", ignore_errors=True)
