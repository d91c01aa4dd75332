"""The Python API: names, arguments, results, and what it costs to import it."""

import ast
import dataclasses
import inspect
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from null_backend import Fate, Null
from nullside import kernel_in

import workbench as wb
from workbench.api import command_function
from workbench.api import progress as displays
from workbench.api.arguments import sizes_mappings, sizes_texts
from workbench.api.call import Called
from workbench.commands import ceilings, compare, experiment, history, measure, profile, sweep
from workbench.commands.compare_command import CompareCommand
from workbench.commands.console import SweepConsole, console_for
from workbench.commands.history import HistoryOptions
from workbench.commands.measure_command import MeasureCommand
from workbench.commands.options import commands
from workbench.commands.profile import ProfileOptions
from workbench.commands.result import CommandResult, write_result
from workbench.commands.sweep import SweepOptions
from workbench.commands.sweep_command import SweepCommand
from workbench.data.exits import INTERRUPTED, PASSED

ROOT = Path(__file__).parents[2]
CALLS = ("sweep", "measure", "compare", "evaluate", "experiment", "ceilings", "profile",
         "history")  # fmt: skip


def python(code, *arguments):
    """Run code in a fresh interpreter, and give back what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Importing, and names


def test_importing_the_package_imports_nothing_else():
    code = "import sys; was = set(sys.modules); import workbench; print(*(set(sys.modules) - was))"
    assert set(python(code).split()) <= {"workbench", "types"}


def test_the_names_of_the_api_need_no_heavy_library():
    """All but `ops`, which are operators of torch."""
    heavy = ("torch", "triton", "pandas", "matplotlib", "numpy", "sqlalchemy", "jinja2", "rich")
    code = "import sys, workbench; "
    code += "[getattr(workbench, n) for n in dir(workbench) if n != 'ops']; "
    code += f"print([m for m in {heavy} if m in sys.modules])"
    assert python(code).strip() == "[]"


def test_dir_shows_the_api_alone():
    names = dir(wb)
    assert set(CALLS) | {"bench", "step", "tune", "workload", "events_frame"} < set(names)
    assert not [name for name in names if name.startswith("_")]
    modules = {name for name in names if isinstance(getattr(wb, name), ModuleType)}
    assert modules == {"ops", "workload"}
    everything = {}
    exec("from workbench import *", everything)
    assert set(names) <= set(everything)
    with pytest.raises(AttributeError, match="no attribute 'sweeep'"):
        wb.sweeep  # noqa: B018


STUBBED = """
import importlib, sys
from pathlib import Path
FIRST

names = [".".join(p.with_suffix("").parts) for p in Path("workbench").rglob("*.py")]
for name in sorted(names):
    if name != "workbench.__main__":
        importlib.import_module(name.removesuffix(".__init__"))
import workbench as wb
from workbench.commands.sweep import SweepOptions
from workbench.commands.result import CommandResult, write_result

def stub(options):
    return write_result(options, options.COMMAND, 0)

for name in ("sweep", "measure", "compare", "evaluate", "experiment", "ceilings", "profile",
             "history"):
    sys.modules[f"workbench.commands.{name}"].run = stub
words = {"measure": ["softmax"], "compare": ["a", "b"], "evaluate": ["softmax"],
         "experiment": ["expected"]}
for name in dir(wb):
    value = getattr(wb, name)
    others = ("tune", "workload", "bench", "predict")
    if f"workbench.commands.{name}" in sys.modules and name not in others:
        print(type(value(*words.get(name, []), progress=False) if name != "history" else value()))
