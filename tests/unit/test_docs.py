"""What the docs say is so: links lead somewhere, quoted commands parse, constants are the code's.

Nothing quoted is run here.
"""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import typer

from workbench import cli
from workbench.catalog import names_in
from workbench.commands.options import PANELS
from workbench.commands.sweep import SweepOptions
from workbench.data import events
from workbench.device import cost_model
from workbench.experiments import experiment_names

ROOT = Path(__file__).parents[2]
README, COMMANDS, MODEL = ROOT / "README.md", ROOT / "docs" / "commands.md", ROOT / "docs/model.md"
EXPERIMENTS = ROOT / "docs" / "experiments.md"
EXAMPLE = ROOT / "examples" / "rwkv7" / "README.md"
LEARNING = [
    *(ROOT / "docs" / name for name in ("start.md", "troubleshooting.md", "glossary.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
]
CONTRIBUTORS = [
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("kernel_file", "extending", "testing", "releases")),
]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)


def text(page):
    return page.read_text(encoding="utf-8")


def relative(path):
    return str(path.relative_to(ROOT))


# Links


def links(page):
    """Targets of `[words](target)` outside code, without those of the web."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text(page), flags=re.S)
    result = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [target for target in result if not target.startswith(("http:", "https:"))]


def leads_somewhere(page, target):
    """Return whether the file of a link exists, and in it the heading after `#`."""
    path, _, anchor = target.partition("#")
    there = page.parent / path if path else page
    if not anchor or not there.exists():
        return there.exists()
    heads = re.findall(r"^#+ (.*)$", text(there), flags=re.M)
    return anchor in [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in heads]


def test_links_lead_somewhere():
    every = [(page, target) for page in PAGES for target in links(page)]
    dead = [(relative(page), target) for page, target in every if not leads_somewhere(page, target)]
    assert len(every) > 100 and not dead
    assert leads_somewhere(README, "CONTRIBUTING.md#add-a-kernel")
    assert not leads_somewhere(README, "none.md") and not leads_somewhere(README, "#no-heading")


# Commands


def command_line(group, before=()):
    """Every command by its words: `workload tune` is one of a group."""
    for name, command in group.commands.items():
        yield " ".join((*before, name)), command
        if hasattr(command, "commands"):
            yield from command_line(command, (*before, name))


COMMAND_LINE = dict(command_line(typer.main.get_command(cli.app)))


def quoted(page):
    """Every command line in a block of code, and every `workbench ...` in the running text that
    has an option."""
    blocks = re.findall(r"```\w*\n(.*?)```", text(page), flags=re.S)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    prose = re.sub(r"```.*?```", "", text(page), flags=re.S)
    lines += [word for word in re.findall(r"`([^`\n]+)`", prose) if " --" in word]
    for line in lines:
        if command := re.match(r"(?:\S*/)?(?:workbench |python -m workbench\.)(.+)", line):
            yield tuple(shlex.split(command[1], comments=True))


QUOTED = [
    (page, words)
    for page in (README, COMMANDS, EXPERIMENTS, EXAMPLE, *CONTRIBUTORS, *LEARNING)
    for words in quoted(page)
]


def wrong_with(words):
    """Return what is wrong with a quoted command, in a sentence, or None."""
    name, *arguments = words
    if arguments and f"{name} {arguments[0]}" in COMMAND_LINE:
        name = f"{name} {arguments.pop(0)}"
    cli._take_host(arguments)
    if name.startswith("--"):
        options = [o for p in typer.main.get_command(cli.app).params for o in p.opts]
        return None if name in options else "no such option"
    if name not in COMMAND_LINE:
        return "no such command"
    try:
        asked = COMMAND_LINE[name].make_context(name, list(arguments)).params
        if name == "sweep":
            options = SweepOptions(asked["name"], asked["kernel"]).resolve_names()
            return None if options.name in names_in("workbench.sweeps") else "no such sweep"
    except Exception as error:  # typer has click's errors under a name of its own
        return repr(error)
    if name == "report" and asked["name"] not in [*names_in("workbench.reports"), "NAME"]:
        return "no such page"
    return None


def test_a_quoted_command_parses():
    wrong = {(page.name, *words): wrong_with(words) for page, words in QUOTED}
    assert QUOTED and not {words: reason for words, reason in wrong.items() if reason}
    assert wrong_with(("swoop",)) and wrong_with(("sweep", "--none")) and wrong_with(("--none",))
    assert wrong_with(("sweep", "no_sweep")) and wrong_with(("report", "no_page"))


def test_the_readme_lists_the_commands_as_help_does():
    rows = re.findall(r"^\| ([A-Z][a-z ]+) \| (`.*`) \|$", text(README), flags=re.M)
    named = {panel: set(re.findall(r"`([\w-]+)`", cells)) for panel, cells in rows}
    panels = {panel: set(names) for panel, names in PANELS.items()}
    assert named == panels and list(named) == list(PANELS)


def section(name):
    """What docs/commands.md says of one command, or of a group: `## workbench workload tune`."""
    result = re.search(
        rf"^## workbench {name}(?: [^\n]*[A-Z][^\n]*)?\n.*?(?=^## )",
        text(COMMANDS),
        flags=re.M | re.S,
    )
    assert result, f"docs/commands.md has no section on `workbench {name}`"
    return result[0]


@pytest.mark.parametrize("name", sorted(COMMAND_LINE))
def test_every_option_is_documented_and_no_other(name):
    rows = re.findall(r"^\| (`--.*?) \|", section(name), flags=re.M)
    message = {option for row in rows for option in re.findall(r"--[\w-]+", row)}
    options = [
        p for p in COMMAND_LINE[name].params if p.param_type_name == "option" and not p.hidden
    ]
    assert message == {o for p in options for o in (*p.opts, *p.secondary_opts)} - {"--help"}


def test_every_sweep_is_documented():
    assert all(f"| `{name}` |" in section("sweep") for name in names_in("workbench.sweeps"))


# Length, events, constants


def test_the_readme_is_short_and_its_code_is_not_cut_off():
    """700 words; 92 characters of code fit the 720 px of the site's page."""
    assert len(text(README).split()) <= 700
    code = "".join(re.findall(r"```\w*\n(.*?)```", text(README), flags=re.S))
    assert max(map(len, code.splitlines())) <= 92


