"""Metrics of one launch as rules take them: of its counters, of its instructions, of what the Spec
declares, and of the measurement without a profiler."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from workbench.data.matrix_work import MATRIX_COUNTERS
from workbench.data.record import Evidence, Kind, Measured, Profile, Record
from workbench.traces.instruction_metrics import MIXES, instruction_metrics, sampled_stalls
from workbench.traces.kernel_class import ATTENTION, GEMM, class_of
from workbench.traces.metric import BY_NAME, LAUNCH, exact_counters, metric_values, stall_shares
from workbench.traces.trace import Dispatch

THROTTLE = "throttle_"  # before the driver's reason for a lowered clock, which is 1.0
STALL = "stall_"


class OtherMetric(NamedTuple):
    """A metric of rules that no formula of counters gives: its unit, its kind, what gives it."""

    unit: str
    kind: Kind
    source: str


_OPCODES = "executions by opcode (section SourceCounters or InstructionStats of ncu)"
_LANES = "global loads and stores with their lanes (section SourceCounters of ncu)"
_SAMPLES = "samples by instruction (section SourceCounters of ncu)"
_MATRIX = "FLOP of the matrix unit (sm__ops_path_tensor_src_*, or executions by opcode)"
_SPEC = "the bytes and FLOP that the Spec of a profiled kernel declares"
_CLOCK = "the clock of a measurement without a profiler"
OTHERS: Mapping[str, OtherMetric] = {
    **dict.fromkeys(MIXES, OtherMetric("1", "profiled", _OPCODES)),
    **dict.fromkeys(
        ("copied_share", "narrow_share", "masked_share"), OtherMetric("1", "profiled", _LANES)
    ),
    "memory_lanes": OtherMetric("lane", "profiled", _LANES),
    "tma_store_samples": OtherMetric("1", "profiled", _SAMPLES),
    "tmem_load_samples": OtherMetric("1", "profiled", _SAMPLES),
    "matrix_flop": OtherMetric("FLOP", "profiled", _MATRIX),
    "call_launches": OtherMetric("launches", "computed", "the launches of one call of a kernel"),
    "least_bytes": OtherMetric("B", "computed", _SPEC),
    "least_bytes_read": OtherMetric("B", "computed", _SPEC),
    "declared_flop": OtherMetric("FLOP", "computed", _SPEC),
    "traffic_ratio": OtherMetric("1", "profiled", _SPEC),
    "product": OtherMetric("1", "computed", "the name of the kernel"),
    **{
        f"plain_clock{which}": OtherMetric("Hz", "measured", _CLOCK)
        for which in ("", "_low", "_high")
    },
}
# Of a call of several launches: sums over them, and means by their durations.
SUMMED = (
    "duration", "dram_bytes", "dram_read_bytes", "dram_written_bytes", "l2_bytes", "l1_bytes",
    "matrix_flop", "vector_flop", "ideal_sectors", "excessive_sectors", "local_sectors",
)  # fmt: skip
AVERAGED = ("dram_throughput", "compute_throughput", "sm_clock")
_THROTTLE_METRIC = OtherMetric("1", "measured", _CLOCK)


def rule_metrics(
    dispatch: Dispatch, tool: str, plain: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return the metrics of a dispatch for rules: values by name, each reason to stall as its share
    of all stalls, the programs, cores and waves of the launch, and what its instructions tell.
    `plain` is that of `plain_metrics`, where the launch is the whole call of a record."""
    counters = exact_counters(dispatch)
    values = {
        name: known.value
        for name, known in metric_values(dispatch, tool).items()
        if not name.startswith(STALL)
    }
    values |= {f"{STALL}{reason}": share for reason, share in dispatch_stalls(dispatch).items()}
    if "duration" not in values and dispatch.duration_ns is not None:
        values["duration"] = dispatch.duration_ns / 1e9
    for name, counter in LAUNCH.items():
        if counter in counters:
            values[name] = counters[counter]
    if "programs" not in values and dispatch.geometry.grid:
        values["programs"] = float(math.prod(dispatch.geometry.grid))
    values["product"] = float(is_product(dispatch.name))
    flops = [value for name, value in counters.items() if MATRIX_COUNTERS.fullmatch(name)]
    matrix = {"matrix_flop": math.fsum(flops)} if flops else {}
    values = matrix | instruction_metrics(dispatch) | values | dict(plain or {})
    return values | _derive_metrics(values)


def is_product(name: str) -> bool:
    """Return whether a kernel is a product or an attention by its name (see `kernel_class`)."""
    return class_of(name).name in (GEMM, ATTENTION)


