"""Timing through MLX on a Metal device. Written without one: not run yet."""

import numpy as np
import pytest

from metal_shim.kernel import metal_device
from workbench import catalog
from workbench.backend.metal.metal import MetalLive
from workbench.backend.protocol import Problem, TimingTask
from workbench.commands.run import new_run
from workbench.device.hardware import UNCOMPILED
from workbench.measurement import inputs
from workbench.measurement.candidate import Timed
from workbench.measurement.metal_timing import MetalEntrant, MetalProtocol
from workbench.tuner.space import RecordFactory

LIMITS = UNCOMPILED["m2max"].limits
SIZES = {"M": 2048, "N": 4096}


@pytest.fixture(scope="module")
def driver():
    assert metal_device(), "MLX has no Metal device here"
    from metal_shim.mlx_backend import MlxDriver

    return MlxDriver()


def prepared(driver, kernel="softmax", sizes=SIZES, cold_bytes=0):
    spec = catalog.spec_of(kernel)
    impl = next(i for i in spec.impls if i.backend == "metal")
    given = inputs.make(spec, sizes, "fp16", "cpu")
    config = impl.default(LIMITS, "fp16", sizes)
    return driver.prepare(impl, config, given, cold_bytes)


def test_a_prepared_call_computes_what_a_launch_does(driver):
    import mlx.core as mx

    call = prepared(driver)
    (step,), (arrays,) = call.steps, call.sets[0]
    (result,) = step(*arrays)
    rows = np.array(result.astype(mx.float32)).sum(-1)
    assert np.allclose(rows, 1, atol=1e-2)


def test_a_sampler_has_the_dispatches_of_its_launches(driver):
    call = prepared(driver, "sample_topk_topp", {"B": 8, "V": 128256})
    assert call.dispatches >= 2 and call.seconds(2) > 0


def test_a_call_outlasts_an_empty_kernel_and_settles(driver):
    entrant = MetalEntrant.warm_up(prepared(driver), driver.empty(), MetalProtocol())
    window = entrant.begin(0.05).window()
    assert all(sample > 1e-6 for sample in window.samples_s)


def test_the_backend_measures_a_kernel_beside_mlx():
    from metal_shim.operations import mlx_impl

    backend = MetalLive(None, battery=True)
    try:
        spec = catalog.spec_of("softmax")
        problem = Problem("softmax", spec, SIZES, "fp16")
        factory = RecordFactory(new_run("x", "x", "x", backend, [problem]), problem, "x")
        own = next(i for i in spec.impls if i.backend == "metal")
        library = mlx_impl(spec)
        both = [(own, own.default(LIMITS, "fp16", SIZES)), (library, library.config())]
        tasks = [TimingTask(problem, factory.candidate(i, c, False)) for i, c in both]
        assert all(isinstance(r.result, Timed) for r in backend.measure_interleaved(tasks))
    finally:
        backend.close()