sys.modules["workbench.commands.tune_function"].tune = lambda *a, **more: stub(SweepOptions())
assert isinstance(wb.tune(None, (), grid=(1,)), wb.TuneResult)
assert callable(wb.bench({"N": 1})) and callable(wb.step) and callable(wb.events_frame)
assert callable(wb.workload.record) and wb.workload is sys.modules["workbench.workload"]
assert sys.modules["workbench.sweep"] is not wb.sweep
"""


@pytest.mark.nightly
def test_every_name_is_called_after_every_module_was_imported():
    printed = python(STUBBED.replace("FIRST", "import workbench.sweep")).splitlines()
    results = {re.search(r"\.(\w+)'", line)[1] for line in printed}
    assert results == {f"{name.capitalize()}Result" for name in CALLS}


@pytest.mark.parametrize(
    "first",
    [
        "import workbench; workbench.sweep; import workbench.sweep",
        "from workbench import sweep; import workbench.sweep, workbench.workload",
        "import importlib; importlib.import_module('workbench.sweep'); import workbench",
    ],
)
def test_the_function_stays_beside_the_module_of_its_name(first):
    code = f"{first}\nimport sys, workbench\n"
    code += "assert workbench.sweep is workbench.api.sweep\n"
    code += "print(sys.modules['workbench.sweep'].__name__, workbench.workload.__name__)"
    assert python(code).split() == ["workbench.sweep", "workbench.workload"]


def test_the_promised_command_starts_beside_the_function():
    done = subprocess.run(
        [sys.executable, "-m", "workbench.sweep", "--help"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and "--require" in done.stdout


# Arguments

# Options of the command line alone: where it prints, and the form of its output.
OF_THE_COMMAND_LINE = {"json", "quiet", "events_file", "events", "wide"}
LEFT_OUT = {
    "compare": {"triton", "device", "expect"},
    "profile": {"list_metrics", "device", "dry_run"},
    "evaluate": {"verify", "reuse", "annotate", "sarif"},
    "history": {"prune", "older_than", "keep", "yes", "export"},
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_are_the_options_of_the_command(name):
    fields = {f.name: f.default for f in dataclasses.fields(commands()[name])}
    parameters = dict(inspect.signature(getattr(wb, name)).parameters)
    assert parameters.pop("progress").default is None
    left_out = OF_THE_COMMAND_LINE | LEFT_OUT.get(name, set())
    assert set(parameters) == set(fields) - left_out
    documented = getattr(wb, name).__doc__
    assert documented.count("\nArgs:\n") == 1
    for argument in (*parameters, "progress"):
        assert len(re.findall(rf"^    {argument}: .", documented, flags=re.M)) == 1
    for argument, parameter in parameters.items():
        given = {"name": "full", "sizes": None, "out": "results"}.get(argument, fields[argument])
        given = "matmul" if (name, argument) == ("sweep", "kernel") else given
        if (name, argument) != ("experiment", "name"):  # the command lists them without one
            assert parameter.default in (given, parameter.empty) or argument == "name"


def test_the_types_of_the_functions_are_those_of_their_signatures():
    """`commands.pyi` is what editors read; docs/generate.py --check compares its text."""
    stub = ast.parse((ROOT / "workbench" / "api" / "commands.pyi").read_text(encoding="utf-8"))
    functions = {f.name: f for f in stub.body if isinstance(f, ast.FunctionDef)}
    assert set(functions) == set(CALLS)
    for name, function in functions.items():
        given = function.args
        names = [a.arg for a in (*given.args, *filter(None, [given.vararg]), *given.kwonlyargs)]
        signature = inspect.signature(getattr(wb, name))
        assert names == list(signature.parameters)
        assert ast.get_docstring(function) == inspect.getdoc(getattr(wb, name))
        assert ast.unparse(function.returns) == signature.return_annotation


def test_arguments_become_options_of_the_command(monkeypatch):
    given = []

    def called(options, progress):
        given.append(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(command_function, "call", called)
    for call in (
        lambda: wb.sweep(Path("a.py"), sizes={"N": [1, 2]}, impl="x", budget=20, workers=2,
                         also="energy", require=["same-bits", "idle-gpu"], out="r"),
        lambda: wb.profile("--", "python", "a.py", steps=(0, 1, 3), with_="shapes"),
        lambda: wb.history(load="e.jsonl"),
    ):  # fmt: skip
        with pytest.raises(KeyboardInterrupt):
            call()
    assert given == [
        SweepOptions("full", "a.py", ("x",), ("N=1", "N=2"), budget="20", workers="2",
                     also=("energy",), require=("same-bits", "idle-gpu"), out=Path("r")),
        ProfileOptions(target=("--", "python", "a.py"), steps="0,1,3", with_=("shapes",)),
        HistoryOptions(load=Path("e.jsonl")),
    ]  # fmt: skip
    with pytest.raises(wb.WorkbenchError, match="--also takes no 'energie'; write energy or prof"):
        wb.sweep("softmax", also="energie")


def test_an_argument_that_does_not_exist_is_an_error():
    with pytest.raises(TypeError, match=r"sweep\(\) got an unexpected keyword argument 'sizess'"):
        wb.sweep("softmax", sizess={"M": 1})
    with pytest.raises(TypeError, match=r"compare\(\) got an unexpected keyword argument 'json'"):
        wb.compare("a", "b", json="x")


def test_sizes_are_texts_mappings_or_lists():
    assert sizes_texts({"M": 8, "N": [1, 2]}) == ("M=8,N=1", "M=8,N=2")
    assert sizes_texts([{"M": 8}, "M=9"]) == ("M=8", "M=9")
    assert sizes_texts("M=1") == ("M=1",) and sizes_texts(None) == ()
    assert sizes_mappings({"N": range(1, 3)}) == ({"N": 1}, {"N": 2})
    for wrong in ({"M": "8"}, {"M": True}, {"M": []}, {"M": 1.5}):
        with pytest.raises(wb.WorkbenchError, match="whole number"):
            sizes_texts(wrong)
    with pytest.raises(wb.WorkbenchError, match="names 2"):
        wb.experiment("expected", sizes={"M": [1, 2]})


# Results


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A kernel that nothing runs, on a backend without processes. `place.null` is replaced for
    another fate."""
    there = SimpleNamespace(null=Null(), kernel=str(kernel_in(tmp_path)))
    there.more = {"out": tmp_path / "results", "database": f"sqlite:///{tmp_path / 'history.db'}"}
    opener, tuned = lambda *_: there.null, tmp_path / "tuned.json"

    def sweep_run(options):
        return SweepCommand(options, SweepConsole(options.quiet), opener, tuned_file=tuned).go()

    def measure_run(options):
        return MeasureCommand(options, console_for(options), opener, tuned_file=tuned).go()

    monkeypatch.setattr(sweep, "run", sweep_run)
    monkeypatch.setattr(measure, "run", measure_run)
    monkeypatch.setattr("workbench.reports.sweep.page", lambda *a, **more: "<p>page</p>")
    monkeypatch.setattr("workbench.reports.measure.page", lambda *a: "<p>page</p>")
    return there


