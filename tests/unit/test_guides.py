"""docs/guides.md: every item of the guides has a row, and all that a row names exists."""

import re
import shlex
from pathlib import Path

import pytest
import typer

import workbench
from workbench.catalog import kernel_names, names_in
from workbench.cli import app
from workbench.rules import kernel_rules, rules

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides.md").read_text(encoding="utf-8")
ITEMS = {0: 25, 1: 43, 2: 24, 3: 33, 4: 34}  # of each guide
STATES = (
    "tested", "compiled only", "text only", "parsed only", "by hand", "not yet: ", "not offered (",
)  # fmt: skip

pytestmark = pytest.mark.unit


def rows():
    """Cells of each row, by its number."""
    lines = re.findall(r"^\| (\d\.\d+) \| (.*) \|$", PAGE, flags=re.M)
    return {number: [cell.strip() for cell in rest.split(" | ")] for number, rest in lines}


ROWS = rows()


def test_every_item_of_the_guides_has_a_row():
    wanted = [f"{guide}.{n}" for guide, count in ITEMS.items() for n in range(1, count + 1)]
    assert list(ROWS) == wanted


@pytest.mark.parametrize("number", ROWS)
def test_a_row_has_a_state_and_a_test_where_it_says_tested(number):
    _item, how, held, state = ROWS[number]
    assert state.startswith(STATES) and (state in STATES or len(state) > 15)
    if state in ("tested", "compiled only", "text only", "parsed only"):
        assert how and held, "who does it, and what holds it"


TEST = re.compile(r"`([\w/]+\.py(?:::\w+)?)`")


def named_tests():
    return sorted({name for row in ROWS.values() for name in TEST.findall(row[2])})


@pytest.mark.parametrize("name", named_tests())
def test_each_test_that_is_named_exists(name):
    path, _, function = name.partition("::")
    text = (ROOT / "tests" / path).read_text(encoding="utf-8")
    assert not function or re.search(rf"^def {function}\(", text, flags=re.M), name


def named_commands():
    return sorted({
        code for row in ROWS.values() for code in re.findall(r"`(workbench [^`]+)`", row[1])
    })  # fmt: skip


COMMANDS = typer.main.get_command(app).commands
NAMED = {
    "sweep": lambda: names_in("workbench.sweeps"),
    "experiment": lambda: names_in("workbench.experiments"),
    "report": lambda: names_in("workbench.reports"),
    "measure": kernel_names,
}


@pytest.mark.parametrize("line", named_commands())
def test_each_command_that_is_named_exists(line):
    """With its options, and what it is asked for by name."""
    words = shlex.split(line)[1:]
    words = words[: words.index("--")] if "--" in words else words
    command = COMMANDS[words[0]]
    known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    options = [word for word in words if word.startswith("--")]
    assert set(options) <= known, line
    name = words[1] if len(words) > 1 and not words[1].startswith("-") else None
    if name is None or words[0] not in NAMED:
        return
    assert (ROOT / name).is_file() if "/" in name else name in NAMED[words[0]](), line


def test_what_else_is_named_exists():
    """Options alone, rules, files and functions."""
    text = " ".join(row[1] for row in ROWS.values())
    known = {o for c in COMMANDS.values() for p in c.params for o in (*p.opts, *p.secondary_opts)}
    assert set(re.findall(r"`(--[\w-]+)", text)) <= known
    for name in re.findall(r"rules? `(\w+)`", text):
        assert name in {**rules(), **kernel_rules()}
    for path in re.findall(r"`(?:python )?((?:benchmarks|examples|tests)/[\w/]+\.py)", text):
        assert (ROOT / path).is_file()
    assert all(hasattr(workbench, name) for name in re.findall(r"`workbench\.(\w+)\(", text))
