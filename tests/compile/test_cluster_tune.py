"""A recorded workload tuned on two workers of a Dask cluster: the table of one GPU."""

import cluster_standin
import null_backend
import pytest
import torch
import triton
import workload_program
from cluster_hosts import Hosts

import workbench.workload
from workbench.commands.workload_tune import WorkloadTuneOptions
from workbench.commands.workload_tuning import tune_workload
from workbench.data.database import open_history
from workbench.workload.tuned_table import read

pytestmark = [pytest.mark.compile, pytest.mark.newest]


@pytest.fixture
def recorded(tmp_path):
    """Two functions' worth of launches, recorded without a GPU."""
    with workbench.workload.record(tmp_path / "run.workload"):
        for dtype in (torch.float32, torch.float16):
            x, y = torch.ones(500, dtype=dtype), torch.empty(500, dtype=dtype)
            workload_program.tuned[lambda m: (triton.cdiv(500, m["BLOCK"]),)](x, y, 500)
    return tmp_path


def options(folder, name, **more):
    return WorkloadTuneOptions(
        files=(str(folder / "run.workload"),),
        out=folder / name,
        tuned=folder / f"{name}.json",
        database=f"sqlite:///{folder / name}.db",
        cover=1.0,
        quiet=True,
        **more,
    )


@pytest.mark.nightly
def test_two_workers_give_the_table_of_one(recorded):
    hosts = Hosts(recorded)
    try:
        hosts.start("0", "1")
        wanted = options(recorded, "many", workers=hosts.url)
        assert tune_workload(wanted) == 0
    finally:
        hosts.end()
    with open_history(wanted.database) as history:
        runs = history.runs(limit=100)
    assert len({run.gpu for run in runs}) == 2, "each worker tuned one signature"
    by_kernel = {}
    for run in runs:
        by_kernel.setdefault(run.source, set()).add(run.gpu)
    assert all(len(gpus) == 1 for gpus in by_kernel.values()), "its comparison was there, too"

    def opener(device, repository, **_):
        return null_backend.Null(cluster_standin.fate)

    assert tune_workload(options(recorded, "one"), opener) == 0
    tables = [read(recorded / f"{name}.json") for name in ("many", "one")]
    many, one = ([(e.function, e.arguments, e.config) for e in table] for table in tables)
    assert many == one and len(many) == 2
