"""The history as files of other tools."""

import json
from dataclasses import replace

import pytest

from workbench.commands.history import HistoryOptions, run
from workbench.commands.history_exports import newest_times, parquet
from workbench.commands.options import CommandError
from workbench.data.database import Row, open_history

pytestmark = pytest.mark.unit
BMF = {  # the schema of bencher.dev/docs/reference/bencher-metric-format, as values must be
    "value", "lower_value", "upper_value",
}  # fmt: skip
ROW = Row(
    at="2026-11-26T10:00:00+00:00", run="r2", kernel="copy", impl="blocks", backend="triton",
    dtype="bf16", device="h200", sizes={"N": 1024}, config={"block_n": 512, "num_warps": 4},
    phase="final", stage=None, predicted=False, time_s=2e-5, flops=0.0, bytes=4096.0, reason=None,
    commit="c0ffee", dirty=False, registers=18, spill_bytes=0, low_s=1.9e-5, high_s=2.125e-5,
)  # fmt: skip
OLDER = replace(ROW, run="r1", time_s=3e-5)
MODEL = replace(ROW, predicted=True, time_s=1e-5, low_s=None, high_s=None, commit=None)
FAILED = replace(ROW, time_s=None, stage="compile", phase=None, reason="no")
NAME = "copy.blocks block_n 512, 4 warps at N=1024, bf16, h200"


@pytest.fixture
def export(monkeypatch, tmp_path):
    """Runs `history` on the rows; returns the content of a file that an option names."""

    def go(rows, form):
        file = tmp_path / "exported.json"
        monkeypatch.setattr("workbench.commands.history.show_history", lambda *_: rows)
        url = f"sqlite:///{tmp_path}/h.db"
        open_history(url).close()
        assert run(HistoryOptions(database=url, export=(f"{form}={file}",))) == 0
        return json.loads(file.read_text())

    return go


def test_only_the_newest_time_of_each_config_is_exported():
    assert {name: row.run for name, row in newest_times([ROW, OLDER, MODEL, FAILED]).items()} == {
        NAME: "r2", f"{NAME} (predicted)": "r2"
    }  # fmt: skip


def test_github_action_benchmark(export):
    measured, predicted = export([ROW, OLDER, MODEL], "benchmark-json")
    assert measured == {
        "name": NAME, "unit": "us", "value": pytest.approx(20), "range": "19 to 21.25",
        "extra": "run r2\ncommit c0ffee",
    }  # fmt: skip
    assert predicted["name"].endswith("(predicted)") and "range" not in predicted
    assert predicted["value"] == pytest.approx(10) and predicted["extra"] == "run r2"


def test_bencher(export):
    metrics = export([ROW, MODEL, FAILED], "bencher")
    assert metrics == {
        NAME: {"latency": {"value": pytest.approx(20_000), "lower_value": pytest.approx(19_000),
                           "upper_value": pytest.approx(21_250)}},
        f"{NAME} (predicted)": {"latency": {"value": pytest.approx(10_000)}},
    }  # fmt: skip
    assert all(set(m["latency"]) <= BMF for m in metrics.values())


def test_parquet_without_its_package_is_refused_before_anything_is_read(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(CommandError, match=r"--export parquet needs pyarrow.*\[parquet\]"):
        run(HistoryOptions(export=("parquet=x.parquet",)))


@pytest.mark.nightly  # pyarrow is installed for the night alone
def test_parquet_holds_the_columns_of_the_frame(tmp_path):
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    file = tmp_path / "h.parquet"
    file.write_bytes(parquet([ROW, MODEL, FAILED]))
    frame = pandas.read_parquet(file)
    assert list(frame["kind"]) == ["measured", "predicted", "failure"]
    first = frame.iloc[0]
    assert (first["measured_s"], first["registers"], first["sizes"]) == (2e-5, 18, "N=1024")
    assert first["low_s"] == 1.9e-5 and frame["predicted_s"][1] == 1e-5
