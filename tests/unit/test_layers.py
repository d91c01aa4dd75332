"""The shape of the project: imports point down, importing is free of work, and all is documented.

Nothing here imports the workbench into this process, except to ask the command line its commands.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "workbench"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
KERNELS = sorted(path for path in (PACKAGE / "kernels").glob("*.py") if path.stem != "__init__")

# A file imports only from floors below its own; the files of one folder may import one another.
FLOORS = {
    0: "spec record dsl",
    1: "hardware kernels stats workers interrupts",
    2: "catalog arms occupancy environment inputs events template winners worktree roof",
    3: "check compile predict history answer compare report search portfolio tuned adapted sides "
    "roofline",
    4: "measure reports doctor launch",
    5: "backend stored",
    6: "plan screen finals sweep experiment judging profile ceilings",
    7: "question store sweeps experiments profilers terminal bouts",
    8: "session timing contest gate adapter trial gauge",
    9: "cli",
}
# Steps within a floor, each for a reason. They must not close a circle.
STEPS = {
    ("record", "spec"),  # an outcome names its config in the words of the Spec
    ("dsl", "spec"),  # launchers are made to see a device by its Limits
    ("screen", "plan"),  # the engine in four files, each on the one before
    ("finals", "plan"),
    ("finals", "screen"),
    ("sweep", "plan"),
    ("sweep", "screen"),
    ("sweep", "finals"),
    ("adapter", "session"),  # a tuning is a sweep's session with a kernel made for it
    ("bouts", "terminal"),  # a comparison begins with the line that a sweep begins with
    ("gate", "contest"),  # a gate is many comparisons
    ("tuned", "answer"),  # who has won is said in one place
    ("roofline", "answer"),  # the same
    ("judging", "experiment"),  # what is judged is what became of arms
    ("judging", "plan"),  # which configs the model expects most of
    ("ceilings", "experiment"),  # what is timed for a ceiling are arms
    ("gauge", "trial"),  # and they are timed as those of an experiment are
}
# Imports that point up, inside a function that the importing floor itself never calls.
UPWARD = {
    ("spec", "launch"),  # an Impl launched with no config asks for the tuned one
}
FLOOR = {name: number for number, names in FLOORS.items() for name in names.split()}

# Folders in which one file is one thing that a person can ask for by its name.
CONTRIBUTED = ("kernels", "sweeps", "experiments", "profilers", "reports")

HEAVY = ("torch", "triton", "matplotlib", "pandas", "sqlalchemy", "jinja2", "rich")


def relative(path):
    return str(path.relative_to(ROOT))


def home(path):
    """The name under which a file of the workbench stands in FLOORS."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


class Running(ast.NodeTransformer):
    """Drops what an import of the file never runs: `__main__` and TYPE_CHECKING blocks."""

    def visit_If(self, node):
        self.generic_visit(node)
        test = ast.unparse(node.test)
        never = test == "__name__ == '__main__'" or test.split(".")[-1] == "TYPE_CHECKING"
        return (node.orelse or None) if never else node


def imported(path):
    """Dotted names that a file imports, also inside functions: `workbench.spec.Spec`."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(Running().visit(ast.parse(path.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*up, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def of_ours(path):
    """Names in FLOORS that a file imports; `from workbench import __version__` is none."""
    for name in imported(path):
        top, below, *_ = [*name.split("."), ""]
        if top == "workbench" and ((PACKAGE / below).is_dir() or module(below).exists()):
            yield below


def module(name):
    return PACKAGE / f"{name}.py"


def python(code):
    """Run code in a fresh interpreter, and give back what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Floors


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_every_file_stands_on_a_floor(path):
    assert home(path) in FLOOR, (
        f"{relative(path)} is on no floor: add '{home(path)}' to FLOORS, in"
        " tests/unit/test_layers.py, on the lowest floor above all that it imports"
    )


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_point_down(path):
    here = home(path)
    for below in of_ours(path):
        if (here, below) in STEPS | UPWARD or (below == here and (PACKAGE / here).is_dir()):
            continue
        if below in FLOOR and here in FLOOR:
            assert FLOOR[below] < FLOOR[here], (
                f"{relative(path)} (floor {FLOOR[here]}) imports {below} (floor {FLOOR[below]})"
            )


