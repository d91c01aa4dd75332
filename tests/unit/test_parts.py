"""Parts that an installation may lack: the tool works without, and says which a command needs."""

import json
import tomllib
from pathlib import Path

import pytest
from without_parts import ROOT, copy_without, run_there

from workbench.data import parts
from workbench.data.contributed import EXAMPLE_MODULES
from workbench.data.parts import PARTS, MissingPart, PackagePart, missing_part, named_parts, part_of

# Of each part the command lines that need it. They end before anything is compiled.
NEEDED = {
    "kernels": ["sweep tile_size", "sweep softmax --device h200", "measure softmax --device h200",
                "compare softmax.rows softmax.rows", "experiment lora_rank --device h200"],
    "traces": ["read a.json", "profile softmax", "diagnose a.json", "diagnose softmax",
               "code a.ncu-rep", "compare a.json a.json"],
    "workload": ["workload record -- python a.json", "workload show a.workload",
                 "workload tune a.workload"],
    "metal": ["sweep softmax --device m4max", "measure softmax --device m4max"],
    "cluster": ["sweep softmax --workers 1", "sweep softmax --workers tcp://localhost:1"],
    "two_tritons": ["compare --triton old new"],
}  # fmt: skip
RUN = """\
import json, sys
from workbench import cli

for words in json.loads(sys.argv[1]):
    print(">", words, file=sys.stderr)
    print(cli.main([*words.split()]), end=" ")
"""
IMPORT = """\
import importlib, sys
from pathlib import Path
from workbench import cli
from workbench.commands.options import commands

for file in sorted(Path("workbench").rglob("*.py")):
    name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    if not name.endswith("__main__"):
        importlib.import_module(name)
for words in ([], *(name.split() for name in sorted(commands()))):
    cli.main([*words, "--help"])
"""


@pytest.mark.parametrize("name", PARTS)
def test_a_command_that_needs_an_absent_part_ends_in_one_sentence(name, tmp_path):
    home = copy_without([name], tmp_path)
    (home / "a.json").write_text("{}")
    database = f"--database sqlite:///{home}/history.db"
    stored = [f"{w} {database}" if w.startswith(("sweep", "measure")) else w for w in NEEDED[name]]
    result = run_there(home, "-c", RUN, json.dumps(stored))
    assert result.stdout.split() == ["2"] * len(stored), result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 2 * len(stored), result.stderr
    root = PARTS[name].roots[0]
    sentence = f"error: The part {name} of the workbench ({root}) is not installed; install "
    assert all(line.startswith(sentence) for line in lines[1::2]), result.stderr


def test_without_all_parts_every_module_is_imported_and_every_help_printed(tmp_path):
    result = run_there(copy_without(PARTS, tmp_path), "-c", IMPORT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Usage: workbench") > 25 and result.stderr == ""


def test_modules_of_parts_are_there_and_of_one_part():
    files = [*(ROOT / "workbench").rglob("*.py"), *(ROOT / "metal_shim").rglob("*.py")]
    modules = [".".join(f.relative_to(ROOT).with_suffix("").parts) for f in files]
    for module in modules:
        assert sum(part.has_module(module) for part in PARTS.values()) <= 1, module
    for part in PARTS.values():
        entries = [PackagePart((root,)) for root in part.roots]
        entries += [PackagePart((), (pattern,)) for pattern in part.more]
        assert all(any(map(entry.has_module, modules)) for entry in entries), part
    assert not any(map(missing_part, PARTS))
    assert part_of("workbench.traces.readers") == "traces" == part_of("workbench.traces")
    assert part_of("workbench.traces_of_others") is None and part_of("workbench.spec") is None
    assert set().union(*(part.needs for part in PARTS.values())) <= set(PARTS)


@pytest.fixture
def absent(monkeypatch):
    """A part that nothing holds."""
    more = {"nothing": PackagePart(("workbench.nothing",), ("data.nothing*",))}
    monkeypatch.setattr(parts, "PARTS", {**PARTS, **more})


@pytest.mark.parametrize("module", ["nothing", "nothing.inside", "data.nothing_more"])
def test_an_import_of_an_absent_part_says_which(module, absent):
    assert parts.missing_part("nothing")
    sentence = r"^The part nothing of the workbench \(workbench\.nothing\) is not installed;"
    with pytest.raises(MissingPart, match=sentence), named_parts():
        __import__(f"workbench.{module}")
    with pytest.raises(MissingPart):
        parts.require_part("nothing")


@pytest.mark.parametrize(
    "text",
    [
        "import no_such_library",
        "import workbench.traces.no_such_module",
        "import workbench.no_such_module",
        "from workbench.traces import no_such_name",
        "raise ImportError('of a library')",
    ],
)
def test_any_other_failed_import_stays_what_it_is(text):
    with pytest.raises(ImportError), named_parts():
        exec(text)


def test_the_wheel_has_all_parts():
    text = Path(ROOT / "pyproject.toml").read_text()
    wheel = tomllib.loads(text)["tool"]["hatch"]["build"]["targets"]["wheel"]
    examples = {f"examples/{n}": m.replace(".", "/") for n, m in EXAMPLE_MODULES.items()}
    assert wheel["only-include"] == ["workbench", "metal_shim", *examples]
    assert wheel["sources"] == examples
