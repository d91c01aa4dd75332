"""Measuring Impls over sizes and dtypes on the null side."""

import io
import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from null_backend import Fate, Null
from nullside import KERNEL, entries
from rich.console import Console

from workbench import catalog
from workbench.catalog.source import code_hash
from workbench.commands.measure import MeasureOptions
from workbench.commands.measure_command import MeasureCommand, problems_of
from workbench.commands.operands import OperandError
from workbench.commands.options import CommandError
from workbench.commands.report import draw
from workbench.data.database import open_history
from workbench.data.events import RunFinished, read
from workbench.data.record import Failure, Measured, Predicted, Record, Run
from workbench.data.tuned_cache import Entry, Tuned, changing
from workbench.reports.figures.size_groups import Group, groups_of
from workbench.reports.measure import rows

pytestmark = pytest.mark.unit

TWO = KERNEL.replace('[{"N": 1024}]', '[{"N": 1024}, {"N": 4096}]')


class Place:
    """A folder with a kernel, a database, results and a file of tuned configs."""

    def __init__(self, folder):
        self.folder, self.out = folder, folder / "results"
        self.url = f"sqlite:///{folder / 'history.db'}"
        self.winners = folder / "tuned.json"
        self.kernel = folder / "toy.py"
        self.kernel.write_text(TWO)
        self.console = io.StringIO()
        self.null = Null()

    def measure(self, fate=lambda c: Fate(), predicts=False, begin_error=None, **more):
        self.null = Null(fate, predicts=predicts, begin_error=begin_error)
        wanted = MeasureOptions(str(self.kernel), out=self.out, database=self.url, **more)
        console = Console(file=self.console, width=240, highlight=False, markup=False)
        return MeasureCommand(
            wanted, console, lambda device, folder: self.null, tuned_file=self.winners
        ).go()

    def events(self):
        (path,) = self.out.glob("*/events.jsonl")
        result = read(path)
        assert not result.bad
        return entries(result.events)

    def records(self, phase):
        return [e for e in self.events() if isinstance(e, Record) and e.phase == phase]

    def text(self):
        return self.console.getvalue()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Pages take a second to draw; the one test that looks at them draws them."""
    monkeypatch.setattr("workbench.reports.measure.page", lambda *a: "<p>page</p>")
    return Place(tmp_path)


def test_every_size_and_dtype_is_measured_cold_and_hot_beside_its_baseline(place):
    assert place.measure(dtype=("bf16", "fp32")) == 0
    for phase, regime in (("final", "cold"), ("hot", "hot")):
        result = place.records(phase)
        assert {(r.case.sizes["N"], r.case.dtype, r.case.impl) for r in result} == set(
            itertools.product((1024, 4096), ("bf16", "fp32"), ("blocks", "torch"))
        )
        assert all(isinstance(r.timing, Measured) and r.timing.regime == regime for r in result)
    run = place.events()[0]
    assert run.engine == "measure" and run.sizes == {} and run.dtype == "bf16, fp32"
    assert {c.get("dtype") for n, c in run.ceilings.items() if n.startswith("compute")} == {
        "bf16",
        "fp32",
    }
    assert "vs baseline" in place.text() and "N=4096, fp32" in place.text()


def test_a_share_is_of_the_ceiling_of_the_times_own_state(place, monkeypatch):
    """The newest measured peaks of the dtype are in the run, in both states."""
    plain = {"unit": "FLOP/s", "kind": "measured", "source": "here", "level": "compute"}
    peaks = {
        "compute_bf16_measured": {**plain, "value": 1e9, "dtype": "bf16", "state": "sustained"},
        "compute_bf16_boost_measured": {**plain, "value": 2e9, "dtype": "bf16", "state": "boost"},
        "compute_fp16_measured": {**plain, "value": 1e9, "dtype": "fp16", "state": "sustained"},
    }
    assert place.measure(dtype=("bf16",)) == 0
    (run,) = [e for e in place.events() if isinstance(e, Run)]
    assert not peaks.keys() & run.ceilings.keys()
    with open_history(place.url) as history:
        history.add_run(replace(run, id="c-1", engine="ceilings", ceilings=peaks))
        history.finish_run("c-1", "complete")
        assert place.measure(dtype=("bf16",)) == 0
        (run,) = history.runs(limit=1)
        outcomes = history.outcomes(run.id)
    assert peaks.keys() & run.ceilings.keys() == set(peaks) - {"compute_fp16_measured"}
    record = next(o for o in outcomes if o.phase == "final")
    few = {n: c for n, c in run.ceilings.items() if n in peaks}
    for state, peak in (("sustained", 1e9), ("boost", 2e9)):
        timed = replace(record, flops=10**6, timing=replace(record.timing, state=state))
        group = Group(replace(run, ceilings=few), (timed,))
        share, name = group.ceiling(timed)
        assert share == pytest.approx(1e6 / timed.time_s / peak) and f"{state} clock" in name


def test_both_places_hold_the_same_and_the_page_is_drawn_again(tmp_path):
    place = Place(tmp_path)
    assert place.measure(sizes=("N=1024",)) == 0
    run, *outcomes, end = place.events()
    assert isinstance(run, Run) and run.sizes == {"N": 1024}
    assert isinstance(end, RunFinished) and end.state == "complete"
    with open_history(place.url) as history:
        assert history.outcomes(run.id) == outcomes
    first = (place.out / run.id / "report.html").read_text()
    assert draw("measure", run.id, tmp_path / "again.html", place.url).read_text() == first


def test_energy_follows_all_times_of_a_problem(place):
    assert place.measure(also="energy", sizes=("N=1024",), wide=True) == 0
    words = [word for word, _ in place.null.requests]
    assert words.index("energy") > max(n for n, w in enumerate(words) if w == "hot")
    energies = [r.timing.energy for r in place.records("final")]
    assert len(energies) == 2 and all(e.windows == 6 for e in energies)
    assert all(r.timing.energy is None for r in place.records("hot"))
    assert "energy, mJ" in place.text() and "50." in place.text()
    assert any(unit in place.text() for unit in ("GB/J", "GFLOP/J"))


def test_energy_that_is_stopped_leaves_the_times(place, monkeypatch):
    def stopped(self, candidates, windows):
        raise KeyboardInterrupt

    monkeypatch.setattr("null_backend.Null.energy", stopped)
    assert place.measure(also="energy", sizes=("N=1024",)) == 130
    assert len(place.records("final")) == len(place.records("hot")) == 2


def test_an_energy_that_cannot_be_had_says_why(place):
    assert place.measure(lambda c: Fate(no_energy="no counter"), also="energy") == 0
    assert "No energy: no counter." in place.text() and "energy, mJ" not in place.text()
    assert {r.timing.no_energy for r in place.records("final")} == {"no counter"}


def test_a_prediction_has_no_energy(place):
    with pytest.raises(CommandError, match="leave out --also energy"):
        place.measure(predicts=True, also="energy")


def test_a_prediction_has_no_gpu_that_could_be_idle(place):
    with pytest.raises(CommandError, match="leave out --require idle-gpu"):
        place.measure(predicts=True, require="idle-gpu")


def test_a_config_is_as_asked_else_tuned_else_the_default(place):
    spec = catalog.spec_of(str(place.kernel))
    versions = place.null.environment.versions
    entry = Entry(
        kernel="toy", impl="blocks", config={"block_n": 64, "num_warps": 4}, sizes={"N": 1024},
        dtype="bf16", device=place.null.device.name, torch=versions.get("torch", ""),
        triton=versions.get("triton", ""), source=code_hash(spec.impls[0]), predicted=False,
        time_s=1e-4, low_s=1e-4, high_s=1e-4, regime="cold, sustained", protocol="p", run="r",
        at="2026-11-21T09:30:00+00:00", configs=9,
    )  # fmt: skip
    with changing(place.winners) as kept:
        kept.add(entry)
    assert Tuned.load(place.winners).entries
    place.measure(wide=True)
    warps = {r.case.sizes["N"]: r.case.config for r in place.records("final") if r.case.config}
    assert warps == {1024: dict(entry.config), 4096: {"block_n": 32, "num_warps": 2}}
    assert "tuned 2026-11-21" in place.text() and "default" in place.text()


def test_what_is_asked_outranks_what_is_tuned(place):
    place.measure(impl=("blocks:num_warps=1", "blocks:num_warps=4"), sizes=("N=1024",))
    results = [r.case.config.get("num_warps") for r in place.records("final")]
    assert results == [1, 4, None], "and the library's version stands beside them"


def test_a_predicted_measurement_stays_predicted(place):
    assert place.measure(predicts=True) == 0
    results = [e for e in place.events() if isinstance(e, Record)]
    assert len(results) == 2 and all(isinstance(r.timing, Predicted) for r in results)
    assert all(r.phase == "predict" and not r.case.is_baseline for r in results)
    assert place.events()[0].predicted and "~" in place.text()
    assert not {"final", "hot"} & {what for what, _ in place.null.requests}


@pytest.mark.parametrize(
    ("fate", "stage"),
    [
        (Fate(compile_error="ptxas gave up"), "compile"),
        (Fate(wrong="NaN at y[0]"), "check"),
        (Fate(final="lost its process"), "measure"),
    ],
)
def test_an_impl_that_fails_costs_itself_alone(place, fate, stage):
    code = place.measure(lambda c: fate if c.impl.name == "blocks" else Fate())
    assert code == 0
    failures = [e for e in place.events() if isinstance(e, Failure)]
    assert len(failures) == 2 and {f.stage for f in failures} == {stage}
    assert {r.case.impl for r in place.records("final")} == {"torch"}
    assert failures[0].reason in place.text()


def test_a_refused_size_is_told_and_the_next_is_measured(place):
    assert place.measure(sizes=("N=1000", "N=1024")) == 0
    (failure,) = [e for e in place.events() if isinstance(e, Failure)]
    assert failure.stage == "refused" and failure.case.sizes == {"N": 1000}
    assert {r.case.sizes["N"] for r in place.records("final") if not r.case.is_baseline} == {1024}


def test_nothing_measured_is_exit_code_2(place):
    assert place.measure(begin_error="out of GPU memory") == 2
    assert all(e.reason == "out of GPU memory" for e in place.events() if isinstance(e, Failure))


def test_ctrl_c_keeps_what_was_measured(place, monkeypatch):
    real = Null.hot

    def stops(self, candidate):
        if candidate.case.sizes["N"] == 4096:
            raise KeyboardInterrupt
        return real(self, candidate)

    monkeypatch.setattr(Null, "hot", stops)
    assert place.measure() == 130
    assert len(place.records("final")) == 4 and len(place.records("hot")) == 2
    assert place.events()[-1].state == "interrupted"


def test_ctrl_c_before_the_first_outcome_is_a_run_that_was_stopped(place, monkeypatch):
    def stops(self, problem, candidates=()):
        raise KeyboardInterrupt

    monkeypatch.setattr(Null, "begin", stops)
    assert place.measure() == 130
    run, end = place.events()
    assert isinstance(run, Run) and end.state == "interrupted"


def test_unknown_words_are_told_before_any_work(place):
    with pytest.raises(CommandError, match="dtype"):
        place.measure(dtype=("bf61",))
    with pytest.raises(OperandError, match="blocks"):
        place.measure(impl=("block",))
    assert place.null.begun == 0 and not place.out.exists()


def test_the_stored_command_asks_the_same(place):
    from workbench import cli

    place.measure(impl=("blocks:num_warps=1",))
    words = place.events()[0].command.split()
    assert words[:2] == ["workbench", "measure"]
    command = cli.typer.main.get_command(cli.app).commands["measure"]
    context = command.make_context("measure", words[2:])
    assert list(context.params["sizes"]) == ["N=1024", "N=4096"]
    assert list(context.params["impl"]) == ["blocks:num_warps=1"]


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=4, unique=True),
       st.lists(st.sampled_from(["bf16", "fp16", "fp32"]), min_size=1, max_size=5))  # fmt: skip
def test_problems_are_all_sizes_with_all_dtypes_once(extents, dtypes):
    spec = catalog.spec_of("copy")
    wanted = MeasureOptions("copy", sizes=tuple(f"N={n}" for n in extents), dtype=tuple(dtypes))
    results = [(p.sizes["N"], p.dtype) for p in problems_of(wanted, spec)]
    assert sorted(results) == sorted(itertools.product(extents, set(dtypes)))


def test_a_time_stands_against_the_best_baseline_of_its_own_regime(place):
    place.measure(lambda c: Fate(time_s=2e-4 if c.impl.name == "blocks" else 1e-4, noise=0.0))
    run, *_ = place.events()
    outcomes = [e for e in place.events() if isinstance(e, Record)]
    group = groups_of(run, outcomes)[0]
    own = {r.phase: group.library_ratio(r) for r in group.records if r.case.impl == "blocks"}
    assert own["final"] == pytest.approx(0.5) and own["hot"] == pytest.approx(0.5)
    cold = Group(run, tuple(o for o in group.outcomes if o.phase == "final"))
    slower = [replace(o, phase="hot") for o in cold.outcomes if o.case.is_baseline]
    assert Group(run, (*cold.outcomes, *slower)).library_ratio(cold.records[0]) is not None
    assert len(rows(group)) == 4
