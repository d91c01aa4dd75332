"""An experiment from the question to the page, on a side without GPU or compiler."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from workbench import trial
from workbench.backend.null import Fate, Null
from workbench.events import read
from workbench.experiment import Arm, Asked, Experiment, ExperimentError, Judgement
from workbench.experiment import experiment_named as named
from workbench.history import open_history
from workbench.record import Evidence, Failure, Finding, Record
from workbench.reports.experiment import page, quantity


def arms(asked: Asked) -> list[Arm]:
    sizes = asked.sizes or {"N": 4096}
    return [
        Arm("cold", "copy", "blocks", sizes, asked.dtype),
        Arm("hot", "copy", "blocks", sizes, asked.dtype, regime="hot"),
        Arm("eager", "copy", "blocks", sizes, asked.dtype, clock="host"),
        Arm("other", "triad", "blocks", sizes, asked.dtype),
        Arm("odd", "copy", "blocks", sizes, asked.dtype, config={"block_n": 65536}),
    ]


def judge(asked, found):
    rows = [e for name, each in found.items() if (e := each.evidence(name, "times", "< 1 us"))]
    counted = Evidence("launches", found["cold"].kernels or 0, "kernels", "computed", met=True)
    missing = [name for name, each in found.items() if each.time_s is None]
    return [Judgement("seen", f"{len(rows)} arms have a time.", [*rows, counted], caveats=missing)]


EXPERIMENT = Experiment("a test's own", arms, judge, kernels=("copy",))


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "experiment_named", lambda name: EXPERIMENT)

    def go(backend, **asked):
        said = io.StringIO()
        question = trial.Question(
            "probe", out=tmp_path, database=f"sqlite:///{tmp_path}/h.db",
            winners=tmp_path / "winners.json", **asked,
        )  # fmt: skip
        console = Console(file=said, width=240, highlight=False, markup=False)
        code = trial.Trials(question, console, lambda device, folder: backend).go()
        return code, said.getvalue(), tmp_path

    return go


def stored(folder: Path):
    with open_history(f"sqlite:///{folder}/h.db") as history:
        last = history.run("last")
        return last, history.outcomes(last.id), history.findings(last.id)


def test_arms_are_timed_judged_stored_and_drawn(run):
    backend = Null(lambda c: Fate(time_s=2e-5, final="broke" if c.case.kernel == "triad" else None))
    code, said, folder = run(backend)
    last, outcomes, findings = stored(folder)
    assert code == 0 and last.engine == "experiment" and last.name == "probe"
    assert [type(o) for o in outcomes] == [Record, Record, Record, Failure, Failure]
    assert [o.phase for o in outcomes[:3]] == ["final", "hot", "final"]
    assert outcomes[3].reason == "broke" and outcomes[4].stage == "refused"
    (finding,) = findings
    assert finding.word == "seen" and finding.caveats == ("other", "odd")
    assert "seen. 3 arms have a time." in said and "report  " in said
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
    code, said, folder = run(Null(predicts=True))
    last, outcomes, _ = stored(folder)
    assert code == 0 and last.predicted and "~" in said
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
    ("value", "unit", "told"),
    [
        (3.7e-6, "s", "3.700 µs"), (0.5e-3, "s", "500.00 µs"), (2.0, "s", "2.000 s"),
        (4.3e12, "B/s", "4.3 TB/s"), (13.1e6, "FLOP", "13.1 MFLOP"), (0.72, "1", "0.72"),
        (2.0, "kernels", "2"), (0.725, "%", "72.5 %"), (15.0, "FLOP/B", "15 FLOP/B"),
        (3686400, "B", "3.69 MB"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_engineers_write_them(value, unit, told):
    assert quantity(value, unit) == told


def test_what_is_worked_out_runs_nothing(tmp_path):
    said = io.StringIO()
    words = {"kernel": "copy", "sizes": "N=1000000", "dtype": "fp32", "device": "m2max"}
    question = trial.Question(
        "expected", **words, out=tmp_path, database=f"sqlite:///{tmp_path}/h.db",
        winners=tmp_path / "winners.json", time="40us",
    )  # fmt: skip
    console = Console(file=said, width=240, highlight=False, markup=False)
    assert trial.Trials(question, console).go() == 0
    assert "Nothing is run: worked out for Apple M2 Max." in said.getvalue()
    _, outcomes, (finding,) = stored(tmp_path)
    assert not outcomes and finding.word == "2x the floor" and finding.sizes == {"N": 1000000}
    assert "Nothing was run." in next(tmp_path.glob("*/report.html")).read_text()


def test_a_time_to_compare_with_is_for_what_is_not_run():
    question = trial.Question("intensity", time="1ms")
    with pytest.raises(ExperimentError, match="--time is for what is not run"):
        trial.Trials(question, Console()).go()
