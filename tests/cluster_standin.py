"""A stand-in for the GPU and the compiler of a Dask worker, which loads this file (`preload`).

Its times depend on the config alone, so that every worker gives the same table. The file
`cluster-NAME.json` in the folder STANDIN says what a worker does differently: `triton` (version),
`gpu` (device), `factor` (of its library references), `dies_at` (a label that kills the worker).
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from null_backend import ENVIRONMENT, Fate, Null

from workbench.backend.cluster import worker as cluster_worker
from workbench.backend.workers import Workers
from workbench.catalog.source import load_kernel
from workbench.compile import Compiled
from workbench.data.environment import fingerprint
from workbench.data.record import Resources
from workbench.device.hardware import device_named
from workbench.measurement.preflight import gpu_lock
from workbench.measurement.worker import PairTime

REFERENCES = {"copy": 4e12, "product": 6e14}
VARIABLE = "STANDIN"  # the folder, of the test


def time_s(config: Any, sizes: Any) -> float:
    """Seconds that a config takes on every worker."""
    if "BLOCK" in config:  # of a recorded program
        return (50 if config["BLOCK"] == 128 else 100) * 1e-6
    block, warps = config["block_n"], config["num_warps"]
    return (1 + abs(block - 64) / 64 + warps / 10) * 1e-9 * sizes["N"]


def fate(candidate: Any) -> Fate:
    """What becomes of a config; also on one GPU, for comparison."""
    case = candidate.case
    return Fate(time_s(case.config, case.sizes) if case.config else 1e-4, noise=0.0)


class Measuring:
    """Stands for `measuring.Measuring`."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.null = Null(fate)
        self.own = _own()

    def describe(self, repository: Any) -> Any:
        device = device_named(self.own.get("gpu", "h200"))
        name = os.environ["CUDA_VISIBLE_DEVICES"]
        here = replace(ENVIRONMENT, gpu=device.title, versions=_versions(self.own))
        return device, here, f"GPU-{name}{name}{name}{name}-{os.environ[VARIABLE]}"

    def begin(self, job: Any) -> None:
        pass

    prepare_standby = wait_idle = replace = lambda self: None

    close = prepare_standby

    def self_test(self) -> dict[str, float]:
        return {"dram": 4e12, "launch": 2e-6, "resolution": 3e-8}

    def references(self) -> dict[str, float]:
        return {name: value * self.own.get("factor", 1.0) for name, value in REFERENCES.items()}

    def lock(self, name: str, on_wait: Any, timeout_s: Any = None) -> Any:
        return gpu_lock(name, on_wait, timeout_s)

    def ask(self, task: Any, *args: Any, timeout_s: float) -> Any:
        self.seconds["timed"] += 0.01
        many = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
        if task.__name__ == "first_pass":
            self._perhaps_die(many[0].case)
            time.sleep(self.own.get("sleep", 0.01))
        if task.__name__ == "hot":
            return self.null.hot(args[0])
        if task.__name__ == "compare":
            return PairTime(*self.null.compare(*args))
        results = [self.null._reply(c, self.null._fate(c)) for c in many]
        return results[0] if many[0] is args[0] else results

    def _perhaps_die(self, case: Any) -> None:
        at = self.own.get("dies_at")
        if at == case.label and not _once(f"died-{os.environ['CUDA_VISIBLE_DEVICES']}"):
            _end()
        if self.own.get("always") == case.label:
            _end()


def _end() -> None:
    """Kill this worker."""
    os.kill(os.getpid(), signal.SIGKILL)


def _once(name: str) -> bool:
    """Whether this was called before, in any process."""
    mark = Path(os.environ[VARIABLE]) / name
    before = mark.exists()
    mark.touch()
    return before


def _hashes(kernel: str) -> dict[str, str]:
    """The code of a kernel on this host: a worker that `lacks` it has another file. The test wrote
    the right ones, since an import of torch takes seconds."""
    file = Path(os.environ[VARIABLE]) / "hashes.json"
    hashes = json.loads(file.read_text()) if file.exists() else dict(load_kernel(kernel).hashes)
    return {name: "0" * 16 for name in hashes} if _own().get("lacks") else hashes


class Pool:
    """Stands for `workers.Workers`: compiles nothing."""

    def __init__(self, count: int) -> None:
        pass

    def submit(self, task: Any, *args: Any, timeout_s: float) -> Future[Any]:
        given: Future[Any] = Future()
        try:
            given.set_result(self._result(task, args, timeout_s))
        except Exception as error:
            given.set_exception(error)
        return given

    def _result(self, task: Any, args: Any, timeout_s: float) -> Any:
        if task.__name__ == "discover":  # with no GPU, in Triton's interpreter
            stage, outputs, _, *more = args
            with Workers(1, interpreted=True) as workers:
                work = stage, outputs, "cpu", *more
                return workers.submit(task, *work, timeout_s=timeout_s).result()
        if task.__name__ == "code_of":
            return _hashes(args[0])
        label = args[0].candidate.case.label
        (Path(os.environ[VARIABLE]) / f"compiled-{os.environ.get('CUDA_VISIBLE_DEVICES')}").touch()
        numbers = (64, 0, 4096, 128, 2, 0.1, "registers", 64, 0.5, 0.5, 128, None, 0.0)
        resources = Resources(label, *numbers)
        return Compiled(resources, f"ttgir {label}", (64,), 1)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _own() -> dict[str, Any]:
    name = os.environ.get("CUDA_VISIBLE_DEVICES", "cpu")
    file = Path(os.environ[VARIABLE]) / f"cluster-{name}.json"
    return json.loads(file.read_text()) if file.exists() else {}


def _versions(own: dict[str, Any]) -> dict[str, str]:
    here = dict(fingerprint(None, None).versions)
    return {**here, **({"triton": own["triton"]} if "triton" in own else {})}


def environment(index: Any, repository: Any) -> Any:
    return replace(ENVIRONMENT, versions=_versions(_own()))


cluster_worker.new_measuring = Measuring
cluster_worker.new_pool = Pool
cluster_worker.environment = environment