_SPEC = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "pictures.py")
assert _SPEC is not None and _SPEC.loader is not None
PICTURES = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(PICTURES)


def test_pictures_are_of_the_runs_and_templates_as_they_are():
    """Draw them again, by `python docs/pictures.py`, and look at them."""
    drawn = json.loads(PICTURES.DIGESTS.read_text())
    now = PICTURES.digests()
    assert drawn.keys() == now.keys()
    assert not [picture for picture in now if now[picture] != drawn[picture]]
    files = {p.relative_to(PICTURES.IMAGES).as_posix() for p in PICTURES.IMAGES.rglob("*.*")}
    assert files == {*now, PICTURES.DIGESTS.name}, "a picture that nothing draws"


def test_the_chart_is_of_the_figures_in_the_facts():
    rows = PICTURES.times()
    assert rows[0] == ("matmul 4096^3, 256 configs", 147.7, 15.7, "9.4x") and len(rows) == 4
    for scheme in PICTURES.CHART:
        drawn = (PICTURES.IMAGES / f"autotune_{scheme}.svg").read_text(encoding="utf-8")
        assert drawn == PICTURES.chart(rows, scheme)
    # 147.7 s are the longest bar, and 15.7 s take 0.1063 of its 296 px
    assert 'width="296.0"' in drawn and 'width="31.5"' in drawn


def test_the_picture_of_the_house_has_a_box_for_each_entry():
    drawn = (PICTURES.IMAGES / "house.svg").read_text(encoding="utf-8")
    names = [name for floor, _ in PICTURES.HOUSE for name in floor.split()]
    assert drawn == PICTURES.house()
    assert len(names) > 20 and not [name for name in names if f">{name}</text>" not in drawn]


@pytest.mark.nightly  # a compiler and an interpreter: 20 s
def test_the_readmes_example_prints_what_it_says(tmp_path):
    page = text(README)
    kernel, code = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    (printed,) = re.findall(r"^# (.*)", code, flags=re.M)
    (tmp_path / "double.py").write_text(kernel)
    (tmp_path / "tune.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "tune.py"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_DATA_HOME": str(tmp_path / "data")},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == printed + "\n", done.stderr


def test_every_experiment_is_in_the_table():
    table = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", section("experiment"), flags=re.M)
    named = [name for row in table for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == experiment_names()


def test_every_experiment_has_a_section():
    heads = re.findall(r"^## (.*)$", text(EXPERIMENTS), flags=re.M)
    message = [name for head in heads[1:] for name in head.split(", ")]
    assert sorted(message) == experiment_names()


def test_the_example_names_its_files():
    table = re.findall(r"^\| `([\w/]+\.py)` \|", text(EXAMPLE), flags=re.M)
    folder = EXAMPLE.parent
    assert sorted(table) == sorted(str(p.relative_to(folder)) for p in folder.rglob("*.py"))
    heads = re.findall(r"^## (.*)$", text(EXAMPLE), flags=re.M)
    assert sorted(heads) == sorted(path.stem for path in folder.glob("*.py"))


def test_example_events_are_events(tmp_path):
    blocks = re.findall(r"```json\n(.*?)\n```", text(COMMANDS), flags=re.S)
    kinds = [json.loads(block.replace("{...}", "{}"))["type"] for block in blocks]
    known = {kind.__name__ for kind in events.Event.__args__}
    assert sorted(kinds) == sorted(known), "one example of each type of event"
    whole = [block for block in blocks if "{...}" not in block]
    (tmp_path / "events.jsonl").write_text("\n".join(whole) + "\n", encoding="utf-8")
    result = events.read(tmp_path / "events.jsonl")
    assert not result.bad and len(result.events) == len(whole)


def test_the_models_constants_are_the_codes():
    message = text(MODEL).split("## Constants")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\d.e-]+) \|", message, flags=re.M)
    assert {name: float(value) for name, value in rows} == asdict(cost_model.CONSTANTS)
    assert f"`{cost_model.MODEL}`" in text(ROOT / "docs" / "architecture.md")


@pytest.mark.parametrize("page", LEARNING, ids=relative)
def test_words_in_italics_are_in_the_glossary(page):
    rows = re.findall(r"^\| ([^|]+) \|", text(ROOT / "docs" / "glossary.md"), flags=re.M)
    words = {word.lower().removesuffix("s") for row in rows for word in row.split(", ")}
    prose = re.sub(r"```.*?```|`[^`\n]*`|\*\*[^*]+\*\*|^\|.*$", "", text(page), flags=re.S | re.M)
    used = re.findall(r"\*([A-Za-z][^*\n]*)\*", prose)
    assert not [word for word in used if word.lower().removesuffix("s") not in words]
    assert page.parent.name != "tutorials" or used, "a tutorial names no word of the glossary"


# Kernels


def test_the_pages_of_the_kernels_are_what_their_files_say():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], check=False,
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, (
        "run `python docs/generate.py`, which writes a page for each file of workbench/kernels/:\n"
        + done.stdout
        + done.stderr
    )
