"""docs/guides.md: every item of the guides has a row, and all that a row names exists."""

import re
import shlex
from pathlib import Path

import pytest
import typer

import workbench
from workbench.catalog import kernel_names, names_in
from workbench.cli import app
from workbench.experiments import experiment_names
from workbench.traces.rules import kernel_rules, rules

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


def test_a_row_has_a_state_and_a_test_where_it_says_tested():
    bad = []
    for number, (_item, how, held, state) in ROWS.items():
        if not state.startswith(STATES) or (state not in STATES and len(state) <= 15):
            bad.append(f"{number}: what state is {state!r}?")
        if state in ("tested", "compiled only", "text only", "parsed only") and not (how and held):
            bad.append(f"{number}: who does it, and what test says so?")
    assert not bad, "\n".join(bad)


TEST = re.compile(r"`([\w/]+\.py(?:::\w+)?)`")


def named_tests():
    return sorted({name for row in ROWS.values() for name in TEST.findall(row[2])})


def is_test(name):
    """Return whether a file of tests exists, and in it the function that is named after `::`."""
    path, _, function = name.partition("::")
    file = ROOT / "tests" / path
    if not function or not file.is_file():
        return file.is_file()
    return bool(re.search(rf"^def {function}\(", file.read_text(encoding="utf-8"), flags=re.M))


def test_each_test_that_is_named_exists():
    assert named_tests() and not [name for name in named_tests() if not is_test(name)]


def named_commands():
    return sorted({
        code for row in ROWS.values() for code in re.findall(r"`(workbench [^`]+)`", row[1])
    })  # fmt: skip


COMMANDS = typer.main.get_command(app).commands
NAMED = {
    "sweep": lambda: names_in("workbench.sweeps"),
    "experiment": experiment_names,
    "report": lambda: names_in("workbench.reports"),
    "measure": kernel_names,
}


def is_command(line):
    """Return whether a command has the options of a line, and what it asks for by name exists."""
    words = shlex.split(line)[1:]
    words = words[: words.index("--")] if "--" in words else words
    if words[0] not in COMMANDS:
        return False
    known = {o for p in COMMANDS[words[0]].params for o in (*p.opts, *p.secondary_opts)}
    if not {word for word in words if word.startswith("--")} <= known:
        return False
    name = words[1] if len(words) > 1 and not words[1].startswith("-") else None
    if name is None or words[0] not in NAMED:
        return True
    return (ROOT / name).is_file() if "/" in name else name in NAMED[words[0]]()


def test_each_command_that_is_named_exists():
    """With its options, and what it is asked for by name."""
    assert named_commands() and not [line for line in named_commands() if not is_command(line)]


def test_what_does_not_exist_is_noticed():
    assert is_test("unit/test_guides.py::is_test") and is_command("workbench sweep tile_size")
    assert not is_test("unit/test_guides.py::no_test") and not is_test("unit/no_file.py")
    wrong = ("workbench swoop", "workbench sweep --no-option", "workbench report no_page")
    assert not any(map(is_command, wrong))


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
