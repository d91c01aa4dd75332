"""Count how the code is built, on one or two versions of the workbench.

    python benchmarks/structure.py [FOLDER ...]

A FOLDER holds `workbench/`; without one it is this checkout. `git worktree add /tmp/before
REVISION` makes another. Needs ruff on the path of this Python, and Triton for the way of a config.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
# Traces one predicted sweep of one config: the files of workbench/ in which a function got the
# config, or an object of ours that holds it, as an argument. Between the command line and the page.
WAY = """
import sys, dataclasses, json
from pathlib import Path
root = Path(sys.argv[1]).resolve() / "workbench"
entered = set()

def holds(value, depth=0):
    if type(value).__name__ == "Tiles" and type(value).__module__.endswith("kernels.matmul"):
        return True
    if depth < 2 and dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(holds(getattr(value, f.name, None), depth + 1)
                   for f in dataclasses.fields(value))
    return False

def trace(frame, event, argument):
    if event != "call":
        return
    code = frame.f_code
    file = Path(code.co_filename)
    if root in file.parents and str(file) not in entered:
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(holds(frame.f_locals.get(name)) for name in names):
            entered.add(str(file))

from workbench import cli
sys.setprofile(trace)
try:
    cli.main(["sweep", "tile_size", "--kernel", "matmul", "--device", "h200", "--budget", "1",
              "--impl", "tiles", "--quiet", "--sizes", "M=64,N=64,K=64",
              "--out", sys.argv[2], "--database", f"sqlite:///{sys.argv[2]}/h.db"])
finally:
    sys.setprofile(None)
print("ENTERED", json.dumps(sorted(str(Path(f).relative_to(root)) for f in entered)))
"""


def files(root: Path) -> list[Path]:
    """Return the Python files of `workbench/`."""
    return sorted((root / "workbench").rglob("*.py"))


def formatted_lines(root: Path) -> dict[Path, int]:
    """Return the lines of each file once ruff has formatted it without `# fmt: skip`, but for the
    signatures of device code."""
    with tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(files(root)):
            text = path.read_text(encoding="utf-8")
            kept = set(device_signatures(text))
            lines = [
                line if at in kept else re.sub(r"\s*# fmt: skip", "", line)
                for at, line in enumerate(text.split("\n"), 1)
            ]
            Path(folder, f"f{number}.py").write_text("\n".join(lines), encoding="utf-8")
        options = ["--line-length", "100", "--quiet", "--isolated", folder]
        subprocess.run([sys.executable, "-m", "ruff", "format", *options], check=True)
        texts = (
            Path(folder, f"f{number}.py").read_text(encoding="utf-8")
            for number in range(len(files(root)))
        )
        return dict(zip(files(root), (text.count("\n") for text in texts), strict=True))


def metal_lines(root: Path) -> int:
    """Return the lines of Python and C++ of `metal_shim/`, the headers of its Metal library too."""
    paths = [p for p in (root / "metal_shim").rglob("*") if p.suffix in (".py", ".cpp")]
    paths += (root / "metal_shim" / "include").glob("*")
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def device_signatures(text: str) -> Iterator[int]:
    """Yield the numbers of the lines on which signatures of `@triton.jit` functions stand."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        if any("jit" in ast.unparse(d) for d in node.decorator_list):
            yield from range(node.lineno, node.body[0].lineno + 1)


def imports(path: Path, root: Path) -> set[Path]:
    """Return the files of `workbench/` that a file imports, also inside its functions, but for what
    only a type checker imports."""
    result = set()
    for node in run_nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("workbench"):
            base = root.joinpath(*str(node.module).split("."))
            for alias in node.names:
                choices = (base / f"{alias.name}.py", base / alias.name / "__init__.py",
                           base.with_suffix(".py"), base / "__init__.py")  # fmt: skip
                result |= set([c for c in choices if c.exists()][:1])
    return result - {path}


def run_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below one that may run: not those under `if TYPE_CHECKING`."""
    for below in ast.iter_child_nodes(node):
        if not (isinstance(below, ast.If) and ast.unparse(below.test) == "TYPE_CHECKING"):
            yield below
            yield from run_nodes(below)


def largest_circle(root: Path) -> int:
    """Return how many files import one another in the largest circle, 0 where there is none."""
    graph = {path: imports(path, root) for path in files(root)}

    def reachable_files(start: Path) -> set[Path]:
        seen: set[Path] = set()
        todo = [start]
        while todo:
            for below in graph.get(todo.pop(), ()):
                if below not in seen:
                    seen.add(below)
                    todo.append(below)
        return seen

    reach = {path: reachable_files(path) for path in graph}
    circles = [sum(p in reach[q] and q in reach[p] for q in graph) for p in graph if p in reach[p]]
    return max(circles, default=0)


def shared_class_names(root: Path) -> int:
    """Return how many class names stand in two files or more, kernels and variants aside."""
    where: dict[str, set[Path]] = defaultdict(set)
    for path in files(root):
        if not {"kernels", "variants", "arms"} & set(path.parts):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    where[node.name.lstrip("_")].add(path)
    return sum(len(paths) > 1 for paths in where.values())


def config_files(root: Path) -> list[str]:
    """Return the files that one config enters between the command line and the page."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", WAY, str(root), folder], cwd=root, capture_output=True,
            text=True, env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "HOME": folder},
        )  # fmt: skip
    marked = re.search(r"^ENTERED (.*)$", done.stdout, flags=re.M)
    if marked is None:
        raise RuntimeError(done.stderr[-500:])
    result: list[str] = json.loads(marked[1])
    return result


def holding(root: Path, *patterns: str) -> int:
    """Return how many files hold all of these patterns."""
    texts = [path.read_text(encoding="utf-8") for path in files(root)]
    return sum(all(re.search(p, text) for p in patterns) for text in texts)


def measure(root: Path) -> dict[str, object]:
    """Return the counts of one version."""
    package = root / "workbench"
    entries = [
        p for p in package.iterdir() if p.suffix == ".py" or (p.is_dir() and "__" not in p.name)
    ]
    way = config_files(root)
    return {
        "entries in workbench/": len(entries),
        "files in the largest import circle": largest_circle(root),
        "files that one config enters": len(way),
        "their names": way,
        "files that state a command's options": holding(root, r"def command\(self\) -> str"),
        "files that open an events file for a run": holding(
            root, r"with\b[^:]*EventLog\(|EventLog\([^)]*\) as log"
        ),
        "lines, formatted": sum(formatted_lines(root).values()),
        "lines of metal_shim/, Python and C++": metal_lines(root),
        "fmt: skip": sum(p.read_text(encoding="utf-8").count("fmt: skip") for p in files(root)),
        "class names with two meanings": shared_class_names(root),
    }


if __name__ == "__main__":
    for folder in [Path(word).resolve() for word in sys.argv[1:]] or [HERE]:
        print(f"\n{folder}")
        for name, value in measure(folder).items():
            print(f"  {name}: {value}")