class Tags(HTMLParser):
    """Checks that tags are closed, and collects ids and text."""

    VOID = ("meta", "br", "use", "path")

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.words = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.ids += [value for name, value in attributes if name == "id"]
        self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.ids += [value for name, value in attributes if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_a_sweep_returns_what_the_command_line_writes(place, capsys):
    place.null = Null(lambda c: Fate(time_s=50e-6 if c.case.config.get("num_warps") == 1 else 1e-4))
    result = wb.sweep(place.kernel, "full", progress=False, **place.more)
    assert capsys.readouterr().out == ""
    assert result.best.config["num_warps"] == 1 and not result.best.predicted
    assert isinstance(result.best.timing, wb.Measured) and result.page.is_file()
    assert "µs measured on h200" in repr(result.best)
    assert "1 warp" in result.sentence and result.sentence in repr(result)
    assert result.sentence in str(result) and "report" in str(result)
    document = json.loads(result.json())
    assert document == result.plain() and document["command"] == "sweep"
    assert document["runs"][0]["run"]["id"] == result.run.id and document["exit_code"] == PASSED
    rows = wb.history(database=place.more["database"], limit=500)
    assert {row["run"] for row in rows.rows} == {result.run.id}
    assert set(rows.frame()["kind"]) == {"measured", "failure"}


def test_the_rates_of_a_frame_are_those_of_the_declared_bytes_and_flops(place):
    """The toy moves 4 bytes an element in bf16."""
    place.null = Null(lambda c: Fate(time_s=1e-6 if c.case.impl == "blocks" else 4e-6))
    frame = wb.sweep(place.kernel, **place.more).frame()
    timed = frame[frame["kind"] == "measured"]
    assert len(timed) > 2
    for row in timed.to_dict("records"):
        assert row["gbps"] == pytest.approx(row["bytes"] / row["measured_s"] * 1e-9)
        assert row["tflops"] == pytest.approx(row["flops"] / row["measured_s"] * 1e-12)
    blocks = timed[timed["impl"] == "blocks"]
    assert blocks["gbps"].median() == pytest.approx(4 * 1024 / 1e3, rel=0.05)


def test_a_frame_keeps_predicted_and_measured_seconds_apart(place):
    measured = wb.sweep(place.kernel, **place.more).frame()
    place.null = Null(predicts=True)
    result = wb.sweep(place.kernel, device="h200", **place.more)
    predicted = result.frame()
    timed = measured[measured["kind"] == "measured"]
    assert timed["measured_s"].notna().all() and timed["predicted_s"].isna().all()
    timed = predicted[predicted["kind"] == "predicted"]
    assert timed["predicted_s"].notna().all() and timed["measured_s"].isna().all()
    assert predicted["kind"].tolist() == sorted(predicted["kind"], key=lambda k: k == "failure")
    assert {"N", "block_n", "num_warps"} <= set(predicted) and predicted["block_n"].dtype == "Int64"
    assert result.predicted and isinstance(result.best.timing, wb.Predicted)
    assert predicted["reason"].iloc[-1] == result.failures[-1].reason


def test_a_notebook_shows_the_answer_a_figure_and_ten_rows(place):
    place.null = Null(predicts=True)
    result = wb.sweep(place.kernel, device="h200", **place.more)
    one, other = Tags(result._repr_html_()), Tags(result._repr_html_())
    assert not set(one.ids) & set(other.ids) and len(set(one.ids)) == len(one.ids)
    text = " ".join(one.words)
    assert "predicted for h200: no GPU took part" in text and result.sentence in text
    html = result._repr_html_()
    assert html.count("<tr>") == 11 and "<svg" in html and "more rows: .frame()" in html
    assert not re.search(r"https?://|<script|<link", html)
    rows = result._table()[1]
    assert rows[0][0] == result.best.record.case.label, "the winner is the first row"
    assert result.best._repr_html_().count("<tr>") == 2
    assert result.plot()._repr_png_().startswith(b"\x89PNG")
    place.null = Null()
    assert "no GPU took part" not in wb.sweep(place.kernel, **place.more)._repr_html_()


def test_a_result_prints_text_where_colours_are_forced(place, monkeypatch):
    """Kernels of Jupyter set FORCE_COLOR, and rich displayed in the cell what it should print."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    text = str(wb.sweep(place.kernel, **place.more))
    assert "measured" in text and "report  " in text and "\x1b" not in text


def test_times_at_several_sizes_have_no_one_best(place):
    result = wb.sweep(place.kernel, sizes={"N": [1024, 2048]}, **place.more)
    assert [best.sizes for best in result.bests] == [{"N": 1024}, {"N": 2048}]
    with pytest.raises(wb.WorkbenchError, match="bests"):
        result.best  # noqa: B018
    place.null = Null(lambda c: Fate(wrong="is wrong"))
    with pytest.raises(wb.WorkbenchError, match="No config gave a time"):
        wb.sweep(place.kernel, fresh=True, **place.more).best  # noqa: B018


def test_a_measurement_has_a_curve_with_the_library_and_the_bound(place):
    result = wb.measure(place.kernel, sizes={"N": [1024, 4096, 16384]}, **place.more)
    assert len(result.bests) == 3 and result.bests[0].impl == "blocks"
    figure = result.plot()
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names[:2] == ["blocks", "torch"] and names[2].startswith("roofline bound")
    assert figure.axes[0].get_xlabel() == "N (bf16)"
    again = wb.measure(place.kernel, sizes={"N": 1024}, **place.more)
    assert again.plot().axes[0].get_legend() is None
    assert again.compare(again).word == "suspected SAME"


def test_ctrl_c_and_errors_are_exceptions(place, monkeypatch):
    def stopped(options):
        return write_result(options, "sweep", INTERRUPTED)

    with pytest.raises(
        wb.WorkbenchError, match="There is no kernel 'sofmax'; did you mean softmax"
    ):
        wb.measure("sofmax", **place.more)
    monkeypatch.setattr(sweep, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        wb.sweep(place.kernel, **place.more)


def test_without_a_gpu_a_comparison_refuses_as_the_command_does(place, monkeypatch):
    monkeypatch.setattr("workbench.commands.comparison.gpu_present", lambda: False)
    with pytest.raises(wb.WorkbenchError, match="Comparing needs a GPU that torch sees"):
        wb.compare("rows", "rows:num_warps=8", kernel="softmax", **place.more)


@pytest.mark.parametrize("slower", [False, True])
def test_a_comparison_has_its_verdict(place, monkeypatch, slower):
    def fate(candidate):
        return Fate(time_s=1.2e-4 if slower and candidate.case.config["num_warps"] == 4 else 1e-4)

    def run(options):
        return CompareCommand(options, console_for(options), lambda *_: Null(fate)).go()

    monkeypatch.setattr(compare, "run", run)
    monkeypatch.setattr("workbench.reports.compare.page", lambda *a, **more: "<p>page</p>")
    operands = ("blocks:num_warps=2", "blocks:num_warps=4")
    result = wb.compare(*operands, kernel=place.kernel, **place.more)
    assert result.word == result.verdict.word == ("SLOW" if slower else "SAME")
    assert result.sentence.startswith(result.word) and result.exit_code == int(slower)
    (row,) = result.frame().to_dict("records")
    assert row["word"] == result.word and row["low"] <= row["ratio"] <= row["high"]
    assert row["ratio"] == pytest.approx(1.2 if slower else 1.0, rel=0.01)
    assert result.sentence in " ".join(Tags(result._repr_html_()).words)
    assert len(result.plot().axes[0].lines) == 4  # two medians, two intervals


@pytest.mark.parametrize("module", [ceilings, compare, experiment, history, profile])
def test_results_without_a_number_show_themselves(module, monkeypatch):
    """Nothing to draw, and nothing in a table, is no error in a notebook."""
    name = module.__name__.rsplit(".", 1)[1]
    monkeypatch.setattr(module, "run", lambda options: write_result(options, name, PASSED))
    words = {"compare": ("a", "b"), "experiment": ("expected",)}.get(name, ())
    result = getattr(wb, name)(*words)
    if name == "ceilings":
        with pytest.raises(wb.WorkbenchError, match="no run"):
            result.frame()
        return
    assert len(result.frame()) == 0 and Tags(result._repr_html_())
    with pytest.raises(wb.WorkbenchError, match="nothing to draw"):
        result.plot()


def test_ceilings_of_a_device_are_marked_as_stated(tmp_path):
    result = wb.ceilings(device="h200", out=tmp_path, database=f"sqlite:///{tmp_path / 'h.db'}")
    assert result.frame().set_index("name").loc["dram", "kind"] == "datasheet"
    assert "stated of h200: nothing was measured" in result._repr_html_()


# Progress


class Cell:
    """The output of a notebook's cell, and what `IPython.display` offers of it."""

    def __init__(self, monkeypatch):
        self.shown = []
        display = ModuleType("IPython.display")
        display.HTML = lambda text: text
        display.display = self.display
        package = ModuleType("IPython")
        package.get_ipython = lambda: SimpleNamespace(kernel=object())
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def display(self, text, display_id):
        assert display_id is True
        self.shown.append(text)
        return SimpleNamespace(update=self.shown.append)


def test_a_notebook_has_a_bar_that_goes_away(place, monkeypatch):
    cell = Cell(monkeypatch)
    monkeypatch.setattr(displays, "EVERY_S", 0.0)
    wb.sweep(place.kernel, **place.more)
    assert 'value="0" max="11"' in cell.shown[0] and 'value="11" max="11"' in cell.shown[-2]
    assert cell.shown[-1] == ""
    cell.shown.clear()
    wb.measure(place.kernel, progress=False, **place.more)
    assert not cell.shown
    wb.measure(place.kernel, sizes={"N": [16, 32]}, **place.more)
    assert "0/2 N=16, bf16" in cell.shown[0] and cell.shown[-1] == ""


def test_elsewhere_progress_is_a_line_if_it_is_wanted(place, capsys):
    wb.measure(place.kernel, **place.more)
    assert capsys.readouterr() == ("", "")
    wb.measure(place.kernel, progress=True, **place.more)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("measure  0/1  N=1024, bf16")


# Types

USE = """
from collections.abc import Callable
from pathlib import Path
from typing import Any

import workbench as wb
from workbench import step, tune

r: wb.SweepResult = wb.sweep("softmax", sizes={"M": 4096, "N": [1024, 2048]}, budget=20)
timing: wb.Measured | wb.Predicted = r.best.timing
config: dict[str, int] = dict(r.best.config)
page: Path = r.page
m: wb.MeasureResult = wb.measure("softmax", sizes=[{"M": 1, "N": 2}], dtype=["bf16", "fp32"])
c: wb.CompareResult = wb.compare(r, m)
e: wb.ExperimentResult = wb.experiment("memory_vs_compute", kernel="softmax")
k: wb.CeilingsResult = wb.ceilings(device="h200")
p: wb.ProfileResult = wb.profile("softmax", tool="ncu")
h: wb.HistoryResult = wb.history("softmax")
verdict: wb.Verdict = c.verdict
with wb.workload.record("run.workload"):
    step()
b: wb.TuneResult = tune(object(), (1,), grid=(1,), device="h200")
text: str = r.json()


@wb.bench({"N": [1024, 2048]}, bytes=lambda N: 12 * N)
def add(N: int) -> dict[str, Callable[[], Any]]:
    return {"torch": lambda: N}


curve: wb.BenchResult = add.run(device="h200")
made: dict[str, Callable[[], Any]] = add(N=3)
for result in (r, m, c, e, k, p, h, curve):
    result.frame(), result.plot()
"""
MISUSE = {
    'wb.swep("softmax")': 'no attribute "swep"',
    'wb.sweep("softmax", sizes=3)': "incompatible type",
    'wb.measure("softmax", divice="h200")': "Unexpected keyword argument",
    'x: int = wb.sweep("softmax").best.time_s': "Incompatible types in assignment",
    "add(M=3)": "Unexpected keyword argument",
}


@pytest.mark.nightly
def test_a_program_outside_is_checked_strictly(tmp_path):
    """By `mypy --strict`, as a program of the user's; large libraries are not followed."""
    skipped = "matplotlib.*,numpy.*,pandas.*,torch.*,triton.*"
    (tmp_path / "mypy.ini").write_text(
        f"[mypy]\n[mypy-{skipped}]\nfollow_imports = skip\nignore_missing_imports = true\n"
    )
    (tmp_path / "use.py").write_text(USE + "\n".join(MISUSE))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "mypy.ini", "use.py"],
        cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    first = USE.count("\n") + 1
    for at, (line, message) in enumerate(MISUSE.items()):
        own = [error for error in errors if error.startswith(f"use.py:{first + at}:")]
        assert own and message in own[0], f"{line}: {done.stdout}"
    assert len(errors) == len(MISUSE), done.stdout


