"""The rules that a result and its time must keep, each with the deceptions that it stops.

`docs/evaluate.md` is made from this table.
"""

from dataclasses import dataclass
from typing import Literal

RuleName = Literal[
    "values",
    "sizes",
    "repeat",
    "form",
    "memory",
    "guards",
    "inputs",
    "launches",
    "operators",
    "functions",
    "process",
    "streams",
    "timed",
    "floor",
    "sanitizer",
]


@dataclass(frozen=True)
class EvaluationRule:
    """One rule: the sentence that must hold, and examples of what breaks it."""

    name: RuleName
    requires: str
    stops: str
    gpu: bool = False  # only a GPU can show it


@dataclass(frozen=True)
class Fault:
    """A rule that a launch broke, with the reason in one sentence."""

    rule: RuleName
    reason: str


RULES: tuple[EvaluationRule, ...] = (
    EvaluationRule(
        "values",
        "Every element is within the tolerance of a float64 reference of the same inputs. Outputs "
        "begin as NaN (integers 0xA5), and inputs come from a seed that is drawn for each run. Two "
        "calls are on hard values: outliers, exact zeros, subnormals, and NaN and infinities where "
        "the Spec says what becomes of them.",
        "elements that are not written or not computed, a wrong last element, one NaN, constants, "
        "sums over a part of a row, arithmetic in too few bits, a factor, what is wrong beyond a "
        "few standard deviations only, results kept from an earlier run, "
        "reading the expected values (they are in another process)",
    ),
    EvaluationRule(
        "sizes",
        "The result is right at two more sizes, which the kernel was not told.",
        "results or shapes that are written down for the sizes to check, missing masks",
    ),
    EvaluationRule(
        "repeat",
        "Calls on equal inputs give equal bits, whichever calls lie between them. On a GPU, where "
        "sums by atomics vary, other bits within the tolerance are a remark.",
        "results that change from call to call, launches that are right the first few times",
    ),
    EvaluationRule(
        "form",
        "A launch returns as many dense torch.Tensors as the Spec declares, of its shapes and "
        "dtypes, on the device of the inputs.",
        "other shapes and dtypes, tensors on another device, classes that look like a tensor, "
        "tensors that share elements",
    ),
    EvaluationRule(
        "memory",
        "Each output has memory of its own and is contiguous.",
        "returned inputs, two outputs in one memory, expanded and transposed views",
    ),
    EvaluationRule(
        "guards",
        "Nothing is written outside the tensors: guard bands lie before and behind them.",
        "writes out of bounds",
    ),
    EvaluationRule(
        "inputs",
        "Inputs are the same afterwards, unless the Impl declares to mutate them.",
        "inputs that are overwritten, such as by zeros, on which a GPU runs faster",
    ),
    EvaluationRule(
        "launches",
        "Each call launches the device functions that were compiled.",
        "results that are remembered by address or by value, calls that launch nothing while they "
        "are captured or timed, another kernel in place of the compiled one",
    ),
    EvaluationRule(
        "operators",
        "torch allocates, fills and views memory in a launch, and computes nothing.",
        "a library in place of the kernel, a call of the reference, torch that does "
        "the work next to a kernel",
    ),
    EvaluationRule(
        "functions",
        "Functions of torch, Python and the workbench that checks and clocks use are not replaced.",
        "replacing torch.equal, a clock, or the check itself",
    ),
    EvaluationRule(
        "process",
        "A call returns within its limit, its process lives on, and it leaves no thread or process "
        "behind.",
        "sys.exit, os._exit, a segfault, an endless loop, work that goes on after the call has "
        "returned",
    ),
    EvaluationRule(
        "streams",
        "All work of a call runs on the current stream, or is awaited by it.",
        "work on another stream, which the clock does not see",
        gpu=True,
    ),
    EvaluationRule(
        "timed",
        "Three of the timed calls are right, on inputs of two values in turn, in poisoned memory.",
        "launches that do nothing, or less, when they are timed",
        gpu=True,
    ),
    EvaluationRule(
        "floor",
        "A time is at least 0.97 of what bandwidth and peak rate allow: cold by the memory's "
        "bandwidth, hot by twice the figure of the last-level cache.",
        "times that leave work out, clocks that are wrong",
        gpu=True,
    ),
    EvaluationRule(
        "sanitizer",
        "With `--require sanitizer`: compute-sanitizer finds no race (racecheck) and no wrong "
        "access (memcheck) in a call at a size that the kernel was not told.",
        "races that give right results by luck, accesses that no guard band sees",
        gpu=True,
    ),
)
