"""The shape of the project: imports point down, importing is free of work, and all is documented.

Nothing here imports the workbench into this process, except to ask for its commands and its parts.
"""

import ast
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "workbench"
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
CLONED = {
    path: entry
    for folder, entry in (("experiments", "experiments"), ("readers", "traces"))
    for path in sorted((ROOT / "examples" / folder).glob("*.py"))
}  # entries of files that lie in `examples/`
KERNELS = sorted(path for path in (PACKAGE / "kernels").glob("*.py") if path.stem != "__init__")

# The import rule: an entry of `workbench/` imports from entries above it in this list, also inside
# its functions; the files of one folder may import one another, in no circle.
ORDER = [
    "spec",
    "dsl",
    "kernels",
    "sweeps",
    "variants",
    "data",
    "device",
    "traces",
    "catalog",
    "measurement",
    "code",
    "compile",
    "backend",
    "evaluation",
    "tuner",
    "adapted",
    "ops",
    "revisions",
    "workload",
    "reports",
    "experiments",
    "commands",
    "api",
    "cli",
    "sweep",
    "__main__",
]
KERNEL_IMPORTS = {"spec", "dsl"}  # all that a kernel may import; a variant imports kernels, too

# Folders in which one file is one thing that a person can ask for by its name.
CONTRIBUTED = (
    "kernels", "sweeps", "experiments", "traces/profilers", "traces/readers", "traces/rules",
    "reports",
)  # fmt: skip

HEAVY = ("torch", "triton", "matplotlib", "pandas", "sqlalchemy", "jinja2", "rich")


def relative(path):
    return str(path.relative_to(ROOT))


def entry(path):
    """The entry of `workbench/` that holds a file: a folder's name or a module's."""
    return CLONED.get(path) or path.relative_to(PACKAGE).with_suffix("").parts[0]


PARTS = ("body", "orelse", "finalbody", "handlers", "cases")  # of a statement: others within it


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def run_by_import(statements, is_top=True):
    """The statements that an import of the file may run, none of `__main__` or TYPE_CHECKING, and
    those inside functions; each with whether it stands outside of functions."""
    for node in statements:
        tested = ast.unparse(node.test) if isinstance(node, ast.If) else ""
        if tested == "__name__ == '__main__'" or tested.split(".")[-1] == "TYPE_CHECKING":
            yield from run_by_import(node.orelse, is_top)
            continue
        yield node, is_top
        for part in PARTS:
            inside = is_top and not isinstance(node, FUNCTIONS)
            yield from run_by_import(getattr(node, part, ()), inside)


@cache  # five tests read each file
def import_statements(path):
    """The imports that a file runs when it is imported, and all, also inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.Import, ast.ImportFrom)
    every = [(node, top) for node, top in run_by_import(tree.body) if isinstance(node, kinds)]
    return [node for node, is_top in every if is_top], [node for node, _ in every]


@cache
def imported(path, at_top=False):
    """Dotted names that a file imports, also inside functions: `workbench.spec.Spec`; or those
    `at_top`, in a class, a condition or a `try`, too."""
    return tuple(_imported(path, import_statements(path)[0 if at_top else 1]))


def _imported(path, statements):
    package = path.relative_to(ROOT).parent.parts
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*up, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def of_ours(path):
    """Entries of `workbench/` that a file imports; `from workbench import __version__` is none."""
    for name in imported(path):
        top, below, *_ = [*name.split("."), ""]
        if top == "workbench" and below and ((PACKAGE / below).is_dir() or module(below).exists()):
            yield below


def modules_of_ours(path):
    """Files of the workbench that a file imports, also inside functions."""
    for name in imported(path):
        if not name.startswith("workbench."):
            continue
        whole, above = ROOT.joinpath(*name.split(".")), ROOT.joinpath(*name.split(".")[:-1])
        files = (place for base in (whole, above) for place in (
            base.with_suffix(".py"), base / "__init__.py"))  # fmt: skip
        yield next(filter(Path.exists, files))


def module(name):
    return PACKAGE / f"{name}.py"


def python(code):
    """Run code in a fresh interpreter, and give back what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# The import rule


def test_the_architecture_page_names_every_entry():
    entries = {
        p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()
    }
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert entries - {"__init__"} == set(ORDER), "enter it in ORDER, above all that imports it"
    missing = [
        e for e in entries if f"`{e}/`" not in text and f"`{e}.py`" not in text and e != "__init__"
    ]
    assert not missing, f"docs/architecture.md does not name {missing}"
    assert len(entries) <= 29


def test_the_picture_of_the_house_has_the_order_of_imports():
    """From left to right and from the roof down: each entry imports from those that follow."""
    house = runpy.run_path(str(ROOT / "docs" / "pictures.py"))["HOUSE"]
    assert [name for floor, _ in house for name in floor.split()] == ORDER[::-1]