def dispatch_stalls(dispatch: Dispatch) -> dict[str, float]:
    """Return each reason's share of all stalls: of the counters, else of the samples; empty where
    the file has neither."""
    shares = stall_shares(exact_counters(dispatch))
    if shares or dispatch.instructions is None:
        return shares
    return sampled_stalls(dispatch.instructions)


def _derive_metrics(values: Mapping[str, float]) -> dict[str, float]:
    """Return what follows from two sources: DRAM bytes over the least, and excess sectors where
    instructions alone tell them."""
    result: dict[str, float] = {}
    if values.get("least_bytes") and "dram_bytes" in values:
        result["traffic_ratio"] = values["dram_bytes"] / values["least_bytes"]
    requested = values.get("excessive_sectors", 0.0) + values.get("ideal_sectors", 0.0)
    if "excess_sectors" not in values and requested:
        result["excess_sectors"] = values.get("excessive_sectors", 0.0) / requested
    return result


def call_metrics(
    launches: Sequence[Mapping[str, float]], plain: Mapping[str, float]
) -> dict[str, float]:
    """Return the metrics of a call of several launches: bytes, FLOP, sectors and durations of all
    its launches as sums, throughputs and clock as means weighted by the durations. A metric that
    one launch lacks is absent. `plain` is that of `plain_metrics`."""
    spent = math.fsum(each.get("duration", 0.0) for each in launches)
    values = {
        name: math.fsum(each[name] for each in launches)
        for name in SUMMED
        if all(name in each for each in launches)
    }
    if spent > 0 and "duration" in values:
        values |= {
            name: math.fsum(each[name] * each["duration"] for each in launches) / spent
            for name in AVERAGED
            if all(name in each for each in launches)
        }
    values |= plain
    return values | _derive_metrics(values)


def calls_of(launches: Sequence[Mapping[str, float]]) -> list[Sequence[Mapping[str, float]]]:
    """Return the launches of each call, in their order; empty where a launch does not say how many
    its call has, or where they are not whole calls."""
    sizes = {int(each.get("call_launches", 0)) for each in launches}
    size = sizes.pop() if len(sizes) == 1 else 0
    if not size or len(launches) % size:
        return []
    return [launches[n : n + size] for n in range(0, len(launches), size)]


def plain_metrics(record: Record) -> dict[str, float]:
    """Return what a record tells of one call: least bytes and FLOP of the Spec, and where it was
    measured the SM clock in Hz, of its slowest and fastest window too, and the driver's reasons for
    a lowered one."""
    values = {"least_bytes": float(record.bytes), "declared_flop": float(record.flops)}
    if is_product(record.case.kernel):
        values["product"] = 1.0
    if record.bytes_read is not None:
        values["least_bytes_read"] = float(record.bytes_read)
    timing = record.timing
    if isinstance(timing, Measured) and timing.sm_mhz:
        values["plain_clock"] = timing.sm_mhz * 1e6
        if timing.window_mhz:
            values["plain_clock_low"] = min(timing.window_mhz) * 1e6
            values["plain_clock_high"] = max(timing.window_mhz) * 1e6
        values |= {f"{THROTTLE}{reason}": 1.0 for reason in timing.throttle}
    return values


def stored_metrics(
    dispatch: Dispatch, tool: str, plain: Mapping[str, float] | None = None
) -> tuple[Evidence, ...]:
    """Return the metrics of a dispatch as they are stored: those of counters in their own units,
    stalls in cycles where the counters tell them, and what rules need beside them."""
    metrics = metric_values(dispatch, tool)
    stored = [Evidence(m.metric.name, m.value, m.metric.unit, "profiled") for m in metrics.values()]
    has_stalls = any(name.startswith(STALL) for name in metrics)
    for name, value in rule_metrics(dispatch, tool, plain).items():
        if name in metrics or name == "duration" or (has_stalls and name.startswith(STALL)):
            continue
        unit, kind, _ = _other(name)
        stored.append(Evidence(name, value, unit, kind))
    return tuple(stored)


def _other(name: str) -> OtherMetric:
    if name.startswith(THROTTLE):
        return _THROTTLE_METRIC
    unit = BY_NAME[name].unit if name in BY_NAME and not name.startswith(STALL) else "1"
    return OTHERS.get(name, OtherMetric(unit, "profiled", ""))


def profile_metrics(profile: Profile) -> dict[str, float]:
    """Return the metrics of a stored launch for rules, as `rule_metrics` of a dispatch; stalls that
    are stored as cycles become shares of their sum."""
    values = {each.name: each.value for each in profile.metrics}
    stalls = {name: value for name, value in values.items() if name.startswith("stall_")}
    whole = math.fsum(stalls.values())
    values |= {name: value / whole for name, value in stalls.items()} if whole > 0 else {}
    if profile.total_s is not None:
        values.setdefault("duration", profile.total_s)
    return values
