"""What became of the arms of an experiment, made up: for tests of what an experiment says of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from null_backend import ENVIRONMENT

from workbench.compile import Compiled
from workbench.data.record import Case, Failure, Finding, Measured, Predicted, Record, Run, key_of
from workbench.device.hardware import device_named
from workbench.experiments import Context, Variant, VariantResult

ROOT = Path(__file__).parents[1]
AT = "2026-11-21T22:00:00.000+00:00"
RUN = "20261121-220000-experiment-3f2a"


def context(
    kernel: str, dtype: str = "bf16", *, predicts: bool = False, sizes: Any = None
) -> Context:
    """A question on an H200."""
    return Context(kernel, sizes, dtype, device_named("h200"), predicts)


def took(
    variant: Variant, time_s: float, *, half: float = 0.0, kernels: int | None = None,
    peak_bytes: int | None = None, method: Any = None, bytes_: int = 1 << 20, flops: int = 1 << 20,
    error: float = 0.25, samples: tuple[float, ...] | None = None, made: str | None = None,
    launches: int = 1,
) -> VariantResult:  # fmt: skip
    """An arm with a time; `half` is the half-width of its interval, relative. `made` names the
    largest of its `launches`."""
    low, high = time_s * (1 - half), time_s * (1 + half)
    by: Any = method or ("host" if variant.clock == "host" else "graph")
    timing = Measured(time_s, low, high, samples or (low, time_s, high), variant.regime, by, "p3-0")
    case = case_of(variant)
    record = Record(case, key_of(case), RUN, AT, "final", timing, flops, bytes_, "gpu", error)
    return VariantResult(variant, record, compiled(made, launches), kernels, peak_bytes)


def text(variant: Variant, time_s: float, launches: int = 1) -> VariantResult:
    """An arm with a prediction."""
    timing = Predicted(time_s, "null-model", time_s, 0.0, 0.0, 0.0, 0.0, "compute")
    case = case_of(variant)
    record = Record(case, key_of(case), RUN, AT, "predict", timing, 1, 1, "interpreter", 0.1)
    return VariantResult(variant, record, compiled("_kernel", launches), launches)


def failed(variant: Variant, reason: str = "it broke") -> VariantResult:
    """An arm without a time."""
    case = case_of(variant)
    return VariantResult(variant, Failure(case, key_of(case), RUN, AT, "measure", reason))


def case_of(variant: Variant) -> Case:
    return Case(
        variant.kernel,
        variant.impl,
        "triton",
        variant.config or {},
        variant.sizes,
        variant.dtype,
        "h200",
    )


def compiled(name: str | None, launches: int) -> Compiled | None:
    return Compiled(None, name, (64,), launches) if name else None  # type: ignore[arg-type]


def by_name(analysis: Any, group: str | None = None) -> dict[str, Any]:
    """Evidence by name, of one group or of all."""
    return {e.name: e for e in analysis.evidence if group is None or e.group == group}


def run_of(name: str, **also: Any) -> Run:
    """A run of an experiment."""
    plain: Mapping[str, Any] = {
        "id": RUN, "engine": "experiment", "name": name, "started": AT, "kernel": "norm_chain",
        "command": f"python -m workbench.experiment {name}", "sizes": {}, "dtype": "fp32",
        "device": "h200", "predicted": False, "vary": (), "tune": (), "impls": {}, "ceilings": {},
        "environment": ENVIRONMENT,
    }  # fmt: skip
    return Run(**{**plain, **also})


def finding(analysis: Any, experiment: str, question: Context) -> Finding:
    """A judgement as it is stored."""
    created: Finding = analysis.finding(RUN, AT, experiment, question)
    return created
