"""What became of the arms of an experiment, made up: for tests of what an experiment says of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.backend.null import ENVIRONMENT
from workbench.compile import Compiled
from workbench.data.record import Case, Failure, Finding, Measured, Predicted, Record, Run, key_of
from workbench.device.hardware import device_named
from workbench.experiments import Arm, Asked, Found

AT = "2026-11-21T22:00:00.000+00:00"
RUN = "20261121-220000-experiment-3f2a"


def asked(kernel: str, dtype: str = "bf16", *, predicts: bool = False, sizes: Any = None) -> Asked:
    """A question on an H200."""
    return Asked(kernel, sizes, dtype, device_named("h200"), predicts)


def took(
    arm: Arm, time_s: float, *, half: float = 0.0, kernels: int | None = None,
    peak_bytes: int | None = None, method: Any = None, bytes_: int = 1 << 20, flops: int = 1 << 20,
    error: float = 0.25, samples: tuple[float, ...] | None = None, made: str | None = None,
    launches: int = 1,
) -> Found:  # fmt: skip
    """An arm with a time; `half` is the half-width of its interval, relative. `made` names the
    largest of its `launches`."""
    low, high = time_s * (1 - half), time_s * (1 + half)
    by: Any = method or ("host" if arm.clock == "host" else "graph")
    timing = Measured(time_s, low, high, samples or (low, time_s, high), arm.regime, by, "p3-0")
    case = case_of(arm)
    record = Record(case, key_of(case), RUN, AT, "final", timing, flops, bytes_, "gpu", error)
    return Found(arm, record, compiled(made, launches), kernels, peak_bytes)


def told(arm: Arm, time_s: float, launches: int = 1) -> Found:
    """An arm with a prediction."""
    timing = Predicted(time_s, "null-model", time_s, 0.0, 0.0, 0.0, 0.0, "compute")
    case = case_of(arm)
    record = Record(case, key_of(case), RUN, AT, "predict", timing, 1, 1, "interpreter", 0.1)
    return Found(arm, record, compiled("_kernel", launches), launches)


def failed(arm: Arm, why: str = "it broke") -> Found:
    """An arm without a time."""
    case = case_of(arm)
    return Found(arm, Failure(case, key_of(case), RUN, AT, "measure", why))


def case_of(arm: Arm) -> Case:
    return Case(arm.kernel, arm.impl, "triton", arm.config or {}, arm.sizes, arm.dtype, "h200")


def compiled(name: str | None, launches: int) -> Compiled | None:
    return Compiled(None, name, (64,), launches) if name else None  # type: ignore[arg-type]


def by_name(judgement: Any, group: str | None = None) -> dict[str, Any]:
    """Evidence by name, of one group or of all."""
    return {e.name: e for e in judgement.evidence if group is None or e.group == group}


def run_of(name: str, **also: Any) -> Run:
    """A run of an experiment."""
    plain: Mapping[str, Any] = {
        "id": RUN, "engine": "experiment", "name": name, "started": AT, "kernel": "norm_chain",
        "command": f"python -m workbench.experiment {name}", "sizes": {}, "dtype": "fp32",
        "device": "h200", "predicted": False, "vary": (), "tune": (), "impls": {}, "ceilings": {},
        "environment": ENVIRONMENT,
    }  # fmt: skip
    return Run(**{**plain, **also})


def finding(judgement: Any, experiment: str, question: Asked) -> Finding:
    """A judgement as it is stored."""
    made: Finding = judgement.finding(RUN, AT, experiment, question)
    return made
