"""A recorded workload tuned end to end: predicted for an H200, and with times that a test sets."""

import json
import re
import subprocess
import sys
from pathlib import Path

import null_backend
import pytest
import torch
import triton
import workload_program

import workbench.workload
from workbench.commands.workload_tune import WorkloadTuneOptions
from workbench.commands.workload_tuning import tune_workload
from workbench.device.error_band import device_words
from workbench.workload import families
from workbench.workload.between import NoMiddle
from workbench.workload.pinned import nearest
from workbench.workload.tuned_table import read

pytestmark = [pytest.mark.compile, pytest.mark.newest]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def recorded(tmp_path):
    """Two sizes of one autotuned function, recorded without a GPU."""
    return record_sizes(tmp_path, 500, 1000)


def record_sizes(tmp_path, *sizes):
    with workbench.workload.record(tmp_path / "run.workload"):
        for n in sizes:
            x, y = torch.ones(n), torch.empty(n)
            grid = lambda m, n=n: (triton.cdiv(n, m["BLOCK"]),)  # noqa: E731
            workload_program.tuned[grid](x, y, n)
    return tmp_path


def options(folder, **more):
    return WorkloadTuneOptions(
        files=(str(folder / "run.workload"),),
        out=folder / "results",
        tuned=folder / "tuned.json",
        database=f"sqlite:///{folder / 'history.db'}",
        cover=1.0,
        quiet=True,
        **more,
    )


def opener_of(time_s):
    """A backend whose times `time_s(BLOCK, n)` says; and the backends that it opened."""
    backends = []

    def fate(candidate):
        (n,) = {extent for extent in candidate.case.sizes.values() if extent > 1}
        return null_backend.Fate(time_s=time_s(candidate.case.config["BLOCK"], n))

    def opener(device, repository, **_):
        backends.append(null_backend.Null(fate))
        return backends[-1]

    return opener, backends


@pytest.mark.parametrize("middle", [64, pytest.param(128, marks=pytest.mark.nightly)])
def test_a_size_between_two_tuned_ones_is_measured_before_a_table_serves_it(tmp_path, middle):
    """BLOCK 128 is faster at both sizes; between them it is `middle`."""
    record_sizes(tmp_path, 512, 2048)
    best = {512: 128, 1024: middle, 2048: 128}
    opener, _ = opener_of(lambda block, n: 50e-6 if block == best[n] else 100e-6)
    assert tune_workload(options(tmp_path), opener) == 0
    entries = read(tmp_path / "tuned.json")
    blocks = {int(e.key[0]): dict(e.config)["BLOCK"] for e in entries}
    assert blocks == best and len({e.family for e in entries}) == 1
    near = {n: nearest(entries, (str(n), *entries[0].key[1:])) for n in (600, 1000, 1100, 1900)}
    assert {n: dict(e.config)["BLOCK"] for n, e in near.items()} == {
        **{600: 128, 1000: middle, 1100: middle, 1900: 128}
    }
    assert nearest(entries, ("4096", *entries[0].key[1:])) is None


def test_sizes_between_which_nothing_was_measured_are_not_served(tmp_path, monkeypatch):
    record_sizes(tmp_path, 512, 2048)
    opener, _ = opener_of(lambda block, n: 50e-6 if block == 128 else 100e-6)
    monkeypatch.setattr(families, "middle", refuses)
    assert tune_workload(options(tmp_path), opener) == 0
    entries = read(tmp_path / "tuned.json")
    assert len(entries) == 2 == len({e.family for e in entries})
    assert nearest(entries, ("1024", *entries[0].key[1:])) is None
    assert nearest(entries, entries[0].key).key == entries[0].key


def refuses(*_):
    raise NoMiddle("there is none")


@pytest.mark.parametrize(
    ("faster", "entries"), [(128, 3), pytest.param(64, 2, marks=pytest.mark.nightly)]
)
def test_another_config_is_written_only_where_it_beat_the_one_in_use(recorded, faster, entries):
    """The program used BLOCK 64, which stays without a verdict FAST of another config."""
    opener, backends = opener_of(lambda block, _: 50e-6 if block == faster else 100e-6)
    assert tune_workload(options(recorded), opener) == 0
    table = recorded / "tuned.json"
    written = read(table)
    assert len(written) == entries
    assert all(dict(e.config)["BLOCK"] == faster and not e.is_predicted for e in written)
    assert all((e.after_s.high < e.before_s.low) == (faster == 128) for e in written)
    many = len(backends)
    assert tune_workload(options(recorded), opener) == 0
    assert len(backends) == many, "stored results answer"
    assert read(table) == written
    with workbench.workload.pin(table, "error", arch="sm_90") as pinned:
        assert pinned.choices == {}


def test_predicted_entries_are_written_only_where_they_are_wanted(recorded, capsys):
    result = recorded / "result.json"
    assert tune_workload(options(recorded, device="h200", json=result)) == 0
    for one in json.loads(result.read_text())["results"]:
        low, high = one["band"]
        assert 0 < low < 1 < high, "of measured over predicted times"
    printed = capsys.readouterr().out
    assert "~" in printed and printed.count(device_words("h200", "tuned")) == 1
    (page,) = (recorded / "results" / "workload").glob("*.html")
    text = page.read_text()
    assert text.count(device_words("h200", "tuned")) == 1 and "never validated" not in text
    assert "x 500 float32" in text and "x 1000 float32" in text, "one name, two signatures"
    assert not (recorded / "tuned.json").exists()
    assert (recorded / "results" / "workload").is_dir()


def test_ctrl_c_keeps_what_is_stored_and_a_failing_signature_costs_itself(recorded, monkeypatch):
    from workbench.adapted.travel import AdaptedError
    from workbench.commands import workload_tuning

    def refuses(*_, **__):
        raise AdaptedError("It cannot be adopted.")

    def stops(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(workload_tuning, "take_over", stops)
    assert tune_workload(options(recorded, device="h200")) == 130
    monkeypatch.setattr(workload_tuning, "take_over", refuses)
    assert tune_workload(options(recorded, device="h200")) == 2
    (journal,) = (recorded / "results" / "workload").glob("*.jsonl")
    assert journal.read_text().count("It cannot be adopted.") == 2


@pytest.mark.nightly
def test_the_program_of_the_tutorial_is_tuned_as_the_tutorial_says(tmp_path, monkeypatch):
    """Recorded as a script of its own, whose kernel stands beside what it runs."""
    text = (ROOT / "docs" / "tutorials" / "program.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(# scale\.py\n.*?)```", text, flags=re.S)
    (tmp_path / "scale.py").write_text(program, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    run = [sys.executable, "-m", "workbench", "workload"]
    recorded = ["record", "--out", "scale.workload", "--", sys.executable, "scale.py"]
    subprocess.run([*run, *recorded], check=True, timeout=120)
    tuning = ["tune", "scale.workload", "--device", "h200", "--database", "sqlite:///h.db"]
    tuned = subprocess.run([*run, *tuning], check=True, timeout=300, capture_output=True, text=True)
    assert "not tuned" not in tuned.stdout + tuned.stderr
    assert len(list((tmp_path / "results").glob("*-scale-*/report.html"))) == 2
