"""One quantity of a kernel in our words: unit, direction, and a formula for each tool.

The definitions name the counters of ncu and of AMD's tools. `counter_name` accepts names of older
tools and of the guides. A metric whose counters are missing is None, never 0.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from workbench.traces.trace import CounterValue, Dispatch

Direction = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class Formula:
    """A way to compute a metric from counters of a tool. The source is the list of their names."""

    tools: tuple[str, ...]
    needs: tuple[str, ...]
    compute: Callable[..., float | None]

    def value(self, counters: Mapping[str, float]) -> float | None:
        """Return the value, or None where a counter is missing or the result is not a number."""
        if any(name not in counters for name in self.needs):
            return None
        try:
            result = self.compute(*(counters[name] for name in self.needs))
        except ZeroDivisionError:
            return None
        return result if result is not None and math.isfinite(result) else None


@dataclass(frozen=True)
class Metric:
    """One quantity of a kernel. Shares are of 1, times in seconds, sizes in bytes."""

    name: str
    title: str
    unit: str
    better: Direction
    formulas: tuple[Formula, ...]


class MetricValue(NamedTuple):
    """A metric of one dispatch, and the counters that it came from."""

    metric: Metric
    value: float
    source: str


NCU = ("ncu",)
AMD = ("rocprof", "rocprofv3", "rocprof-compute")

STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle",
    "long_scoreboard", "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction",
    "not_selected", "selected", "short_scoreboard", "sleeping", "tex_throttle", "wait",
)  # fmt: skip


# Counters of a reason to stall, the first that a file has; all are weights of one reason among all.
STALL_COUNTERS = (
    "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio",
    "smsp__average_warp_latency_issue_stalled_{}.ratio",
    "smsp__warp_issue_stalled_{}_per_warp_active.pct",
    "smsp__warps_issue_stalled_{}.avg.pct_of_peak_sustained_active",
    "smsp__warps_issue_stalled_{}.sum",
    "smsp__pcsamp_warps_issue_stalled_{}",
)
# Reasons that some of these counters call otherwise.
OTHER_REASONS = {"no_instruction": "no_instructions", "gmma": "warpgroup_arrive"}


def _percent(name: str) -> Formula:
    """Return a formula that takes a percentage of ncu as a share."""
    return Formula(NCU, (name,), lambda value: value / 100)


def _same(*names: str) -> list[Formula]:
    return [Formula(NCU, (name,), lambda value: value) for name in names]


def _sum(tools: tuple[str, ...], *names: str, times: int = 1) -> Formula:
    return Formula(tools, names, lambda *values: times * sum(values))


def _ratio(tools: tuple[str, ...], part: str, whole: str) -> Formula:
    return Formula(tools, (part, whole), lambda a, b: a / b)


def _part(tools: tuple[str, ...], part: str, rest: str) -> Formula:
    """Return the formula of a part in the sum of it and the rest."""
    return Formula(tools, (part, rest), lambda a, b: a / (a + b))


def stall_counter(reason: str) -> str:
    """Return ncu's counter of the cycles that an instruction waited for a reason."""
    return STALL_COUNTERS[0].format(reason)


def _usage(unit: str) -> Formula:
    return _percent(f"{unit}.avg.pct_of_peak_sustained_elapsed")


def _pipe(counter: str) -> Formula:
    return _percent(f"{counter}.avg.pct_of_peak_sustained_active")


def _dram_of_gfx90a(r: float, r32: float, w: float, w64: float) -> float:
    return 32 * r32 + 64 * (r - r32) + 64 * w64 + 32 * (w - w64)


def _dram_of_gfx942(b: float, r: float, r32: float, w: float, w64: float) -> float:
    return 128 * b + 64 * (r - b - r32) + 32 * r32 + 64 * w64 + 32 * (w - w64)


def _vector_flop(*counts: float) -> float:
    """Return the operations of additions, products and fused multiply-adds, of fp32, fp16, fp64 in
    this order; halves are packed in pairs."""
    fa, fm, ff, ha, hm, hf, da, dm, df = (*counts, *(0.0,) * (9 - len(counts)))
    return fa + fm + 2 * ff + 2 * (ha + hm + 2 * hf) + da + dm + 2 * df


def _wave_flop(*counts: float) -> float:
    """Return the operations of waves of 64; a fused multiply-add is two."""
    return 64 * sum(weight * n for weight, n in zip((1, 1, 1, 2) * 3, counts, strict=True))


