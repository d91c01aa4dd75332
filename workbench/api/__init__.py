"""The Python API: the commands as functions, and what they return.

`workbench` exports the names of `__all__`. Importing this package imports neither torch nor pandas.
"""

from workbench.api.bench import BenchFunction, bench
from workbench.api.calls import predict, prune, tune
from workbench.api.commands import (
    ceilings,
    compare,
    evaluate,
    experiment,
    history,
    measure,
    profile,
    sweep,
)
from workbench.api.result import BestConfig, Result
from workbench.api.results import (
    CeilingsResult,
    EvaluateResult,
    ExperimentResult,
    HistoryResult,
    PredictResult,
    ProfileResult,
)
from workbench.api.timing_results import (
    BenchResult,
    CompareResult,
    MeasureResult,
    SweepResult,
    TuneResult,
)
from workbench.data.frame import events_frame
from workbench.data.record import (
    Comparison,
    Failure,
    Finding,
    Measured,
    Predicted,
    Profile,
    Record,
    Run,
    Verdict,
)
from workbench.spec import WorkbenchError

__all__ = [
    "BenchFunction",
    "BenchResult",
    "BestConfig",
    "CeilingsResult",
    "CompareResult",
    "Comparison",
    "EvaluateResult",
    "ExperimentResult",
    "Failure",
    "Finding",
    "HistoryResult",
    "MeasureResult",
    "Measured",
    "PredictResult",
    "Predicted",
    "Profile",
    "ProfileResult",
    "Record",
    "Result",
    "Run",
    "SweepResult",
    "TuneResult",
    "Verdict",
    "WorkbenchError",
    "bench",
    "ceilings",
    "compare",
    "evaluate",
    "events_frame",
    "experiment",
    "history",
    "measure",
    "predict",
    "profile",
    "prune",
    "sweep",
    "tune",
]
