"""What version 0.1.0 stored (`golden/stored`) is read, shown and drawn by this one."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
from nightly import at_night

from workbench import cli
from workbench.commands.report import draw
from workbench.commands.tuned import bits_text
from workbench.data.database import History, open_history
from workbench.data.events import RunFinished, read
from workbench.data.record import Comparison, Failure, Finding, Measured, Record, Run
from workbench.data.selection import select
from workbench.data.tuned_cache import Tuned
from workbench.reports.selection_sentence import sentence
from workbench.tuner.portfolio import Portfolio, Served

STORED = Path(__file__).parents[1] / "golden" / "stored"
EXPECTED = json.loads((STORED / "expected.json").read_text())
# One of each engine, measured and predicted, and those that hold what needs care: num_warps of 0,
# which launchers then chose from the sizes, and a failure of every stage.
DRAWN = {
    "20261122-125805-tile_size-rms_norm-30ae": "sweep",
    "20261122-125518-full-softmax-1766": "sweep",
    "20261122-125912-full-faulty-4776": "sweep",
    "20261122-125936-compare-matmul-b3e0": "compare",
    "20261122-130006-measure-softmax-5cc2": "measure",
    "20261122-130035-experiment-suite-44e1": "experiment",
    "20261122-130047-ceilings-h200-8c46": "ceilings",
}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("stored") / "history.db"
    unpacked(STORED / "history.db.gz", path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="module")
def history(database: str):
    with open_history(database) as opened:
        yield opened


def unpacked(packed: Path, path: Path) -> Path:
    with gzip.open(packed) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target)
    return path


def text(run: Run, outcomes: list) -> dict[str, object]:
    """The same of a run as `expected.json` holds."""
    records = [o for o in outcomes if isinstance(o, Record)]
    stages = [o.stage for o in outcomes if isinstance(o, Failure)]
    results: dict[str, object] = {
        "engine": run.engine,
        "kernel": run.kernel,
        "predicted": run.predicted,
        "records": len(records),
        "failures": {stage: stages.count(stage) for stage in sorted(set(stages))},
        "seconds": float(f"{sum(r.time_s for r in records):.12g}"),
    }
    if run.engine == "sweep":
        results["sentence"] = sentence(select(run, outcomes))
    return results


def test_the_database_holds_what_it_held(history: History) -> None:
    runs = history.runs(limit=1000)
    assert {r.id: text(r, history.outcomes(r.id)) for r in runs} == EXPECTED
    assert {r.engine for r in runs} == {"sweep", "compare", "measure", "experiment", "ceilings"}
    assert {r.predicted for r in runs} == {True, False}
    assert {history.state(r.id) for r in runs} == {"complete"}


def test_comparisons_and_findings_are_there(history: History) -> None:
    (result,) = history.comparisons("20261122-125936-compare-matmul-b3e0")
    assert result.verdict.word == "FAST"
    (same,) = history.comparisons("20261122-125951-compare-copy-97c9")
    assert same.verdict.word == "SAME"
    (finding,) = history.findings("20261122-130035-experiment-suite-44e1")
    assert "memory-bound" in finding.word


def test_ceilings_have_the_state_that_they_were_measured_in(history: History) -> None:
    known: dict[str, set[object]] = {}
    for run in history.runs(limit=1000):
        for name, ceiling in run.ceilings.items():
            known.setdefault(name, set()).add(ceiling.get("state"))
    sustained = {n for n, states in known.items() if "sustained" in states}
    assert {"compute_bf16_measured", "dram_copy_measured", "shared_measured"} <= sustained
    assert known["compute_bf16"] == known["h2d_pinned_measured"] == {None}
    assert known["dram_measured"] == {"boost"} and known["resolution_measured"] == {None}


def test_an_outcome_is_found_again_by_its_key(history: History) -> None:
    outcomes = history.outcomes("20261122-125832-full-softmax-5c64")
    some = {o.key for o in outcomes if isinstance(o, Record) and o.phase == "first_pass"}
    again = history.find(some, "first_pass")
    assert again.keys() == some and all(isinstance(o, Record) for o in again.values())


@pytest.mark.parametrize("run", at_night(EXPECTED, [*EXPECTED][::4].__contains__))
def test_every_run_is_drawn(run: str, database: str, tmp_path: Path) -> None:
    report = DRAWN.get(run)
    if report is None:  # another of the same kind is drawn; of this one the roofline is
        csv = tmp_path / "page.csv"
        wanted = ["report", "roofline", run, "--database", database]
        assert cli.main([*wanted, "--out", str(tmp_path / "page.html"), "--csv", str(csv)]) == 0
        assert (csv.read_text().count("\n") > 1) == bool(EXPECTED[run]["records"])
        return
    page = draw(report, run, tmp_path / "page.html", database).read_text()
    assert run in page and "</html>" in page


def test_history_lists_them(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["history", "softmax", "--database", database]) == 0
    assert "rows block_m 1, 2 warps, hints 0" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["sweep_measured", "sweep_predicted", "compare_measured",
                                  "experiment_measured"])  # fmt: skip
def test_events_are_read_to_the_last_line(name: str, history: History, tmp_path: Path) -> None:
    result = read(unpacked(STORED / f"{name}.jsonl.gz", tmp_path / "events.jsonl"))
    assert result.bad == []
    run = next(e for e in result.events if isinstance(e, Run))
    outcomes = [e for e in result.events if isinstance(e, Record | Failure)]
    assert text(run, outcomes) == EXPECTED[run.id]
    assert outcomes == history.outcomes(run.id)
    assert [e for e in result.events if isinstance(e, Comparison)] == history.comparisons(run.id)
    assert [e for e in result.events if isinstance(e, Finding)] == history.findings(run.id)
    assert isinstance(result.events[-1], RunFinished) and result.events[-1].state == "complete"
    measured = [o for o in outcomes if isinstance(o, Record) and isinstance(o.timing, Measured)]
    assert bool(measured) == (not run.predicted)


def test_events_go_into_a_new_database(history: History, tmp_path: Path) -> None:
    path = unpacked(STORED / "sweep_measured.jsonl.gz", tmp_path / "events.jsonl")
    fresh = f"sqlite:///{tmp_path / 'fresh.db'}"
    assert cli.main(["history", "--load", str(path), "--database", fresh]) == 0
    with open_history(fresh) as opened:
        (run,) = opened.runs()
        assert run == history.run(run.id)
        assert opened.outcomes(run.id) == history.outcomes(run.id)


def test_tuned_configs_are_listed_found_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    file = STORED / "tuned.json"
    entries = Tuned.load(file).entries
    assert len(entries) == len(json.loads(file.read_text())["entries"])
    assert {e.predicted for e in entries.values()} == {True, False}
    for entry in entries.values():
        versions = {"torch": entry.torch, "triton": entry.triton}
        where = entry.kernel, entry.impl, entry.sizes, entry.dtype, entry.device
        result = Tuned.load(file).find(*where, versions, entry.source)
        assert result is None if entry.predicted else result == entry
        assert entry.same_bits_as_default is None and bits_text(entry) == "unknown"
    assert cli.main(["tuned", "--file", str(file)]) == 0
    assert cli.main(["tuned", "softmax", "--file", str(file), "--code"]) == 0
    assert "triton.Config" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["portfolio_measured", "portfolio_predicted"])
def test_a_portfolio_has_the_fields_that_it_had(name: str) -> None:
    plain = json.loads((STORED / f"{name}.json").read_text())
    served = {sizes: Served(**one) for sizes, one in plain.pop("served").items()}
    result = Portfolio(served=served, **plain)
    assert {s.member for s in result.served.values()} <= set(result.members)
    assert result.exact and 1 <= result.geomean_ratio <= 1 + result.within