def test_imports_follow_the_rule():
    """Also: the metal path is found by name, and nothing imports the examples. One test, since it
    parses the whole tree."""
    late = [
        f"{relative(path)} imports {below}, which comes after {entry(path)} in the import rule"
        for path in [*FILES, *CLONED]
        for below in of_ours(path)
        if below != entry(path) and ORDER.index(below) > ORDER.index(entry(path))
    ]
    assert not late, "\n".join(late)
    assert not importers("metal_shim", "examples", "tests")
    assert "workbench/data/database.py" in importers("sqlalchemy")
    assert "workbench/backend/child.py" not in importers("sqlalchemy")
    no_files_import_one_another_in_a_circle()


def no_files_import_one_another_in_a_circle():
    """Raise AssertionError with the first circle, whether its imports are at the top of a file or
    inside functions."""
    graph = {path: list(modules_of_ours(path)) for path in FILES}
    done, under = set(), []

    def visit(path):
        assert path not in under, f"circle: {[relative(p) for p in [*under, path]]}"
        if path not in done:
            under.append(path)
            for below in graph.get(path, ()):
                if below != path:
                    visit(below)
            under.pop()
            done.add(path)

    for path in FILES:
        visit(path)


def test_a_launch_without_a_config_finds_its_choice_by_a_dotted_name():
    """`spec` imports nothing of ours; the first launch without a config imports what chooses."""
    code = """
import sys, torch
from workbench.kernels.copy import blocks
assert "workbench.adapted.launch" not in sys.modules
try:
    blocks(torch.empty(8, device="meta"))
except Exception:
    pass
print("workbench.adapted.launch" in sys.modules)
"""
    assert python(code).strip() == "True"


def test_the_package_itself_imports_modules_of_the_standard_library_alone():
    """The names of `workbench.api` are imported at their first use."""
    names = {"sys", "types.ModuleType", "importlib.import_module"}
    assert set(imported(PACKAGE / "__init__.py")) == names


@pytest.mark.parametrize("name", ["spec", "dsl", "data.record"])
def test_the_foundation_needs_the_standard_library_only(name):
    """`dsl` stands in for Triton where there is none, and asks torch about a tensor it is given."""
    more = {"triton", "torch"} if name == "dsl" else set()
    path = module(name.replace(".", "/"))
    file = path if path.exists() else path.with_suffix("") / "__init__.py"
    outside = {n.split(".")[0] for n in imported(file)} - set(sys.stdlib_module_names)
    assert outside <= {"workbench"} | more


# Kernels whose device code is in part that of another one: their files go together.
TOGETHER = {
    "attention_backward": "attention",
    "causal_attention": "attention",
    "causal_attention_backward": "attention_backward",
    "fp8_matmul": "matmul",
    "fused_add_rms_norm": "rms_norm",
    "lora": "matmul",
    "patch_embed": "matmul",
    "q4_k_matmul": "matmul",
    "sample_top_p": "sample_topk_topp",
    "wkv7": "wkv6",
}


def test_a_kernel_can_be_mailed_to_someone():
    bad = []
    for path in KERNELS:
        shared = TOGETHER.get(path.stem)
        others = {name for name in imported(path) if name.startswith("workbench.kernels")}
        more = set(of_ours(path)) - KERNEL_IMPORTS - ({"kernels"} if shared else set())
        if more or others != ({f"workbench.kernels.{shared}"} if shared else set()):
            bad.append(f"{relative(path)}: {sorted(more | others)}")
    assert KERNELS and not bad, (
        f"a kernel needs workbench.spec, dsl, gluon and block_clusters alone: {bad}"
    )


def test_the_tool_imports_no_part_at_its_top():
    """Nor does a part, but itself and those that it needs by its entry in `data/parts.py`."""
    from workbench.data.parts import PARTS, part_of

    bad, used = [], set()
    for path in [*FILES, PACKAGE / "__init__.py", *METAL_FILES]:
        own = part_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        allowed = {None, own, *(PARTS[own].needs if own else ())}
        parts = {(name, part_of(name)) for name in imported(path, at_top=True)}
        used |= {(own, part) for _, part in parts - {(None, None)} if part not in (None, own)}
        bad += [f"{relative(path)}: {name}" for name, part in parts if part not in allowed]
    assert not bad, f"import a part inside the function that needs it: {sorted(bad)}"
    needed = {(name, other) for name, part in PARTS.items() for other in part.needs}
    assert used == needed, "a part needs what none of its files imports"


def importers(*packages):
    """Return the files of the workbench that import one of these packages."""
    tops = {path: {name.split(".")[0] for name in imported(path)} for path in FILES}
    return [relative(path) for path, names in tops.items() if names & set(packages)]


# The same rule inside `metal_shim/`, and what its modules take from the workbench.
METAL = ROOT / "metal_shim"
METAL_FILES = sorted(path for path in METAL.rglob("*.py") if path.stem != "__init__")
METAL_ORDER = {
    "signature": {"spec"},
    "words": set(),
    "msl": set(),
    "host": set(),
    "lint": set(),
    "compiler": {"spec"},
    "whole": {"spec"},
    "emulate": {"spec", "data"},
    "file_check": {"spec"},
    "mlx_program": {"data"},
    "pytest_plugin": set(),
    "mlx_backend": {"spec"},
    "kernel": set(),
    "operations": {"spec"},
    "launches": {"spec"},
    "sampling": {"spec"},
    "kernels": {"spec", "kernels", "variants"},
    "check": {"spec", "data", "device", "catalog", "measurement"},
    "capture": {"spec", "data", "device", "catalog", "measurement", "backend", "commands"},
    "rehearsal": {"spec", "data"},
    "bring_back": {"spec", "data", "device", "measurement", "backend", "commands"},
}


