"""What the guide and its reference say of an addition is enough to make one, in the files that
they name.

Each kind is added to a copy of `workbench/` from the blocks of the pages alone, and used there in a
process of its own. `tests/compile/test_contributing.py` runs the commands of the pages.
"""

import ast
import gzip
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import dedent, indent

import pytest
from contributed import GUIDE, PAGES, ROOT, blocks_of, python

STORED = ROOT / "tests" / "golden" / "stored"

# The page and the heading that have the example of a kind, and how many files of `workbench/` it
# touches.
KINDS = {
    "kernel": ("docs/kernel_file.md", "A complete file", 1),
    "device": ("docs/extending.md", "Add a device", 1),
    "reader": ("CONTRIBUTING.md", "Add a reader", 1),
    "sweep": ("docs/extending.md", "Add a sweep", 1),
    "experiment": ("docs/extending.md", "Add an experiment", 1),
    "page": ("docs/extending.md", "Add a page", 1),
    "command": ("docs/extending.md", "Add a command", 2),  # its file, and its name in a panel
    # a field with its column, and the place that fills it
    "compiler metric": ("docs/extending.md", "Add a compiler metric", 2),
}
ELSEWHERE = {
    "rule of diagnose": "docs/tutorials/add.md has the file, tests/compile runs it",
    "profiler's tool": "no example: it would need the tool",
    "Metal kernel": "docs/metal.md has the file, tests/emulated runs it",
}
# Code that adds nothing to `workbench/`: tests/compile runs the kernels' tests with it.
PROPERTIES = {("CONTRIBUTING.md", "Add a kernel"), ("docs/kernel_file.md", "Properties")}

pytestmark = pytest.mark.unit


class Copy:
    """A copy of `workbench/` to which one kind is added."""

    def __init__(self, folder: Path, kind: str) -> None:
        page, heading, self.count = KINDS[kind]
        self.folder, blocks = folder, blocks_of(PAGES[page])
        self.blocks = [b for b in blocks if b.heading == heading and b.language != "sh"]
        unnamed = [b.text for b in self.blocks if b.path is None]
        assert self.blocks and not unnamed, f"the text names no file for {unnamed}"
        shutil.copytree(ROOT / "workbench", folder / "workbench")  # with the bytecode: 1 s a test

    @property
    def text(self) -> dict[str, bytes]:
        """Every file by its path."""
        paths = (p for p in (self.folder / "workbench").rglob("*") if p.is_file())
        return {
            p.relative_to(self.folder).as_posix(): p.read_bytes()
            for p in paths
            if "__pycache__" not in p.parts
        }

    def write(self) -> list[str]:
        """Write each block as a new file, or at the end of one that exists. Gives the paths."""
        before = self.text
        for block in self.blocks:
            path = self.folder / block.path
            if path.exists():
                block = replace(block, text=f"{path.read_text()}\n\n{block.text}")
            path.write_text(block.text, encoding="utf-8")
        return self.touched(before)

    def touched(self, before: dict[str, bytes]) -> list[str]:
        """Files that are new or differ: as many as `KINDS` says."""
        after = self.text
        paths = sorted(path for path, text in after.items() if before.get(path) != text)
        assert before.keys() <= after.keys() and len(paths) == self.count, paths
        return paths

    def python(self, *arguments: object) -> str:
        """What Python prints with the copy as the workbench that it imports."""
        return python(self.folder, *arguments)

    def script(self, text: str, *arguments: object) -> str:
        """Run a script that must import the workbench from the copy."""
        first = f"import workbench\nassert workbench.__file__.startswith({str(self.folder)!r})\n"
        return self.python("-c", first + dedent(text), *arguments)

    def workbench(self, *arguments: object) -> str:
        return self.python("-m", "workbench", *arguments)


@pytest.fixture
def copy_for(tmp_path: Path) -> Callable[[str], Copy]:
    return lambda kind: Copy(tmp_path, kind)


