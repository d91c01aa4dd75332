"""Workers of a Dask cluster that compile for an absent GPU, and one whose GPU is not there."""

from dataclasses import replace

import pytest
from distributed import Client, Nanny, Scheduler, SpecCluster

from workbench import catalog
from workbench.backend.cluster import cluster
from workbench.backend.cluster import worker as cluster_worker
from workbench.backend.cluster.cluster import Cluster, ClusterGpu
from workbench.backend.cluster.remote import ClusterPool
from workbench.backend.measuring import WorkerRefused
from workbench.backend.processes import CompileJob, compile_all
from workbench.backend.protocol import Problem
from workbench.catalog.source import load_kernel
from workbench.compile import Compiled
from workbench.device.hardware import device_named
from workbench.measurement.candidate import Candidate

pytestmark = [pytest.mark.compile, pytest.mark.newest]
H200 = device_named("h200")


@pytest.fixture(scope="module")
def joined():
    """A cluster of two workers: one compiles, the other declares a GPU, and there is none."""
    import dask

    dask.config.set(cluster.QUIET)
    common = {"nthreads": 1, "host": "127.0.0.1", "memory_limit": 0}
    workers = {
        "compiler": {"cls": Nanny, "options": common},
        "gpu": {"cls": Nanny, "options": {**common, "resources": {"GPU": 1}}},
    }
    scheduler = {"cls": Scheduler, "options": {"host": "127.0.0.1", "dashboard": False}}
    local = SpecCluster(workers=workers, scheduler=scheduler)
    notes = []
    members = Cluster(lambda: Client(local), "of this test", notes.append, local)
    yield members, notes, dict(members.refresh())
    members.close()


def test_a_worker_without_a_gpu_compiles_for_the_device_of_others(joined):
    members, _, listed = joined
    address, about = next((a, w) for a, w in listed.items() if w["name"] == "compiler")
    assert members.join(address, about) is None
    worker = members.workers[address]
    pool = ClusterPool(ClusterGpu(members, worker, None), list(members.compiling("copy")))
    spec = catalog.spec_of("copy")
    impl = catalog.impl_of(spec, "blocks")
    hashes = load_kernel("copy").hashes
    configs = [impl.config(), impl.config(num_warps=8), impl.config()]
    candidates = []
    for number, config in enumerate(configs):
        named = Candidate.create("blocks", vars(config))
        candidates.append(Candidate(named.case, f"k{number}", impl, config, code=hashes["blocks"]))
    problem = Problem("copy", spec, {"N": 4096}, "bf16")
    results = {c.key: r for c, r in compile_all(pool, problem, candidates, H200)}
    assert all(isinstance(r, Compiled) for r in results.values())
    assert len({r.binary for r in results.values()}) == 2
    pool.close()


def test_claims_of_another_host_lie_in_a_folder_of_this_one(tmp_path):
    job = CompileJob("copy", None, {}, "bf16", H200, tmp_path / "elsewhere", "1")
    first, second = (cluster_worker._replace_claims(job).claims for _ in range(2))
    assert first == second and first.is_dir()
    here = replace(job, claims=tmp_path)
    assert cluster_worker._replace_claims(here) is here


@pytest.mark.nightly
def test_an_error_of_a_remote_task_is_the_error(joined):
    members, _, listed = joined
    address = next(a for a, w in listed.items() if w["name"] == "compiler")
    with pytest.raises(Exception, match="There is no kernel 'matmull'"):
        members.result_of(address, cluster_worker.kernel_hashes, "matmull")


@pytest.mark.nightly
def test_a_worker_whose_gpu_torch_does_not_see_is_refused(joined):
    members, notes, listed = joined
    address, about = next((a, w) for a, w in listed.items() if w["name"] == "gpu")
    with pytest.raises(WorkerRefused, match="declares a GPU, and torch sees none there"):
        members.join(address, about)
    assert members.gpus == [] and any("sees none" in note for note in notes)