_VECTOR = "smsp__sass_thread_inst_executed_op_{}{}_pred_on.sum"
_SECTORS = "l1tex__t_sectors_pipe_lsu_mem_{}_op_{}.sum"
_REQUESTS = ("RDREQ_sum", "RDREQ_32B_sum", "WRREQ_sum", "WRREQ_64B_sum")
_IDEAL = "memory_l2_theoretical_sectors_global_ideal"
_EXCESSIVE = "derived__memory_l2_theoretical_sectors_global_excessive"
_KINDS = ("F16", "F32", "F64")
_WIDE = ("F16", "BF16", "F32", "F64")

# The formulas of each metric, of which the first is taken that a file has the counters of.
FORMULAS: Mapping[str, Sequence[Formula]] = {
    "duration": [Formula(NCU, ("gpu__time_duration.sum",), lambda ns: ns / 1e9)],
    "compute_throughput": [_usage("sm__throughput")],
    "memory_throughput": [_usage("gpu__compute_memory_throughput")],
    "dram_throughput": [_usage("gpu__dram_throughput")],
    "l2_throughput": [_usage("lts__throughput")],
    "l1_throughput": [_pipe("l1tex__throughput")],
    "dram_read_bytes": _same("dram__bytes_read.sum", "dram__bytes_op_read.sum"),
    "dram_written_bytes": _same("dram__bytes_write.sum", "dram__bytes_op_write.sum"),
    "dram_bytes": [
        _sum(NCU, "dram__bytes_read.sum", "dram__bytes_write.sum"),
        _sum(NCU, "dram__bytes_op_read.sum", "dram__bytes_op_write.sum"),
        Formula(AMD, tuple(f"TCC_EA_{name}" for name in _REQUESTS), _dram_of_gfx90a),
        Formula(  # traffic of the Infinity Cache included
            AMD, ("TCC_BUBBLE_sum", *(f"TCC_EA0_{name}" for name in _REQUESTS)), _dram_of_gfx942
        ),
        _sum(AMD, "FETCH_SIZE", "WRITE_SIZE", times=1024),
        _sum(AMD, "FetchSize", "WriteSize", times=1024),
    ],
    "l2_bytes": [
        _sum(NCU, "l1tex__m_xbar2l1tex_read_bytes.sum", "l1tex__m_l1tex2xbar_write_bytes.sum")
    ],
    "l1_bytes": [  # sectors of 32 bytes; those of TMA and of textures pass elsewhere
        _sum(
            NCU,
            *(_SECTORS.format(space, op) for space in ("global", "local") for op in ("ld", "st")),
            times=32,
        )
    ],
    "l2_hit": [
        _percent("lts__t_sector_hit_rate.pct"),
        _part(AMD, "TCC_HIT_sum", "TCC_MISS_sum"),
        _part(AMD, "GL2C_HIT_sum", "GL2C_MISS_sum"),
        Formula(AMD, ("L2CacheHit",), lambda percent: percent / 100),
    ],
    "excess_sectors": [_part(NCU, _EXCESSIVE, _IDEAL)],
    "ideal_sectors": _same(_IDEAL),
    "excessive_sectors": _same(_EXCESSIVE),
    "local_sectors": _same("memory_l2_theoretical_sectors_local"),
    "bank_conflicts": [
        _ratio(
            NCU,
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
            "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
        ),
        _ratio(AMD, "SQ_LDS_BANK_CONFLICT", "SQ_LDS_IDX_ACTIVE"),
        _ratio(AMD, "SQC_LDS_BANK_CONFLICT", "SQC_LDS_IDX_ACTIVE"),
    ],
    "xu_pipe": [_pipe("sm__inst_executed_pipe_xu")],
    "lsu_pipe": [_pipe("sm__inst_executed_pipe_lsu")],
    "fma_pipe": [_pipe("sm__pipe_fma_cycles_active")],
    "alu_pipe": [_pipe("sm__pipe_alu_cycles_active")],
    "fp64_pipe": [_pipe("sm__pipe_fp64_cycles_active")],
    "matrix_pipe": [
        _pipe("sm__pipe_tensor_op_hmma_cycles_active"),
        _pipe("sm__inst_executed_pipe_tensor"),  # GB100 and later have none of the other name
    ],
    "vector_flop": [
        *(
            Formula(
                NCU,
                tuple(_VECTOR.format(kind, op) for kind in kinds for op in ("add", "mul", "fma")),
                _vector_flop,
            )
            for kinds in ("fhd", "f")
        ),
        Formula(
            AMD,
            tuple(
                f"SQ_INSTS_VALU_{op}_{kind}"
                for kind in _KINDS
                for op in ("ADD", "MUL", "TRANS", "FMA")
            ),
            _wave_flop,
        ),
    ],
    "matrix_flop": [  # a MOP is 512 operations; F8 from gfx942 on, F6F4 from gfx950 on
        _sum(AMD, *(f"SQ_INSTS_VALU_MFMA_MOPS_{kind}" for kind in kinds), times=512)
        for kinds in ((*_WIDE, "F8", "F6F4"), (*_WIDE, "F8"), _WIDE)
    ],
    **{
        f"{kind.lower()}_share": [_ratio(AMD, f"SQ_INSTS_{kind}", "SQ_INSTS")]
        for kind in ("VALU", "MFMA", "VMEM", "LDS", "SALU", "SMEM")
    },
    "waves_waiting": [_ratio(AMD, "SQ_WAIT_ANY", "SQ_WAVE_CYCLES")],
    "issue_active": _same("smsp__issue_active.avg.per_cycle_active"),
    "instruction_latency": _same("smsp__average_warp_latency_per_inst_issued.ratio"),
    **{f"stall_{reason}": _same(stall_counter(reason)) for reason in STALLS},
    "global_loads": _same(
        "smsp__sass_inst_executed_op_global_ld.sum", "smsp__inst_executed_op_global_ld.sum"
    ),
    "lanes_active": _same("smsp__thread_inst_executed_per_inst_executed.ratio"),
    "lanes_on": [
        *_same("smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"),
        _ratio(AMD, "SQ_THREAD_CYCLES_VALU", "SQ_ACTIVE_INST_VALU"),
    ],
    "spill_share": [
        _ratio(NCU, "sass__inst_executed_register_spilling", "smsp__inst_executed.sum")
    ],
    "occupancy_theoretical": [_percent("sm__maximum_warps_per_active_cycle_pct")],
    "occupancy": [_pipe("sm__warps_active")],
    "empty_places": [
        Formula(
            NCU, ("launch__waves_per_multiprocessor",), lambda waves: 1 - waves / math.ceil(waves)
        )
    ],
    "sm_clock": _same(
        *(f"{unit}__cycles_elapsed.avg.per_second" for unit in ("gpc", "sm", "smsp"))
    ),
}
# Title, unit and direction of each metric; of those that are not named: the name, a share, neither.
FACTS: Mapping[str, tuple[str, str, Direction]] = {
    "duration": ("duration", "s", "lower"),
    "compute_throughput": ("compute throughput", "1", "higher"),
    "memory_throughput": ("memory throughput", "1", "higher"),
    "dram_throughput": ("DRAM throughput", "1", "higher"),
    "l2_throughput": ("L2 throughput", "1", "higher"),
    "l1_throughput": ("L1 throughput", "1", "higher"),
    "dram_read_bytes": ("DRAM bytes read", "B", "lower"),
    "dram_written_bytes": ("DRAM bytes written", "B", "lower"),
    "dram_bytes": ("DRAM bytes", "B", "lower"),
    "l2_bytes": ("bytes between L2 and L1", "B", "lower"),
    "l1_bytes": ("bytes of loads and stores in L1", "B", "lower"),
    "l2_hit": ("L2 hit rate", "1", "higher"),
    "excess_sectors": ("excess sectors", "1", "lower"),
    "ideal_sectors": ("sectors needed", "sectors", "neither"),
    "excessive_sectors": ("sectors not needed", "sectors", "lower"),
    "local_sectors": ("sectors of local memory", "sectors", "lower"),
    "bank_conflicts": ("bank conflicts", "1", "lower"),
    "vector_flop": ("FLOP outside of the matrix unit", "FLOP", "neither"),
    "matrix_flop": ("FLOP of the matrix unit", "FLOP", "neither"),
    **{
        f"{kind.lower()}_share": (f"{kind} instructions", "1", "neither")
        for kind in ("VALU", "MFMA", "VMEM", "LDS", "SALU", "SMEM")
    },
    "waves_waiting": ("waves waiting", "1", "lower"),
    "issue_active": ("issue slots used", "1", "higher"),
    "instruction_latency": ("cycles an instruction", "cycle", "lower"),
    **{f"stall_{reason}": (f"stall {reason}", "cycle", "lower") for reason in STALLS},
    "global_loads": ("global loads", "instructions", "lower"),
    "lanes_active": ("lanes active", "lane", "higher"),
    "lanes_on": ("lanes on", "lane", "higher"),
    "spill_share": ("spill instructions", "1", "lower"),
    "occupancy_theoretical": ("theoretical occupancy", "1", "higher"),
    "occupancy": ("achieved occupancy", "1", "higher"),
    "empty_places": ("empty places", "1", "lower"),
    "sm_clock": ("SM clock", "Hz", "neither"),
}
PIPE: tuple[str, Direction] = "1", "neither"
METRICS = tuple(
    Metric(name, *FACTS.get(name, (name.replace("_", " "), *PIPE)), tuple(formulas))
    for name, formulas in FORMULAS.items()
)
BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}