def test_imports_of_the_metal_path_follow_the_rule():
    bad, order = [], list(METAL_ORDER)
    for path in METAL_FILES:
        here = path.relative_to(METAL).with_suffix("").parts[0]
        used = {name.split(".")[1] for name in imported(path) if name.startswith("metal_shim.")}
        late = {name for name in used if order.index(name) >= order.index(here)}
        ours = set(of_ours(path)) - METAL_ORDER[here]
        libraries = {name.split(".")[0] for name in imported(path)} & {"mlx", "triton"}
        libraries -= {"mlx"} if here in ("mlx_backend", "mlx_program", "operations") else set()
        if wrong := late | ours | libraries:
            bad.append(f"{relative(path)} imports {sorted(wrong)}, which {here} may not")
    assert METAL_FILES and not bad, "\n".join(bad)


def test_the_metal_path_is_imported_without_triton_or_mlx():
    code = (
        "import sys, metal_shim.kernel; print([m for m in ('mlx', 'triton') if m in sys.modules])"
    )
    assert python(code).strip() == "[]"


# Importing is free of work


def test_the_command_line_starts_without_heavy_libraries():
    code = f"import sys, workbench.cli; print([m for m in {HEAVY} if m in sys.modules])"
    assert python(code).strip() == "[]", "import it inside the command that needs it"


def test_the_files_of_all_commands_import_next_to_nothing():
    """`workbench --help` imports all of them: 32 ms in all."""
    code = f"""
import sys
from workbench.commands.options import commands
assert len(commands()) == 30
print([m for m in {(*HEAVY, "numpy")} if m in sys.modules])
print([m for m in sys.modules if m.startswith("workbench.") and not m.startswith(
    ("workbench.commands", "workbench.data", "workbench.spec"))])
"""
    assert python(code).split("\n")[:2] == ["[]", "[]"], "import it inside `run`"


def test_the_promised_module_loads_nothing_heavy():
    """`python -m workbench.sweep` imports that module before the command line."""
    heavy = [m for m in HEAVY if m != "rich"]  # Typer draws the help with it
    code = f"import sys, workbench.sweep; print([m for m in {heavy} if m in sys.modules])"
    assert python(code).strip() == "[]", "import it inside the function that needs it"


def test_worker_processes_import_neither_the_command_line_nor_the_api():
    """They import the main module of the command, too; five of them start with a sweep."""
    names = ("sweep", "__main__", "backend.processes", "backend.checking")
    code = f"import sys, {', '.join(f'workbench.{name}' for name in names)}; "
    code += "print([m for m in ('typer', 'rich', 'workbench.cli', 'workbench.api') "
    assert python(f"{code} if m in sys.modules])").strip() == "[]"


def test_results_are_read_without_torch():
    names = [
        "workbench.data.events",
        "workbench.data.database",
        "workbench.data.selection",
        "workbench.data.verdict",
    ]
    names += [f"workbench.reports.{path.stem}" for path in (PACKAGE / "reports").glob("[!_]*.py")]
    names = [n for n in names if PACKAGE.joinpath(*n.split(".")[1:]).with_suffix(".py").exists()]
    assert "workbench.data.events" in names and "workbench.reports.sweep" in names
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


def test_without_triton_the_functions_of_the_host_give_what_tritons_do():
    """A kernel's `work` and `refuse` call them on macOS."""
    import triton

    printed = python(
        """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError(f"{name} is blocked in this test", name=name)

sys.meta_path.insert(0, Absent())
from workbench import dsl

print([dsl.triton.cdiv(a, b) for a in (0, 1, 7, 8, 9) for b in (1, 3, 8)])
print([dsl.triton.next_power_of_2(n) for n in (1, 2, 3, 8, 9)], dsl.INTERPRETED)
"""
    )
    counts = [triton.cdiv(a, b) for a in (0, 1, 7, 8, 9) for b in (1, 3, 8)]
    powers = [triton.next_power_of_2(n) for n in (1, 2, 3, 8, 9)]
    assert printed == f"{counts}\n{powers} False\n"


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
THINGS += CLONED


def test_every_contributed_file_says_what_it_is():
    texts = {path: path.read_text(encoding="utf-8").lstrip() for path in THINGS}
    silent = [relative(path) for path, text in texts.items() if not text.startswith('"""')]
    assert THINGS and not silent, f"no docstring: {silent}"


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
    text = (ROOT / "docs" / "kernel_file.md").read_text(encoding="utf-8")
    assert f"`{node.name}(" in text, f"docs/kernel_file.md does not explain `{node.name}`"
