"""An experiment from the question to the page, on a side without GPU or compiler."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st
from null_backend import Fate, Null
from nullside import KERNEL
from rich.console import Console

from workbench import catalog, experiments
from workbench.catalog import CatalogError
from workbench.commands import experiment_command
from workbench.commands.experiment import ExperimentOptions
from workbench.data.database import open_history
from workbench.data.events import read
from workbench.data.record import Chart, Evidence, Failure, Finding, Record, Series
from workbench.data.tuned_cache import Tuned
from workbench.data.units import reading
from workbench.experiments import Analysis, Context, Experiment, ExperimentError, Variant
from workbench.experiments import find_experiment as named
from workbench.reports.experiment import (
    evidence_row,
    failure_lines,
    page,
    show,
    variant_row,
)
from workbench.reports.figures import curve as drawing
from workbench.reports.figures.rows import _name

AT = "2026-11-21T09:30:00.000+00:00"


def variants(context: Context) -> list[Variant]:
    sizes = context.sizes or {"N": 4096}
    return [
        Variant("cold", "copy", "blocks", sizes, context.dtype),
        Variant("hot", "copy", "blocks", sizes, context.dtype, regime="hot"),
        Variant("eager", "copy", "blocks", sizes, context.dtype, clock="host"),
        Variant("other", "triad", "blocks", sizes, context.dtype),
        Variant("odd", "copy", "blocks", sizes, context.dtype, config={"block_n": 65536}),
    ]


def analyse(context, result):
    rows = [e for name, each in result.items() if (e := each.evidence(name, "times", "< 1 us"))]
    counted = Evidence("launches", result["cold"].kernels or 0, "kernels", "computed", met=True)
    missing = [name for name, each in result.items() if each.time_s is None]
    return [Analysis("seen", f"{len(rows)} arms have a time.", [*rows, counted], caveats=missing)]


EXPERIMENT = Experiment("a test's own", variants, analyse, kernels=("copy",))


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment_command, "find_experiment", lambda name: EXPERIMENT)

    def go(backend, **wanted):
        text = io.StringIO()
        question = ExperimentOptions(
            "probe", out=tmp_path, database=f"sqlite:///{tmp_path}/h.db", **wanted,
        )  # fmt: skip
        console = Console(file=text, width=240, highlight=False, markup=False)
        code = experiment_command.ExperimentCommand(
            question, console, lambda device, folder: backend, tuned_file=tmp_path / "winners.json"
        ).go()
        return code, text.getvalue(), tmp_path

    return go


def stored(folder: Path):
    with open_history(f"sqlite:///{folder}/h.db") as history:
        last = history.run("last")
        return last, history.outcomes(last.id), history.findings(last.id)


def test_arms_are_timed_judged_stored_and_drawn(run):
    backend = Null(lambda c: Fate(time_s=2e-5, final="broke" if c.case.kernel == "triad" else None))
    code, text, folder = run(backend)
    last, outcomes, findings = stored(folder)
    assert code == 0 and last.engine == "experiment" and last.name == "probe"
    assert [type(o) for o in outcomes] == [Record, Record, Record, Failure, Failure]
    assert [o.phase for o in outcomes[:3]] == ["final", "hot", "final"]
    assert outcomes[3].reason == "broke" and outcomes[4].stage == "refused"
    (finding,) = findings
    assert finding.word == "seen" and finding.caveats == ("other", "odd")
    assert "seen. 3 arms have a time." in text and "report  " in text
    html = next(folder.glob("*/report.html")).read_text()
    assert "3 arms have a time." in html and "broke" in html
    events = read(next(folder.glob("*/events.jsonl"))).events
    assert [e for e in events if isinstance(e, Finding)] == findings


def test_a_time_of_the_host_is_another_question_than_one_of_the_device(run):
    run_keys = run(Null())[2]
    _, outcomes, _ = stored(run_keys)
    by_name = dict(zip(["cold", "hot", "eager"], outcomes, strict=False))
    assert by_name["cold"].key == by_name["hot"].key != by_name["eager"].key


def test_a_prediction_says_so(run):
    code, text, folder = run(Null(predicts=True))
    last, outcomes, _ = stored(folder)
    assert code == 0 and last.predicted and "~" in text
    html = next(folder.glob("*/report.html")).read_text()
    assert "All times on this page are predicted" in html
    assert all(o.phase == "predict" for o in outcomes if isinstance(o, Record))


def test_nothing_timed_is_an_error_code(run):
    assert run(Null(lambda c: Fate(final="broke")))[0] == 2


def test_a_page_of_nothing_is_a_page(run):
    last = stored(run(Null())[2])[0]
    assert "ended before anything was found" in page(last, [], [])


def test_an_unknown_experiment_is_one_sentence():
    with pytest.raises(ExperimentError, match="There is no experiment 'memory'"):
        named("memory")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.7e-6, "s", "3.700 µs"), (0.5e-3, "s", "500.00 µs"), (2.0, "s", "2.000 s"),
        (4.3e12, "B/s", "4.3 TB/s"), (13.1e6, "FLOP", "13.1 MFLOP"), (0.72, "1", "0.72"),
        (2.0, "kernels", "2"), (0.725, "%", "72.5 %"), (15.0, "FLOP/B", "15 FLOP/B"),
        (3686400, "B", "3.69 MB"), (0.076e-9, "s", "0.076 ns"), (99e-9, "s", "99 ns"),
        (0.0, "s", "0.000 µs"), (1.004, "1", "1.00"), (1.0, "1", "1"), (1.45e-4, "1", "0.000145"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_engineers_write_them(value, unit, text):
    assert reading(value, unit) == text


@given(st.floats(1e-12, 1e12), st.booleans())
def test_a_ratio_keeps_its_size_and_has_no_power_of_ten(value, below):
    text = reading(-value if below else value, "1")
    assert "e" not in text
    assert abs(float(text)) == pytest.approx(value, rel=0.0051)


@given(st.floats(1e-12, 1e3))
def test_no_time_is_told_as_nothing(seconds):
    number, unit = reading(seconds, "s").split()
    scale = {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    assert float(number) * scale == pytest.approx(seconds, rel=0.0051)


@pytest.mark.parametrize(
    ("name", "group", "target", "text"),
    [
        ("products, share", "", "", "36.3 %"), ("ffn", "share of the parts", "", "36.3 %"),
        ("any", "", "< 60 %", "36.3 %"), ("shared over all", "", "", "0.363"),
    ],
)  # fmt: skip
def test_a_share_is_told_in_percent(name, group, target, text):
    result = Evidence(name, 0.363, "1", "computed", group=group, target=target)
    assert evidence_row(result)[1] == text


@pytest.mark.parametrize(
    ("value", "low", "high", "unit", "text"),
    [
        (33.92e-6, 33.90e-6, 33.94e-6, "s", ("33.92 µs", "33.90 to 33.94 µs")),
        (0.998, 0.9974, 0.9986, "%", ("99.8 %", "99.7 to 99.9 %")),
        (9.99e-3, 9.98e-3, 10.02e-3, "s", ("9990.0 µs", "9980.0 µs to 10.02 ms")),
        (4.041e12, 4.039e12, 4.043e12, "B/s", ("4.041 TB/s", "4.039 to 4.043 TB/s")),
        (1.5, 1.4, 1.6, "1", ("1.5", "1.4 to 1.6")),
        (1.003, 1.002, 1.004, "1", ("1.003", "1.002 to 1.004")),
    ],
)  # fmt: skip
def test_an_interval_has_its_unit_once_and_figures_enough_to_be_seen(value, low, high, unit, text):
    result = Evidence("any", value, unit, "measured", low, high)
    assert tuple(evidence_row(result)[1:3]) == text


def test_a_chart_leaves_room_above_its_highest_point(monkeypatch):
    drawn = []
    monkeypatch.setattr(drawing, "figure_svg", lambda fig, *more: drawn.append(fig))
    line = Series("line", (16.0, 32.0), (3.0, 7.0), (2.9, 6.8), (3.1, 7.2), "measured")
    drawing.chart(Chart("a", "x", "y", (line,), True), "c")
    assert drawn[0].axes[0].get_ylim() == (0, pytest.approx(1.08 * 7.2))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "fp8", ""])
def test_a_dtype_that_the_kernel_is_not_for_is_refused_before_anything_runs(run, dtype):
    backend = Null()
    with pytest.raises(ExperimentError, match="dtype"):
        run(backend, dtype=dtype)
    assert not backend.begun and not backend.requests


def test_it_says_what_goes_on_before_the_first_answer(run):
    text = run(Null())[1]
    line = "copy: 5 variants, compiled, checked and timed"
    assert -1 < text.index(line) < text.index("seen. ")
    assert "checked and predicted" in run(Null(predicts=True))[1]


class Stopped(Null):
    """Ctrl-C while arms are timed."""

    def measure_interleaved(self, parts):
        raise KeyboardInterrupt


def test_a_run_that_is_stopped_says_so_and_leaves_a_page(run):
    code, text, folder = run(Stopped())
    assert code == 130 and "Stopped; the outcomes so far are stored." in text
    assert "ended before anything was found" in next(folder.glob("*/report.html")).read_text()
    with open_history(f"sqlite:///{folder}/h.db") as history:
        assert history.state(history.run("last").id) == "interrupted"


def test_a_caveat_of_several_kernels_is_said_once_and_a_sentence_is_one_line():
    text, message = io.StringIO(), set[str]()
    console = Console(file=text, width=60)
    first = Finding("r", AT, "probe", "copy", {}, "bf16", "seen", "word " * 40, (), (), ("alike",))
    show(console, first, message)
    show(console, replace(first, kernel="triad", caveats=("alike", "own")), message)
    lines = text.getvalue().splitlines()
    assert lines.count("alike") == 1 and "own" in lines
    assert len([line for line in lines if line.startswith("seen. word")]) == 2


def test_arms_of_one_kernel_are_told_apart_by_their_sizes(run):
    record = next(o for o in stored(run(Null())[2])[1] if isinstance(o, Record))
    wide = {f"block_{c}": 1024 for c in "abcdefgh"}  # longer than there is room for
    names = set()
    for n in (1024, 2048):
        case = replace(record.case, sizes={"M": 512, "N": n}, config=wide)
        names.add(_name(replace(record, case=case), True))
    assert len(names) == 2 and max(map(len, names)) == 60
    bare = variant_row(
        replace(record, case=replace(record.case, sizes={})), stored(run(Null())[2])[0]
    )
    assert bare[2] == record.case.dtype, "no comma before it"


def test_arms_that_fail_alike_stand_in_one_line(run):
    outcomes = stored(run(Null(lambda c: Fate(final="broke")))[2])[1]
    lines = dict(failure_lines([o for o in outcomes if isinstance(o, Failure)]))
    many = [name for name in lines if name.endswith("(3 variants)")]  # cold, hot and eager
    assert len(many) == 1 and lines[many[0]] == "measure: broke"


def test_what_is_worked_out_runs_nothing(tmp_path):
    text = io.StringIO()
    words = {"kernel": "copy", "sizes": "N=1000000", "dtype": "fp32", "device": "m2max"}
    question = ExperimentOptions(
        "expected", **words, out=tmp_path, database=f"sqlite:///{tmp_path}/h.db", time="40us",
    )  # fmt: skip
    console = Console(file=text, width=240, highlight=False, markup=False)
    assert (
        experiment_command.ExperimentCommand(
            question, console, tuned_file=tmp_path / "winners.json"
        ).go()
        == 0
    )
    assert "Nothing is run. All figures are computed for Apple M2 Max." in text.getvalue()
    _, outcomes, (finding,) = stored(tmp_path)
    assert not outcomes and finding.word == "2x the bound" and finding.sizes == {"N": 1000000}
    assert "Nothing was run." in next(tmp_path.glob("*/report.html")).read_text()


def test_a_time_to_compare_with_is_for_what_is_not_run():
    question = ExperimentOptions("intensity", time="1ms")
    with pytest.raises(ExperimentError, match="--time is for what is not run"):
        experiment_command.ExperimentCommand(question, Console()).go()


def test_a_refuse_that_fails_is_a_reason_of_its_arm(tmp_path):
    path, null = tmp_path / "toy.py", Null()
    path.write_text(KERNEL.replace("if N % 16:", "if N / 0:"))
    sizes = {"N": 1024}
    wanted = Context(str(path), sizes, "bf16", null.device, False, {})
    both = [Variant(impl, str(path), impl, sizes, "bf16") for impl in ("blocks", "torch")]
    result = experiment_command.prepare(wanted, both, synthetic.softmax()[0], null, Tuned())
    assert {name: cause.reason for name, cause in result.refusals.items()} == {
        "blocks": "`refuse` of toy.blocks failed (ZeroDivisionError: division by zero)"
    }


# An experiment by the path of its file

OWN = """
\"\"\"A kernel beside this file, and one of the library.\"\"\"