# Names of older tools and of the guides, and the counter that is meant.
RENAMED = {
    r"smsp__(?:thread_)?inst_executed_not_predicated_off\b": "smsp__thread_inst_executed_pred_on",
    r"dram__throughput\b": "gpu__dram_throughput",
    r"dram__bytes_op_(read|write)\b": r"dram__bytes_\1",
    **{
        rf"(smsp__average_warps?_(?:latency_)?issue_stalled_){other}_": rf"\1{reason}_"
        for reason, other in OTHER_REASONS.items()
    },
    r"sm__pipe_tensor_op_hmma_cycles_active_v2\b": "sm__pipe_tensor_op_hmma_cycles_active",
}


@lru_cache(maxsize=1 << 14)  # a report has the same hundreds of names in each of its dispatches
def counter_name(name: str) -> str:
    """Return the present name of a counter that an older tool or a guide calls otherwise."""
    for old, new in RENAMED.items():
        name = re.sub(old, new, name)
    return name


def exact_counters(dispatch: Dispatch) -> dict[str, float]:
    """Return the counters of a dispatch that have a value, by their own and their present name."""
    result: dict[str, float] = {}
    for name, counter in dispatch.counters.items():
        if counter.state == "ok" and counter.exact is not None:
            result[name] = counter.exact
            result.setdefault(counter_name(name), counter.exact)
    return result