# A verdict

# fmt: off
RULES = [{"rule": "values", "state": "kept", "reason": "", "shown": "evidence"},
         {"rule": "streams", "state": "not run", "reason": "it needs a GPU", "shown": ""},
         {"rule": "launches", "state": "kept", "reason": "line 3", "shown": "claim"},
         {"rule": "guards", "state": "broken", "reason": "it wrote <behind>", "shown": ""}]
# fmt: on


def judged(**more):
    content = {"kernel": "k", "impl": "mine", "device": "h200", "predicted": True,
               "rules": RULES[:3], "verdict": "plausible", "rule": None, "reason": None,
               "error_in_tolerances": 0.5,
               "times": {"time_s": 2e-6}}  # fmt: skip
    result = CommandResult("evaluate", 3, (), content | more)
    return wb.EvaluateResult(Called(result, "text\n", None))


def test_a_verdict_has_its_word_its_claims_and_its_time():
    one = judged()
    assert (one.verdict, one.rule, one.claims) == ("plausible", None, ("launches",))
    assert (one.time_s, one.error_in_tolerances, one.exit_code) == (2e-6, 0.5, 3)
    assert (
        one.sentence == "k.mine is plausible (by the file's word: launches), ~2.000 µs predicted."
    )
    assert list(one.frame()["state"]) == ["kept", "not run", "kept"]
    assert one.plain()["command"] == "evaluate" and one.plain()["verdict"] == "plausible"


def test_the_card_of_a_rejected_kernel_shows_the_broken_rule_first_and_no_time():
    more = {"rule": "guards", "reason": "it wrote <behind>", "times": None, "verdict": "rejected"}
    one = judged(rules=RULES, **more)
    assert one.time_s is None
    assert one.sentence == "k.mine is rejected by the rule guards: it wrote <behind>"
    card = one._repr_html_()
    assert "judged for h200: no GPU took part" in card and "it wrote &lt;behind&gt;" in card
    assert card.index("broken") < card.index("kept") < card.index("not run")
