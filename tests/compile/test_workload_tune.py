"""A recorded workload tuned end to end: predicted for an H200, and with times that a test sets."""

import null_backend
import pytest
import torch
import triton
import workload_program

import workbench.workload
from workbench.commands.options import WorkloadOptions
from workbench.commands.workload_tune import tune_workload
from workbench.workload.tuned_table import read

pytestmark = [pytest.mark.compile, pytest.mark.newest]


@pytest.fixture
def recorded(tmp_path):
    """Two sizes of one autotuned function, recorded without a GPU."""
    with workbench.workload.record(tmp_path / "run.workload"):
        for n in (500, 1000):
            x, y = torch.ones(n), torch.empty(n)
            grid = lambda m, n=n: (triton.cdiv(n, m["BLOCK"]),)  # noqa: E731
            workload_program.tuned[grid](x, y, n)
    return tmp_path


def options(folder, **more):
    return WorkloadOptions(
        "tune",
        target=(str(folder / "run.workload"),),
        out=folder / "results",
        tuned=folder / "tuned.json",
        database=f"sqlite:///{folder / 'history.db'}",
        cover=1.0,
        quiet=True,
        **more,
    )


@pytest.mark.parametrize(("faster", "entries"), [(128, 2), (64, 0)])
def test_only_a_config_that_beat_the_one_in_use_is_written(recorded, faster, entries):
    """The program used BLOCK 64: an entry needs a verdict FAST of another config."""

    def fate(candidate):
        time_s = 50e-6 if candidate.case.config["BLOCK"] == faster else 100e-6
        return null_backend.Fate(time_s=time_s)

    backends = []

    def opener(device, repository, **_):
        backends.append(null_backend.Null(fate))
        return backends[-1]

    assert tune_workload(options(recorded), opener) == 0
    table = recorded / "tuned.json"
    written = read(table) if table.exists() else []
    assert len(written) == entries
    assert all(dict(e.config)["BLOCK"] == 128 and not e.predicted for e in written)
    assert all(e.after_s.high < e.before_s.low for e in written)
    many = len(backends)
    assert tune_workload(options(recorded), opener) == 0
    assert len(backends) == many, "stored results answer"
    if written:
        assert read(table) == written
        with workbench.workload.pin(table, "error", arch="sm_90") as pinned:
            assert pinned.choices == {}


def test_predicted_entries_are_written_only_where_they_are_wanted(recorded):
    assert tune_workload(options(recorded, device="h200")) == 0
    assert not (recorded / "tuned.json").exists()
    assert (recorded / "results" / "workload").is_dir()


def test_ctrl_c_keeps_what_is_stored_and_a_failing_signature_costs_itself(recorded, monkeypatch):
    from workbench.adapted.travel import AdaptedError
    from workbench.commands import workload_tune

    def refuses(*_):
        raise AdaptedError("It cannot be adopted.")

    def stops(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(workload_tune, "take_over", stops)
    assert tune_workload(options(recorded, device="h200")) == 130
    monkeypatch.setattr(workload_tune, "take_over", refuses)
    assert tune_workload(options(recorded, device="h200")) == 2
    (journal,) = (recorded / "results" / "workload").glob("*.jsonl")
    assert journal.read_text().count("It cannot be adopted.") == 2