from workbench.experiments import Variant, Experiment, Analysis


def variants(context):
    own = Variant("own", "kernels/toy.py", "blocks", {"N": 1024}, context.dtype)
    return [own, Variant("copy", "copy", "blocks", {"N": 1024}, context.dtype)]


def analyse(context, results):
    return [Analysis("seen", f"{sum(r.time_s is not None for r in results.values())} have a time.")]


EXPERIMENT = Experiment("mine", variants, analyse, kernels=("kernels/toy.py",))
"""


@pytest.fixture
def own(tmp_path):
    """The path of an experiment's file, with its kernel in a folder beside it."""
    folder = tmp_path / "mine"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "toy.py").write_text(KERNEL)
    (folder / "probe_of_mine.py").write_text(OWN)
    return folder / "probe_of_mine.py"


def test_an_experiment_is_a_file_anywhere(own, tmp_path):
    text, url = io.StringIO(), f"sqlite:///{tmp_path}/h.db"
    console = Console(file=text, width=240, highlight=False, markup=False)
    question = ExperimentOptions(str(own), out=tmp_path, database=url)
    backend = Null()
    assert (
        experiment_command.ExperimentCommand(question, console, lambda device, folder: backend).go()
        == 0
    )
    last, outcomes, (finding,) = stored(tmp_path)
    assert last.name == "probe_of_mine" and str(own) in last.command
    assert [o.case.kernel for o in outcomes] == ["toy", "copy"]
    assert finding.experiment == "probe_of_mine" and finding.kernel == "toy"
    assert "toy: 2 variants" in text.getvalue() and finding.sentence == "2 have a time."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "There is no experiment file "),
        ("x = 1", "has no EXPERIMENT = Experiment(...)"),
        ("import no_such_module", "cannot be imported (ModuleNotFoundError, line 1"),
    ],
)
def test_what_is_no_experiments_file_is_refused_in_a_sentence(tmp_path, text, words):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises((ExperimentError, CatalogError)) as raised:
        named(str(path))
    sentence = str(raised.value)
    assert words in sentence and str(path) in sentence and "\n" not in sentence


