"""Functions of the user's on the GPU that is here: checked, cold, and as fast as a kernel's bench
says."""

import pytest
import torch

import workbench as wb
from workbench import catalog
from workbench.device import hardware
from workbench.device.bounds import cache_bytes
from workbench.measurement.bench import Bench
from workbench.measurement.function_timer import GpuTimer
from workbench.measurement.functions import Refused, time_functions
from workbench.measurement.protocol import Protocol

DEVICE = hardware.live()
if DEVICE is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)
SHORT = Protocol(rounds=6, most_rounds=12, final_s=2.0, settle_s=0.3)
N = 1 << 24


def copies(number):
    x = torch.randn(N, device="cuda", dtype=torch.bfloat16)
    return {"clone": x.clone, "copy": lambda: torch.empty_like(x).copy_(x), "wrong": lambda: x + 1}


@pytest.mark.alone
def test_a_copy_takes_as_long_as_in_the_bench_of_a_kernel():
    timer = GpuTimer(cache_bytes(DEVICE), SHORT)
    results = time_functions(timer, copies)
    assert isinstance(results["wrong"], Refused) and results["wrong"].stage == "check"
    spec = catalog.spec_of("copy")
    bench = Bench(spec, {"N": N}, "bf16", cache_bytes(DEVICE), 0.0, SHORT)
    impl = catalog.impl_of(spec, "blocks")
    rotation = bench.calls(impl, impl.config())
    kernel_s = bench.choose_method(rotation, bench.first_time(rotation)).samples(20)[-1]
    for name in ("clone", "copy"):
        timing = results[name]
        assert timing.regime == "cold" and 0.5 < timing.median_s / kernel_s < 2.0


@pytest.mark.alone
def test_inputs_that_are_shared_are_flushed_before_each_call():
    x = torch.randn(1 << 20, device="cuda", dtype=torch.bfloat16)
    timer = GpuTimer(cache_bytes(DEVICE), SHORT)
    sets, flushed = timer.sets(lambda number: {"clone": x.clone}, 1)
    assert len(sets) == 1 and flushed
    assert time_functions(timer, lambda number: {"clone": x.clone})["clone"].median_s > 0


@pytest.mark.alone
def test_a_decorated_function_is_timed_from_end_to_end(tmp_path):
    @wb.bench({"N": [1 << 16, 1 << 22]}, bytes=lambda N: 12 * N, dtype="fp32")
    def add(N):
        x, y = torch.rand(2, N, device="cuda")
        return {"add": lambda: x + y, "sum": lambda: torch.stack((x, y)).sum(0)}

    result = add.run(out=tmp_path, database=f"sqlite:///{tmp_path / 'h.db'}")
    assert len(result.records) == 4 and not result.failures
    assert {best.impl for best in result.bests} == {"add"}