def unpacked(name: str, folder: Path) -> Path:
    """A stored events file."""
    path = folder / "events.jsonl"
    path.write_bytes(gzip.decompress((STORED / f"{name}.jsonl.gz").read_bytes()))
    return path


def test_the_guide_is_short_and_its_table_has_every_kind() -> None:
    assert len(GUIDE.split()) <= 1500
    table = GUIDE.partition("## The house")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| an? ([\w' ]+) \|", table, flags=re.M)
    assert set(rows) == {*KINDS, *ELSEWHERE} and len(rows) == len(set(rows))
    headings = [line.strip("# ") for page in PAGES.values() for line in page.splitlines()]
    assert {heading for _, heading, _ in KINDS.values()} <= set(headings)


def test_every_example_is_run() -> None:
    """Code is an addition or a property; commands have no other language, or they say why not."""
    known = {place[:2] for place in KINDS.values()} | PROPERTIES
    blocks = [(page, b) for page, text in PAGES.items() for b in blocks_of(text)]
    code = {(page, b.heading) for page, b in blocks if b.language != "sh"}
    assert code == known and all(b.is_run for _, b in blocks if b.language != "sh")
    assert {b.language for _, b in blocks} == {"sh", "python", "toml"}


def test_a_kernel(copy_for) -> None:
    copy = copy_for("kernel")
    (path,) = copy.write()
    assert Path(path).parent == Path("workbench/kernels")
    copy.script(
        """
        import sys
        import torch
        from workbench.catalog import impl_of, kernel_names, spec_of
        name = sys.argv[1]
        assert name in kernel_names()
        spec = spec_of(name)
        assert spec.name == name
        assert [i.name for i in spec.impls if i.backend == "triton"] == ["blocks"]
        assert impl_of(spec, "blocks").spec is spec
        x, s = torch.ones(2, 3), torch.tensor([2.0, 3.0])
        assert spec.reference(x, s).tolist() == [[2.0] * 3, [3.0] * 3]
        """,
        Path(path).stem,
    )


def test_a_sweep(copy_for) -> None:
    copy = copy_for("sweep")
    (path,) = copy.write()
    assert Path(path).parent == Path("workbench/sweeps")
    copy.script(
        """
        import sys
        from workbench.commands.problem import find_sweep
        from workbench.spec import threads
        sweep = find_sweep(sys.argv[1])
        assert list(sweep.vary) == [threads] and not sweep.tune
        """,
        Path(path).stem,
    )


def test_a_reader(copy_for, tmp_path: Path) -> None:
    copy = copy_for("reader")
    (path,) = copy.write()
    assert Path(path).parent == Path("workbench/traces/readers")
    (tmp_path / "good.txt").write_text("TICKS\nadd 1500\nmul 40\n")
    (tmp_path / "bad.txt").write_text("TICKS\nadd 1500\nmul\n")
    copy.script(
        """
        import sys
        from pathlib import Path
        from workbench.traces.readers import ReadError, read
        good, bad = map(Path, sys.argv[1:])
        trace = read([good])
        assert [(d.name, d.duration_ns) for d in trace.dispatches] == [("add", 1500), ("mul", 40)]
        try:
            read([bad])
        except ReadError as error:
            assert "line 3" in str(error), error
        else:
            raise AssertionError("a damaged file was read")
        """,
        tmp_path / "good.txt",
        tmp_path / "bad.txt",
    )


@pytest.mark.nightly
def test_an_experiment(copy_for) -> None:
    copy = copy_for("experiment")
    (path,) = copy.write()
    assert Path(path).parent == Path("workbench/experiments")
    copy.script(
        """
        import sys
        from variant_results import context, failed, took
        from workbench.catalog import impl_of, spec_of
        from workbench.experiments import find_experiment, experiment_names
        name, here = sys.argv[1], context("")
        assert name in experiment_names()
        experiment = find_experiment(name)
        variants = {v.name: v for v in experiment.variants(here)}
        assert list(variants) == ["cold", "hot"]
        for v in variants.values():
            assert v.sizes.keys() == spec_of(v.kernel).bench[0].keys()
            impl_of(spec_of(v.kernel), v.impl)

        (none,) = experiment.analyse(here, {n: failed(v) for n, v in variants.items()})
        assert "it broke" in none.sentence and not none.evidence
        times = {"cold": 3e-6, "hot": 2e-6}
        results = {n: took(v, times[n]) for n, v in variants.items()}
        (seen,) = experiment.analyse(here, results)
        assert "1.50x" in seen.sentence
        assert [(e.name, e.value) for e in seen.evidence] == list(times.items())
        """,
        Path(path).stem,
    )


@pytest.mark.nightly
def test_a_page(copy_for, tmp_path: Path) -> None:
    copy = copy_for("page")
    (path,) = copy.write()
    assert Path(path).parent == Path("workbench/reports")
    events = unpacked("sweep_predicted", tmp_path)
    copy.workbench("report", Path(path).stem, events, "--out", tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    kinds = re.findall(r'^{"type":"(Record|Failure)"', events.read_text(), flags=re.M)
    assert html.count(" us predicted") == kinds.count("Record") > 0
    assert len(html.split("<pre>")[1].splitlines()) == len(kinds)


@pytest.mark.nightly
def test_a_device(copy_for) -> None:
    copy = copy_for("device")
    (block,) = copy.blocks
    (copy.folder / block.path).unlink()  # the complete file is that of a device that is known
    name = Path(block.path).stem
    (path,) = copy.write()
    assert Path(path).parent == Path("workbench/devices")
    assert re.search(rf"^{name} +sm_90 +NVIDIA", copy.workbench("devices"), flags=re.M)
    copy.script(
        """
        import sys
        from workbench.device.hardware import device_named
        device = device_named(sys.argv[1])
        assert (device.name, device.limits.arch) == (sys.argv[1], "sm_90")
        assert device.dram.value == 4.8e12 and device.peaks["bf16"].value == 989.4e12
        """,
        name,
    )


@pytest.mark.nightly
def test_a_command(copy_for) -> None:
    copy = copy_for("command")
    before, (own, row) = copy.text, copy.blocks
    table, panel = copy.folder / row.path, row.text.partition(":")[0]
    lines = table.read_text().splitlines(keepends=True)
    assert sum(line.strip().startswith(panel) for line in lines) == 1
    table.write_text("".join(f"    {row.text}" if panel in line else line for line in lines))
    (copy.folder / own.path).write_text(own.text)
    paths = copy.touched(before)
    assert all(Path(path).parent == Path("workbench/commands") for path in paths)
    (name,) = (Path(path).stem for path in paths if Path(path).stem != "options")
    assert re.search(rf"\b{name} +List the kernels", copy.workbench("--help"))
    assert "--dtype" in copy.workbench(name, "--help")
    every = copy.workbench(name).split()
    files = (ROOT / "workbench" / "kernels").glob("[!_]*.py")
    assert every == sorted(path.stem for path in files)
    some = copy.workbench(name, "--dtype", "fp32").split()
    assert "softmax" in some and set(some) < set(every)


def named(tree: ast.Module, name: str) -> ast.AST:
    """The class or function of that name."""
    kinds = ast.ClassDef | ast.FunctionDef
    return next(n for n in tree.body if isinstance(n, kinds) and n.name == name)


def end_of_fields(tree: ast.Module) -> ast.AST:
    return named(tree, "Resources").body[-1]


def branches(tree: ast.Module) -> ast.If:
    """The `if` that separates the cubin from the other machine code."""
    ifs = (n for n in ast.walk(named(tree, "read_resources")) if isinstance(n, ast.If))
    return next(n for n in ifs if "cubin" in ast.unparse(n.test))


def end_of_arguments(tree: ast.Module) -> ast.AST:
    calls = (n for n in ast.walk(named(tree, "read_resources")) if isinstance(n, ast.Call))
    return next(n for n in calls if ast.unparse(n.func) == "Resources").keywords[-1]


# Where the lines of a metric go: the place that the text or the line's comment states.
PLACES: dict[str, Callable[[ast.Module], ast.AST]] = {
    "a field of `Resources`": end_of_fields,
    "# in the branch of the cubin": lambda tree: branches(tree).body[-1],
    "# in the other branch": lambda tree: branches(tree).orelse[-1],
    "# among the arguments of Resources": end_of_arguments,
}


def insert(path: Path, line: str, place: str) -> None:
    """Insert a line after the last one of its kind, with the same indentation."""
    text = path.read_text(encoding="utf-8")
    last = PLACES[place](ast.parse(text))
    lines = text.splitlines(keepends=True)
    lines.insert(last.end_lineno, indent(line.strip(), " " * last.col_offset) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


@pytest.mark.nightly
def test_a_compiler_metric(copy_for, tmp_path: Path) -> None:
    copy = copy_for("compiler metric")
    before, section = copy.text, PAGES["docs/extending.md"].split("## Add a compiler metric")[1]
    for block in copy.blocks:
        stated = next(p for p in re.split(r"^\d\. ", section, flags=re.M) if block.path in p)
        for line in block.text.splitlines():
            marks = [p for p in PLACES if p.startswith("#") and line.endswith(p)]
            (place,) = marks or [p for p in PLACES if p in stated]
            insert(copy.folder / block.path, line, place)
    assert copy.touched(before) == sorted({block.path for block in copy.blocks})

    stored = unpacked("sweep_predicted", tmp_path)
    copy.script(
        """
        import gzip
        import sys
        from dataclasses import replace
        from pathlib import Path
        from types import SimpleNamespace
        from workbench.compile import Launch, read_resources
        from workbench.data.database import open_history
        from workbench.data.events import EventLog, read
        from workbench.data.record import Record, Run
        from workbench.device.hardware import device_named

        golden, stored, folder = map(Path, sys.argv[1:])
        def counted(device, **asm):
            meta = SimpleNamespace(num_warps=4, shared=1024)
            kernel = SimpleNamespace(asm=asm, metadata=meta)
            launch = Launch(kernel, (64,), "")
            return read_resources(launch, [launch], device_named(device), 0.1).barriers

        def text(name):
            return gzip.decompress((golden / name).read_bytes()).decode()

        ptx, amd = text("matmul.sm_90.ptx.gz"), text("matmul.gfx942.amdgcn.gz")
        cubin = (golden / "matmul.sm_90.cubin").read_bytes()
        assert counted("h200", cubin=cubin, ptx=ptx) == ptx.count("bar.sync") > 0
        assert counted("mi300x", amdgcn=amd, hsaco=b"") == amd.count("s_barrier") > 0

        events = read(stored).events
        (run,) = (e for e in events if isinstance(e, Run))
        records = [e for e in events if isinstance(e, Record) and e.resources]
        assert {r.resources.barriers for r in records} == {0}, "stored before there was the field"
        records = [replace(r, resources=replace(r.resources, barriers=977)) for r in records]
        with EventLog(folder / "new.jsonl") as log, \\
             open_history(f"sqlite:///{folder / 'new.db'}") as history:
            log.write(run)
            history.add_run(run)
            for record in records:
                log.write(record)
                history.add(record)
            results = [*history.outcomes(run.id), *read(folder / "new.jsonl").events[1:]]
        assert len(results) == 2 * len(records)
        assert {r.resources.barriers for r in results} == {977}
        """,
        ROOT / "tests" / "golden",
        stored,
        tmp_path,
    )
    copy.workbench("report", "sweep", tmp_path / "new.jsonl", "--out", tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.search(r"<th[^>]*>(?:<[^>]*>)*\s*barriers", html), "the page has no such column"
    assert ">977<" in html
