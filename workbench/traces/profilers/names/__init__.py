"""Names of ncu's counters by chip: which exist, the nearest of a wrong one, and translations.

`nvperf_metric_names_by_chip.json.gz` lists counters, ratios and throughputs of each chip, as
NVIDIA's library `libnvperf_host` of CUPTI 13 names them. It is read only when a name is checked.
"""

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from workbench.spec import WorkbenchError
from workbench.traces.metric import counter_name

FILE = Path(__file__).with_name("nvperf_metric_names_by_chip.json.gz")
CHIPS: Mapping[str, str] = {  # by Triton's name of the architecture
    "sm_75": "TU102", "sm_80": "GA100", "sm_86": "GA102", "sm_89": "AD102", "sm_90": "GH100",
    "sm_100": "GB100", "sm_103": "GB110", "sm_110": "GB10B", "sm_120": "GB202", "sm_121": "GB20B",
}  # fmt: skip
OWN = (  # ncu's own, known by prefix
    "launch__", "derived__", "device__attribute_", "breakdown:", "group:", "pmsampling:",
    "profiler__", "smsp__pcsamp_", "sass__", "memory_", "sm__maximum_warps_per_active_cycle_pct",
)  # fmt: skip
SUMS = ("sum", "avg", "min", "max")
RATIOS = ("pct", "ratio", "max_rate")
SCOPES = ("active", "elapsed")
SUBMETRICS = (
    "per_second",
    "peak_sustained",
    *(f"per_cycle_{scope}" for scope in SCOPES),
    *(f"pct_of_peak_sustained_{scope}" for scope in SCOPES),
    *(f"peak_sustained_{scope}" for scope in SCOPES),
    *(f"peak_sustained_{scope}.per_second" for scope in SCOPES),
)
# Names of one chip that others call otherwise, tried where the first is not known.
ELSEWHERE = (
    (re.compile(r"^dram__bytes_(read|write)\b"), r"dram__bytes_op_\1"),
    (re.compile(r"^sm__pipe_tensor_op_hmma_cycles_active\b"), "sm__inst_executed_pipe_tensor"),
)
NO_TOTAL = re.compile(r"smsp__inst_executed_not_predicated_off\b")
WORD = re.compile(r"[A-Za-z0-9_.:]+\Z")
NEAREST = 3


class CounterError(WorkbenchError):
    """A counter does not exist on a chip; the message is one sentence."""


@dataclass(frozen=True)
class KnownCounter:
    """A counter as it was named, the one that is collected, and what to say where they differ."""

    argument: str
    name: str

    @property
    def sentence(self) -> str:
        """Return what is said of a translation; empty where the name was taken as it is."""
        if self.name == self.argument:
            return ""
        total = "; there is no total by warp" if NO_TOTAL.match(self.argument) else ""
        return f"{self.argument} is collected as {self.name}, its name on this chip{total}."


@cache
def names_of(chip: str) -> Mapping[str, str]:
    """Return the kind of each name of a chip without rollups: counter, ratio or throughput."""
    by_kind: Mapping[str, Sequence[str]] = json.loads(gzip.decompress(FILE.read_bytes()))[chip]
    return {name: kind for kind, names in by_kind.items() for name in names}


def chip_of(arch: str) -> str:
    """Return the chip of an architecture: `GH100` of `sm_90`. Raises CounterError."""
    if arch in CHIPS:
        return CHIPS[arch]
    raise CounterError(
        f"There is no list of ncu's counters for {arch}; name an NVIDIA device, such as "
        "--device h200."
    )


def list_names(chip: str, pattern: str = "") -> list[tuple[str, str]]:
    """Return name and kind of what a chip has, where the name holds the pattern, a regular
    expression. Raises CounterError where it is none."""
    try:
        expression = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise CounterError(
            f"{pattern!r} is not a regular expression ({error}); correct it."
        ) from None
    return sorted((name, kind) for name, kind in names_of(chip).items() if expression.search(name))


def counter(argument: str, chip: str) -> KnownCounter:
    """Return the counter that a name means on a chip: `base[.rollup[.submetric]]`, a name of ncu's
    own, or one of an older tool. Raises CounterError with the three nearest names."""
    if argument.startswith(OWN) and WORD.match(argument):
        return KnownCounter(argument, argument)
    candidates = [argument, counter_name(argument)]
    candidates += [old.sub(new, c) for c in tuple(candidates) for old, new in ELSEWHERE]
    for name in dict.fromkeys(candidates):
        base, kind = _base(name, chip)
        if kind:
            _check_rollup(argument, name[len(base) + 1 :], kind)
            return KnownCounter(argument, name)
    raise CounterError(_unknown(argument, chip))


def _base(name: str, chip: str) -> tuple[str, str]:
    """Return the longest known beginning of a name, and its kind; of an unknown one the kind is
    empty. Bases may have dots: `CTC.TriageCompute.ctc__cycles_active`."""
    counters, words = names_of(chip), name.split(".")
    for end in range(len(words), 0, -1):
        base = ".".join(words[:end])
        if base in counters:
            return base, counters[base]
    return "", ""


def _check_rollup(name: str, rest: str, kind: str) -> None:
    rollup, _, submetric = rest.partition(".")
    rollups = RATIOS if kind == "ratio" else SUMS
    if rest and rollup not in rollups:
        raise CounterError(
            f"{name} ends in {rollup!r}, and a {kind} has {', '.join(rollups)}; choose one of them."
        )
    if submetric and (kind == "ratio" or submetric not in SUBMETRICS):
        near = get_close_matches(submetric, SUBMETRICS, NEAREST, 0.0)
        raise CounterError(f"{name} ends in {submetric!r}; nearest are {', '.join(near)}.")


def _unknown(argument: str, chip: str) -> str:
    base = argument.split(".")[0]
    unit = base.split("__")[0]
    names = list(names_of(chip))
    kin = [name for name in names if name.startswith(f"{unit}__")] or names
    near = get_close_matches(base, kin, NEAREST, 0.0)
    shown = argument if argument.isprintable() else repr(argument)
    return f"{chip} has no counter {shown[:200]}; nearest are {', '.join(near)}."