def test_an_import_that_points_up_waits_for_a_call():
    for here, above in UPWARD:
        tree = ast.parse(module(here).read_text(encoding="utf-8"))
        at_import = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
        assert above not in ast.unparse(at_import)


def test_the_package_itself_imports_nothing():
    assert not list(imported(PACKAGE / "__init__.py"))


@pytest.mark.parametrize("name", FLOORS[0].split())
def test_the_lowest_floor_needs_the_standard_library_only(name):
    """`dsl` stands in for Triton where there is none, and asks torch about a tensor it is given."""
    more = {"triton", "torch"} if name == "dsl" else set()
    outside = {n.split(".")[0] for n in imported(module(name))} - set(sys.stdlib_module_names)
    assert outside <= {"workbench"} | more


@pytest.mark.parametrize("path", KERNELS, ids=relative)
def test_a_kernel_can_be_mailed_to_someone(path):
    assert set(of_ours(path)) <= {"spec", "dsl"}, "a kernel needs workbench.spec and dsl alone"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_the_metal_path_is_found_by_name(path):
    assert not [name for name in imported(path) if name.split(".")[0] == "metal_shim"]


# Importing is free of work


def test_the_command_line_starts_without_heavy_libraries():
    code = f"import sys, workbench.cli; print([m for m in {HEAVY} if m in sys.modules])"
    assert python(code).strip() == "[]", "import it inside the command that needs it"


@pytest.mark.parametrize("engine", ["sweep", "experiment", "ceilings", "report"])
def test_help_of_a_command_loads_nothing_heavy(engine):
    """`python -m workbench.experiment` imports that module before the command line."""
    heavy = [m for m in HEAVY if m != "rich"]  # Typer draws the help with it
    code = f"import sys, workbench.{engine}; print([m for m in {heavy} if m in sys.modules])"
    assert python(code).strip() == "[]", "import it inside the function that needs it"


def test_results_are_read_without_torch():
    names = ["workbench.events", "workbench.history", "workbench.answer", "workbench.compare"]
    names += [f"workbench.reports.{path.stem}" for path in (PACKAGE / "reports").glob("[!_]*.py")]
    names = [n for n in names if PACKAGE.joinpath(*n.split(".")[1:]).with_suffix(".py").exists()]
    assert "workbench.events" in names and "workbench.reports.sweep" in names
    python(
        f"""
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "triton"):
            raise ModuleNotFoundError(f"{{name}} is blocked in this test", name=name)

sys.meta_path.insert(0, Absent())
for name in {names!r}:
    importlib.import_module(name)
"""
    )


def test_importing_everything_does_no_work():
    """No GPU is asked, no figure is prepared, and nothing is printed."""
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES]
    names = [name.removesuffix(".__init__") for name in names]
    printed = python(
        f"""
import importlib, sys

for name in {names!r}:
    importlib.import_module(name)
assert "matplotlib" not in sys.modules, "import matplotlib inside the function that draws"
torch = sys.modules.get("torch")
assert torch is None or not torch.cuda.is_initialized(), "an import started CUDA"
"""
    )
    assert printed == ""


# Documentation


THINGS = [p for f in CONTRIBUTED for p in sorted((PACKAGE / f).glob("*.py")) if p.stem[0] != "_"]


@pytest.mark.parametrize("path", THINGS, ids=relative)
def test_every_contributed_file_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def commands():
    import typer

    from workbench import cli

    return sorted(typer.main.get_command(cli.app).commands)


def test_every_command_is_documented():
    pages = (ROOT / "README.md", ROOT / "docs" / "commands.md")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages if page.exists())
    missing = [
        name
        for name in commands()
        if f"workbench {name}" not in text and f"workbench.{name}" not in text
    ]
    assert not missing, f"neither README.md nor docs/commands.md shows `workbench {missing[0]}`"


def knobs():
    """Functions of spec.py that declare a config field: they return field(...) or among(...)."""
    for node in ast.parse(module("spec").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            last = node.body[-1]
            value = last.value if isinstance(last, ast.Return) else None
            if isinstance(value, ast.Call) and ast.unparse(value.func) in ("field", "among"):
                yield node


@pytest.mark.parametrize("node", list(knobs()), ids=lambda node: node.name)
def test_every_knob_is_documented(node):
    assert ast.get_docstring(node)
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"`{node.name}(" in text, f"CONTRIBUTING.md does not explain the knob `{node.name}`"
