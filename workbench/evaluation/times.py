"""The time of a kernel that was evaluated: predicted, or measured beside the library's versions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.backend.offline import derived_time, predicted_time
from workbench.backend.protocol import Measures, Problem
from workbench.backend.workers import PATIENCE
from workbench.compile import Compiled
from workbench.data.record import Measured, Predicted
from workbench.device.bounds import bound_s
from workbench.device.hardware import Device
from workbench.evaluation.problem import KnownCosts, SpecFacts
from workbench.evaluation.submission import Submission
from workbench.evaluation.verdict import RuleResult, fail_rules
from workbench.measurement.candidate import Candidate, Refusal
from workbench.measurement.rules import RULES


@dataclass(frozen=True)
class EvaluatedTimes:
    """Times of one call, in seconds. `libraries` holds those of the library's versions, from the
    same final benchmark."""

    timing: Measured | Predicted
    bound_s: float  # least time by bandwidth and peak rate; 0 where neither is known
    libraries: Mapping[str, Measured] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Return the time of a call."""
        timing = self.timing
        return timing.median_s if isinstance(timing, Measured) else timing.predicted_s

    @property
    def best_library(self) -> tuple[str, float] | None:
        """Return the name and the seconds of the fastest library's version, or None."""
        times = {name: timing.median_s for name, timing in self.libraries.items()}
        return min(times.items(), key=lambda item: item[1]) if times else None

    def plain(self) -> dict[str, Any]:
        """Return the times for a JSON file, in seconds."""
        timing = self.timing
        names = ("low_s", "high_s", "mean_s", "std_s", "min_s", "max_s", "host_s")
        return {
            "kind": "measured" if isinstance(timing, Measured) else "predicted",
            "time_s": self.seconds,
            **{name: getattr(timing, name, None) for name in names},
            "bound_s": self.bound_s or None,
            "share_of_bound": self.bound_s / self.seconds if self.bound_s else None,
            "libraries": {
                name: {
                    "time_s": each.median_s,
                    "low_s": each.low_s,
                    "high_s": each.high_s,
                    "speedup": each.median_s / self.seconds,
                }
                for name, each in self.libraries.items()
            },
        }


def predicted_times(
    device: Device, submission: Submission, facts: SpecFacts, compiled: Compiled, dtype: str
) -> EvaluatedTimes | None:
    """Return the analytic model's time, of a kernel without `work` that of its code, as a sweep
    gives it; None where the device lacks a figure for it, or the code cannot be modelled."""
    stages, works = submission.config.get("num_stages", 1), submission.works
    costs = dtype, facts.flops, facts.bytes, stages
    try:
        if works is None and (compiled.works or compiled.not_modelled):
            timing = derived_time(device, compiled)
        else:
            timing = predicted_time(device, compiled, works, *costs)
    except ValueError:
        return None
    return EvaluatedTimes(timing, bound_s(device, facts.bytes, facts.flops, dtype))


def measured_times(
    gpu: Measures,
    submission: Submission,
    facts: SpecFacts,
    compiled: Compiled,
    kernel: str,
    dtype: str,
) -> tuple[list[RuleResult], EvaluatedTimes | None]:
    """Return the results of the rules that a GPU decides, and the times, or None where one of them
    is broken. The config and the library's versions take turns in one final benchmark."""
    problem = Problem(kernel, KnownCosts.make(facts), facts.timed_sizes, dtype)
    try:
        gpu.begin(problem)
    except RuntimeError as error:
        return fail_rules(Refusal("measure", str(error), own=False)), None
    first = gpu.time(submission.candidate, compiled, None).result()
    if isinstance(first, Refusal) and first.cause is not None:  # lost once is not a verdict
        first = gpu.time(submission.candidate, compiled, None, PATIENCE).result()
    if isinstance(first, Refusal):
        return fail_rules(first), None
    entrants = [submission.candidate, *(Candidate.create(n, {}) for n in submission.libraries)]
    finals = gpu.final(entrants, [0.0] * len(entrants))
    own = finals[0]
    if isinstance(own, Refusal):
        return fail_rules(own), None
    assert isinstance(own.timing, Measured)
    libraries = {
        name: result.timing
        for name, result in zip(submission.libraries, finals[1:], strict=True)
        if not isinstance(result, Refusal) and isinstance(result.timing, Measured)
    }
    decided = [rule.name for rule in RULES if rule.gpu and rule.name != "sanitizer"]
    kept = [RuleResult(name, "kept") for name in (*decided, "values", "launches")]
    if own.repeats is False:
        reason = "timed calls on equal inputs give other bits, within the tolerance"
        kept.append(RuleResult("repeat", "kept", reason))
    times = EvaluatedTimes(
        own.timing, bound_s(gpu.device, facts.bytes, facts.flops, dtype), libraries
    )
    return kept, times