def metric_value(metric: Metric, counters: Mapping[str, float], tool: str) -> MetricValue | None:
    """Return a metric by the first formula of a tool that has all its counters, or None."""
    for formula in metric.formulas:
        if tool in formula.tools and (value := formula.value(counters)) is not None:
            return MetricValue(metric, value, ", ".join(formula.needs))
    return None


def metric_values(dispatch: Dispatch, tool: str) -> dict[str, MetricValue]:
    """Return every metric of a dispatch that its counters give, by name."""
    counters = exact_counters(dispatch)
    values = (metric_value(metric, counters, tool) for metric in METRICS)
    return {value.metric.name: value for value in values if value is not None}


def stall_shares(counters: Mapping[str, float]) -> dict[str, float]:
    """Return each reason's share of all stalls, from the first kind of counter that the file has;
    empty where it has none."""
    for pattern in STALL_COUNTERS:
        weights = {
            reason: counters[name]
            for reason in STALLS
            for word in (reason, OTHER_REASONS.get(reason, reason))
            if (name := pattern.format(word)) in counters
        }
        whole = math.fsum(weights.values())
        if whole > 0:
            return {reason: value / whole for reason, value in weights.items()}
    return {}


def limiter(counters: Mapping[str, float]) -> Sequence[str]:
    """Return what limits occupancy: the parts with the least number of blocks; empty if unknown."""
    start = "launch__occupancy_limit_"
    limits = {name: value for name, value in counters.items() if name.startswith(start)}
    least = min(limits.values(), default=0.0)
    return [name.removeprefix(start) for name, value in limits.items() if value == least]


def refusals(dispatch: Dispatch) -> list[CounterValue]:
    """Return the counters that the tool refused."""
    return [counter for counter in dispatch.counters.values() if counter.state == "refused"]


LAUNCH = {
    "programs": "launch__grid_size",
    "cores": "launch__sm_count",
    "waves": "launch__waves_per_multiprocessor",
}
