"""What SKILL.md tells programs: its files compile, its commands exist, and at night all are run."""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from workbench import cli
from workbench.commands.options import commands

ROOT = Path(__file__).parents[2]
SKILL = (ROOT / "SKILL.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", SKILL, flags=re.S))
LINES = [line for block in re.findall(r"```\n(workbench .*?)```", SKILL, flags=re.S)
         for line in block.splitlines()]  # fmt: skip


def test_files_compile_and_commands_take_their_words():
    assert set(FILES) == {"task.py", "mine.py"} and len(LINES) == 6
    for text in FILES.values():
        ast.parse(text)
    for line in LINES:
        _, name, *words = shlex.split(line)
        assert name in commands()
        parse(name, words)


def parse(name, words):
    """Parse the words of a command, and do not run it; an unknown one raises."""
    command = typer.main.get_command(cli.app).commands[name]
    command.make_context(name, list(words))


def test_a_skill_has_its_head_and_its_links_lead_somewhere():
    assert re.match(r"---\nname: [a-z-]+\ndescription: .{40,1000}\n---\n", SKILL)
    for page in (SKILL, (ROOT / "AGENTS.md").read_text(encoding="utf-8")):
        prose = re.sub(r"```.*?```", "", page, flags=re.S)
        for link in re.findall(r"\]\(([^)#]+)", prose):
            assert (ROOT / link).is_file(), link


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_its_commands_lead_to_a_verdict(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    for line in LINES:
        words = shlex.split(line)[1:]
        assert cli.main(words) == 0, (line, capsys.readouterr())
    verdict = json.loads(Path("verdict.json").read_text())
    assert verdict["verdict"] == "correct" and not verdict["claim"]
    assert json.loads(Path("tuned.json").read_text())["kwargs"]["BLOCK"] in (512, 4096)
