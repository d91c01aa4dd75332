"""Parts of different problems, timed together on the GPU that is here."""

import pytest
import torch

from workbench import catalog
from workbench.device import hardware
from workbench.measurement import worker
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.measurement.graphs import graphs
from workbench.measurement.protocol import Protocol
from workbench.spec import values

if hardware.live() is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)
RULES = Protocol(final_s=2.0)


def part(kernel, sizes, impl=None, **how):
    spec = catalog.spec_of(kernel)
    created = catalog.impl_of(spec, impl) if impl else spec.impls[0]
    config = {} if created.backend == "torch" else values(created.config())
    candidate = Candidate.create(created.name, config)
    return worker.WorkerTask(worker.MeasureJob(kernel, sizes, "bf16", RULES), candidate, **how)


def measure_interleaved(*parts):
    worker.begin(parts[0].job)
    result, spent = worker.measure_interleaved(list(parts))
    assert spent.total > 0
    return result


@pytest.mark.alone
def test_each_part_has_the_time_of_its_own_problem():
    sizes = {"N": 1 << 24}
    copy, triad, library = measure_interleaved(
        part("copy", sizes), part("triad", sizes), part("copy", sizes, "torch")
    )
    times = [t.result.timing.median_s for t in (copy, triad, library)]
    assert all(isinstance(t.result, Timed) for t in (copy, triad, library))
    assert 1.2 * times[0] < times[1] < 1.9 * times[0]  # three tensors move instead of two
    assert all(t.kernels == 1 for t in (copy, triad))
    assert copy.peak_bytes == pytest.approx(2 << 24, rel=0.01)  # its output


@pytest.mark.alone
def test_hot_is_faster_and_the_host_sees_the_launch_too():
    sizes = {"N": 1 << 20}
    cold, hot, host = measure_interleaved(
        part("copy", sizes), part("copy", sizes, regime="hot"), part("copy", sizes, clock="host")
    )
    times = [t.result.timing for t in (cold, hot, host)]
    assert times[1].median_s < times[0].median_s < times[2].median_s
    assert [t.regime for t in times] == ["cold", "hot", "cold"]
    assert [t.method for t in times] == ["graph", "graph", "host"]


def test_one_that_fails_costs_itself_alone():
    good, bad = measure_interleaved(
        part("copy", {"N": 4096}),
        worker.WorkerTask(
            worker.MeasureJob("copy", {"N": 4096}, "bf16", RULES),
            Candidate.create("blocks", {"odd": 1}),
        ),
    )
    assert isinstance(good.result, Timed)
    assert isinstance(bad.result, Refusal) and "odd" in bad.result.reason
    assert worker._state().job.kernel == "copy"


def test_launches_are_counted():
    x = torch.zeros(64, device="cuda")
    if torch.version.hip:
        pytest.skip("graphs of HIP are not counted in")
    torch.cuda.synchronize()

    def three():
        return (x + 1) * 2 - 3

    three()
    assert graphs().kernels(three) == 3
    assert graphs().kernels(lambda: x.sum().item()) is None  # waits: no graph can hold it
    assert three()[0].item() == -1  # and all goes on