def test_experiments_of_both_folders_are_found_by_their_names():
    cloned = catalog.EXAMPLES / "experiments"
    folders = (Path(experiments.__file__).parent, cloned)
    files = {path.stem: path for folder in folders for path in folder.glob("[!_]*.py")}
    assert experiments.experiment_names() == sorted(files)
    for path in cloned.glob("*.py"):
        one, by_path = named(path.stem), named(str(path))
        assert one.summary == by_path.summary and one.kernels == by_path.kernels
        with pytest.raises(CatalogError, match=f"There is no kernel '{path.stem}'.* Known: "):
            catalog.spec_of(path.stem)


def test_a_name_that_became_an_examples_says_where_it_is(monkeypatch):
    monkeypatch.chdir(catalog.EXAMPLES.parent)
    with pytest.raises(ExperimentError) as raised:
        named("layer_breakdown")
    path = "examples/rwkv7/layer_breakdown.py"
    assert str(raised.value).endswith(f"workbench experiment {path}.")
    assert named(path).kernels == (str(catalog.EXAMPLES / "rwkv7/kernels/rwkv7_layer.py"),)
    monkeypatch.setattr(catalog, "EXAMPLES", catalog.EXAMPLES / "nowhere")
    with pytest.raises(ExperimentError, match="Known: block_size"):
        named("layer_breakdown")
